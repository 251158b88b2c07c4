"""What a plan reserves, in words."""

from __future__ import annotations

from typing import Any

from ringfeed._units import show_bytes


def text_of(plan: Any) -> str:
    """Return the total, what it is for, and the advice, if there is any."""
    return sizes_of(plan) + (plan.advice and f"; {plan.advice}")


def sizes_of(plan: Any) -> str:
    """Return the total, and what it is for."""
    parts = ", ".join(text for _, text in _parts(plan))
    return f"{show_bytes(plan.total)}: {parts}; and {_indices(plan)}"


def lines_of(plan: Any) -> list[tuple[str, str]]:
    """Return the same as lines of a table, and the advice, if there is any."""
    lines = [("in all", show_bytes(plan.total)), *_parts(plan), ("besides", _indices(plan))]
    return [*lines, *[("advice", plan.advice)] * bool(plan.advice)]


def _indices(plan: Any) -> str:
    indices = f"{show_bytes(plan.planned_size)} of indices in this process"
    return ", ".join([indices, *map(str, plan.caches)])


def _parts(plan: Any) -> list[tuple[str, str]]:
    """Name the parts of the total, and say how large each is."""
    parts = [
        ("slots", f"{plan.slots} slots of {show_bytes(plan.slot_size)}"),
        ("control", f"{show_bytes(plan.control_size)} of control"),
    ]
    if plan.states_size:
        parts.append(("states", f"{show_bytes(plan.states_size)} for the iterables"))
    if plan.store is not None:
        count = f"{plan.store.entries} elements as large as the first"
        parts.append(("elements", f"{show_bytes(plan.elements_size)} for {count}"))
    if plan.flights_size:
        text = f"{show_bytes(plan.flights_size)} of rows on their way from the cluster"
        parts.append(("on the way", text))
    if plan.samples_size:
        text = f"{show_bytes(plan.samples_size)} of the loader that reads the samples"
        parts.append(("samples", text))
    if plan.dataset_shared:
        parts.append(("dataset", f"{show_bytes(plan.dataset_shared)} of the dataset"))
    if plan.dataset_per_worker:
        holders = f"{plan.workers} workers" + " and the forkserver" * plan.forkserver
        text = f"{show_bytes(plan.dataset_per_worker)} more in each of {holders}"
        parts.append(("per worker", text))
    return parts
