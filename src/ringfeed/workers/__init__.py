"""What fills slots: this process, its threads, or worker processes that are replaced when they die.

    pool ──▶ threads of this process
       └───▶ processes ──▶ spawn, or a launcher of `forkserver` ──▶ worker_main ──▶ data.base
                  │
                  └── roster: which workers there are; restart_policy, watchdog: deaths, and workers past the timeout

Imports only `transport` and what lies below it and, for its start methods, the room `forkserver`.
"""
