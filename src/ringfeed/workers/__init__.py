"""What fills slots: the consumer itself, its threads, or processes that are replaced when they die.

    pool (the consumer), threads, processes ─── roster   a row a worker; those to replace
                                        └────── launchers: how workers are started
                                                ├── process     spawned ones
                                                ├── launchers   by a forkserver, which warm forks
                                                └── fork        by one that this process forks

    start              the first and last steps of every process here: the guard, the error it says
    forkserver         what runs in a forkserver, also in the warm one
    worker_main        what runs in a worker
    first_sample_fork  sample 0, read in a fork

Imports `reading`, `transport`, `monitor` and what lies below.
"""
