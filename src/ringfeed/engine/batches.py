"""The iterator that a loader hands out."""

from __future__ import annotations

import sys
from copy import copy
from typing import TYPE_CHECKING

from ringfeed._process import Exit
from ringfeed.engine._iterator import Batches
from ringfeed.errors import ClosedError, RingfeedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.engine._iterator import Intake, Progress
    from ringfeed.engine.runner import EpochRunner
    from ringfeed.spec.builder import BuildBatch


class BatchIterator(Batches):
    """One epoch's batches. Dropping it before the end breaks the epoch off.

    A batch that is there is taken by the base class, in one call; the engine resolves all else.
    """

    _finished = True  # until it has begun, if Ctrl-C lets it

    def __init__(  # noqa: PLR0913 - what an epoch is
        self,
        runner: EpochRunner,
        intake: Intake,
        epoch_id: int,
        progress: Progress,
        build: BuildBatch | None,
        *,
        wait_for_slots: bool,
        keeps: object,
    ) -> None:
        """Iterate over this epoch's batches, as arrays, or copies, or as what ``build`` makes of them.

        ``keeps``: the loader, which lives as long as its iterators.
        """
        lock = (
            None if getattr(build, "is_computing", None) else runner.lock
        )  # None: each wait is the engine's
        super().__init__(intake, epoch_id, build, lock, progress, runner.options.copy)
        self._runner = runner
        self._build = build
        self._wait_for_slots = wait_for_slots
        self._keeps = keeps
        self._finished = False
        self.failure: RingfeedError | None = None
        """What ended the workers, and the epoch before its time. Without a traceback, which would keep the loader."""

    def resolve(self, answer: int) -> None:
        """Have the engine do what an answer of the ring asks for; raises what ends the epoch."""
        if self._finished:
            raise StopIteration
        try:
            self.raise_kept()
            self._runner.resolve(
                self.epoch_id, answer, self._build, wait_for_slots=self._wait_for_slots
            )
        except StopIteration:
            self._finished = True
            self.progress.is_over = self._runner.engine is not None  # else the workers have failed
            raise
        except ClosedError:
            Exit.park()
            raise
        except RingfeedError as error:
            if self._runner.engine is None:
                self.failure = copy(error)
            raise

    def ready(self) -> bool:
        """Whether ``next()`` would not wait; raises what it would, for an iterator that has had its time."""
        try:
            return not self._finished and self._runner.ready(self.epoch_id)
        except ClosedError:
            Exit.park()
            raise

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Break the epoch off, unless it is over, or the interpreter ends: globals may be None then."""
        if not is_exiting() and not self._finished:
            self._runner.break_off(self.epoch_id)
