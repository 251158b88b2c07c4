"""A batch of a framework's tensors: over the slot itself, or over private copies.

No framework is imported here.

    ring       slot 0   slot 1   slot 2   slot 3
    this batch                            held     taken just now, not yet handed out
    Python     held                                a tensor that the program still refers to
    in flight           held     held              no tensor is left; the framework still computes

A tensor over a slot holds the slot by itself, and gives it back from C. One slot at least is never
held, so that the workers always have one to fill: a batch that would take the last is handed out as
a private copy.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ringfeed.frameworks._dlpack import capsule
from ringfeed.frameworks.cast import NOTHING, Chosen
from ringfeed.frameworks.dlpack import can_be_exported, type_of
from ringfeed.frameworks.forms import Joiner, Joins, as_objects, capacity_of, filled_up, is_string
from ringfeed.spec._fields import Fields
from ringfeed.spec.builder import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ringfeed.frameworks.base import LoaderInfo
    from ringfeed.ring._ring import Lease
    from ringfeed.spec.array import AnyArray, Leaf

Extra: TypeAlias = "Callable[[list[AnyArray]], list[AnyArray]]"
Own: TypeAlias = "Mapping[int, Callable[[AnyArray], AnyArray]]"

ALIGNMENT = 64
"""Bytes. TensorFlow and JAX copy an array that starts elsewhere."""


def copy_aligned(array: Any) -> AnyArray:
    """A C-contiguous copy in the machine's byte order that starts at a multiple of `ALIGNMENT`."""
    room = np.empty(array.nbytes + ALIGNMENT - 1, np.uint8)
    start = -room.__array_interface__["data"][0] % ALIGNMENT
    native = array.dtype.newbyteorder("=")
    copy: AnyArray = room[start : start + array.nbytes].view(native).reshape(array.shape)
    copy[...] = array
    return copy


@dataclass(frozen=True)
class Framework:
    """How a framework takes memory.

    from_dlpack: makes a tensor over the memory of a DLPack capsule; None: all leaves are copies.
    from_numpy: makes the same kind of tensor of a private array, in its memory or in a copy.
    leaves_alone: the dtypes, by name, that `from_numpy` is always given, as copies.
    copied_by: how a user copies what is to be kept.
    has_memory: whether a tensor that the program refers to still has its memory.
    in_flight_s: how long to wait for slots that the framework still computes with when no tensor is
        left.
    is_computing: whether the framework owes the program a result, and may let go of slots when it
        is there; None: it lets go of a slot with the program's last tensor.
    in_cycles: whether the tensors that it is done with are left to the garbage collector.
    joins: how it holds leaves whose samples differ in length, by the name of the form.
    strings: whether it takes bytes and text as an array of Python's bytes objects.
    on_host: whether a leaf stays in this process's memory as it is, whatever the device.
    has_one_shape: whether the values of a ragged leaf are to be as many in all batches: as a slot
        has room for.
    """

    from_dlpack: Callable[[object], Any] | None
    from_numpy: Callable[[AnyArray], Any]
    leaves_alone: frozenset[str] = frozenset()
    copied_by: str = ""
    has_memory: Callable[[Any], bool] = lambda _tensor: True
    in_flight_s: float = 0.0
    is_computing: Callable[[], bool] | None = None
    in_cycles: bool = False
    joins: Joins = field(default_factory=dict)
    strings: bool = False
    on_host: Callable[[Leaf], bool] = lambda _leaf: False
    has_one_shape: bool = False


def without_lists(tree: Any) -> Any:
    """The tree with tuples in the place of lists, which TensorFlow would stack into one tensor."""
    if isinstance(tree, dict):
        return {key: without_lists(branch) for key, branch in tree.items()}
    if hasattr(tree, "_fields"):
        return type(tree)(*map(without_lists, tree))
    return tuple(map(without_lists, tree)) if isinstance(tree, (list, tuple)) else tree


class TensorBuilder(BatchBuilder):
    """Makes batches of one framework's tensors.

        slot ──── from_dlpack ─────────────▶ leaves ── finish: cast, pack ──▶ batch
          └────── copy, from_numpy ──────────▲    leaves that cannot be over the slot
                                                  and all of a private batch

    ``cast`` is done by the framework, to leaves over the slot or to copies; ``own`` makes the
    private arrays of these leaves in the place of a plain copy, and ``extra`` more leaves of the
    views of a batch, which come last. What comes beside the values of leaves with a form stands
    before these: see `forms`. ``pack`` makes another structure than that of a sample.

    Where a loader's batches may be kept, as by Keras and tf.data, its builders share one
    ``outstanding``. Such a builder is quiet: it gives leaves, which its caller finishes, and copies
    without a warning.
    """

    def __init__(  # noqa: PLR0913 - what a batch is made of
        self,
        info: LoaderInfo,
        framework: Framework,
        *,
        cast: Chosen = NOTHING,
        own: Own | None = None,
        extra: Extra | None = None,
        pack: Callable[[Any], Any] | None = None,
        outstanding: Outstanding | None = None,
    ) -> None:
        leaves, offsets, own = info.spec.leaves, info.offsets, own or {}
        self.framework = framework
        self.copied_by, self.is_computing = framework.copied_by, framework.is_computing
        self._cast = cast
        self._extra = extra
        self._fields = Fields(info.spec, offsets)
        self._join = Joiner(leaves, framework.joins, strings=framework.strings)
        self._strings = {
            n for n, leaf in enumerate(leaves) if framework.strings and is_string(leaf)
        }
        self._filled_up = {
            number: (capacity_of(leaf, info.max_rows), offsets[number])
            for number, leaf in enumerate(leaves)
            if framework.has_one_shape and leaf.form is not None and leaf.form.name == "ragged"
        }
        self._own = own
        join, around = self._join, pack or info.spec.unflatten
        has_forms = any(leaf.form is not None for leaf in leaves)
        self.pack = (lambda flat: around(join(flat))) if has_forms else around
        """Makes the batch around its leaves, whatever they have become, and what is beside them."""
        wanted = sorted(cast) if info.copy else range(len(leaves))
        self.over_slot = {
            n: type_of(leaves[n])
            for n in wanted
            if n not in own and _can_be_over_slot(leaves[n], framework)
        }
        """DLPack's types of the leaves that are tensors over the slot, until they are cast."""
        self.moved = [n for n, leaf in enumerate(self._join.owners) if not framework.on_host(leaf)]
        """The places, in a flat list, of what is copied to a device."""
        self.is_quiet = self.waits_for_slots = outstanding is not None
        self._kept = [n for n in self.over_slot if self.is_quiet or n not in cast]
        self._outstanding = outstanding or Outstanding()

    def __call__(self, lease: Lease, rows: int) -> Any:
        """Return the batch; its tensors hold the slot, but for those that are cast or copied."""
        leaves, framework = self.leaves(lease, rows), self.framework
        if framework.is_computing is not None or framework.in_cycles:
            self._outstanding.add(lease.slot, [leaves[number] for number in self._kept])
        if framework.in_cycles:
            gc.collect(0)  # tens of microseconds, and otherwise most slots wait for it
        return leaves if self.is_quiet else self.finish(leaves)

    def private(self, lease: Lease, rows: int) -> Any:
        """Return the batch as copies."""
        leaves = self.leaves(lease, rows, private=True)
        self._outstanding.copied += 1
        return leaves if self.is_quiet else self.finish(leaves)

    def lets_go_later(self, waited_s: float, held: int) -> bool:
        """Whether the framework may still read a held slot of which the program has no tensor."""
        framework = self.framework
        if framework.in_cycles and not waited_s:
            return self._outstanding.collects(framework)
        if framework.is_computing is None or self._outstanding.in_hand(framework) >= held:
            return False
        return waited_s < framework.in_flight_s or framework.is_computing()

    def leaves(self, lease: Lease, rows: int, *, private: bool = False) -> list[Any]:
        """The tensors over the slot, in the order of the spec; leaves that cannot be are copies.

        ``private``: all as copies.
        """
        from_numpy, over_slot = self.framework.from_numpy, {} if private else self.over_slot
        from_dlpack: Any = self.framework.from_dlpack
        views, besides = self._fields.views(lease, rows), self._fields.besides(lease, rows)
        for number, (capacity, offset) in self._filled_up.items():
            views[number] = filled_up(views[number], capacity, lease, offset)
            besides[number] = np.diff(besides[number])
        leaves = [
            from_dlpack(capsule(lease, view, *over_slot[number]))
            if number in over_slot
            else from_numpy(self._private(number, view, besides.get(number)))
            for number, view in enumerate(views)
        ]
        leaves += [from_numpy(besides[number]) for number in self._join.beside]
        return leaves if self._extra is None else [*leaves, *map(from_numpy, self._extra(views))]

    def finish(self, leaves: list[Any]) -> Any:
        """Return the leaves, cast, in the structure of a sample."""
        return self.pack(self._cast(leaves))

    def _private(self, number: int, view: AnyArray, beside: AnyArray | None) -> AnyArray:
        """Return a leaf of a batch as an array of its own."""
        if number in self._strings:
            assert beside is not None
            return as_objects(view, beside)
        copier: Callable[[AnyArray], AnyArray] = self._own.get(number, copy_aligned)
        return copier(view)


def _can_be_over_slot(leaf: Leaf, framework: Framework) -> bool:
    if framework.strings and is_string(leaf):
        return False
    is_taken = framework.from_dlpack is not None and leaf.dtype.name not in framework.leaves_alone
    return is_taken and can_be_exported(leaf)


class Outstanding:
    """The tensors that the program was given over a loader's slots, and how many are copies."""

    def __init__(self) -> None:
        self.copied = 0
        """Batches that were handed out as copies, because every other slot was held."""
        self._all_helps = True
        self._tensors: dict[int, list[weakref.ref[Any]]] = {}  # of the last batch in each slot

    def add(self, slot: int, tensors: Sequence[Any]) -> None:
        """Count a batch in, until the last of its tensors is gone."""
        self._tensors[slot] = list(map(weakref.ref, tensors))

    def in_hand(self, framework: Framework) -> int:
        """The slots of which a tensor is still alive, were it only in a cycle of garbage."""
        slots = [*self._tensors.values()]  # at once: another thread may add one
        return sum(any(_is_in_hand(tensor, framework) for tensor in tensors) for tensors in slots)

    def collects(self, framework: Framework) -> bool:
        """Whether collecting garbage makes room: all of it until that was in vain."""
        before = self.in_hand(framework)
        gc.collect(1)
        if self._all_helps and self.in_hand(framework) == before:
            # A batch is old for the collector where it came by while a step had the batch in such a
            # cycle.
            gc.collect()
            self._all_helps = self.in_hand(framework) < before
        return self.in_hand(framework) < before


def _is_in_hand(reference: weakref.ref[Any], framework: Framework) -> bool:
    tensor = reference()
    return tensor is not None and framework.has_memory(tensor)
