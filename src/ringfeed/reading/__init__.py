"""Reads many samples at a time, or one stream for all workers.

    many in flight, for sources that wait         waiting, fetching, _claims
    several threads in a worker                   threaded, fetching, _claims
    one process reads a stream for all workers    relay, store, _claims

In all, a worker writes and publishes rows as every other does, so order, deaths and errors need
nothing new: a claim is published when its last row is written, and rows that run again find their
elements in the store. Imports `datasets`, `transport` and what lies below.
"""
