"""An iterable as something with places: opened, looked into, begun again where it was.

    opening      an iterator whose next element is known before it is taken; what kind of iterable there is
    state_taker  its own states, taken while it is read
    states       where they are kept, in memory that a replaced worker finds
    round_robin  in which order the elements of several become batches

Imports only `orders` and `ring`; what reads elements into slots is `data.streams`.
"""
