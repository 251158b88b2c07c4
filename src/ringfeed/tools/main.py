"""The command ``ringfeed``: what the package knows, for the terminal.

ringfeed plan --shape 256,256,3 --dtype uint8,float32 --batch-size 64,128 --slots 2,4
ringfeed plan mymodule:dataset --batch-size 128 --memory 2GB
ringfeed plan train.py:dataset --batch-size 128
ringfeed profile mymodule:dataset --batch-size 128
ringfeed profile --script train.py --epochs 1
ringfeed check mymodule:dataset
ringfeed migrate train.py
ringfeed top 4242
ringfeed report run.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from ringfeed import __version__
from ringfeed._classes import class_names
from ringfeed._progress import showing, tell
from ringfeed.errors import RingfeedError
from ringfeed.tools.place import load

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILED = 2  # the exit status of argparse's own refusals
LOADERS = {"torch.DataLoader", "keras.PyDataset"}
PLACE = "module:name or script.py:name"
ONE_DATASET = (
    "--json says what a sample costs: give module:name of a dataset, no loader and no --script"
)
NO_TRACE = (
    "ringfeed trace: there is no such command, since a program traces itself: `with "
    'loader.trace("run.html"):` around its loop writes the page of the run; where it says '
    '"run.json", `ringfeed report run.json` makes the page\n'
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    What cannot be done is one line on standard error.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if "trace" in words[:1]:
        sys.stderr.write(NO_TRACE)
        return FAILED
    parser = _parser()
    chosen = parser.parse_args(words)
    if chosen.command is None:
        parser.print_help()
        return 0
    try:
        return int(chosen.run(chosen) or 0)
    except (RingfeedError, ValueError, TypeError, ImportError, AttributeError) as error:
        sys.stderr.write(f"ringfeed {chosen.command}: {error}\n")
        return FAILED
    except BrokenPipeError:  # the reader has closed the pipe; drop what is still to be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringfeed", description="Feed a training loop at memory speed."
    )
    parser.add_argument("--version", action="version", version=f"ringfeed {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    _add_plan(
        commands.add_parser("plan", help="the memory that a loader will take, before there is one")
    )
    _add_profile(
        commands.add_parser(
            "profile", help="where the time of a sample goes, before workers are added"
        )
    )
    _add_check(
        commands.add_parser("check", help="what is wrong with a dataset, before it is trained on")
    )
    _add_migrate(
        commands.add_parser("migrate", help="what a script of another loader has to change")
    )
    _add_top(commands.add_parser("top", help="what a running loader of another process is at"))
    _add_report(
        commands.add_parser(
            "report", help='a page that shows a run, from what loader.trace("run.json") wrote'
        )
    )
    return parser


# ---- plan ----


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = "Several values, with commas between, give a line each."
    parser.add_argument(
        "dataset", nargs="?", help=f"{PLACE} of a dataset, or of a function that returns it"
    )
    parser.add_argument(
        "--spec", help=f"{PLACE} of what a sample of the dataset looks like, as spec= of Loader"
    )
    parser.add_argument(
        "--shape", action="append", type=_ints, help="of a sample, as 256,256,3; may be repeated"
    )
    parser.add_argument(
        "--dtype", type=_words, default=["uint8"], help="of a sample, as uint8,float32"
    )
    parser.add_argument(
        "--batch-size", type=_sizes, default=[32], help="as 64,128; none for whole batches"
    )
    parser.add_argument("--slots", type=_ints, help="batches that exist at once, as 2,4,10")
    parser.add_argument("--memory", help="instead of --slots, what all may take, as 2GB")
    parser.add_argument("--workers", type=int, help="default: the CPUs that this process may use")
    parser.set_defaults(run=_plan)


def _plan(chosen: argparse.Namespace) -> None:
    from ringfeed.tools.plan_table import plan  # noqa: PLC0415 - NumPy takes long to import

    with showing(ticks=True):
        tell(f"loading {chosen.dataset}")
        dataset = None if chosen.dataset is None else load(chosen.dataset)
        spec = None if chosen.spec is None else load(chosen.spec)
        options = _options(chosen, "shape", "dtype", "batch_size", "slots", "memory", "workers")
        found = plan(dataset, spec=spec, **options)
    _say(found)


# ---- profile ----


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads samples of a dataset in this process for some seconds, half of them under "
        "cProfile. A torch DataLoader or a Keras PyDataset is read as it is, and by ringfeed in "
        "its place; with --script, the first that a script reads."
    )
    place = f"{PLACE} of a dataset, a DataLoader or a PyDataset, or of a function that returns it"
    parser.add_argument("dataset", nargs="?", help=place)
    parser.add_argument(
        "--batch-size", type=_count, default=32, help="samples a batch; none for whole batches"
    )
    parser.add_argument(
        "--workers", type=int, help="for the forecast; default: the CPUs that this process may use"
    )
    seconds = (
        "how long to measure, or to read a loader, which is read three or four times (default: 10)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help=seconds)
    parser.add_argument(
        "--samples", type=int, default=300, help="that end a reading of a loader (default: 300)"
    )
    parser.add_argument(
        "--json", action="store_true", help="what a sample of a dataset costs, in JSON"
    )
    script = "a training script and its own arguments; comes last"
    parser.add_argument("--script", nargs=argparse.REMAINDER, metavar="FILE ...", help=script)
    parser.set_defaults(run=_profile)


def _profile(chosen: argparse.Namespace) -> None:
    if (chosen.dataset is None) == (not chosen.script):
        raise ValueError("give either module:name of a dataset or a loader, or --script FILE")
    dataset = None if chosen.script else load(chosen.dataset)
    if dataset is not None and not LOADERS & class_names(dataset):
        from ringfeed.tools.profile import profile  # noqa: PLC0415

        options = _options(chosen, "batch_size", "workers", "seconds")
        with showing(ticks=True):
            sample = profile(dataset, chosen.dataset, **options)
        _say(json.dumps(sample.as_json()) if chosen.json else sample)
        return
    if chosen.json:
        raise ValueError(ONE_DATASET)
    from ringfeed.tools.loaders import limits_of, profile_loader  # noqa: PLC0415
    from ringfeed.tools.script import in_time, profile_script  # noqa: PLC0415

    limits = limits_of(chosen.samples, chosen.seconds)
    if chosen.script:
        profile_script(chosen.script, limits)
    else:
        with showing(), in_time(limits):  # workers are forked: no thread beside
            found = profile_loader(dataset, **_options(chosen, "samples", "seconds"))
        _say(found)


# ---- check ----


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads some samples of a dataset twice, in a fresh process and in a fork, and says what is "
        "wrong, where, and what to do next. Exit status 1: there is a fault; notes are none."
    )
    parser.add_argument("dataset", help=f"{PLACE} of a dataset, or of a function that returns it")
    batch_size = "none for a dataset of whole batches; a Keras PyDataset is known to be one"
    parser.add_argument("--batch-size", type=_count, default=32, help=batch_size)
    seconds = "that a sample may take, and each process about as long (default: 10)"
    parser.add_argument("--seconds", type=float, default=10.0, help=seconds)
    parser.set_defaults(run=_check)


def _check(chosen: argparse.Namespace) -> bool:
    from ringfeed.testing.checking import examine  # noqa: PLC0415 - see _plan()

    with showing():  # a process is forked: no thread beside
        tell(f"loading {chosen.dataset}")
        options = _options(chosen, "batch_size", "seconds")
        report = examine(load(chosen.dataset), chosen.dataset, **options)
    _say(report)
    return report.faults > 0


# ---- migrate ----


def _add_migrate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints a diff for a script that uses torch's DataLoader, Keras' PyDataset, from_generator "
        "of tf.data, or Grain; and on standard error a line on each use: what to know, or why it "
        "is left alone."
    )
    parser.add_argument("script", help="a file, or -")
    parser.set_defaults(run=_migrate)


def _migrate(chosen: argparse.Namespace) -> None:
    from ringfeed.tools.migrate import migrate  # noqa: PLC0415 - it needs an optional package

    name = chosen.script
    try:
        # A Path would be imported for this alone.
        with sys.stdin if name == "-" else open(name, encoding="utf-8") as file:  # noqa: PTH123
            diff, lines = migrate(file.read(), file.name)
    except (OSError, RingfeedError) as error:
        raise RingfeedError(f"{name}: {error}") from None
    sys.stdout.write(diff)
    sys.stderr.writelines(lines)


# ---- top ----


def _add_top(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Looks at the shared memory of a running loader, without disturbing it: slots, workers, "
        "waits, rates, live in the terminal until q or Ctrl-C. Without a process, lists yours "
        "that have a running loader."
    )
    parser.add_argument("pid", nargs="?", type=int, help="the process that trains")
    parser.add_argument(
        "--interval", type=float, default=1.0, help="seconds between two looks (default: 1)"
    )
    parser.add_argument(
        "--loader", type=int, help="one of several in the process, from 1 on; default: all"
    )
    parser.add_argument("--once", action="store_true", help="write one picture as plain text")
    ranks = "one table of all ranks of this host, and whose data is late; with a process: its own"
    parser.add_argument("--ranks", action="store_true", help=ranks)
    parser.set_defaults(run=_top)


def _top(chosen: argparse.Namespace) -> None:
    from ringfeed.system.machine import check_shared  # noqa: PLC0415 - see below
    from ringfeed.tools import discover  # noqa: PLC0415 - of no use to the other commands

    check_shared("a look at another process", "print(loader.stats()) in that process")
    if chosen.pid is None and not chosen.ranks:
        _say(discover.running())
        return
    try:
        # It needs an optional package.
        from ringfeed.tools.top import top, top_ranks  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise RingfeedError(
            "the picture is drawn by the package rich, which is missing: pip install "
            "'ringfeed[top]'"
        ) from error
    options: dict[str, Any] = {"interval_s": chosen.interval, "once": chosen.once}
    ending = (
        top_ranks(chosen.pid, **options)
        if chosen.ranks
        else top(chosen.pid, number=chosen.loader, **options)
    )
    if ending:
        _say(ending)


# ---- report ----


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Makes one page of a trace, which any browser shows without a network: the timeline of "
        "workers, slots and consumer, the stalls, the memory, what limits the run and what to "
        "change."
    )
    parser.add_argument("trace", help='the file that `with loader.trace("run.json"):` has written')
    parser.add_argument(
        "-o", "--output", metavar="PAGE", help="the page (default: run.html beside run.json)"
    )
    parser.set_defaults(run=_report)


def _report(chosen: argparse.Namespace) -> None:
    from ringfeed.monitor.page import report  # noqa: PLC0415 - see _plan()

    try:
        _say(report(chosen.trace, chosen.output))
    except OSError as error:
        raise RingfeedError(f"the page cannot be written: {error}") from None


# ---- what is written in the terminal ----


def _options(chosen: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(chosen, name) for name in names}


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")


def _ints(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of whole numbers; write them as 64,128"
        ) from None


def _sizes(text: str) -> list[int] | None:
    return None if text == "none" else _ints(text)


def _count(text: str) -> int | None:
    return None if text == "none" else int(text)


def _words(text: str) -> list[str]:
    return text.split(",")
