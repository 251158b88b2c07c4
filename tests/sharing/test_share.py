"""One loader for several trainings: batches, parts by rank, lifetimes, places and errors."""

from __future__ import annotations

import os
import re
import resource
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ringfeed
import shared
from forking import Child
from ringfeed import (
    ClosedError,
    SlotsHeldWarning,
    SpecError,
    StateError,
    SupersededError,
    WorkerError,
)
from ringfeed.sharing import mapping

pytestmark = pytest.mark.usefixtures("nothing_left")
ONCE = pytest.mark.once


# ---- the same batches ----


def test_broadcast_gives_all_the_same(share: shared.Share) -> None:
    """Three trainings get each batch of a loader, in its order, for two epochs."""
    trainings = share.all(3)
    found = [[] for _ in trainings]
    for _ in range(2):
        for batches in shared.together(*trainings):
            for batch, its in zip(batches, found, strict=True):
                assert shared.is_right(batch)
                its.append(batch[1].tolist())
    assert found == [shared.expected(2)] * 3
    assert [len(training) for training in trainings] == [12] * 3
    assert [training.stats()[:2] for training in trainings] == [(24, 192)] * 3


@pytest.mark.parametrize("uneven", ["pad", "keep"])
def test_split_gives_each_rank_its_part(share: shared.Share, uneven: Any) -> None:
    """Each rank has what a loader of that rank has, the last batch and its padding included."""
    make = partial(shared.make, samples=91, batch_size=3 * 4, shard=ringfeed.Shard(0, 1, uneven))
    ranks = share.all(3, "split", make=make)
    found = [[] for _ in ranks]
    threads = [
        threading.Thread(target=lambda its=its, rank=rank: its.extend(shared.numbers(rank)))
        for its, rank in zip(found, ranks, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for rank, its in enumerate(found):
        given = {"samples": 91, "batch_size": 4, "shard": ringfeed.Shard(rank, 3, uneven)}
        assert its == shared.expected(1, **given)
    assert ranks[0].batch_size == 4


@ONCE
def test_whole_batches_are_split(share: shared.Share) -> None:
    """Of a dataset of whole batches each rank has its rows of each."""
    ranks = share.all(2, "split", make=_whole)
    pairs = [(one.tolist(), two.tolist()) for one, two in shared.together(*ranks)]
    assert pairs == [
        ([10 * i, 10 * i + 1, 10 * i + 2], [10 * i + 3, 10 * i + 4, 10 * i]) for i in range(3)
    ]
    assert [rank.padding for rank in ranks] == [0, 1]


def _whole() -> ringfeed.Loader[Any]:
    return ringfeed.Loader(_Whole(), batch_size=None, workers=1, slots=4)


class _Whole:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> np.ndarray:
        return np.arange(5) + 10 * index


@ONCE
def test_a_structure_stays(share: shared.Share) -> None:
    """A dict stays a dict; a training may check what it gets."""
    spec = {"x": ringfeed.Array((3,), "float32"), "n": ringfeed.Array((), "int64")}
    (training,) = share.all(1, make=_dicts, spec=spec)
    batch = next(iter(training))
    assert (batch["x"].shape, batch["x"].dtype, batch["n"].tolist()) == (
        (4, 3),
        np.float32,
        [0, 1, 2, 3],
    )
    with pytest.raises(SpecError) as caught:
        ringfeed.share(
            _dicts,
            name=shared.unique("other"),
            ranks=1,
            mode="broadcast",
            spec=ringfeed.Array((3,), "uint8"),
        )
    assert re.fullmatch(
        r"share\(name='other-.*'\) hands out samples of Spec\(\{'x': .*\}\), and this training "
        r"expects "
        r"Spec\(Array\(.*\)\); give the others' make_loader, or another name",
        str(caught.value),
    )


class _Point(NamedTuple):
    x: Any
    n: Any


def _points() -> ringfeed.Loader[Any]:
    dataset = [_Point(np.full(3, number, np.float32), number) for number in range(8)]
    return ringfeed.Loader(dataset, batch_size=4, workers=1)


@ONCE
def test_a_named_tuple(share: shared.Share) -> None:
    """It comes back by its names; with spec= as the class that is in it."""
    (training,) = share.all(1, make=_points)
    batch = next(iter(training))
    assert (type(batch).__name__, batch.n.tolist()) == ("_Point", [0, 1, 2, 3])
    training.close()
    spec = _Point(ringfeed.Array((3,), "float32"), ringfeed.Array((), "int64"))
    assert type(next(iter(share.join(_points, 1, spec=spec)))) is _Point


def _dicts() -> ringfeed.Loader[Any]:
    columns = {"x": np.arange(24, dtype=np.float32).reshape(8, 3), "n": np.arange(8)}
    return ringfeed.Loader(columns, batch_size=4, workers=1)


# ---- lifetimes ----


def test_what_is_written_is_the_writers_own(share: shared.Share) -> None:
    """A training may write into its batch: neither the others nor later batches see that."""
    one, two = share.all(2)
    for first, batch in shared.together(one, two):
        first[0][...] = 0
        assert shared.is_right(batch)
    assert shared.numbers(shared.first_of(one, two)) == shared.expected(2)[12:]


def test_arrays_outlive_the_loader(share: shared.Share) -> None:
    """A held batch stays as it is while others go on, after close() and after the host's end."""
    one, two = share.all(2)
    held = next(shared.first_of(one, two))
    one.close()
    assert len(shared.numbers(two)) == 12
    assert shared.is_right(held)
    with pytest.raises(ClosedError, match=r"this training has left it; join it again"):
        iter(one)
    share.end()
    assert shared.is_right(held)


def test_all_batches_can_be_kept(share: shared.Share) -> None:
    """`list()` works: with one warning, batches are private copies where the slots are held."""
    (training,) = share.all(1)
    with pytest.warns(SlotsHeldWarning) as told:
        kept = list(training)
    assert len(told) == 1
    assert shared.numbers(kept) == shared.expected(1)
    assert training.stats().copies > 6


@ONCE
def test_copies_hold_no_slot(share: shared.Share) -> None:
    """With copy=True everything is a copy, and no warning comes."""
    (training,) = share.all(1, make=partial(shared.make, copy=True))
    kept = list(training)
    assert shared.numbers(kept) == shared.expected(1)


def test_a_loader_that_is_dropped_leaves(share: shared.Share) -> None:
    """Arrays that are still referenced keep a slot, and not the others from going on."""
    one, two = share.all(2)
    batches, other = iter(one), iter(two)
    held = next(batches)
    next(other)
    share.joined.remove(one)
    del one, batches
    assert len(shared.numbers(other)) == 11
    assert shared.numbers(two) == shared.expected(2)[12:]
    assert shared.is_right(held)


def test_slots_outlive_their_workers(share: shared.Share) -> None:
    """Where workers have failed for good, a training that is behind still gets what was filled."""
    one, two = share.all(
        2, make=partial(shared.make, backend="spawn", irreplaceable=True, ahead=False)
    )
    batches, other = shared.until_it_fails(iter(one)), shared.until_it_fails(iter(two))
    found, behind = [next(batches), next(batches)], []

    def both() -> Any:
        """Yield the batches of the one, after the other has had them."""
        for samples in batches:
            behind.append(next(other))
            yield samples

    os.kill(min(shared.group_of(one.host_pid) - {one.host_pid}), signal.SIGKILL)
    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        found += both()
    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        behind += other
    assert behind == found == shared.expected(1)[: len(found)]
    for training in (one, two):
        training.set_epoch(1)
    assert shared.numbers(shared.first_of(one, two)) == shared.expected(2)[12:]


def test_more_is_said_than_a_socket_takes(share: shared.Share) -> None:
    """A host that is held up reads later what a training has said meanwhile."""
    (training,) = share.all(1)
    os.kill(training.host_pid, signal.SIGSTOP)
    for _ in range(1000):
        iter(training)
    training.set_epoch(1)
    batches = iter(training)
    os.kill(training.host_pid, signal.SIGCONT)
    assert shared.numbers(batches) == shared.expected(2)[12:]


@ONCE
def test_no_descriptor_is_left(share: shared.Share) -> None:
    """It is said as what it is; the batch comes when there is one again."""
    (training,) = share.all(1)
    batches = iter(training)
    held = next(batches)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as file:
        resource.setrlimit(resource.RLIMIT_NOFILE, (file.fileno(), before[1]))
        try:
            with pytest.raises(OSError, match="no room for the descriptors of a message"):
                list(batches)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert shared.is_right(held)
    assert shared.numbers(batches)[-1] == shared.expected(1)[-1]


# ---- epochs and places ----


def test_breaking_off(share: shared.Share) -> None:
    """A training that leaves an epoch early goes on with the next, together with the others."""
    one, two = share.all(2)
    batches, other = iter(one), iter(two)
    next(batches)
    next(other)
    del batches
    assert len(shared.numbers(other)) == 11
    assert shared.numbers(shared.first_of(one, two)) == shared.expected(2)[12:]


@ONCE
def test_the_newest_iterator_wins(share: shared.Share) -> None:
    """An older one raises."""
    (training,) = share.all(1)
    old = iter(training)
    next(old)
    new = iter(training)
    with pytest.raises(SupersededError):
        next(old)
    assert next(new)[1].tolist() == shared.expected(2)[12]


def test_states_are_those_of_a_loader(share: shared.Share) -> None:
    """A state counts what this training was handed; a share and a loader go on from it."""
    one, two = share.all(2)
    batches, other = iter(one), iter(two)
    for number in range(5):
        next(batches)
        if number < 3:
            next(other)
    state = one.state_dict()
    assert (state["samples"], two.state_dict()["samples"]) == (40, 24)
    with shared.make(workers=0) as loader:
        loader.load_state_dict(state)
        assert shared.numbers(loader) == shared.expected(1)[5:]
    for training in (one, two):
        training.load_state_dict(state)
        assert training.state_dict() == state
    assert shared.numbers(shared.first_of(one, two)) == shared.expected(1)[5:]
    for training in (one, two):
        training.set_epoch(7)
    assert next(shared.first_of(one, two))[1].tolist() == shared.expected(8)[7 * 12]


@ONCE
def test_a_state_that_does_not_fit(share: shared.Share) -> None:
    """A state of another seed is an error in each training, and the next epoch comes."""
    one, two = share.all(2)
    with shared.make(workers=0, seed=4) as loader:
        state = loader.state_dict()
    one.load_state_dict(state)
    two.load_state_dict(state)
    for batches in [iter(one), iter(two)]:
        with pytest.raises(
            StateError, match=r"the state was taken with seed 4, and this loader has seed 3"
        ):
            next(batches)
    assert shared.numbers(shared.first_of(one, two)) == shared.expected(1)


@ONCE
def test_trainings_that_ask_for_different_epochs(share: shared.Share) -> None:
    """The one that differs gets an error with both; the other goes on."""
    one, two = share.all(2)
    one.set_epoch(2)
    batches, other = iter(one), iter(two)
    assert next(batches)[1].tolist() == shared.expected(3)[24]
    pid = os.getpid()
    text = (
        f"this training asks for the next epoch, and pid {pid} for epoch 2; have all trainings ask "
        "for the same"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        next(other)


@ONCE
@pytest.mark.parametrize("epoch", [None, 1])
def test_a_training_that_begins_anew(share: shared.Share, epoch: int | None) -> None:
    """One in the place of another that asks for epoch 0 gets the error; those that go on decide."""
    one, two = share.all(2)
    assert len(shared.numbers(shared.first_of(one, two))) == 12
    two.close()
    third = share.join()
    third.set_epoch(0)
    if epoch is not None:
        one.set_epoch(epoch)
    late, batches = iter(third), iter(one)
    pid = os.getpid()
    text = (
        f"this training asks for epoch 0, and pid {pid} for the next epoch; have all trainings ask "
        "for the same"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        next(late)
    assert shared.numbers(batches) == shared.expected(2)[12:]


def test_a_late_training_begins_with_the_next_epoch(share: shared.Share) -> None:
    """Where one has left, another may come in its place; it is given the next epoch."""
    one, two = share.all(2)
    batches, other = iter(one), iter(two)
    next(batches), next(other)
    two.close()
    third = share.join()
    late = iter(third)
    assert len(shared.numbers(batches)) == 11
    pairs = list(
        zip(shared.numbers(shared.first_of(one, late)), shared.expected(2)[12:], strict=True)
    )
    assert all(found == wanted for found, wanted in pairs)


# ---- forks ----


@ONCE
@pytest.mark.parametrize("old_kernel", [False, True])
def test_a_forked_child_keeps_what_was_held(
    share: shared.Share, monkeypatch: pytest.MonkeyPatch, *, old_kernel: bool
) -> None:
    """Its arrays stay as they were at the fork, and what it writes is its own."""
    if old_kernel:
        monkeypatch.setattr(mapping, "_POPULATE_WRITE", -1)
    (training,) = share.all(1, make=partial(shared.make, slots=4, samples=960))
    batches = iter(training)
    kept = [next(batches), next(batches)]
    kept[1][0][0] = 7
    before = [[leaf.copy() for leaf in batch] for batch in kept]

    def deed() -> None:
        for batch, its in zip(kept, before, strict=True):
            for leaf, was in zip(batch, its, strict=True):
                np.testing.assert_array_equal(leaf, was)
        kept[0][0][...] = 1

    child = Child(deed)
    kept.clear()
    for _ in range(40):
        batch = next(batches)
        assert shared.is_right(batch)
    assert child.go() == 0
    assert shared.is_right(batch)
