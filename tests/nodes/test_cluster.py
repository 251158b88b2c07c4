"""Clusters of Ray for the tests are killed, stopped and cut off, and nothing is left of them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cluster
import leftovers
from watching import run_script, start_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

REASON = cluster.why_not()
NO_NETWORK = cluster.why_not(network=True)
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

DRIVER = """
import json, os, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")

@ray.remote(num_cpus=1)
class Actor:
    def where(self):
        return os.getpid(), ray.get_runtime_context().get_node_id()

places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in sys.argv[2:]]
actors = [Actor.options(scheduling_strategy=place).remote() for place in places]
places = ray.get([actor.where.remote() for actor in actors], timeout=200)
print(json.dumps(dict(places)), flush=True)
sys.stdin.read()
"""
ALONE = """
import time, cluster
with cluster.start(2, cpus=1, network={network}) as found:
    print(found.folder, *[pid for node in found.nodes for pid in node.pids], flush=True)
    time.sleep(600)
"""
FAILED_MIDWAY = """
import cluster
try:
    with cluster.start(2, cpus=1) as found:
        found.nodes[1].stop()
        raise ZeroDivisionError
except ZeroDivisionError:
    print(found.left(), found.folder.exists())
"""


@contextlib.contextmanager
def actors(found: cluster.Cluster, *nodes: cluster.Node) -> Iterator[dict[int, str]]:
    """Have an actor on each of the nodes: its process, and the node's id as Ray tells it."""
    command = [sys.executable, "-c", DRIVER, found.address, *[node.id for node in nodes]]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            lines = iter(driver.stdout.readline, "")
            line = next(
                line for line in lines if line.startswith("{")
            )  # Ray says there which nodes are dead
            yield {int(pid): node for pid, node in json.loads(line).items()}
        finally:
            driver.kill()


@pytest.fixture(scope="module")
def found() -> Iterator[cluster.Cluster]:
    """Have a cluster whose nodes a test may not kill."""
    with cluster.start(2, cpus=2) as made:
        yield made


def state(pid: int) -> str:
    """Return the state of a process: T where it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_actors_are_on_their_nodes(found: cluster.Cluster) -> None:
    """The ids are Ray's; an actor is found by its process, until its driver has ended."""
    head, node = found.nodes
    with actors(found, head, node, node) as where:
        assert sorted(where.values()) == sorted([head.id, node.id, node.id])
        assert {*head.actors} == {pid for pid, at in where.items() if at == head.id}
        assert {*node.actors} == {pid for pid, at in where.items() if at == node.id}
        assert {*found.actors} == {*where}
        assert not found.without_actors(0.0)
    assert found.without_actors(60.0)


def test_an_actor_is_killed(found: cluster.Cluster) -> None:
    """That one, and no other."""
    with actors(found, *found.nodes) as where:
        pid = found.nodes[1].kill_actor()
        wait_until(lambda: not leftovers.runs(pid))
        assert found.actors == [one for one in where if one != pid]
    assert found.without_actors(60.0)


def test_a_node_is_stopped(found: cluster.Cluster) -> None:
    """All of its processes are, and none of another node's, until they go on."""
    head, node = found.nodes
    with actors(found, node):
        node.stop()
        wait_until(lambda: {state(pid) for pid in node.pids} == {"T"})
        assert "T" not in {state(pid) for pid in head.pids}
        node.go_on()
        wait_until(lambda: "T" not in {state(pid) for pid in node.pids})
    assert found.without_actors(60.0)


def test_nodes_are_killed_and_added() -> None:
    """A node with its actors, a raylet whose actor stays, and the GCS; others replace them."""
    with cluster.start(3, cpus=1) as made:
        head, node, other = made.nodes
        with actors(made, node, other) as where:
            node.kill()
            assert node.pids == set()
            other.kill_raylet()
            (orphan,) = [pid for pid, at in where.items() if pid in other.pids]
            assert other.actors == [orphan]
            new = made.add(2, resources={"special": 1.0})
            with actors(made, new, new) as again:
                assert {*new.actors} == {*again}
        gcs = head.gcs
        head.kill_gcs()
        wait_until(lambda: not leftovers.runs(gcs))
        assert leftovers.runs(head.raylet)
    assert made.left() == []


def test_an_exception_leaves_nothing() -> None:
    """Whatever happens in the block: a stopped node, and a test that fails."""
    assert run_script(FAILED_MIDWAY) == ("[] False\n", "", 0)


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        pytest.param("network", marks=pytest.mark.skipif(bool(NO_NETWORK), reason=NO_NETWORK)),
    ],
)
def test_a_test_that_is_killed_leaves_nothing(kind: str) -> None:
    """Neither process nor file nor link."""
    before = {link.name for link in Path("/sys/class/net").iterdir()}
    program = start_script(ALONE.format(network=kind == "network"))
    assert program.stdout is not None
    folder, *pids = program.stdout.readline().split()
    assert len(pids) >= 4
    program.send_signal(signal.SIGKILL)
    program.communicate(timeout=60)
    wait_until(lambda: not any(leftovers.runs(int(pid)) for pid in pids))
    wait_until(lambda: not Path(folder).exists())
    wait_until(
        lambda: (
            f"rf{program.pid}"
            not in {link.name for link in Path("/sys/class/net").iterdir()} - before
        )
    )


def reaches(address: str) -> bool:
    """Whether a packet comes back: no process listens there, so the connection is refused."""
    try:
        socket.create_connection((address, 9), timeout=1.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # no route, or no answer
        return False
    return True


@pytest.mark.skipif(bool(NO_NETWORK), reason=NO_NETWORK)
def test_links_are_cut_and_limited() -> None:
    """Of one node, in both directions; the other's are as before. The links go with the cluster."""
    with cluster.start(3, cpus=1, network=True) as made:
        _, node, other = made.nodes
        assert reaches(node.address)
        node.cut()
        assert [reaches(each.address) for each in (node, other)] == [False, True]
        node.mend()
        wait_until(lambda: reaches(node.address))
        node.limit(1)
        node.limit(0.5)
        assert node.limits == ["tbf rate 500Mbit"] * 2
        with actors(made, node, other) as where:
            assert {*where.values()} == {node.id, other.id}
        with pytest.raises(AssertionError, match=r"^this node has no link of its own: "):
            made.nodes[0].cut()
    assert made.left() == []
