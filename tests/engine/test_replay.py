"""What is read again to go on amid an epoch.

One warning at the user's line once that takes more than a second.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from contextlib import contextmanager
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from datasets import Indices
from ringfeed.orders import replay
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
LENGTH = 3000
IN = "going on amid an epoch: "
AT_ONCE = " in the first 2.0 s; "


class Hooked(Indices):
    """A hook of its own."""

    def on_epoch_end(self) -> None:
        """Do nothing."""


def numbers() -> Iterator[np.int64]:
    """Give the numbers in order."""
    yield from np.arange(LENGTH)


def own(_: int) -> Iterator[int]:
    """Give an order."""
    return iter(range(LENGTH))


def lists(_: int) -> Iterator[list[int]]:
    """Give the same in lists."""
    return ([number] for number in range(LENGTH))


REPLAYS: dict[str, tuple[Callable[[], ringfeed.Loader], dict[str, int], str]] = {
    "sampler": (
        lambda: ringfeed.Loader(Indices(LENGTH), batch_size=10, sampler=own, workers=0),
        {"epoch": 0, "samples": 2000},
        "what sampler= gives before this place is read once more, 1024 of 2000"
        + AT_ONCE
        + "give the sampler state_dict() and load_state_dict(), or give an array or a list",
    ),
    "batch_sampler": (
        lambda: ringfeed.Loader(Indices(LENGTH), batch_sampler=lists, workers=0),
        {"epoch": 0, "samples": 2000},
        "what batch_sampler= gives before this place is read once more, 2 of 2000"
        + AT_ONCE
        + "give the sampler state_dict() and load_state_dict(), or give an array or a list",
    ),
    "hooks": (
        lambda: ringfeed.Loader(Hooked(LENGTH), batch_size=10, workers=0),
        {"epoch": 9, "samples": 20, "hooks": 9},
        "the hooks of the dataset run once more, 1 of 9"
        + AT_ONCE
        + "give the dataset state_dict() and load_state_dict()",
    ),
    "iterable": (
        lambda: ringfeed.Loader(numbers, batch_size=10, workers=0),
        {"epoch": 0, "samples": 2000},
        "the elements before element 2000 of the iterable are read once more, 1 of 2000"
        + AT_ONCE
        + "give the iterable state_dict() and load_state_dict(), whose states are JSON",
    ),
}


@pytest.mark.parametrize("case", REPLAYS)
def test_a_slow_replay_is_told_once(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read again, how far that is, and how to do without.

    At the line of the user's loop.
    """
    make, place, message = REPLAYS[case]
    ticks = count()
    monkeypatch.setattr(replay, "clock", lambda: float(next(ticks)))
    with make() as loader:
        loader.load_state_dict({**loader.state_dict(), **place})
        with pytest.warns(UserWarning, match=r"^going on amid an epoch: ") as caught:
            batch = next(iter(loader))
    assert [str(one.message) for one in caught] == [IN + message]
    assert [one.filename for one in caught] == [__file__]
    assert batch[0] == place["samples"]


@pytest.mark.parametrize("case", REPLAYS)
def test_a_quick_replay_is_not_told(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second there is no warning."""
    make, place, _ = REPLAYS[case]
    monkeypatch.setattr(replay, "clock", lambda: 0.0)
    with make() as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict({**loader.state_dict(), **place})
        assert next(iter(loader))[0] == place["samples"]


@pytest.mark.parametrize("case", REPLAYS)
def test_a_warning_made_an_error_loses_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes out of the loop, and the place can be gone on from again."""
    make, place, message = REPLAYS[case]
    ticks = count()
    monkeypatch.setattr(replay, "clock", lambda: float(next(ticks)))
    with make() as loader:
        state = {**loader.state_dict(), **place}
        loader.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises((UserWarning, ringfeed.WorkerError), match=re.escape(message)):
                next(iter(loader))
        monkeypatch.setattr(replay, "clock", lambda: 0.0)
        loader.load_state_dict(state)
        assert next(iter(loader))[0] == place["samples"]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_warning_made_an_error_is_of_no_element(
    on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same loop goes on with the element that comes next, and has no second warning."""
    ticks = count()
    monkeypatch.setattr(replay, "clock", lambda: float(next(ticks)))
    with ringfeed.Loader(numbers, batch_size=10, workers=0, on_error=on_error) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 2000})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            batches = iter(loader)
            with pytest.raises(UserWarning, match=r"^going on amid an epoch: "):
                next(batches)
            assert loader.state_dict()["samples"] == 2000
            assert [number for batch in batches for number in batch.tolist()] == [
                *range(2000, LENGTH)
            ]


class Gate:
    """An iterable that stops at an element until a file is there, at most a minute."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[np.int64]:
        deadline = time.monotonic() + 60
        for number in np.arange(LENGTH):
            while number == 1000 and not self.path.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield number


@contextmanager
def opened_by(path: Path, caught: list[Any]) -> Iterator[None]:
    """Open the gate when there is a warning."""

    def wait() -> None:
        try:
            wait_until(lambda: bool(caught))
        finally:
            path.touch()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize(
    "settings", [{"backend": "thread"}, {"backend": "spawn"}, {"backend": "fork"}]
)
def test_workers_that_read_again_are_told_of(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the user's loop waits for the first batch."""
    monkeypatch.setattr(replay, "clock", lambda: time.monotonic() + 100)
    path = tmp_path / "open"
    with ringfeed.Loader(Gate(path), batch_size=10, workers=1, **settings) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 2000})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with opened_by(path, caught):
                seen = [batch[0] for batch in islice(loader, 3)]
    assert seen == [2000, 2010, 2020]
    (warning,) = caught
    assert warning.category is UserWarning
    assert warning.filename == __file__
    expected = (
        r"going on amid an epoch: the elements before element 2000 of the iterable are read once more, (\d+) of 2000 "
        r"in the first 100\.\d s; give the iterable state_dict\(\) and load_state_dict\(\), whose states are JSON"
    )
    found = re.fullmatch(expected, str(warning.message))
    assert found is not None
    assert int(found[1]) in range(0, 1001, 16)
