"""Workers elsewhere give what workers here give, whatever dies, is late or answers twice; their actors are threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fake_fleet import FakeRay
from remote_sets import KINDS, Samples, content

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
FAULTS: dict[str, dict[str, Any]] = {
    "kills": {"kills": [2, 5, 9, 14]},
    "deaths after an answer": {"answered": [1, 4, 8]},
    "an actor that hangs": {"hangs": [3]},
    "late answers": {"late": {3: 1.5, 4: 1.5}},
    "doubled answers": {"doubles": [*range(1, 40)]},
    "calls that do not come through": {"unreached": [2, 6, 7]},
    "calls that are not carried out": {"broken": [2, 6]},
    "all": {
        "kills": [2, 9],
        "late": {3: 1.5},
        "doubles": [5, 6, 7],
        "unreached": [8],
        "broken": [10],
        "answered": [12],
    },
}


def remote(workers: int = 3, **script: Any) -> FakeRay:
    """Return actors of a script."""
    return FakeRay(workers=workers, runtime_env=script)


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    """Return what one worker here gives, by kind."""
    return {kind: content(dataset, workers=1, **given) for kind, (dataset, given) in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_dataset_is_the_same_bits(kind: str, here: dict[str, Any]) -> None:
    """With actors alone, in two epochs."""
    dataset, given = KINDS[kind]
    assert content(dataset, workers=0, backend=remote(), **given) == here[kind]


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_doubled_or_reordered(fault: str, here: dict[str, Any]) -> None:
    """By any fault of actors."""
    dataset, given = KINDS["samples"]
    assert content(dataset, workers=0, backend=remote(**FAULTS[fault]), **given) == here["samples"]


def test_a_bridge_that_dies_is_replaced(tmp_path: Path, here: dict[str, Any]) -> None:
    """What it held is made again."""
    dataset, given = KINDS["samples"]
    script = {"bridge_dies": 4, "lives": str(tmp_path / "died")}
    assert content(dataset, workers=0, backend=remote(**script), **given) == here["samples"]
    assert (tmp_path / "died").exists()


def test_workers_here_and_actors_fill_the_same_batches(here: dict[str, Any]) -> None:
    """Workers here come first."""
    dataset, given = KINDS["samples"]
    assert content(dataset, workers=1, backend=remote(), **given) == here["samples"]


def test_a_dataset_of_one_actor_is_read_by_one(here: dict[str, Any]) -> None:
    """One actor is enough."""
    assert content(Samples(), batch_size=16, shuffle=True, workers=0, backend=remote(1)) == here["samples"]
