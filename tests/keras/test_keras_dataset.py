"""`ringfeed.keras.feed`.

Keras datasets of whole batches, over the ring, as Keras runs them itself.
"""

from __future__ import annotations

import re
import sys
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

import cloudpickle
import keras
import numpy as np
import pytest

import ringfeed
import ringfeed.keras
from ringfeed.datasets.passes import PassOrder
from ringfeed.keras.pydataset import DatasetFeed
from training import X, Y, small_model

if TYPE_CHECKING:
    from collections.abc import Callable

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # or each worker would import Keras
pytestmark = pytest.mark.usefixtures("nothing_left")

RAN_OUT = "ignore:Your input ran out of data:UserWarning"


class Plain(keras.utils.PyDataset):
    """Six batches of a classifier's samples, the last of them smaller."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.batch_size = 18

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        rows = slice(18 * index, 18 * index + 18)
        return X[rows], Y[rows]


class Changing(Plain):
    """Tells in each batch how often it was begun; shrinks or grows between epochs."""

    def __init__(self, lengths: list[int], **settings: Any) -> None:
        super().__init__(**settings)
        self.lengths = lengths
        self.begun = self.ended = 0
        self.record: list[str] = []

    def __len__(self) -> int:
        return self.lengths[min(self.begun, len(self.lengths) - 1)]

    def __getitem__(self, index: int) -> Any:
        return np.array([[self.begun, self.ended, index]], np.float32), np.zeros(1, np.float32)

    def on_epoch_begin(self) -> None:
        self.begun += 1
        self.record.append("begin")

    def on_epoch_end(self) -> None:
        self.ended += 1
        self.record.append("end")


class Endless(Changing):
    """Never ends."""

    __len__ = None  # type: ignore[assignment]

    @property
    def num_batches(self) -> None:
        return None


class Given(Plain):
    """Gives the batches that it was given."""

    def __init__(self, batches: list[Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.batches = batches
        self.batch_size = 1

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


class Recorder(keras.Model):
    """Keeps the batches that it is trained with, as arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.compile("sgd", "mse", run_eagerly=True)
        self.built = True

    def train_step(self, batch: Any) -> dict[str, float]:
        self.seen.append(keras.tree.map_structure(np.array, batch))
        return {"loss": 0.0}

    def test_step(self, batch: Any) -> dict[str, float]:
        return self.train_step(batch)


def seen_by_fit(data: Any, **settings: Any) -> list[Any]:
    """Return the batches that `fit` gets, in their order."""
    model = Recorder()
    model.fit(data, verbose=0, **settings)
    seen = list(model.seen)
    model.seen.clear()
    return seen


def fed(dataset: Any, **settings: Any) -> Any:
    """Return what `feed` gives, with one worker thread unless told otherwise."""
    return ringfeed.keras.feed(
        dataset, **{"workers": 1, "backend": "thread", "timeout_s": 50, **settings}
    )


@pytest.mark.parametrize(
    "settings", [{"backend": "process", "workers": 2}, {"workers": 2}, {"workers": 0}]
)
def test_fit_evaluate_and_predict_as_in_keras(settings: dict[str, Any]) -> None:
    """Losses, metrics and predictions are bit for bit those of the dataset in Keras' own hands."""
    found = []
    for data in (fed(Plain(), **settings), Plain()):
        model = small_model()
        history = model.fit(data, epochs=2, verbose=0, shuffle=False, validation_data=data).history
        found.append(
            (history, model.evaluate(data, verbose=0), model.predict(data, verbose=0).tolist())
        )
        if data is not None and hasattr(data, "close"):
            data.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_hooks_change_what_all_workers_see(backend: str) -> None:
    """Hooks run as often and in the order that Keras runs them.

    Each epoch has the dataset's length of that time.
    """
    records = []
    lengths = [3, 3, 2, 5]
    dataset = Changing(lengths)
    with fed(dataset, backend=backend, workers=2) as data:
        seen = [x[0].tolist() for x, _ in seen_by_fit(data, epochs=3)]
    records.append(dataset.record)
    expected = [[epoch, epoch, index] for epoch in (1, 2, 3) for index in range(lengths[epoch])]
    assert seen == expected
    own = Changing([3])
    Recorder().fit(own, epochs=3, verbose=0, shuffle=False)
    assert dataset.record == own.record


@pytest.mark.parametrize("backend", ["process", "thread"])
@pytest.mark.parametrize("kind", [Changing, Endless])
def test_hooks_amid_a_pass_reach_the_workers(kind: Any, backend: str) -> None:
    """Where a pass lasts for several epochs, each begins where it stood.

    It has what its hooks have changed.
    """
    with fed(kind([9]), backend=backend, workers=2) as data:
        seen = [x[0].tolist() for x, _ in seen_by_fit(data, epochs=3, steps_per_epoch=3)]
    assert seen == [
        [epoch, epoch, index] for epoch in (1, 2, 3) for index in range(3 * epoch - 3, 3 * epoch)
    ]


@pytest.mark.filterwarnings(RAN_OUT)
@pytest.mark.parametrize("settings", [{}, {"workers": 0}])
def test_batches_of_none_are_left_out(settings: dict[str, Any]) -> None:
    """Neither the batches around them nor the epochs after them miss anything."""
    some = [(np.full((2, 1), number, np.float32),) for number in range(5)]
    with fed(Given([some[0], None, some[2], None, some[4]]), **settings) as data:
        seen = [int(batch[0][0, 0]) for batch in seen_by_fit(data, epochs=2)]
    assert seen == [0, 2, 4] * 2


@pytest.mark.filterwarnings(RAN_OUT)
def test_the_first_batch_may_be_none() -> None:
    """What a batch looks like is learned from the first that there is."""
    with fed(Given([None, (X[:4],)])) as data:
        ((seen,),) = seen_by_fit(data)
    np.testing.assert_array_equal(seen, X[:4])


def test_the_structures_of_keras() -> None:
    """`x` arrives as `(x,)`.

    That, `(x, y)`, `(x, y, sample_weight)`, dicts, and lists of inputs as what they were.
    """
    a, b, c = X[:4], Y[:4], X[:4, 0]
    for batch, arrived in (
        (a, (a,)),
        ((a,), (a,)),
        ((a, b), (a, b)),
        ([a, b], (a, b)),
        ((a, b, c), (a, b, c)),
        ({"one": a, "two": b}, {"one": a, "two": b}),
        (([a, c], {"u": b}), ((a, c), {"u": b})),
    ):
        with fed(Given([batch])) as data:
            (seen,) = seen_by_fit(data)
        keras.tree.assert_same_structure(seen, arrived)
        for found, expected in zip(
            keras.tree.flatten(seen), keras.tree.flatten(arrived), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype


def test_order_is_of_seed_and_epoch() -> None:
    """With `shuffle` each epoch has an order of its own, the same for any workers.

    `shuffle` of `fit` has no part.
    """
    orders = []
    for workers in (1, 3):
        with fed(Changing([7]), shuffle=True, seed=5, workers=workers) as data:
            seen = [int(x[0, 2]) for x, _ in seen_by_fit(data, epochs=2, shuffle=True)]
        orders.append(seen)
    assert orders[0] == orders[1]
    first, second = orders[0][:7], orders[0][7:]
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second
    with fed(Plain()) as data:
        np.testing.assert_array_equal(seen_by_fit(data, shuffle=True)[2][0], X[36:54])


def test_shuffle_and_seed_mean_what_they_mean_to_a_loader() -> None:
    """A number of batches is a window.

    What is no shuffle is refused at once, and no seed is one that is drawn.
    """
    with fed(Changing([7]), shuffle=3, seed=5, workers=0) as data:
        seen = [int(x[0, 2]) for x, _ in seen_by_fit(data, epochs=2, shuffle=True)]
    window = ringfeed.orders.WindowShuffle(3).bind(7, 5)
    assert seen == [*window.epoch(0).take(7), *window.epoch(1).take(7)]
    with fed(Changing([7]), shuffle=True, seed=None, workers=0) as data:
        assert sorted(int(x[0, 2]) for x, _ in seen_by_fit(data, epochs=1, shuffle=True)) == [
            *range(7)
        ]
    with pytest.raises(ValueError, match="shuffle") as e:
        ringfeed.keras.feed(Changing([7]), shuffle=1)
    assert (
        str(e.value)
        == "shuffle=1 must be at least 2, the samples of a window; or give True or False"
    )


@pytest.mark.parametrize(
    "settings", [{"backend": "process", "workers": 2}, {"workers": 2}, {"workers": 0}]
)
@pytest.mark.parametrize("steps", [None, 2])
def test_what_a_callback_sets_is_in_the_next_epoch(
    settings: dict[str, Any], steps: int | None
) -> None:
    """On every backend, and where a pass goes on over several epochs of Keras, too."""

    class Steered(Plain):
        level = 0

        def __getitem__(self, index: int) -> Any:
            return np.full((1, 1), self.level, np.float32), np.zeros((1, 1), np.float32)

    dataset = Steered()

    def steer(epoch: int, _logs: Any) -> None:
        dataset.level = epoch

    callback = keras.callbacks.LambdaCallback(on_epoch_begin=steer)
    count = steps or 6
    with fed(dataset, **settings) as data:
        seen = seen_by_fit(data, epochs=3, callbacks=[callback], steps_per_epoch=steps)
    assert [int(x[0, 0]) for x, _ in seen] == [0] * count + [1] * count + [2] * count


class Growing(Plain):
    """A bare array a batch, and a batch more in each epoch."""

    length = 2

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.full((1, 1), index, np.float32)

    def on_epoch_end(self) -> None:
        self.length += 1


@pytest.mark.parametrize(
    "settings", [{"workers": 2}, {"workers": 1, "backend": "thread"}, {"workers": 0}]
)
def test_a_loader_of_a_dataset_that_grows(settings: dict[str, Any]) -> None:
    """Each epoch of `fit` has all batches that there are by then.

    A bare array arrives in a tuple, as in Keras.
    """
    with ringfeed.Loader(Growing(), batch_size=None, timeout_s=50, **settings) as loader:
        seen = seen_by_fit(loader.to_keras(), epochs=3, shuffle=False)
    assert [int(x[0, 0]) for (x,) in seen] == [0, 1, 0, 1, 2, 0, 1, 2, 3]


def test_batches_have_no_number() -> None:
    """What is asked for a batch by its number says how to come by one."""
    with fed(Plain()) as data, pytest.raises(TypeError) as caught:
        data[3]
    assert str(caught.value) == (
        "what feed() and to_keras() return has its batches in the order of an epoch, and none by "
        "number ([3]); ask the dataset for dataset[3], or take the next batch by next(iter(...))"
    )


def test_one_feed_amid_two_calls() -> None:
    """The error of a validation that begins amid an epoch of the same feed says what to do."""
    with fed(Plain()) as data, pytest.raises(ringfeed.SupersededError) as caught:
        small_model().fit(
            data, validation_data=data, epochs=3, steps_per_epoch=2, verbose=0, shuffle=False
        )
    assert str(caught.value) == (
        "another call of Keras, or a loop, has begun the next epoch of this feed or loader, so "
        "that the call amid this epoch cannot go on; give validation_data= a feed() or a loader "
        "of its own"
    )


def test_class_weight() -> None:
    """Given to `feed` or to `fit`, it weighs as it does in Keras."""
    weights = {0: 0.5, 1: 3.0}
    losses = []
    for here, there, dataset in (
        ({"class_weight": weights}, {}, True),
        ({}, {"class_weight": weights}, True),
    ):
        with fed(Plain(), **here) as data:
            losses.append(small_model().fit(data, verbose=0, shuffle=dataset, **there).history)
    own = small_model().fit(Plain(), verbose=0, shuffle=False, class_weight=weights).history
    assert losses == [own, own]


def test_rows_by_the_attribute_batch_size() -> None:
    """A first batch may be smaller than others where the dataset says how large they are."""
    batches = [(np.full((rows, 2), rows, np.float32),) for rows in (3, 8, 1)]
    dataset = Given(batches)
    dataset.batch_size = 8
    with fed(dataset) as data:
        assert [len(batch[0]) for batch in seen_by_fit(data)] == [3, 8, 1]
    with fed(Given(batches), max_batch_size=8) as data:
        assert [len(batch[0]) for batch in seen_by_fit(data)] == [3, 8, 1]


def test_a_larger_batch_says_what_to_do() -> None:
    """A batch of more rows than were foreseen is refused by number, and the remedy is named."""
    batches = [(np.zeros((rows, 2), np.float32),) for rows in (3, 8)]
    expected = (
        "dataset[1]: batch[0] has 8 rows, expected at most 3; return smaller batches, or raise "
        "max_batch_size"
    )
    with fed(Given(batches)) as data, pytest.raises(ringfeed.SpecError) as caught:
        seen_by_fit(data)
    assert str(caught.value) == expected


def test_workers_of_the_dataset() -> None:
    """The dataset's own number of workers counts where it was set; they are processes."""
    with ringfeed.keras.feed(Plain(workers=3)) as data:
        assert "workers by forkserver: 3, slots: 5" in repr(data.loader)
    with fed(Plain(workers=3)) as data:
        assert "workers in threads: 1" in repr(data.loader)


class Silent:
    """Has no length."""

    def __getitem__(self, index: int) -> Any:
        return index


REFUSED = {
    "batch_size": (
        lambda: fed(Plain(), batch_size=2),
        TypeError,
        (
            "batch_size= is not for feed(): the dataset says what a batch is and how many there "
            "are; leave it out"
        ),
    ),
    "sampler": (
        lambda: fed(Plain(), sampler=[1]),
        TypeError,
        (
            "sampler= is not for feed(): the dataset says what a batch is and how many there are; "
            "leave it out"
        ),
    ),
    "arrays": (
        lambda: fed((X, Y)),
        TypeError,
        "a tuple is no Keras dataset, expected a keras.utils.PyDataset or an object whose "
        "__getitem__ gives batches; give arrays and samples to ringfeed.Loader",
    ),
    "empty": (
        lambda: fed(Given([])),
        ValueError,
        "the dataset (a Given) has length 0, expected a batch or more",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    """What is no dataset of batches is refused at once, in words that say what to do."""
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        call()


USES_OF_KERAS: dict[str, Callable[[], Any]] = {
    "feed()": lambda: fed(Plain()),
    "install()": ringfeed.keras.install,
    "to_keras()": lambda: ringfeed.Loader(Plain(), batch_size=None, workers=0).to_keras(),
}


@pytest.mark.parametrize("what", USES_OF_KERAS)
def test_an_old_keras_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 3.7 Keras takes no data adapters.

    The error names the version, and how to update it.
    """
    monkeypatch.setattr(keras, "__version__", "3.6.0")
    with pytest.raises(ImportError) as caught:
        USES_OF_KERAS[what]()
    assert str(caught.value) == (
        f"{what} needs Keras 3.7 or later, which takes data adapters, and this is 3.6.0; "
        "update it: pip install -U keras"
    )


def test_one_feed_serves_training_and_validation_by_turns() -> None:
    """Two feeds at once, and one feed for several calls, lose and double nothing."""
    with fed(Plain()) as data, fed(Plain()) as other:
        model = small_model()
        model.fit(data, validation_data=other, epochs=2, verbose=0)
        model.evaluate(data, verbose=0)
        assert data.loader.stats().batches == 18
        assert other.loader.stats().batches == 12
    with pytest.raises(ringfeed.ClosedError):
        seen_by_fit(data)


def test_a_broken_sample_is_explained() -> None:
    """What the dataset raises arrives as a WorkerError with the batch's number, in its place."""

    class Broken(Plain):
        def __getitem__(self, index: int) -> Any:
            if index == 2:
                message = "no such file"
                raise OSError(message)
            return super().__getitem__(index)

    model = Recorder()
    text = r"^dataset\[2\] raised OSError: no such file"
    with fed(Broken()) as data, pytest.raises(ringfeed.WorkerError, match=text):
        model.fit(data, verbose=0)
    assert len(model.seen) == 2


@pytest.mark.parametrize("uneven", ["pad", "keep", "drop"])
def test_a_hook_amid_a_pass_leaves_each_rank_its_part(uneven: Any) -> None:
    """What is planned anew are the batches of this rank alone, read from the dataset as it is now."""
    numbers = []
    for rank in (0, 1):
        with fed(Changing([11]), backend="thread", shard=ringfeed.Shard(rank, 2, uneven)) as data:
            batches = iter(data)
            seen = [next(batches)[0][0].tolist() for _ in range(2)]
            for _ in range(2):
                data.dataset_feed.run_hook("on_epoch_end")
                seen += [next(batches)[0][0].tolist()]
            seen += [x[0].tolist() for x, _ in batches]
        assert [ended for _, ended, _ in seen] == [0, 0, 1, *[2] * (len(seen) - 3)]
        numbers.append([index for _, _, index in seen])
    last = {"pad": [10, 10], "keep": [10], "drop": []}[uneven]
    assert numbers == [[0, 2, 4, 6, 8, *last[:1]], [1, 3, 5, 7, 9, *last[1:]]]


def test_an_order_steps_back() -> None:
    """A pass gives again what is planned anew, and tells what is still to come."""
    order = PassOrder(lambda: 4, lambda _count, epoch: [4, 2, 7, epoch])
    numbers = order.epoch(1)
    assert numbers.take(3).tolist() == [4, 2, 7]
    numbers.go_to(1)
    assert numbers.take(9).tolist() == [2, 7, 1]
    assert numbers.take(9).tolist() == []
    assert [*numbers.rest(2)] == [7, 1]
    endless = PassOrder(lambda: None, begin=5).epoch(0)
    assert endless.take(2).tolist() == [5, 6]
    assert [*islice(endless.rest(1), 2)] == [6, 7]


class Locking(Changing):
    """Cannot be sent to a process once its epoch has ended."""

    def on_epoch_end(self) -> None:
        self.lock = threading.Lock()


def test_what_a_hook_makes_unfit() -> None:
    """A dataset that can no longer be sent fails at the next batch.

    What is still to come is known, amid a pass too.
    """
    dataset = Locking([9])
    feed = DatasetFeed(dataset, backend="process", workers=1)
    with feed.loader:
        batches = iter(feed.loader)
        assert [int(next(batches)[0][0, 2]) for _ in range(4)] == [0, 1, 2, 3]
        feed.run_hook("on_epoch_end")
        with pytest.raises(ringfeed.ShipError, match=r"^dataset\.lock is a lock"):
            next(batches)
        assert [*feed.rest(4)] == [4, 5, 6, 7, 8]
        with pytest.raises(ringfeed.ShipError):
            iter(feed.loader)


def test_the_length_is_asked_anew() -> None:
    """The length is that of the dataset now; of one without end it is unknown."""
    dataset = Changing([3, 8])
    with DatasetFeed(dataset, workers=0).loader as loader:
        assert len(loader) == 3
        dataset.begun = 1
        assert len(loader) == 8
    with (
        DatasetFeed(Endless([1]), workers=0).loader as loader,
        pytest.raises(TypeError, match=r"its dataset has no len\(\), and goes on without end$"),
    ):
        len(loader)
