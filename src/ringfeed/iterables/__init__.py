"""Iterables as datasets: each is a stream, read in order by one worker, and begun again where it was.

    iterable ──▶ StreamSource (streams) ──▶ StreamReader, in a worker (stream_reader) ──▶ Stream (stream), by element
                 stream_part: one rank's part

    opening      an iterator whose next element is known before it is taken; what kind of iterable there is
    state_recorder  its own states, taken while it is read
    states       where they are kept, in memory that a replaced worker finds
    kept_streams the same in the consumer: seeded, looked at, given back
    round_robin  in which order the elements of several become batches

Imports only `data`, `orders`, `spec` and `ring`.
"""
