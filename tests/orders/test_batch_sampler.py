"""batch_sampler=: lists of sample numbers, each a batch of its own length."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from datasets import Indices
from ringfeed.orders.custom import Lists, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = 20


def loader(batch_sampler: Any, **given_settings: Any) -> ringfeed.Loader:
    """Return a loader over the numbers that fills in this process, unless told otherwise."""
    return ringfeed.Loader(
        Indices(LENGTH),
        batch_sampler=batch_sampler,
        **{"workers": 0, "timeout_s": 60, **given_settings},
    )


def epoch_of(
    batch_sampler: Any, most: int = 8, number: int = 0, start: int = 0, state: Any = None
) -> Reading:
    """Return an epoch of lists over the numbers."""
    found: Any = Lists(batch_sampler, most).bind(LENGTH, 0).epoch(number, start, state)
    return found  # type: ignore[no-any-return]


def lists_of(epoch: Reading, count: int = 100) -> list[list[int]]:
    """Return the next batches."""
    return [batch.tolist() for batch in epoch.take(count)]


class Shuffler:
    """Lists of uneven lengths, other ones in each epoch, as samplers by length make them."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        numbers = np.random.default_rng(self.epoch).permutation(LENGTH).tolist()
        yield from (numbers[:7], numbers[7:8], numbers[8:13], numbers[13:])

    def __len__(self) -> int:
        return 4


class Inner:
    """A sampler as the distributed one of torch's, inside what makes lists of it."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Outer:
    """Has its numbers from a sampler that it calls so, and does not pass the epoch on."""

    def __init__(self) -> None:
        self.sampler = Inner()

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[*self.sampler.epochs[-1:], 5]])


@pytest.mark.parametrize("workers", [0, 2])
def test_each_list_is_a_batch(workers: int) -> None:
    """Of its own length and in its order, epoch after epoch, whichever process fills it."""
    with loader(Shuffler(), workers=workers) as batches:
        assert len(batches) == 4
        for epoch in range(3):
            expected = Shuffler()
            expected.set_epoch(epoch)
            assert [batch.tolist() for batch in batches] == [*expected]


def test_a_short_list_first_and_repeats() -> None:
    """``max_batch_size`` sizes the slots.

    A list may repeat samples, and samples may be in many lists.
    """
    lists = [[3], [4, 4, 4], [0, 1, 2, 3, 4], [19, 3]]
    with loader(lists, max_batch_size=5, slots=2) as batches:
        assert batches.plan.layout.rows == 5
        assert [batch.copy().tolist() for batch in batches] == lists
        assert batches.batch_size is None
        assert repr(batches).startswith("<Loader of Indices: batches of up to 5, no workers")


@pytest.mark.parametrize(
    ("given_lists", "expected"),
    [
        ([(0, 1), (2,)], [[0, 1], [2]]),
        ([range(3), np.array([4, 5], np.uint8)], [[0, 1, 2], [4, 5]]),
        (np.arange(6).reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
        ([[np.int32(3), 4]], [[3, 4]]),
        (lambda epoch: [[epoch], [epoch + 1]], [[2], [3]]),
        (lambda epoch: ([epoch + i] for i in range(2)), [[2], [3]]),
        ((map(int, "12") for _ in range(2)), [[1, 2], [1, 2]]),
    ],
    ids=str,
)
def test_any_iterable_of_iterables_is_an_order(given_lists: Any, expected: list[list[int]]) -> None:
    """Arrays, tuples, ranges, and functions of the epoch; contiguous int64 comes out."""
    batches = epoch_of(given_lists, number=2).take(9)
    assert [batch.tolist() for batch in batches] == expected
    assert all(batch.dtype == np.int64 and batch.flags.c_contiguous for batch in batches)


def test_the_epoch_is_passed_on() -> None:
    """To the sampler inside, too, which torch's users have to do by themselves."""
    outer = Outer()
    with loader(outer, max_batch_size=2) as batches:
        assert [[batch.tolist() for batch in batches] for _ in range(3)] == [
            [[0, 5]],
            [[1, 5]],
            [[2, 5]],
        ]
    assert outer.sampler.epochs == [0, 1, 2]


@settings(deadline=None)
@given(
    lists=st.lists(st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=8), max_size=9),
    start=st.integers(0, 12),
    counts=st.lists(st.integers(1, 4), max_size=5),
)
def test_an_epoch_goes_on_at_any_list(
    lists: list[list[int]], start: int, counts: list[int]
) -> None:
    """A position counts lists; what comes is what comes there in an epoch from its start."""
    epoch = epoch_of(lists, start=start)
    assert [one for count in counts for one in lists_of(epoch, count)] == lists[
        start : start + sum(counts)
    ]
    assert lists_of(epoch_of(lists, start=start)) == lists[start:]
    assert epoch.state(start) is None


class Walk:
    """Lists that depend on all before, from a source that knows where it is."""

    def __init__(self) -> None:
        self.at = 0
        self.made = 0
        self.resumed = False

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.resumed = state["at"], True

    def __iter__(self) -> Iterator[list[int]]:
        self.at, self.resumed = self.at if self.resumed else 0, False
        while self.at < 50:
            self.at += 1
            self.made += 1
            yield [self.at % LENGTH]


@pytest.mark.parametrize("position", [0, 7, 10, 13])
def test_a_batch_sampler_that_has_a_state_goes_on_from_it(position: int) -> None:
    """Its lists before are not read again, but for those since its newest state."""
    epoch = epoch_of(Walk())
    whole = [one for _ in range(5) for one in lists_of(epoch, 5)]
    state = json.loads(json.dumps(epoch.state(position)))
    walk = Walk()
    assert (
        lists_of(epoch_of(walk, start=position, state=state), 5) == whole[position : position + 5]
    )
    assert walk.made == 5 + position % 5


@pytest.mark.parametrize("cut", [0, 1, 3, 4])
def test_a_loader_goes_on_at_a_list(cut: int) -> None:
    """With the batches that were left, and then with the next epoch."""
    with loader(Shuffler()) as batches:
        whole = [[batch.tolist() for batch in batches] for _ in range(2)]
    with loader(Shuffler()) as batches:
        iterator = iter(batches)
        for _ in range(cut):
            next(iterator)
        state = json.loads(json.dumps(batches.state_dict()))
        assert (state["order"], state["length"], state["batch_size"]) == ("lists", 4, None)
        assert (state["epoch"], state["samples"]) == (cut // 4, cut % 4)
    with loader(Shuffler()) as batches:
        batches.load_state_dict(state)
        assert batches.remaining == 4 - cut % 4
        rest = [batch.tolist() for batch in batches]
        assert rest == [*whole[0], *whole[1]][cut : 4 * (cut // 4 + 1)]
        if cut < 4:
            assert [batch.tolist() for batch in batches] == whole[1]


def test_lists_are_skipped() -> None:
    """``skip`` counts batches, however long."""
    with loader(Shuffler()) as batches:
        whole = [batch.tolist() for batch in batches]
    with loader(Shuffler()) as batches:
        batches.skip(batches=2)
        assert [batch.tolist() for batch in batches] == whole[2:]


# Which lists are refused


@pytest.mark.parametrize(
    ("lists", "error", "text"),
    [
        (
            [[0, 1], [0, 1, 2]],
            ValueError,
            "batch 1 of batch_sampler has 3 samples, but a slot has room for 2: give "
            "max_batch_size=3, or as many as the longest list has",
        ),
        ([[0, 1], []], ValueError, "batch 1 of batch_sampler is empty, expected 1 to 2 samples"),
        (
            [[0, 1], [3, 20]],
            IndexError,
            (
                "batch 1 of batch_sampler yielded 20 at position 1, but the dataset has 20 "
                "samples (0..19)"
            ),
        ),
        (
            [[0, 1], [-1]],
            IndexError,
            (
                "batch 1 of batch_sampler yielded -1 at position 0, but the dataset has 20 "
                "samples (0..19)"
            ),
        ),
        (
            [[0, 1], [0.5]],
            TypeError,
            "batch 1 of batch_sampler yielded 0.5 of type float at position 0, expected an integer",
        ),
        (
            [[0, 1], np.array([0.5])],
            TypeError,
            "batch 1 of batch_sampler is an array of float64, expected one of integers",
        ),
        (
            [[0, 1], 3],
            TypeError,
            "batch 1 of batch_sampler is 3 of type int, expected a list of sample numbers; what "
            "yields single numbers is for sampler=",
        ),
        (
            [[0, 1], "ab"],
            TypeError,
            "batch 1 of batch_sampler is 'ab' of type str, expected a list of sample numbers; "
            "what yields single numbers is for sampler=",
        ),
    ],
)
def test_a_list_that_is_no_batch_is_refused(lists: Any, error: type[Exception], text: str) -> None:
    """By its number, when it is read, and again by every next() of this epoch.

    No batch is left out in silence.
    """
    with loader(lists) as batches:
        with pytest.raises(error) as e:
            iter(batches)
        assert str(e.value) == text
    epoch = epoch_of(lists, most=2)
    for _ in range(2):
        with pytest.raises(error):
            epoch.take(3)


def test_an_error_of_the_users_comes_out() -> None:
    """As it is, and as often as is asked."""

    def lost(epoch: int) -> Iterator[list[int]]:
        yield from ([0, 1], [2, 3], [4, 5], [6, 7])
        raise KeyError(epoch)

    with loader(lost, slots=2) as batches:
        iterator = iter(batches)
        assert next(iterator).tolist() == [0, 1]
        for _ in range(2):
            with pytest.raises(KeyError, match="0"):
                list(iterator)


def test_the_default_size_is_shown_as_a_number() -> None:
    """The same number is told from it all the same, by its identity."""
    signature = inspect.signature(ringfeed.Loader)
    assert "batch_size: 'int | None' = 32," in str(signature)
    with ringfeed.Loader([1, 2, 3], workers=0) as batches:
        assert type(batches.batch_size) is int


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        *(
            (
                {"batch_size": size},
                ValueError,
                "batch_sampler= says which samples each batch has; leave batch_size= out",
            )
            for size in (4, 32)  # which is the default
        ),
        (
            {"batch_size": None, "shuffle": True, "drop_remainder": True},
            ValueError,
            (
                "batch_sampler= says which samples each batch has; leave batch_size= and shuffle= "
                "and drop_remainder= out"
            ),
        ),
        (
            {"sampler": [1, 2]},
            ValueError,
            "batch_sampler= says which samples each batch has; leave sampler= out",
        ),
        (
            {"shuffle": 100},
            ValueError,
            "batch_sampler= says which samples each batch has; leave shuffle= out",
        ),
        (
            {"batch_sampler": 5},
            TypeError,
            "batch_sampler is of type int, expected an iterable of lists of sample numbers or a "
            "function from the number of an epoch to one",
        ),
        (
            {"batch_sampler": lambda epoch: epoch},
            TypeError,
            "batch_sampler(0) returned type int, expected an iterable of lists of sample numbers",
        ),
        (
            {"batch_sampler": [0, 1, 2]},
            TypeError,
            "batch 0 of batch_sampler is 0 of type int, expected a list of sample numbers; what "
            "yields single numbers is for sampler=",
        ),
        (
            {"batch_sampler": []},
            ValueError,
            (
                "batch_sampler has no lists, so nothing says how many samples a batch has; give "
                "max_batch_size="
            ),
        ),
        (
            {"batch_sampler": [[], [1]]},
            ValueError,
            (
                "batch 0 of batch_sampler is empty, so it does not say how many samples a batch "
                "has; give max_batch_size="
            ),
        ),
        (
            {"batch_sampler": iter([[1]])},
            ValueError,
            "batch_sampler is an iterator (list_iterator), which cannot be read ahead of its "
            "epoch; give max_batch_size=, the most samples that a list has",
        ),
        (
            {"dataset": lambda: iter(range(9))},
            ValueError,
            "batch_sampler= needs a dataset whose samples have numbers, and an iterable comes in "
            "its own order; shuffle inside the iterable, or give a dataset with __len__ and "
            "__getitem__",
        ),
    ],
)
def test_what_does_not_go_with_lists_is_refused(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """By its name, as torch does, when the loader is made."""
    given_arguments = {"batch_sampler": [[0, 1]], "workers": 0, **arguments}
    with pytest.raises(error) as e:
        ringfeed.Loader(given_arguments.pop("dataset", Indices(LENGTH)), **given_arguments)
    assert str(e.value) == text


def test_an_iterator_serves_one_epoch() -> None:
    """It cannot be read again, and says so."""
    with loader(iter([[1, 2], [3]]), max_batch_size=2) as batches:
        assert [batch.tolist() for batch in batches] == [[1, 2], [3]]
        with pytest.raises(ValueError, match="iterator") as e:
            iter(batches)
        assert str(e.value) == (
            "batch_sampler is an iterator (list_iterator) that epoch 0 has read, and cannot be "
            "read again for epoch 1; give a list, an object whose __iter__ makes a new iterator, "
            "or a function from the number of an epoch to an iterable"
        )
        with pytest.raises(TypeError) as unknown:
            len(batches)
        assert (
            str(unknown.value)
            == "the length of this loader is unknown: its batch_sampler has no len()"
        )


class Fails(Indices):
    """Sample 3 cannot be read."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise KeyError("three")
        return index


def test_failed_samples_are_left_out() -> None:
    """``on_error="skip"`` shortens a list as it does any batch."""
    spec = ringfeed.Array((), "int64")
    lists = [[1, 2], [3, 4, 5], [3], [6]]
    with ringfeed.Loader(
        Fails(LENGTH), batch_sampler=lists, max_batch_size=3, workers=0, spec=spec, on_error="skip"
    ) as batches:
        assert [batch.tolist() for batch in batches] == [[1, 2], [4, 5], [6]]


def test_columns_have_lists_too() -> None:
    """Rows of arrays are gathered by lists, and max_batch_size alone is still for whole batches."""
    columns = (np.arange(LENGTH) * 2, np.arange(LENGTH))
    with ringfeed.Loader(columns, batch_sampler=[[5, 1, 5], [2]], workers=0) as batches:
        assert [[leaf.tolist() for leaf in batch] for batch in batches] == [
            [[10, 2, 10], [5, 1, 5]],
            [[4], [2]],
        ]


def test_lists_are_not_cut_into_parts_of_ranks() -> None:
    """Each rank has lists of its own."""
    message = (
        "batch_sampler= with world_size=2: lists cannot be cut into the parts of ranks; give each "
        "rank a batch_sampler of its own lists, and leave shard= out"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        ringfeed.Loader(
            [*range(8)], batch_sampler=[[0, 1], [2]], shard=ringfeed.Shard(0, 2), workers=0
        )
