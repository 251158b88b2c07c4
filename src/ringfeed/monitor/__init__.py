"""What a running loader does: slots and workers, counts, memory, and a timeline.

    _snapshot, snapshot      the control block and the kernel, looked at; nothing is changed
    stats, bottleneck, remote   counts, and in words what they mean
    memory, free_memory, words        what memory there is, and what takes it
    faults, stacks           what went wrong
    trace, timeline, charts, page   a timeline, and the page that bokeh draws of it

Imports `spec` and what lies below.
"""
