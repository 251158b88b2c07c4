"""`ringfeed check` and `ringfeed.testing.check`: a fault is named, and what is sound passes."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import faulty
import ringfeed.testing
from faulty import FAULTS, SOUND
from ringfeed.testing import checking
from ringfeed.testing.checking import examine
from ringfeed.testing.look import NOTES
from ringfeed.tools.main import main
from watching import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.once
WAITS_S = 3.0  # of a sample that never comes; others may take as long as they like


@pytest.fixture(autouse=True)
def _no_lock_is_held() -> Iterator[None]:
    """Release the lock that one of the datasets holds."""
    yield
    if faulty.HELD.locked():
        faulty.HELD.release()


@pytest.mark.long
@pytest.mark.parametrize("cls", FAULTS, ids=lambda cls: cls.__name__)
def test_a_fault_is_named(cls: type) -> None:
    """It is the only finding, and says what to do next."""
    fault = FAULTS[cls]
    seconds = WAITS_S if fault == "blocks" else PATIENCE_S
    report = examine(cls(), cls.__name__, seconds=seconds)
    assert [found.fault for found in report.findings] == [fault], f"{report}"
    assert report.faults == (fault not in NOTES)
    assert all(found.seen and found.remedy for found in report.findings)


@pytest.mark.long
@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_passes(name: str) -> None:
    """No fault, and no note."""
    report = examine(SOUND[name](), name, seconds=PATIENCE_S)
    assert report.findings == [], f"{report}"


READ = "samples read twice, in a fresh process and in a fork of this process"
TEXTS = {
    faulty.DrawsGlobally: f"""the dataset: {READ}
fault: not pure: dataset[39] is another sample when it is read again, in a fresh process
    dataset[i] draws from a global random state (random, numpy.random, torch); draw from ringfeed.rng(), or give the loader reseed=True
faults: 1, notes: 0""",
    faulty.OfTheProcess: f"""the dataset: {READ}
fault: changes with the process: sample 39 is another in a fresh process than in a fork of this process (8 of 8 are)
    have it depend on its number alone: not on hash() or the order of a set, the process or the worker, nor on what the program has changed in a module since its import
faults: 1, notes: 0""",
    faulty.KeepsALock: """the dataset: samples read twice, in a fork of this process
fault: not picklable: dataset.lock is a lock and cannot be sent to a worker process
    create it on first use in __getitem__, in each worker, and leave it out in __getstate__ if this process reads the dataset too
faults: 1, notes: 0""",
    faulty.KeepsADatabase: """the dataset: no sample was read
fault: holds a handle: dataset.connection is a database connection, and forked workers would share it with this process, its position too
    open it on first use in __getitem__, in the worker, and close it here, or use backend='process' with a __getstate__ that leaves it out
faults: 1, notes: 0""",
    faulty.DifferInLength: f"""the dataset: {READ}
fault: samples differ: dataset[11]: sample has shape (2,), expected (1,), in a fresh process
    every sample must have the shape of the spec: crop, pad or resize it in __getitem__; or allow many shapes: spec= with variable=, form='pad' or form='ragged'
faults: 1, notes: 0""",
    faulty.Empty: f"""the dataset: {READ}
fault: no sample: len(dataset) is 0, in a fresh process
    look at the path that it reads
faults: 1, notes: 0""",
    faulty.DoesNotRestore: f"""the dataset: {READ}
fault: does not resume: after load_state_dict({{"read":0}}) the state is {{"read":7}}, in a fresh process
    have state_dict() return all that the next samples depend on, as JSON, and load_state_dict() set it again
faults: 1, notes: 0""",
}


@pytest.mark.parametrize("cls", TEXTS, ids=lambda cls: cls.__name__)
def test_the_report(cls: type) -> None:
    """The whole text is what `check` raises."""
    with pytest.raises(AssertionError) as caught:
        ringfeed.testing.check(cls(), seconds=PATIENCE_S)
    assert str(caught.value) == TEXTS[cls]


@pytest.mark.parametrize(
    ("cls", "line"),
    [
        (faulty.WaitsForALock, "with HELD:"),
        (faulty.Crashes, "os.abort()"),
        (faulty.Leaks, "self.log.append"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_the_line_of_the_users(cls: type, line: str) -> None:
    """A wait, a crash and a leak are told with the line of the dataset's that is there."""
    (found,) = examine(
        cls(), "", seconds=WAITS_S if cls is faulty.WaitsForALock else PATIENCE_S
    ).findings
    _, _, number = found.seen.rpartition(", in a f")[0].rpartition("faulty.py:")
    assert line in Path(faulty.__file__).read_text().splitlines()[int(number) - 1]


class Wide:
    """Whole batches, of which the last is shorter."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return np.full((3 if range(5)[index] == 4 else 8, 2), range(5)[index])


class Mixed(Wide):
    """Batches of several widths."""

    def __getitem__(self, index: int) -> Any:
        return np.zeros((8, 2 + range(5)[index]))


def test_whole_batches() -> None:
    """A shorter last batch is no fault, but it is one of a dataset of samples; other rows are one."""
    (found,) = examine(Mixed(), "", batch_size=None, seconds=PATIENCE_S).findings
    assert (
        found.seen == "dataset[1]: batch has rows of shape (3,), expected (2,), in a fresh process"
    )
    assert examine(Wide(), "", batch_size=None, seconds=PATIENCE_S).findings == []
    assert [found.fault for found in examine(Wide(), "", seconds=PATIENCE_S).findings] == [
        "samples differ"
    ]


def test_nothing_is_read_here() -> None:
    """The dataset, the random numbers and the descriptors of this process stay as they were."""
    dataset, descriptors = faulty.Leaks(), len([*Path("/proc/self/fd").iterdir()])
    np.random.seed(3)  # noqa: NPY002 - what is looked at
    examine(dataset, "", seconds=PATIENCE_S)
    assert dataset.log == []
    assert np.random.get_state()[2] == 624  # noqa: NPY002
    assert len([*Path("/proc/self/fd").iterdir()]) == descriptors


def test_ctrl_c_ends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is left behind."""
    begun: list[int] = []

    def noted(start: Callable[..., Any], *given: Any) -> Any:
        process = start(*given)
        begun.append(process.pid)
        threading.Timer(
            0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
        ).start()
        return process

    own = checking.forked
    monkeypatch.setattr(checking, "forked", lambda *given: noted(own, *given))
    with pytest.raises(KeyboardInterrupt):
        examine(faulty.WaitsForALock(), "", seconds=PATIENCE_S)
    until_s = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{begun[0]}").exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not Path(f"/proc/{begun[0]}").exists()


MODULE = """
import faulty
rows, noisy = faulty.Rows(), faulty.DrawsGlobally
def any_index():
    return faulty.TakesAnyIndex()
"""


@pytest.mark.parametrize(("name", "status"), [("rows", 0), ("any_index", 0), ("noisy", 1)])
def test_the_command(
    name: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints the report, and its status says whether there is a fault."""
    tmp_path.joinpath("to_check.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["check", f"to_check:{name}", "--seconds", f"{PATIENCE_S}"]) == status
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == f"to_check:{name}: {READ}"
    assert last == f"faults: {status}, notes: {name == 'any_index':d}"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["math:pi"], "a float is no dataset: it has neither __getitem__ nor __iter__; give an object with __len__ and __getitem__, a tuple or dict of arrays, or an iterable"),
        (["faulty:Rows", "--seconds", "0"], "seconds=0.0 must be positive, the time that a sample may take"),
        (["faulty:Rows", "--batch-size", "0"], "batch_size=0 must be at least 1"),
    ],
)  # fmt: skip
def test_refusals(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be looked at is one line, and a status of its own."""
    assert main(["check", *arguments]) == 2
    assert capsys.readouterr() == ("", f"ringfeed check: {text}\n")
