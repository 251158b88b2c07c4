"""`Loader.repeat`: several epochs by one iterator, which are those of as many `for` loops."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
from ahead import loader_with
from datasets import Oracle
from numbered import ByNumber, taken
from ringfeed.engine._repeated import Repeated
from ringfeed.frameworks.base import Epochs
from ringfeed.orders.rng import installed
from watching import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 4
LENGTH = 23  # 6 batches
HOW: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2, "backend": "fork"},
    {"workers": 2, "backend": "thread", "ahead": True},
    {"workers": 2, "backend": "thread", "copy": True},
]


def loader_of(dataset: Any = None, **settings: Any) -> ringfeed.Loader:
    """Return a loader whose epochs differ."""
    given = ByNumber(LENGTH) if dataset is None else dataset
    return loader_with(
        given, **{"batch_size": ROWS, "shuffle": True, "seed": 3, "workers": 0, **settings}
    )


def epochs(count: int) -> list[Any]:
    """Return the batches of some epochs, from one `for` each."""
    with loader_of() as loader:
        return [batch for _ in range(count) for batch in taken(loader)]


def place(loader: ringfeed.Loader) -> tuple[int, int]:
    """Return the epoch and the sample that the state says."""
    state = loader.state_dict()
    return state["epoch"], state["samples"]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_it_gives_what_as_many_loops_give(number: int, how: dict[str, Any]) -> None:
    """Batches, their order and their random numbers are the same; then it is over, and stays so."""
    with loader_of(**how) as loader:
        batches = loader.repeat(number)
        assert len(batches) == number * len(loader)
        assert iter(batches) is batches
        assert taken(batches) == epochs(number)
        assert next(batches, None) is None
        assert loader.epoch == number


@pytest.mark.parametrize("how", HOW, ids=str)
def test_it_goes_on_without_end(how: dict[str, Any]) -> None:
    """Steps are counted, not epochs; it has no length."""
    with loader_of(**how) as loader:
        batches = loader.repeat()
        assert taken(islice(batches, 20)) == epochs(4)[:20]
        with pytest.raises(TypeError, match=re.escape("repeat() goes on without end")):
            len(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_is_right_at_any_batch(workers: int) -> None:
    """So are remaining and len; after the last batch they are those of the next epoch."""
    with loader_of(workers=workers, backend="fork") as loader:
        seen = []
        for number, _ in enumerate(loader.repeat(3), 1):
            seen.append((place(loader), loader.remaining, len(loader)))
            assert place(loader) == (number // 6, number % 6 * ROWS)
            state = loader.state_dict()
            with loader_of() as other:
                other.load_state_dict(state)
                assert taken(islice(other.repeat(), 8)) == epochs(5)[number : number + 8]
        assert place(loader) == (3, 0)
    assert [left for _, left, _ in seen] == [5, 4, 3, 2, 1, 6] * 3
    assert {length for *_, length in seen} == {6}


def test_the_rest_of_an_epoch_counts_as_one() -> None:
    """After a state, ``repeat(n - loader.epoch)`` ends where the run that was not cut does."""
    with loader_of() as loader:
        loader.load_state_dict({**loader.state_dict(), "epoch": 1, "samples": 8})
        assert taken(loader.repeat(3 - loader.epoch)) == epochs(3)[8:]
        assert loader.epoch == 3


def test_it_begins_when_a_batch_is_asked_for() -> None:
    """An iterator that is not read supersedes none, and goes where the loader goes meanwhile."""
    with loader_of() as loader:
        older = iter(loader)
        batches = loader.repeat(1)
        next(older)
        loader.set_epoch(2)
        assert taken(batches) == epochs(3)[12:]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("steps", [0, 1, 5, 6, 7, 11])
def test_breaking_off(steps: int, how: dict[str, Any]) -> None:
    """The epoch under way is over, as with a `for` that was left.

    One whose last batch was handed out is whole.
    """
    with loader_of(**how) as loader:
        for number, _ in enumerate(loader.repeat(), 1):
            if number >= steps:
                break
        begun = -(-max(steps, 1) // 6)
        assert loader.epoch == begun
        assert taken(loader) == epochs(begun + 1)[6 * begun :]


def test_an_exception_in_the_loop_breaks_it_off() -> None:
    """It holds nothing afterwards, and the next epoch is whole."""
    with loader_of(workers=2, backend="fork") as loader:
        with pytest.raises(ZeroDivisionError):
            [1 / (8 - number) for number, _ in enumerate(loader.repeat(2))]
        assert taken(loader) == epochs(3)[12:]


def test_the_newest_iterator_wins() -> None:
    """Whichever kind it is of."""
    with loader_of() as loader:
        older, newer = loader.repeat(), loader.repeat()
        next(older)
        assert taken(islice(newer, 2)) == epochs(2)[6:8]
        for _ in range(2):
            with pytest.raises(ringfeed.SupersededError, match="a newer iterator"):
                next(older)
        iter(loader)
        with pytest.raises(ringfeed.SupersededError, match="a newer iterator"):
            next(newer)


def test_set_epoch_and_skip_within_an_epoch() -> None:
    """They say where the next one begins, as for the next `for`."""
    with loader_of() as loader:
        batches = loader.repeat(3)
        first = taken(islice(batches, 1))
        loader.set_epoch(4)
        loader.skip(batches=2)
        expected = epochs(6)
        assert first + taken(batches) == expected[:6] + expected[26:]


class Hooked(ByNumber):
    """Notes when its hooks run, and changes with them; some of them raise."""

    def __init__(self, failing: str = "") -> None:
        super().__init__(8)
        self.ran: list[str] = []
        self.failing = failing

    def _run(self, name: str) -> None:
        self.ran.append(name)
        if name == self.failing:
            self.failing = ""
            raise ArithmeticError(name)

    def on_epoch_begin(self) -> None:
        self._run(f"begin {self.ran.count('end')}")

    def on_epoch_end(self) -> None:
        self._run("end")


def test_hooks_run_between_the_epochs() -> None:
    """Each epoch has both, ahead of the next one's."""
    dataset = Hooked()
    with loader_of(dataset) as loader:
        for number, _ in enumerate(loader.repeat(2), 1):
            expected = ["begin 0"] if number <= 2 else ["begin 0", "end", "begin 1"]
            assert dataset.ran == expected
    assert dataset.ran == ["begin 0", "end", "begin 1", "end"]


@pytest.mark.parametrize(("failing", "at"), [("begin 0", 0), ("begin 1", 2), ("end", 2)])
def test_a_hook_that_raises_loses_nothing(failing: str, at: int) -> None:
    """The error comes where the hook runs.

    The next call goes on, with the hook that begins an epoch again.
    """
    dataset = Hooked(failing)
    with loader_of(Hooked()) as loader:
        expected = taken(loader.repeat(2))
    with loader_of(dataset) as loader:
        batches = loader.repeat(2)
        seen = taken(islice(batches, at))
        with pytest.raises(ArithmeticError, match=failing):
            next(batches)
        assert seen + taken(batches) == expected
    again = ["begin 0"] * (failing == "begin 0"), ["begin 1"] * (failing == "begin 1")
    assert dataset.ran == [*again[0], "begin 0", "end", *again[1], "begin 1", "end"]


class Failing(ByNumber):
    """Sample 5 cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise OSError
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_read(workers: int) -> None:
    """Its error comes in its place in each epoch, and the next call goes on behind it."""
    with ringfeed.Loader(Failing(12), batch_size=4, workers=workers) as loader:
        batches: Iterator[Any] = loader.repeat(2)
        seen = []
        for _ in range(6):
            try:
                seen.append(int(next(batches)[0][0]))
            except ringfeed.WorkerError:
                seen.append(-1)
        assert seen == [0, -1, 8] * 2
        assert next(batches, None) is None


class Dying(Oracle):
    """Its workers die before they fill anything."""

    def __getitem__(self, index: int) -> Any:
        signal.raise_signal(signal.SIGKILL)


@pytest.mark.usefixtures("irreplaceable")
def test_workers_that_have_failed_end_it() -> None:
    """What ends an epoch before its time ends the iteration, as it ends a `for`."""
    how: dict[str, Any] = {"workers": 1, "backend": "fork", "spec": Oracle.SPEC}
    with ringfeed.Loader(Dying(12), batch_size=4, **how) as loader:
        batches = loader.repeat()
        with pytest.raises(ringfeed.WorkerError):
            next(batches)
        assert next(batches, None) is None


def test_a_closed_loader() -> None:
    """Says so each time."""
    with loader_of() as loader:
        batches, others = loader.repeat(), loader.repeat()
        next(batches)
    for ended in (batches, batches, others, others):
        with pytest.raises(ringfeed.ClosedError):
            next(ended)


@pytest.mark.parametrize("number", [None, 3])
@pytest.mark.parametrize("samples", [0, 8])
def test_epochs_without_a_batch_end(samples: int, number: int | None) -> None:
    """Without end would be for ever; the rest of one that has no batch is not the end."""
    with ringfeed.Loader(
        lambda: iter(range(0)), batch_size=4, workers=0, spec=ringfeed.Array((), "int64")
    ) as loader:
        assert [*loader.repeat(number)] == []
        assert loader.epoch == (number or 2)
    with loader_of(ByNumber(8), sampler=range(samples), shuffle=False) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": samples})
        assert len(taken(islice(loader.repeat(number), 3))) == (samples > 0) * 3


def test_an_iterator_is_read_once() -> None:
    """The second epoch says why there is none."""
    with ringfeed.Loader(iter(range(8)), batch_size=4, spec=ringfeed.Array((), "int64")) as loader:
        batches = loader.repeat()
        assert [batch.tolist() for batch in islice(batches, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(ValueError, match="cannot be read again for epoch 1"):
            next(batches)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (-1, ValueError, "epochs=-1 must be at least 0"),
        (1.5, TypeError, "epochs=1.5 must be an int"),
    ],
)
def test_what_is_no_number_of_epochs(given: Any, error: type[Exception], message: str) -> None:
    """Is refused."""
    with loader_of() as loader, pytest.raises(error) as caught:
        loader.repeat(given)
    assert str(caught.value) == message


class Interrupting(Hooked):
    """Has Ctrl-C pressed in its hooks."""

    def _run(self, name: str) -> None:
        try:
            super()._run(name)
        except ArithmeticError:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("hook", ["begin 0", "end", "begin 1"])
def test_ctrl_c_between_two_epochs_loses_nothing(hook: str) -> None:
    """The state is that of the next batch, and the next call gives it."""
    with loader_of(Hooked()) as loader:
        expected = taken(loader.repeat(2))
    with loader_of(Interrupting(hook)) as loader:
        batches = loader.repeat(2)
        seen = []
        with pytest.raises(KeyboardInterrupt):
            seen.extend(iter(lambda: taken([next(batches)])[0], None))
        epoch, samples = place(loader)
        assert epoch * 8 + samples == len(seen) * ROWS
        assert seen + taken(batches) == expected


def interrupted(batches: Iterator[Any], line: int) -> tuple[bool, list[Any]]:
    """Take a batch, with Ctrl-C ahead of this one of ringfeed's lines.

    Return whether it came, and the batch.
    """
    lines, before = count(), sys.gettrace()

    def trace(frame: Any, event: str, _: object) -> Any:
        if "ringfeed" in frame.f_code.co_filename and event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        came = [next(batches)]
    except KeyboardInterrupt:
        came = []
    finally:
        sys.settrace(before)
    return next(lines) > line, taken(came)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of the old iterator's end
@pytest.mark.parametrize("of", ["a loader", "a framework's epochs"])
def test_ctrl_c_at_any_line_of_the_border(of: str) -> None:
    """Wherever it comes between two epochs, no batch and no epoch is lost."""
    expected = epochs(2)
    for line in range(2000):
        with loader_of(timeout_s=PATIENCE_S) as loader:
            epochs_of = loader if of == "a loader" else Epochs(loader._stream, loader._begin_epoch)
            batches = epochs_of.repeat(2)
            seen = taken(islice(batches, 6))
            was_hit, came = interrupted(batches, line)
            installed.context = (
                None  # Ctrl-C ahead of the line that does it comes here alone: it has no call
            )
            assert seen + came + taken(batches) == expected
        if not was_hit:
            break
    assert line > 300


def test_several_threads_share_one() -> None:
    """Each batch of each epoch goes to one of them; no thread ends the epoch of another."""
    seen: list[Any] = []
    with loader_of(workers=1, backend="thread", copy=True) as loader:
        batches = loader.repeat(30)
        threads = [threading.Thread(target=lambda: seen.extend(taken(batches))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(seen) == sorted(epochs(30))


class First:
    """An epoch is over for one thread and superseded for another while the next begins."""

    failure = None

    def __init__(self) -> None:
        self.both_ask = threading.Barrier(2)
        self.superseded = threading.Event()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.both_ask.wait(60):
            raise StopIteration
        self.superseded.wait(60)
        message = "a newer iterator of this loader has taken over"
        raise ringfeed.SupersededError(message)


class Two:
    """This epoch, and then one of two batches."""

    def __init__(self) -> None:
        self.first = First()
        self.begun = 0

    def __iter__(self) -> Any:
        self.begun += 1
        if self.begun == 1:
            return self.first
        self.first.superseded.set()
        time.sleep(
            0.2
        )  # for the other thread to hear of it: it must wait for what is returned here
        return iter([1, 2])


def test_a_thread_that_asks_while_another_begins_the_next_epoch() -> None:
    """It has a batch of that epoch, and no error."""
    batches, seen = Repeated(Two(), 2), []
    threads = [
        threading.Thread(target=lambda: seen.append(next(batches)), daemon=True) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == [1, 2]


def test_the_next_epoch_is_ready_at_the_border() -> None:
    """The slots have its batches before this epoch's last was dropped, as for two loops."""
    with loader_of(ByNumber(6 * ROWS), workers=1, backend="thread", ahead=True) as loader:
        batches = loader.repeat()
        for _ in range(5):
            next(batches)
        wait_until(lambda: loader.slot_states().count("ready") == 4)
        next(batches)
        ring = loader._runner.engine and loader._runner.engine.ring
        assert ring is not None
        before = ring.plan_taken
        next(batches)
        assert ring.plan_taken == before + 1
