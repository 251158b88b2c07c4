"""How the contenders are run: a job for each, its fresh process, and what is read there and from outside."""
