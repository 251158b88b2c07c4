"""The datasets, what a batch of each must hold, and which contender meets which of them."""
