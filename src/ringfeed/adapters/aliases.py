"""Batches as tensors over the slots themselves; no framework is imported here.

    ring       slot 0   slot 1   slot 2   slot 3
    this batch                            held     taken just now, not yet handed out
    Python     held                                a tensor that somebody still refers to
    in flight           held     held              no tensor is left, but the framework still computes with them

A tensor holds its slot by itself, and gives it back from C. One slot at least is never held, so that the workers
always have one to fill: a batch that would take the last is handed out as a private copy. Slots in flight are
waited for first, since they come back by themselves; those of living tensors may never.
"""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringfeed.adapters.copies import Epoch, copy_aligned
from ringfeed.errors import SpecError
from ringfeed.exports import Exports
from ringfeed.spec import Array, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed._ring import Lease
    from ringfeed.adapters.copies import AnyArray, Extra
    from ringfeed.loader import Loader
    from ringfeed.spec import Leaf

LOOK_S = 0.0005  # between two looks at slots in flight


@dataclass(frozen=True)
class Memory:
    """How a framework takes memory.

    alias: makes a tensor over the memory of a DLPack capsule.
    adopt: makes the same kind of tensor of a private array, in its memory or in a copy.
    leaves_alone: the dtypes, by name, that are handed over by `adopt` as if they were plain arrays.
    in_flight_s: how long to wait for slots that the framework still computes with when no tensor is left.
    in_cycles: whether the tensors that it is done with are left to the garbage collector.
    """

    alias: Callable[[object], Any]
    adopt: Callable[[AnyArray], Any]
    leaves_alone: frozenset[str] = frozenset()
    in_flight_s: float = 0.0
    in_cycles: bool = False


class Outstanding:
    """The batches that a framework has over the slots of one loader, and whether it may have one more."""

    def __init__(self, loader: Loader) -> None:
        self.copied = 0
        """Batches that were handed out as copies, because every other slot was held."""
        self._loader = loader
        self._hopeful = True
        self._with_python: list[list[weakref.ref[Any]]] = []

    def add(self, tensors: Sequence[Any]) -> None:
        """Count a batch in, until the last of its tensors is gone."""
        self._with_python.append([weakref.ref(tensor) for tensor in tensors])

    def has_room(self, memory: Memory) -> bool:
        """Whether a slot is left to be filled beside the one just taken; counts a copy if not."""
        if memory.in_cycles and self._living():
            gc.collect(0)  # tens of microseconds, and otherwise most slots wait for it
        room = not self._all_held() or (self._hopeful and (self._collects() or self._waits(memory.in_flight_s)))
        self._hopeful = room  # one attempt in vain is enough, until some slot has come back by itself
        self.copied += not room
        return room

    def _all_held(self) -> bool:
        """Whether no slot is left to be filled: one that drains may be in quarantine."""
        return not {"free", "filling", "ready"} & set(self._loader.slot_states())

    def _living(self) -> int:
        """The batches of which somebody still has a tensor, were it only a cycle of garbage."""
        self._with_python = [batch for batch in self._with_python if any(tensor() is not None for tensor in batch)]
        return len(self._with_python)

    def _collects(self) -> bool:
        """Whether collecting garbage makes room."""
        if self._living():
            gc.collect(1)
        return not self._all_held()

    def _waits(self, in_flight_s: float) -> bool:
        """Whether waiting for the slots in flight makes room."""
        slots = len(self._loader.slot_states())
        deadline_s = time.monotonic() + in_flight_s
        while self._all_held():
            if slots <= 1 + self._living() or time.monotonic() >= deadline_s:
                return False
            time.sleep(LOOK_S)
        return True


class AliasedEpoch(Epoch):
    """An epoch whose leaves are a framework's tensors over the slots, or over copies where they cannot be."""

    def __init__(self, loader: Loader, memory: Memory, outstanding: Outstanding, extra: Extra | None = None) -> None:
        super().__init__(loader, extra)
        self._memory = memory
        self._outstanding = outstanding
        self._copies = loader.copy
        offsets = loader.plan.layout.offsets
        self._exports = [
            _export_of(leaf, offset, memory) for leaf, offset in zip(loader.spec.leaves, offsets, strict=True)
        ]

    def _take(self, lease: Lease, rows: int, views: list[AnyArray], extra: list[AnyArray]) -> list[Any]:
        alias, adopt = self._memory.alias, self._memory.adopt
        more = list(map(adopt, extra))
        if self._copies or not any(self._exports) or not self._outstanding.has_room(self._memory):
            return [*(adopt(copy_aligned(view)) for view in views), *more]
        aliases = [None if export is None else alias(*export.capsules(lease, rows)) for export in self._exports]
        self._outstanding.add([tensor for tensor in aliases if tensor is not None])
        leaves = [
            adopt(copy_aligned(view)) if tensor is None else tensor for tensor, view in zip(aliases, views, strict=True)
        ]
        return leaves + more


def _export_of(leaf: Leaf, offset: int, memory: Memory) -> Exports | None:
    """How the leaf is exported; None where the framework has no tensors of its dtype."""
    if leaf.dtype.name in memory.leaves_alone:
        return None
    try:
        return Exports(Spec(Array(leaf.shape, leaf.dtype)), [offset])
    except SpecError:
        return None
