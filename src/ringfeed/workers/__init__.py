"""What fills slots: this process, its threads, or worker processes that are replaced when they die.

    pool ──▶ threads of this process
       └───▶ processes ──▶ launch (spawn, forkserver, fork) ──▶ worker_main ──▶ data.source
                  │
                  └── restart_policy, watchdog: deaths, and workers that exceed the timeout

Imports only `transport` and what lies below it.
"""
