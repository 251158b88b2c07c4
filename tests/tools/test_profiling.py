"""`ringfeed.tools.profile`: where a sample's time goes, as a whole report of made-up times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed.tools.profile import TIMED, Profile, profile


def timed(*samples: tuple[int, float, float, float]) -> Any:
    """Return samples with their times: index, seconds in all, on a processor, and in its queue."""
    return np.array([*samples], TIMED).view(np.recarray)


class Rows:
    """One index is slow, and waits."""

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if index == 7:
            time.sleep(0.2)
        return {"x": _sorted(np.arange(1000.0)[::-1]), "y": ringfeed.rng().random()}


def _sorted(values: Any) -> Any:
    return np.sort(values)


class Batches:
    """Batches, the last one shorter."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return np.zeros((3 if index == 3 else 16, 10), np.float32), np.zeros(
            3 if index == 3 else 16, np.int64
        )


def test_every_sample_once_if_there_is_time() -> None:
    """Each index is timed once, in a shuffled order, and the slow one is named first."""
    found = profile(rows := Rows(), "rows", batch_size=8, workers=2, seconds=100)
    assert sorted(sample.index for sample in found.samples) == list(range(20))
    assert (
        rows.asked[2:22] == [sample.index for sample in found.samples] != list(range(20))
    )  # after probe and warm-up
    assert max(found.samples, key=lambda sample: sample.read_s).index == 7
    assert found.sample_size == 8004
    assert "(__getitem__)" in found.functions
    assert "dataset[7] " in str(found).split("slowest: ")[1].split(",")[0]


def test_it_ends_in_time() -> None:
    """With little time a few samples must do."""
    assert 3 <= len(profile(Rows(10**9), seconds=1e-9).samples) <= 20


def test_whole_batches() -> None:
    """batch_size=None times batches, of whatever length."""
    found = profile(Batches(), "batches", batch_size=None, workers=1, seconds=100)
    assert len(found.samples) == 4
    assert found.sample_size == 16 * 48
    lines = str(found).splitlines()
    assert lines[0] == "4 batches of batches, one after another in this process"
    assert re.fullmatch(
        r"a batch: .+ with one worker, at best .+ with 1 worker \(.+ a second\)", lines[5]
    )


def test_the_report_as_a_user_reads_it() -> None:
    """All of it, from times that are made up."""
    samples = timed((4, 0.002, 0.0005, 0.0), (2, 0.002, 0.0005, 0.0), (17, 0.5, 0.5, 0.0))
    functions = "ncalls  tottime  percall  cumtime  percall filename:lineno(function)"
    assert str(Profile("mine:pictures", 64, 4, 150528, samples, 0.0005, functions)) == (
        "3 samples of mine:pictures, one after another in this process\n"
        "a sample        168.5 ms (median 2.5 ms, 95 % within 450.7 ms)\n"
        "  dataset[i]  99.7%, 1% of it waiting rather than computing\n"
        "  the write    0.3%, 150.5 kB at 301.1 MB a second\n"
        "\n"
        "a batch of 64: 10.8 s with one worker, at best 2.7 s with 4 workers (24 a second)\n"
        "\n"
        "slowest: dataset[17] 500.0 ms, dataset[4] 2.0 ms, dataset[2] 2.0 ms\n"
        "\n"
        "where dataset[i] spends it, callees apart\n"
        "ncalls  tottime  percall  cumtime  percall filename:lineno(function)"
    )


def test_a_dataset_that_waits() -> None:
    """What waits rather than computes is better off with more workers than CPUs."""
    text = str(Profile("rows", 2, 2, 8, timed((0, 0.01, 0.001, 0.0)), 0.0, ""))
    assert (
        "much of it is waiting: concurrency= has many samples in flight, and more workers than "
        "CPUs help" in text.splitlines()
    )


@pytest.mark.parametrize(
    ("dataset", "error", "text"),
    [
        (
            (np.zeros(3), np.zeros(3)),
            ValueError,
            (
                "a dataset of arrays has no __getitem__ to look into: its rows are copied by "
                "ringfeed itself"
            ),
        ),
        (
            Rows(0),
            ringfeed.SpecError,
            "the dataset is empty, so there is no sample to infer the spec from; give spec=",
        ),
    ],
)
def test_refusals(dataset: Any, error: type[Exception], text: str) -> None:
    """What cannot be measured is refused in words."""
    with pytest.raises(error) as caught:
        profile(dataset)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch_size": "5"}, "batch_size='5' must be an int"),
        ({"workers": True}, "workers=True must be an int"),
        ({"seed": "5"}, "seed='5' must be an int"),
        (
            {"seconds": "5"},
            "seconds='5' must be a number of seconds, the time for which samples are read",
        ),
        ({"seconds": -1}, "seconds=-1 must be positive, the time for which samples are read"),
    ],
    ids=str,
)
def test_numbers_that_are_refused(settings: dict[str, Any], text: str) -> None:
    """A number that means nothing is refused before anything is read."""
    with pytest.raises((TypeError, ValueError)) as caught:
        profile([np.zeros(3)] * 8, **settings)
    assert str(caught.value) == text


class Failing(Rows):
    """One sample cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            message = "no such file"
            raise OSError(message)
        return np.zeros(3)


def test_a_sample_that_fails_is_named() -> None:
    """What a loader would raise for it is raised, with the dataset's own error as its cause."""
    with pytest.raises(ringfeed.RingfeedError) as caught:
        profile(Failing(), seconds=100)
    assert str(caught.value).startswith("dataset[5] raised OSError: no such file")
    assert isinstance(caught.value.__cause__, OSError)


def test_the_write_is_measured() -> None:
    """A loader has written each sample, and says how long that took."""
    found = profile([np.zeros((64, 64, 3), np.uint8) for _ in range(9)], seconds=100)
    assert found.sample_size == 64 * 64 * 3
    assert found.write_s > 0


def test_a_busy_machine_is_no_source_that_waits() -> None:
    """Time in a processor's queue is no wait of the sample's, and gives no advice."""
    samples = timed(*((index, 0.01, 0.004, 0.005) for index in range(8)))
    text = str(Profile("rows", 2, 2, 8, samples, 0.0001, ""))
    assert text.splitlines()[2] == "  dataset[i]  99.0%, 10% of it waiting rather than computing"
    assert "concurrency=" not in text


class Computing:
    """Samples that compute for some milliseconds."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        until_s = time.thread_time() + 0.02
        while time.thread_time() < until_s:
            pass
        return index


def test_the_queue_of_a_processor_is_seen() -> None:
    """Beside another process on its one CPU, a sample that computes waits for the CPU alone."""
    usable = os.sched_getaffinity(0)
    other = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        for pid in (0, other.pid):
            os.sched_setaffinity(pid, {min(usable)})
        samples = profile(Computing(), batch_size=2, seconds=100).samples
    finally:
        os.sched_setaffinity(0, usable)
        other.kill()
        other.communicate()
    read_s, cpu_s, queued_s = (samples[name].sum() for name in ("read_s", "cpu_s", "queued_s"))
    assert queued_s > 0.0
    assert cpu_s + queued_s > 0.9 * read_s
