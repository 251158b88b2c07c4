"""Datasets that wait, as for a network: many samples in flight in each worker.

    claims ──▶ Window ──▶ Tasks, or Threads ──▶ samples ──▶ rows, written as ever ──▶ published
               (window)   (fetching)            (ticket)

sources       which datasets may wait; those with an ``async def __getitem__``
event_loop    where those are awaited: one loop for each dataset in each process
fetching      reads samples, so many at a time
ticket        one of the claims that a worker holds, and the samples of its rows
window        all of them
reader        the Reader that claims for a Window

Nothing is written before a claim's last sample has come, so a sample that is late after a break has nowhere to go.
Imports only `data`, `transforms`, `orders` and `ring`.
"""
