"""`ringfeed.tools`: a loader beside its replacements. Reports are of figures that are made up."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import ringfeed
from ringfeed.tools.loaders import LoaderProfile, Stages, limits_of, profile_loader, profile_subject
from ringfeed.tools.main import main
from ringfeed.tools.reading import (
    Limits,
    Memory,
    Reading,
    children,
    cpu_s,
    in_a_line,
    memory,
    size_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.once

BATCH = (np.zeros((4, 10), np.float32), np.zeros(4, np.int64))
SOON = Limits(samples=20, seconds=30.0)


# ---- the report ----

OWN = Reading(
    "torch", 20, 640, 19_267_584, 0.8, 0.04, 0.011, 0.075, 2, Memory(300_000_000, 90_000_000)
)
RING = Reading(
    *("ringfeed", 20, 640, 19_267_584, 0.4, 0.02, 0.0011, 0.04, 3, Memory(150_000_000, 90_000_000)),
    notes=("runs over ringfeed: 2 worker processes, 5 slots, 96.3 MB of shared memory",),
    change="from ringfeed.torch import DataLoader",
)
STAGES = Stages(8, 0.4, 0.39, 0.15, 0.05)
PROFILE = LoaderProfile(
    "DataLoader of Pictures (batch_size=32, num_workers=2)", "dataset[i]", (OWN, RING), OWN, STAGES
)


def test_the_report_as_a_user_reads_it() -> None:
    """All of it."""
    assert repr(PROFILE) == str(PROFILE)
    assert str(PROFILE).splitlines() == [
        "DataLoader of Pictures (batch_size=32, num_workers=2)",
        (
            "640 samples in 20 batches, 19.3 MB each, taken as fast as they come, without a step "
            "of training"
        ),
        "",
        "                                 torch          ringfeed",
        "a batch                        40.0 ms    20.0 ms  x0.50",
        "samples a second                   800      1,600  x2.00",
        "first batch                   800.0 ms   400.0 ms  x0.50",
        "CPU a batch: this process      11.0 ms     1.1 ms  x0.10",
        "CPU a batch: workers           75.0 ms    40.0 ms  x0.53",
        "processes started                    2          3  x1.50",
        "their own memory              300.0 MB   150.0 MB  x0.50",
        "their part of shared memory    90.0 MB    90.0 MB  x1.00",
        "",
        "a batch takes 75.0 ms in one process: dataset[i] 67%, collate 25%, transfer 8%",
        "ringfeed: 2.0 times as fast as torch; 52% less CPU time",
        "ringfeed: runs over ringfeed: 2 worker processes, 5 slots, 96.3 MB of shared memory",
        "to change: from ringfeed.torch import DataLoader",
    ]


def words(**changed: Any) -> list[str]:
    """Return the lines under the table of a profile like the one above."""
    return str(replace(PROFILE, **changed)).split("\n\n")[2].splitlines()


def test_where_it_is_slower() -> None:
    """The table and the words say so, and nothing is to be changed."""
    slow = replace(RING, batch_s=0.08, own_cpu_s=0.05, worker_cpu_s=0.1, notes=())
    told = words(readings=(OWN, slow), stages=Stages(8, 0.1, 0.1, 0.3))
    assert told == [
        "a batch takes 50.0 ms in one process: dataset[i] 25%, collate 75%",
        "ringfeed: slower than torch, 0.50 times as fast; 74% more CPU time",
        "no other is clearly faster: for speed alone, keep torch",
    ]


def test_where_it_is_as_fast() -> None:
    """A difference that may be chance is none."""
    told = words(
        readings=(OWN, replace(RING, batch_s=0.038, own_cpu_s=0.011, worker_cpu_s=0.074, notes=()))
    )
    assert told[1] == "ringfeed: as fast as torch, within 10%; as much CPU time"
    assert told[2] == (
        "most of it is dataset[i], which costs the same in any loader: make it cheaper, or add "
        "workers"
    )
    assert told[-1] == "no other is clearly faster: for speed alone, keep torch"


def test_where_it_cannot_be_read() -> None:
    """Its column is empty, and a line says why."""
    failed = Reading("ringfeed", failure="ShipError: dataset.file is an open file")
    text = str(replace(PROFILE, readings=(OWN, failed), stages=None, why="OSError: no such file"))
    assert [line.rstrip() for line in text.splitlines()][5].split() == [
        "samples",
        "a",
        "second",
        "800",
        "-",
    ]
    assert "where the time of a batch goes is not known: OSError: no such file" in text
    assert "ringfeed: ShipError: dataset.file is an open file\n" in text


def test_what_the_framework_makes_itself() -> None:
    """It is not compared: these are the loader's own batches again."""
    left = replace(RING, fell_back=True, notes=("is left to torch: dataset.f is an open file",))
    assert words(readings=(OWN, left))[1:] == [
        "ringfeed: is left to torch: dataset.f is an open file",
        (
            "most of it is dataset[i], which costs the same in any loader: make it cheaper, or "
            "add workers"
        ),
        "no other is clearly faster: for speed alone, keep torch",
    ]


def test_an_error_of_a_worker_of_torch() -> None:
    """Its last line is the error."""
    text = (
        "Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
        "last):\nOSError: no\n"
    )
    assert in_a_line(OSError(text)) == "OSError: no"


def test_what_waits_and_what_was_cold() -> None:
    """Waiting asks for workers, and a first reading that took longer is told of."""
    told = words(cold=replace(OWN, batch_s=0.1), stages=Stages(8, 0.4, 0.1))
    assert told[:3] == [
        "a first reading, with cold caches, took 2.5 times as long a batch: it is not in the table",
        "a batch takes 50.0 ms in one process: dataset[i] 100%",
        "75% of dataset[i] waits rather than computes: more workers than CPUs help",
    ]


def test_a_first_batch_that_comes_late() -> None:
    """It is told of, with the reason."""
    told = words(readings=(OWN, replace(RING, first_s=3.9)))
    assert "ringfeed: the first batch comes 3.1 s later, once: workers import what it needs" in told


def test_too_few_batches() -> None:
    """A rate is not made up from two batches."""
    few = replace(OWN, batches=2, batch_s=math.nan, own_cpu_s=math.nan, worker_cpu_s=math.nan)
    assert words(readings=(few, replace(RING, batch_s=math.nan, notes=()))) == [
        "2 batches are too few to tell a rate: see the first batch alone",
        "a batch takes 75.0 ms in one process: dataset[i] 67%, collate 25%, transfer 8%",
        (
            "most of it is dataset[i], which costs the same in any loader: make it cheaper, or "
            "add workers"
        ),
        "read more than this to choose by speed",
    ]


# ---- readings ----


def reading_of(
    label: str, begin: Callable[[], Iterator[Any]], ended: Callable[[], object], **known: Any
) -> Reading:
    """Return the reading of a loader of any function, which notes that it was ended."""

    @contextmanager
    def opened(_: Reading) -> Iterator[Iterator[Any]]:
        yield begin()
        ended()

    return Reading(label, opened=opened, **known)


class Made:
    """A loader of any function."""

    name = "loader of a test"
    reader = "dataset[i]"

    def __init__(
        self, begin: Callable[[], Iterator[Any]], other: Callable[[], Iterator[Any]] | None = None
    ) -> None:
        self.begin = begin
        self.other = other or begin
        self.ended: list[str] = []
        self.kept = 0

    def readings(self) -> list[Reading]:
        return [
            reading_of("own", self.begin, partial(self.ended.append, "own")),
            reading_of(
                "other", self.other, partial(self.ended.append, "other"), change="another line"
            ),
        ]

    @contextmanager
    def untouched(self) -> Iterator[None]:
        self.kept += 1
        state = random.getstate()
        yield
        random.setstate(state)

    def stages(self) -> Iterator[Stages]:
        while True:
            yield Stages(1, 0.2, 0.1)


def batches(count: int, seconds: float = 0.0) -> Iterator[Any]:
    """Give so many batches."""
    for _ in range(count):
        time.sleep(seconds)
        random.random()  # noqa: S311 - what a dataset draws
        yield BATCH


def test_readings_of_a_loader() -> None:
    """The loader is read twice and the other once, each ended; nothing is drawn in the end."""
    before = random.getstate()
    subject = Made(partial(batches, 7))
    found = profile_subject(subject, SOON)
    assert [reading.label for reading in found.readings] == ["own", "other"]
    assert [(reading.batches, reading.samples, reading.size) for reading in found.readings] == [
        (7, 28, 192)
    ] * 2
    assert all(
        reading.own_cpu_s >= 0 and 0 < reading.batch_s < reading.samples_per_s
        for reading in found.readings
    )
    assert found.stages == Stages(7, pytest.approx(1.4), pytest.approx(0.7))
    assert (subject.ended, subject.kept) == (["own", "own", "other"], 4)
    assert random.getstate() == before


def test_an_infinite_loader_is_read_up_to_the_limit() -> None:
    """Samples, batches and a second, or the time."""
    assert profile_subject(Made(partial(batches, 10**9)), Limits(4, 0.02)).own.batches > 1


def fails(count: int) -> Iterator[Any]:
    """Give some batches, and raise."""
    yield from batches(count)
    message = "no such file\nat all"
    raise OSError(message)


@pytest.mark.parametrize(
    ("begin", "text"),
    [
        (
            partial(fails, 0),
            (
                "the loader of a test fails as it is, so there is nothing to compare with: "
                "OSError: no such file"
            ),
        ),
        (
            partial(fails, 3),
            "the loader of a test fails as it is after 3 batches, so there is nothing to compare "
            "with: OSError: no such file",
        ),
        (partial(batches, 0), "the loader of a test is empty: there is no batch to read"),
    ],
)
def test_a_loader_that_cannot_be_read(begin: Callable[[], Iterator[Any]], text: str) -> None:
    """One error, in bounded time, and the loader is ended."""
    with pytest.raises(ringfeed.RingfeedError) as caught:
        profile_subject(subject := Made(begin), SOON)
    assert str(caught.value) == text
    assert subject.ended == ["own"]


def test_another_that_fails() -> None:
    """The loader's own figures are told all the same."""
    found = profile_subject(Made(partial(batches, 7), partial(fails, 2)), SOON)
    assert (found.own.batches, found.own.failure) == (7, "")
    assert found.readings[1].failure == "OSError: no such file"
    assert found.best is found.own


def test_few_samples() -> None:
    """Two batches tell no rate."""
    assert math.isnan(profile_subject(Made(partial(batches, 2)), SOON).own.batch_s)


def test_rows_that_are_known_are_not_counted() -> None:
    """The size of a batch, up to the samples that there are."""
    reading = reading_of("own", partial(batches, 3), lambda: None, rows=5, most=13)
    assert (reading.read(SOON), reading.samples) == (None, 13)


def test_a_loader_that_cannot_be_ended() -> None:
    """Its end may fail."""
    reading = reading_of("own", partial(batches, 3), partial(next, iter(())))
    assert (reading.read(SOON), reading.batches) == (None, 3)


class Pair(NamedTuple):
    """A batch in a NamedTuple."""

    x: Any
    names: list[str]


class OfTensorFlow:
    """What stands for a tensor without nbytes."""

    shape = (6, 2)
    dtype = type("dtype", (), {"size": 8})()


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (BATCH, (192, 4)),
        ({"x": np.zeros((3, 2), np.uint8), "n": 5}, (6, 3)),
        (Pair(np.zeros(2, np.uint8), ["a", "bc"]), (5, 2)),
        (["a", "b", "cd"], (4, 3)),
        ([np.zeros((7, 2), np.uint8)] * 2, (28, 7)),
        (OfTensorFlow(), (96, 6)),
        (object(), (0, 1)),
        ([], (0, 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_size_of_a_batch(batch: Any, size: tuple[int, int]) -> None:
    """Bytes of arrays and text, and the rows of the first."""
    assert size_of(batch) == size


# ---- processes ----


def test_processes_and_what_they_use() -> None:
    """One that runs is seen with its memory; what it has used is known after its end, too."""
    others, before_s = children(), cpu_s(())
    code = "sum(range(3_000_000)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (own,) = found = children() - others
        assert own.pid == process.pid
        private, shared = memory(found)
        assert private > 10**6
        assert shared >= 0
        assert cpu_s(found) > before_s
        process.communicate(b"\n", timeout=60)
    assert cpu_s(()) > before_s
    assert memory(found) == (0, 0)


# ---- the command ----


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give either module:name of a dataset or a loader, or --script FILE"),
        (
            ["a:b", "--script", "c.py"],
            "give either module:name of a dataset or a loader, or --script FILE",
        ),
        (
            ["--script", "missing.py"],
            "there is no script 'missing.py'; give a file, as in --script train.py --epochs 1",
        ),
        (
            ["--seconds", "0", "--script", "missing.py"],
            "seconds=0.0 must be positive, the time of each reading",
        ),
    ],
)
def test_what_cannot_be_profiled(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line."""
    assert main(["profile", *arguments]) == 2
    assert capsys.readouterr().err == f"ringfeed profile: {text}\n"


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (
            (
                "import sys; assert sys.argv[1:] == ['--epochs', '2'] and __name__ == '__main__', "
                "sys.argv"
            ),
            "train.py has ended, and read neither a torch DataLoader nor a Keras PyDataset in "
            "this process; loaders that are read in processes that it starts, and other kinds, "
            "are not seen",
        ),
        ("raise SystemExit(3)", "train.py exited with 3 before a loader was read"),
        ("raise OSError('no such file')", "train.py raised OSError before a loader was read"),
        ("import this is wrong", "train.py raised SyntaxError before a loader was read"),
    ],
)
def test_a_script_without_a_loader(
    script: str,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs with its arguments; its error is shown from its own line on, and nothing stays."""
    path = tmp_path / "train.py"
    path.write_text(script)
    monkeypatch.setattr(sys, "argv", argv := ["ringfeed"])
    before, finders = [*sys.path], [*sys.meta_path]
    assert main(["profile", "--script", str(path), "--epochs", "2"]) == 2
    told = capsys.readouterr().err
    assert told.endswith(f"ringfeed profile: {text}\n")
    assert "script.py" not in told
    assert (sys.argv, sys.path, sys.meta_path) == (argv, before, finders)


def test_without_psutil(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is missing is named, and how it is had."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    for name in ("reading", "loaders", "script"):
        monkeypatch.delitem(sys.modules, f"ringfeed.tools.{name}", raising=False)
    assert main(["profile", "--script", "train.py"]) == 2
    assert capsys.readouterr().err == (
        "ringfeed profile: what a loader uses is read by the package psutil, which is missing: "
        "pip install 'ringfeed[top]'\n"
    )


def test_what_is_no_loader() -> None:
    """Its class is named, and where to give it."""
    with pytest.raises(TypeError) as caught:
        profile_loader([1, 2])
    assert str(caught.value) == (
        "a list is neither a torch DataLoader nor a Keras PyDataset; give a dataset of samples to "
        "`ringfeed profile module:dataset`"
    )


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0, 1.0), "samples=0 must be at least 1"),
        (("3", 1.0), "samples='3' must be an int"),
        ((3, -1.0), "seconds=-1.0 must be positive, the time of each reading"),
    ],
)
def test_numbers_of_a_reading(numbers: tuple[Any, Any], text: str) -> None:
    """Checked before anything is read."""
    with pytest.raises((TypeError, ValueError)) as caught:
        limits_of(*numbers)
    assert str(caught.value) == text
