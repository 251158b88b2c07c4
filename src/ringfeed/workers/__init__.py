"""What fills slots: this process, its threads, or worker processes that are replaced when they die.

    pool ──▶ threads of this process
       └───▶ processes ──▶ spawn, forkserver or fork ──▶ worker_main ──▶ data.base
                  │
                  └── restart_policy, watchdog: deaths, and workers that exceed the timeout

Imports only `transport` and what lies below it.
"""
