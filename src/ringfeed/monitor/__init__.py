"""What a running loader does: counts, memory, a timeline, and where batches were taken.

Reads the control block and the kernel; changes nothing. `bottleneck` puts the figures into words.
"""
