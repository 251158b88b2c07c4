"""A batch in a framework's own tensors. One module imports one framework, and only when it is asked for.

    Lease ──▶ zero_copy or copies ──▶ cast ──▶ prefetch (to a device) ──▶ tensors

`base` says what all of them may know of a loader; `epochs` is what `to_torch` and `to_jax` return. `pinned` registers
slots with the CUDA driver, `pending_copies` waits for what still reads them.
"""
