"""How a worker reads where samples do not simply follow each other.

    many in flight, for sources that wait         fetching, window, window_reader, _claims
    one process reads a stream for all workers    relay, store, _words

In both, rows are written and published as ever, so order, deaths and errors need nothing new:
nothing is written before a claim's last sample has come, and rows that run again find their
elements in the store. Imports `datasets`, `transport` and what lies below.
"""
