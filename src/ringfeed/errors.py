"""The errors that ringfeed raises, in one small tree; each is also a standard error.

RingfeedError
├── SpecError        (ValueError)    a sample, a batch or a spec does not fit
├── PlanError        (MemoryError)   the memory asked for is not there, or a budget is too small
├── ShipError        (TypeError)     a dataset cannot travel to its workers
├── WorkerError      (RuntimeError)  dataset[i] raised, killed its worker or wrote outside its rows;
│                                    or workers never start
├── StallError       (TimeoutError)  no batch within ``timeout_s``
├── SlotsHeldError   (BufferError)   views of the caller hold every slot: no batch can be filled
├── SupersededError  (RuntimeError)  a newer iterator or a loaded state has taken over
├── StateError       (ValueError)    a state does not fit the loader, or its position is unknown
└── ClosedError      (ValueError)    the loader is closed

and one warning of its own:

SlotsHeldWarning     (UserWarning)   views hold all slots but one: batches are private copies
"""

from __future__ import annotations


class RingfeedError(Exception):
    """The root of all errors that ringfeed raises."""


class SpecError(RingfeedError, ValueError):
    """A sample differs from the spec, or none can be built; names index, path, expected, got."""


class PlanError(RingfeedError, MemoryError):
    """The plan exceeds its budget, the available memory, or the limit of a cgroup."""


class ShipError(RingfeedError, TypeError):
    """A dataset cannot be sent to worker processes; the text names the path to the faulty part."""


class WorkerError(RingfeedError, RuntimeError):
    """A sample raised, killed its worker or wrote over shared memory; or workers never start.

    When ``dataset[i]`` raised, ``__cause__`` is that exception, with its own chain and the
    traceback of the worker: the user's frames, without those of ringfeed.
    """


class FunctionError(WorkerError):
    """A user's function, named in the text, raised in a worker; the loader raises WorkerError."""


class StallError(RingfeedError, TimeoutError):
    """No batch arrived within ``timeout_s``; the text has each worker's sample and Python stack."""


class SlotsHeldError(RingfeedError, BufferError):
    """Views that the caller keeps alive hold every slot, so that no batch can be filled.

    Raised only with two slots, if a loop dropped each batch at first and then keeps two. All other
    loops get `SlotsHeldWarning`.
    """


class SlotsHeldWarning(UserWarning):
    """Views of the caller hold all slots but one: batches may be private copies from here on.

    Given once per loader, at the caller's line. ``warnings.simplefilter("error",
    ringfeed.SlotsHeldWarning)`` makes it an error; the ``next()`` after it gives the batch that was
    due.
    """


class SupersededError(RingfeedError, RuntimeError):
    """``next()`` on an iterator after its loader made a newer one or loaded a state."""


class StateError(RingfeedError, ValueError):
    """A state has another dataset, order or version; or the training loop's position is unknown."""


class ClosedError(RingfeedError, ValueError):
    """The loader was closed before this call."""
