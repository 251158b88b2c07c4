"""Workers that only the tuner wants and that cannot be had.

Training goes on with those there are.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
from datasets import check, drain, flat
from ringfeed.engine import autotune
from ringfeed.engine.autotune import Setting
from ringfeed.errors import WorkerError
from ringfeed.workers.processes import Processes
from scripting import ROOM, Slowly, scripted
from watching import pids, pool_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture(autouse=True)
def _looks_at_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "LOOK_NS", 0)


class Rare(Slowly):
    """So many workers can open it; what comes of the next, ``deed`` says."""

    def __init__(self, place: Path, deed: str, openers: int = 1) -> None:
        super().__init__(100_000)
        self.place, self.deed, self.openers = place, deed, openers
        self.opened_by = os.getpid()

    def __getattribute__(self, name: str) -> Any:
        if name == "__getitem__" and self.opened_by != os.getpid():  # the worker opens the dataset
            self.opened_by = os.getpid()
            self.open()
        return object.__getattribute__(self, name)

    def open(self) -> None:
        """Be one of few, or do the deed."""
        pids = Path(self.place, "pids")
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")
        others = [int(line) for line in pids.read_text().split()][:-1]
        if len(others) >= self.openers:
            getattr(self, self.deed)(others)

    def fail(self, _: list[int]) -> None:
        raise OSError("few are enough")

    def fail_when_told(self, _: list[int]) -> None:
        wait_until(Path(self.place, "told").exists)
        raise OSError("few are enough")

    def leave(self, _: list[int]) -> None:
        os._exit(3)

    def be_killed(self, _: list[int]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def have_it_killed(self, others: list[int]) -> None:
        """As the kernel does when memory is short.

        It ends the largest, who has opened all of it.
        """
        os.kill(others[-1], signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{others[-1]}").exists())
        time.sleep(1)  # there is more to open


COULD_NOT_OPEN = "a worker could not open the dataset: OSError: few are enough; try workers=0"
KILLED = (
    "a worker was killed by SIGKILL while another was to start, as it happens when memory is short"
)
DEEDS = {
    "fail": (0, COULD_NOT_OPEN),
    "be_killed": (0, KILLED),
    "have_it_killed": (1, KILLED),
    "leave": (
        2,
        "3 workers in a row ended before they filled anything; the last exited with status 3; "
        "look at its output above, or try workers=0",
    ),
}


def train(loader: ringfeed.Loader, enough: Callable[[], bool]) -> Iterator[Any]:
    """Take batches, in order and with few workers replaced, until it is enough."""
    batches, seen = iter(loader), 0
    while not enough():
        assert check(next(batches)) == list(range(seen, seen + 4))
        assert loader.stats().restarts < 4
        seen += 4
    return batches


@pytest.mark.parametrize("method", ["spawn", "fork", "process"])
@pytest.mark.parametrize("deed", DEEDS)
def test_a_worker_that_cannot_open_the_dataset_is_refused(
    deed: str, method: str, tmp_path: Path
) -> None:
    """Training goes on with the worker there is, the tuner is told once.

    Nobody else is started.
    """
    restarts, why = DEEDS[deed]
    loader, script = scripted(Rare(tmp_path, deed), (1, 3), (1, 3), (2, 3), backend=method)
    with loader:
        batches = train(loader, lambda: bool(script.refusals))
        first = check(next(batches))[0]
        assert flat(check(next(batches)) for _ in range(5)) == list(range(first + 4, first + 24))
        assert script.refusals == [why]
        assert script.setting == Setting(1, 3)
        assert len(pids(loader)) == 1
        wait_until(lambda: loader.stats().restarts == restarts)
        pool_of(loader).resize(2)
        assert len(pids(loader)) == 1
    assert len((tmp_path / "pids").read_text().split()) == {"leave": 4}.get(deed, 2)


def test_the_real_tuner_makes_do(tmp_path: Path) -> None:
    """The statistics say which move was refused, and why; no more workers are tried."""
    loader = ringfeed.Loader(Rare(tmp_path, "fail"), batch_size=4, **ROOM)
    with loader:
        batches = train(loader, lambda: len(loader.stats().tuning) > 1)
        tried, refused = loader.stats().tuning[:2]
        assert (tried.setting.workers, refused.setting) == (2, Setting(1, 2))
        assert refused.why == COULD_NOT_OPEN
        assert loader._runner.tuner is not None
        assert loader._runner.tuner._most.workers == 1
        check(next(batches))


def test_a_worker_that_leaves_may_say_what_it_likes(tmp_path: Path) -> None:
    """One that was sent away while it opened the dataset, in vain, is no failure and no refusal."""
    loader, script = scripted(Rare(tmp_path, "fail_when_told"), (1, 3), (1, 3), (2, 3), (1, 3))
    with loader:
        batches = train(loader, lambda: not script._others)
        wait_until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
        (tmp_path / "told").touch()
        wait_until(lambda: len(pids(loader)) == 1)
        for _ in range(5):
            check(next(batches))
        assert script.refusals == []
        assert loader.stats().restarts == 0


@pytest.mark.usefixtures("irreplaceable")
def test_a_spare_worker_is_not_replaced_where_none_is(tmp_path: Path) -> None:
    """One that ends before it has filled anything is refused at once."""
    loader, script = scripted(Rare(tmp_path, "leave"), (1, 3), (1, 3), (2, 3))
    with loader:
        train(loader, lambda: bool(script.refusals))
        assert script.refusals == [
            "0 workers in a row ended before they filled anything; the last exited with status 3; "
            "look at its output above, or try workers=0"
        ]
        assert loader.stats().restarts == 0


def test_a_spare_worker_that_cannot_be_replaced_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a worker that only the tuner wanted cannot be replaced, training goes on without."""
    loader, script = scripted(Rare(tmp_path, "leave"), (1, 3), (1, 3), (2, 3))
    launch, launched = Processes._launch, 0

    def launch_two(pool: Processes) -> Any:
        nonlocal launched
        launched += 1
        if launched > 2:
            message = "no worker can be started: no memory"
            raise WorkerError(message)
        return launch(pool)

    monkeypatch.setattr(Processes, "_launch", launch_two)
    with loader:
        train(loader, lambda: bool(script.refusals))
        assert script.refusals == ["no worker can be started: no memory"]
        assert len(pids(loader)) == 1


def test_in_the_place_of_one_who_worked_the_rules_are_as_ever(tmp_path: Path) -> None:
    """A replacement that cannot open the dataset ends the run.

    Two have worked, so two are needed.
    """
    loader, script = scripted(Rare(tmp_path, "fail", openers=2), (1, 3), (1, 3), (2, 3))

    def both_work() -> bool:
        roster = pool_of(loader)._roster
        return not script._others and not any(map(roster.is_fresh, roster.workers.values()))

    with loader:
        batches = iter(loader)
        while not both_work():
            check(next(batches))
        os.kill(pids(loader)[1], signal.SIGKILL)
        with pytest.raises(WorkerError) as caught:
            drain(batches)
        assert str(caught.value) == COULD_NOT_OPEN
        assert script.refusals == []


class Fickle(Rare):
    """Has a new version each epoch, of which only the first can be unpickled in another process."""

    epoch = 0

    def on_epoch_begin(self) -> None:
        """Be another."""
        self.epoch, self.home = self.epoch + 1, os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fail, from the second epoch on."""
        vars(self).update(state)
        if self.epoch > 1 and os.getpid() != self.home:
            raise OSError("no more")


def test_one_who_has_worked_is_missed_though_another_is_to_come(tmp_path: Path) -> None:
    """An error of the only worker that has filled anything ends the run as ever."""
    loader, script = scripted(Fickle(tmp_path, "fail_when_told"), (1, 3), (1, 3), (2, 3))
    with loader:
        train(loader, lambda: not script._others)
        wait_until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
        with pytest.raises(WorkerError) as caught:
            next(iter(loader))
        (tmp_path / "told").touch()
        assert (
            str(caught.value)
            == "a worker could not open the dataset: OSError: no more; try workers=0"
        )
