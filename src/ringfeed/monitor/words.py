"""The bottleneck of a run in words: a heading, what was seen, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ringfeed.monitor.figures import Figures

HEADINGS = {
    "input-bound": "Training waits for its batches",
    "compute-bound": "Batches wait for training: the model is the limit",
    "in this process": "Batches are filled in the training process itself",
    "too early to say": "Too short to say what limits it",
}
NO_WORDS = "The trace does not say what limits the run"
NOTHING_RAN = "Nothing ran while the trace was made"
NEXT = {
    "input-bound": (
        "`ringfeed profile module:dataset` says where the time of a sample goes. The page “My GPU waits” of the "
        "documentation has the steps in their order."
    ),
    "compute-bound": "A loader cannot make this run faster. Fewer workers or slots leave more to the model.",
    "in this process": "workers=1 or more fill batches while the model computes.",
    "too early to say": "Trace a longer run: one second after the first batch, or more.",
}


class Said(NamedTuple):
    """What was seen, and what to change for it, where there is something."""

    seen: str
    change: str = ""


class Words(NamedTuple):
    """The heading, a line for each thing that was seen, and where to go on."""

    heading: str
    lines: tuple[Said, ...]
    next: str = ""


def words_of(verdict: str, figures: Figures) -> Words:
    """Return a loader's verdict in parts; without one, what the figures say."""
    if not verdict:
        if not figures.span_s:
            return Words(NOTHING_RAN, (Said("no epoch was under way; put the loop or fit() into the with block"),))
        workers = "" if figures.busy is None else f"; workers were {figures.busy:.0%} busy"
        return Words(NO_WORDS, (Said(f"training waited {figures.waited:.0%} of the time{workers}"),))
    kind, _, rest = verdict.partition(": ")
    if kind not in HEADINGS:
        return Words("No batch came", (Said(verdict),))
    lines = tuple(_said(part) for part in rest.split("; "))
    return Words(HEADINGS[kind], lines, NEXT[kind])


def _said(part: str) -> Said:
    """Split what was seen from the advice behind its colon; a start-up has its cause there, and "auto" its reason."""
    if part.startswith(("start-up", "auto")):
        return Said(part)
    seen, _, change = part.partition(": ")
    return Said(seen, change)
