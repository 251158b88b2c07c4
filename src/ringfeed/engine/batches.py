"""The iterator that a loader hands out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, TypeAlias

from ringfeed._process import Exit
from ringfeed.engine._iterator import Batches
from ringfeed.engine.lending import OvertakenError
from ringfeed.errors import ClosedError, RingfeedError
from ringfeed.ring._ring import Lease

if TYPE_CHECKING:
    from ringfeed.engine._iterator import Taker
    from ringfeed.loader import Loader

Form: TypeAlias = Callable[[Lease, int], Any]
"""Makes what is handed out from the lease of a batch and its rows, as an adapter wants it."""


class BatchIterator(Batches):
    """One epoch's batches. Dropping it before the end breaks the epoch off.

    A batch that is there is taken by the base class, in one call; `otherwise` does all else.
    """

    _finished = True  # until it has begun, if Ctrl-C lets it

    def __init__(self, loader: Loader, taker: Taker, turn: int, form: Form | None, *, patient: bool) -> None:
        """Iterate as the ``turn``-th iterator of ``loader``."""
        super().__init__(taker, turn, form, loader._lock)  # noqa: SLF001 - the loader's other half
        self._loader = loader
        self._patient = patient
        self._finished = False
        self.failure: RingfeedError | None = None
        """What ended the workers, and the epoch before its time. Without a traceback, which would keep the loader."""

    def otherwise(self, form: Form | None) -> Any:
        """Return the next batch, in the structure of a sample unless a form was given."""
        if self._finished:
            raise StopIteration
        try:
            while True:
                with suppress(OvertakenError):
                    return self._loader._next(self.turn, form, patient=self._patient)  # noqa: SLF001 - as above
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
            return not self._finished and self._loader._ready(self.turn)  # noqa: SLF001 - the loader's other half
        except ClosedError:
            Exit.park()
            raise

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Break the epoch off, unless it is over, or the interpreter ends: globals may be None then."""
        if not is_exiting() and not self._finished:
            self._loader._break_off(self.turn)  # noqa: SLF001 - the loader's other half
