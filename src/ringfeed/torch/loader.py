"""The DataLoader: torch's own class, whose epochs come over a ring."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

import torch.utils.data
from torch.utils.data import IterDataPipe, MapDataPipe, TensorDataset

from ringfeed._callers import callers_depth
from ringfeed._foreign import refuse_ours
from ringfeed.datasets import peekable
from ringfeed.datasets.states import UnfitError, encoded
from ringfeed.system.machine import HAS_PROCESSES
from ringfeed.torch.epoch import OWN, Epoch, without
from ringfeed.torch.first_sample import start_method
from ringfeed.torch.index_lists import NOTHING, IndexLists
from ringfeed.torch.place import VERSION, Place, checked, for_later, put_back, put_now, written
from ringfeed.torch.ring import Rings
from ringfeed.workers import warm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T_co = TypeVar("T_co", covariant=True)


# The type checker does not see torch.
class DataLoader(torch.utils.data.DataLoader[T_co]):  # type: ignore[misc]
    """torch's DataLoader, whose batches are tensors over shared memory that its workers fill.

        from ringfeed.torch import DataLoader

    The parameters are those of ``torch.utils.data.DataLoader``, with torch's meaning and defaults.
    Order, values, dtypes and containers of the batches are the same for the same generator, whose
    state is the same afterwards. What differs:

    - Workers write batches straight into ``prefetch_factor * num_workers + 1`` slots, three at
      least; a tensor keeps its slot. When kept tensors hold every slot but one, batches are private
      copies, with one `SlotsHeldWarning`.
    - The numbers that a sample draws from torch, ``numpy.random`` and ``random`` depend on the
      epoch's base seed and the sample's index, not on the workers. What ``__getitems__`` and
      ``collate_fn`` draw depends on the batch's samples.
    - If JAX or TensorFlow has computed in this process, and workers are forked from it, one
      `RuntimeWarning` says so. A worker that dies is replaced, as it was at the start of the epoch.
    - Each worker reads a copy of an ``IterableDataset``, with its own ``get_worker_info()``, as
      with torch; batches come from each in turn.
    - Each iterator has its own position: ``zip(loader, loader)`` works.
    - The first sample is read once more, before the first epoch: in a forked process, or from a
      copy of the dataset.
    - A batch that cannot be pickled is a ShipError in its place; torch's waits for ever.

    Samples of one shape, numbers and text are written leaf by leaf into the slots. What a
    ``collate_fn`` returns, what the dataset gives with ``batch_size=None``, and samples that fit no
    spec go into the slots as bytes: their tensors lie over the slot, too, and the rest is pickled.
    A batch that is larger than the slots gets separate memory.

    torch itself reads with ``num_workers=0``; and from then on, if a dataset or a batch cannot be
    pickled, for tensors on other devices, datapipes and, unless workers are forked, a
    ``default_collate_fn_map`` of the user's. One line of ``logging.getLogger("ringfeed.torch")``
    says why.

    With ``pin_memory=True`` and a GPU, batches are copied into torch's pinned memory. `state_dict`
    has the program's position in an epoch, and the states of an IterableDataset that has them.
    """

    _place: Place = Place(-1, is_over=True)  # of the newest iterator
    _resumed: dict[str, Any] | None = None  # the state that the next iterator goes on from

    def __init__(self, *given: Any, **named: Any) -> None:
        """Take torch's parameters; a forkserver, if one is used, begins to import torch now."""
        refuse_ours(named)
        super().__init__(*given, **named)
        self._rings = Rings()
        by_forkserver = self.num_workers and start_method(self) == "forkserver"
        if by_forkserver and HAS_PROCESSES and type(self.dataset) is not TensorDataset:
            warm.expect("torch")

    # For help() and inspect.signature().
    __init__.__wrapped__ = OWN.__init__  # type: ignore[attr-defined]

    # ---- epochs ----

    def __iter__(self) -> Iterator[T_co]:
        """Begin an epoch of its own."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return self._begin(self._next_place(), {})
        names = ("epoch", "batches", "samples", "draws", "base_seed")
        place = Place(**{name: resumed[name] for name in names})
        with put_back(self, resumed["draws"], is_amid=place.batches > 0):
            return self._begin(place, resumed if place.batches or "dataset" in resumed else {})

    def _next_place(self) -> Place:
        """Return the place of the epoch after the newest; workers that persist keep their seed."""
        kept = None
        if self.persistent_workers:
            kept = getattr(self._iterator, "_base_seed", self._place.drawn_seed)
        return Place(self._place.epoch + 1, draws=written(self), base_seed=kept)

    def _begin(self, place: Place, skipped: dict[str, Any]) -> Iterator[Any]:
        """Begin an epoch; ``skipped``: the state that says what it goes on after."""
        is_left = self._is_left_to_torch()
        is_stream = isinstance(self.dataset, torch.utils.data.IterableDataset)
        if is_left and is_stream:
            place.stream = self.dataset
        own_state = None if self.num_workers else skipped.get("dataset")
        is_anew = not skipped and (place.base_seed is None or self._iterator is not None)
        if is_left and own_state is None and (is_stream or is_anew):
            batches = without(super().__iter__(), place.batches)
            epoch = Epoch(self, self._rings, place, None, batches)
        else:
            lists = IndexLists(self, place.base_seed, skipped)
            place.drawn_seed = lists.base_seed
            epoch = Epoch(self, self._rings, place, lists)
            if is_left:
                epoch.by_torch(own_state)
            elif is_stream or lists.peek() is not NOTHING:
                epoch.by_ring(at=skipped.get("stream"))
        self._place = place
        return epoch

    def _is_left_to_torch(self) -> bool:
        """Whether torch makes all batches, and no ring is to be tried."""
        if self.num_workers == 0 or self.prefetch_factor == 0:  # which torch refuses
            return True
        if self._rings.own_reason is None and isinstance(self.dataset, IterDataPipe | MapDataPipe):
            self._rings.leave_to_torch(self, "its dataset is a datapipe")
        elif self._rings.own_reason is None and not HAS_PROCESSES:
            self._rings.leave_to_torch(self, "no process can share memory with its workers here")
        return self._rings.own_reason is not None

    def __getstate__(self) -> dict[str, Any]:
        """Travel without what runs: a copy begins an epoch of its own."""
        place = Place(self._place.epoch, is_over=True)
        return self.__dict__ | {"_iterator": None, "_rings": Rings(), "_place": place}

    # ---- where it is ----

    def state_dict(self) -> dict[str, Any]:
        """Return the program's position in this loader's epochs, as JSON."""
        if self._resumed is not None:
            return deepcopy(self._resumed)  # nothing of it has been handed out
        place = self._next_place() if self._place.is_over else self._place
        try:
            length = len(self.sampler)
        except (TypeError, NotImplementedError):  # of no length, or of a dataset that has none
            length = None
        found = {
            "version": VERSION,
            "epoch": place.epoch,
            "batches": place.batches,
            "samples": place.samples,
            "batch_size": self.batch_size,
            "length": length,
            "base_seed": place.base_seed,
            "draws": for_later(place.draws, is_amid=place.batches > 0),
        }
        return deepcopy(found | self._streams_state(place))

    def _streams_state(self, place: Place) -> dict[str, Any]:
        """Return where an IterableDataset is, in the workers or here, amid an epoch."""
        is_amid = place.batches or place.stream is not None
        if not is_amid or not isinstance(self.dataset, torch.utils.data.IterableDataset):
            return {}
        if place.ring is not None:
            return {
                "num_workers": self.num_workers,
                "stream": place.ring.loader.state_dict(batches=place.taken),
            }
        if self.num_workers == 0 and peekable.has_state(place.stream):
            try:
                return {"num_workers": 0, "dataset": json.loads(encoded(place.stream.state_dict()))}
            except UnfitError as error:
                warnings.warn(
                    f"state_dict() of the IterableDataset {error}; a DataLoader that goes on from "
                    "this state reads the dataset from its start",
                    UserWarning,
                    stacklevel=callers_depth(),
                )
        return {"num_workers": self.num_workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at ``state`` with the next ``iter()``; StateError for an invalid state.

        It also restores torch's global generator, from which later epochs draw without
        ``generator=``.
        """
        self._resumed = deepcopy(checked(state, self))
        put_now(self._resumed["draws"])
