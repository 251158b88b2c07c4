"""`ringfeed.torch.DataLoader` through forks, copies, many epochs, deaths, Ctrl-C and exits."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leftovers
import ringfeed
from forking import Child
from interrupts import Tracer

torch = pytest.importorskip("torch", reason="torch is not installed")
checks = importlib.import_module("torch_checks")
both, check_alike, check_epochs, close = (
    checks.both,
    checks.check_alike,
    checks.check_epochs,
    checks.close,
)
sets = torch.utils.data
DataLoader, Own = ringfeed.torch.DataLoader, sets.DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # of more workers than CPUs
]


class Pairs(sets.Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """An array and a number."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> Any:
        return np.full((2, 3), index, np.float32), index  # a worker that reads it imports no torch


class Numbers(sets.IterableDataset):  # type: ignore[misc]
    """The same as Pairs, in order."""

    def __iter__(self) -> Iterator[Any]:
        return ((np.full((2, 3), index, np.float32), index) for index in range(21))


class Told(sets.Dataset):  # type: ignore[misc]
    """What a worker is told of its seed: by torch's worker info, and by torch's generator."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        return info.seed - info.id, torch.initial_seed() - info.id


class Stream(sets.IterableDataset):  # type: ignore[misc]
    """Its own iterator: what was read of it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 10

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left, info.id, info.seed


# ---- epochs ----


def plain(samples: list[Any]) -> Any:
    """Collate them."""
    return sets.default_collate(samples)


def drawn(samples: list[Any]) -> Any:
    """Collate them, and draw."""
    torch.rand(1)
    return sets.default_collate(samples)


@pytest.mark.parametrize("collate_fn", [sets.default_collate, plain, drawn])
@pytest.mark.parametrize("persists", [False, True])
def test_workers_are_told_the_seed_of_each_epoch(*, persists: bool, collate_fn: Any) -> None:
    """Torch's new workers have a base seed of their own; those that persist keep theirs.

    A collate_fn, which has random numbers of its own, leaves it as it was, and so does the seed of
    this process: torch begins with any of 64 bits, and half of these are too large for a tensor.
    """
    torch.default_generator.manual_seed(2**64 - 1)
    ours = DataLoader(
        Told(),
        batch_size=4,
        num_workers=2,
        persistent_workers=persists,
        collate_fn=collate_fn,
        generator=torch.Generator().manual_seed(1),
    )
    generator, expected = torch.Generator().manual_seed(1), None
    for _ in range(3):
        if expected is None or not persists:
            expected = torch.empty((), dtype=torch.int64).random_(generator=generator).item()
        said = {seed for told in ours for seeds in told for seed in seeds.tolist()}
        assert said == {expected}
    assert torch.initial_seed() == 2**64 - 1
    assert (type(ours._rings.way).__name__ == "Form") is (collate_fn is sets.default_collate)
    close(ours)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iterator_is_one_of_torchs(num_workers: int) -> None:
    """Trainers leave torch's out of what they pickle, for it cannot be pickled."""
    batches = iter(DataLoader([1, 2], num_workers=num_workers))
    assert isinstance(batches, sets.dataloader._BaseDataLoaderIter)
    with pytest.raises(NotImplementedError) as caught:
        pickle.dumps(batches)
    assert caught.value.args == ("{} cannot be pickled", "Epoch")
    assert [*map(int, batches)] == [1, 2]


def initial() -> int:
    """What torch says that its generator began with."""
    return int(torch.initial_seed() % 2**32)


class Begun(sets.Dataset):  # type: ignore[misc]
    """Samples that say what torch began with; some draw, and are seeded for it."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index > 2:
            torch.rand(1)
        return initial()


class BegunAtOnce(Begun):
    """The same, of a whole batch."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class BegunStream(sets.IterableDataset):  # type: ignore[misc]
    """The same, in order."""

    def __iter__(self) -> Iterator[int]:
        return (Begun()[index] for index in range(8))


def collated(samples: list[int]) -> list[int]:
    """Collate them, and add what torch began with here."""
    return [*samples, initial()]


@pytest.mark.parametrize("seed", [None, 12345])
@pytest.mark.parametrize(
    ("made_of", "collate_fn"),
    [(Begun, None), (Begun, collated), (BegunAtOnce, None), (BegunStream, collated)],
)
def test_the_initial_seed_is_that_of_the_worker(made_of: Any, collate_fn: Any, seed: Any) -> None:
    """It is torch's or worker_init_fn's: in samples, in collate_fn, in every epoch."""

    def begin(number: int) -> None:
        if seed is not None:
            torch.manual_seed(seed + number)

    settings = {
        "batch_size": 2,
        "num_workers": 2,
        "persistent_workers": True,
        "worker_init_fn": begin,
    }
    ours, own = both(made_of(), seed=1, collate_fn=collate_fn, **settings)
    check_epochs(ours, own, epochs=2)
    assert ours._rings.own_reason is None
    close(ours)


def test_an_iterable_is_read_anew_in_each_epoch() -> None:
    """Torch's new workers have copies of which nothing is read, and a seed of their own."""
    ours, own = both(Stream(), num_workers=2, batch_size=4, seed=1)
    check_epochs(ours, own, 3)
    assert ours._rings.own_reason is None, "it went torch's own way"
    close(ours)


def test_iterables_of_workers_that_persist_go_on() -> None:
    """As torch's: what an epoch has read is gone in the next, and the seed stays."""

    class Halves(Stream):
        def __iter__(self) -> Iterator[Any]:
            for _ in range(min(self.left, 5)):
                yield next(self)

    ours, own = both(Halves(), num_workers=2, batch_size=2, persistent_workers=True, seed=1)
    check_epochs(ours, own, 3)
    assert ours._rings.own_reason is None, "it went torch's own way"
    close(ours)


def test_epochs_without_number_take_no_more() -> None:
    """Processes, descriptors and mappings are as many after 40 epochs as after the first two."""
    ours = DataLoader(Pairs(), batch_size=4, shuffle=True, num_workers=2)
    before = None
    for epoch in range(40):
        for number, batch in enumerate(ours):  # noqa: B007 - deleted below, as a script has it
            if epoch % 3 == 1 and number == 2:
                break
        del batch  # it keeps its slot
        if epoch == 1:
            before = leftovers.present()
    assert before is not None
    assert not leftovers.since(before)
    close(ours)


def test_an_error_of_the_training_loop_leaves_the_next_epoch_whole() -> None:
    """Also while its traceback still holds the iterator; then there is one ring again."""
    ours, own = both(Pairs(), batch_size=4, num_workers=1, persistent_workers=True)

    def train() -> None:
        batches = iter(ours)
        next(batches)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        train()
    check_epochs(ours, own)
    del error
    check_epochs(ours, own)
    assert ours._rings._idle is not None
    close(ours)


# ---- processes and threads ----


def test_a_forked_child_has_workers_of_its_own() -> None:
    """A DataLoader that has run goes over a ring there, too; its parent goes on with its own."""
    ours, own = both(Pairs(), batch_size=4, shuffle=True, num_workers=1, seed=2)
    check_epochs(ours, own)

    def deed() -> None:
        check_epochs(ours, own, 2)
        assert ours._rings.own_reason is None, "it went torch's own way"
        close(ours)

    child = Child(deed)
    assert child.go() == 0
    check_epochs(ours, own)
    close(ours)


@pytest.mark.parametrize(
    "travel", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_a_copy_made_amid_an_epoch_begins_its_own(travel: Any) -> None:
    """As one of torch's does: workers, ring and place stay behind."""
    ours, own = both(Pairs(), batch_size=4, num_workers=1, persistent_workers=True)
    batches = iter(ours)
    next(batches)
    other = travel(ours)
    check_epochs(other, own)
    assert other.state_dict()["epoch"] == 2
    assert sum(1 for _ in batches) == 5
    close(ours)
    close(other)


def test_threads_have_iterators_of_their_own() -> None:
    """Of one loader, at the same time; each gives a whole epoch."""
    ours = DataLoader(Pairs(), batch_size=4, num_workers=1)
    found: list[list[int]] = []

    def read() -> None:
        found.extend(
            [number for _, numbers in ours for number in numbers.tolist()] for _ in range(3)
        )

    threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert found == [[*range(21)]] * 9
    close(ours)


class Mortal(Pairs):
    """Sample 9 kills its worker, the first time that it is read."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __getitem__(self, index: int) -> Any:
        if index == 9:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "settings", [{}, {"collate_fn": lambda samples: {"of": sets.default_collate(samples)}}]
)
def test_a_killed_worker_is_replaced(settings: Any, tmp_path: Any) -> None:
    """Nothing is lost, doubled or reordered, leaf by leaf or as bytes, or left to torch."""
    ours, own = both(
        Mortal(str(tmp_path / "mark")),
        batch_size=4,
        num_workers=2,
        shuffle=True,
        seed=3,
        **settings,
    )
    batches = [copy.deepcopy(batch) for batch in ours]
    assert (tmp_path / "mark").exists()
    for one, other in zip(batches, own, strict=True):
        check_alike(one, other)
    assert ours._rings.own_reason is None, "it went torch's own way"
    close(ours)


# ---- Ctrl-C and exits ----


class InDoor(Tracer):
    """Interrupts torch's door after calls, but not in lines that a comment says to have none."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        for name in ("epoch", "index_lists"):
            file = importlib.import_module(f"ringfeed.torch.{name}").__file__
            calls = True
            for at, line in enumerate(Path(file).read_text().splitlines(), 1):
                calls = (calls and "No call from here on" not in line) or not line.strip()
                if not calls:
                    self._seen.add((file, at))

    def _trace(self, frame: Any, event: str, argument: object) -> Any:
        in_door = "/ringfeed/torch/" in frame.f_code.co_filename
        return super()._trace(frame, event, argument) if in_door else None


@pytest.mark.parametrize("kind", ["lists", "a stream"])
def test_ctrl_c_at_any_line_loses_and_doubles_nothing(kind: str) -> None:
    """The iterator goes on with the batch that Ctrl-C kept back.

    Till then the state is before it.
    """
    dataset = Pairs() if kind == "lists" else Numbers()
    ours, number = DataLoader(dataset, batch_size=4, num_workers=1), 0
    for _ in ours:
        pass
    while True:
        number += 1
        batches, tracer, found = iter(ours), InDoor(number), list[int]()
        found += next(batches)[1].tolist()
        try:
            with tracer:
                found += next(batches)[1].tolist()
        except KeyboardInterrupt:
            pass
        state = ours.state_dict()
        assert (state["batches"], state["samples"]) == (len(found) // 4, len(found)), tracer.where
        for _, numbers in batches:
            found += numbers.tolist()
        assert found == [*range(21)], tracer.where
        if not tracer.where:
            break
    assert number > 12
    close(ours)


INTERRUPTED = "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start(); [*batches]"
ENDS = {  # the code that ends it, what has begun it, and its exit code
    "at the end of the script": ("pass", "itself", 0),
    "by an error": ("raise ZeroDivisionError", "itself", 1),
    "by Ctrl-C in a wait": (INTERRUPTED, "itself", -signal.SIGINT),
    "by a signal": ("os.kill(os.getpid(), signal.SIGTERM)", "itself", -signal.SIGTERM),
    "forked, at the end": ("pass", "fork", 0),
    "forked, by Ctrl-C in a wait": (INTERRUPTED, "fork", 1),
    "spawned, at the end": ("pass", "spawn", 0),
    "spawned, by an error": ("raise ZeroDivisionError", "spawn", 1),
}
SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
from ringfeed.torch import DataLoader
from multiprocessing import get_context

class Slow:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.2 * (index > 20))
        return np.zeros(3), index

def main():
    global batches
    batches = iter(DataLoader(Slow(), batch_size=4, num_workers=2))
    next(batches)
    {end}

if __name__ == "__main__":
    if {by!r} == "itself":
        main()
    else:
        child = get_context({by!r}).Process(target=main)
        child.start()
        child.join()
        sys.exit(child.exitcode)
"""


def of_session(leader: int) -> list[str]:
    """Return the processes of a session."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(place.name)
    return found


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_amid_an_epoch_takes_its_workers_along(end: str, tmp_path: Any) -> None:
    """Nothing holds a process up, however it began and ends, and no worker outlives it."""
    code, by, status = ENDS[end]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(end=code, by=by))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen(
        [sys.executable, script], env=environment, start_new_session=True, stderr=subprocess.PIPE
    )
    try:
        _, said = run.communicate(timeout=120)  # its workers have the pipe, too
        deadline = time.monotonic() + leftovers.PATIENCE_S
        while of_session(run.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not of_session(run.pid), said.decode()
        assert run.returncode == status, said.decode()
    finally:
        for left in of_session(run.pid):
            os.kill(int(left), signal.SIGKILL)
        run.wait()
