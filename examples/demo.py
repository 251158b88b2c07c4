"""Train a real Keras CNN through ringfeed and through Keras' own enqueuer, and compare the two.

The question: which of a dozen photographs does a random crop come from? Worker processes decode a
photograph, cut out a random piece and change it a little. Both trainings get crops of the same
photographs from the same code. They run in separate processes and take turns epoch by epoch, so that
each has the machine to itself. The first epoch is not timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from functools import partial
from pathlib import Path

NEEDED = ("ringfeed", "tensorflow", "keras", "sklearn", "skimage", "PIL", "matplotlib", "rich")
ABSENT = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if ABSENT:
    sys.exit(
        f"demo: not installed: {', '.join(ABSENT)}; `make demo` installs all that the demo needs"
    )

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, Progress, TextColumn  # noqa: E402
from rich.table import Table  # noqa: E402

from demo_run import Run  # noqa: E402 - after the check, for one clear line instead of a traceback

TITLES = {"ringfeed": "ringfeed", "keras": "Keras' enqueuer"}
PHOTOGRAPHS = 12
QUEUED_BATCHES = 10
NUMBERS = {
    "epochs": (8, 2, "epochs of each training; the first is not timed"),
    "workers": (2, 1, "worker processes of each training"),
    "slots": (4, 2, "batches that ringfeed may have in memory"),
    "samples": (1536, 48, "training crops in an epoch; a quarter as many are held out"),
    "batch-size": (32, 1, "crops in a batch"),
}
"""Option: default, least, meaning."""


def at_least(least: int, text: str) -> int:
    """Return the number in `text`, refused below `least`."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of {least} or more, got {text!r}"
        )
    return int(text)


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    for name, (default, least, meaning) in NUMBERS.items():
        check, words = partial(at_least, least), f"{meaning} (default: {default})"
        parser.add_argument(f"--{name}", type=check, default=default, metavar="N", help=words)
    words = "the picture to leave behind (default: demo.png)"
    parser.add_argument("--output", default="demo.png", metavar="PATH", help=words)
    options = parser.parse_args()
    if not Path(options.output).parent.is_dir():
        parser.error(
            f"argument --output: no folder {str(Path(options.output).parent)!r}; make it first"
        )
    return options


def take_turns(runs: list[Run], options: argparse.Namespace, console: Console) -> None:
    """Train an epoch of one run, an epoch of the next and so on, showing how far each is."""
    batches = -(-options.samples // options.batch_size)
    columns = TextColumn("{task.description:>15}"), BarColumn(), TextColumn("{task.fields[words]}")
    with Progress(*columns, console=console, transient=True) as progress:
        total = options.epochs * batches
        bars = {run: progress.add_task(TITLES[run.feed], total=total, words="") for run in runs}
        for epoch in range(options.epochs):
            for run, bar in bars.items():
                progress.update(bar, words=f"epoch {epoch + 1} of {options.epochs}")
                run.train_an_epoch(partial(progress.advance, bar))
                progress.update(bar, words=run.trouble or f"{run.epochs[-1]['accuracy']:.0%} right")
            if runs[0].trouble:
                return  # without ringfeed there is nothing to compare with
        for run in runs:
            run.finish()


def median_of(run: Run, fact: str) -> str:
    """Return the median of `fact` in seconds over the timed epochs, or why there is none."""
    timed = [epoch[fact] for epoch in run.epochs[1:]]
    return run.trouble or f"{statistics.median(timed):.2f} s"


def megabytes(size: int | None) -> str:
    """Return a number of bytes in words, or nothing where there is none."""
    return "" if size is None else f"{size / 1e6:.1f} MB"


def comparison(runs: list[Run], options: argparse.Namespace) -> Table:
    """Return the table of what both trainings reached and took."""
    table = Table(
        "", title=f"Which of {PHOTOGRAPHS} photographs is this crop from?", caption_justify="left"
    )
    for run in runs:
        table.add_column(TITLES[run.feed], justify="right")
    table.add_row(
        f"Held-out crops recognised (guessing: {1 / PHOTOGRAPHS:.0%})",
        *[f"{run.epochs[-1]['accuracy']:.1%}" if run.epochs else run.trouble for run in runs],
    )
    table.add_row("Time per epoch", *[median_of(run, "seconds") for run in runs])
    table.add_row(
        "  in which the training waited for input", *[median_of(run, "waited_s") for run in runs]
    )
    for words, fact in (
        ("Shared memory planned", "planned"),
        ("Shared memory really used", "used"),
    ):
        table.add_row(words, *[megabytes(run.memory.get(fact)) for run in runs])
    table.caption = (
        f"An epoch: {options.samples} crops to train on, and {options.samples // 4} held-out ones "
        f"to check, in batches of {options.batch_size}, by {options.workers} workers. Times: "
        "medians of the epochs after the first. Keras' enqueuer plans no memory; it may queue "
        f"{QUEUED_BATCHES} batches."
    )
    return table


def start(feed: str, options: argparse.Namespace) -> Run:
    """Return a training that has been started and waits for its turn."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in vars(options).items()]
    script = Path(__file__).with_name("demo_train.py")
    return Run(feed, [sys.executable, str(script), f"--feed={feed}", *given])


def train_both(options: argparse.Namespace, console: Console) -> list[Run]:
    """Return both trainings when they have ended, whatever ended them."""
    runs = [start(feed, options) for feed in TITLES]
    try:
        take_turns(runs, options, console)
    except KeyboardInterrupt:
        sys.exit("demo: stopped")
    finally:
        for run in runs:
            run.stop()
    return runs


def main() -> None:
    """Run both trainings, print the table, and say where the picture is."""
    options = read_options()
    console = Console(highlight=False)
    console.print(
        "Training the same small CNN twice, with ringfeed and with Keras' own enqueuer, in turns: "
        f"{options.epochs} epochs each."
    )
    began = time.monotonic()
    runs = train_both(options, console)
    took_s = time.monotonic() - began
    for run in runs:
        if run.trouble:
            print(
                f"demo: the training with {TITLES[run.feed]} {run.trouble}. {run.last_words}",
                file=sys.stderr,
            )
    if runs[0].trouble:
        sys.exit(1)
    console.print(comparison(runs, options))
    console.print(
        f"{options.output} shows a batch, and what the slots did. This took {took_s:.0f} s."
    )


if __name__ == "__main__":
    main()
