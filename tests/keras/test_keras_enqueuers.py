"""Enqueuers beside Keras' own: the same batches in the same order, from Keras 3 and Keras 2.

Keras' own run in threads, since its processes are forked, which hangs beside TensorFlow; its order
is the same.
"""

from __future__ import annotations

import inspect
import random
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from keras.src.trainers.data_adapters import py_dataset_adapter as keras_3

import ringfeed.keras as ours
from enqueued import (
    Batched,
    Endless,
    Failing,
    Holed,
    Sequence,
    Shrinking,
    Unopened,
    number_of,
    numbers,
)

if TYPE_CHECKING:
    from types import ModuleType

both = pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
NUMBERS_EPOCHS = "epoch" in inspect.signature(keras_3.OrderedEnqueuer.start).parameters
"""Whether `start` is given the number of the epoch, as from Keras 3.16 on."""


def start(enqueuer: Any, epoch: int = 0) -> None:
    """Start as code for this Keras does."""
    enqueuer.start(*[epoch] * NUMBERS_EPOCHS)


@pytest.fixture
def keras_2() -> ModuleType:
    """Return where Keras 2 has its enqueuers."""
    reason = "tf_keras, which is Keras 2, is not installed"
    pytest.importorskip("tf_keras", reason=reason)
    return pytest.importorskip("tf_keras.src.utils.data_utils", reason=reason)


def epochs(enqueuer: Any, count: int) -> list[list[int]]:
    """Return epochs as code for Keras 3 reads them.

    One a start, between the dataset's own hooks.
    """
    seen = []
    for epoch in range(count):
        start(enqueuer, epoch)
        seen.append(numbers(enqueuer.get(), enqueuer.py_dataset.num_batches))
        enqueuer.stop()
        enqueuer.py_dataset.on_epoch_end()
    return seen


@both
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", [Batched, Shrinking])
def test_epochs_are_those_of_keras_3(
    kind: type[Batched], *, shuffle: bool, processes: bool
) -> None:
    """With the same seed each start has the batches of Keras' own, in its order.

    That holds where the dataset shrinks, too.
    """
    random.seed(7)
    theirs = keras_3.OrderedEnqueuer(kind(6), 2, False, 4, shuffle)  # noqa: FBT003
    expected = epochs(theirs, 3)
    random.seed(7)
    assert epochs(ours.OrderedEnqueuer(kind(6), 2, processes, 4, shuffle), 3) == expected
    assert (expected[0] == [*range(6)]) is not shuffle


def both_parts(enqueuer: Any) -> list[int]:
    """Return what two starts give."""
    seen: list[int] = []
    for count in (3, 5):
        start(enqueuer)
        seen += numbers(enqueuer.get(), count)
        enqueuer.stop()
    return seen


@both
def test_a_dataset_without_end_goes_on_as_with_keras_3(*, processes: bool) -> None:
    """The second start has the batches behind those of the first."""
    expected = both_parts(keras_3.OrderedEnqueuer(Endless(), 2, False, 4))  # noqa: FBT003
    assert both_parts(ours.OrderedEnqueuer(Endless(), 2, processes, 4)) == expected == [*range(8)]


@both
def test_errors_are_those_of_keras_3(*, processes: bool) -> None:
    """The same exception after the same batches.

    Then neither runs, and a further batch is a ValueError.
    """

    def seen(enqueuer: Any) -> list[Any]:
        start(enqueuer)
        batches = enqueuer.get()
        found: list[Any] = [number_of(next(batches)) for _ in range(2)]
        with pytest.raises(LookupError) as raised:
            next(batches)
        with pytest.raises(ValueError, match=r".") as stopped:
            next(enqueuer.get())
        return [
            *found,
            type(raised.value),
            raised.value.args,
            enqueuer.is_running(),
            isinstance(stopped.value, OSError),
        ]

    expected = seen(keras_3.OrderedEnqueuer(Failing(2, LookupError("two")), 2))
    assert seen(ours.OrderedEnqueuer(Failing(2, LookupError("two")), 2, processes)) == expected


def test_signature_is_that_of_keras_3() -> None:
    """What Keras takes by position or by name is taken here, with the same defaults."""
    theirs = [
        (one.name, one.default)
        for one in inspect.signature(keras_3.OrderedEnqueuer).parameters.values()
    ]
    mine = [
        (one.name, one.default)
        for one in inspect.signature(ours.OrderedEnqueuer).parameters.values()
    ]
    assert mine[: len(theirs)] == theirs  # those of Keras 3.16 come behind those of older ones
    for method in ("start", "get", "stop", "is_running"):
        names = inspect.signature(getattr(keras_3.OrderedEnqueuer, method)).parameters
        assert set(names) <= set(
            inspect.signature(getattr(ours.OrderedEnqueuer, method)).parameters
        )


@pytest.mark.skipif(not NUMBERS_EPOCHS, reason="Keras shards PyDatasets from 3.16 on")
@both
@pytest.mark.parametrize("kind", [Batched, Endless])
def test_parts_are_those_of_keras_3(kind: type[Batched], *, processes: bool) -> None:
    """Each data shard has the batches that it has with Keras' own."""
    for shard in range(3):
        found = []
        for made, way in ((keras_3.OrderedEnqueuer, False), (ours.OrderedEnqueuer, processes)):
            enqueuer = made(kind(7), 2, way, 4, True, 3, shard)  # noqa: FBT003 - Keras' own
            start(enqueuer, 5)
            found.append(numbers(enqueuer.get(), 3 - (shard > 0)))
            enqueuer.stop()
        assert found[1] == found[0]


def unbroken(enqueuer: Any, count: int) -> list[int]:
    """Return batches as code for Keras 2 reads them: in one start, epoch after epoch."""
    enqueuer.start(workers=2, max_queue_size=4)
    try:
        return numbers(enqueuer.get(), count)
    finally:
        enqueuer.stop()


@both
@pytest.mark.parametrize("shuffle", [False, True])
def test_epochs_are_those_of_keras_2(
    keras_2: ModuleType, *, shuffle: bool, processes: bool
) -> None:
    """With the same seed all epochs of one start have the order that Keras 2 has."""
    random.seed(7)
    expected = unbroken(keras_2.OrderedEnqueuer(Sequence(6), shuffle=shuffle), 18)
    random.seed(7)
    assert (
        unbroken(
            ours.OrderedEnqueuer(Sequence(6), use_multiprocessing=processes, shuffle=shuffle), 18
        )
        == expected
    )
    assert [sorted(expected[at : at + 6]) for at in (0, 6, 12)] == [[*range(6)]] * 3


@both
def test_none_is_left_out_as_in_keras_2(keras_2: ModuleType, *, processes: bool) -> None:
    """What is handed out is the same where the first, the last and other batches are None."""
    expected = unbroken(keras_2.OrderedEnqueuer(Holed(6, {0, 3, 5})), 8)
    assert (
        unbroken(ours.OrderedEnqueuer(Holed(6, {0, 3, 5}), use_multiprocessing=processes), 8)
        == expected
        == [1, 2, 4, 1, 2, 4, 1, 2]
    )


def test_generators_are_those_of_keras_2(keras_2: ModuleType) -> None:
    """The same batches in the same order, and a loop that ends with the last.

    One worker, which is all Keras orders.
    """
    seen = []
    for enqueuer in (
        keras_2.GeneratorEnqueuer(iter(Unopened(9))),
        ours.GeneratorEnqueuer(iter(Unopened(9))),
    ):
        enqueuer.start(workers=1, max_queue_size=3)
        seen.append([number_of(batch) for batch in islice(enqueuer.get(), 20)])
        assert [*enqueuer.get()] == []
        enqueuer.stop()
    assert seen == [[*range(9)]] * 2


def test_signatures_are_those_of_keras_2(keras_2: ModuleType) -> None:
    """The generator's constructor, which Keras 3 lacks, and what Keras 2 gives to `start`."""
    theirs = inspect.signature(keras_2.GeneratorEnqueuer).parameters
    mine = [*inspect.signature(ours.GeneratorEnqueuer).parameters.values()][: len(theirs)]
    assert [(one.name, one.default) for one in mine] == [
        (one.name, one.default) for one in theirs.values()
    ]
    names = inspect.signature(keras_2.SequenceEnqueuer.start).parameters
    assert [*names] == [*inspect.signature(ours.SequenceEnqueuer.start).parameters]
