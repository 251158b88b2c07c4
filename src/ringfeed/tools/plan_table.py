"""`ringfeed.plan`: the memory of many settings side by side, before any loader is made."""

from __future__ import annotations

import math
import textwrap
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np

from ringfeed._checks import MOST, check_count, check_integer
from ringfeed._html import table
from ringfeed._progress import tell
from ringfeed._units import columns, parse_memory, show_bytes
from ringfeed.datasets.first import read
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from ringfeed.engine.options import DEFAULT_SLOTS
from ringfeed.engine.plan import Plan, make_plan
from ringfeed.errors import PlanError, ShipError
from ringfeed.loader import Loader
from ringfeed.ring import _ring
from ringfeed.ring.segment import MIN_SLOTS
from ringfeed.spec.fitting import fitted
from ringfeed.spec.form_arrays import padded
from ringfeed.spec.layout import field_size
from ringfeed.spec.spec import Array, Leaf, Spec
from ringfeed.system.machine import usable_cpus
from ringfeed.transport.copied import of_copy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ringfeed.spec.array import AnyArray

Shape = tuple[int, ...]

WIDTH = 100  # of the notes, in characters
HEAD = ("sample", "batch size", "slots", "one slot", "in all")
MOST_ROWS = 2**40  # where the search for the largest batch ends
READ = 32  # samples, spread over the dataset
# Standard deviations of a batch's size above its mean. If sizes are normal, one batch in a thousand
# million needs more.
SPREAD = 6
CAST = (
    "keep uint8 in the slots, and cast on the device: keras.layers.Rescaling(1 / 255) as the "
    "first layer, or images.float() / 255 in torch"
)


class PlannedRow(NamedTuple):
    """One line of the table: a setting and its plan; ``fits``: whether the memory holds it."""

    what: str
    batch_size: int
    plan: Plan
    fits: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The line's text, column by column."""
        total = show_bytes(self.plan.total) + ("" if self.fits else ": too much")
        return (
            self.what,
            f"{self.batch_size:,}",
            f"{self.plan.slots:,}",
            show_bytes(self.plan.slot_size),
            total,
        )


@dataclass(frozen=True)
class Comparison:
    """Plans of several settings; ``str()`` gives the table, ``rows`` the figures behind it."""

    rows: tuple[PlannedRow, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return the table and what follows from it, as text."""
        head, *lines = columns([HEAD, *(row.cells for row in self.rows)], "  ")
        return "\n".join(
            [
                head,
                "-" * len(head),
                *lines,
                "",
                *(textwrap.fill(note, WIDTH) for note in self.notes),
            ]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table and the notes for a notebook."""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return table("Plans", (row.cells for row in self.rows), HEAD) + notes


class _Subject(NamedTuple):
    """What is planned for: samples of one spec, the workers, what their dataset takes."""

    what: str
    spec: Spec
    workers: int
    sizes: Mapping[str, Any] = MappingProxyType({})  # of the dataset, as `make_plan` has them
    rows: int | None = None  # of a dataset of whole batches, which decides itself
    advice: str = ""  # about the dataset

    def plan(self, rows: int, **room: Any) -> Plan:
        """Return the plan of a loader with these settings and so many slots, or so much memory."""
        indices = rows if self.rows is None else 1
        return make_plan(self.spec, rows, indices, workers=self.workers, **self.sizes, **room)

    def row(self, rows: int, slots: int | None, budget: int | None) -> PlannedRow:
        """Return a line of the table.

        A budget decides the slots: as many as it holds, or two where it holds fewer.
        """
        if budget is None:
            return PlannedRow(self.what, rows, self.plan(rows, slots=slots), fits=True)
        least = self.plan(rows, slots=MIN_SLOTS)
        fits = least.total <= budget
        return PlannedRow(self.what, rows, self.plan(rows, memory=budget) if fits else least, fits)


def plan(  # noqa: PLR0913 - the loader's own parameters
    dataset: Any = None,
    *,
    shape: Sequence[SupportsIndex] | Sequence[Sequence[SupportsIndex]] | None = None,
    dtype: npt.DTypeLike | Sequence[npt.DTypeLike] = "uint8",
    batch_size: int | Sequence[int] | None = 32,
    slots: int | Sequence[int] | None = None,
    memory: int | str | None = None,
    workers: int | None = None,
    spec: object = None,
) -> Comparison:
    """Return the bytes that a loader would take, for every combination of the arguments.

    Nothing is reserved.

        print(ringfeed.plan(shape=(256, 256, 3), batch_size=[64, 128], slots=[2, 4]))
        print(ringfeed.plan(dataset, batch_size=128, memory="2GB"))

    dataset: as for `Loader`; unless ``spec`` is given, its sample 0 is read, or 32 samples if they
        differ in length. The dataset's own memory is counted. Instead of a dataset, give ``shape``
        and ``dtype`` of a sample, or lists of them.
    batch_size, slots: one, or a list. Default: 32 samples, and 4 slots. ``batch_size=None`` for a
        dataset of whole batches.
    memory: instead of ``slots``, the bytes that all may take ("2GB"): the slots that fit, and the
        largest batch.
    workers: as for `Loader`. The table has only the shared memory: each worker's Python, and the
        sample that it makes, come on top.

    The figures are those of `Loader.plan`. Raises ValueError for both or neither of dataset and
    shape, or of slots and memory; SpecError for what is no sample.
    """
    if (dataset is None) == (shape is None):
        raise ValueError(
            "give a dataset, or the shape of a sample: one of them says what is planned for"
        )
    if slots is not None and memory is not None:
        raise ValueError("give slots= or memory=, not both: each decides the other")
    if batch_size is None and dataset is None:
        raise ValueError(
            "batch_size=None is for a dataset of whole batches; give it, or a batch_size"
        )
    count = check_count("workers", workers, 0, _ring.MAX_WORKERS)
    count = min(usable_cpus(), _ring.MAX_WORKERS) if count is None else count
    whole = batch_size is None
    sizes = [] if whole else _counts("batch_size", batch_size, 1)
    counts: Sequence[int | None] = (
        [None]
        if memory is not None
        else _counts("slots", DEFAULT_SLOTS if slots is None else slots, 0)
    )
    subjects = (
        _described(shape, dtype, count)
        if shape is not None
        else [_subject(dataset, spec, count, whole=whole)]
    )
    budget = None if memory is None else parse_memory(memory)
    settings = product(subjects, sizes or [subjects[0].rows or 1], counts)
    rows = [subject.row(size, number, budget) for subject, size, number in settings]
    largest = (
        []
        if budget is None
        else [_largest(subject, budget) for subject in subjects if subject.rows is None]
    )
    advice = [
        f"{subject.advice[0].upper()}{subject.advice[1:]}."
        for subject in subjects
        if subject.advice
    ]
    lengths = [] if whole or dataset is None else _lengths(dataset, subjects[0].spec, max(sizes))
    caches = [f"Besides, {cache}." for cache in subjects[0].sizes.get("caches", ())]
    notes = [*largest, *caches, *lengths, *_casts(subjects), *advice, _workers_note(count)]
    return Comparison(tuple(rows), tuple(notes))


def _counts(name: str, value: object, least: int) -> list[int]:
    """Return one count, or those of a list."""
    each = value if isinstance(value, list | tuple) else [value]
    return [check_integer(name, one, least, MOST) for one in each]


def _described(shape: Sequence[Any], dtype: Any, workers: int) -> list[_Subject]:
    many = isinstance(shape, list | tuple) and shape and isinstance(shape[0], list | tuple)
    shapes = shape if many else [shape]
    dtypes = dtype if isinstance(dtype, list) else [dtype]
    arrays = [Array(axes, kind) for axes, kind in product(shapes, dtypes)]
    return [
        _Subject(f"{_show_shape(array.shape)} {array.dtype}", Spec(array), workers)
        for array in arrays
    ]


def _show_shape(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one"


def _show_leaf(leaf: Leaf) -> str:
    if leaf.form is None or leaf.form.name not in {"bytes", "text"}:
        return f"{_show_shape(leaf.shape)} {leaf.dtype}"
    return f"{leaf.shape[0]} bytes" + (" of text" if leaf.form.name == "text" else "")


def _subject(dataset: Any, spec: object, workers: int, *, whole: bool) -> _Subject:
    size = None if whole else 1
    source = open_source(dataset, Terms(size, spec))
    if spec is None and source.local_only:
        raise ValueError(
            "plan() would read the first element of an iterator, and its epoch would lack it; "
            "give spec="
        )
    tell("reading sample 0")
    make = partial(Loader, batch_size=size, slots=MIN_SLOTS, workers=workers, spec=spec)
    if spec is None and source.streams and not workers:  # it may keep its place in itself
        try:
            found = of_copy(dataset, make)
        except ShipError as error:
            raise ValueError(
                "plan() would read the first element of an iterable that cannot be copied, and "
                "its epoch might lack it; give spec="
            ) from error
    else:
        found = make(dataset)
    leaves = [_show_leaf(leaf) for leaf in found.spec.leaves]
    rows = found.plan.layout.rows if whole else None
    sizes = {
        name: getattr(found.plan, name)
        for name in ("dataset_shared", "dataset_per_worker", "forkserver", "caches")
    }
    return _Subject(" + ".join(leaves), found.spec, workers, sizes, rows, found.plan.advice)


# ---- what follows ----


def _largest(subject: _Subject, budget: int) -> str:
    """Say how many samples the largest batch has that the budget holds several of."""

    def is_too_much(rows: int) -> bool:
        try:
            return subject.plan(rows, slots=DEFAULT_SLOTS).total > budget
        except PlanError:
            return True

    most = bisect_left(range(1, MOST_ROWS), x=True, key=is_too_much)
    held = f"batches of up to {most:,} samples" if most else "no batch of even one sample"
    return f"With {DEFAULT_SLOTS} slots, {show_bytes(budget)} hold {held} of {subject.what}."


def _lengths(dataset: Any, spec: Spec, rows: int) -> list[str]:
    """Return a note for each leaf with a form, from some samples; none for an iterable.

    A sample that fails ends no plan; a note names it.
    """
    spec = padded(spec) if rows > 1 else spec
    leaves = {number: leaf for number, leaf in enumerate(spec.leaves) if leaf.form is not None}
    source = open_source(dataset, Terms(1, spec)) if leaves else None
    length = None if source is None or source.streams else source.length()
    if source is None or not length:
        return []
    indices = sorted({*np.linspace(0, length - 1, min(length, READ)).astype(int).tolist()})
    sizes: list[list[int]] = []  # bytes of each leaf, by the sample
    failed: list[str] = []
    for number, index in enumerate(indices):
        tell(f"reading sample {index}", number / len(indices))
        try:
            sample = spec.flatten(read(source, index), index)
            where = f"dataset[{index}]: "
            sizes.append(
                [
                    fitted(sample[number], leaf, where + leaf.path).nbytes
                    for number, leaf in leaves.items()
                ]
            )
        except Exception as error:  # noqa: BLE001 - of the user's dataset
            failed.append(
                f"dataset[{index}] raised {type(error).__name__}: {error}".removesuffix(": ")
            )
    notes = (
        [
            _note(leaf, rows, np.array(own))
            for leaf, *own in zip(leaves.values(), *sizes, strict=True)
        ]
        if sizes
        else []
    )
    return (
        [*notes, f"{len(failed)} of {len(indices)} samples failed: {failed[0]}."]
        if failed
        else notes
    )


def _note(leaf: Leaf, rows: int, sizes: AnyArray) -> str:
    """Say what a slot reserves for a leaf, what a batch needs, and which total would hold it."""
    assert leaf.form is not None
    said = (
        f"{leaf.path} is {leaf.form.name}: a slot reserves {show_bytes(field_size(leaf, rows))} "
        f"for {rows:,} samples, and {len(sizes)} that were read have "
        f"{show_bytes(round(sizes.mean()))} on average, {show_bytes(sizes.max())} at most, so a "
        f"batch needs about {show_bytes(round(rows * sizes.mean()))}"
    )
    unit = leaf.nbytes // leaf.shape[0] or 1
    needed = rows * sizes.mean() + SPREAD * math.sqrt(rows) * sizes.std()
    total = max(leaf.shape[0], math.ceil(needed / unit))
    if leaf.form.is_padded or leaf.form.total is not None or 2 * total > rows * leaf.shape[0]:
        return f"{said}."
    return f"{said}; total={total} would reserve {show_bytes(unit * (total + leaf.shape[0]))}."


def _casts(subjects: Sequence[_Subject]) -> list[str]:
    """Say what uint8 saves over float32, where there are arrays of either."""
    leaves = [leaf for subject in subjects for leaf in subject.spec.leaves]
    kinds = {
        leaf.dtype
        for leaf in leaves
        if leaf.shape and (leaf.form is None or leaf.form.unit != "bytes")
    }
    if not kinds & {np.dtype("uint8"), np.dtype("float32")}:
        return []
    return [f"Pictures in uint8 take a quarter of the memory of float32: {CAST}."]


def _workers_note(workers: int) -> str:
    if not workers:
        return "No workers: batches are filled in the consumer."
    which = "1 worker is a process" if workers == 1 else f"{workers} workers are processes"
    size = "some 5 to 10 MB each of its own, or 25 MB with backend='spawn'"
    return f"Besides, {which} with {size}, and with what your dataset imports."
