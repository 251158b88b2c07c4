"""workers="auto", slots="auto": how many there are, decided from what waits for what, changed while training runs.

    counts, every 0.1 s ──▶ autotune: a step, or none ──▶ resizer: opens and parks slots, starts and dismisses workers

Imports `workers`, `monitor` and what lies below them; a loader without "auto" runs none of it.
"""
