"""The crash matrix: where a worker ends, and how, by start method, and what the consumer must see.

A death costs nothing but time: the batches are whole and in order, and the restarts are counted. An
error comes with its whole text, in its place.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import statistics
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import ringfeed
from ahead import loader_with
from datasets import Oracle, check, drain
from dying import DEATHS, ERRORS, FIRST, FUTEX_SYSCALL, IN_C, SPACING, WAKE_ENDS, Doomed, DoomedInto
from ringfeed.system import channel
from ringfeed.workers import launchers
from ringfeed.workers.processes import Processes
from ringfeed.workers.roster import Roster
from watching import PATIENCE_S, pids, run_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.workers.process import WorkerProcess

METHODS = ("spawn", "fork", "process")
ALL = tuple(DEATHS)
FEW = (
    ("SIGKILL", "SIGSEGV"),
    ("SIGABRT",),
    ("exit 0", "exit 3"),
)  # of three in a row before any work, the run ends
OUTSIDE = {"SIGKILL from outside": signal.SIGKILL, "SIGSEGV from outside": signal.SIGSEGV}
BATCH = 4

EPITAPHS = {
    "SIGKILL": "was killed by SIGKILL",
    "SIGSEGV": "was killed by SIGSEGV",
    "SIGABRT": "was killed by SIGABRT",
    "SIGTERM": "was killed by SIGTERM",
    "SIGSYS": "was killed by SIGSYS",
    "exit 0": "exited with status 0",
    "exit 3": "exited with status 3",
    "exit 31": "exited with status 31",
}

# What is said of each error; the class of the cause, or that one's name where it cannot travel.
SAID = {
    "sys.exit": ("SystemExit: 3", "SystemExit"),
    "exception": ("OSError: no such picture", "OSError"),
    "unpicklable exception": ("UnpicklableError: stays here", "UnpicklableError"),
    "local exception": ("_raise_local.<locals>.LocalError: made on the spot", "LocalError"),
    "MemoryError": ("MemoryError", "MemoryError"),
    "RecursionError": ("RecursionError: maximum recursion depth exceeded", "RecursionError"),
    "KeyboardInterrupt": ("KeyboardInterrupt", "KeyboardInterrupt"),
}


class Row(NamedTuple):
    """A row of the matrix: all deeds happen in one run, each once, and each costs one restart."""

    where: str
    deeds: tuple[str, ...]
    methods: tuple[str, ...] = METHODS


MATRIX = (
    Row("before its config", ("SIGKILL", "SIGSEGV"), ("spawn", "process")),
    Row("before its config", ("SIGABRT",), ("spawn", "process")),
    Row(
        "before its config", ("SIGKILL", "SIGTERM"), ("fork",)
    ),  # pytest reports the others at length
    *(Row("unpickling", few, ("spawn",)) for few in FEW),
    *(Row("unpickling anew", few) for few in FEW),
    *(Row("opening", few) for few in FEW),
    Row("before claim", ALL),
    Row("claimed", ALL),
    Row("sample", ALL),
    Row("read_into", ALL),
    Row("mid-row", ALL),
    Row("C code", (*OUTSIDE, *IN_C)),
    Row("before publish", ALL),
    Row("published, not woken", tuple(WAKE_ENDS)),
    Row("published", ALL),
    Row("asleep", ALL),
)
CASES = [
    pytest.param(row, method, id=f"{row.where}-{','.join(row.deeds)}-{method}")
    for row in MATRIX
    for method in row.methods
]


@pytest.fixture(autouse=True)
def _no_core_files() -> Iterator[None]:
    """What dies here leaves no core file."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each worker that was replaced had ended, as the pool learned it."""
    found: list[str] = []
    original = Roster._count_death

    def count(self: Roster, worker: WorkerProcess, exit_reason: str) -> None:
        found.append(exit_reason)
        original(self, worker, exit_reason)

    monkeypatch.setattr(Roster, "_count_death", count)
    return found


def exit_reason_of(deed: str) -> str:
    """Return how a deed's worker ends; a deed's name begins with it."""
    return next(end for name, end in EPITAPHS.items() if f"{deed} ".startswith(f"{name} "))


def doomed(
    where: str, deeds: tuple[str, ...], flags: Path, *, due: bool = True, **settings: Any
) -> Doomed:
    """Return a dataset of which all deeds are due."""
    kind = DoomedInto if where in {"read_into", "mid-row"} else Doomed
    dataset = kind(where, deeds, flags, **settings)
    for number in range(len(deeds) if due else 0):
        dataset.due(number)
    return dataset


def open_loader(dataset: Any, method: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader that never reads a sample in this process."""
    whole: Any = {"batch_size": BATCH, "workers": 2, "slots": 3, "timeout_s": 120, **settings}
    return loader_with(dataset, backend=method, spec=Oracle.SPEC, **whole)


def whole_epoch(length: int) -> list[list[int]]:
    """Return the batches that an epoch must have."""
    return [list(range(first, first + BATCH)) for first in range(0, length, BATCH)]


def run_until(loader: ringfeed.Loader, restarts: int, length: int) -> None:
    """Run epochs, each of them whole, until all has happened."""
    deadline_s = time.monotonic() + PATIENCE_S
    while loader.stats().restarts < restarts or loader.epoch < 2:
        assert time.monotonic() < deadline_s, f"{loader.stats().restarts} of {restarts} restarts"
        assert [check(batch) for batch in loader] == whole_epoch(length)
        time.sleep(0.05)


class Executioner(threading.Thread):
    """Ends, from outside, each worker that says it holds the GIL."""

    def __init__(self, row: Row, flags: Path) -> None:
        super().__init__(daemon=True)
        self.row = row
        self.flags = flags

    def run(self) -> None:
        """Wait for each in turn, for as long as a test may take."""
        for number, deed in enumerate(self.row.deeds):
            if deed in OUTSIDE:
                held = self.flags / f"held {number}"
                wait_until(held.exists)
                time.sleep(0.02)  # from the file to the call of C
                os.kill(int(held.read_text()), OUTSIDE[deed])


def end_before_its_config(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first workers end before they are told anything."""
    original = Processes._launch
    left = list(row.deeds)

    def launch(self: Processes) -> Any:
        worker = original(self)
        if left:
            worker.kill(getattr(signal, left.pop(0)))
            worker.is_dead(120)
        return worker

    monkeypatch.setattr(Processes, "_launch", launch)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("row", "method"), [case for case in CASES if case.values[0].where != "asleep"]
)
def test_a_death_loses_nothing(
    row: Row, method: str, tmp_path: Path, ends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a worker ends, and however, every batch of every epoch is whole and in order.

    Restarts are counted.
    """
    if row.where == "published, not woken" and FUTEX_SYSCALL is None:
        pytest.skip("the number of the system call is not known here")
    if row.where == "before its config":
        end_before_its_config(row, monkeypatch)
    dataset = doomed(row.where, row.deeds, tmp_path)
    executioner = Executioner(row, tmp_path)
    with open_loader(dataset, method) as loader:
        executioner.start()
        run_until(loader, len(row.deeds), dataset.length)
        wait_until(lambda: loader.stats().restarts == len(row.deeds))
        assert loader.stats().skipped == []
    executioner.join(120)
    assert sorted(ends) == sorted(map(exit_reason_of, row.deeds))


def sleeps(pid: int) -> bool:
    """Whether a process's first thread sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("S")


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("row", "method"), [case for case in CASES if case.values[0].where == "asleep"]
)
def test_a_death_asleep_loses_nothing(
    row: Row, method: str, tmp_path: Path, ends: list[str]
) -> None:
    """A worker that ends while it waits for a slot is replaced, and what is ready stays."""
    dataset = doomed(row.where, row.deeds, tmp_path, due=False)
    with open_loader(dataset, method, workers=1) as loader:
        iterator = iter(loader)
        found = []
        for number in range(len(row.deeds)):
            found.append(check(next(iterator)))
            wait_until(lambda: loader.slot_states() == ["ready"] * 3)
            wait_until(lambda: all(map(sleeps, pids(loader))))
            dataset.due(number)
            wait_until(lambda: loader.stats().restarts == number + 1)  # noqa: B023 - not kept
        found += [check(batch) for batch in iterator]
        wait_until(lambda: loader.stats().restarts == len(row.deeds))
    assert found == whole_epoch(dataset.length)
    assert ends == [exit_reason_of(deed) for deed in row.deeds]


# ---- samples that end every worker ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("where", ["sample", "mid-row"])
@pytest.mark.parametrize("method", METHODS)
def test_poison_is_an_error_in_its_place(where: str, method: str, tmp_path: Path) -> None:
    """After max_attempts deaths a sample is an error that names it and how the last one ended.

    The rest is whole.
    """
    dataset = doomed(where, ALL, tmp_path, once=False)
    found: list[Any] = []
    with open_loader(dataset, method, max_attempts=2, ahead=False) as loader:
        iterator = iter(loader)
        for _ in range(dataset.length // BATCH):
            try:
                found.append(check(next(iterator)))
            except ringfeed.WorkerError as error:
                found.append(str(error))
        assert next(iterator, "over") == "over"
        wait_until(lambda: loader.stats().restarts == 2 * len(ALL))
    expected: list[Any] = whole_epoch(dataset.length)
    for number, deed in enumerate(ALL):
        index = SPACING * number + FIRST
        text = (
            f"dataset[{index}] ended 2 workers; the last one {exit_reason_of(deed)}; try it with "
            "workers=0"
        )
        expected[index // BATCH] = text
    assert found == expected


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_poison_is_skipped(method: str, tmp_path: Path) -> None:
    """With on_error="skip" such samples are left out, the gaps closed in order, and listed."""
    dataset = doomed("mid-row", ALL, tmp_path, once=False)
    poison = [SPACING * number + FIRST for number in range(len(ALL))]
    with open_loader(dataset, method, max_attempts=1, on_error="skip", ahead=False) as loader:
        found = [check(batch) for batch in loader]
        assert loader.stats().skipped == poison
        assert loader.stats().samples == dataset.length - len(poison)
        wait_until(lambda: loader.stats().restarts == len(poison))
    assert found == [
        [index for index in batch if index not in poison] for batch in whole_epoch(dataset.length)
    ]


# ---- errors ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("where", ["sample", "mid-row"])
@pytest.mark.parametrize("method", METHODS)
def test_an_error_in_a_sample(where: str, method: str, tmp_path: Path) -> None:
    """Whatever a sample raises is an error with its whole text, in its place, and costs no worker."""
    deeds = tuple(ERRORS)
    dataset = doomed(where, deeds, tmp_path, length=SPACING * len(deeds))
    found: list[Any] = []
    with open_loader(dataset, method) as loader:
        iterator = iter(loader)
        for _ in range(dataset.length // BATCH):
            try:
                found.append(check(next(iterator)))
            except ringfeed.WorkerError as error:
                found.append((str(error), type(error.__cause__).__name__))
        assert next(iterator, "over") == "over"
        assert loader.stats().restarts == 0
        assert drain(loader) == list(range(dataset.length))
    expected: list[Any] = whole_epoch(dataset.length)
    for number, deed in enumerate(deeds):
        index = SPACING * number + FIRST
        text, cause = SAID[deed]
        expected[index // BATCH] = (f"dataset[{index}] raised {text}", cause)
    assert found == expected


OPENING = "a worker could not open the dataset: {}; try workers=0"
IN_THE_FORKSERVER = "the dataset could not be unpickled for the workers: {}"
START_UP = [
    *(("opening", method, OPENING) for method in METHODS),
    ("unpickling", "spawn", OPENING),
    ("unpickling", "process", IN_THE_FORKSERVER),
]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("where", "method", "form"), START_UP, ids=[f"{row[0]}-{row[1]}" for row in START_UP]
)
def test_an_error_in_start_up(where: str, method: str, form: str, tmp_path: Path) -> None:
    """What is raised before any sample ends the run with the worker's words.

    The next epoch starts afresh.
    """
    dataset = doomed(where, tuple(ERRORS), tmp_path)
    found = []
    with open_loader(dataset, method, workers=1) as loader:
        for _ in ERRORS:
            with pytest.raises(ringfeed.WorkerError) as caught:
                next(iter(loader))
            found.append((str(caught.value), type(caught.value.__cause__).__name__))
        assert [check(batch) for batch in loader] == whole_epoch(dataset.length)
        assert loader.stats().restarts == 0
    assert found == [(form.format(SAID[deed][0]), SAID[deed][1]) for deed in ERRORS]


@pytest.mark.usefixtures("nothing_left")
def test_a_forkserver_that_has_ended_before_its_first_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said of the dataset is the error, also where the order finds it gone.

    No other takes its place.
    """

    def send_late(end: Any, message: object, fds: tuple[int, ...] = ()) -> None:
        if message == {"do": "fork_worker"}:
            poller = select.poll()
            poller.register(end.fileno(), 0)
            assert poller.poll(PATIENCE_S * 1000), "the forkserver has not ended"
        channel.send(end, message, fds)

    monkeypatch.setattr(
        launchers, "channels", SimpleNamespace(**{**vars(channel), "send": send_late})
    )
    dataset = doomed("unpickling", ("exception",), tmp_path)
    with (
        open_loader(dataset, "process", workers=1) as loader,
        pytest.raises(ringfeed.WorkerError) as caught,
    ):
        next(iter(loader))
    assert str(caught.value) == IN_THE_FORKSERVER.format(SAID["exception"][0])


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("deed", ["exception", "sys.exit"])
@pytest.mark.parametrize("method", METHODS)
def test_an_error_in_a_newer_version(method: str, deed: str, tmp_path: Path) -> None:
    """A newer version that cannot be unpickled ends its epoch; the next starts afresh."""
    dataset = doomed("unpickling anew", (deed,), tmp_path)
    with open_loader(dataset, method, workers=1) as loader:
        assert [check(batch) for batch in loader] == whole_epoch(dataset.length)
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(iter(loader))
        assert str(caught.value) == OPENING.format(SAID[deed][0])
        assert [check(batch) for batch in loader] == whole_epoch(dataset.length)


SCRIPT = """
import ringfeed
from datasets import Oracle, check

class Rotten(Exception):
    pass

class Mine(Oracle):
    def __getitem__(self, index):
        if index == 6:
            raise Rotten("only here", index)
        return super().__getitem__(index)

with ringfeed.Loader(Mine(12), batch_size=4, workers=1, backend="{method}") as loader:
    iterator = iter(loader)
    print(check(next(iterator)))
    try:
        next(iterator)
    except ringfeed.WorkerError as error:
        print(error)
        print(type(error.__cause__).__name__, error.__cause__.args, isinstance(error.__cause__, Rotten))
    print(check(next(iterator)))
"""


@pytest.mark.parametrize("method", METHODS)
def test_an_error_that_lives_in_the_script(method: str) -> None:
    """An exception class that only the user's script defines reaches the consumer, with its arguments."""
    found, errors, status = run_script(SCRIPT.format(method=method))
    assert (errors, status) == ("", 0)
    first, text, cause, last = found.splitlines()
    assert [first, last] == ["[0, 1, 2, 3]", "[8, 9, 10, 11]"]
    assert text == "dataset[6] raised Rotten: ('only here', 6)"
    assert cause == "Rotten ('only here', 6) True"


# ---- the process that forks workers ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("deed", ALL)
def test_a_forkserver_that_ends_while_unpickling(deed: str, tmp_path: Path) -> None:
    """The process that unpickles the dataset for all workers may end once.

    No worker is lost with it.
    """
    dataset = doomed("unpickling", (deed,), tmp_path)
    with open_loader(dataset, "process", workers=1) as loader:
        assert [check(batch) for batch in loader] == whole_epoch(dataset.length)
        assert loader.stats().restarts == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("deed", ["SIGSEGV", "exit 0"])
def test_a_forkserver_that_ends_again(deed: str, tmp_path: Path) -> None:
    """A dataset that ends what unpickles it is an error that says how."""
    dataset = doomed("unpickling", (deed,), tmp_path, once=False)
    with open_loader(dataset, "process", workers=1) as loader:
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(iter(loader))
        assert str(caught.value) == (
            f"the process that forks workers {exit_reason_of(deed)} twice; use backend='spawn'"
        )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_workers_that_always_end_in_start_up(method: str, tmp_path: Path) -> None:
    """A dataset that ends every worker before its first sample is an error, not an endless row of restarts."""
    dataset = doomed("opening", ("exit 3",), tmp_path, once=False)
    with open_loader(dataset, method) as loader:
        with pytest.raises(ringfeed.WorkerError) as caught:
            next(iter(loader))
        wait_until(lambda: loader.stats().restarts == 3)
    assert str(caught.value) == (
        "3 workers in a row ended before they filled anything; the last exited with status 3; "
        "look at its output above, or try workers=0"
    )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("sleep_s", [0.001, 0.2], ids=["quick samples", "slow samples"])
@pytest.mark.parametrize("method", METHODS)
def test_deaths_in_start_up_beside_one_that_works(
    method: Any, sleep_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as one worker fills batches, others may end before they fill anything, more than three times in a row."""
    launch, doomed_ones = Processes._launch, [True] * 7

    def end_at_once(self: Processes) -> WorkerProcess:
        found = launch(self)
        if doomed_ones.pop():
            found.kill()
        return found

    dataset = Oracle(int(PATIENCE_S / sleep_s), sleep_s=sleep_s)  # more than there is time for
    with open_loader(dataset, method) as loader:
        iterator = iter(loader)
        batches = [check(next(iterator))]
        while not loader._runner.engine.observer.worker(0).samples:  # type: ignore[union-attr] # it is to work before the other dies
            batches.append(check(next(iterator)))
        doomed_ones.insert(0, False)  # the last
        monkeypatch.setattr(Processes, "_launch", end_at_once)
        os.kill(pids(loader)[1], signal.SIGKILL)
        while doomed_ones:
            batches.append(check(next(iterator)))
        assert batches == whole_epoch(dataset.length)[: len(batches)]
        wait_until(lambda: loader.stats().restarts == 8)


# ---- Ctrl-C, and how long a death takes ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_is_not_for_workers(method: str) -> None:
    """SIGINT, which a terminal sends to all, ends no worker."""
    dataset = Oracle(48, sleep_s=0.001)
    with open_loader(dataset, method) as loader:
        iterator = iter(loader)
        check(next(iterator))
        for pid in pids(loader):
            os.kill(pid, signal.SIGINT)
        assert drain(iterator) == list(range(BATCH, dataset.length))
        assert loader.stats().restarts == 0


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_the_gap_after_a_kill(method: str, workers: int, record_property: Any) -> None:
    """The longest wait for a batch after a kill is measured, and told in the report.

    The batches are whole.
    """
    gaps_ms = []
    dataset = Oracle(1200, sleep_s=0.0002)
    with open_loader(dataset, method, workers=workers) as loader:
        iterator = iter(loader)
        found = check(next(iterator))
        for kill in range(1, 6):
            os.kill(pids(loader)[0], signal.SIGKILL)
            longest = 0.0
            while len(found) < 200 * kill:
                began = time.perf_counter()
                found += check(next(iterator))
                longest = max(longest, time.perf_counter() - began)
            gaps_ms.append(round(1000 * longest, 1))
            wait_until(lambda: loader.stats().restarts == kill and len(pids(loader)) == workers)  # noqa: B023
        found += drain(iterator)
    assert found == list(range(dataset.length))
    record_property("gaps_ms", gaps_ms)
    print(f"\n{method}, {workers} workers: median gap {statistics.median(gaps_ms)} ms of {gaps_ms}")  # noqa: T201
