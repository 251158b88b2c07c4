"""Workers on a Ray cluster of three nodes: the same bits whatever is killed, and nothing left."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

import cluster
import ringfeed
from remote_sets import KINDS, Fails, Samples, content, leaves_of
from ringfeed import Loader, Shard, StallError, WorkerError
from ringfeed.ray import board
from watching import lose_patience, run_script, start_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cluster import Cluster

why_not = cluster.why_not()
QUICK = {"RAY_worker_niceness": "0"}  # or actors would start after all else that this machine is at
pytestmark = [
    pytest.mark.once,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not), reason=f"{why_not}: make test-all"),
]


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Return a cluster of three nodes, without tokens."""
    with (
        pytest.MonkeyPatch.context() as patch,
        cluster.start(3, cpus=4, environment=QUICK) as found,
    ):
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield found
    assert found.left() == []


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    """Return what one worker here gives, by kind."""
    return {kind: content(dataset, workers=1, **given) for kind, (dataset, given) in KINDS.items()}


def on(found: Cluster, workers: int = 3, **given: Any) -> ringfeed.ray.Ray:
    """Return actors on a cluster."""
    return ringfeed.ray.Ray(workers=workers, num_cpus=0.1, address=found.address, **given)


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
    with Loader(
        Slow(), batch_size=16, shuffle=True, seed=1, workers=0, backend=ray, timeout_s=200
    ) as loader:
        for number, batch in enumerate(loader):
            found.append(
                [(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in leaves_of(batch)]
            )
            if number == 4:
                wait_until(
                    lambda: loader.stats().remote is not None and loader.stats().remote.there >= 2
                )
                KILLS[what](three, loader)
    assert [found] == expected
    assert three.without_actors(20)


TRAINER = """
import json, sys
import ringfeed
from remote_sets import Samples

ray = ringfeed.ray.Ray(workers=2, num_cpus=0.1, address={address!r})
with ringfeed.Loader(
    Samples(), batch_size=4, shuffle=True, seed=1, shard=ringfeed.Shard({rank}, 2), workers=0,
    backend=ray, timeout_s=200,
) as loader:
    loader.load_state_dict(json.loads({state!r}))
    rest = [int(index) for _, indices in loader for index in indices]
    following = [int(index) for _, indices in loader for index in indices]
    print("seen", json.dumps([rest, following]), flush=True)
"""


def test_two_trainers_on_one_cluster_go_on_where_four_were(three: Cluster) -> None:
    """Two processes, each with its bridge, read what four left of an epoch, and the next one."""
    given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1, "workers": 0}
    four = [Loader(Samples(), shard=Shard(rank, 4), **given) for rank in range(4)]
    begun = [iter(loader) for loader in four]
    seen = [int(index) for _ in range(2) for each in begun for index in next(each)[1]]
    state = json.dumps(four[0].state_dict())
    two = [
        start_script(TRAINER.format(address=three.address, rank=rank, state=state))
        for rank in range(2)
    ]
    said = [
        re.search(r"^seen (.*)$", trainer.communicate(timeout=300)[0], re.MULTILINE)
        for trainer in two
    ]
    rest, after = zip(*[json.loads(found[1]) for found in said if found is not None], strict=True)
    assert sorted([*seen, *chain(*rest)]) == [*range(100)]
    assert sorted(chain(*after)) == [*range(100)]
    assert three.without_actors(20)


def test_a_sample_that_raises_has_its_remote_traceback(three: Cluster) -> None:
    """And its node."""
    with pytest.raises(WorkerError) as caught:
        content(Fails(), batch_size=16, workers=0, backend=on(three), timeout_s=200)
    assert str(caught.value) == "dataset[17] raised OSError: the file is torn"
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["__getitem__"]
    assert any(re.fullmatch(r"on node [0-9.]+", note) for note in getattr(cause, "__notes__", ()))


class Sticks(Samples):
    """A sample that never comes."""

    def __getitem__(self, index: int) -> Any:
        if index == 17:
            time.sleep(600)
        return super().__getitem__(index)


def test_a_sample_that_hangs_is_named_with_its_stack(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task on the actor's node reads it, in which an actor that is stuck has no part."""
    monkeypatch.setattr(board, "STACKS_S", 100.0)
    with Loader(Sticks(), batch_size=16, workers=0, backend=on(three, 2), timeout_s=200) as loader:
        batches = iter(loader)
        next(batches)
        lose_patience(loader, 0.1)
        text = ""
        while "in __getitem__" not in text:  # the actors may not be there yet
            with pytest.raises(StallError) as caught:
                next(batches)
            text = str(caught.value)
    assert re.search(
        r"^worker 0 \(the bridge, pid \d+\): inside dataset\[1[67]\], has been at it for",
        text,
        re.MULTILINE,
    )
    assert re.search(
        r"^actor \d+ \(node [0-9.]+\): inside dataset\[1[67]\]( or the (\d+ rows|row) after it)?, "
        r"has been "
        r"at it for \d+\.\d s\n"
        r"    \w[^(]* \(most recent call first\):\n"
        r'      File ".*test_ray\.py", line \d+ in __getitem__$',
        text,
        re.MULTILINE,
    )
    assert three.without_actors(20)


OTHER_VERSION = """
import ray
from ringfeed.errors import WorkerError
from ringfeed.ray import ray_fleet

ray.__version__ = "2.0.0"
try:
    ray_fleet.connect("{address}")
except WorkerError as error:
    print(error, end="")
"""


def test_what_no_node_has_is_named(three: Cluster) -> None:
    """With what was asked, and what each node has; a killed node is there until Ray notices."""
    with pytest.raises(WorkerError) as caught:
        content(Samples(), batch_size=16, workers=0, backend=on(three, resources={"gpuu": 1}))
    assert re.fullmatch(
        r"no actor has room in the cluster: an actor asks for CPU=0\.1, gpuu=1, and of that "
        r"[0-9.]+ has CPU=4, gpuu=0(; [0-9.]+ has CPU=4, gpuu=0){1,2}; "
        r"ask for less by num_cpus= and resources= of ringfeed\.ray\.Ray, or add nodes",
        str(caught.value),
    )


def test_an_address_where_nothing_runs_is_named() -> None:
    """With how to look, and the ways out."""
    with pytest.raises(WorkerError) as caught:
        content(
            Samples(), batch_size=16, workers=0, backend=ringfeed.ray.Ray(address="127.0.0.1:9")
        )
    assert str(caught.value) == (
        "no Ray cluster answers at '127.0.0.1:9' within 10 s ([Errno 111] Connection refused); "
        "`ray status --address 127.0.0.1:9` says whether one runs there; start one by `ray start "
        "--head`, or give address='local'"
    )


def test_a_cluster_of_another_version_is_named(three: Cluster) -> None:
    """With both versions, as Ray tells them."""
    out, _, status = run_script(OTHER_VERSION.format(address=three.address))
    python, node = sys.version.split()[0], three.address.partition(":")[0]
    assert (status, out) == (
        0,
        f"the Ray cluster at '{three.address}' cannot be joined: here is Ray 2.0.0, Python "
        f"{python}; Version mismatch: The cluster was started with: Ray: {version('ray')} Python: "
        f"{python} This process on node {node} was started with: Ray: 2.0.0 Python: {python}",
    )


def test_a_cluster_that_asks_for_a_token_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is to be set."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    asks = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}
    with cluster.start(1, cpus=1, environment=asks) as found:
        with pytest.raises(WorkerError) as caught:
            content(Samples(), batch_size=16, workers=0, backend=on(found))
        assert str(caught.value) == (
            f"the Ray cluster at {found.address!r} asks for a token, and RAY_AUTH_MODE is "
            "'disabled' here; have training run with RAY_AUTH_MODE=token and the token of that "
            "cluster, as Ray's page on token authentication says"
        )


@pytest.mark.usefixtures("nothing_left")
def test_a_cluster_that_the_loader_starts_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, here: dict[str, Any]
) -> None:
    """Its actors give the same bits; it has a token, which is not written to this user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    dataset, given = KINDS["samples"]
    ray = ringfeed.ray.Ray(workers=2, num_cpus=0.1, address="local")
    assert content(dataset, workers=0, backend=ray, timeout_s=200, **given) == here["samples"]
    assert "ray" not in sys.modules
    assert [*tmp_path.iterdir()] == []
