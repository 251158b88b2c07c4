"""One pass over a DataLoader: over the ring as long as the ring can serve, else torch's own way."""

from __future__ import annotations

import sys
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.utils.data
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ringfeed._callers import callers_depth
from ringfeed._failure import RemoteError
from ringfeed.datasets import peekable
from ringfeed.errors import (
    ClosedError,
    FunctionError,
    RingfeedError,
    ShipError,
    StallError,
    SupersededError,
    WorkerError,
)
from ringfeed.torch.pickled import NOTE, DeviceError, UnsendableError
from ringfeed.torch.place import Place, as_it_was

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ringfeed.torch.index_lists import IndexLists
    from ringfeed.torch.ring import Ring, Rings

OWN = torch.utils.data.DataLoader
SAME = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)


class _Failed(NamedTuple):
    """In the place of a batch that failed."""

    error: BaseException


class Epoch(_BaseDataLoaderIter):  # type: ignore[misc]  # torch is not seen by the type checker
    """The iterator of a DataLoader. Dropping it before the end breaks the epoch off.

    It is one of torch's, as trainers ask that leave iterators out of their pickles, and begins
    nothing of torch's.
    """

    def __init__(
        self, loader: Any, rings: Rings, place: Place, lists: Any, batches: Iterable[Any] = ()
    ) -> None:
        """``lists``: the indices that were drawn; None where torch draws and makes ``batches``."""
        self._loader = loader
        self._rings = rings
        self._place = place
        self._lists: IndexLists = lists
        self._ring: Ring | None = None
        self._batches = iter(batches)
        self._made: list[Any] = []  # the batch that was taken, until it is handed out
        # Torch's own: what len() has said of an IterableDataset.
        self._said_length = loader._IterableDataset_len_called  # noqa: SLF001
        # The newest batch past it: a warning may be an error, and then the batch is still to come.
        self._warned_of = 0

    def by_ring(self, why: Exception | None = None, at: Mapping[str, Any] | None = None) -> None:
        """Take the batches from a ring, or from torch's own iterator where none can serve.

        ``why``: what another ring could not do. ``at``: where iterables go on; None: they are read
        again, up to what was handed out.
        """
        while why is None or self._rings.pickle(self._loader, why):
            why = self._begin(at)
            if why is None:
                return
        self._rings.leave_to_torch(self._loader, why)
        self.by_torch()

    def _begin(self, at: Mapping[str, Any] | None) -> Exception | None:
        """Take the batches from a ring; returns why there is none that can serve."""
        place, lists = self._place, self._lists
        # Workers that persist keep the base seed, and so the number of the epoch makes it another.
        number = lists.base_seed + (place.epoch if self._loader.persistent_workers else 0)
        lists.go_on_after(place.batches)
        try:
            self._ring = place.ring = self._rings.take(self._loader, lists)
            self._batches, place.taken = self._ring.begin(lists, number, at), 0
            if at is None and lists.of_stream:
                without(self._batches, place.batches)
                place.taken = place.batches
        except Exception as error:
            self._leave(to_next=False)
            if isinstance(error, Warning):
                raise  # to the program that has warnings be errors
            return error  # whatever it is, torch may be able to do it
        return None

    def by_torch(self, state: Any = None) -> None:
        """Take the batches that were not handed out from torch's own iterator.

        ``state``: of the IterableDataset, to go on from.
        """
        lists, loader, place, sizes = self._lists, self._loader, self._place, dict[str, Any]()
        dataset, left_out = loader.dataset, 0
        if lists.of_stream:
            sizes = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
            # Only reading finds what comes after the batches of an iterable that were handed out.
            left_out = place.batches
        elif loader.batch_sampler is not None:
            sizes["batch_sampler"] = lists.rest()
        else:
            sizes = {"batch_size": None, "sampler": lists.rest()}
        if state is not None:
            # A copy, as some begin for ever where they were loaded.
            place.stream = dataset = peekable.fresh(dataset)
            dataset.load_state_dict(state)
            left_out = 0
        sizes |= {"generator": as_it_was(lists.before), "persistent_workers": False}
        self._batches = without(iter(OWN(dataset, **same_of(loader) | sizes)), left_out)

    def __len__(self) -> int:
        """Return the batches of a whole epoch, as torch's iterators do."""
        return len(self._loader._index_sampler)  # noqa: SLF001 - a subclass's

    def __next__(self) -> Any:
        place = self._place
        if not self._made:  # else Ctrl-C has kept it from the program
            self._take()
        is_listed = self._ring is not None and not self._lists.of_stream
        # A second time does only what is missing.
        samples = self._lists.make_up() if is_listed else self._look_at_length()
        batch = self._made[0]
        is_failed = type(batch) is _Failed
        # No call from here on: Ctrl-C comes in after calls, and the batch, its list and the counts
        # go together.
        place.batches += 1
        place.taken += 1
        place.samples += samples
        if is_listed:
            del self._lists.given[0]
        self._made = []
        if not is_failed:
            return batch

        try:
            raise batch.error
        finally:
            del batch  # the error's traceback has this frame

    def _take(self) -> None:
        """Take the next batch, or the error in its place; raises what ends the epoch."""
        while not self._made:
            try:
                self._made = [*islice(self._batches, 1)]  # one step, for Ctrl-C
            except Exception as error:
                if self._ring is None:  # torch's own iterator goes on with the next batch
                    self._made = [_Failed(error)]
                elif isinstance(error, StallError):
                    seconds = f"{self._loader.timeout:g} seconds"
                    raise RuntimeError(f"DataLoader timed out after {seconds}: {error}") from error
                elif not self._goes_on(error):
                    raise
            else:
                if not self._made:
                    self._place.is_over = True
                    self._leave()
                    raise StopIteration

    def _look_at_length(self) -> int:
        """Return the samples of a batch; there may be fewer in the last.

        Warns of batches past what len() said, as torch does, in words that begin as torch's, for
        filters of warnings.
        """
        said, batches = self._said_length, self._place.batches + 1
        if self._ring is not None and said is not None and batches > max(said, self._warned_of):
            self._warned_of = batches
            warnings.warn(
                f"Length of IterableDataset {self._loader.dataset} was reported to be {said}(when "
                f"accessing len(dataloader)), but {batches} samples have been fetched. For "
                "multiprocessing data-loading, this comes of workers that each give all of the "
                "data: have each copy give its own part, by torch.utils.data.get_worker_info()",
                UserWarning,
                stacklevel=callers_depth(),
            )
        size: int = self._loader.batch_size or 1
        return size

    # ---- what the ring does not give ----

    def _goes_on(self, error: Exception) -> bool:
        """Return whether the epoch goes on after an error of the ring.

        The error stands in the place of its batch, or another ring or torch makes this batch.
        """
        is_of_ring = isinstance(error, RingfeedError)
        if not is_of_ring or isinstance(error, ClosedError | SupersededError):
            return False
        # With a ``failure`` the workers have ended, and no batch comes any more.
        has_failed = getattr(self._batches, "failure", None) is not None
        of_batch = isinstance(error, WorkerError) and not has_failed
        reason = (_of_pickling(error) if of_batch else None) or error
        if isinstance(reason, DeviceError) or not (of_batch or isinstance(error, ShipError)):
            self._leave(to_next=False)
            self.by_ring(reason)
        elif isinstance(reason, UnsendableError):
            self._made = [_Failed(ShipError(str(reason)))]
        else:
            self._made = [_Failed(_users(error))]
        return True

    def _leave(self, *, to_next: bool = True) -> None:
        """Let the next epoch have the ring, or end it."""
        ring = self._dropped()
        if ring is not None and not (to_next and self._rings.keep(self._loader, ring)):
            ring.close()

    def _dropped(self) -> Ring | None:
        """Return the ring, which the iterator of its batches no longer has."""
        ring, self._ring = self._ring, None
        self._place.ring = None
        self._batches = iter(())
        return ring

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Break the epoch off; at the interpreter's exit all ends anyway.

        A ring that no loader keeps is dropped: closing it would wait, where the garbage collector
        may have called.
        """
        ring = None if is_exiting() else self._dropped()
        if ring is not None:
            self._rings.keep(self._loader, ring)


def same_of(loader: Any) -> dict[str, Any]:
    """Return the settings of a DataLoader that do not say which samples come in which batch."""
    return {name: getattr(loader, name) for name in SAME if hasattr(loader, name)}


def without(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Leave out so many batches, those too that fail: their errors were raised before."""
    for _ in range(count):
        try:
            next(batches, None)
        except Exception as error:  # of the user's
            if isinstance(error, RingfeedError) and not isinstance(error, WorkerError):
                raise
    return batches


def _of_pickling(error: BaseException) -> Exception | None:
    """Return why a worker could not send a batch as bytes; None for its other errors."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, UnsendableError):
        found = found.__cause__ or found.__context__
    return found


def _users(error: Exception) -> BaseException:
    """Return the user's own exception, as torch raises it.

    Where there is none, or its class is not known here, return the loader's error.
    """
    cause = error.__cause__
    # SystemExit would end the training here, as if it were done, though only a sample's code asked
    # for an end.
    if isinstance(error, FunctionError | ShipError) or isinstance(cause, RemoteError):
        return error
    if not isinstance(cause, Exception):
        return error
    if not any(note.startswith(NOTE) for note in getattr(cause, "__notes__", ())):
        place = str(error).partition(" raised ")[0]
        cause.add_note(f"{NOTE}{place}")
    return cause
