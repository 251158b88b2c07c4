"""What is refused, and what goes wrong: samples, loaders, parameters, names, hosts."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
import shared
from ringfeed import ClosedError, SpecError, StallError, WorkerError
from ringfeed.sharing import names
from watching import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


class _Poisoned:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 5:
            message = "five is bad"
            raise ValueError(message)
        return index


def _poisoned() -> ringfeed.Loader[Any]:
    return ringfeed.Loader(_Poisoned(), batch_size=2, workers=1)


def test_a_samples_error_comes_in_its_place(share: shared.Share) -> None:
    """Each training gets it, with the cause, and goes on."""
    trainings = share.all(2, make=_poisoned)
    iterators = [iter(training) for training in trainings]
    found: list[list[Any]] = [[] for _ in trainings]
    for _ in range(6):
        for iterator, its in zip(iterators, found, strict=True):
            try:
                its.append(next(iterator).tolist())
            except WorkerError as error:
                its.append(repr(error.__cause__))
    assert found == [[[0, 1], [2, 3], "ValueError('five is bad')", [6, 7], [8, 9], [10, 11]]] * 2


def test_why_the_host_puts_a_training_out_is_raised_there(share: shared.Share) -> None:
    """A message that the host cannot understand ends the training that sent it."""
    (training,) = share.all(1)
    iterator = iter(training)
    next(iterator)
    training._joined.check_open().tell("took")
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        list(iterator)


def test_an_error_counts_as_it_does_in_a_loader(share: shared.Share) -> None:
    """A state that is taken after it goes on behind it."""
    (training,) = share.all(1, make=_poisoned)
    batches = iter(training)
    next(batches), next(batches)
    with pytest.raises(WorkerError):
        next(batches)
    training.load_state_dict(training.state_dict())
    assert [batch.tolist() for batch in training] == [[6, 7], [8, 9], [10, 11]]


def _fails() -> ringfeed.Loader[Any]:
    message = "no such disk"
    raise OSError(message)


def _returns_none() -> None:
    return None


def _of_a_rank() -> ringfeed.Loader[Any]:
    os.environ.update(RANK="1", WORLD_SIZE="2")
    return shared.make(shard="auto")


_REFUSED: dict[str, tuple[Callable[[], Any], Any, dict[str, Any], type[Exception], str]] = {
    "it raises": (_fails, "broadcast", {}, OSError, "no such disk"),
    "no loader": (
        _returns_none,
        "broadcast",
        {},
        TypeError,
        "{share}: make_loader returned a NoneType, expected a ringfeed.Loader",
    ),
    "slots": (
        partial(shared.make, slots=2),
        "broadcast",
        {},
        ValueError,
        "{share}: the loader has 2 slots, expected at least 3; give it slots=",
    ),
    "auto": (
        partial(shared.make, slots="auto"),
        "broadcast",
        {},
        ValueError,
        '{share}: the loader has slots="auto" or workers="auto", expected numbers; give it both',
    ),
    "shard": (
        _of_a_rank,
        "broadcast",
        {},
        ValueError,
        "{share}: make_loader has shard='auto', which found rank 1 of 2 (torchrun) for the "
        "training that came first, and the loader is for all of this host; give it "
        "shard=ringfeed.Shard(rank, world_size) of the host, or none",
    ),
    "rows": (
        partial(shared.make, batch_size=7),
        "split",
        {"rank": 0},
        ValueError,
        "{share}: the loader has batch_size=7, which 2 ranks cannot share equally; give the rows "
        "of all ranks together, a multiple of ranks",
    ),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_a_loader_that_cannot_be_shared(case: str) -> None:
    """`share` raises what make_loader raises, or what its loader lacks; no process stays."""
    make, mode, given, kind, text = _REFUSED[case]
    name = shared.unique("bad")
    with pytest.raises(kind) as caught:
        ringfeed.share(make, name=name, ranks=2, mode=mode, timeout_s=60, **given)
    assert str(caught.value) == text.format(share=f"share(name={name!r})")


_BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "name": (
        {"name": "a/b"},
        ValueError,
        "name='a/b' must be 1 to 64 of the letters A-Z and a-z, digits, '.', '_' and '-'",
    ),
    "name of another type": ({"name": 3}, TypeError, "name=3 must be a str"),
    "ranks": ({"ranks": 0}, ValueError, "ranks=0 must be at least 1"),
    "mode": ({"mode": "all"}, ValueError, "mode='all'; choose one of 'split', 'broadcast'"),
    "on_slow": (
        {"on_slow": "skip"},
        ValueError,
        "on_slow='skip'; choose one of 'wait', 'drop', 'raise'",
    ),
    "patience_s": ({"patience_s": 0}, ValueError, "patience_s=0 must be positive, above 0"),
    "timeout_s": (
        {"timeout_s": None},
        TypeError,
        "timeout_s=None must be a number of seconds: a share waits for no training for ever",
    ),
    "rank in broadcast": (
        {"rank": 1},
        ValueError,
        "rank=1 with mode='broadcast', where each training gets all rows; leave rank out",
    ),
    "rank beyond": (
        {"mode": "split", "rank": 2},
        ValueError,
        "rank=2 with ranks=2; ranks go from 0 to 1",
    ),
    "no rank": (
        {"mode": "split"},
        ValueError,
        "mode='split' needs the rank of this process among the 2 of this host, and none of "
        "LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID, MV2_COMM_WORLD_LOCAL_RANK is in "
        "the environment; give rank=",
    ),
    "make_loader": (
        {"make_loader": 3},
        TypeError,
        "make_loader=3 must be a function without arguments that returns a Loader",
    ),
}


@pytest.mark.parametrize("case", _BAD)
def test_contradictory_parameters(case: str) -> None:
    """They are refused in words, before anything is started."""
    given, kind, text = _BAD[case]
    given = {"make_loader": shared.make, "name": "n", "ranks": 2, "mode": "broadcast", **given}
    with pytest.raises(kind) as caught:
        ringfeed.share(**given)
    assert str(caught.value) == text


def test_a_launchers_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun says is the rank; what is no number is refused."""
    monkeypatch.setenv("LOCAL_RANK", "x")
    with pytest.raises(
        ValueError,
        match=re.escape("the environment has LOCAL_RANK='x', expected an int; give rank="),
    ):
        ringfeed.share(shared.make, name="n", ranks=2, mode="split")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with ringfeed.share(
        shared.make, name=shared.unique("rank"), ranks=1, mode="split", timeout_s=60
    ) as training:
        assert training.rank == 0
        processes = shared.group_of(training.host_pid)
    shared.gone(processes)


def test_a_join_with_other_parameters(share: shared.Share) -> None:
    """It is refused with both values; the training that was there goes on."""
    one = share.join(ranks=1)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"ranks": 2}, "ranks=1, and this process joins it with ranks=2"),
        (
            {"mode": "split", "rank": 0},
            "mode='broadcast', and this process joins it with mode='split'",
        ),
        ({"on_slow": "drop"}, "on_slow='wait', and this process joins it with on_slow='drop'"),
    ]
    for given, text in cases:
        with pytest.raises(ValueError, match="was made with") as caught:
            share.join(**{"ranks": 1, **given})
        told = (
            f"share(name={share.name!r}) was made with {text}; give all its trainings the same, or "
            "another name"
        )
        assert str(caught.value) == told
    with pytest.raises(ValueError, match="has the 1 trainings that it was made for"):
        share.join(ranks=1)
    assert shared.numbers(one) == shared.expected(1)


def test_another_users_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket of this name that another user listens at is not spoken to."""
    name = shared.unique("squat")
    with names.bind(name) as _:  # type: ignore[union-attr]
        monkeypatch.setattr(names, "peer_of", lambda _fd: names.Peer(1, os.getuid() + 1))
        with pytest.raises(PermissionError) as caught:
            ringfeed.share(shared.make, name=name, ranks=1, mode="broadcast")
    assert str(caught.value) == (
        f"name={name!r} is in use by another user (uid {os.getuid() + 1}, and this process has uid "
        f"{os.getuid()}); choose another name"
    )


def test_what_cannot_be_sent(share: shared.Share) -> None:
    """A make_loader that keeps a lock says so, and the name is free again."""
    lock = threading.Lock()
    with pytest.raises(
        ringfeed.ShipError, match=r"make_loader.* a lock and cannot be sent to a worker process"
    ):
        share.join(lambda: lock)
    assert shared.numbers(share.join(ranks=1)) == shared.expected(1)


def test_what_is_refused_takes_no_place(share: shared.Share) -> None:
    """A training that expects other samples leaves, also where its error is kept."""
    with pytest.raises(SpecError) as caught:
        share.join(ranks=1, spec=ringfeed.Array((3,), "uint8"))
    assert "this training expects Spec(Array((3,), 'uint8'))" in str(caught.value)
    assert shared.numbers(share.join(ranks=1)) == shared.expected(1)


def _hangs() -> None:
    time.sleep(600)


def test_a_loader_that_is_never_made() -> None:
    """It is waited for no longer than timeout_s; the host ends."""
    name = shared.unique("hangs")
    with pytest.raises(StallError) as caught:
        ringfeed.share(_hangs, name=name, ranks=1, mode="broadcast", timeout_s=1)
    assert str(caught.value) == f"share(name={name!r}): make_loader has not returned within 1 s"
    wait_until(lambda: not shared.is_bound(name))


def _ends() -> None:
    os._exit(3)


def test_a_host_that_ends_at_once() -> None:
    """It is said so; no process stays."""
    name = shared.unique("ends")
    with pytest.raises(WorkerError) as caught:
        ringfeed.share(_ends, name=name, ranks=1, mode="broadcast", timeout_s=60)
    assert str(caught.value) == (
        f"share(name={name!r}): its host process has ended before it had a loader; what it wrote "
        "on standard error says why, if it was not killed"
    )


def test_a_host_that_never_starts() -> None:
    """Where a process has the name, and does not listen, it is said so after timeout_s."""
    name = shared.unique("never")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(names.address_of(name))
        with pytest.raises(StallError) as caught:
            ringfeed.share(shared.make, name=name, ranks=1, mode="broadcast", timeout_s=1)
    assert str(caught.value) == (
        f"share(name={name!r}): no host process has answered within 1 s; if another program has "
        "the name, choose another"
    )


def test_a_host_that_is_stopped(share: shared.Share) -> None:
    """It is waited for so long, and the epoch goes on when it does."""
    (training,) = share.all(1)
    batches = iter(training)
    found = [next(batches)[1].tolist()]
    training._joined._connection._timeout_s = 1.0
    os.kill(training.host_pid, signal.SIGSTOP)
    with pytest.raises(StallError) as caught:
        found += shared.until_it_fails(batches)
    training._joined._connection._timeout_s = 60.0
    os.kill(training.host_pid, signal.SIGCONT)
    assert str(caught.value) == (
        f"share(name={share.name!r}): its host process (pid {training.host_pid}) has not answered "
        "for 1 s"
    )
    assert found + shared.numbers(batches) == shared.expected(1)


def test_too_few_come(share: shared.Share) -> None:
    """Where not all come, it says how many have; the epoch begins when the rest is there."""
    one = share.join(timeout_s=5)
    batches = iter(one)
    with pytest.raises(StallError) as caught:
        next(batches)
    assert str(caught.value) == (
        f"share(name={share.name!r}): 1 of 2 trainings have come within 5 s (pid {os.getpid()}); "
        "start the others, or give ranks= and timeout_s= as they are"
    )
    other = share.join(timeout_s=5)
    for training in (one, other):
        training._joined._connection._timeout_s = PATIENCE_S
    others = iter(other)
    assert next(batches)[1].tolist() == next(others)[1].tolist()


def test_a_forked_child(share: shared.Share) -> None:
    """It is told that it has joined nothing; its end changes nothing for its parent."""
    (training,) = share.all(1)
    batches = iter(training)
    held = next(batches)
    pid = os.fork()
    if pid == 0:
        try:
            iter(training)
        except ClosedError as error:
            del held
            text = "was joined by the process that this one was forked from; join it here as well"
            os._exit(0 if text in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert shared.is_right(held)
    assert len(shared.numbers(batches)) == 11


def test_a_late_host(share: shared.Share) -> None:
    """A join that meets a host about to end starts another one."""
    for _ in range(3):
        training = share.join(ranks=1)
        assert shared.numbers(training) == shared.expected(1)
        training.close()
        share.joined.clear()
    wait_until(lambda: shared.state_of(training.host_pid) in {"", "Z"})


def test_a_join_as_the_last_one_leaves(share: shared.Share) -> None:
    """The host that is about to end does not let it in: it gets a loader of its own, at epoch 0."""
    (training,) = share.all(1)
    host = training.host_pid
    assert shared.numbers(training) == shared.expected(1)
    os.kill(host, signal.SIGSTOP)
    training.close()
    late: list[Any] = []
    thread = threading.Thread(target=lambda: late.append(share.join(ranks=1)))
    thread.start()
    frames = sys._current_frames
    wait_until(
        lambda: frames()[thread.ident or 0].f_code.co_name == "readable"
    )  # it waits for an answer
    os.kill(host, signal.SIGCONT)
    thread.join(60)
    assert late[0].host_pid != host
    assert shared.numbers(late[0]) == shared.expected(1)
