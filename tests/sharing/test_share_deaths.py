"""What dies: trainings, the host, workers; Ctrl-C; and trainings that are slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
import shared
import shared_kills
from ringfeed import StallError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
EPOCHS = 2


def first_line(training: subprocess.Popen[str]) -> Any:
    """Return what a training says first."""
    assert training.stdout is not None
    return json.loads(training.stdout.readline())


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Give a list of trainings, which are ended with the test."""
    made: list[subprocess.Popen[str]] = []
    yield made
    for training in made:
        training.kill()
        training.wait()
        if training.stdout is not None:
            training.stdout.close()


def test_trainings_of_no_common_parent(processes: list[Any]) -> None:
    """Processes that start at once agree on one host, which ends with the last of them."""
    name = shared.unique("apart")
    processes += [
        shared.begin(name, 3, "split", EPOCHS, rank=rank, make={"batch_size": 9})
        for rank in range(3)
    ]
    said = [shared.lines(training) for training in processes]
    assert [training.returncode for training in processes] == [0] * 3
    assert len({first["host"] for first, *_ in said}) == 1
    for rank, (_, *batches) in enumerate(said):
        assert all(line["right"] for line in batches)
        wanted = shared.expected(EPOCHS, batch_size=3, shard=ringfeed.Shard(rank, 3))
        assert [line["samples"] for line in batches] == wanted
    shared.gone({said[0][0]["host"]})


@pytest.mark.parametrize("victim", ["first", "other", "stopped"])
def test_a_training_that_is_killed(victim: str, processes: list[Any]) -> None:
    """Whichever it is, also the first one: the others have every batch, and nothing stays."""
    name = shared.unique("killed")
    processes.append(shared.begin(name, 3, "broadcast", EPOCHS, step_s=0.01))
    host = first_line(processes[0])["host"]
    processes += [shared.begin(name, 3, "broadcast", EPOCHS, step_s=0.01) for _ in range(2)]
    dies = processes[0 if victim == "first" else 1]
    while "samples" not in first_line(dies):  # a batch, so that all have joined
        pass
    group = shared.group_of(host)
    if victim == "stopped":
        dies.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
    dies.kill()
    others = [training for training in processes if training is not dies]
    for training in others:
        batches = [line for line in shared.lines(training) if "samples" in line]
        assert [line["samples"] for line in batches] == shared.expected(EPOCHS)
        assert all(line["right"] for line in batches)
    shared.gone(group)


def test_the_host_is_killed() -> None:
    """Trainings get an error that names it; held batches stay right, and a new share begins."""
    name = shared.unique("host")
    with ringfeed.share(
        shared.make, name=name, ranks=1, mode="broadcast", timeout_s=60
    ) as training:
        batches = iter(training)
        held = next(batches)
        group = shared.group_of(training.host_pid)
        os.kill(training.host_pid, signal.SIGKILL)
        with pytest.raises(WorkerError) as caught:
            list(batches)
        assert str(caught.value) == (
            f"share(name={name!r}): its host process (pid {training.host_pid}) has ended; what it "
            "wrote on standard error says why, if it was not killed. Join again, and go on from a "
            "state_dict()"
        )
        assert shared.is_right(held)
        shared.gone(group)
        state = training.state_dict()
    with ringfeed.share(
        shared.make, name=name, ranks=1, mode="broadcast", timeout_s=60
    ) as training:
        group = shared.group_of(training.host_pid)
        training.load_state_dict(state)
        first = state["samples"] // shared.ROWS
        assert [batch[1].tolist() for batch in training] == shared.expected(1)[first:]
    shared.gone(group)


def test_a_worker_is_killed() -> None:
    """The host's loader replaces it and what forked it: nothing is lost, doubled or reordered."""
    name = shared.unique("worker")
    with ringfeed.share(
        shared.make, name=name, ranks=1, mode="broadcast", timeout_s=60
    ) as training:
        found = []
        for batch in training:
            found.append(batch[1].tolist())
            if len(found) == 3:
                for pid in shared.group_of(training.host_pid) - {training.host_pid}:
                    with suppress(ProcessLookupError):  # it has ended with the one that forked it
                        os.kill(pid, signal.SIGKILL)
        group = shared.group_of(training.host_pid)
    assert found == shared.expected(1)
    shared.gone(group)


def test_ctrl_c_loses_no_batch() -> None:
    """Wherever Ctrl-C comes in ``next()``, the next call goes on with that batch."""
    name = shared.unique("interrupted")
    script = f"""
import itertools, os, signal, sys, threading, time
sys.path.insert(0, {str(shared.HERE)!r})
import ringfeed, shared

shared_by = ringfeed.share(shared.make, name={name!r}, ranks=1, mode="broadcast", timeout_s=60)
with shared_by as training:
    print(training.host_pid, flush=True)
    over = False
    def interrupt():
        for number in itertools.count():
            time.sleep(0.0003 * (number % 7 + 1))
            if over:
                return
            os.kill(os.getpid(), signal.SIGINT)
    found = []
    batches = iter(training)
    batch = next(batches)
    found.append(batch[1].tolist())
    thread = threading.Thread(target=interrupt)
    armed = False
    count = 0
    while True:
        try:
            if not armed:
                armed = True
                thread.start()
            batch = None
            batch = next(batches)
        except KeyboardInterrupt:
            count += 1
            # Ctrl-C may have come ahead of `batch = None`.
            if batch is None or found[-1] == batch[1].tolist():
                continue
        except StopIteration:
            break
        try:
            found.append(batch[1].tolist())
        except KeyboardInterrupt:
            if len(found) == 0 or found[-1] != batch[1].tolist():
                found.append(batch[1].tolist())
    over = True
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt:
            pass
    print(count, found == shared.expected(1, samples=96), len(found), flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    host, said = done.stdout.splitlines()
    assert said.split()[1:] == ["True", "12"], said
    shared.gone({int(host)})


@pytest.mark.parametrize("on_slow", ["drop", "raise"])
def test_a_training_that_is_stopped(on_slow: Any, processes: list[Any]) -> None:
    """The others have every batch; it is told what it has lost, or that it was put out."""
    name = shared.unique("slow")
    given = {"on_slow": on_slow, "patience_s": 0.3, "timeout_s": 60}
    script = f"""
import sys, json, warnings
sys.path.insert(0, {str(shared.HERE)!r})
import ringfeed, shared
warnings.simplefilter("always")
with ringfeed.share(shared.make, name={name!r}, ranks=2, mode="broadcast", **{given!r}) as training:
    batches = iter(training)
    next(batches)
    print(json.dumps("begun"), flush=True)
    sys.stdin.readline()
    count = 1
    with warnings.catch_warnings(record=True) as told:
        try:
            for batch in batches:
                assert shared.is_right(batch)
                count += 1
        except ringfeed.StallError as error:
            print(json.dumps(str(error)), flush=True)
            sys.exit()
    texts = [str(one.message) for one in told]
    print(json.dumps([count, training.stats().lost, texts]), flush=True)
"""
    slow = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    processes.append(slow)
    with ringfeed.share(shared.make, name=name, ranks=2, mode="broadcast", **given) as training:
        group = {training.host_pid}
        assert [batch[1].tolist() for batch in training] == shared.expected(1)
        said, _ = slow.communicate("\n", timeout=60)
    slow.stdin = None
    last = said.splitlines()[-1]
    share = f"share(name={name!r})"
    if on_slow == "raise":
        assert (
            f"for pid {slow.pid}, which has not taken a batch; on_slow='raise' has put it out"
            in last
        )
        assert last.startswith(f'"{share}: the other trainings have waited 0.')
    else:
        count, lost, told = json.loads(last)
        assert count + lost == 12
        assert lost > 0
        assert f"{share}: this training was slower than the others and has lost" in told[0]
    shared.gone(group)


def test_waiting_is_told() -> None:
    """With "wait" the others are warned, and nothing is lost when the slow one goes on."""
    name = shared.unique("wait")
    given: dict[str, Any] = {"ranks": 2, "mode": "broadcast", "patience_s": 0.2, "timeout_s": 60}
    one = ringfeed.share(shared.make, name=name, **given)
    two = ringfeed.share(shared.make, name=name, **given)
    group = shared.group_of(one.host_pid)
    fast, slow = iter(one), iter(two)
    found = [next(fast)[1].tolist(), next(fast)[1].tolist(), next(fast)[1].tolist()]
    told = r"which has not taken a batch; on_slow='drop' or 'raise' goes on without it"
    with pytest.warns(UserWarning, match=told), pytest.raises(StallError):
        found += taken_until_it_stalls(one, fast)
    rest = [next(slow)[1].tolist()]
    for batch in slow:
        rest.append(batch[1].tolist())
        if len(found) < 12:
            found.append(next(fast)[1].tolist())
    assert found == rest == shared.expected(1)
    one.close()
    two.close()
    shared.gone(group)


def taken_until_it_stalls(training: Any, batches: Any) -> Iterator[list[int]]:
    """Yield the samples of what comes while another training takes nothing; StallError."""
    training._joined._connection._timeout_s = 1.0
    try:
        while True:
            yield next(batches)[1].tolist()
    finally:
        training._joined._connection._timeout_s = 60.0


def test_killed_at_random() -> None:
    """A few of the kills that `python tests/support/shared_kills.py` does by the hundred."""
    assert shared_kills.run(seed=5, kills=4, tell=lambda _line: None) >= 4
