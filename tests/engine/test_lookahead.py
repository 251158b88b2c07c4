"""The next epoch, read while this one's last batches are used."""

from __future__ import annotations

import os
import signal
from collections import Counter
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ahead import loader_with
from datasets import Oracle, check, drain
from numbered import taken
from ringfeed.orders.sampler import Epoch, Sampler
from watching import pids, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.ring._ring import Ring

ROWS = 4
EPOCHS = 4
SPEC = (ringfeed.Array((), "int64"), ringfeed.Array((), "float64"))
LOCAL: dict[str, Any] = {"workers": 2, "backend": "thread", "ahead": True}
FORKED: dict[str, Any] = {"workers": 2, "backend": "fork"}


class Noted:
    """Samples with random numbers of their epoch; in threads it can be seen which were read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.read: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float]:
        drawn = float(ringfeed.rng().random())
        self.read.append((drawn, index))
        return index, drawn


def epochs_of(length: int, epochs: int = EPOCHS, **settings: Any) -> list[list[Any]]:
    """Return what some epochs bring."""
    with loader_with(Noted(length), batch_size=ROWS, shuffle=True, seed=3, **settings) as loader:
        return [taken(loader) for _ in range(epochs)]


def ring_of(loader: ringfeed.Loader) -> Ring:
    """Return the ring of a loader that runs."""
    assert loader._runner.engine is not None
    return loader._runner.engine.ring


def wait_for_next(loader: ringfeed.Loader) -> None:
    """Wait until every slot has a batch, though no epoch is under way."""
    wait_until(lambda: set(loader.slot_states()) == {"ready"})


@pytest.fixture
def at_border() -> Iterator[Callable[..., ringfeed.Loader]]:
    """A loader of 6 batches that has ended an epoch, with the next one's batches in its slots."""
    made: list[ringfeed.Loader] = []

    def make(dataset: Any = None, **settings: Any) -> ringfeed.Loader:
        given = Noted(23) if dataset is None else dataset
        loader = loader_with(
            given, batch_size=ROWS, shuffle=True, seed=3, **{"slots": 3, **LOCAL, **settings}
        )
        made.append(loader)
        assert len(taken(loader)) == len(loader)
        wait_for_next(loader)
        return loader

    yield make
    for loader in made:
        loader.close()


# ---- the same batches ----


@pytest.mark.parametrize("slots", [2, 3, 4, 5, 6])
@pytest.mark.parametrize(
    "how", [LOCAL, FORKED, {"workers": 2}, {"workers": 1, "backend": "process"}], ids=str
)
def test_the_same_batches_come(slots: int, how: dict[str, Any]) -> None:
    """Whatever the start method and the slots, each epoch has its own batches in its order."""
    assert epochs_of(23, slots=slots, **how) == epochs_of(23, workers=0)


@pytest.mark.filterwarnings("ignore:drop_remainder=True leaves no batch at all:RuntimeWarning")
@pytest.mark.parametrize("length", [1, 4, 5, 8, 12])
@pytest.mark.parametrize("slots", [2, 4, 7])
@pytest.mark.parametrize("drop", [False, True])
def test_epochs_shorter_than_the_slots(length: int, slots: int, drop: bool) -> None:  # noqa: FBT001 - by name
    """No more than one epoch is read ahead, and an epoch without a batch is one, too."""
    expected = epochs_of(length, 6, workers=0, drop_remainder=drop)
    assert epochs_of(length, 6, slots=slots, drop_remainder=drop, **LOCAL) == expected


def test_each_sample_is_read_once_an_epoch() -> None:
    """What is read ahead is what the next epoch hands out; nothing is read for it again."""
    dataset = Noted(23)
    with loader_with(dataset, batch_size=ROWS, shuffle=True, slots=3, spec=SPEC, **LOCAL) as loader:
        came = Counter(
            (drawn, index)
            for _ in range(3)
            for batch in loader
            for index, drawn in zip(*batch, strict=True)
        )
        wait_for_next(loader)
    read = Counter(dataset.read)
    assert max(read.values()) == 1
    assert len(read - came) == 3 * ROWS
    assert not came - read


def test_only_the_next_epoch_is_read_ahead() -> None:
    """Where its batches leave slots free, they stay free."""
    with loader_with(Noted(8), batch_size=ROWS, slots=5, **LOCAL) as loader:
        assert len(taken(loader)) == 2
        wait_until(lambda: sorted(loader.slot_states()) == ["free"] * 3 + ["ready"] * 2)
        assert (ring_of(loader).planned, ring_of(loader).left) == (2, 0)


# ---- what is ready when ----


@pytest.mark.parametrize("how", [LOCAL, FORKED], ids=str)
def test_the_next_epoch_is_ready_before_it_is_asked_for(how: dict[str, Any]) -> None:
    """Slots that the last batches leave free are filled with the next epoch's first.

    The loop is not handed them.
    """
    with loader_with(Oracle(6 * ROWS), batch_size=ROWS, slots=4, **how) as loader:
        batches = iter(loader)
        seen = [index for _ in range(5) for index in check(next(batches))]
        wait_for_next(loader)
        assert (ring_of(loader).left, ring_of(loader).planned >= 4) == (1, True)
        assert seen + drain(batches) == list(range(6 * ROWS))
        wait_for_next(loader)
        assert next(batches, None) is None
        assert loader.epoch == 1
        ring = ring_of(loader)
        held = ring.plan_taken
        following = iter(loader)
        assert ring.plan_taken == held == 6
        assert loader.slot_states().count("ready") == 4
        assert drain(following) == list(range(6 * ROWS))


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 1, "backend": "thread"},
        {"workers": 1, "backend": "fork", "sampler": list(range(8))},
        {"workers": 0},
    ],
    ids=str,
)
def test_nothing_is_read_ahead_where_it_is_not_wanted(settings: dict[str, Any]) -> None:
    """Not with threads, a sampler of the user's, or without workers."""
    with loader_with(Oracle(8), batch_size=ROWS, **settings) as loader:
        for _ in range(2):
            assert drain(loader) == list(range(8))
            assert ring_of(loader).planned == 0


class Hooked(Oracle):
    """Has hooks."""

    def on_epoch_end(self) -> None:
        """Change nothing."""


def numbers() -> Iterator[int]:
    """Give some samples."""
    yield from range(8)


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [(Hooked(8), {}), (numbers, {}), (Oracle(8), {"sampler": [1, 2]})],
    ids=["hooks", "iterable", "sampler"],
)
def test_an_epoch_that_may_change_is_not_read_ahead(dataset: Any, settings: dict[str, Any]) -> None:
    """By hooks between epochs, by an iterable that begins anew, by a sampler that is read late."""
    with ringfeed.Loader(dataset, batch_size=ROWS, workers=1, backend="fork", **settings) as loader:
        for _ in range(2):
            assert sum(1 for _ in loader)
            assert ring_of(loader).planned == 0


# ---- going elsewhere ----


def test_the_state_at_the_border_knows_of_nothing_ahead(
    at_border: Callable[..., ringfeed.Loader],
) -> None:
    """It is the start of the next epoch, as without prefetch; loading it keeps what is ready."""
    loader = at_border()
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (1, 0)
    loader.load_state_dict(state)
    ready = ring_of(loader).plan_taken
    assert taken(loader) == epochs_of(23, workers=0)[1]
    assert ring_of(loader).plan_taken == ready + 6


@pytest.mark.parametrize(
    ("go", "epoch", "batches"),
    [
        (lambda loader: loader.set_epoch(1), 1, 0),
        (lambda loader: loader.set_epoch(2), 2, 0),
        (lambda loader: loader.set_epoch(0), 0, 0),
        (lambda loader: loader.skip(batches=2), 1, 2),
        (lambda loader: loader.load_state_dict({**loader.state_dict(), "samples": 8}), 1, 2),
        (lambda loader: loader.load_state_dict({**loader.state_dict(), "epoch": 3}), 3, 0),
    ],
    ids=["same", "later", "again", "skip", "amid", "state"],
)
def test_another_place_is_gone_to(
    at_border: Callable[..., ringfeed.Loader],
    go: Callable[[ringfeed.Loader], None],
    epoch: int,
    batches: int,
) -> None:
    """What was read for the next epoch does not show where another begins."""
    loader = at_border()
    go(loader)
    expected = epochs_of(23, 5, workers=0)
    assert taken(loader) == expected[epoch][batches:]
    assert taken(loader) == expected[epoch + 1]


@pytest.mark.parametrize("steps", [0, 1, 5, 6])
def test_an_epoch_that_is_broken_off_ahead_of_the_border(steps: int) -> None:
    """Wherever it is broken off, the next epoch is whole and its own.

    What was read ahead is thrown away.
    """
    expected = epochs_of(23, workers=0)
    with loader_with(Noted(23), batch_size=ROWS, shuffle=True, seed=3, slots=4, **LOCAL) as loader:
        batches = iter(loader)
        for number in range(steps):
            assert taken([next(batches)]) == [expected[0][number]]
        del batches
        assert ring_of(loader).planned == 0
        assert taken(loader) == expected[1]


def test_an_older_iterator_is_told_of_the_newer(at_border: Callable[..., ringfeed.Loader]) -> None:
    """One that has handed out its last batch, but not ended, is superseded.

    What is ready is not its own.
    """
    loader = at_border()
    older = iter(loader)
    for _ in range(6):
        next(older)
    wait_for_next(loader)
    newer = iter(loader)
    with pytest.raises(ringfeed.SupersededError):
        next(older)
    assert taken(newer) == epochs_of(23, workers=0)[2]


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_newer_iterator_gets_its_own_epoch(steps: int) -> None:
    """Where an older one has batches left, none of them comes in the next epoch.

    That holds though that is planned already.
    """
    expected = epochs_of(23, workers=0)
    with loader_with(Noted(23), batch_size=ROWS, shuffle=True, seed=3, slots=7, **LOCAL) as loader:
        older = iter(loader)
        for number in range(steps):
            assert taken([next(older)]) == [expected[0][number]]
        wait_for_next(loader)
        assert taken(loader) == expected[1]
        with pytest.raises(ringfeed.SupersededError):
            next(older)


# ---- failures beyond the border ----


class Failing(Noted):
    """Sample 0 cannot be read."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index == 0:
            message = "no such picture"
            raise OSError(message)
        return super().__getitem__(index)


def test_a_sample_that_fails_does_so_in_its_own_epoch() -> None:
    """An error that was met ahead of its epoch is raised in its place there."""
    with loader_with(Failing(12), batch_size=ROWS, slots=3, spec=SPEC, **LOCAL) as loader:
        for epoch in range(3):
            batches = iter(loader)
            with pytest.raises(ringfeed.WorkerError, match="no such picture"):
                next(batches)
            assert [batch[0].tolist() for batch in batches] == [[4, 5, 6, 7], [8, 9, 10, 11]]
            wait_for_next(loader)
            assert loader.state_dict()["epoch"] == epoch + 1


def test_skipped_samples_are_counted_in_their_own_epoch() -> None:
    """What is left out ahead of its epoch is no part of the statistics yet."""
    with loader_with(
        Failing(12), batch_size=ROWS, slots=3, spec=SPEC, on_error="skip", **LOCAL
    ) as loader:
        for epoch in range(1, 4):
            assert [len(batch[0]) for batch in loader] == [3, 4, 4]
            wait_for_next(loader)
            stats = loader.stats()
            assert (stats.skipped, stats.batches, stats.samples) == (
                [0] * epoch,
                3 * epoch,
                11 * epoch,
            )


@pytest.mark.parametrize("slots", [2, 5])
def test_a_worker_that_dies_ahead_of_its_epoch(slots: int) -> None:
    """Workers are killed at the border, in the midst of the next epoch's rows or idle.

    Nothing is lost.
    """
    dataset = Oracle(23, sleep_s=0.002)
    with loader_with(dataset, batch_size=ROWS, slots=slots, max_attempts=100, **FORKED) as loader:
        for _ in range(4):
            assert drain(loader) == list(range(23))
            for pid in pids(loader):
                os.kill(pid, signal.SIGKILL)


class Order(Sampler, Epoch):
    """0, 1, ..., 7 in every epoch, but that reading epoch 1 raises.

    Each time, or once, with its first numbers gone.
    """

    order, _length = "failing", 8

    def __init__(self, error: BaseException, *, once: bool) -> None:
        self.errors = [error] * (1 if once else 100)
        self.number = self.given = 0

    def epoch(self, number: int, start: int = 0, state: Any = None) -> Order:  # noqa: ARG002 - as samplers have it
        """Begin again."""
        begun = copy(self)
        begun.number, begun.given = number, start
        return begun

    def take(self, count: int) -> np.ndarray[Any, Any]:
        """Give the next numbers."""
        first, self.given = self.given, min(self.given + count, 8)
        if self.number == 1 and self.errors:
            raise self.errors.pop()
        return np.arange(first, self.given)


def test_an_order_that_cannot_be_read_fails_in_its_own_epoch() -> None:
    """An error of the next epoch's order is not raised in this one."""
    with loader_with(Oracle(8), batch_size=ROWS, slots=3, **LOCAL) as loader:
        loader._runner.position.sampler = Order(RuntimeError("no order"), once=False)
        assert drain(loader) == list(range(8))
        with pytest.raises(RuntimeError, match="no order"):
            iter(loader)
        loader.set_epoch(2)
        assert drain(loader) == list(range(8))


def test_ctrl_c_while_the_next_epoch_is_planned_costs_no_batch() -> None:
    """What was read of the order and not planned is not missing.

    That epoch begins from its start.
    """
    with loader_with(Oracle(8), batch_size=ROWS, slots=2, **LOCAL) as loader:
        loader._runner.position.sampler = Order(KeyboardInterrupt(), once=True)
        batches = iter(loader)
        seen = check(next(batches))
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert seen + drain(batches) == list(range(8))
        assert drain(loader) == list(range(8))


# ---- slots ----


def test_views_that_are_kept_hold_no_epoch_up() -> None:
    """Kept batches of several epochs come as private copies, and stay what they were."""
    expected = epochs_of(23, 3, workers=0)
    with loader_with(Noted(23), batch_size=ROWS, shuffle=True, seed=3, slots=3, **LOCAL) as loader:
        with pytest.warns(ringfeed.SlotsHeldWarning):
            kept = [[*loader] for _ in range(3)]
        assert [taken(epoch) for epoch in kept] == expected


def test_what_is_bound_again_stays_beyond_the_border(
    at_border: Callable[..., ringfeed.Loader],
) -> None:
    """A fence binds the next epoch's batches to other slots, and they are still not this one's."""
    loader = at_border()
    ring_of(loader).requeue()
    wait_for_next(loader)
    assert ring_of(loader).left == 0
    assert taken(loader) == epochs_of(23, workers=0)[1]


# ---- what is counted, and the end ----


def test_the_time_between_epochs_is_not_counted(at_border: Callable[..., ringfeed.Loader]) -> None:
    """Statistics stand still between epochs, whatever the workers do."""
    loader = at_border()
    before = loader.stats()
    counted = before.elapsed_s, before.stall_s, before.batches, before.samples
    wait_until(lambda: loader.slot_states() == ["ready"] * 3)
    after = loader.stats()
    assert (after.elapsed_s, after.stall_s, after.batches, after.samples) == counted
    assert counted[2:] == (6, 23)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("how", [LOCAL, FORKED], ids=str)
def test_nothing_is_left_of_what_was_read_ahead(how: dict[str, Any]) -> None:
    """A loader that is closed, or dropped, with the next epoch ready leaves nothing."""
    loader = loader_with(Oracle(24), batch_size=ROWS, slots=3, **how)
    assert drain(loader) == list(range(24))
    wait_for_next(loader)
    loader.close()
    dropped = loader_with(Oracle(24), batch_size=ROWS, slots=3, **how)
    assert drain(dropped) == list(range(24))
    wait_for_next(dropped)
    del dropped


def test_the_last_number_has_no_next() -> None:
    """The epoch of the greatest number is the last, and reads nothing ahead."""
    with loader_with(Oracle(8), batch_size=ROWS, **LOCAL) as loader:
        loader.set_epoch(2**63 - 1)
        assert drain(loader) == list(range(8))
        assert ring_of(loader).planned == 0


# ---- workers that fail ----


class Deadly:
    """A worker ends when it has read all samples and is asked for the first of the next epoch."""

    def __init__(self, length: int) -> None:
        self.left = length

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if not self.left:
            os._exit(3)
        self.left -= 1
        return np.int64(index)


@pytest.mark.usefixtures("irreplaceable")
def test_an_epoch_that_is_handed_out_is_over_though_the_next_one_has_ended_the_workers() -> None:
    """The workers' end is raised in the epoch that is not filled for it.

    Each epoch here has workers of its own.
    """
    spec = ringfeed.Array((), "int64")
    settings: dict[str, Any] = {"workers": 1, "backend": "fork", "slots": 4, "spec": spec}
    with loader_with(Deadly(8), batch_size=ROWS, **settings) as loader:
        for _ in range(2):
            batches = iter(loader)
            seen = [batch.tolist() for batch in (next(batches), next(batches))]
            engine = loader._runner.engine
            assert engine is not None
            wait_until(lambda engine=engine: engine.pool.failure is not None)
            assert next(batches, None) is None
            assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert loader.state_dict()["epoch"] == 2
