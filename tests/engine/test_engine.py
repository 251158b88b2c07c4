"""What goes wrong in a sample or a worker, and what the consumer is told.

The whole text of each error.
"""

from __future__ import annotations

import re
import time
import traceback
from typing import Any

import numpy as np
import pytest

import ringfeed
from ahead import loader_with
from datasets import Misbehaving, Oracle, check, flat
from ringfeed.engine.settling import Settler
from ringfeed.monitor._snapshot import Observer
from watching import lose_patience, pool_of, wait_until

BACKENDS = [
    {"workers": 0},
    {"workers": 2, "backend": "thread"},
    {"workers": 2, "backend": "spawn"},
    {"workers": 2, "backend": "fork"},
    {"workers": 2, "backend": "process"},
]

ERRORS = {
    "raises": (ringfeed.WorkerError, "dataset[17] raised KeyError: 'bad seventeen'"),
    "exits": (ringfeed.WorkerError, "dataset[17] raised SystemExit: 3"),
    "wrong_shape": (
        ringfeed.SpecError,
        "dataset[17]: sample[0] has shape (5, 8), expected (5, 7); every sample must have the "
        "shape of the spec: crop, pad or resize it in __getitem__; or allow many shapes: "
        "spec= with variable=, form='pad' or form='ragged'",
    ),
    "wrong_dtype": (
        ringfeed.SpecError,
        "dataset[17]: sample[0] has dtype float32, expected uint8; convert it in __getitem__, or "
        "give this dtype in spec=",
    ),
    "wrong_structure": (
        ringfeed.SpecError,
        (
            "dataset[17]: sample is a list of 3, expected a tuple of 3; return the same structure "
            "for every index"
        ),
    ),
    "too_large": (
        ringfeed.SpecError,
        "dataset[17]: sample[1] is the int 1180591620717411303424, expected a value for dtype "
        "int64; a Python int goes into an integer or float dtype that holds it exactly: convert "
        "it in __getitem__, or give another dtype in spec=",
    ),
}


def filled(loader: ringfeed.Loader) -> int:
    """Return how many samples have been handed over."""
    assert loader._runner.engine is not None
    ring = loader._runner.engine.ring
    return sum(worker.samples for worker in Observer(ring).workers())


def is_inside(loader: ringfeed.Loader, index: int) -> bool:
    """Whether a worker is inside this sample."""
    assert loader._runner.engine is not None
    return any(worker.inside == index for worker in loader._runner.engine.observer.workers())


def collect(loader: Any) -> list[Any]:
    """Return an epoch's batches as lists of indices, and its errors in their places."""
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            found.append(check(next(iterator)))
        except StopIteration:
            return found
        except ringfeed.RingfeedError as error:
            found.append(error)


@pytest.mark.parametrize("how", BACKENDS, ids=str)
@pytest.mark.parametrize("deed", ERRORS)
def test_a_bad_sample_is_named_in_its_place(deed: str, how: dict[str, Any]) -> None:
    """The batch of a bad sample is an error with its whole text.

    The batches around it are whole.
    """
    kind, text = ERRORS[deed]
    with ringfeed.Loader(Misbehaving(deed), batch_size=8, **how) as loader:
        found = collect(loader)
    assert [type(entry) for entry in found] == [list, list, kind, list, list]
    assert str(found[2]) == text
    assert found[:2] + found[3:] == [list(range(first, first + 8)) for first in (0, 8, 24, 32)]


def test_the_cause_shows_the_workers_traceback() -> None:
    """The exception itself is the cause, with the worker's traceback."""
    with ringfeed.Loader(Misbehaving("raises"), batch_size=8, workers=1) as loader:
        error = collect(loader)[2]
    assert type(error.__cause__) is KeyError
    assert error.__cause__.args == ("bad seventeen",)
    shown = "".join(traceback.format_exception(error))
    assert 'datasets.py", line' in shown
    assert "raise KeyError(message)" in shown


@pytest.mark.parametrize("deed", ["raises", "dies", "wrong_shape"])
def test_skipping_leaves_out_the_bad_sample(deed: str) -> None:
    """on_error="skip" closes the gap in order, and the statistics list what was left out."""
    with ringfeed.Loader(Misbehaving(deed), batch_size=8, workers=2, on_error="skip") as loader:
        found = collect(loader)
        assert loader.stats().skipped == [17]
        assert loader.stats().samples == 39
    assert flat(found) == [*range(17), *range(18, 40)]
    assert [len(batch) for batch in found] == [8, 8, 7, 8, 8]


def test_skipping_whole_batches() -> None:
    """A batch that is all bad is left out altogether, with batch_size=None too."""
    with ringfeed.Loader(Misbehaving("raises"), batch_size=1, workers=1, on_error="skip") as loader:
        assert len(collect(loader)) == 39


@pytest.mark.parametrize("method", ["spawn", "fork", "process"])
@pytest.mark.parametrize(
    ("deed", "end"), [("dies", "was killed by SIGKILL"), ("leaves", "exited with status 0")]
)
def test_a_sample_that_ends_its_workers(method: Any, deed: str, end: str) -> None:
    """After max_attempts deaths the sample is an error that says how; all others arrive."""
    how: Any = {"workers": 2, "backend": method, "max_attempts": 2, "ahead": False}
    with loader_with(Misbehaving(deed), batch_size=8, **how) as loader:
        found = collect(loader)
        wait_until(lambda: loader.stats().restarts == 2)
    assert (
        str(found[2]) == f"dataset[17] ended 2 workers; the last one {end}; try it with workers=0"
    )
    assert found[:2] + found[3:] == [list(range(first, first + 8)) for first in (0, 8, 24, 32)]


@pytest.mark.usefixtures("irreplaceable")
def test_workers_that_have_ended_for_good() -> None:
    """The run ends with an error; the next epoch starts afresh."""
    with ringfeed.Loader(Misbehaving("dies"), batch_size=8, workers=1) as loader:
        iterator = iter(loader)
        with pytest.raises(ringfeed.WorkerError) as caught:
            list(map(check, iterator))
        assert str(caught.value) == (
            "0 workers in a row ended before they filled anything; the last was killed by "
            "SIGKILL; look at its output above, or try workers=0"
        )
        assert check(next(iter(loader))) == list(range(8))


class Unopenable(Oracle):
    """Cannot be unpickled."""

    def __setstate__(self, state: object) -> None:
        message = "no such licence"
        raise OSError(message)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("spawn", "a worker could not open the dataset: OSError: no such licence; try workers=0"),
        ("process", "the dataset could not be unpickled for the workers: OSError: no such licence"),
    ],
)
@pytest.mark.usefixtures("nothing_left")
def test_a_dataset_that_cannot_be_opened(method: Any, text: str) -> None:
    """What fails before any sample ends the run at once, with the worker's words."""
    with (
        ringfeed.Loader(Unopenable(20), workers=2, backend=method, spec=Oracle.SPEC) as loader,
        pytest.raises(ringfeed.WorkerError) as caught,
    ):
        next(iter(loader))
    assert str(caught.value) == text
    assert type(caught.value.__cause__) is OSError


class SlowToOpen(Oracle):
    """Unpickling it takes long, as importing a framework may."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(60)


def test_workers_that_have_not_begun_are_shown() -> None:
    """Past timeout_s a StallError says so, and not that they wait for a slot."""
    loader = ringfeed.Loader(SlowToOpen(20), workers=1, timeout_s=2, spec=Oracle.SPEC)
    with loader, pytest.raises(ringfeed.StallError) as caught:
        next(iter(loader))
    first, second, *_ = str(caught.value).splitlines()
    assert first == "no batch for 2 s: no worker inside dataset[i]; raise timeout_s or look there"
    assert re.fullmatch(
        r"worker 0 \(pid \d+\): has taken no work yet: it starts, or imports what the dataset needs",
        second,
    )


@pytest.mark.parametrize("how", BACKENDS[1:4], ids=str)
def test_a_stuck_worker_is_shown(how: dict[str, Any]) -> None:
    """Past timeout_s a StallError names each worker, its sample, how long, and its Python stack."""
    loader = loader_with(Misbehaving("sleeps", length=24), batch_size=8, ahead=False, **how)
    batches = iter(loader)
    wait_until(lambda: filled(loader) == 20)  # all but the ticket of four rows that it is stuck in
    assert check(next(batches)) + check(next(batches)) == list(range(16))
    lose_patience(loader, 0.1)
    text = ""
    while (
        "in sleeps" not in text
    ):  # a worker has half a second to write its stack, which may be too short
        with pytest.raises(ringfeed.StallError) as caught:
            next(batches)
        first, _, text = str(caught.value).partition("\n")
    expected = (
        "no batch for 0.1 s: 1 of 2 workers inside dataset[i] (i = 17); raise timeout_s or look "
        "there"
    )
    if how.get("backend") == "fork":
        expected += (
            ", or give backend='process', with ringfeed.torch "
            "multiprocessing_context='forkserver': a forked worker lacks the threads that "
            "libraries such as polars and tensorstore have started here, and a call that waits "
            "for them never ends"
        )
    assert first == expected
    assert (
        len(
            re.findall(
                r"^worker [01] \((pid \d+|thread ringfeed-\d)\): waits for a slot$",
                text,
                re.MULTILINE,
            )
        )
        == 1
    )
    assert re.search(
        r"^worker [01] \(.*\): inside dataset\[17\], has been at it for \d+\.\d s$",
        text,
        re.MULTILINE,
    )
    assert re.search(r'^ +File ".*datasets\.py", line \d+,? in sleeps$', text, re.MULTILINE)
    if how.get("backend") != "thread":
        loader.close()


def test_a_stuck_worker_is_restarted() -> None:
    """on_stall="restart" kills it and runs its rows again.

    The sample counts a death each time.
    """
    with ringfeed.Loader(Misbehaving("sleeps"), batch_size=8, workers=2, max_attempts=1) as loader:
        batches = iter(loader)
        wait_until(
            lambda: filled(loader) == 28 and is_inside(loader, 17)
        )  # not in the row before it
        assert pool_of(loader).kill_stuck(1) == 1
        found = collect(batches)
        wait_until(lambda: loader.stats().restarts == 1)
    assert (
        str(found[2])
        == "dataset[17] ended its worker; the last one was killed by SIGKILL; try it with workers=0"
    )
    assert len(found) == 5


def test_a_stuck_thread_cannot_be_restarted() -> None:
    """on_stall="restart" shows a thread that is stuck, since it cannot be ended."""
    settings: Any = {"backend": "thread", "workers": 1, "on_stall": "restart"}
    loader = ringfeed.Loader(
        Misbehaving("sleeps", at=0), batch_size=8, spec=Oracle.SPEC, **settings
    )
    batches = iter(loader)
    wait_until(lambda: loader._runner.engine.observer.worker(0).inside == 0)  # type: ignore[union-attr]
    lose_patience(loader, 0.1)
    with pytest.raises(ringfeed.StallError) as caught:
        next(batches)
    first = str(caught.value).splitlines()[0]
    assert (
        first
        == "no batch for 0.1 s: 1 of 1 workers inside dataset[i] (i = 0); raise timeout_s or look there"
    )


@pytest.mark.usefixtures("nothing_left")
def test_closing_with_a_stuck_worker_is_quick() -> None:
    """close() gives a worker about a second, and then kills it."""
    loader = ringfeed.Loader(
        Misbehaving("sleeps", at=0), batch_size=8, workers=1, spec=Oracle.SPEC, timeout_s=0.5
    )
    with pytest.raises(ringfeed.StallError):
        next(iter(loader))
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 120


def test_statistics() -> None:
    """Batches, samples, waiting and work are counted."""
    with ringfeed.Loader(Oracle(40, sleep_s=0.02), batch_size=8, workers=1, slots=2) as loader:
        list(map(check, loader))
        stats = loader.stats()
    assert (stats.batches, stats.samples, stats.restarts, stats.skipped) == (5, 40, 0, [])
    assert stats.stall_s > 0.05
    assert stats.busy_s > 0.8
    assert np.isfinite(stats.back_pressure_s)


class Failing(Oracle):
    """Has no sample."""

    def __getitem__(self, index: int) -> Any:
        raise ValueError(index)


def test_errors_that_are_kept_hold_no_slots() -> None:
    """A caller may keep every error of an epoch."""
    found: list[Any] = []
    with ringfeed.Loader(Failing(8), batch_size=1, workers=0, slots=2, spec=Oracle.SPEC) as loader:
        iterator = iter(loader)
        while True:
            try:
                next(iterator)
            except StopIteration:
                break
            except ringfeed.WorkerError as error:
                found.append(error)
    assert [str(error) for error in found] == [
        f"dataset[{n}] raised ValueError: {n}" for n in range(8)
    ]


class Interrupting:
    """What an engine takes from; Ctrl-C comes after the next takes."""

    def __init__(self, intake: Any, times: int) -> None:
        self.intake = intake
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.intake, name)

    def take(self, epoch_id: int) -> bool:
        taken: bool = self.intake.take(epoch_id)
        if self.times and taken:
            self.times -= 1
            raise KeyboardInterrupt
        return taken


class EachTenthFails(Oracle):
    """The samples 7, 17 and so on raise."""

    def __getitem__(self, index: int) -> Any:
        if index % 10 == 7:
            raise ValueError(index)
        return super().__getitem__(index)


def test_ctrl_c_after_a_take_costs_no_batch() -> None:
    """However often Ctrl-C comes between two steps, and is caught, every batch comes in order."""
    with ringfeed.Loader(
        EachTenthFails(200), batch_size=5, workers=1, slots=3, on_error="skip"
    ) as loader:
        batches = iter(loader)
        engine: Any = loader._runner.engine
        engine.intake = Interrupting(engine.intake, 3)
        interrupted = 0
        seen: list[int] = []
        while True:
            try:
                seen += check(next(batches))
            except KeyboardInterrupt:
                interrupted += 1
            except StopIteration:
                break
        assert interrupted == 3
        assert seen == [index for index in range(200) if index % 10 != 7]
        assert loader.stats().batches == 40


def test_ctrl_c_while_a_batch_is_settled_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is settled by the next call, and counted once."""

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with ringfeed.Loader(EachTenthFails(40), batch_size=4, workers=0, on_error="skip") as loader:
        batches = iter(loader)
        seen = check(next(batches))
        monkeypatch.setattr(Settler, "_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        seen += [index for batch in batches for index in check(batch)]
        assert seen == [index for index in range(40) if index % 10 != 7]
        assert (loader.stats().batches, loader.stats().samples) == (10, 36)
