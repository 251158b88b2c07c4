"""What a running loader does: slots and workers, counts, memory, a timeline, and where batches were taken.

Reads the control block (`_snapshot`) and the kernel, and changes nothing. `bottleneck` puts the figures into words,
`faults` what went wrong, and `account` is what a loader says of it all. Imports nothing of `workers` and `engine`,
which look on by it.
"""
