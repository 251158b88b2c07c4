"""The picture the demo leaves behind: one batch as the model saw it, and the slots over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from demo_photos import PHOTOGRAPHS

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure
    from numpy.typing import NDArray

COLUMNS = 16
MOST_CROPS = 32
RIGHT, WRONG = "#2a7f3f", "#c0392b"
STATES = {
    "free": ("#e3e3e3", "free"),
    "filling": ("#f0a83c", "workers fill it"),
    "ready": ("#4c9bd6", "ready"),
    "held": ("#3b3b6d", "the training uses it"),
}
"""Colour and plain words for each state of a slot."""
TRAINS, WAITS = "#8fbf8f", "#c0392b"

Sightings = Sequence[tuple[float, Sequence[str]]]
"""When the slots were looked at, in seconds, and what state each of them was in."""


class Batch(NamedTuple):
    """A batch, and which photograph the model takes each of its crops for."""

    crops: NDArray[np.uint8]
    labels: NDArray[np.int64]
    answers: NDArray[np.int64]


def draw(
    path: str, batch: Batch, sightings: Sightings, waits: Sequence[tuple[float, float]]
) -> None:
    """Write the picture to `path`: the batch above, the slots and the training over time below."""
    crops, labels, answers = batch
    shown = Batch(crops[:MOST_CROPS], labels[:MOST_CROPS], answers[:MOST_CROPS])
    rows = -(-len(shown.crops) // COLUMNS)
    heights = (1.15 * rows + 0.5, 0.42 * len(sightings[0][1]) + 1.6)
    figure = Figure(figsize=(14, sum(heights)), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=heights)
    draw_batch(upper, rows, shown)
    draw_slots(lower, sightings, waits)
    figure.savefig(path, dpi=100)


def draw_batch(figure: SubFigure, rows: int, batch: Batch) -> None:
    """Show each crop under the photograph that the model names, and the true one where it is wrong."""
    figure.suptitle(
        (
            "Which photograph is this crop from?  A held-out batch as the model saw it, and the "
            "model's answers"
        ),
        fontsize=11,
    )
    names = list(PHOTOGRAPHS)
    places = figure.subplots(rows, COLUMNS, squeeze=False).flat
    for axes in places:
        axes.axis("off")
    for axes, crop, label, answer in zip(figure.axes, *batch, strict=False):
        right = label == answer
        title = names[answer] if right else f"{names[answer]}?\nno, {names[label]}"
        axes.imshow(crop)
        axes.set_title(title, fontsize=8, color=RIGHT if right else WRONG, pad=3)


def stretches(sightings: Sightings, slot: int) -> Iterator[tuple[str, float, float]]:
    """Yield `(state, from_s, for_s)` of one slot for each stretch of time in one state."""
    began_s, state = sightings[0][0], sightings[0][1][slot]
    for seen_s, states in sightings:
        if states[slot] != state:
            yield state, began_s, seen_s - began_s
            began_s, state = seen_s, states[slot]
    yield state, began_s, sightings[-1][0] - began_s


def draw_slots(
    figure: SubFigure, sightings: Sightings, waits: Iterable[tuple[float, float]]
) -> None:
    """Show what each slot was in use for at each moment, and when the training had to wait."""
    axes: Axes = figure.subplots()
    first_s, last_s = sightings[0][0], sightings[-1][0]
    slots = len(sightings[0][1])
    seen = {state for _, states in sightings for state in states}
    for slot in range(slots):
        for state, began_s, for_s in stretches(sightings, slot):
            bar(axes, slot, began_s - first_s, for_s, STATES[state][0])
    bar(axes, slots, 0, last_s - first_s, TRAINS)
    for asked_s, got_s in waits:
        if got_s < last_s:
            bar(axes, slots, asked_s - first_s, got_s - asked_s, WAITS)
    axes.set_yticks(range(slots + 1), [*[f"slot {slot + 1}" for slot in range(slots)], "training"])
    axes.set(xlim=(0, last_s - first_s), ylim=(slots + 0.6, -0.6))
    axes.set_xlabel("seconds since the last epoch began")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(
        "What each slot of shared memory, room for one batch, was in use for", fontsize=11, pad=26
    )
    meanings = [meaning for state, meaning in STATES.items() if state in seen]
    meanings += [(TRAINS, "training works"), (WAITS, "training waits for a batch")]
    legend = [Patch(color=color, label=words) for color, words in meanings]
    axes.legend(
        handles=legend, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, frameon=False
    )


def bar(axes: Axes, row: int, from_s: float, for_s: float, color: str) -> None:
    """Fill one stretch of time in a row."""
    axes.broken_barh([(from_s, for_s)], (row - 0.4, 0.8), facecolor=color)
