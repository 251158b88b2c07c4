"""Datasets that misbehave.

Whatever __getitem__ does to its process, each sample arrives, or an error names it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leftovers
import ringfeed
from ahead import loader_with
from datasets import BadBulk, Oracle, check, drain
from guests import DEEDS, Guest, Leaving, Length, Mutating, MutatingBatches, Returning, Versions
from ringfeed.monitor._snapshot import Observer
from watching import lose_patience, pool_of, run_script, start_script, wait_until

pytestmark = pytest.mark.once

METHODS = ("spawn", "fork")
NAMES = list(DEEDS)
HARMLESS = NAMES[: NAMES.index("recurses")]


def open_guest(deed: str, method: Any, flag: Path | None = None, **how: Any) -> ringfeed.Loader:
    """Return a loader of a dataset that misbehaves in its only worker, and never here."""
    settings: Any = {"batch_size": 4, "slots": 2, "timeout_s": 120, "workers": 1, **how}
    return loader_with(Guest(deed, flag), backend=method, spec=Oracle.SPEC, **settings)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("deed", HARMLESS)
def test_a_guest_may_do_that(deed: str, method: str) -> None:
    """Each sample arrives once and in order, in two epochs, and its worker goes on."""
    # A guard that is not asleep yet when its descriptors become others' takes the consumer for
    # dead, and ends all.
    spared = deed != "reuses all descriptors"
    with open_guest(deed, method, max_attempts=3 if spared else 1000) as loader:
        for _ in range(2):
            assert drain(loader) == list(range(24))
        assert not (spared and loader.stats().restarts)


def refusal(iterator: Any, kind: type[Exception] = ringfeed.WorkerError) -> str:
    """Return what the next batch is refused with."""
    with pytest.raises(kind) as caught:
        next(iterator)
    return str(caught.value)


SAID = {
    "recurses": "dataset[5] raised RecursionError: maximum recursion depth exceeded",
    "imports what is not there": "dataset[5] raised ModuleNotFoundError: No module named 'no_such_module'",
    "is too slow": "dataset[5] raised TimeoutError: too slow",
    "allocates without end": "dataset[5] raised _ArrayMemoryError: Unable to allocate 1.00 EiB for an array with shape "
    "(1152921504606846976,) and data type uint8",
    "asks for an alarm": "dataset[5] ended 2 workers; the last one was killed by SIGALRM; try it with workers=0",
    "kills its group": "dataset[5] ended 2 workers; the last one was killed by SIGTERM; try it with workers=0",
}


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("deed", SAID)
def test_a_guest_that_goes_too_far_is_named(deed: str, method: str) -> None:
    """What it raises or dies of is an error in its place.

    All other batches arrive, and the next epoch too.
    """
    deaths = 2 if "ended" in SAID[deed] else 0
    with open_guest(deed, method, max_attempts=2, ahead=False) as loader:
        for epoch in (1, 2):
            iterator = iter(loader)
            assert check(next(iterator)) == [0, 1, 2, 3]
            assert refusal(iterator).startswith(SAID[deed])
            assert drain(iterator) == list(range(8, 24))
            # It is waited for here.
            wait_until(lambda: loader.stats().restarts == epoch * deaths)  # noqa: B023


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_a_death_once_costs_nothing(method: str, tmp_path: Path) -> None:
    """A sample that ends its worker once, by a signal to the group, arrives at the second try."""
    with open_guest("kills its group", method, tmp_path / "flag") as loader:
        assert drain(loader) == list(range(24))
        wait_until(lambda: loader.stats().restarts == 1)


@pytest.mark.parametrize("method", ["spawn", "fork", "process"])
def test_a_child_does_not_outlive_the_loader(method: Any) -> None:
    """What a dataset has forked, and left, ends with its worker."""
    spec = ringfeed.Array((), "int64")
    with ringfeed.Loader(Leaving(), batch_size=2, workers=1, backend=method, spec=spec) as loader:
        children = [pid for batch in loader for pid in batch.tolist()]
        assert list(map(leftovers.runs, children)) == [True, True]
    wait_until(lambda: not any(map(leftovers.runs, children)))


@pytest.mark.parametrize("deed", ["changes the locale", "sets the umask", "changes directory"])
def test_the_consumer_is_not_harmed(deed: str) -> None:
    """What a worker does to itself stays there: consumer and next loader see nothing of it."""
    before = surroundings()
    for method in METHODS:
        with open_guest(deed, method) as loader:
            assert drain(loader) == list(range(24))
    assert surroundings() == before


def surroundings() -> tuple[Any, ...]:
    """Return what a process may change of itself."""
    umask = os.umask(0)
    os.umask(umask)
    return (
        Path.cwd(),
        umask,
        dict(os.environ),
        signal.getsignal(signal.SIGINT),
        os.getpriority(os.PRIO_PROCESS, 0),
    )


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_cannot_be_told_is_replaced(method: Any) -> None:
    """Where a dataset has closed its worker's channel, its newer version reaches another worker."""
    with ringfeed.Loader(
        Versions(), batch_size=4, workers=1, slots=2, backend=method, timeout_s=120
    ) as loader:
        for epoch in (1, 2, 3):
            numbers = np.concatenate([numbers.copy() for _, numbers, _ in loader])
            assert numbers.tolist() == [100 * epoch + index for index in range(12)]
        wait_until(lambda: loader.stats().restarts == 1)


BACKENDS = [
    {"workers": 0},
    {"workers": 2, "backend": "thread"},
    {"workers": 2, "backend": "fork"},
    {"workers": 1, "backend": "spawn"},
]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", BACKENDS[:1] + BACKENDS[2:], ids=str)
@pytest.mark.parametrize("kind", [Mutating, MutatingBatches])
def test_what_is_changed_later_has_arrived_before(kind: Any, how: Any) -> None:
    """A batch holds what each array was when it was returned, whatever becomes of it.

    The dataset may change itself.
    """
    sizes: Any = (
        {"batch_size": None, "max_batch_size": 1} if kind is MutatingBatches else {"batch_size": 4}
    )
    with ringfeed.Loader(kind(20), spec=Oracle.SPEC, **sizes, **how) as loader:
        for _ in range(2):
            assert drain(loader) == list(range(20))


RETURNED: list[tuple[Any, str, str]] = [  # what it is called, and what to do about it
    (
        lambda: None,
        "None",
        "make it one in __getitem__; on_error='skip' leaves out samples that are None",
    ),
    (lambda: len, "of type builtin_function_or_method", "make it one in __getitem__"),
    (
        lambda: (number for number in range(3)),
        "of type generator",
        "make it a list, each of whose items is a leaf, or numpy.asarray() of that list, which is one leaf",
    ),
    (lambda: Returning([]), "of type Returning", "make it one in __getitem__"),
    (lambda: ValueError("returned"), "of type ValueError", "make it one in __getitem__"),
    (lambda: NotImplemented, "of type NotImplementedType", "make it one in __getitem__"),
    (lambda: [1], "a list of 1", "make it one in __getitem__"),
]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_what_is_no_sample_is_refused(how: Any) -> None:
    """Whatever else __getitem__ returns is named, in each kind of worker."""
    functions, shown, remedies = zip(*RETURNED, strict=True)
    with ringfeed.Loader(
        Returning(list(functions)), batch_size=1, spec=ringfeed.Array((), "int64"), **how
    ) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(4)] == [[0], [1], [2], [3]]
        for index, what, remedy in zip(count(4), shown, remedies, strict=False):
            text = f"is {what}, expected an array of shape () and dtype int64; {remedy}"
            assert refusal(iterator, ringfeed.SpecError) == f"dataset[{index}]: sample {text}"
        assert next(iterator, "over") == "over"


# ---- lengths ----


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    ("length", "kind", "text"),
    [
        (lambda _: -1, ValueError, "__len__() should return >= 0"),
        (lambda _: 2.5, TypeError, "'float' object cannot be interpreted as an integer"),
        (lambda _: None, TypeError, "'NoneType' object cannot be interpreted as an integer"),
        (lambda _: 2**63, OverflowError, "cannot fit 'int' into an index-sized integer"),
        (lambda _: _raise(KeyError("x")), KeyError, "'x'"),
        (
            lambda _: 0,
            ringfeed.SpecError,
            "the dataset is empty, so there is no sample to infer the spec from; give spec=",
        ),
    ],
)
def test_a_length_that_is_none(length: Any, kind: Any, text: str) -> None:
    """A length that Python refuses is refused by the loader, with what Python says of it."""
    with pytest.raises(kind) as caught:
        ringfeed.Loader(Length(length), workers=0)
    assert str(caught.value) == text


@pytest.mark.parametrize("length", [2**62, 2**63 - 1])
def test_a_length_that_is_huge(length: int) -> None:
    """An epoch of more samples than anyone will read begins like any other.

    The last of them can be read.
    """
    with ringfeed.Loader(
        Length(lambda _: length), workers=0, batch_size=4, drop_remainder=True
    ) as loader:
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        assert len(loader) == length // 4
    with ringfeed.Loader(Length(lambda _: length), workers=0, sampler=[length - 1]) as loader:
        assert next(iter(loader)).tolist() == [length - 1]
    with (
        pytest.raises(IndexError) as caught,
        ringfeed.Loader(Length(lambda _: 9), workers=0, sampler=[9]) as loader,
    ):
        next(iter(loader))
    assert (
        str(caught.value) == "sampler yielded 9 at position 0, but the dataset has 9 samples (0..8)"
    )


@pytest.mark.parametrize("step", [1, -1], ids=["grows", "shrinks"])
def test_a_length_that_changes(step: int) -> None:
    """A dataset is as long as it was when the loader was made, unless it has hooks."""
    with ringfeed.Loader(
        Length(lambda asked: 8 + step * (asked - 1)), workers=0, batch_size=4
    ) as loader:
        for _ in range(2):
            assert [number for batch in loader for number in batch.tolist()] == list(range(8))


def test_a_list_that_shrinks() -> None:
    """Samples that are gone are errors that name them, in their place."""
    samples = list(range(8))
    with ringfeed.Loader(samples, workers=0, batch_size=4) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        del samples[6:]
        text = "dataset[6] raised IndexError: list index out of range (1 more of this batch failed)"
        assert refusal(iterator) == text
        assert next(iterator, "over") == "over"


# ---- many at once ----


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_death_among_many_is_blamed_on_one(attempts: int) -> None:
    """Where __getitems__ kills its worker no sample is blamed.

    Row by row the sample at fault is, and it alone.
    """
    how: Any = {
        "batch_size": 8,
        "workers": 1,
        "slots": 2,
        "backend": "fork",
        "max_attempts": attempts,
    }
    how["ahead"] = False  # the next epoch's first worker ends, too
    dataset = BadBulk("dies", at=1)  # in the first ticket, which is all of its batch
    with loader_with(dataset, spec=Oracle.SPEC, **how) as loader:
        iterator = iter(loader)
        workers = "its worker" if attempts == 1 else "2 workers"
        text = (
            f"dataset[1] ended {workers}; the last one was killed by SIGKILL; try it with workers=0"
        )
        assert refusal(iterator) == text
        assert drain(iterator) == list(range(8, 40))
        wait_until(lambda: loader.stats().restarts == attempts + 1)
    with loader_with(dataset, spec=Oracle.SPEC, on_error="skip", **how) as loader:
        assert drain(loader) == [0, *range(2, 40)]
        assert loader.stats().skipped == [1]


@pytest.mark.usefixtures("nothing_left")
def test_many_that_take_too_long_are_named() -> None:
    """A StallError names the first sample of a call of __getitems__ that does not come back."""
    how: Any = {"batch_size": 8, "workers": 1, "slots": 2, "backend": "fork"}
    with ringfeed.Loader(BadBulk("sleeps", at=1), spec=Oracle.SPEC, **how) as loader:
        batches = iter(loader)
        wait_until(lambda: Observer(pool_of(loader)._config.ring).worker(0).inside == 0)
        lose_patience(loader, 0.1)
        with pytest.raises(ringfeed.StallError) as caught:
            next(batches)
        assert str(caught.value).startswith(
            "no batch for 0.1 s: 1 of 1 workers inside dataset[i] (i = 0); raise"
        )


# ---- input, output, and the end of the consumer ----

INPUT = """
import os, ringfeed, sys
class Reading:
    def __len__(self): return 4
    def __getitem__(self, index):
        return len(os.read(0, 100)), len(sys.stdin.read() if sys.stdin else "")
found = [leaf.tolist() for batch in ringfeed.Loader(Reading(), batch_size=2, workers=1, backend={method!r},
    spec=(ringfeed.Array((), "int64"),) * 2) for leaf in batch]
print(found, sys.stdin.read())
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "process"])
def test_a_worker_never_reads_the_consumers_input(method: str) -> None:
    """In a worker the standard input is at its end; what waits there for the consumer stays."""
    found = subprocess.run(
        [sys.executable, "-c", INPUT.format(method=method)],
        input="for the consumer",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (found.stdout, found.stderr) == (f"{[[0, 0]] * 4} for the consumer\n", "")


CLOSES = """
import os, ringfeed, time
class Closing:
    def __len__(self): return 8
    def __getitem__(self, index):
        if index == 4:
            os.closerange(3, 256)
            open({flag!r}, "w").close()
            time.sleep(600)
        return index
loader = ringfeed.Loader(Closing(), batch_size=2, workers=1, backend={method!r})
iterator = iter(loader)
print(loader._runner.engine.pool._roster.workers[0].pid, flush=True)
while not os.path.exists({flag!r}): time.sleep(0.01)
print("closed", flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_without_descriptors_ends_with_its_consumer(method: str, tmp_path: Path) -> None:
    """The guard watches the consumer though the worker has closed what it watches it by."""
    process = start_script(CLOSES.format(method=method, flag=str(tmp_path / "flag")))
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "closed\n"
        wait_until(lambda: not leftovers.runs(pid))
    finally:
        process.kill()
        process.communicate(timeout=120)


LOWERS = """
import os, resource, ringfeed, time
class Lowering:
    def __len__(self): return 8
    def __getitem__(self, index):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        os.makedirs({flag!r}, exist_ok=True)  # takes no descriptor
        time.sleep(600)
loader = ringfeed.Loader(Lowering(), batch_size=2, workers=1, spec=ringfeed.Array((), "int64"))
iterator = iter(loader)
print(loader._runner.engine.pool._roster.workers[0].pid, flush=True)
next(iterator)
"""


def test_a_worker_that_may_have_no_descriptors_ends_with_its_consumer(tmp_path: Path) -> None:
    """A guard that is woken by SIGCONT leaves no orphan where RLIMIT_NOFILE is 0."""
    flag = tmp_path / "flag"
    process = start_script(LOWERS.format(flag=str(flag)))
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        wait_until(flag.exists)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state_of(pid) == "T")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: state_of(pid) != "T")
    finally:
        children = leftovers.children(process.pid)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    wait_until(lambda: not any(map(leftovers.runs, children | {pid})))


def state_of(pid: int) -> str:
    """Return the letter of a process's state; "" where it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    return ""


BUFFERED_INPUT = """
import os, ringfeed, sys
class Reading:
    def __len__(self): return 2
    def __getitem__(self, index):
        return len(os.read(0, 100)), len(sys.stdin.read())
first = sys.stdin.readline()
loader = ringfeed.Loader(Reading(), batch_size=2, workers=1, backend="fork",
    spec=(ringfeed.Array((), "int64"),) * 2)
print([first] + [leaf.tolist() for batch in loader for leaf in batch] + sys.stdin.readlines())
"""


def test_a_forked_worker_does_not_see_what_the_consumer_has_buffered() -> None:
    """Nor what waits in Python's own buffer."""
    found = subprocess.run(
        [sys.executable, "-c", BUFFERED_INPUT],
        input="a\nb\nc\n",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (found.stdout, found.stderr) == ("['a\\n', [0, 0], [0, 0], 'b\\n', 'c\\n']\n", "")


GARBAGE = """
import gc, os, sys
import ringfeed
class Cycle:
    def __init__(self): self.own, self.home = self, os.getpid()
    def __del__(self):
        if os.getpid() != self.home:
            os.write(2, b"ended in another process\\n")
class Collecting:
    def __len__(self): return 8
    def __getitem__(self, index):
        return gc.collect() * 0 + index
    def __setstate__(self, state):
        Cycle()
gc.disable()
Cycle()
spec = ringfeed.Array((), "int64")
with ringfeed.Loader(Collecting(), batch_size=2, workers=2, backend=METHOD, spec=spec) as it:
    print([batch.tolist() for batch in it], gc.isenabled())
"""


@pytest.mark.parametrize("method", ["fork", "process"])
def test_no_object_of_its_parent_is_ended_by_a_collection_in_a_forked_worker(method: str) -> None:
    """A worker never finalises what its parent has.

    Connections and epolls are one thing in both processes.
    """
    output, errors, _ = run_script(GARBAGE.replace("METHOD", repr(method)))
    assert (output, errors) == ("[[0, 1], [2, 3], [4, 5], [6, 7]] False\n", "")
