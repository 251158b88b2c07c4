"""What a plan reserves, in words."""

from __future__ import annotations

from typing import Any

from ringfeed._units import show_bytes


def text_of(plan: Any) -> str:
    """Return the total, and what it is for."""
    advice = plan.advice and f"; {plan.advice}"
    return f"{show_bytes(plan.total)}: {', '.join(_parts(plan))}; and {_indices(plan)}{advice}"


def lines_of(plan: Any) -> list[tuple[str, str]]:
    """Return the same as lines of a table."""
    parts = [("of it", part) for part in _parts(plan)]
    advice = [("advice", plan.advice)] * bool(plan.advice)
    return [("in all", show_bytes(plan.total)), *parts, ("besides", _indices(plan)), *advice]


def _indices(plan: Any) -> str:
    indices = f"{show_bytes(plan.planned_size)} of indices in this process"
    return ", ".join([indices, *map(str, plan.caches)])


def _parts(plan: Any) -> list[str]:
    """Say what the total is for."""
    parts = [
        f"{plan.slots} slots of {show_bytes(plan.slot_size)}",
        f"{show_bytes(plan.control_size)} of control",
    ]
    if plan.states_size:
        parts.append(f"{show_bytes(plan.states_size)} for the iterables")
    if plan.store is not None:
        parts.append(
            f"{show_bytes(plan.elements_size)} for {plan.store.entries} elements as large as the "
            "first"
        )
    if plan.flights_size:
        parts.append(f"{show_bytes(plan.flights_size)} of rows on their way from the cluster")
    if plan.samples_size:
        parts.append(f"{show_bytes(plan.samples_size)} of the loader that reads the samples")
    if plan.dataset_shared:
        parts.append(f"{show_bytes(plan.dataset_shared)} of the dataset")
    if plan.dataset_per_worker:
        holders = f"{plan.workers} workers" + " and the forkserver" * plan.forkserver
        parts.append(f"{show_bytes(plan.dataset_per_worker)} more in each of {holders}")
    return parts
