"""Batches on a GPU, by each framework: one module a framework, each run in a process of its own.

    common           the datasets, the figures, and what a module must have: `Gpu`, `why_not`, `feed`
    by_torch, by_tensorflow, by_jax, by_keras

Each contender gives batches twice: where the CPU has them, for a copy alone; and on the device, for
steps. With ``device="cpu"`` all but slots that are registered runs without a GPU, which is how it
is tested.
"""
