"""The iterator that a loader hands out."""

from __future__ import annotations

import sys
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from ringfeed._process import Exit
from ringfeed.engine._iterator import Batches, Progress
from ringfeed.errors import ClosedError, RingfeedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.engine._iterator import Taker
    from ringfeed.spec.builder import BuildBatch


class EpochRun(NamedTuple):
    """What an iterator asks of the runner of its epoch. ``keeps``: the loader, which lives as long as its iterators."""

    turn: int
    lock: object
    resolve: Callable[[int, BuildBatch | None], None]
    ready: Callable[[], bool]
    break_off: Callable[[], None]
    is_stopped: Callable[[], bool]
    progress: Progress
    keeps: object


class BatchIterator(Batches):
    """One epoch's batches. Dropping it before the end breaks the epoch off.

    A batch that is there is taken by the base class, in one call; the engine resolves all else.
    """

    _finished = True  # until it has begun, if Ctrl-C lets it

    def __init__(self, run: EpochRun, taker: Taker, build: BuildBatch | None, *, copy: bool) -> None:
        """Iterate over the batches of ``run``, as arrays, or copies, or as what ``build`` makes of them."""
        super().__init__(taker, run.turn, build, run.lock, run.progress, copy)
        self._run = run
        self._build = build
        self._finished = False
        self.failure: RingfeedError | None = None
        """What ended the workers, and the epoch before its time. Without a traceback, which would keep the loader."""

    def resolve(self, answer: int) -> None:
        """Have the engine do what an answer of the ring asks for; raises what ends the epoch."""
        if self._finished:
            raise StopIteration
        try:
            self.raise_kept()
            self._run.resolve(answer, self._build)
        except StopIteration:
            self._finished = True
            self.progress.is_over = not self._run.is_stopped()  # else the workers have failed
            raise
        except ClosedError:
            Exit.park()
            raise
        except RingfeedError as error:
            if self._run.is_stopped():
                self.failure = copy(error)
            raise

    def ready(self) -> bool:
        """Whether ``next()`` would not wait; raises what it would, for an iterator that has had its time."""
        try:
            return not self._finished and self._run.ready()
        except ClosedError:
            Exit.park()
            raise

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Break the epoch off, unless it is over, or the interpreter ends: globals may be None then."""
        if not is_exiting() and not self._finished:
            self._run.break_off()
