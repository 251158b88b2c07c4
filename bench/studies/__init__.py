"""Benches with a question of their own, each a script."""
