"""How many workers and slots a loader may have: in numbers, by memory, or as they turn out to help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ringfeed.engine.autotune import Bounds, Setting, Side, Tuner
from ringfeed.engine.options import check_count, is_auto
from ringfeed.engine.plan import Plan, make_auto_plan, make_plan
from ringfeed.ring import _ring
from ringfeed.ring.machine import usable_cpus
from ringfeed.ring.segment import MIN_SLOTS

if TYPE_CHECKING:
    from ringfeed.data.base import Source
    from ringfeed.transport.shared_dataset import Parcel

AUTO_WORKERS = 4  # a CPU, at most: more than one helps while they wait for a disk or a network
SPARE_SLOTS = 2  # of whole batches: one in use and one ready, besides one for each worker


@dataclass(frozen=True)
class Allowance:
    """What the loader's parameters of these names mean; of what is "auto", the most there may be."""

    workers: int
    slots: int | None
    memory: int | str | None
    auto: frozenset[Side]

    @classmethod
    def of(
        cls,
        workers: int | Literal["auto"] | None,
        slots: int | Literal["auto"] | None,
        memory: int | str | None,
        *,
        whole: bool,
        iterables: int,
    ) -> Allowance:
        """Understand the parameters; ``whole``: each sample is a batch. ValueError or TypeError for what is neither."""
        asked_for: dict[Side, object] = {"workers": workers, "slots": slots}
        auto = {side for side, value in asked_for.items() if is_auto(side, value)}
        cpus = usable_cpus()
        asked = cpus if workers is None else cpus * AUTO_WORKERS if "workers" in auto else workers
        count = check_count("workers", asked, 0) or 0
        if workers is None or "workers" in auto:
            count = min(count, _ring.MAX_WORKERS)
        if iterables:
            count = min(count, iterables)
            auto.discard("workers")  # one reads each
        chosen = None if "slots" in auto else check_count("slots", slots, 0)
        if whole and slots is None and memory is None:
            if "workers" in auto:
                auto.add("slots")
            else:
                chosen = count + SPARE_SLOTS
        return cls(count, chosen, memory, frozenset(auto))

    def check_pinned(self) -> None:
        """Refuse slots that come and go where a driver is to know them."""
        if "slots" in self.auto:
            message = "slots='auto' with pin=True: the driver is told of all slots at the start; give a number"
            raise ValueError(message)

    def plan(self, source: Source, parcel: Parcel | None, *, copied: bool) -> Plan:
        """Return the plan, or PlanError where the memory allowed is not enough; ``copied``: to each worker."""
        size = source.spec, source.rows, source.indices
        figures: dict[str, Any] = {
            "workers": self.workers,
            "slots": self.slots,
            "memory": self.memory,
            "dataset_shared": parcel.shared if parcel else 0,
            "dataset_per_worker": parcel.unpickled if parcel and copied else 0,
        }
        if self.auto:
            return make_auto_plan(
                *size, **figures, tune_workers="workers" in self.auto, tune_slots="slots" in self.auto
            )
        return make_plan(*size, **figures)

    def tuner(self, plan: Plan) -> Tuner | None:
        """Return the tuner of what is "auto", from little to no more than the plan has."""
        if not self.auto:
            return None
        most = Setting(plan.workers, plan.slots)
        workers = min(1, most.workers) if "workers" in self.auto else most.workers
        slots = MIN_SLOTS if "slots" in self.auto else most.slots
        fixed = plan.total - plan.slots * plan.slot_size - plan.workers * plan.dataset_per_worker
        bounds = Bounds(Setting(workers, slots), most, plan.slot_size, plan.dataset_per_worker, plan.total, fixed)
        return Tuner(bounds, self.auto)
