"""Put what users feel into the project's README: `python bench/report/first_screen.py`.

From the newest full results of `studies/photographs.py` and `studies/keras_training.py`; nothing in it
is typed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from report import page, plot
from report.report import table
from report.results import Results, read
from studies import keras_training, photographs
from studies.photograph_loaders import PART, WHOLE

BENCH = Path(__file__).parents[1]
README = BENCH.parent / "README.md"
MARK = "figures"
ALSO = ("torch", "Grain")  # what most readers have now, beside the next loader
CAPTION = (
    "1,024 JPEG files, 32 a batch (19 MB as float32), two workers, a checkpoint every 10 batches. Memory: all "
    "processes, less that of the same training on one constant batch. `memory=` limits only the slots (here five; "
    "`install()` used four); each worker process needs memory on top."
)
SCRIPTS = (
    "`python bench/studies/photographs.py` and `python bench/studies/keras_training.py` measure this: "
    "medians of {} runs, each in a new process. {}; "
    "[versions and all figures](bench/README.md); commit {}; {}."
)
OURS, OURS_OF_PART = "ringfeed", "ringfeed, the part alone"


def newest(name: str) -> Path:
    """A study's newest file."""
    return max((BENCH / "results").glob(f"{name}-*.jsonl"))


def photographs_lines(results: Results) -> str:
    """How many photographs a second, ours and the best rival's, of those that decode alike."""
    return (
        "Photographs a second on two cores (decode, crop, flip, normalise). With the same Python code "
        f"for each: {_rates(results, OURS, WHOLE)} Decoding only the crop, which is less work: "
        f"{_rates(results, OURS_OF_PART, PART)}"
    )


def _rates(results: Results, mine: str, alike: dict[str, Any]) -> str:
    rates = {
        name: round(results.median(photographs.CASE, name, "images_per_s") or 0)
        for name in results.contenders(photographs.CASE)
        if name in alike
    }
    rivals = [name for name in rates if not name.startswith(("ringfeed", "two bare"))]
    best = max(rivals, key=lambda name: rates[name])
    others = [name for name in (best, *ALSO) if name in rates]
    shown = "; ".join(f"{name} {rates[name]:,}" for name in dict.fromkeys(others))
    return (
        f"ringfeed {rates[mine]:,}; {shown}. ringfeed is {rates[mine] / rates[best]:.2f} times as fast "
        "as the next."
    )


def _repetitions(*files: list[dict[str, Any]]) -> str:
    return " and ".join(str(1 + max(line["repetition"] for line in lines)) for lines in files)


def _each(form: str, *files: list[dict[str, Any]]) -> str:
    return " and ".join(dict.fromkeys(form.format(**lines[0]) for lines in files))


def text_of(of_photographs: list[dict[str, Any]], of_training: list[dict[str, Any]]) -> str:
    """The block between the marks."""
    heads = ["one training in Keras", *keras_training.CONTENDERS[1:]]
    shown = [f"ringfeed: `{head}`" if "(" in head else head for head in heads]
    blocks = (
        "![photographs a second, by loader](bench/plots/photographs.svg)",
        photographs_lines(Results(of_photographs)),
        table(shown, keras_training.rows(of_training)),
        CAPTION,
        SCRIPTS.format(
            _repetitions(of_photographs, of_training),
            _each("{machine[cpu]}, {machine[cores]} cores", of_photographs, of_training),
            page.commits_of([*of_photographs, *of_training]),
            _each("{time:.10}", of_photographs, of_training),
        ),
    )
    return "\n\n".join(blocks)


def main() -> None:
    """Draw the plot, and write the block."""
    plot.plot(newest("photographs"))
    page.put(README, MARK, text_of(*map(read, map(newest, ("photographs", "keras_training")))))


if __name__ == "__main__":
    main()
