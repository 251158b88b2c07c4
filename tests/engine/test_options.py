"""`ringfeed.engine.options`: what workers=, slots= and memory= mean together."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ringfeed
from datasets import Batches, Oracle
from ringfeed.engine import options
from ringfeed.engine import plan as budget
from ringfeed.engine.autotune import Setting
from ringfeed.engine.options import Options
from ringfeed.engine.plan import MOST_AUTO_SLOTS
from ringfeed.monitor import free_memory
from ringfeed.ring import _ring
from ringfeed.ring.segment import MIN_SLOTS

CPUS = 3
DEFAULTS: dict[str, Any] = {
    "workers": None,
    "slots": None,
    "memory": None,
    "backend": "process",
    "copy": False,
    "drop_remainder": False,
    "timeout_s": None,
    "on_stall": "raise",
    "on_error": "raise",
    "max_attempts": 3,
}


@pytest.fixture(autouse=True)
def _three_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "usable_cpus", lambda: CPUS)


def understood(**parameters: Any) -> tuple[int, int | None, int | str | None, list[str]]:
    """Return what options came to; ``whole`` and ``streams`` say what the dataset is."""
    source: Any = SimpleNamespace(
        at_once=parameters.pop("whole", False),
        is_async=False,
        local_only=False,
        streams=parameters.pop("streams", 0),
    )
    found = Options(source, **{**DEFAULTS, **parameters})
    return found.workers, found.slots, found.memory, sorted(found.auto)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, (3, None, None, [])),
        ({"workers": 0, "slots": 7}, (0, 7, None, [])),
        ({"workers": 5, "memory": "1GB"}, (5, None, "1GB", [])),
        ({"whole": True}, (3, 5, None, [])),
        ({"whole": True, "memory": 5}, (3, None, 5, [])),
        ({"whole": True, "slots": 4}, (3, 4, None, [])),
        ({"workers": "auto"}, (12, None, None, ["workers"])),
        ({"workers": "auto", "slots": 4}, (12, 4, None, ["workers"])),
        ({"workers": "auto", "whole": True}, (12, None, None, ["slots", "workers"])),
        ({"workers": "auto", "whole": True, "memory": 9}, (12, None, 9, ["workers"])),
        ({"slots": "auto"}, (3, None, None, ["slots"])),
        ({"slots": "auto", "memory": "1GB"}, (3, None, "1GB", ["slots"])),
        ({"slots": "auto", "whole": True}, (3, None, None, ["slots"])),
        ({"workers": "auto", "streams": 2}, (2, None, None, [])),
        ({"workers": "auto", "slots": "auto", "streams": 2}, (2, None, None, ["slots"])),
        ({"workers": 1, "streams": 2}, (1, None, None, [])),
    ],
)
def test_parameters_are_understood(parameters: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """Numbers, memory and "auto", each beside the others.

    What is "auto" counts as the most there may be.
    """
    assert understood(**parameters) == expected


def test_workers_of_a_large_machine_stay_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more by default, or by "auto", than a ring can have."""
    monkeypatch.setattr(options, "usable_cpus", lambda: 1000)
    assert understood()[0] == understood(workers="auto")[0] == _ring.MAX_WORKERS


@pytest.mark.parametrize("name", ["workers", "slots"])
def test_another_word_is_refused(name: str) -> None:
    """Only "auto" is a word."""
    with pytest.raises(ValueError, match=r".") as caught:
        ringfeed.Loader(Oracle(8), **{name: "Auto"})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name}='Auto'; give a number, or 'auto'"


def test_both_numbers_are_refused() -> None:
    """Of slots and memory each decides the other, unless the slots are "auto"."""
    with pytest.raises(ValueError, match="not both"):
        ringfeed.Loader(Oracle(8), slots=4, memory="1GB")


# ---- plans ----


class Heavy(Oracle):
    """Takes a megabyte in each worker, which pickles in band."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.ballast = bytes(10**6)


def loader_of(dataset: Any, **parameters: Any) -> ringfeed.Loader:
    """Return a loader, which is never begun."""
    return ringfeed.Loader(dataset, **{"batch_size": 4, **parameters})


def test_a_budget_bounds_workers_and_slots_together() -> None:
    """The plan of the most of both is within it."""
    loader = loader_of(Heavy(100), workers="auto", slots="auto", memory="5MB", backend="spawn")
    assert loader.memory <= 5 * 10**6
    assert loader.plan.workers == 3  # halved until the slots fit beside them
    assert loader.plan.slots == MOST_AUTO_SLOTS
    assert loader._runner.tuner is not None
    assert loader._runner.tuner._most == Setting(3, MOST_AUTO_SLOTS)
    least = loader._runner.tuner.setting
    assert (
        replace(loader.plan, workers=least.workers, slots=least.slots).total
        < loader.memory - 2 * 10**6
    )


def test_without_a_budget_slots_take_a_quarter_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the machine, or of the cgroup that has the least."""
    size = loader_of(Oracle(8), workers=1).plan
    free = 4 * (size.control_size + 6 * size.slot_size)
    monkeypatch.setattr(
        budget, "free_memory", lambda: iter([(10**12, "the machine has"), (free, "its cgroup has")])
    )
    plan = loader_of(Oracle(8), workers=1, slots="auto").plan
    assert MIN_SLOTS < plan.slots <= 6
    assert plan.total <= free // 4


def test_the_least_is_allowed_where_a_quarter_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slots there must be, if the machine has them; else it is refused as any plan is."""
    least = loader_of(Oracle(8), workers=1, slots=2).plan
    free = least.total + 1000
    for asked in (budget, free_memory):
        monkeypatch.setattr(asked, "free_memory", lambda: iter([(free, "the machine has")]))
    assert loader_of(Oracle(8), workers=1, slots="auto").plan.slots == MIN_SLOTS
    free = least.total // 2
    with pytest.raises(
        ringfeed.PlanError,
        match=r"^the plan needs .* \(2 slots of .*\), but the machine has .* free; ",
    ):
        loader_of(Oracle(8), workers=1, slots="auto")


def test_a_budget_under_the_least_is_refused() -> None:
    """As without "auto", in the same words."""
    with pytest.raises(ringfeed.PlanError) as caught:
        loader_of(np.zeros((8, 1000), np.uint8), slots="auto", workers="auto", memory="5kB")
    plan = loader_of(np.zeros((8, 1000), np.uint8), slots=2, workers=1).plan
    rest = plan.total - 2 * plan.slot_size - plan.control_size
    assert str(caught.value) == (
        f"memory='5kB' is 5.0 kB, but 2 slots of {budget.show_bytes(plan.slot_size)}, the control "
        f"block of {budget.show_bytes(plan.control_size)} and the dataset's "
        f"{budget.show_bytes(rest)} need {budget.show_bytes(plan.total)}; allow that much, or make "
        "batch_size smaller"
    )


def test_a_tuner_begins_with_the_least_of_what_it_tunes() -> None:
    """One worker, two slots; what is given is what it is."""
    assert loader_of(Oracle(8), workers="auto", slots=5)._runner.tuner.setting == Setting(1, 5)  # type: ignore[union-attr]
    assert loader_of(Oracle(8), workers=3, slots="auto")._runner.tuner.setting == Setting(3, 2)  # type: ignore[union-attr]
    assert loader_of(Oracle(8), workers=0, slots="auto")._runner.tuner.setting == Setting(0, 2)  # type: ignore[union-attr]
    assert loader_of(Batches(8), batch_size=None, workers="auto")._runner.tuner.setting == Setting(
        1, 2
    )  # type: ignore[union-attr]
    assert loader_of(Oracle(8))._runner.tuner is None
