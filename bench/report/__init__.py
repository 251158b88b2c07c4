"""Results read back, and what is made of them: tables, plots, and pages that show them."""
