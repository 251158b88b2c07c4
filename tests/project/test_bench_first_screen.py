"""README's first screen is made of the lines of two studies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from report import first_screen
from report.results import Results
from studies import keras_training

PLACE = {
    "time": "2026-11-28T12:00:00+0000",
    "machine": {"cpu": "CPU", "cores": 2, "kernel": "6.1"},
    "versions": {"keras": "3.15.1"},
    "commit": "0123456789ab",
}


def line(case: str, contender: str, **figures: Any) -> dict[str, Any]:
    """A line of a study."""
    return {**PLACE, "case": case, "contender": contender, "repetition": 0, "figures": figures}


PROCESSES, FEED = keras_training.PROCESSES, keras_training.FEED
TRAINING = [
    line("memory", keras_training.MODEL, peak_bytes=800e6),
    line("memory", FEED, peak_bytes=1000e6),
    line("epoch", PROCESSES, epoch_s=5.0, weights="a", batches=96),
    line("epoch", FEED, epoch_s=2.0, weights="a", batches=96),
    {**PLACE, "case": "killed", "contender": PROCESSES, "repetition": 0, "error": "hangs"},
    line("killed", FEED, longest_s=0.2, weights="a"),
    line("resumed", PROCESSES, first_s=2.0, weights="b", batches=64),
    line("resumed", FEED, first_s=1.0, weights="a", batches=56),
]
PHOTOGRAPHS = [
    line("photographs", name, images_per_s=rate)
    for name, rate in (
        ("ringfeed", 1800.0),
        ("Grain", 700.0),
        ("two bare processes", 2000.0),
        ("torch", 900.4),
        ("ringfeed, the part alone", 2100.0),
        ("DALI, CPU", 1000.0),
    )
]


def test_what_each_contender_had() -> None:
    """Memory is above that of one batch; weights are compared with the undisturbed run's; an error is told."""
    found = {row[0]: [row[2], row[4]] for row in keras_training.rows(TRAINING)}
    assert found == {
        "peak memory of the input": ["-", "200 MB"],
        "one epoch": ["5.00 s", "2.00 s"],
        "a worker is killed: longest wait for the next batch": [
            "hangs",
            "200 ms; the same final weights as undisturbed",
        ],
        "the run is killed and started again": [
            "trains 8 batches twice; other final weights",
            "the same final weights as undisturbed",
        ],
    }


def test_a_ratio_is_the_quotient_of_what_is_shown() -> None:
    """The best rival is one that decodes alike, and no bare process."""
    assert first_screen.photographs_lines(Results(PHOTOGRAPHS)) == (
        "Photographs a second on two cores (decode, crop, flip, normalise). With the same Python code "
        "for each: ringfeed 1,800; torch 900; Grain 700. ringfeed is 2.00 times as fast as the next. "
        "Decoding only the crop, which is less work: ringfeed 2,100; DALI, CPU 1,000. "
        "ringfeed is 2.10 times as fast as the next."
    )


def test_the_block_says_where_and_when() -> None:
    """Machine, commit and day stand at its end: once, or both where the studies ran apart."""
    text = first_screen.text_of(PHOTOGRAPHS, TRAINING)
    assert text.endswith(
        "medians of 1 and 1 runs, each in a new process. CPU, 2 cores; [versions and all "
        "figures](bench/README.md); commit 0123456789ab; 2026-11-28."
    )
    apart = {"time": "2026-11-29T00:00:00+0000", "machine": {"cpu": "Xeon", "cores": 4}}
    text = first_screen.text_of([{**line, **apart} for line in PHOTOGRAPHS], TRAINING)
    assert text.endswith(
        "Xeon, 4 cores and CPU, 2 cores; [versions and all figures](bench/README.md); "
        "commit 0123456789ab; 2026-11-29 and 2026-11-28."
    )
    assert (
        "| one training in Keras | Keras, threads | Keras, processes | ringfeed: `install()` |"
        in text
    )
