"""The DataLoader: torch's own class, whose epochs come over a ring."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

import torch.utils.data
from torch.utils.data import IterDataPipe, MapDataPipe, default_collate

from ringfeed.errors import StateError
from ringfeed.torch import draws, lists
from ringfeed.torch.epoch import Epoch, Place
from ringfeed.torch.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ringfeed.torch.lists import IndexLists, Start

LOG = logging.getLogger("ringfeed.torch")
OWN = torch.utils.data.DataLoader
T_co = TypeVar("T_co", covariant=True)
VERSION = 1


class DataLoader(torch.utils.data.DataLoader[T_co]):  # type: ignore[misc]  # torch is not seen by the type checker
    """torch's DataLoader, with batches in tensors over shared memory that its worker processes fill.

        from ringfeed.torch import DataLoader

    The parameters are those of ``torch.utils.data.DataLoader``, with torch's meaning and defaults, and so are order,
    values, dtypes and containers of the batches: the same for the same generator, whose state is the same afterwards.
    What differs:

    - Workers fill batches together, straight into ``prefetch_factor * num_workers + 1`` slots; a tensor keeps its slot.
      Where kept tensors hold every slot but one, batches are private copies, with one `SlotsHeldWarning`.
    - Workers stay from epoch to epoch, also without ``persistent_workers``; what the program changes in the dataset
      between two epochs is sent to them then. With ``persistent_workers=True`` it is not, as with torch.
    - The numbers that a sample draws from torch, ``numpy.random`` and ``random`` depend on the epoch's base seed and
      the sample's index: with ``num_workers`` above 0 they do not depend on the workers. A dataset with
      ``__getitems__`` is asked for many samples at once, and is not seeded so.
    - Workers are forked from a process of their own, and not from this one as torch's on Linux, unless
      ``multiprocessing_context`` says so: a fork copies locks, and no threads. ``worker_init_fn`` runs in each worker
      before its first sample, and again where it is sent another dataset. A worker that dies is replaced.
    - Each worker reads a copy of an ``IterableDataset``, with its own ``get_worker_info()``, as with torch; batches
      come from each in turn.
    - Each iterator has a place and, where two are in use at once, a ring of its own: ``zip(loader, loader)`` works.
    - The first sample of the first epoch is read in this process, too.

    ``num_workers=0`` is torch's own way. So is, from the batch on with which it begins, what a slot has no place for:
    strings, samples of several shapes, tensors on other devices, a sampler of other things than numbers, a
    ``collate_fn``, ``batch_size=None``. One line of ``logging.getLogger("ringfeed.torch")`` says why.

    With ``pin_memory=True`` and a GPU, batches are copied into torch's pinned memory.
    """

    _place: Place | None = None  # of the newest iterator
    _resumed: dict[str, Any] | None = None  # the state that the next iterator goes on from
    _base_seed: int | None = None  # of the newest
    _own_reason: str | None = None  # why torch makes all batches

    # ---- epochs ----

    def __iter__(self) -> Iterator[T_co]:
        """Begin an epoch of its own."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            place = Place(self._next_epoch(), draws=draws.written(self))
            return self._begin(place, None)
        place = Place(resumed["epoch"], resumed["batches"], resumed["samples"], resumed["draws"])
        with draws.put_back(self, resumed["draws"]):
            return self._begin(place, resumed)

    def _next_epoch(self) -> int:
        return 0 if self._place is None else self._place.epoch + 1

    def _begin(self, place: Place, skipped: dict[str, Any] | None) -> Iterator[Any]:
        own, by_index = self._why_own(), not isinstance(self.dataset, torch.utils.data.IterableDataset)
        if own is not None and (skipped is None or not by_index):
            found = Epoch(self, place, None).torchs_own(_without(super().__iter__(), place.batches))
        elif by_index:
            found = self._begin_lists(place, skipped, own)
        else:
            found = self._begin_stream(place)
        self._place = place
        return found

    def _begin_lists(self, place: Place, skipped: dict[str, Any] | None, own: str | None) -> Epoch:
        """Begin an epoch whose batches are known by their indices."""
        indices = lists.begin(self, self._kept_seed(), skipped)
        epoch, first = Epoch(self, place, indices), indices.peek()
        if first is None:
            return epoch
        if own is not None:
            return epoch.torchs_own(self._own_rest(indices, None))
        return self._over_ring(epoch, indices, first, place)

    def _begin_stream(self, place: Place) -> Epoch:
        """Begin an epoch of an IterableDataset."""
        begun = lists.start(self, self._kept_seed())
        epoch = self._over_ring(Epoch(self, place, begun), begun, None, place)
        for _ in range(place.batches):
            next(epoch.batches, None)
        return epoch

    def _over_ring(self, epoch: Epoch, begun: IndexLists | Start, first: Any, place: Place) -> Epoch:
        """Have an epoch come over a ring, or else torch's own way."""
        self._base_seed = begun.base_seed
        number = begun.base_seed + (place.epoch if self.persistent_workers else 0)
        try:
            return epoch.over_ring(self._take_ring(first, begun.base_seed), number)
        except Exception as error:  # noqa: BLE001 - whatever it is, torch may be able to do it
            return epoch.torchs_own(self._own_rest(begun, error))

    def _kept_seed(self) -> int | None:
        """Return the base seed of workers that persist."""
        return self._base_seed if self.persistent_workers else None

    # ---- rings ----

    def _take_ring(self, first: Any, base_seed: int) -> Ring:
        """Return a ring that no iterator has, or a new one."""
        rings = self._idle()
        if rings:
            return rings.pop()
        ring = Ring(self, first, base_seed)
        _say_fed(self, ring)
        return ring

    def _give_back(self, ring: Ring) -> None:
        """Keep a ring for the next epoch; what is more than one is closed."""
        rings = self._idle()
        if rings or self._own_reason is not None:
            ring.close()
        else:
            rings.append(ring)

    def _idle(self) -> list[Ring]:
        found: list[Ring] = self.__dict__.setdefault("_rings", [])
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what runs."""
        kept: dict[str, Any] = {name: value for name, value in self.__dict__.items() if name != "_rings"}
        kept["_iterator"] = None
        return kept

    # ---- torch's own way ----

    def _why_own(self) -> str | None:
        """Say why torch makes all batches; None where a ring is to be tried."""
        if self._own_reason is not None:
            return self._own_reason
        if self.num_workers == 0:
            return ""
        reason = None
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            reason = "its dataset is a datapipe"
        elif self.batch_sampler is None:
            reason = "batch_size is None"
        elif self.collate_fn is not default_collate:
            reason = "it has a collate_fn"
        if reason is not None:
            self._leave_to_torch(reason)
        return reason

    def _leave_to_torch(self, why: str) -> None:
        self._own_reason = why
        _say(self, f"is left to torch: {why}", logging.WARNING)

    def _own_rest(self, begun: IndexLists | Start, why: Exception | None, done: int = 0) -> Iterator[Any]:
        """Return torch's own iterator over what was not handed out, and leave the epochs that follow to it, too.

        ``done``: the batches that were handed out, where only reading finds what comes after them.
        """
        if why is not None:
            text = str(why).partition("\n")[0].replace("dataset.dataset", "dataset")
            self._leave_to_torch(text or type(why).__name__)
        batches: dict[str, Any]
        if not isinstance(begun, lists.IndexLists):
            batches = {"batch_size": self.batch_size, "drop_last": self.drop_last}
        elif self.batch_sampler is not None:
            batches = {"batch_sampler": begun.rest()}
        else:
            batches = {"batch_size": None, "sampler": begun.rest()}
        same = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor", "in_order")
        settings = {name: getattr(self, name) for name in (*same, "multiprocessing_context") if hasattr(self, name)}
        own: Any = OWN(self.dataset, **batches, **settings, generator=draws.as_it_was(begun.before))
        return iter(own) if isinstance(begun, lists.IndexLists) else _without(iter(own), done)

    # ---- where it is ----

    def state_dict(self) -> dict[str, Any]:
        """Return where the program is in this loader's epochs, as JSON has it."""
        place = self._place
        if place is None or place.is_over:
            place = Place(self._next_epoch(), draws=draws.written(self))
        size, length = self.batch_size, getattr(self.sampler, "__len__", lambda: None)()
        counts = {"epoch": place.epoch, "batches": place.batches, "samples": place.samples}
        return {"version": VERSION, **counts, "batch_size": size, "length": length, "draws": place.draws}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next ``iter()`` go on where ``state`` was taken: StateError for what is no such state."""
        names = ("version", "epoch", "batches", "samples", "draws")
        missing = [name for name in names if name not in state]
        if missing or state["version"] != VERSION:
            what = f"without {missing[0]!r}" if missing else f"of version {state['version']!r}"
            message = (
                f"the state is a {type(state).__name__} {what}, expected what state_dict() of a DataLoader returned"
            )
            raise StateError(message)
        self._resumed = dict(state)


def _without(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Leave out so many batches."""
    for _ in range(count):
        next(batches, None)
    return batches


# ---- what is said ----

_said: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def _say_fed(loader: DataLoader[Any], ring: Ring) -> None:
    _say(loader, f"runs over ringfeed: {ring}", logging.INFO)


def _say(loader: DataLoader[Any], what: str, level: int) -> None:
    """Log a line, once for each loader."""
    if what not in (said := _said.setdefault(loader, set())):
        said.add(what)
        LOG.log(level, "DataLoader of %s %s", type(loader.dataset).__name__, what)
