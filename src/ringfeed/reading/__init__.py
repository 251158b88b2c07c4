"""Reads many samples at a time, or one stream for all workers.

    many in flight, for sources that wait         waiting, fetching, _claims
    one process reads a stream for all workers    relay, store, _claims

In both, a worker writes and publishes rows as every other does, so order, deaths and errors need
nothing new: it writes nothing before the last sample of a claim has come, and rows that run again
find their elements in the store. Imports `datasets`, `transport` and what lies below.
"""
