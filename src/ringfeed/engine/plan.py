"""Decides and checks how much memory a loader takes, before any is reserved.

make_plan   the plan for given workers, and for given slots or memory
plan_for    the plan of a loader's options
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._units import parse_memory, show_bytes
from ringfeed.engine.options import DEFAULT_SLOTS
from ringfeed.errors import PlanError
from ringfeed.monitor.free_memory import check_free, free_memory
from ringfeed.monitor.stats import Setting
from ringfeed.ring import _ring
from ringfeed.ring.segment import MIN_SLOTS, Sizes, worker_ids
from ringfeed.spec.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.datasets.base import Source
    from ringfeed.engine.autotune import Tuner
    from ringfeed.engine.options import Options
    from ringfeed.reading.store import StoreSizes
    from ringfeed.spec.spec import Spec
    from ringfeed.transport.shared_dataset import DatasetPickle

PLANNED_INDICES = 16384  # as many are planned ahead, or two batches a slot
MOST_AUTO_SLOTS = (
    32  # several workers fill one slot together, so that far fewer keep many of them busy
)
FREE_SHARE = 4  # the part of free memory that slots may take by themselves is one in so many
MOST_SLOTS_BY_MEMORY = 256  # a budget for more is better left to the page cache


@dataclass(frozen=True)
class Plan:
    """The bytes that a loader reserves, in sum ``total``; each worker's Python comes on top."""

    layout: Layout
    slots: int
    workers: int
    control_size: int
    dataset_shared: int = 0
    dataset_per_worker: int = 0
    states_size: int = 0  # of what is kept of iterables
    store: StoreSizes | None = None  # of the elements that one of the workers reads for the others
    element_size: int = 0  # of the first of them
    flights_size: int = 0  # of the rows that a cluster may send at a time
    caches: tuple[Any, ...] = ()  # what each takes beside the total
    samples_size: int = 0  # of the loader that reads the samples of a `Pack`
    advice: str = ""
    """What would make it smaller, in words."""
    forkserver: bool = False
    """Whether the process that forks the workers has a copy of the dataset, too.

    Workers share its pages until they use them: each use writes a count of references.
    """

    @property
    def slot_size(self) -> int:
        """Bytes of one slot."""
        return self.layout.slot_size

    @property
    def sizes(self) -> Sizes:
        """The sizes for which the shared memory is made."""
        at = self.layout
        ids, workers = worker_ids(self.workers), max(self.workers, 1)
        places = (at.slot_size, at.indices_at, at.marks_at, at.failures_at)
        return Sizes(self.slots, at.cells, workers, at.indices, ids, *places)

    @property
    def lookahead(self) -> int:
        """How many batches may be planned and not yet taken."""
        return max(2 * self.slots, PLANNED_INDICES // self.layout.indices)

    @property
    def planned_size(self) -> int:
        """Bytes of the consumer's own memory for indices: of planned batches, and of the sampler's.

        Not part of ``total``, like the interpreters.
        """
        return 2 * _ring.window_size(self.lookahead, self.layout.indices)

    @property
    def copies(self) -> int:
        """How many processes may copy the part of the dataset that is not shared."""
        return self.workers + self.forkserver

    @property
    def elements_size(self) -> int:
        """Bytes of the elements read ahead of the workers, if each is like the first."""
        return (
            0 if self.store is None else self.store.words + self.store.entries * self.element_size
        )

    @property
    def total(self) -> int:
        """Bytes of slots, control block, states and elements of iterables, and the dataset."""
        dataset = self.dataset_shared + self.copies * self.dataset_per_worker + self.samples_size
        streams = self.states_size + self.elements_size
        slots = self.slots * self.slot_size
        return slots + self.control_size + streams + dataset + self.flights_size

    def __str__(self) -> str:
        """Return the total, its parts, and what would make it smaller."""
        from ringfeed.monitor.words import plan_text  # noqa: PLC0415 - only where it is shown

        return plan_text(self)

    def __repr__(self) -> str:
        """Return the total and its parts, for a prompt."""
        return f"<Plan of {self}>"

    def _repr_html_(self) -> str:
        """Return the total and its parts as a table, for notebooks."""
        from ringfeed._html import table  # noqa: PLC0415 - for notebooks
        from ringfeed.monitor.words import plan_lines  # noqa: PLC0415 - only where it is shown

        return table("Plan", plan_lines(self))


def _control_block(indices: int, slots: int, workers: int, more: int) -> tuple[int, int]:
    """Return the most tickets of a batch, several per worker if there is room, and the size.

    ``more``: tickets in work at a time beyond one per worker.
    """
    cells = 2 * min(indices, _ring.MAX_CELLS, max(16, 4 * (workers + more)))
    # So many slots are too many already, and still fit 32 bits.
    counted = min(slots, _ring.CONTROL_MAX)
    while cells > 1:
        cells //= 2
        size = _ring.control_size(counted, cells, worker_ids(workers))
        if size <= _ring.CONTROL_MAX:
            return cells, size
    raise PlanError(
        f"slots={slots} with {workers} workers needs a control block of more than 1 MiB; use "
        "fewer slots"
    )


def make_plan(  # noqa: PLR0913 - what decides the others
    spec: Spec,
    rows: int,
    indices: int,
    *,
    workers: int,
    slots: int | None = None,
    memory: int | str | None = None,
    at_once: bool = False,
    more: int = 0,
    **figures: Any,
) -> Plan:
    """Return the plan for ``slots``, or for as many slots as ``memory`` holds.

    ``at_once``: a worker fills a whole batch. ``more``: tickets in work at a time beyond one per
    worker, if a worker may hold several. ``figures``: other fields of the `Plan`; with
    ``element_size``, one of the workers reads elements of this many bytes for the others.

    Raises PlanError if the budget is below two slots, ValueError for both or for invalid values.
    """
    if slots is not None and memory is not None:
        raise ValueError("give slots= or memory=, not both: each decides the other")

    def with_slots(count: int) -> Plan:
        cells, control_size = _control_block(1 if at_once else indices, count, workers, more)
        layout = Layout.of(spec, rows, indices, cells)
        plan = Plan(layout, count, workers, control_size, **figures)
        if "element_size" not in figures:
            return plan
        from ringfeed.reading.store import StoreSizes  # noqa: PLC0415 - only where it is needed

        return replace(plan, store=StoreSizes(count, indices, workers - 1))

    if memory is not None:
        return _most_within(memory, with_slots)
    slots = DEFAULT_SLOTS if slots is None else slots
    if slots < MIN_SLOTS:
        raise PlanError(
            f"slots={slots}: at least {MIN_SLOTS} are needed, one to fill while one is in use"
        )
    return with_slots(slots)


def _most_within(memory: int | str, with_slots: Callable[[int], Plan]) -> Plan:
    """Return the plan with the most slots that fit into the memory."""
    budget = parse_memory(memory)
    for count in range(MOST_SLOTS_BY_MEMORY, MIN_SLOTS - 1, -1):
        plan = with_slots(count)
        if plan.total <= budget:
            return plan
    rest = plan.total - plan.slots * plan.slot_size - plan.control_size
    raise PlanError(
        f"memory={memory!r} is {show_bytes(budget)}, but {MIN_SLOTS} slots of "
        f"{show_bytes(plan.slot_size)}, the control block of {show_bytes(plan.control_size)} and "
        f"the dataset's {show_bytes(rest)} need {show_bytes(plan.total)}; allow that much, or make "
        "batch_size smaller"
    )


def plan_for(options: Options, source: Source, packed: DatasetPickle | None) -> Plan:
    """Return the plan for these options and the pickled dataset ``packed``; "auto": the most.

    If ``memory`` is too small, workers="auto" becomes fewer, down to one. Without ``memory``,
    slots="auto" may take a quarter of the free memory.
    """
    figures: dict[str, Any] = {"states_size": source.states_size, "at_once": source.at_once}
    figures |= {"samples_size": source.samples_size}
    if options.remote is not None:
        figures |= options.remote.figures(source)
    if packed:
        figures |= {"dataset_shared": packed.shared, "dataset_per_worker": packed.unpickled}
        figures |= {"forkserver": options.start_method == "forkserver"}
    if options.readers:
        figures |= {"element_size": source.element_size}
    make = partial(make_plan, source.spec, source.rows, source.indices, **figures)
    workers, memory = options.workers + options.readers + options.bridges, options.memory
    if "slots" in options.auto and memory is None:
        least = make(workers=workers, slots=MIN_SLOTS).total
        memory = max(least, min(free for free, _ in free_memory()) // FREE_SHARE)
    while True:
        try:
            plan = make(workers=workers, slots=options.slots, memory=memory)
            break
        except PlanError:
            if "workers" not in options.auto or workers <= 1:
                raise
            workers //= 2
    if "slots" in options.auto and plan.slots > MOST_AUTO_SLOTS:
        plan = make(workers=workers, slots=MOST_AUTO_SLOTS)
    return source.planned(plan)


def tuner_for(options: Options, plan: Plan) -> Tuner | None:
    """Return the tuner of the "auto" settings, up to the plan; None if no setting is "auto"."""
    if not options.auto:
        return None
    from ringfeed.engine.autotune import Tuner  # noqa: PLC0415 - only where it is needed

    most = Setting(plan.workers - options.bridges, plan.slots)
    workers = min(1, most.workers) if "workers" in options.auto else most.workers
    slots = MIN_SLOTS if "slots" in options.auto else most.slots
    return Tuner(Setting(workers, slots), most, options.auto)


def check_available(plan: Plan, tuner: Tuner | None, reserved: int = 0) -> None:
    """Raise PlanError unless there is memory for the plan, or for the tuner's first setting.

    ``reserved``: bytes of the plan that are reserved already.
    """
    if tuner is not None:
        plan = replace(plan, slots=tuner.setting.slots, workers=tuner.setting.workers)
    slots = f"{plan.slots} slots of {show_bytes(plan.slot_size)}"
    check_free(
        plan.total - reserved,
        f"the plan needs {show_bytes(plan.total)} ({slots})",
        partial(_fits, plan, reserved),
    )


def _fits(plan: Plan, reserved: int, free: int) -> str:
    """Say how many rows per batch fit into the memory with the fewest slots."""
    rest = plan.total - reserved - plan.slots * plan.slot_size
    row_size = plan.slot_size / max(plan.layout.rows, 1)
    rows = int(max(free - rest, 0) / MIN_SLOTS / row_size)
    if not rows:
        size = show_bytes(int(row_size))
        return (
            f": not even {MIN_SLOTS} slots of one row fit, so make a row smaller, which is {size}"
        )
    return f": with {MIN_SLOTS} slots, batches of {rows:,} row{'s' * (rows > 1)} fit"
