"""Results read back, and what is made of them: tables, plots, the two READMEs."""
