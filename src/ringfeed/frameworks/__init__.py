"""A batch in a framework's own tensors. One module imports one framework, and only when it is asked for.

    Lease ──▶ zero_copy or copies ──▶ cast ──▶ prefetch (to a device) ──▶ tensors

`epochs` is what all share. `pinned` registers slots with the CUDA driver, `pending_copies` waits for what still reads
them.
"""
