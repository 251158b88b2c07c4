"""How many workers, slots, bridges and gigabits a trainer needs, before there is a cluster: `ringfeed simulate`.

    a profile, a calibration ──▶ terms: Work, Costs
                                   │
    appetite, links ──▶ sizing: a Setting for each number of workers ──▶ model: discrete events ──▶ Outcome
                                                                            │
                                                   report: a table, words ◀─┴─▶ drawing: by matplotlib, if it is there

The model is one closed loop: a trainer, slots in their order, tickets, bridges, actors, links. It draws random numbers
from a seed, so a run is the same each time. Nothing here needs Ray or NumPy.
"""
