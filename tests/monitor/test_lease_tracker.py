"""`ringfeed.monitor.lease_tracker`: where batches were taken, after `ringfeed.debug()`."""

from __future__ import annotations

import _thread
import itertools
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
from datasets import Oracle
from ringfeed.monitor.lease_tracker import (
    Debug,
    LeaseTracker,
    callers_place,
    from_here,
    show_ages,
    summed_up,
)
from ringfeed.ring import _ring
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 60.0
HERE = Path(__file__)


@pytest.fixture(autouse=True)
def debug_ends() -> Iterator[None]:
    """No other test notes anything."""
    yield
    ringfeed.debug(on=False)


def calling(
    module: str, called: Callable[[], Any], found: list[Any] | None = None
) -> Callable[[], Any]:
    """Return a function of some module that calls another, and keeps what that returns."""
    space: dict[str, Any] = {
        "__name__": module,
        "called": called,
        "found": [] if found is None else found,
    }
    source = "def passes_on():\n    found.append(called())\n    return found[-1]"
    exec(compile(source, f"/there/{module}.py", "exec"), space)  # noqa: S102 - no real module
    passes_on: Callable[[], Any] = space["passes_on"]
    return passes_on


def line_of(mark: str) -> int:
    """Return the number of the only line of this file that ends with a mark."""
    (number,) = (
        number
        for number, line in enumerate(HERE.read_text().splitlines(), 1)
        if line.endswith(f"# {mark}")
    )
    return number


def here(mark: str, function: str) -> str:
    """Return the place of the marked line, as it is told."""
    return from_here(f"{__file__}:{line_of(mark)} in {function}")


# ---- the place ----


def test_the_users_own_line_is_the_place() -> None:
    """Frames of this package and of frameworks are passed over, however many."""
    deep = calling(
        "keras.src.trainers",
        calling("tensorflow.python", calling("ringfeed.engine.engine", callers_place)),
    )
    place = deep()  # outermost
    assert place == f"{__file__}:{line_of('outermost')} in test_the_users_own_line_is_the_place"


def test_the_innermost_of_the_users_lines_is_the_place() -> None:
    """A callback that asks is named, and not the framework's caller."""
    place = calling(
        "keras.src.trainers", calling("mine.callbacks", calling("ringfeed.loader", callers_place))
    )()
    assert place == "/there/mine.callbacks.py:2 in passes_on"


def test_a_name_that_only_begins_like_the_packages_is_the_users() -> None:
    """A package ringfeed_recipes is not ours, and kerastuner is no part of Keras."""
    assert (
        calling("ringfeed_recipes", callers_place)() == "/there/ringfeed_recipes.py:2 in passes_on"
    )
    assert calling("kerastuner.run", callers_place)() == "/there/kerastuner.run.py:2 in passes_on"


def test_in_a_thread_of_a_framework_its_line_is_the_place() -> None:
    """Where no line is the user's, the innermost outside this package is told."""
    found: list[Any] = []
    work = calling(
        "keras.src.queue",
        calling("tensorflow.python", calling("ringfeed.loader", callers_place)),
        found,
    )
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE_S)
    assert found == ["/there/tensorflow.python.py:2 in passes_on"]


def test_where_only_c_code_asks_there_is_no_place() -> None:
    """A thread that C code made has no line but this package's own."""
    found: list[Any] = []
    _thread.start_new_thread(
        calling("ringfeed.frameworks.tensorflow.feed", callers_place, found), ()
    )
    wait_until(lambda: bool(found))
    assert found == [""]


def test_a_file_below_the_working_directory_is_told_by_its_path_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other by its whole name, and so is every file once the directory is gone."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    inside = f"{Path.cwd()}/models/train.py:41 in step"
    assert from_here(inside) == "models/train.py:41 in step"
    for place in ("/elsewhere/train.py:41 in step", "<stdin>:1 in <module>"):
        assert from_here(place) == place
    (tmp_path / "work").rmdir()
    assert from_here(inside) == inside


# ---- what is told ----


def test_the_warning_tells_where_the_held_batches_were_taken() -> None:
    """With debug on, the most frequent place first; what was taken before is told apart."""
    with ringfeed.Loader(Oracle(80), batch_size=2, slots=4, workers=1) as loader:
        batches = iter(loader)
        kept = [next(batches)]
        ringfeed.debug()
        next(batches)  # let go at once: its slot is another's soon
        kept.append(next(batches))  # one
        with pytest.warns(ringfeed.SlotsHeldWarning) as seen:
            kept.extend(batch for batch in batches)  # two
        assert [re.sub(r"\d+\.\d", "T", str(warning.message)) for warning in seen] == [
            "3 of 4 slots are held by arrays that are still referenced (taken T, T, T s ago: 1 "
            "before ringfeed.debug(), 1 from "
            f"{here('one', 'test_the_warning_tells_where_the_held_batches_were_taken')}, 1 from "
            f"{here('two', '<genexpr>')}), so batches are handed out as private copies until a "
            "slot comes back; copy what you keep, raise slots=, or give copy=True"
        ]
        assert (seen[0].filename, seen[0].lineno) == (__file__, line_of("two"))


def test_adapters_forms_are_noted_too() -> None:
    """What a form makes of a batch is held like arrays."""
    ringfeed.debug()
    with ringfeed.Loader(Oracle(20), batch_size=2, workers=0) as loader:
        batches = loader._stream.epoch(lambda lease, _: lease)
        lease = next(batches)  # formed
        assert [held.place for held in loader.stats().memory.held] == [
            here("formed", "test_adapters_forms_are_noted_too")
        ]
        del lease
        assert loader.stats().memory.held == ()


def test_what_c_code_took_is_told_so() -> None:
    """A slot whose newest batch Python has not taken keeps nothing of the batch before it."""
    lease_tracker = LeaseTracker()
    before_ns = _ring.now_ns()
    assert lease_tracker.where_taken(before_ns) == ""
    ringfeed.debug()
    first_ns, second_ns = Debug.since_ns + 1, Debug.since_ns + 2
    lease_tracker.note(3, first_ns)
    assert lease_tracker.where_taken(first_ns).endswith(" in test_what_c_code_took_is_told_so")
    assert lease_tracker.where_taken(second_ns) == "C code"
    assert lease_tracker.where_taken(before_ns) == "before ringfeed.debug()"


def test_debug_twice_is_debug_once() -> None:
    """Asking for it again does not make what was noted old."""
    ringfeed.debug()
    since_ns = Debug.since_ns
    ringfeed.debug()
    assert Debug.since_ns == since_ns > 0
    ringfeed.debug(on=False)
    assert Debug.since_ns == 0


def test_nothing_is_noted_without_debug() -> None:
    """Which is how every process begins."""
    with ringfeed.Loader(Oracle(20), batch_size=2, workers=0) as loader:
        kept = list(itertools.islice(loader, 2))
        assert loader._runner.engine is not None
        assert loader._runner.engine.lease_tracker._places == {}
        assert [held.place for held in loader.stats().memory.held] == ["", ""]
        del kept


def test_places_are_summed_up() -> None:
    """The most frequent first; ages in their order, and no more than a line holds."""
    places = ["a.py:1 in f", "C code", "a.py:1 in f", "before ringfeed.debug()"]
    assert summed_up(places) == "2 from a.py:1 in f, 1 from C code, 1 before ringfeed.debug()"
    assert show_ages([12.34, 0.06]) == "12.3, 0.1"
    assert show_ages([1.0] * 9) == "1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, …"
