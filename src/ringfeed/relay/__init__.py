"""A stream that one process reads, in order, and whose elements all workers transform.

    iterable ──▶ StreamServer ──▶ Store ──▶ StoredElements ──▶ transform ──▶ rows, written as ever ──▶ published
                 (serving)        (store)   (taking)

choice    which streams are read so
store     the elements by their numbers, in shared memory: as many as the slots have rows, and a little more
sizes     what a store is made for
elements  an element as bytes, and back
_words    what the processes tell each other, and sleep on
serving   the process that reads
taking    what a worker takes its rows' elements out of

A worker claims rows of any batch, as of a dataset whose samples have numbers, and waits for their elements. So order,
deaths and errors need nothing new: rows that run again find their elements in the store. Imports only `data`, `ring`,
`orders`, `transforms`, `transport` and `waiting`.
"""
