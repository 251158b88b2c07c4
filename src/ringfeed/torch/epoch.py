"""One pass over a DataLoader: over the ring as long as the ring can serve, else torch's own way."""

from __future__ import annotations

import sys
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from ringfeed._callers import callers_depth
from ringfeed._failure import RemoteError
from ringfeed.errors import (
    ClosedError,
    FunctionError,
    RingfeedError,
    ShipError,
    StallError,
    SupersededError,
    WorkerError,
)
from ringfeed.torch.index_lists import IndexLists
from ringfeed.torch.pickled import NOTE, DeviceError, UnsendableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

    from ringfeed.torch.index_lists import Start
    from ringfeed.torch.place import Place
    from ringfeed.torch.ring import Ring


class Epoch(_BaseDataLoaderIter):  # type: ignore[misc]  # torch is not seen by the type checker
    """The iterator of a DataLoader. Dropping it before the end breaks the epoch off.

    It is one of torch's, as trainers ask that leave iterators out of their pickles, and begins nothing of torch's.
    """

    def __init__(self, loader: Any, place: Place, begun: IndexLists | Start | None) -> None:
        """``begun``: what was drawn for it; None where torch draws it."""
        self._loader = loader
        self._place = place
        self._begun = begun
        self._ring: Ring | None = None
        self._batches: Iterator[Any] = iter(())
        self._made: list[Any] = []  # the batch that was taken, until it is handed out
        self._said_length = loader._IterableDataset_len_called  # noqa: SLF001 - torch's own: what len() counted on
        self._warned_of = 0  # the newest batch past it: a warning may be an error, and the batch is still to come
        self.tries = 0
        """How often another ring has gone on in the place of one."""

    @property
    def batches(self) -> Iterator[Any]:
        """What it takes the batches from."""
        return self._batches

    @property
    def place(self) -> Place:
        """How far the program is in it."""
        return self._place

    def over_ring(self, ring: Ring, number: int, at: Mapping[str, Any] | None = None) -> Self:
        """Take the batches from a ring, which is this epoch's until its end; ``at``: see `Ring.begin`."""
        assert self._begun is not None
        try:
            self._batches = ring.begin(self._begun, number, at)
        except BaseException:
            ring.close()
            raise
        self._ring = self._place.ring = ring
        self._place.taken = 0
        return self

    def torchs_own(self, batches: Iterator[Any]) -> Self:
        """Take the batches from torch's own iterator."""
        self._batches = batches
        return self

    def __len__(self) -> int:
        """Return the batches of a whole epoch, as torch's iterators do."""
        return len(self._loader._index_sampler)  # noqa: SLF001 - a subclass's

    def __next__(self) -> Any:
        place = self._place
        if not self._made:  # else Ctrl-C has kept it from the program
            self._take()
        lists = self._lists()
        samples = self._make_up(lists)
        batch = self._made[0]
        # No call from here on: Ctrl-C comes in after calls, and the batch, its list and the counts go together.
        place.batches += 1
        place.taken += 1
        place.samples += samples
        if lists is not None:
            del lists.given[0]
        self._made = []
        return batch

    def _take(self) -> None:
        """Take the next batch; raises what ends the epoch, or what the program is to see of a batch that failed."""
        while not self._made:
            failure: BaseException | None = None
            try:
                self._made = [*islice(self._batches, 1)]  # one step, for Ctrl-C
                if not self._made:
                    self._place.is_over = True
                    self._leave()
                    raise StopIteration
            except RingfeedError as error:
                failure = self._failure(error)
            if failure is not None:
                try:
                    raise failure from failure.__cause__
                finally:
                    del failure  # its traceback has this frame

    def _lists(self) -> IndexLists | None:
        """Return what says the samples of a batch, where the ring has it of lists."""
        return self._begun if self._ring is not None and isinstance(self._begun, IndexLists) else None

    def _make_up(self, lists: IndexLists | None) -> int:
        """Draw for a batch that is done with, and return its samples; a second time does only what is missing."""
        if lists is not None:
            return lists.make_up()
        self._look_at_length()
        size: int = self._loader.batch_size or 1  # or fewer, in the last
        return size

    def _pass_over(self) -> None:
        """Count a batch that has failed."""
        lists = self._lists()
        self._place.samples += self._make_up(lists)
        self._place.batches += 1
        self._place.taken += 1
        if lists is not None:
            del lists.given[0]

    def _look_at_length(self) -> None:
        """Warn of batches past what len() said, as torch does; it begins as torch's, for filters of warnings."""
        said, batches = self._said_length, self._place.batches + 1
        if self._ring is not None and said is not None and batches > max(said, self._warned_of):
            self._warned_of = batches
            message = (
                f"Length of IterableDataset {self._loader.dataset} was reported to be {said}(when accessing "
                f"len(dataloader)), but {batches} samples have been fetched. For multiprocessing data-loading, this "
                f"comes of workers that each give all of the data: have each copy give its own part, by "
                f"torch.utils.data.get_worker_info()"
            )
            warnings.warn(message, UserWarning, stacklevel=callers_depth())

    # ---- what the ring does not give ----

    def _failure(self, error: RingfeedError) -> BaseException | None:
        """Return what the program is to see of an error; None where torch goes on in the ring's place."""
        if self._ring is None or isinstance(error, ClosedError | SupersededError):
            return error
        if isinstance(error, StallError):
            return _timed_out(self._loader.timeout, error)
        reason: Exception = error
        if isinstance(error, WorkerError) and getattr(self._batches, "failure", None) is None:
            reason = _of_pickling(error) or error
            if not isinstance(reason, DeviceError):
                self._pass_over()  # as torch does, which goes on with the next batch
                return ShipError(str(reason)) if isinstance(reason, UnsendableError) else _users(error)
        elif isinstance(error, ShipError):
            self._pass_over()
            return error
        self._go_on(reason)
        return None

    def _go_on(self, error: Exception) -> None:
        """Have another ring, or torch, make this batch and all that follow."""
        ring = self._dropped()
        if ring is not None:
            ring.close()
        self._loader._instead(self, self._begun, error)  # noqa: SLF001 - a part of it

    def _leave(self) -> None:
        """Let the next epoch have the ring, or end it."""
        ring = self._dropped()
        if ring is not None and not self._loader._keeps(ring):  # noqa: SLF001 - a part of it
            ring.close()

    def _dropped(self) -> Ring | None:
        """Return the ring, which the iterator of its batches no longer has."""
        ring, self._ring = self._ring, None
        self._place.ring = None
        self._batches = iter(())
        return ring

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Break the epoch off; at the interpreter's exit all ends anyway.

        A ring that no loader keeps is dropped: closing it would wait, where the garbage collector may have called.
        """
        ring = None if is_exiting() else self._dropped()
        if ring is not None:
            self._loader._keeps(ring)  # noqa: SLF001 - a part of it


def _of_pickling(error: BaseException) -> Exception | None:
    """Return why a batch could not be sent as bytes, where that is what an error of a worker says."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, UnsendableError):
        found = found.__cause__ or found.__context__
    return found


def _users(error: WorkerError) -> BaseException:
    """Return the user's own exception, as torch raises it; what says more, where there is none or it has no class."""
    cause = error.__cause__
    # SystemExit would end the training here, as if it were done, though only a sample's code asked for an end.
    if isinstance(error, FunctionError) or not isinstance(cause, Exception) or isinstance(cause, RemoteError):
        return error
    if hasattr(cause, "add_note") and not any(note.startswith(NOTE) for note in getattr(cause, "__notes__", ())):
        place = str(error).partition(" raised ")[0]
        cause.add_note(f"{NOTE}{place}")
    return cause


def _timed_out(timeout: float, error: StallError) -> RuntimeError:
    found = RuntimeError(f"DataLoader timed out after {timeout:g} seconds: {error}")
    found.__cause__ = error
    return found
