"""A slice of many.py for every run of the tests, and proof that it would see what is left.

See many.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import lives
import many
from ringfeed.ring import segment
from ringfeed.system import guard

if TYPE_CHECKING:
    from collections.abc import Callable

LOADERS = 24
SEED = 20_270_000
MOST_RESIDENT = 100_000_000  # bytes; test_many asserts what is there, and many.py how much


def test_many_loaders_leave_nothing() -> None:
    """Loaders of all kinds, ended in all ways: as many processes, descriptors, mappings and threads as before."""
    found = many.run(time.time_ns() % 10**9, LOADERS, every=8)
    assert len(found) == 1 + LOADERS // 8
    assert found[-1].fds == found[0].fds
    assert found[-1].processes == found[0].processes
    assert found[-1].resident - found[0].resident < MOST_RESIDENT


def test_half_of_them_end_by_an_exception_or_a_kill() -> None:
    """A run has every kind and every ending, and at least a third of its loaders end badly."""
    rotation = lives.Rotation(SEED)
    drawn = [rotation.life(number) for number in range(1000)]
    badly = {ending.__name__ for group in ("exception", "kill") for ending in lives.ENDINGS[group]}
    assert {life.kind for life in drawn} == set(lives.KINDS)
    assert {life.ending for life in drawn} == set(lives.BY_NAME)
    assert sum(life.ending in badly for life in drawn) > 1000 / 3


def test_a_seed_decides_everything() -> None:
    """The same seed gives the same loaders."""
    one, other = lives.Rotation(SEED), lives.Rotation(SEED)
    assert [one.life(number) for number in range(100)] == [
        other.life(number) for number in range(100)
    ]


PEACEFUL = [
    (kind, name) for kind in ("in process", "fork") for name in lives.BY_NAME if "kill" not in name
]
KILLED = [("fork", name) for name in lives.BY_NAME if "kill" in name]


@pytest.mark.parametrize(("kind", "ending"), PEACEFUL + KILLED)
def test_each_ending_leaves_nothing(nothing_left: None, kind: str, ending: str) -> None:  # noqa: ARG001
    """Each way to end leaves nothing, in this process and with forked workers."""
    lives.BY_NAME[ending](
        lives.Life(1, kind, ending, 0 if kind == "in process" else 2, 3, 3, 35, 4)
    )


def first_failure() -> AssertionError:
    """Return how the first run of four loaders fails that does."""
    with pytest.raises(AssertionError) as caught:
        _run_on()
    return caught.value


def _run_on() -> None:
    for seed in range(SEED, SEED + 20):
        many.run(seed, 4, every=4)


def keeping(call: Callable[[Any], Any], kept: list[Any]) -> Callable[[Any], Any]:
    """Return a call that also keeps what it returns."""

    def called(self: Any) -> Any:
        kept.append(call(self))
        return kept[-1]

    return called


@pytest.mark.parametrize(
    "leak", ["descriptors of a lifeline", "descriptors of memory", "a mapping"]
)
def test_it_sees_what_is_left(
    nothing_left: None,  # noqa: ARG001
    leak: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is not closed, or kept mapped, ends the run, and the error names the seed and the loader."""
    kept: list[Any] = []
    monkeypatch.setattr(many, "PATIENCE_S", 0.1)
    place: Any = guard.Lifeline if "lifeline" in leak else segment.Segment
    with monkeypatch.context() as patched:
        if leak == "a mapping":
            patched.setattr(place, "open", keeping(place.open, kept))
        else:
            patched.setattr(place, "close", lambda self: kept.append(self))  # noqa: PLW0108 - it becomes a method
        error = first_failure()
    for thing in kept:
        getattr(thing, "close", int)()
    where = "left behind up to loader 4: ['" + (
        "mapping of /memfd:" if leak == "a mapping" else "fd "
    )
    assert str(error).startswith("python tests/support/many.py --seed 202700")
    assert where in str(error)


def test_it_tells_growth_from_a_level() -> None:
    """Memory that grows by more than fragments, or by an object a loader, is not flat.

    A short run is not judged.
    """
    level = [many.Footprint(5, 0, 300, 1, 20_000_000, 100_000)] * 6
    growing = [
        many.Footprint(5, 0, 300, 1, 20_000_000 + number * 500_000, 100_000) for number in range(6)
    ]
    leaking = [
        many.Footprint(5, 0, 300, 1, 20_000_000, 100_000 + number * 100) for number in range(6)
    ]
    verdicts = [
        many.is_flat(many.growth(found, 100) or (0, 0)) for found in (level, growing, leaking)
    ]
    assert verdicts == [True, False, False]
    assert many.growth(level[:3], 100) is None
