"""The DataLoader: torch's own class, whose epochs come over a ring."""

from __future__ import annotations

import json
import logging
import warnings
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

import torch.utils.data
from torch.utils.data import IterDataPipe, MapDataPipe, TensorDataset

from ringfeed._callers import callers_depth
from ringfeed.datasets import peekable
from ringfeed.datasets.states import UnfitError, encoded
from ringfeed.errors import RingfeedError, SpecError, WorkerError
from ringfeed.torch import draws, index_lists
from ringfeed.torch.epoch import Epoch
from ringfeed.torch.first_sample import start_method
from ringfeed.torch.log import first_line, say
from ringfeed.torch.pickled import UnsendableError
from ringfeed.torch.place import VERSION, Place, checked
from ringfeed.torch.ring import Pickling, Ring, goes_by_leaf
from ringfeed.workers import warm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ringfeed.torch.collation import Form
    from ringfeed.torch.index_lists import IndexLists, Start

OWN = torch.utils.data.DataLoader
T_co = TypeVar("T_co", covariant=True)
TRIES = 8  # of an epoch, with other slots
_RUNNING = ("_rings", "_base_seed", "_form")  # of which a copy has its own


class DataLoader(torch.utils.data.DataLoader[T_co]):  # type: ignore[misc]  # torch is not seen by the type checker
    """torch's DataLoader, with batches in tensors over shared memory that its worker processes fill.

        from ringfeed.torch import DataLoader

    The parameters are those of ``torch.utils.data.DataLoader``, with torch's meaning and defaults, and so are order,
    values, dtypes and containers of the batches: the same for the same generator, whose state is the same afterwards.
    What differs:

    - Workers write batches straight into ``prefetch_factor * num_workers + 1`` slots; a tensor keeps its slot. Where
      kept tensors hold every slot but one, batches are private copies, with one `SlotsHeldWarning`.
    - The numbers that a sample draws from torch, ``numpy.random`` and ``random`` depend on the epoch's base seed and
      the sample's index: with ``num_workers`` above 0 they do not depend on the workers. What ``__getitems__`` draws
      depends on the indices of its batch.
    - Where JAX or TensorFlow has computed in this process, and workers are forked from it, one `RuntimeWarning` says
      so. A worker that dies is replaced, as it was at the start of the epoch.
    - Each worker reads a copy of an ``IterableDataset``, with its own ``get_worker_info()``, as with torch; batches
      come from each in turn.
    - Each iterator has a place and, where two are in use at once, a ring of its own: ``zip(loader, loader)`` works.
    - The first sample is read once more, ahead of the first epoch: in a forked process, of which nothing stays, or of a
      copy of the dataset.
    - A batch that cannot be pickled, with which torch's waits for ever, is a ShipError, in its place.
    - What is drawn in ``collate_fn`` depends on the base seed and the batch's samples.

    Samples of one shape, numbers and text are written leaf by leaf into the slots. What a ``collate_fn`` returns, what
    the dataset gives with ``batch_size=None``, and samples that fit no spec go in the slots as bytes: their tensors lie
    over the slot, too, and all else is pickled. A batch for which the slots are too small lies in memory of its own.

    ``num_workers=0`` is torch's own way. So is, from the batch on with which it begins, what cannot go so: a dataset or
    a batch that cannot be pickled, tensors on other devices, datapipes, and, unless workers are forked, a
    ``default_collate_fn_map`` of the user's. One line of ``logging.getLogger("ringfeed.torch")`` says why.

    With ``pin_memory=True`` and a GPU, batches are copied into torch's pinned memory. `state_dict` says where the
    program is in an epoch, and holds the states of an IterableDataset that has some.
    """

    _place: Place | None = None  # of the newest iterator
    _resumed: dict[str, Any] | None = None  # the state that the next iterator goes on from
    _base_seed: int | None = None  # of the newest
    _own_reason: str | None = None  # why torch makes all batches
    _pickling: Pickling | None = None  # how batches go that do not go leaf by leaf
    _form: Form | None = None  # of those that do

    def __init__(self, *given: Any, **named: Any) -> None:
        """Have a forkserver import torch for the workers, if one forks them, while the program builds its model."""
        super().__init__(*given, **named)
        by_forkserver = self.num_workers and start_method(self) == "forkserver"
        if by_forkserver and type(self.dataset) is not TensorDataset:
            warm.expect("torch")

    __init__.__wrapped__ = OWN.__init__  # type: ignore[attr-defined]  # for help() and inspect.signature()

    # ---- epochs ----

    def __iter__(self) -> Iterator[T_co]:
        """Begin an epoch of its own."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return self._begin(self._next_place(), None)
        names = ("epoch", "batches", "samples", "draws", "base_seed")
        place = Place(**{name: resumed[name] for name in names})
        with draws.put_back(self, resumed["draws"], is_amid=place.batches > 0):
            return self._begin(place, resumed if place.batches or "dataset" in resumed else None)

    def _next_place(self) -> Place:
        epoch = 0 if self._place is None else self._place.epoch + 1
        return Place(epoch, draws=draws.written(self), base_seed=self._kept_seed())

    def _begin(self, place: Place, skipped: dict[str, Any] | None) -> Iterator[Any]:
        own, by_index = self._why_own(), not isinstance(self.dataset, torch.utils.data.IterableDataset)
        if own is not None and not by_index:
            found = self._begin_own_stream(place, skipped)
        elif own is not None and (place.base_seed is None or self._iterator is not None) and skipped is None:
            found = Epoch(self, place, None).torchs_own(super().__iter__())
        elif by_index:
            found = self._begin_lists(place, skipped, own)
        else:
            begun = index_lists.start(self, place.base_seed)
            self._base_seed = begun.base_seed
            found = self._over_ring(Epoch(self, place, begun), begun, at=(skipped or {}).get("stream"))
        self._place = place
        return found

    def _begin_lists(self, place: Place, skipped: dict[str, Any] | None, own: str | None) -> Epoch:
        """Begin an epoch whose batches are known by their indices."""
        indices = index_lists.begin(self, place.base_seed, skipped)
        self._base_seed = indices.base_seed
        epoch, first = Epoch(self, place, indices), indices.peek()
        if first is index_lists.NOTHING:
            return epoch
        if own is not None:
            return epoch.torchs_own(self._own_rest(indices, place.batches))
        return self._over_ring(epoch, indices)

    def _begin_own_stream(self, place: Place, skipped: dict[str, Any] | None) -> Epoch:
        """Begin an epoch of an IterableDataset torch's own way; without workers it goes on by a state of its own."""
        place.stream, epoch = self.dataset, Epoch(self, place, None)
        own = None if skipped is None else skipped.get("dataset")
        if own is None or self.num_workers:
            return epoch.torchs_own(_without(super().__iter__(), place.batches))
        place.stream = peekable.fresh(self.dataset)  # some begin where they were loaded for ever
        place.stream.load_state_dict(own)
        return epoch.torchs_own(iter(self._own_loader(place.stream, self._own_sizes(None), self.generator)))

    def _over_ring(self, epoch: Epoch, begun: IndexLists | Start, *, at: Mapping[str, Any] | None = None) -> Epoch:
        """Have an epoch come over a ring, or else torch's own way; ``at``: where iterables go on."""
        number = begun.base_seed + (epoch.place.epoch if self.persistent_workers else 0)
        try:
            over = epoch.over_ring(self._take_ring(begun), number, at)
            if at is None and not isinstance(begun, index_lists.IndexLists):
                _without(over.batches, epoch.place.batches)
                epoch.place.taken = epoch.place.batches
        except Warning:
            raise  # to the program that has warnings be errors
        except Exception as error:  # noqa: BLE001 - whatever it is, torch may be able to do it
            return self._instead(epoch, begun, error, at)
        return over

    def _instead(self, epoch: Epoch, begun: Any, why: Exception, at: Mapping[str, Any] | None = None) -> Epoch:
        """Have an epoch go on that a ring cannot serve: over another, if that helps, or torch's own way.

        ``at``: where its iterables go on; None: they are read again, up to what was handed out.
        """
        if begun.again() or self._pickles(why):
            epoch.tries += 1
        else:
            epoch.tries = TRIES
        if epoch.tries < TRIES:
            return self._over_ring(epoch, begun, at=at)
        self._leave_to_torch(why)
        return epoch.torchs_own(self._own_rest(begun, epoch.place.batches))

    def _kept_seed(self) -> int | None:
        """Return the base seed of workers that persist, torch's own or a ring's."""
        return getattr(self._iterator, "_base_seed", self._base_seed) if self.persistent_workers else None

    # ---- rings ----

    def _take_ring(self, begun: IndexLists | Start) -> Ring:
        """Return a ring that no iterator has, or a new one."""
        rings = self._idle()
        if self._pickling is None and not rings and not goes_by_leaf(self):
            self._pickling = Pickling()
        if isinstance(begun, index_lists.IndexLists):
            begun.is_pickled = self._pickling is not None
        if rings:  # its workers persist, so a function that was set since then reaches none of them, as with torch
            if (ring := rings.pop()).rows >= begun.longest:
                return ring
            ring.close()
            return self._take_ring(begun)
        ring = Ring(self, begun, self._pickling, self._form)
        self._form = ring.form
        say(self, f"runs over ringfeed: {ring}", logging.INFO)
        return ring

    def _pickles(self, why: Exception) -> bool:
        """Have batches go as bytes from now on, where that may help."""
        if self._pickling is not None or _is_no_remedy(why):
            return False
        self._pickling = Pickling()
        say(self, f"has its batches pickled: {first_line(why)}", logging.INFO)
        for ring in self.__dict__.pop("_rings", ()):
            ring.close()
        return True

    def _keeps(self, ring: Ring) -> bool:
        """Keep a ring whose workers persist for the next epoch; False for another, and for more than one."""
        rings = self._idle()
        if rings or self._own_reason is not None or ring.pickling is not self._pickling or not self.persistent_workers:
            return False
        rings.append(ring)
        return True

    def _idle(self) -> list[Ring]:
        found: list[Ring] = self.__dict__.setdefault("_rings", [])
        if not all(ring.is_here for ring in found):
            found.clear()
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what runs: a copy begins an epoch of its own."""
        kept: dict[str, Any] = {name: value for name, value in self.__dict__.items() if name not in _RUNNING}
        kept["_iterator"] = None
        if self._place is not None:
            kept["_place"] = Place(self._place.epoch, is_over=True)
        return kept

    # ---- torch's own way ----

    def _why_own(self) -> str | None:
        """Say why torch makes all batches; None where a ring is to be tried."""
        if self._own_reason is not None:
            return self._own_reason
        if self.num_workers == 0 or self.prefetch_factor == 0:  # which torch refuses
            return ""
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            self._leave_to_torch("its dataset is a datapipe")
        return self._own_reason

    def _leave_to_torch(self, why: Exception | str) -> None:
        """Have torch make the epochs that follow, too."""
        self._own_reason = why if isinstance(why, str) else first_line(why)
        say(self, f"is left to torch: {self._own_reason}", logging.WARNING)

    def _own_rest(self, begun: IndexLists | Start, done: int) -> Iterator[Any]:
        """Return torch's own iterator over what was not handed out.

        ``done``: the batches that were handed out, where only reading finds what comes after them.
        """
        own = self._own_loader(self.dataset, self._own_sizes(begun), draws.as_it_was(begun.before))
        return iter(own) if isinstance(begun, index_lists.IndexLists) else _without(iter(own), done)

    def _own_sizes(self, begun: IndexLists | Start | None) -> dict[str, Any]:
        if not isinstance(begun, index_lists.IndexLists):
            return {"batch_size": self.batch_size, "drop_last": self.drop_last}
        if self.batch_sampler is not None:
            return {"batch_sampler": begun.rest()}
        return {"batch_size": None, "sampler": begun.rest()}

    def _own_loader(self, dataset: Any, sizes: dict[str, Any], generator: Any) -> Any:
        same = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor", "in_order")
        settings = {name: getattr(self, name) for name in (*same, "multiprocessing_context") if hasattr(self, name)}
        return OWN(dataset, **sizes, **settings, generator=generator)

    # ---- where it is ----

    def state_dict(self) -> dict[str, Any]:
        """Return where the program is in this loader's epochs, as JSON has it."""
        if self._resumed is not None:
            return deepcopy(self._resumed)  # nothing of it has been handed out
        place = self._place
        if place is None or place.is_over:
            place = self._next_place()
        try:
            length = len(self.sampler)
        except (TypeError, NotImplementedError):  # of no length, or of a dataset that has none
            length = None
        counts = {"epoch": place.epoch, "batches": place.batches, "samples": place.samples}
        drawn = {"base_seed": place.base_seed, "draws": draws.for_later(place.draws, is_amid=place.batches > 0)}
        found = {"version": VERSION, **counts, "batch_size": self.batch_size, "length": length, **drawn}
        return deepcopy(found | self._streams_state(place))

    def _streams_state(self, place: Place) -> dict[str, Any]:
        """Return where an IterableDataset is, in the workers or here, amid an epoch."""
        is_amid = place.batches or place.stream is not None
        if not is_amid or not isinstance(self.dataset, torch.utils.data.IterableDataset):
            return {}
        if place.ring is not None:
            return {"num_workers": self.num_workers, "stream": place.ring.place(place.taken)}
        if self.num_workers == 0 and peekable.has_state(place.stream):
            try:
                return {"num_workers": 0, "dataset": json.loads(encoded(place.stream.state_dict()))}
            except UnfitError as error:
                message = (
                    f"state_dict() of the IterableDataset {error}; a DataLoader that goes on from this state reads the "
                    f"dataset from its start"
                )
                warnings.warn(message, UserWarning, stacklevel=callers_depth())
        return {"num_workers": self.num_workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next ``iter()`` go on where ``state`` was taken: StateError for what is no such state.

        Without ``generator=`` later epochs draw from torch's global generator, which is put where it was then.
        """
        self._resumed = deepcopy(checked(state, self))
        draws.put_now(self._resumed["draws"])


def _without(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Leave out so many batches, those too that fail: their errors were raised before."""
    for _ in range(count):
        try:
            next(batches, None)
        except Exception as error:  # of the user's
            if isinstance(error, RingfeedError) and not isinstance(error, WorkerError):
                raise
    return batches


def _is_no_remedy(why: Exception) -> bool:
    """Whether batches that go as bytes raise this, too."""
    return isinstance(why, UnsendableError) or (isinstance(why, RingfeedError) and not isinstance(why, SpecError))
