"""Batches as tensors over the slots themselves; no framework is imported here.

    ring       slot 0   slot 1   slot 2   slot 3
    this batch                            held     taken just now, not yet handed out
    Python     held                                a tensor that the program still refers to
    in flight           held     held              no tensor is left, but the framework still computes with them

A tensor holds its slot by itself, and gives it back from C. One slot at least is never held, so that the workers
always have one to fill: a batch that would take the last is handed out as a private copy. Slots in flight are
waited for first, since they come back by themselves; those of living tensors may never.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringfeed.frameworks.copies import makers
from ringfeed.spec._fields import Fields
from ringfeed.spec.dlpack import Exports, can_be_exported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.frameworks.base import LoaderInfo
    from ringfeed.frameworks.copies import AnyArray, Extra, Own
    from ringfeed.ring._ring import Lease


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

    def __init__(self, slots: int) -> None:
        self.copied = 0
        """Batches that were handed out as copies, because every other slot was held."""
        self._slots = slots
        self._hopeful = True
        self._tensors: dict[int, list[weakref.ref[Any]]] = {}  # of the last batch in each slot

    def add(self, slot: int, tensors: Sequence[Any]) -> None:
        """Count a batch in, until the last of its tensors is gone."""
        self._hopeful = True
        self._tensors[slot] = list(map(weakref.ref, tensors))

    def has_room(self, lease: Lease, memory: Memory) -> bool:
        """Whether a slot is left to be filled beside the leased one, just taken; counts a copy if not."""
        if memory.in_cycles and self._with_python():
            gc.collect(0)  # tens of microseconds, and otherwise most slots wait for it
        if lease.has_room():
            return True
        # One attempt in vain is enough, until some slot has come back by itself.
        self._hopeful = self._hopeful and (self._collects(lease) or self._waits(lease, memory.in_flight_s))
        self.copied += not self._hopeful
        return self._hopeful

    def _with_python(self) -> int:
        """The slots of which a tensor is still alive, were it only in a cycle of garbage."""
        return sum(any(tensor() is not None for tensor in tensors) for tensors in self._tensors.values())

    def _collects(self, lease: Lease) -> bool:
        """Whether collecting garbage makes room."""
        if self._with_python():
            gc.collect(1)
        return lease.has_room()

    def _waits(self, lease: Lease, in_flight_s: float) -> bool:
        """Whether waiting for the slots in flight makes room, if there are any beside the leased one."""
        in_flight = self._slots - 1 - self._with_python()
        return in_flight > 0 and lease.wait_room(int(in_flight_s * 1e9))


class Aliases:
    """Makes the leaves of a batch: a framework's tensors over the slot, or over copies where they cannot be."""

    def __init__(
        self,
        info: LoaderInfo,
        memory: Memory,
        outstanding: Outstanding,
        extra: Extra | None = None,
        own: Own | None = None,
    ) -> None:
        leaves, offsets = info.spec.leaves, info.offsets
        self._memory = memory
        self._outstanding = outstanding
        self._extra = extra
        self._fields = Fields(info.spec, offsets)
        self._makers = makers(info.spec, own)
        alone = [leaf.dtype.name in memory.leaves_alone or not can_be_exported(leaf) for leaf in leaves]
        aliased = [not one and number not in (own or {}) for number, one in enumerate(alone)]
        if info.copy:
            aliased = [False] * len(leaves)
        self._aliased = aliased
        numbers = [number for number, can in enumerate(aliased) if can]
        self._exports = Exports([leaves[number] for number in numbers], [offsets[number] for number in numbers])
        self._some = bool(numbers)
        self._all = len(numbers) == len(leaves) and extra is None

    def __call__(self, lease: Lease, rows: int) -> list[Any]:
        """Return the leaves. The lease is the caller's: a tensor has a hold of its own on the slot."""
        if not self._some or not self._outstanding.has_room(lease, self._memory):
            return self._with_copies(lease, rows, None)
        alias = self._memory.alias
        tensors = [alias(capsule) for capsule in self._exports.capsules(lease, rows)]
        self._outstanding.add(lease.slot, tensors)
        return tensors if self._all else self._with_copies(lease, rows, tensors)

    def _with_copies(self, lease: Lease, rows: int, tensors: list[Any] | None) -> list[Any]:
        """Return all leaves, private copies for those that have no tensor; the extra ones come last."""
        adopt = self._memory.adopt
        views = self._fields.views(lease, rows)
        extra = [] if self._extra is None else list(map(adopt, self._extra(views)))
        given = iter(tensors or ())
        aliased = self._aliased if tensors else [False] * len(views)
        leaves = [
            next(given) if can else adopt(make(view))
            for can, make, view in zip(aliased, self._makers, views, strict=True)
        ]
        return leaves + extra
