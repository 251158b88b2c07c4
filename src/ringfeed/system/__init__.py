"""What the operating system gives and allows.

The ring is one user of it among others.

    _system      descriptors, child processes, packets, a thread that guards, pages of files
    memory       memfds that processes share, reserved and sealed
    machine      how much of what there may be; asked before anything starts
    guard        processes that end with the one that they work for, and forks of it
    interpreter  a fresh interpreter in this one's surroundings, a child to multiprocessing
    channel      messages from process to process

Where other processes cannot share memory with this one (`_system.HAS_PROCESSES`), memory is this
process's own, and `machine.check_shared` refuses what needs another.

All that it makes is owned from the call that makes it. No module here imports NumPy, so a worker's
guard starts before NumPy does.
"""
