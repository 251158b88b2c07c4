"""What the operating system gives, and allows: below the ring, which is one user of it among others.

    _system     descriptors, child processes, messages between them, the guard of a worker, pages of files
    memory      memfds that processes share, reserved and sealed
    machine     how much of what there may be; asked before anything starts

All that it makes is owned from the call that makes it. No module here imports NumPy, so a worker's guard starts before
NumPy does. Imports only `errors` and `_units`.
"""
