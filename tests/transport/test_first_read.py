"""The first sample is read from a copy of what workers are sent; the user's own is untouched."""

from __future__ import annotations

import csv
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import ringfeed
from ringfeed.loader import runner_of
from watching import PATIENCE_S, run_script

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]

COUNT = 12
METHODS = ["spawn", "fork", "process"]


def fed(dataset: Any, method: str = "process", **settings: Any) -> list[Any]:
    """Return what one worker gives in an epoch."""
    how: Any = {"batch_size": 4, "workers": 1, "copy": True, "backend": method, **settings}
    with ringfeed.Loader(dataset, **how) as loader:
        return np.concatenate([*loader]).tolist()


class Rows:
    """Numbers, in memory."""

    def __init__(self) -> None:
        self.rows = np.arange(COUNT)
        self.reads = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class InPlace(Rows):
    """Changes its arrays as it reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = np.zeros((COUNT, 1024))
        self.seen: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        self.table[index] += 1
        self.seen.add(index)
        self.reads += 1
        return np.int64(self.table[index, 0])


@pytest.mark.parametrize("method", METHODS)
def test_a_dataset_that_changes_in_place(method: str) -> None:
    """Its arrays, sets and counts are as they were, and each worker begins with them.

    Small and large buffers are tried.
    """
    dataset = InPlace()
    assert fed(dataset, method) == [1] * COUNT
    assert (dataset.table.sum(), dataset.seen, dataset.reads) == (0, set(), 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("place", ["dict", "list", "set", "deque", "iterator"])
def test_what_a_sample_takes_out(place: str, method: str) -> None:
    """A container that samples are taken out of is whole when the first worker gets it."""

    class Taking(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.held: Any = {
                "dict": {number: number for number in range(COUNT)},
                "list": [*range(COUNT)],
                "set": {*range(COUNT)},
                "deque": [*range(COUNT)],
                "iterator": iter(range(COUNT)),
            }[place]

        def __getitem__(self, index: int) -> Any:
            if place == "iterator":
                return np.int64(next(self.held))
            taken = self.held.popitem()[1] if place == "dict" else self.held.pop()
            return np.int64(taken)

    dataset = Taking()
    assert sorted(fed(dataset, method)) == [*range(COUNT)]
    assert place == "iterator" or len(dataset.held) == COUNT


def test_a_file_that_forked_workers_share(tmp_path: Path) -> None:
    """What reads ahead of the fork has a position of its own.

    The workers go on from that of this process.
    """
    (tmp_path / "rows").write_text("".join(f"{number}\n" for number in range(COUNT)))

    class Lines(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.file = (tmp_path / "rows").open()
            self.lines = csv.reader(self.file)

        def __getitem__(self, index: int) -> Any:
            return np.int64(next(self.lines)[0])

    dataset = Lines()
    with dataset.file as file:
        del dataset.file  # which is refused where it is seen
        assert fed(dataset, "fork") == [*range(COUNT)]
        assert file.buffer.raw.tell() == (tmp_path / "rows").stat().st_size  # by the worker


SCRIPT = """
import os, sys, threading, time
from typing import NamedTuple
import numpy as np
import ringfeed

PATH, METHOD = sys.argv[1:] if len(sys.argv) > 1 else {arguments!r}
COUNTED, FD = [], None

class Point(NamedTuple):
    x: object

class Mine(Exception):
    pass

class Rows:
    fd = None
    def __init__(self, where): self.where = where
    def __len__(self): return 12
    def __getitem__(self, index):
        global FD
        if self.where == "global":
            if FD is None: FD = os.open(PATH, os.O_RDONLY)
            fd = FD
        elif self.where == "class":
            if Rows.fd is None: Rows.fd = os.open(PATH, os.O_RDONLY)
            fd = Rows.fd
        else:
            if self.fd is None: self.fd = os.open(PATH, os.O_RDONLY)
            fd = self.fd
        return Point(np.frombuffer(os.pread(fd, 8, 8 * index), np.int64)[0])

class Raising(Rows):
    def __getitem__(self, index): raise Mine("here", index)

class Slow(Rows):
    lock = None
    def __getitem__(self, index):
        if self.lock is None: self.lock = threading.Lock()
        time.sleep(0.2)
        return np.int64(len(COUNTED) % 7)

for where in ("attribute", "class", "global"):
    with ringfeed.Loader(Rows(where), batch_size=4, workers=2, backend=METHOD, copy=True) as loader:
        batches = list(loader)
    assert all(type(batch) is Point for batch in batches), where
    print(where, np.concatenate([batch.x for batch in batches]).tolist() == [*range(12)], Rows.fd, FD)
try:
    ringfeed.Loader(Raising(""), workers=1, backend=METHOD)
except Mine as error:
    print(error.args)

over = threading.Event()
def count():
    while not over.is_set():
        COUNTED.append(len(COUNTED))
        time.sleep(0.001)
thread = threading.Thread(target=count)
thread.start()
time.sleep(0.05)
ringfeed.Loader(Slow(""), batch_size=4, workers=1, backend=METHOD).close()
over.set()
thread.join()
print(COUNTED == [*range(len(COUNTED))])
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_script_of_its_own(method: str, tmp_path: Path) -> None:
    """Descriptors stay where they were opened.

    Its globals are its own; samples and errors have its classes.
    """
    np.arange(COUNT).tofile(tmp_path / "rows")
    out, errors, status = run_script(SCRIPT.format(arguments=(str(tmp_path / "rows"), method)))
    assert (errors, status) == ("", 0)
    read = [f"{where} True None None" for where in ("attribute", "class", "global")]
    assert out.splitlines() == [*read, "('here', 0)", "True"]


@pytest.mark.parametrize("method", ["spawn", "process"])
def test_what_cannot_be_sent_is_named_before_anything_is_read(method: Any) -> None:
    """The dataset is pickled first."""

    class Locked(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

        def __getitem__(self, index: int) -> Any:
            raise AssertionError

    with pytest.raises(ringfeed.ShipError, match=r"^dataset\.lock is a lock"):
        ringfeed.Loader(Locked(), workers=1, backend=method)


class Unopenable(Rows):
    """Cannot be unpickled."""

    def __setstate__(self, state: object) -> None:
        message = "no such licence"
        raise OSError(message)


def test_what_cannot_be_unpickled_is_said_at_once() -> None:
    """The copy is made as a worker makes its own."""
    with pytest.raises(ringfeed.WorkerError) as caught:
        ringfeed.Loader(Unopenable(), workers=1)
    assert (
        str(caught.value)
        == "the dataset could not be unpickled for the workers: OSError: no such licence"
    )
    assert type(caught.value.__cause__) is OSError


def test_what_the_copy_has_opened_is_closed_with_it(tmp_path: Path) -> None:
    """Files and sockets of sample 0 do not stay in this process."""
    (tmp_path / "rows").write_bytes(bytes(8))

    class Opening(Rows):
        def __getitem__(self, index: int) -> Any:
            self.file = (tmp_path / "rows").open("rb")
            return super().__getitem__(index)

    dataset = Opening()
    with ringfeed.Loader(dataset, workers=1):
        opened = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert tmp_path / "rows" not in opened
    assert not hasattr(dataset, "file")


def test_a_worker_is_prepared_in_no_other_process(tmp_path: Path) -> None:
    """worker_init_fn does not run where sample 0 is read."""

    def prepare(number: int) -> None:
        (tmp_path / f"{number} in {os.getpid()}").touch()

    with ringfeed.Loader(Rows(), batch_size=4, workers=1, worker_init_fn=prepare):
        assert not [*tmp_path.iterdir()]
    assert fed(Rows(), worker_init_fn=prepare) == [*range(COUNT)]
    assert len([*tmp_path.iterdir()]) == 1
    assert not [*tmp_path.glob(f"*in {os.getpid()}")]


def test_the_workers_are_sent_what_sample_0_was_read_of() -> None:
    """A large array is copied once; what has changed since is sent in its place."""

    class Large(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.large = np.zeros(1 << 20, np.uint8)

        def __getitem__(self, index: int) -> Any:
            return self.large[index]

    for changed in (False, True):
        dataset = Large()
        with ringfeed.Loader(dataset, batch_size=4, workers=1, copy=True) as loader:
            sent = runner_of(loader)._sending.sent
            assert sent is not None
            first = [os.fstat(fd).st_ino for fd in sent.fds]
            dataset.large[:] = changed
            assert np.concatenate([*loader]).tolist() == [int(changed)] * COUNT
            engine = runner_of(loader).engine
            assert engine is not None
            now = [os.fstat(fd).st_ino for fd in engine.pool.descriptors()]
        assert (now == first) is not changed


def test_with_a_spec_nothing_is_read() -> None:
    """Neither is a copy made of it."""

    class Never(Unopenable):
        def __getitem__(self, index: int) -> Any:
            raise AssertionError

    for method in METHODS:
        how: Any = {"workers": 1, "backend": method}
        ringfeed.Loader(Never(), spec=ringfeed.Array((), "int64"), **how).close()
    ringfeed.Loader((np.arange(COUNT),), workers=1).close()


def test_several_datasets_in_one() -> None:
    """What Mix and Pack hold, and functions beside a dataset, are read from copies too."""
    functions: list[int] = []

    def transform(sample: Any) -> Any:
        functions.append(1)
        return sample

    first, second = InPlace(), InPlace()
    assert fed(ringfeed.datasets.Mix([first, second]), transform=transform) == [1] * 2 * COUNT
    assert fed(first, collate_fn=np.stack) == [1] * COUNT
    assert (first.reads, second.reads, functions) == (0, 0, [])

    class Words(Rows):
        def __getitem__(self, index: int) -> Any:
            self.reads += 1
            return np.arange(2)

    words = Words()
    pack = ringfeed.datasets.Pack(words, lengths=[2] * COUNT, max_length=8)
    with ringfeed.Loader(pack, batch_size=1, workers=1, shuffle=True, copy=True) as loader:
        assert sum(int((batch["segment_ids"] > 0).sum()) for batch in loader) == 2 * COUNT
    assert words.reads == 0


# ---- a fork ----


class Ending(Rows):
    """Ends the process that reads it."""

    def __init__(self, end: Callable[[], Any]) -> None:
        super().__init__()
        self.end = end

    def __getitem__(self, index: int) -> Any:
        return self.end()


def test_what_reads_ahead_of_a_fork_may_die() -> None:
    """The program goes on, and is told how."""
    with pytest.raises(ringfeed.WorkerError) as caught:
        fed(Ending(lambda: os.kill(os.getpid(), signal.SIGKILL)), "fork")
    assert str(caught.value) == (
        "the process that was to read the first sample was killed by SIGKILL; give spec= to have "
        "none read"
    )


def test_what_reads_ahead_of_a_fork_may_hang() -> None:
    """It is waited for as long as for a batch."""
    with pytest.raises(ringfeed.StallError) as caught:
        fed(Ending(lambda: time.sleep(PATIENCE_S)), "fork", timeout_s=0.5)
    assert str(caught.value) == (
        "the first sample was not read in 0.5 s, in a process forked for it; raise timeout_s, "
        "give spec=, or use backend='process'"
    )


def test_what_a_forked_read_says_is_said_here() -> None:
    """A sample's own classes, its errors and its warnings come as from a read in this process."""

    class Local(NamedTuple):
        x: Any

    class LocalWarning(UserWarning):
        pass

    def warn() -> Any:
        warnings.warn("listen", LocalWarning, stacklevel=2)
        return Local(np.int64(3))

    with (
        pytest.warns(UserWarning, match="listen"),
        ringfeed.Loader(Ending(warn), workers=1, backend="fork") as loader,
    ):
        assert type(loader.spec.tree) is Local

    def fail() -> Any:
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        ringfeed.Loader(Ending(fail), workers=1, backend="fork")


ONLY_ONCE = """
import functools, os
import numpy as np
import ringfeed

opened = set()

class Environment:
    def __init__(self, path):
        taken = f"RINGFEED_TEST_{os.getpid()}"
        if taken in os.environ:
            raise RuntimeError("already open in this process")
        os.environ[taken] = path

@functools.cache
def environment_of(path):
    return Environment(path)

class Rows:
    def __init__(self, path):
        self.path = path
        self.environment = environment_of(path)

    def __reduce__(self):
        return Rows, (self.path,)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.array([index])

with ringfeed.Loader(Rows("file"), batch_size=4, workers=1) as loader:
    print([batch.ravel().tolist() for batch in loader])
"""


def test_what_a_process_opens_once_is_not_opened_by_the_copy() -> None:
    """A cached function of the script that has opened it here stays; a worker's cache is its own."""
    out, _, _ = run_script(ONLY_ONCE)
    assert out.strip() == "[[0, 1, 2, 3], [4, 5, 6, 7]]"
