"""What fills slots: this process, or worker processes that are replaced when they die; threads are a room.

    pool ──▶ the consumer itself, or `threads`
       └───▶ processes ──▶ spawn, or a launcher of `forkserver` ──▶ worker_main ──▶ data.base
                  │
                  └── roster: which workers there are; restart_policy, watchdog: deaths, and workers past the timeout

Imports only `transport` and what lies below it and, where they are asked for, the rooms `threads` and `forkserver`.
"""
