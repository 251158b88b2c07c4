"""Everything ringfeed raises on its own account, one small tree; each error is also a standard one.

RingfeedError
├── SpecError        (ValueError)    a sample, a batch or a spec does not fit
├── PlanError        (MemoryError)   the memory asked for is not there, or a budget is too small
├── ShipError        (TypeError)     a dataset cannot travel to its workers
├── WorkerError      (RuntimeError)  dataset[i] raised, killed its worker, or wrote where it must not; workers that
│                                    never start
├── StallError       (TimeoutError)  no batch within ``timeout_s``
├── SlotsHeldError   (BufferError)   every slot is held by views the caller keeps, and none is left to copy from
├── SupersededError  (RuntimeError)  a newer iterator or a loaded state has taken over
├── StateError       (ValueError)    a state is of another loader, or nothing can tell where the training loop is
└── ClosedError      (ValueError)    the loader is closed

and one warning of its own:

SlotsHeldWarning     (UserWarning)   every slot but one is held, so that batches are handed out as private copies
"""

from __future__ import annotations


class RingfeedError(Exception):
    """The root of all errors that ringfeed raises."""


class SpecError(RingfeedError, ValueError):
    """A sample differs from the spec, or a spec cannot be built; names index, path, expected and got."""


class PlanError(RingfeedError, MemoryError):
    """The plan does not fit: into its budget, into available memory, or into the limit of a cgroup."""


class ShipError(RingfeedError, TypeError):
    """A dataset cannot be sent to worker processes; names the path to the part that cannot."""


class WorkerError(RingfeedError, RuntimeError):
    """A sample raised in its worker or killed it or wrote over shared memory, or workers die before they start to work.

    When ``dataset[i]`` raised, ``__cause__`` is that exception, with its own chain and the
    traceback of the worker: the user's frames, without ours.
    """


class FunctionError(WorkerError):
    """A function that the loader was given raised in a worker: it says which; the loader raises WorkerError for it."""


class StallError(RingfeedError, TimeoutError):
    """No batch arrived within ``timeout_s``; names each worker, its sample and its Python stack."""


class SlotsHeldError(RingfeedError, BufferError):
    """Every slot is held by views the caller keeps alive, so that no batch can be filled.

    Only where a loop of two slots let go of each batch at first and then keeps two; otherwise see
    `SlotsHeldWarning`.
    """


class SlotsHeldWarning(UserWarning):
    """Every slot but one is held by views the caller keeps alive: from here on batches may be private copies.

    Given once a loader, at the caller's line. ``warnings.simplefilter("error",
    ringfeed.SlotsHeldWarning)`` makes it an error, after which the next ``next()`` gives the batch
    that was to come.
    """


class SupersededError(RingfeedError, RuntimeError):
    """``next()`` on an iterator after a newer one of the same loader was made, or a state was loaded."""


class StateError(RingfeedError, ValueError):
    """A state was taken of another dataset, order or version; or how far the training loop is was not told."""


class ClosedError(RingfeedError, ValueError):
    """The loader was closed before this call."""
