# cython: language_level=3
"""Several epochs as one iterator."""

cimport cython

from threading import RLock

from ringfeed.errors import SupersededError


@cython.final
@cython.auto_pickle(False)
cdef class Repeated:
    """One iterator over several epochs: each `iter(epochs)` is the next one.

    In Cython, so that Ctrl-C comes neither between the end of an epoch and the next one's place
    here, nor between a batch and its caller.
    """

    cdef object epochs
    cdef readonly object count
    """How many epochs; None: without end."""
    cdef object left
    cdef object batches  # of the newest epoch
    cdef object lock
    # Epochs in a row that gave no batch, and threads that are in one, which may give it to them.
    cdef int idle, inside

    def __init__(self, epochs not None, count=None):
        """Begin no epoch yet."""
        self.epochs = epochs
        self.count = self.left = count
        self.lock = RLock()

    def __len__(self):
        """Return the batches of so many whole epochs; TypeError where that is not known."""
        if self.count is None:
            raise TypeError("repeat() goes on without end")
        return len(self.epochs) * self.count

    def __iter__(self):
        return self

    def __next__(self):
        while True:
            with cython.critical_section(self):  # or another thread drops them meanwhile
                batches = self.batches
                self.inside += 1
            try:
                for batch in batches or ():
                    with cython.critical_section(self):
                        self.idle = 0
                    return batch
            except SupersededError:
                # Another thread holds the lock until the epoch that it has begun is in place.
                with self.lock:
                    if batches is self.batches:
                        raise
            finally:
                with cython.critical_section(self):
                    self.inside -= 1
            self.begin(batches)

    cdef begin(self, ended):
        """Begin the next epoch, unless another thread has; StopIteration after the last."""
        with self.lock:
            if self.batches is not ended:
                return
            # One idle epoch may be the rest of an epoch that was cut.
            with cython.critical_section(self):
                is_idle = self.count is None and self.idle > 1 and not self.inside
            if self.left == 0 or is_idle or (ended is not None and ended.failure is not None):
                raise StopIteration
            batches = iter(self.epochs)
            with cython.critical_section(self):
                self.batches = batches
                self.idle += 1
            if self.left is not None:
                self.left -= 1
