"""The iterator that a loader hands out."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, TypeAlias

from ringfeed._ring import Lease
from ringfeed.errors import ClosedError, RingfeedError
from ringfeed.lifetime import Exit

if TYPE_CHECKING:
    from ringfeed.loader import Loader

Form: TypeAlias = Callable[[Lease, int], Any]
"""Makes what is handed out from the lease of a batch and its rows, as an adapter wants it."""


class BatchIterator:
    """One epoch's batches. Dropping it before the end breaks the epoch off."""

    def __init__(self, loader: Loader, turn: int, form: Form | None, *, patient: bool) -> None:
        """Iterate as the ``turn``-th iterator of ``loader``."""
        self._loader = loader
        self._turn = turn
        self._form = form
        self._patient = patient
        self._finished = False
        self.failure: RingfeedError | None = None
        """What ended the workers, and the epoch before its time. Without a traceback, which would keep the loader."""

    def __iter__(self) -> BatchIterator:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch, in the structure of a sample unless a form was given."""
        if self._finished:
            raise StopIteration
        try:
            return self._loader._next(self._turn, self._form, patient=self._patient)  # noqa: SLF001 - the loader's other half
        except StopIteration:
            self._finished = True
            raise
        except ClosedError:
            Exit.park()
            raise
        except RingfeedError as error:
            if self._loader._engine is None:  # noqa: SLF001 - as above
                self.failure = copy(error)
            raise

    def ready(self) -> bool:
        """Whether ``next()`` would not wait; raises what it would, for an iterator that has had its time."""
        try:
            return not self._finished and self._loader._ready(self._turn)  # noqa: SLF001 - the loader's other half
        except ClosedError:
            Exit.park()
            raise

    def __del__(self) -> None:
        """Break the epoch off, unless it is over."""
        if not self._finished:
            self._loader._break_off(self._turn)  # noqa: SLF001 - the loader's other half
