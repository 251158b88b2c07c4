"""A Ray cluster on this machine whose nodes can be killed, stopped and cut off: for tests, the demo and the bench.

    with cluster.start(3) as found:
        ringfeed.Loader(dataset, backend=ringfeed.ray.Ray(workers=4, address=found.address))
        found.nodes[1].kill()

Each node is a `keeper` with what `ray start` leaves below it, so the processes of a node are known
at any time and end with this process, whatever ends it. Ray is not imported here: it runs in no
process that trains. With ``network=True`` each node but the head is in a network namespace of its
own, on a switch in another one; links can be slowed or cut. The namespaces have no name, so they
end with their processes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keeper import Keeper, signal_all

if TYPE_CHECKING:
    from collections.abc import Iterator

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
STORE = 80_000_000  # bytes of an object store; Ray takes no less
START_S, ATTEMPTS = 120.0, 3
TOO_LATE = "timed out during startup"  # Ray's words, when a raylet takes more than 30 s
GONE_S = 30.0
AGENTS = {"ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::IDLE"}  # processes of Ray's own
ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parent),  # the datasets of the tests, and the hook
    "RAY_START_HOOK": "cluster.without_client",
    "RAY_AUTH_MODE": "disabled",  # else a token in the home of this user would be asked for
    "RAY_memory_monitor_refresh_ms": "0",  # this machine has other work: its memory is no reason to end an actor
}


def why_not(*, network: bool = False) -> str:
    """Say why there can be no cluster here; "" where there can."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed"
    if not network:
        return ""
    if missing := [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]:
        return f"network namespaces need the command {missing[0]}"
    made = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True, text=True)  # noqa: S607
    return f"network namespaces cannot be made: {made.stderr.strip()}" if made.returncode else ""


def without_client(parameters: object, head: object) -> None:  # noqa: ARG001 - as Ray calls it
    """Be called by ``ray start``: no server for Ray's own client, a process that no test needs."""
    parameters.ray_client_server_port = None  # type: ignore[attr-defined]


class Node:
    """A node: what ``ray start`` has left below a keeper."""

    def __init__(self, address: str, keeper: Keeper, network: Network | None = None) -> None:
        self.address = address
        self._keeper = keeper
        self._network = network

    def start(
        self,
        cpus: int,
        resources: dict[str, float],
        store: int,
        environment: dict[str, str],
        *where: str,
    ) -> None:
        """Start Ray's processes, again where a busy machine takes longer than Ray waits."""
        options = [
            f"--num-cpus={cpus}",
            f"--resources={json.dumps(resources)}",
            f"--node-ip-address={self.address}",
            f"--object-store-memory={store}",
            "--disable-usage-stats",
            "--include-log-monitor=false",
            "--dashboard-agent-listen-port=0",  # several nodes have one machine: each port is any that is free
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        for attempt in range(ATTEMPTS):
            self._keeper.begin([*RAY, "start", *options, *where], {**ENVIRONMENT, **environment})
            try:
                self._keeper.finish(START_S)
            except RuntimeError as error:
                self.kill()
                if attempt + 1 == ATTEMPTS or TOO_LATE not in str(error):
                    raise
            else:
                return

    # ---- what runs there ----

    @property
    def pids(self) -> set[int]:
        """All of its processes."""
        return self._keeper.pids()

    @property
    def raylet(self) -> int:
        """The process of the raylet."""
        return self._of("raylet")

    @property
    def gcs(self) -> int:
        """The process of the GCS, on the head."""
        return self._of("gcs_server")

    @property
    def id(self) -> str:
        """The node's id in Ray."""
        found = re.search(r"--node_id=([0-9a-f]+)", " ".join(command_of(self.raylet)))
        assert found is not None
        return found[1]

    @property
    def actors(self) -> list[int]:
        """The processes of actors and tasks, the oldest first.

        Orphans of a raylet that was killed are among them.
        """
        return sorted(pid for pid in self.pids if is_actor(command_of(pid)))

    def _of(self, name: str) -> int:
        found = [pid for pid in self.pids if Path(command_of(pid)[0]).name == name]
        assert len(found) == 1, f"{len(found)} processes {name} at {self.address}"
        return found[0]

    # ---- what is done to it ----

    def kill(self) -> None:
        """Kill all of its processes at once: the raylet, agents, actors."""
        self._keeper.kill()

    def kill_raylet(self) -> None:
        """Kill the raylet alone: its actors are orphans."""
        signal_all([self.raylet], signal.SIGKILL)

    def kill_actor(self, which: int = 0) -> int:
        """Kill one of its actors; return the process."""
        pid = self.actors[which]
        signal_all([pid], signal.SIGKILL)
        return pid

    def kill_gcs(self) -> None:
        """Kill the GCS; the head's raylet goes on for a minute."""
        signal_all([self.gcs], signal.SIGKILL)

    def stop(self) -> None:
        """Stop all of its processes, as a machine that hangs.

        Also those that one of them has started meanwhile.
        """
        stopped: set[int] = set()
        while new := self.pids - stopped:
            signal_all(new, signal.SIGSTOP)
            stopped |= new

    def go_on(self) -> None:
        """Let them run again."""
        signal_all(self.pids, signal.SIGCONT)

    def cut(self) -> None:
        """Cut the link to the node."""
        self._link.cut(self._keeper)

    def mend(self) -> None:
        """Mend the link."""
        self._link.mend(self._keeper)

    def limit(self, gigabits: float) -> None:
        """Limit the link, in each direction."""
        self._link.limit(self._keeper, gigabits)

    @property
    def limits(self) -> list[str]:
        """The rules that limit the link, one for each direction."""
        return self._link.limits(self._keeper)

    @property
    def _link(self) -> Network:
        assert self._network is not None, (
            "this node has no link of its own: start(network=True), and not the head"
        )
        return self._network

    def end(self) -> None:
        """Kill it, and its keeper."""
        self._keeper.end()


class Network:
    """A switch in a network namespace, this machine's link to it, and one for each node."""

    def __init__(self) -> None:
        number = os.getpid()
        self._subnet = f"10.{64 + number // 256 % 64}.{number % 256}"
        self.host, self.address = f"rf{number}", f"{self._subnet}.1"
        self._ports: dict[Keeper, str] = {}
        self._switch = Keeper(apart=True)
        try:
            _ip(
                "link",
                "add",
                self.host,
                "type",
                "veth",
                "peer",
                "name",
                "host",
                "netns",
                self._switch.pid,
            )
            _ip("address", "add", f"{self.address}/24", "dev", self.host)
            _ip("link", "set", self.host, "up")
            self._switch.run("ip", "link", "add", "switch", "type", "bridge")
            self._switch.run("ip", "link", "set", "switch", "up")
            self._plug("host")
        except BaseException:
            self.end()
            raise

    def connect(self, node: Keeper) -> str:
        """Give a node that is apart a link; return its address."""
        port, address = f"node{len(self._ports)}", f"{self._subnet}.{len(self._ports) + 2}"
        self._ports[node] = port
        self._switch.run(
            "ip", "link", "add", port, "type", "veth", "peer", "name", "switch", "netns", node.pid
        )
        self._plug(port)
        node.run("ip", "address", "add", f"{address}/24", "dev", "switch")
        for device in ("switch", "lo"):
            node.run("ip", "link", "set", device, "up")
        return address

    def cut(self, node: Keeper) -> None:
        """Cut a node's link."""
        self._switch.run("ip", "link", "set", self._ports[node], "down")

    def mend(self, node: Keeper) -> None:
        """Mend it."""
        self._switch.run("ip", "link", "set", self._ports[node], "up")

    def limit(self, node: Keeper, gigabits: float) -> None:
        """Limit it in both directions.

        A burst holds the largest packets that the kernel hands to a link (64 kB).
        """
        rule = [
            "root",
            "tbf",
            "rate",
            f"{round(gigabits * 1000)}mbit",
            "burst",
            "256kb",
            "latency",
            "50ms",
        ]
        self._switch.run("tc", "qdisc", "replace", "dev", self._ports[node], *rule)
        node.run("tc", "qdisc", "replace", "dev", "switch", *rule)

    def limits(self, node: Keeper) -> list[str]:
        """Return the rules of both ends."""
        ends = (
            self._switch.run("tc", "qdisc", "show", "dev", self._ports[node]),
            node.run("tc", "qdisc", "show", "dev", "switch"),
        )
        return [" ".join(re.findall(r"(tbf) .*(rate \w+) ", end)[0]) for end in ends]

    def end(self) -> None:
        """End the switch; the kernel takes the links away with the namespaces."""
        self._switch.end()
        deadline = time.monotonic() + GONE_S
        while Path("/sys/class/net", self.host).exists():
            assert time.monotonic() < deadline, f"the link {self.host} is still there"
            time.sleep(0.02)

    def _plug(self, port: str) -> None:
        self._switch.run("ip", "link", "set", port, "master", "switch")
        self._switch.run("ip", "link", "set", port, "up")


class Cluster:
    """A head and nodes. ``nodes[0]`` is the head, to which drivers of this machine connect."""

    def __init__(self, *, network: bool = False, environment: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rf"))  # short: sockets lie deep below it
        self.nodes: list[Node] = []
        self._environment = environment or {}
        self._network: Network | None = None
        try:
            self._network = Network() if network else None
        except BaseException:
            self.end()
            raise

    @property
    def address(self) -> str:
        """Where its GCS listens."""
        return (self.folder / "ray_current_cluster").read_text().strip()

    def add(
        self, cpus: int, *, resources: dict[str, float] | None = None, store: int = STORE
    ) -> Node:
        """Start a node; the first one is the head.

        One after another is no slower: a start computes on two CPUs.
        """
        node = self._keep_node()
        node.start(cpus, resources or {}, store, self._environment, *self._where())
        return node

    def _keep_node(self) -> Node:
        is_head = not self.nodes
        network = None if is_head else self._network
        keeper = Keeper(folder=self.folder if is_head else None, apart=network is not None)
        address = (
            f"127.0.0.{len(self.nodes) + 1}" if self._network is None else self._network.address
        )
        self.nodes.append(node := Node(address, keeper, network))
        if network is not None:
            node.address = network.connect(keeper)
        return node

    def _where(self) -> list[str]:
        if len(self.nodes) > 1:
            return [f"--address={self.address}"]
        return [
            "--head",
            "--port=0",
            "--include-dashboard=false",
            "--no-monitor",
            f"--temp-dir={self.folder}",
        ]

    # ---- what runs there ----

    @property
    def actors(self) -> list[int]:
        """The processes of actors and tasks, node by node."""
        return [pid for node in self.nodes for pid in node.actors]

    @property
    def spilled(self) -> list[Path]:
        """Objects that Ray has written to the disk."""
        return [
            path for path in self.folder.glob("session_*/ray_spilled_objects_*/*") if path.is_file()
        ]

    def without_actors(self, timeout_s: float) -> bool:
        """Wait until no actor runs; False where some still do after that time."""
        deadline = time.monotonic() + timeout_s
        while self.actors:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    # ---- its end ----

    def end(self) -> None:
        """End it all, the head last: it takes the folder with it."""
        with contextlib.ExitStack() as ends:
            ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
            if self._network is not None:
                ends.callback(self._network.end)
            for node in self.nodes:
                ends.callback(node.end)

    def left(self) -> list[str]:
        """Return what is left of it after its end: processes, links, files."""
        found = [
            f"process {pid}: {' '.join(command)[:80]}"
            for pid, command in commands()
            if self._is_in(command)
        ]
        found += (
            [f"link {self._network.host}"] if self._network and _is_link(self._network.host) else []
        )
        return found + ([str(self.folder)] if self.folder.exists() else [])

    def _is_in(self, command: list[str]) -> bool:
        return any(str(self.folder) in part for part in command)


@contextlib.contextmanager
def start(
    nodes: int = 1,
    *,
    cpus: int = 4,
    network: bool = False,
    environment: dict[str, str] | None = None,
) -> Iterator[Cluster]:
    """Have a cluster of so many nodes, the head among them; AssertionError where something is left of it afterwards.

    environment: variables of Ray's processes and the actors, such as
        ``RAY_health_check_period_ms``.
    """
    found = Cluster(network=network, environment=environment)
    try:
        for _ in range(nodes):
            found.add(cpus)
        yield found
    finally:
        found.end()
    assert not found.left()


def commands() -> Iterator[tuple[int, list[str]]]:
    """Yield each process of this machine, and its command line."""
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            yield int(place.name), command_of(int(place.name))


def command_of(pid: int) -> list[str]:
    """Return a command line; of a process that has ended, one empty word."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0 ").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [""]


def is_actor(command: list[str]) -> bool:
    """Whether this is an actor or a task at work."""
    return command[0].startswith("ray::") and command[0] not in AGENTS


def _is_link(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def _ip(*words: object) -> None:
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, timeout=GONE_S)  # noqa: S607
