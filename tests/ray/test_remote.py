"""Workers elsewhere give what workers here give, whatever dies, is late or answers twice.

Their actors are threads of the bridge.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from fake_fleet import FakeRay
from remote_sets import KINDS, Changes, Samples, bytes_of, content, moved
from ringfeed import Loader
from watching import wait_until

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


class Pictures:
    """Pictures that are converted on their way into the slot."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return np.full((8, 8, 4), index, np.uint8), index


class Lengths:
    """Samples that differ in length."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        length = index % 9 + 1
        return {
            "ragged": np.full((length, 2), index, np.int32),
            "padded": np.full(length, index, np.float32),
            "text": "äb" * length,
        }


def shown(**given: Any) -> list[str]:
    """Return what a loader gives of samples that differ in length."""
    with Loader(Lengths(), seed=1, timeout_s=60, **given) as loader:
        return [str({name: repr(batch[name]) for name in sorted(batch)}) for batch in loader]


def remote(workers: Any = 3, **script: Any) -> FakeRay:
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


@pytest.mark.parametrize("kind", ["samples", "iterable"])
def test_actors_of_a_node_that_is_gone_are_replaced(kind: str, here: dict[str, Any]) -> None:
    """Though no call says that they are dead: the cluster does not name the node any more."""
    dataset, given = KINDS[kind]
    with Loader(
        dataset, seed=1, timeout_s=None, workers=0, backend=remote(2, vanishes={"a": 3}), **given
    ) as loader:
        found = [bytes_of(loader) for _ in range(2)]
        wait_until(lambda: loader.stats().remote.deaths == 1 and loader.stats().remote.there == 2)
        assert [*loader.stats().remote.nodes] == ["10.0.0.1"], "the only one that is left"
    assert found == here[kind]


def test_workers_here_and_actors_fill_the_same_batches(here: dict[str, Any]) -> None:
    """Workers here come first."""
    dataset, given = KINDS["samples"]
    assert content(dataset, workers=1, backend=remote(), **given) == here["samples"]


def test_iterables_are_read_by_workers_here_and_by_actors(here: dict[str, Any]) -> None:
    """Each by one of them."""
    dataset, given = KINDS["Interleave"]
    assert content(dataset, workers=2, backend=remote(), **given) == here["Interleave"]


def test_an_iterable_with_workers_here_is_read_here(here: dict[str, Any]) -> None:
    """It has one reader, and the user is told which."""
    dataset, given = KINDS["iterable"]
    with pytest.warns(UserWarning, match="an iterable, which one worker reads") as told:
        found = content(dataset, workers=1, backend=remote(), **given)
    assert found == here["iterable"]
    assert str(told[0].message) == (
        "backend=Ray(...) with an iterable, which one worker reads, and workers here come first; "
        "give workers=0 to have an actor read it, or several iterables by "
        "ringfeed.datasets.Interleave"
    )


class Slow(Samples):
    """Samples that take a while."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_actors_come_as_training_waits_for_them(workers: int) -> None:
    """With Ray(workers="auto"), beside workers here or alone."""
    with Loader(
        Slow(), batch_size=16, workers=workers, backend=remote("auto"), timeout_s=60
    ) as loader:
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and (
            loader.stats().remote is None or loader.stats().remote.there < 2
        ):
            for _ in loader:
                pass
        stats = loader.stats()
    assert stats.remote is not None
    assert stats.remote.there >= 2


def test_several_bridges_share_the_actors(here: dict[str, Any]) -> None:
    """Each has its part, and an id of its own."""
    dataset, given = KINDS["samples"]
    ray = FakeRay(workers=3, bridges=2)
    assert content(dataset, workers=1, backend=ray, **given) == here["samples"]
    with Loader(dataset, **given, workers=0, backend=ray, timeout_s=60) as loader:
        for _ in loader:
            pass
        wait_until(lambda: loader.stats().remote is not None and loader.stats().remote.there == 3)
        assert loader._runner.engine is not None
        assert len(loader._runner.engine.pool.pids()) == 2


def test_ranks_have_each_sample_once_and_a_state_goes_on_with_fewer() -> None:
    """Four trainings, each with a bridge of its own; two go on with what they saved."""

    def rows(
        rank: int, world_size: int, state: Any = None, batches: int = 100
    ) -> tuple[list[int], Any]:
        with Loader(
            Samples(),
            batch_size=24 // world_size,
            shard=ringfeed.Shard(rank, world_size),
            shuffle=True,
            seed=3,
            workers=0,
            backend=remote(),
            timeout_s=60,
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found: list[int] = []
            for number, (_, labels) in enumerate(loader, 1):
                found += labels.tolist()
                if number == batches:
                    return found, loader.state_dict()
            return found, None

    assert sorted(row for rank in range(4) for row in rows(rank, 4)[0]) == [*range(100)]
    first = [rows(rank, 4, batches=2) for rank in range(4)]
    assert all(state == first[0][1] for _, state in first)
    rest = [row for rank in range(2) for row in rows(rank, 2, first[0][1])[0]]
    assert sorted([*(row for found, _ in first for row in found), *rest]) == [*range(100)]


def test_epochs_that_are_set_broken_off_and_gone_on_with() -> None:
    """Of a dataset that changes with each."""
    assert moved(workers=0, backend=remote()) == moved(workers=1)


def test_what_a_hook_changes_is_sent_to_actors() -> None:
    """Only what has changed is put again."""
    expected = content(Changes(), epochs=3, batch_size=16, workers=1)
    assert (
        content(Changes(), epochs=3, batch_size=16, workers=0, backend=remote(kills=[9]))
        == expected
    )
    assert expected[0] != expected[1]


def test_a_resumed_epoch_is_the_rest_of_it() -> None:
    """As with workers here."""
    dataset, given = KINDS["samples"]
    with Loader(dataset, **given, seed=1, workers=0, backend=remote(), timeout_s=60) as loader:
        batches = iter(loader)
        first = [next(batches)[1].tolist() for _ in range(3)]
        state = loader.state_dict()
    with Loader(dataset, **given, seed=1, workers=1, timeout_s=60) as loader:
        every = [labels.tolist() for _, labels in loader]
    with Loader(dataset, **given, seed=1, workers=0, backend=remote(), timeout_s=60) as loader:
        loader.load_state_dict(state)
        assert first + [labels.tolist() for _, labels in loader] == every


def test_samples_travel_as_uint8_and_are_converted_here() -> None:
    """A quarter of the bytes."""
    spec = (
        ringfeed.Array((4, 8, 8), "float32", scale=1 / 255, layout="CHW"),
        ringfeed.Array((), "int64"),
    )
    given: dict[str, Any] = {"batch_size": 16, "spec": spec}
    with Loader(Pictures(), **given, workers=0, backend=remote(), timeout_s=60) as loader:
        for _ in loader:
            pass
        # The next epoch is read ahead, and counts.
        wait_until(lambda: loader.stats().remote is not None and loader.stats().remote.rows >= 64)
        stats = loader.stats()
    assert stats.remote is not None
    assert stats.remote.bytes // stats.remote.rows == 8 * 8 * 4 + 8
    assert content(Pictures(), **given, workers=0, backend=remote()) == content(
        Pictures(), **given, workers=1
    )


def test_samples_that_differ_in_length_are_the_same(here: dict[str, Any]) -> None:
    """As ragged and padded batches, and text."""
    assert here
    spec = {
        "ragged": ringfeed.Array((None, 2), "int32", form="ragged", max_shape=(9, 2)),
        "padded": ringfeed.Array((None,), "float32", form="pad", max_shape=(9,), lengths=True),
        "text": ringfeed.Text(40),
    }
    given: dict[str, Any] = {"batch_size": 16, "spec": spec, "copy": True}
    assert shown(workers=0, backend=remote(kills=[3]), **given) == shown(workers=1, **given)


def test_a_dataset_of_one_actor_is_read_by_one(here: dict[str, Any]) -> None:
    """One actor is enough."""
    assert (
        content(Samples(), batch_size=16, shuffle=True, workers=0, backend=remote(1))
        == here["samples"]
    )
