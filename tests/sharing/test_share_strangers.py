"""Processes of other users and containers at the socket of a share are refused unheard."""

from __future__ import annotations

import base64
import json
import os
import pickle
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
import shared
from ringfeed._failure import decode
from ringfeed.sharing import names
from watching import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
NOBODY = 65534
UNSHARE = shutil.which("unshare") or "/bin/false"
CONTAINERS = {
    "mount": ["-m"],
    "pid": ["-p", "-f"],
    "user": ["-U"],
    "all": ["-m", "-p", "-f", "--mount-proc"],
}
CONTAINER = "another container (its pid, user or mount namespace is not that of this process)"


def unshared(kind: str, script: str, *given: str) -> subprocess.Popen[str]:
    """Run a script in namespaces of its own, in the same network namespace."""
    command = [UNSHARE, *CONTAINERS[kind], sys.executable, "-c", script, *given]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    """Return what it wrote."""
    return process.communicate(timeout=PATIENCE_S)[0]


@pytest.fixture(autouse=True)
def _may_unshare() -> None:
    """Skip where no namespace can be made."""
    if any(
        subprocess.run([UNSHARE, *flags, "/bin/true"], check=False).returncode
        for flags in CONTAINERS.values()
    ):
        pytest.skip("unshare(1) may make no namespaces here")


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_has_names_of_its_own(kind: str) -> None:
    """A name is another address in another namespace, and no longer than addresses may be."""
    longest = "x" * 64
    script = (
        "import sys; from ringfeed.sharing import names; print(repr(names.address_of(sys.argv[1])))"
    )
    theirs = ended(unshared(kind, script, longest)).strip()
    assert theirs
    assert theirs != repr(names.address_of(longest))
    assert len(names.address_of(longest)) <= 108


class Mine:
    """Makes a file where pickle opens it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


SPEAK = """
import json, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as said:
    said.connect("\\0" + sys.argv[1])
    said.settimeout(60)
    try:
        said.send(bytes.fromhex(sys.argv[2]))
        try:
            print(said.recv(65536).decode())
        except ConnectionResetError:  # said once, ahead of the answer, as what was sent is not read
            print(said.recv(65536).decode())
    except BrokenPipeError:
        print("null")
"""


def refusal(answer: str) -> tuple[str, str] | None:
    """Return the error that a message of the host is; None where it has said nothing."""
    if (message := json.loads(answer)) is None:
        return None
    kind, content = message
    assert kind == "failed"
    error = decode(base64.b64decode(content["ringfeed:bytes"])).error
    return type(error).__name__, str(error)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_is_not_heard(share: shared.Share, tmp_path: Path, kind: str) -> None:
    """Though it has the same user number and knows the address: nothing that it says is opened."""
    training = share.join(ranks=1)
    address, done = names.address_of(share.name)[1:], tmp_path / "done"
    packets = [pickle.dumps(Mine(done)), json.dumps(["make", {}, {"ringfeed:bytes": ""}]).encode()]
    for packet in packets:
        answer = ended(unshared(kind, SPEAK, address, packet.hex()))
        assert not done.exists()
        text = f"this share belongs to uid {os.getuid()}, and this is {CONTAINER}"
        assert refusal(answer) in (None, ("PermissionError", text))
    assert shared.numbers(training) == shared.expected(1)


def test_what_a_process_of_ones_own_says_is_opened_by_no_pickle(
    share: shared.Share, tmp_path: Path
) -> None:
    """A message that is none ends the connection that it came by, alone."""
    training = share.join(ranks=1)
    done = tmp_path / "done"
    for packet in (pickle.dumps(Mine(done)), b'["take", 1]', b'["make", {}, 1]', b"[]", b"7"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as said:
            said.connect(names.address_of(share.name))
            said.send(packet)
    assert shared.numbers(training) == shared.expected(1)
    assert not done.exists()


LISTEN = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as heard:
    heard.bind("\\0" + sys.argv[1])
    heard.listen(9)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_name_that_a_container_has_taken_is_not_spoken_to(kind: str) -> None:
    """It says so, in the place of opening what the other answers."""
    name = shared.unique("squat")
    other = unshared(kind, LISTEN, names.address_of(name)[1:])
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    with pytest.raises(PermissionError) as caught:
        ringfeed.share(shared.make, name=name, ranks=1, mode="broadcast")
    ended(other)
    assert str(caught.value) == f"name={name!r} is in use by {CONTAINER}; choose another name"


def _peer_of(share: shared.Share) -> names.Peer:
    channel = names.connect(share.name)
    assert channel is not None
    with socket.socket(fileno=channel.detach()) as connection:
        return names.peer_of(connection)


def test_the_process_at_the_other_end_is_the_host(share: shared.Share) -> None:
    """It is asked for after the training that has started it has ended, too."""
    first = shared.begin(share.name, 2, "broadcast", 1)
    training = share.join(ranks=2, make=shared.make)
    assert _peer_of(share).pid == training.host_pid
    first.kill()
    first.communicate()
    assert _peer_of(share) == names.Peer(training.host_pid, os.getuid())


def _connects_without_end(address: str) -> None:
    """Connect as another user, and keep what has connected."""
    os.setresuid(NOBODY, NOBODY, NOBODY)
    kept: list[socket.socket] = []
    while True:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            one.connect(address)
            kept = [*kept[-500:], one]
        except OSError:  # its backlog is full
            time.sleep(0.0001)


def test_another_user_that_connects_without_end_stalls_no_training(share: shared.Share) -> None:
    """Its connections are refused, some at a time; the host has no descriptor of it."""
    if os.getuid():
        pytest.skip("only root may be another user")
    training = share.join(ranks=1)
    descriptors = Path(f"/proc/{training.host_pid}/fd")
    before = len([*descriptors.iterdir()])
    address = names.address_of(share.name)
    stranger = os.fork()
    if stranger == 0:
        try:
            _connects_without_end(address)
        finally:
            os._exit(1)
    try:
        found = [shared.numbers(training) for _ in range(3)]
        after = len([*descriptors.iterdir()])
    finally:
        os.kill(stranger, signal.SIGKILL)
        os.waitpid(stranger, 0)
    assert [batch for epoch in found for batch in epoch] == shared.expected(3)
    assert after < before + 16


def test_a_host_without_descriptors_refuses_one(share: shared.Share) -> None:
    """The trainings that it has go on, and another may come when it has some again."""
    one = share.join(ranks=2)
    numbers = {int(entry.name) for entry in Path(f"/proc/{one.host_pid}/fd").iterdir()}
    before = resource.prlimit(one.host_pid, resource.RLIMIT_NOFILE)
    free = next(number for number in range(before[0]) if number not in numbers)
    resource.prlimit(one.host_pid, resource.RLIMIT_NOFILE, (free, before[1]))
    for _ in range(2):
        with pytest.raises(OSError, match="no descriptor left") as caught:
            share.join(ranks=2)
        assert str(caught.value) == (
            "the host process of this share has no descriptor left for one more; raise "
            "RLIMIT_NOFILE (ulimit -n)"
        )
    resource.prlimit(one.host_pid, resource.RLIMIT_NOFILE, before)
    two = share.join(ranks=2)
    assert shared.numbers(shared.first_of(one, two)) == shared.expected(1)


@pytest.mark.parametrize("nested", [False, True])
def test_a_state_that_looks_like_a_message_is_none(
    share: shared.Share, tmp_path: Path, *, nested: bool
) -> None:
    """Nothing in a state is opened by pickle: it may come from a file."""
    training = share.join(ranks=1)
    done = tmp_path / "done"
    evil: dict[str, Any] = {"ringfeed:bytes": base64.b64encode(pickle.dumps(Mine(done))).decode()}
    state = {**training.state_dict(), "sampler": evil} if nested else evil
    training.load_state_dict(state)
    with pytest.raises(ringfeed.StateError):
        next(iter(training))
    assert not done.exists()


class Tuples:
    """A sampler whose state has what JSON has not."""

    def __init__(self) -> None:
        self.at = (0, 0.5)

    def __iter__(self) -> Iterator[int]:
        while self.at[0] < 96:
            self.at = self.at[0] + 1, 0.5
            yield self.at[0] - 1
        self.at = 0, 0.5

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, 7: 8}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        assert state[7] == 8
        assert type(state["at"]) is tuple
        self.at = state["at"]


def _with_tuples() -> ringfeed.Loader[Any]:
    return shared.make(shuffle=False, sampler=Tuples())


def test_a_state_that_is_no_json_comes_back_as_it_was(share: shared.Share) -> None:
    """As from a loader of the training's own."""
    training = share.join(ranks=1, make=_with_tuples)
    batches = iter(training)
    seen = [next(batches)[1].tolist() for _ in range(3)]
    state = training.state_dict()
    assert state["sampler"]["of"]["at"][1:] == (0.5,)
    training.load_state_dict(state)
    seen += [batch[1].tolist() for batch in training]
    assert [number for batch in seen for number in batch] == [*range(96)]
