"""Datasets that wait, as for a network: ``concurrency=`` samples are read at a time, and an ``async def __getitem__``.

    claims ──▶ Window ──▶ Tasks   await dataset[i] in the dataset's event loop     ──▶ all samples of a claim are there
               (window)   Threads dataset[i] in threads            (fetching)           ──▶ rows are written as ever, published

A worker holds several claims at a time (`reader`); nothing is written before a claim's last sample has come, so that a
sample that is late after a break has nowhere to go. Imports only `data`, `transforms`, `orders` and `ring`.
"""
