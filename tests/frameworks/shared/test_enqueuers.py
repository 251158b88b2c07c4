"""Enqueuers by themselves.

What is handed out, in which order, and what stops, fails or dies meanwhile.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import threading
import time
import traceback
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from enqueued import (
    PATIENCE_S,
    Batched,
    Deadly,
    Drawn,
    Endless,
    Failing,
    Gated,
    Holed,
    Importing,
    Sequence,
    Shrinking,
    Unopened,
    batch_of,
    number_of,
    numbers,
)
from ringfeed.errors import ClosedError, SlotsHeldWarning
from ringfeed.keras.enqueuers import GeneratorEnqueuer, OrderedEnqueuer, SequenceEnqueuer
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
both = pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])


def started(dataset: Any, **settings: Any) -> OrderedEnqueuer:
    """Return a running enqueuer, called as Keras 3 has it."""
    enqueuer = OrderedEnqueuer(dataset, **{"workers": 2, "max_queue_size": 4, **settings})
    enqueuer.start()
    return enqueuer


def wait_for(condition: Any) -> None:
    """Wait until a condition holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.005)


def settle(enqueuer: SequenceEnqueuer) -> None:
    """Wait until all slots are ready."""
    wait_for(
        lambda: enqueuer.loader is not None and set(enqueuer.loader.slot_states()) == {"ready"}
    )


# ---- which batch comes when ----


@both
def test_a_numbered_epoch_has_the_order_of_its_number(*, processes: bool) -> None:
    """The number that `start` is told, as by Keras 3.16, says the order from there on."""
    enqueuer = OrderedEnqueuer(Batched(7), 2, processes, 4, True)  # noqa: FBT003 - Keras' own
    enqueuer.start(5)
    expected = [*range(7)], [*range(7)]
    for epoch, order in zip((5, 6), expected, strict=True):
        random.Random(epoch).shuffle(order)  # noqa: S311 - Keras' own
    assert numbers(enqueuer.get(), 14) == [*expected[0], *expected[1]]
    enqueuer.stop()


@both
@pytest.mark.parametrize("kind", [Batched, Endless])
def test_a_part_is_every_nth_batch(kind: type[Batched], *, processes: bool) -> None:
    """Of three data shards each has every third batch of the order, also where there is no end."""
    for shard in range(3):
        enqueuer = OrderedEnqueuer(kind(7), 2, processes, 4, num_data_shards=3, data_shard_id=shard)
        enqueuer.start(epoch=0)
        expected = [*range(7)][shard::3]
        assert numbers(enqueuer.get(), len(expected)) == expected
        enqueuer.stop()


@both
def test_epochs_follow_each_other(*, processes: bool) -> None:
    """One start gives epoch after epoch in order, and the hook runs once between two of them."""
    sequence = Sequence(5)
    enqueuer = OrderedEnqueuer(sequence, use_multiprocessing=processes)
    enqueuer.start(workers=2, max_queue_size=3)
    assert numbers(enqueuer.get(), 14) == [*range(5), *range(5), *range(4)]
    assert sequence.ended == 2
    enqueuer.stop()


@both
def test_order_is_shuffled_by_random(*, processes: bool) -> None:
    """Each start shuffles anew, each further epoch the last order, by `random` alone."""
    random.seed(5)
    first = [*range(6)]
    random.shuffle(first)
    second = first.copy()
    random.shuffle(second)
    anew = [*range(6)]
    random.shuffle(anew)

    random.seed(5)
    enqueuer = started(Batched(6), use_multiprocessing=processes, shuffle=True)
    assert numbers(enqueuer.get(), 12) == first + second
    enqueuer.stop()
    enqueuer.start()
    assert numbers(enqueuer.get(), 6) == anew
    enqueuer.stop()


def test_start_leaves_the_random_states() -> None:
    """Reading batch 0 to see what it looks like draws nothing from the global random numbers."""
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    enqueuer = started(Drawn(3), workers=0)
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002 - as above
    enqueuer.stop()


@both
def test_a_dataset_without_end_goes_on_at_the_next_start(*, processes: bool) -> None:
    """Each start continues behind the last batch, in one `get` as in several."""
    enqueuer = started(Endless(), use_multiprocessing=processes)
    batches = enqueuer.get()
    assert numbers(batches, 5) == [0, 1, 2, 3, 4]
    enqueuer.stop()
    enqueuer.start()
    assert number_of(next(batches)) == 5
    assert numbers(enqueuer.get(), 3) == [6, 7, 8]
    enqueuer.stop()


@both
def test_none_is_left_out(*, processes: bool) -> None:
    """Batches of None are left out wherever they stand; the epochs and the hook are as ever."""
    sequence = Holed(7, {0, 3, 6})
    enqueuer = OrderedEnqueuer(sequence, use_multiprocessing=processes)
    enqueuer.start(workers=2, max_queue_size=3)
    assert numbers(enqueuer.get(), 9) == [1, 2, 4, 5, 1, 2, 4, 5, 1]
    assert sequence.ended == 2
    enqueuer.stop()


def test_none_is_not_read_twice_without_end() -> None:
    """A start behind batches of None goes on behind them too."""

    class Sparse(Endless):
        def __getitem__(self, index: int) -> Any:
            return batch_of(index) if index % 3 == 2 else None

    enqueuer = started(Sparse())
    assert numbers(enqueuer.get(), 2) == [2, 5]
    enqueuer.stop()
    enqueuer.start()
    assert numbers(enqueuer.get(), 2) == [8, 11]
    enqueuer.stop()


@both
def test_a_dataset_may_shrink_between_epochs(*, processes: bool) -> None:
    """What the hook changes reaches all workers, and is the length of the next epoch."""
    enqueuer = started(Shrinking(5), use_multiprocessing=processes)
    assert numbers(enqueuer.get(), 12) == [*range(5), 4, 3, 2, 1, 1, 2, 3]
    enqueuer.stop()


@both
def test_a_dataset_may_change_between_starts(*, processes: bool) -> None:
    """Each start sends the workers the dataset as it is then, and runs no hook."""
    dataset = Shrinking(5)
    enqueuer = started(dataset, use_multiprocessing=processes)
    assert numbers(enqueuer.get(), 5) == [0, 1, 2, 3, 4]
    enqueuer.stop()
    assert dataset.ended == 0
    dataset.on_epoch_end()
    enqueuer.start()
    assert numbers(enqueuer.get(), 4) == [4, 3, 2, 1]
    enqueuer.stop()


def test_epochs_have_random_numbers_of_their_own() -> None:
    """`ringfeed.rng` gives a batch other numbers in each epoch, in one start or in several."""
    enqueuer = started(Drawn(2), workers=0)
    batches = enqueuer.get()
    seen = [next(batches).tobytes() for _ in range(4)]
    enqueuer.stop()
    enqueuer.start()
    seen += [next(batches).tobytes() for _ in range(2)]
    enqueuer.stop()
    assert len(set(seen)) == 6


def test_many_consumers_share_the_batches_out() -> None:
    """Several threads, each with its own `get`, have each batch of an epoch once between them."""
    enqueuer = started(Batched(40))
    shares: list[list[int]] = [[], [], []]
    turns = threading.Semaphore(40)

    def consume(share: list[int]) -> None:
        batches = enqueuer.get()
        while turns.acquire(blocking=False):
            share.append(number_of(next(batches)))

    threads = [threading.Thread(target=consume, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(itertools.chain(*shares)) == list(range(40))
    assert all(share == sorted(share) for share in shares)
    enqueuer.stop()


# ---- when an epoch ends ----


def test_an_epoch_ends_when_more_is_asked_for() -> None:
    """The hook runs before the next epoch and not behind the last batch, as Keras 3 wants it."""
    dataset = Batched(3)
    enqueuer = started(dataset)
    batches = enqueuer.get()
    assert numbers(batches, 3) == [0, 1, 2]
    assert dataset.ended == 0
    assert number_of(next(batches)) == 0
    assert dataset.ended == 1
    enqueuer.stop()


@pytest.mark.parametrize("kind", [Sequence, Batched])
def test_a_hook_that_raises_costs_no_batch(kind: type[Sequence]) -> None:
    """All of the epoch is handed out, then comes the error, and nothing runs any more."""

    class Ending(kind):  # type: ignore[misc, valid-type]
        def on_epoch_end(self) -> None:
            raise OSError("no more shuffling")

    enqueuer = started(Ending(3))
    batches = enqueuer.get()
    assert [number_of(next(batches)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match=r"^no more shuffling$"):
        next(batches)
    assert not enqueuer.is_running()


def test_nothing_but_none_is_an_error() -> None:
    """An epoch that hands out nothing would go on for ever."""
    enqueuer = started(Holed(3, set()))
    enqueuer.py_dataset.holes = {0, 1, 2}
    batches = enqueuer.get()
    with pytest.raises(ValueError, match="None") as raised:
        numbers(batches, 9)
    assert str(raised.value) == (
        "an epoch of 3 batches was None throughout, so that there is nothing to hand out; return "
        "a batch from __getitem__"
    )
    assert not enqueuer.is_running()


def test_an_empty_dataset_is_an_error() -> None:
    """A dataset without batches would never give one."""
    with pytest.raises(ValueError, match="length is 0") as raised:
        next(started(Sequence(0)).get())
    assert str(raised.value) == (
        "the Sequence has no batches (its length is 0), expected 1 or more; look at what it was "
        "made of"
    )


# ---- what fails and dies ----


def test_a_worker_killed_in_each_costs_nothing(tmp_path: Path) -> None:
    """Two enqueuers whose workers are killed in each epoch give every batch once and in order."""
    pair = []
    for name in ("left", "right"):
        marks = tmp_path / name
        marks.mkdir()
        enqueuer = OrderedEnqueuer(Deadly(marks, 4), use_multiprocessing=True)
        enqueuer.start(workers=2, max_queue_size=3)
        pair.append((enqueuer, enqueuer.get(), marks))
    for _ in range(2):
        seen = [tuple(number_of(next(batches)) for _, batches, _ in pair) for _ in range(4)]
        assert seen == [(number, number) for number in range(4)]
        for _, _, marks in pair:
            (marks / "died-3").unlink()
    for enqueuer, _, _ in pair:
        assert enqueuer.loader is not None
        wait_until(lambda: enqueuer.loader.stats().restarts >= 2)  # noqa: B023
        enqueuer.stop()


@both
def test_an_exception_comes_as_it_is(*, processes: bool) -> None:
    """The dataset's own exception comes in its place, with the worker's traceback, and ends all."""
    enqueuer = started(Failing(2, KeyError("two")), use_multiprocessing=processes)
    batches = enqueuer.get()
    assert [number_of(next(batches)), number_of(next(batches))] == [0, 1]
    with pytest.raises(KeyError) as raised:
        next(batches)
    assert raised.value.args == ("two",)
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "__getitem__"
    assert getattr(raised.value, "__notes__", ["dataset[2] raised KeyError: 'two'"]) == [
        "dataset[2] raised KeyError: 'two'"
    ]
    assert not enqueuer.is_running()
    enqueuer.stop()


def test_an_exit_in_a_worker_is_no_exit_here() -> None:
    """What is no Exception stays in a WorkerError: no worker ends the training script."""
    with pytest.raises(RuntimeError, match=r"^dataset\[2\] raised SystemExit: 3$"):
        numbers(started(Failing(2, SystemExit(3))).get(), 7)


def test_a_first_batch_that_raises_is_raised_by_get() -> None:
    """`start` reads batch 0 itself; what goes wrong there is for `get` to say, as with Keras."""
    enqueuer = started(Failing(0, OSError("no such picture")))
    assert enqueuer.is_running()
    with pytest.raises(OSError, match=r"^no such picture$"):
        next(enqueuer.get())
    assert not enqueuer.is_running()


def test_ctrl_c_in_get_loses_nothing() -> None:
    """Ctrl-C comes out of a `get` that waits; the next one has the batch that was waited for."""
    dataset = Gated(2)
    enqueuer = started(dataset)
    batches = enqueuer.get()
    assert numbers(batches, 1) == [0]
    assert number_of(next(enqueuer.get())) == 1
    assert dataset.reached.wait(PATIENCE_S)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(enqueuer.get())
    assert enqueuer.is_running()
    dataset.gate.set()
    assert numbers(enqueuer.get(), 3) == [2, 3, 4]
    enqueuer.stop()


def test_workers_import_no_loader() -> None:
    """A worker process reads the dataset alone: the enqueuer, and the loader with it, stay here."""
    assert [
        batch.tolist()
        for batch in itertools.islice(started(Importing(2), use_multiprocessing=True).get(), 2)
    ] == [[[False, False]]] * 2


# ---- starting and stopping ----


def test_stop_ends_a_get_that_waits() -> None:
    """A `get` that waits ends with a ValueError when another thread stops."""
    dataset = Gated(1)
    enqueuer = started(dataset)
    ends: list[Any] = []

    def consume() -> None:
        try:
            ends.extend(number_of(batch) for batch in enqueuer.get())
        except ValueError as error:
            ends.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    wait_for(lambda: ends == [0])
    assert dataset.reached.wait(PATIENCE_S)
    enqueuer.stop()
    thread.join(PATIENCE_S)
    dataset.gate.set()
    assert not thread.is_alive()
    assert isinstance(ends[1], ClosedError)
    assert str(ends[1]) == (
        "this enqueuer is not running, so there are no batches; call start(), and take none after "
        "stop()"
    )


def test_stop_and_start_may_be_called_again() -> None:
    """Stopping what does not run and starting what runs do nothing."""
    enqueuer = OrderedEnqueuer(Batched(3))
    assert not enqueuer.is_running()
    assert enqueuer.loader is None
    enqueuer.stop()
    enqueuer.start()
    loader = enqueuer.loader
    assert number_of(next(enqueuer.get())) == 0
    enqueuer.start(workers=5)
    assert enqueuer.loader is loader
    assert number_of(next(enqueuer.get())) == 1
    enqueuer.stop(drain_queue_and_join=False)
    enqueuer.stop(False)  # noqa: FBT003 - Keras' own
    assert not enqueuer.is_running()
    assert enqueuer.loader is None


def test_a_hook_may_stop() -> None:
    """A dataset may stop its enqueuer at the end of an epoch, while another thread stops too."""
    sequence = Sequence(3)
    enqueuer = OrderedEnqueuer(sequence)
    other = threading.Thread(target=enqueuer.stop)

    def stop() -> None:
        other.start()
        enqueuer.stop()

    sequence.on_epoch_end = stop  # type: ignore[method-assign]
    enqueuer.start(workers=2)
    batches = enqueuer.get()
    assert numbers(batches, 3) == [0, 1, 2]
    with pytest.raises(ClosedError):
        next(batches)
    other.join(PATIENCE_S)
    assert not other.is_alive()


@both
def test_one_that_is_dropped_leaves_nothing(*, processes: bool) -> None:
    """An enqueuer without a reference ends its workers at once, without a garbage collection."""
    enqueuer = started(Batched(), use_multiprocessing=processes)
    batches = enqueuer.get()
    next(batches)
    loader = weakref.ref(enqueuer.loader)  # type: ignore[type-var]
    gc.disable()
    try:
        del enqueuer, batches
        assert loader() is None
    finally:
        gc.enable()


# ---- memory ----


def test_batches_are_the_callers_own() -> None:
    """Batches may be kept for ever, however many, and after `stop`."""
    enqueuer = started(Batched(7), max_queue_size=2)
    kept = [*itertools.islice(enqueuer.get(), 21)]
    enqueuer.stop()
    assert [number_of(batch) for batch in kept] == [*range(7)] * 3
    assert all(array.flags.owndata for batch in kept for array in batch)


def test_views_hold_their_slots() -> None:
    """With copy=False a batch keeps its slot while it is referenced, but never the last one."""
    enqueuer = started(Batched(7), max_queue_size=2, copy=False)
    batches = enqueuer.get()
    assert numbers(batches, 7) == [*range(7)]
    kept = [next(batches), next(batches)]
    with pytest.warns(SlotsHeldWarning, match=r"^1 of 2 slots are held"):
        kept += itertools.islice(batches, 5)
    assert [number_of(batch) for batch in kept] == [*range(7)]
    assert [array.flags.owndata for batch in kept for array in batch[:1]] == [False, *[True] * 6]
    enqueuer.stop()


@pytest.mark.parametrize(("asked", "slots"), [(1, 2), (2, 2), (4, 4), (0, 5), (-1, 5)])
def test_no_more_is_read_ahead_than_asked(asked: int, slots: int) -> None:
    """Workers fill max_queue_size batches and no more; where Keras has no bound, workers + 2."""
    seen: set[int] = set()

    class Noted(Batched):
        def __getitem__(self, index: int) -> Any:
            seen.add(index)
            return super().__getitem__(index)

    enqueuer = started(Noted(20), workers=3, max_queue_size=asked)
    settle(enqueuer)
    assert seen == set(range(slots))
    assert number_of(next(enqueuer.get())) == 0
    settle(enqueuer)
    assert seen == set(range(slots + 1))
    enqueuer.stop()


# ---- what is asked for ----


def test_sizes_may_be_given_to_start() -> None:
    """Workers and the queue's size stand where Keras 3 has them, or in `start`.

    Anything but numbers is refused.
    """
    enqueuer = OrderedEnqueuer(Batched(), 3, True, 5, True)  # noqa: FBT003 - Keras' own
    assert (enqueuer.workers, enqueuer.use_multiprocessing, enqueuer.shuffle) == (3, True, True)
    enqueuer = OrderedEnqueuer(Batched())
    enqueuer.start(workers=2, max_queue_size=3)
    assert enqueuer.loader is not None
    assert (enqueuer.workers, enqueuer.loader.plan.workers, enqueuer.loader.plan.slots) == (2, 2, 3)
    enqueuer.stop()
    enqueuer.start(1, 3)  # as Keras 2 has it
    assert (enqueuer.workers, enqueuer.max_queue_size) == (1, 3)
    enqueuer.stop()
    for call in (
        lambda: OrderedEnqueuer(Batched(), True),  # noqa: FBT003
        lambda: enqueuer.start(workers="2"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=r"^workers=.* must be an int$"):
            call()


def test_both_are_of_the_base_class() -> None:
    """Both are a SequenceEnqueuer."""
    assert isinstance(OrderedEnqueuer(Sequence()), SequenceEnqueuer)
    assert isinstance(GeneratorEnqueuer(iter(())), SequenceEnqueuer)


# ---- generators ----


def generated(length: int, *, fail_at: int = -1) -> Iterator[Any]:
    """Yield batches, with None between them; raise at one of them."""
    for number in range(length):
        if number == fail_at:
            raise LookupError(number)
        yield batch_of(number)
        yield None


@both
def test_generator_is_read_once_and_in_order(*, processes: bool) -> None:
    """However many workers are asked for, each batch comes once, in order, and the loop ends."""
    enqueuer = GeneratorEnqueuer(generated(9), use_multiprocessing=processes, random_seed=3)
    enqueuer.start(workers=4, max_queue_size=3)
    assert [number_of(batch) for batch in enqueuer.get()] == [*range(9)]
    assert enqueuer.is_running()
    assert [*enqueuer.get()] == []
    enqueuer.stop()


@pytest.mark.parametrize("slots", [2, 4, 10])
def test_generator_is_read_no_further_than_asked(slots: int) -> None:
    """What is read beyond what was handed out is max_queue_size batches, exactly."""
    source = Unopened(100)
    enqueuer = GeneratorEnqueuer(source)
    enqueuer.start(workers=2, max_queue_size=slots)
    settle(enqueuer)
    assert source.read == slots
    assert numbers(enqueuer.get(), 20) == [*range(20)]
    settle(enqueuer)
    assert source.read == 20 + slots
    enqueuer.stop()


def test_generator_without_batches() -> None:
    """An iterator that gives nothing, or None alone, ends the loop at once."""
    for empty in (iter(()), iter([None, None])):
        enqueuer = GeneratorEnqueuer(empty)
        enqueuer.start()
        assert [*enqueuer.get()] == []
        enqueuer.stop()


def test_generator_that_raises() -> None:
    """What a generator raises comes behind all that it gave before, and stops the enqueuer."""
    enqueuer = GeneratorEnqueuer(generated(9, fail_at=4))
    enqueuer.start(3, 2)
    batches = enqueuer.get()
    assert [number_of(next(batches)) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(LookupError) as raised:
        next(batches)
    assert raised.value.args == (4,)
    assert not enqueuer.is_running()


def test_generator_goes_on_at_the_next_start() -> None:
    """A start reads on where the last has left the generator, which lost what it had read ahead."""
    enqueuer = GeneratorEnqueuer(Unopened(100))
    enqueuer.start(1, 2)
    settle(enqueuer)
    assert number_of(next(enqueuer.get())) == 0
    settle(enqueuer)
    enqueuer.stop()
    enqueuer.start(1, 2)
    assert numbers(enqueuer.get(), 3) == [3, 4, 5]
    enqueuer.stop()


def test_generator_function_is_refused() -> None:
    """What has no next() is refused, and told how it is made one."""
    with pytest.raises(TypeError) as raised:
        GeneratorEnqueuer(generated)  # type: ignore[arg-type]
    assert str(raised.value) == (
        "a GeneratorEnqueuer was given a function, expected a generator or another iterator; call "
        "the function, or give iter(...)"
    )
