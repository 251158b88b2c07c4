"""Workers on a Ray cluster of three nodes: the same bits whatever is killed, and nothing left."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import cluster
import ringfeed
from remote_sets import KINDS, Samples, content, leaves_of
from ringfeed import Loader, WorkerError
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cluster import Cluster

why_not = cluster.why_not()
QUICK = {"RAY_worker_niceness": "0"}  # or actors would start after all else that this machine is at
pytestmark = [
    pytest.mark.once,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not), reason=f"{why_not}: make test-remote"),
]


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Return a cluster of three nodes, without tokens."""
    with pytest.MonkeyPatch.context() as patch, cluster.start(3, cpus=4, environment=QUICK) as found:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield found
    assert found.left() == []


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    """Return what one worker here gives, by kind."""
    return {kind: content(dataset, workers=1, **given) for kind, (dataset, given) in KINDS.items()}


def on(found: Cluster, workers: int = 3, **given: Any) -> ringfeed.Ray:
    """Return actors on a cluster."""
    return ringfeed.Ray(workers=workers, num_cpus=0.1, address=found.address, **given)


@pytest.mark.parametrize("kind", ["samples", "whole batches", "collate_fn", "iterable"])
def test_actors_give_the_same_bits(three: Cluster, here: dict[str, Any], kind: str) -> None:
    """Ray is not imported where training runs, and no actor is left."""
    dataset, given = KINDS[kind]
    assert content(dataset, workers=0, backend=on(three), timeout_s=200, **given) == here[kind]
    assert "ray" not in sys.modules
    assert three.without_actors(20)


def test_workers_here_and_actors_give_the_same_bits(three: Cluster, here: dict[str, Any]) -> None:
    """Together."""
    dataset, given = KINDS["samples"]
    assert content(dataset, workers=1, backend=on(three), timeout_s=200, **given) == here["samples"]


class Slow(Samples):
    """Samples that take a while."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(index)


def kill_bridge(_: Cluster, loader: Loader[Any]) -> None:
    """Kill the bridge."""
    assert loader._runner.engine is not None
    os.kill(loader._runner.engine.pool.pids()[-1], 9)


KILLS: dict[str, Callable[[Cluster, Loader[Any]], object]] = {
    "an actor": lambda found, _: next(node for node in found.nodes if node.actors).kill_actor(),
    "the bridge": kill_bridge,
    "a node": lambda found, _: found.nodes[2].kill(),  # last: it is not there for others
}


@pytest.mark.parametrize("what", KILLS)
def test_nothing_is_lost_when_it_is_killed(three: Cluster, what: str) -> None:
    """Amid an epoch."""
    expected = content(Slow(), epochs=1, batch_size=16, shuffle=True, workers=1)
    found: list[Any] = []
    ray = on(three)
    with Loader(Slow(), batch_size=16, shuffle=True, seed=1, workers=0, backend=ray, timeout_s=200) as loader:
        for number, batch in enumerate(loader):
            found.append([(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in leaves_of(batch)])
            if number == 4:
                wait_until(lambda: loader.stats().remote is not None and loader.stats().remote.there >= 2)
                KILLS[what](three, loader)
    assert [found] == expected
    assert three.without_actors(20)


class Fails(Samples):
    """A sample that raises."""

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            message = "the file is torn"
            raise OSError(message)
        return super().__getitem__(index)


def test_a_sample_that_raises_has_its_remote_traceback(three: Cluster) -> None:
    """And its node."""
    with pytest.raises(WorkerError) as caught:
        content(Fails(), batch_size=16, workers=0, backend=on(three), timeout_s=200)
    assert str(caught.value) == "dataset[17] raised OSError: the file is torn"
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["__getitem__"]
    assert any(re.fullmatch(r"on node [0-9.]+", note) for note in getattr(cause, "__notes__", ()))


def test_what_no_node_has_is_named(three: Cluster) -> None:
    """With what was asked."""
    with pytest.raises(WorkerError, match=r"no room|an actor asks for CPU=0\.1, gpuu=1, and of"):
        content(Samples(), batch_size=16, workers=0, backend=on(three, resources={"gpuu": 1}))


def test_an_address_where_nothing_runs_is_named() -> None:
    """With how to look, and the ways out."""
    with pytest.raises(WorkerError) as caught:
        content(Samples(), batch_size=16, workers=0, backend=ringfeed.Ray(address="127.0.0.1:9"))
    assert str(caught.value) == (
        "no Ray cluster answers at '127.0.0.1:9' within 10 s ([Errno 111] Connection refused); `ray status --address "
        "127.0.0.1:9` says whether one runs there; start one by `ray start --head`, or give address='local'"
    )


@pytest.mark.usefixtures("nothing_left")
def test_a_cluster_that_the_loader_starts_ends_with_it(monkeypatch: pytest.MonkeyPatch, here: dict[str, Any]) -> None:
    """Its actors give the same bits."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # or Ray would make a token for this user
    dataset, given = KINDS["samples"]
    ray = ringfeed.Ray(workers=2, num_cpus=0.1, address="local")
    assert content(dataset, workers=0, backend=ray, timeout_s=200, **given) == here["samples"]
    assert "ray" not in sys.modules
