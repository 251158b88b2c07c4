"""The keeper: what it starts ends with it, and it ends with the process that it serves."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

import leftovers
from keeper import Keeper
from watching import start_script, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAEMON = "import os, time\nif not os.fork():\n    os.setsid()\n    os.fork()\n    time.sleep(600)"
SERVED = """
import os, pathlib, sys, time
from keeper import Keeper
keeper = Keeper(folder=pathlib.Path({folder!r}))
keeper.run(sys.executable, "-c", {daemon!r})
keeper.begin(["sleep", "600"])
while len(keeper.pids()) < 3:
    time.sleep(0.01)
fork = 0
if {forks} and not (fork := os.fork()):
    time.sleep(600)
print(fork, keeper.pid, *keeper.pids(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    """Have one."""
    found = Keeper()
    yield found
    found.end()


def test_a_command_is_run(keeper: Keeper) -> None:
    """With the variables that it is given; what it writes comes back."""
    keeper.begin(["sh", "-c", "echo $WORD; echo and >&2"], {"WORD": "here"})
    assert keeper.finish(60) == "here\nand\n"
    assert keeper.run("echo", 2) == "2\n"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            ["sh", "-c", "echo no; exit 3"],
            "['sh', '-c', 'echo no; exit 3'] ended with status 3:\nno\n",
        ),
        (
            ["no such command"],
            (
                "['no such command'] ended with status 127:\nno such command: No such file or "
                "directory\n"
            ),
        ),
        (["sh", "-c", "kill -9 $$"], "['sh', '-c', 'kill -9 $$'] ended with status -9:\n"),
    ],
)
def test_a_command_that_fails(keeper: Keeper, command: list[str], text: str) -> None:
    """It is an error that has its words; the keeper goes on."""
    with pytest.raises(RuntimeError) as raised:
        keeper.run(*command)
    assert str(raised.value) == text
    assert keeper.run("echo", "on") == "on\n"


def test_a_command_that_takes_too_long(keeper: Keeper) -> None:
    """It is an error in its time."""
    with pytest.raises(TimeoutError, match=r"^no answer within 0\.1 s$"):
        keeper.run("sleep", 600, timeout_s=0.1)


def test_a_daemon_does_not_get_away(keeper: Keeper) -> None:
    """What has left its parent, its session and its terminal is below the keeper, and is killed."""
    keeper.run(sys.executable, "-c", DAEMON)
    wait_until(lambda: len(keeper.pids()) == 2)
    keeper.kill()
    assert keeper.pids() == set()
    keeper.run(sys.executable, "-c", DAEMON)
    found = {keeper.pid, *keeper.pids()}
    keeper.end()
    assert [pid for pid in found if leftovers.runs(pid)] == []


def test_it_is_no_child(keeper: Keeper) -> None:
    """What looks at the children of this process does not meet it."""
    keeper.begin(["sleep", "600"])
    assert not leftovers.below(os.getpid()) & {keeper.pid, *keeper.pids()}


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_that_is_served_dies(
    tmp_path: Path, number: signal.Signals, *, forks: bool
) -> None:
    """All that it has started is gone, also what was stopped, and the folder; a fork lives on."""
    (tmp_path / "folder").mkdir()
    program = start_script(
        SERVED.format(folder=str(tmp_path / "folder"), daemon=DAEMON, forks=forks)
    )
    assert program.stdout is not None
    fork, keeper, *pids = map(int, program.stdout.readline().split())
    os.kill(pids[0], signal.SIGSTOP)
    program.send_signal(number)
    program.wait(timeout=60)
    try:
        wait_until(lambda: not any(map(leftovers.runs, [keeper, *pids])))
        assert leftovers.runs(fork) == forks
    finally:
        if fork:
            os.kill(fork, signal.SIGKILL)
    program.communicate(timeout=60)
    assert not (tmp_path / "folder").exists()


def test_the_keeper_is_asked_to_end(keeper: Keeper) -> None:
    """By SIGTERM it ends as if the process that it serves had."""
    keeper.run(sys.executable, "-c", DAEMON)
    pids = keeper.pids()
    os.kill(keeper.pid, signal.SIGTERM)
    wait_until(lambda: not any(map(leftovers.runs, [keeper.pid, *pids])))
    with pytest.raises(ConnectionError, match=r"^the keeper has ended$"):
        keeper.finish(60)
