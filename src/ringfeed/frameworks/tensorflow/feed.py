"""A loader's epochs for TensorFlow's graph, by an op in C that takes batches without the GIL.

The op is cext/export/tf_op.c, and the protocol is in cext/export/feed.h: no Python, GIL or copy.

What that code cannot do by itself it asks here: begin an epoch, plan more, take the last batch or
one with failed rows.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from typing import TYPE_CHECKING

from ringfeed._process import Exit, Forks
from ringfeed.engine.position import UNKNOWN
from ringfeed.errors import RingfeedError, StateError, SupersededError
from ringfeed.frameworks.tensorflow import _feed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.engine._iterator import BatchIterator
    from ringfeed.frameworks.base import BatchStream
    from ringfeed.ring._ring import Lease

EXIT_S = 30.0  # what a sample that is read in this process may take to its end
CLOSED = "ClosedError: "  # in TensorFlow's text of one of ours


class LoaderFeed:
    """The epochs of one loader, which C code finds by ``number`` while this object lives."""

    def __init__(self, stream: BatchStream, count: int | None, dtypes: Sequence[int]) -> None:
        """Begin nothing yet; each epoch has ``count`` batches, or None where that is not known.

        ``dtypes``: of the leaves, as TensorFlow numbers them.
        """
        info = stream.info
        leaves = zip(info.offsets, info.spec.leaves, dtypes, strict=True)
        parts = [(offset, leaf.nbytes, leaf.shape, dtype) for offset, leaf, dtype in leaves]
        self._feed = _feed.Feed(parts, info.max_rows, weakref.ref(self))
        self.number: int = self._feed.number
        """What C code knows it by."""
        self._stream = stream
        self._count = count
        self._lock = threading.Lock()
        self._batches: BatchIterator | None = None
        self._all_taken = False
        self._untold: Exception | None = None  # of a hook, after the last batch
        _live.add(self)

    def begin(self) -> int:
        """Begin the loader's next epoch in the place of the one before, and return its id."""
        self._tell()
        check_whole(self._stream, self._count)
        with self._lock:
            batches = self._stream.epoch(lambda lease, rows: (lease, rows))
            batches.count_alone().finished_batches = UNKNOWN
            self._batches, self._all_taken = batches, False
        self._stream.runner.attach(self._feed)
        return batches.epoch_id

    def take(self, epoch_id: int) -> tuple[Lease, int] | None:
        """Take the next batch and its rows; None at the end of an epoch of unknown length."""
        self._tell()
        batches = self._batches
        if batches is None or batches.epoch_id != epoch_id:
            raise superseded()
        taken: tuple[Lease, int] | None = next(batches, None)
        if taken is not None:
            if not self._stream.runner.has_more():
                self._close_epoch(batches)
        elif batches.failure is not None:
            raise batches.failure
        elif self._count is not None:
            raise ended_early(self._count)
        return taken

    def rest(self, step: int) -> int | None:
        """Return the newest epoch id if ``step`` was its last and batches are left.

        Raises what the end of the epoch raised, if it was not raised yet.
        """
        self._tell()
        batches = self._batches
        if batches is None or self._all_taken or self._count is None or step + 1 < self._count:
            return None
        return batches.epoch_id

    def _close_epoch(self, batches: BatchIterator) -> None:
        """End the epoch at the known length, where tf.data stops; errors are for the next call."""
        self._all_taken = True
        try:
            next(batches, None)
        except Exception as error:  # noqa: BLE001 - a hook of the user's may raise anything
            self._untold = error

    def _tell(self) -> None:
        error, self._untold = self._untold, None
        if error is not None:
            raise error

    def request_stop(self) -> None:
        """Have what waits for a batch give up."""
        self._stream.runner.request_stop()

    def __del__(self) -> None:
        """Have Python print an error that was never raised."""
        self._tell()


def superseded() -> SupersededError:
    """Return the error for an iteration that a newer one has taken the loader from."""
    return SupersededError(
        "a newer iteration over this dataset has taken over the loader, which serves one at a "
        "time; end the first before you begin the second, or give each a loader of its own"
    )


def check_whole(stream: BatchStream, count: int | None) -> None:
    """Raise StateError where a dataset of ``count`` batches would be given the rest of an epoch."""
    if count is not None and stream.runner.position.is_amid:
        raise StateError(
            "the loader goes on amid an epoch, and this tf.data.Dataset has whole epochs; make it "
            "after load_state_dict() or skip()"
        )


def ended_early(count: int | None) -> RingfeedError:
    """Return the error for an epoch that has fewer batches than TensorFlow was told."""
    return RingfeedError(
        f"the epoch ended before its {count} batches, which was len(loader) when the dataset was "
        "made; call to_tf_dataset() again: the length has changed, or some batches are None"
    )


def _end_daemons_silently() -> None:
    """Let daemon threads that hear of a closed loader at the exit end without a word, as all do."""
    show = threading.excepthook

    def show_others(found: threading.ExceptHookArgs) -> None:
        is_daemon = found.thread is not None and found.thread.daemon
        if not (is_daemon and CLOSED in str(found.exc_value)):
            show(found)

    threading.excepthook = show_others


Exit.calls = *Exit.calls, _end_daemons_silently

_live: weakref.WeakSet[LoaderFeed] = weakref.WeakSet()


def _leave(forks: int) -> None:
    """Wait until no thread of a framework is in Python: at the interpreter's end it would abort."""
    if forks != Forks.count:
        return  # a forked child does not have those threads
    if _feed.leave():
        for feed in [*_live]:
            feed.request_stop()
    deadline = time.monotonic() + EXIT_S
    while _feed.leave() and time.monotonic() < deadline:
        time.sleep(0.01)


atexit.register(_leave, Forks.count)
