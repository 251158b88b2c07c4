"""The order of the samples.

The permutation, the three samplers, and the arguments that choose one.
"""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from hashlib import shake_256
from itertools import count, pairwise, permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from ringfeed.datasets.passes import PassOrder
from ringfeed.datasets.round_robin import RoundRobinSampler
from ringfeed.orders._permute import MAX_LENGTH
from ringfeed.orders.custom import Custom
from ringfeed.orders.making import sampler_of
from ringfeed.orders.permutation import Shuffled, permute
from ringfeed.orders.sampler import CHUNK, Epoch, Sampler, Sequential

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

pytestmark = pytest.mark.once

SEEDS = st.integers(0, 2**200)
EPOCHS = st.integers(0, 2**70)
EDGES = [1, 2, 3, 5, 7, 1024, 4095, 4096, 4097, 8191, 8192, 8193, 16_385, 65_537]


def order(length: int, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    """Return a whole epoch."""
    return permute(np.arange(length), length, seed, epoch)


def read(epoch: Epoch, size: int = 7) -> list[int]:
    """Return all of an epoch, taken ``size`` at a time."""
    numbers: list[int] = []
    while (taken := epoch.take(size)).size:
        numbers += taken.tolist()
    return numbers


# The permutation


def documented_order(position: int, length: int, seed: int, epoch: int) -> int:
    """Return what the module's docstring promises, one number at a time and in plain integers."""
    stream = shake_256(f"ringfeed order {seed:x}/{epoch:x}/{length:x}".encode())
    if length <= 4096:
        text = stream.digest(8 * length)
        words = [int.from_bytes(text[8 * i : 8 * i + 8], "little") for i in range(length)]
        return sorted(range(length), key=lambda i: (words[i], i))[position]
    text = stream.digest(96)
    keys = [int.from_bytes(text[4 * i : 4 * i + 4], "little") for i in range(24)]
    bits = (length - 1).bit_length()
    small, large = bits // 2, bits - bits // 2
    while True:
        left, right = position >> large, position % 2**large
        for key in keys:
            product = left * 0xD2B74407B1CE6E93 % 2**64
            left, right = (
                ((product >> 32) ^ key ^ right) % 2**small,
                (product * 2 ** (large - small) + (right >> small)) % 2**large,
            )
        position = left * 2**large + right
        if position < length:
            return position


@given(st.integers(1, 9000) | st.integers(1, MAX_LENGTH), SEEDS, EPOCHS, st.data())
@settings(deadline=None)
def test_the_order_is_the_documented_one(length: int, seed: int, epoch: int, source: Any) -> None:
    """Any position goes where the published construction, in plain integers, takes it."""
    last = length - 1
    positions = [0, last, last // 2, *source.draw(st.lists(st.integers(0, last), max_size=5))]
    expected = [documented_order(position, length, seed, epoch) for position in positions]
    assert permute(np.array(positions), length, seed, epoch).tolist() == expected


@pytest.mark.parametrize(
    ("length", "seed", "epoch", "expected"),
    [
        (1, 0, 0, [0]),
        (5, 0, 0, [0, 3, 2, 1, 4]),
        (10, 0, 0, [9, 6, 5, 7, 0, 2, 3, 8]),
        (10, 0, 1, [2, 7, 0, 9, 4, 8, 1, 3]),
        (10, 2**100, 0, [2, 3, 8, 6, 9, 0, 4, 1]),
        (4096, 42, 7, [3229, 1321, 720, 3443, 2639, 518, 2052, 274]),
        (4097, 42, 7, [3035, 3948, 2708, 2292, 918, 331, 2253, 1917]),
        (50_000, 0, 0, [25449, 18173, 28646, 12529, 27324, 48845, 48444, 20735]),
        (50_000, 0, 1, [20281, 25556, 22408, 9830, 14613, 45973, 6367, 38076]),
        (1_281_167, 0, 0, [991189, 1134123, 268978, 904540, 547642, 683720, 761395, 784345]),
        (
            10**9,
            1,
            2,
            [911559995, 484319554, 465351609, 926135966, 258609452, 866167044, 214450110],
        ),
        (
            2**62,
            2**64,
            2**40,
            [
                796880253242177282,
                2797423521172988332,
                38623723576574431,
                4030278248188076497,
                1417573056492944469,
                1654464693248205802,
                1811523552543665451,
                1015419919996898887,
            ],
        ),
    ],
)
def test_no_version_changes_anyones_order(
    length: int, seed: int, epoch: int, expected: list[int]
) -> None:
    """These first samples were given by the first release, and so they stay."""
    assert Shuffled().bind(length, seed).epoch(epoch).take(len(expected)).tolist() == expected


@pytest.mark.parametrize("length", EDGES)
def test_an_epoch_holds_every_sample_once_at_the_edges(length: int) -> None:
    """Also where the method changes, and around the powers of two."""
    assert np.array_equal(np.sort(order(length, seed=9)), np.arange(length))


@given(st.integers(1, 20_000), SEEDS, EPOCHS)
@settings(max_examples=60, deadline=None)
def test_an_epoch_holds_every_sample_once(length: int, seed: int, epoch: int) -> None:
    """Whatever the length, seed and epoch, the order is a permutation."""
    assert np.array_equal(np.sort(order(length, seed, epoch)), np.arange(length))


@pytest.mark.parametrize("length", [10**9, 2**40, 2**40 + 1, MAX_LENGTH - 1, MAX_LENGTH])
def test_parts_of_a_huge_epoch_hold_distinct_samples(length: int) -> None:
    """Twenty thousand positions, at the start, the middle and the end, give as many samples."""
    starts = [0, length // 2, length - 7000]
    positions = np.concatenate([np.arange(start, start + 7000) for start in starts])
    numbers = permute(positions, length, 1, 2)
    assert numbers.dtype == np.int64
    assert 0 <= numbers.min() < length // 100
    assert length - length // 100 < numbers.max() < length
    assert np.unique(numbers).size == positions.size


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("length", [10, 5000])
def test_positions_may_come_in_any_order(length: int, dtype: type[Any]) -> None:
    """A position's sample depends on nothing else in the call.

    The caller's array is left as it was.
    """
    positions = np.array([7, 3, 3, 0], dtype=dtype)
    assert permute(positions, length, 5, 6).tolist() == order(length, 5, 6)[[7, 3, 3, 0]].tolist()
    assert positions.tolist() == [7, 3, 3, 0]
    assert permute(positions[:0], length, 5, 6).tolist() == []


@pytest.mark.parametrize(
    ("positions", "length", "text"),
    [
        ([0, 10], 10, "positions are 0 to 10, expected 0 to 9: the epoch has 10 samples"),
        ([4, -1], 5000, "positions are -1 to 4, expected 0 to 4999: the epoch has 5000 samples"),
    ],
)
def test_a_position_outside_the_epoch_is_refused(
    positions: list[int], length: int, text: str
) -> None:
    """Walking from outside might collide with a true position, so it is an error."""
    with pytest.raises(IndexError) as e:
        permute(np.array(positions), length, 0, 0)
    assert str(e.value) == text


# Uniformity. Every test has fixed seeds and therefore a fixed result; its limit is what truly
# random orders exceed once in a thousand times.

ONE_IN_A_THOUSAND = 3.0902  # standard deviations of the normal distribution, one-sided
EITHER_SIDE = 3.2905  # the same, two-sided


def assert_uniform(observed: Iterable[int], expected: Iterable[float] | None = None) -> None:
    """Pearson's chi-square test, its quantile by Wilson and Hilferty's formula.

    Even cells unless given.
    """
    cells = np.array(list(observed), dtype=float)
    means = np.full(cells.size, cells.mean()) if expected is None else np.array(list(expected))
    assert means.min() >= 5
    statistic = float(((cells - means) ** 2 / means).sum())
    freedom = cells.size - 1
    share = 2 / (9 * freedom)
    assert statistic < freedom * (1 - share + ONE_IN_A_THOUSAND * math.sqrt(share)) ** 3


def assert_standard_normal(values: NDArray[np.float64]) -> None:
    """Mean 0 and variance 1, each within what chance allows."""
    size = values.size
    assert abs(values.mean()) * math.sqrt(size) < EITHER_SIDE
    assert abs(values.var() - 1) * math.sqrt(size / 2) < EITHER_SIDE


@pytest.mark.parametrize("vary", ["seed", "epoch"])
@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_every_permutation_of_a_few_samples_is_equally_likely(length: int, vary: str) -> None:
    """All 2 to 120 orders come up about 30 times, over seeds and over epochs."""
    runs = range(30 * math.factorial(length))
    found = Counter(tuple(order(length, **{vary: run}).tolist()) for run in runs)
    assert_uniform(found[each] for each in permutations(range(length)))


@pytest.mark.parametrize("length", [20, 1000, 4097, 5000, 8192, 10**9])
def test_a_position_gets_every_sample_equally_often(length: int) -> None:
    """Each of five positions gets samples of each twentieth alike, over 1,000 epochs."""
    positions = np.array([0, 1, length // 2, length - 2, length - 1])
    places = np.array([permute(positions, length, 4, epoch) for epoch in range(1000)])
    for position in range(positions.size):
        assert_uniform(np.histogram(places[:, position], bins=20, range=(-0.5, length - 0.5))[0])


@pytest.mark.parametrize("length", [1000, 6000, 8192, 10**9])
def test_neighbours_come_in_any_distance(length: int) -> None:
    """Two samples in a row are any distance apart, counted round the end.

    25 classes, over 3,000 epochs.
    """
    pairs = np.array([permute(np.array([5, 6]), length, 8, epoch) for epoch in range(3000)])
    distances = (pairs[:, 1] - pairs[:, 0]) % length - 1
    assert_uniform(np.histogram(distances, bins=25, range=(-0.5, length - 1.5))[0])


@pytest.mark.parametrize("length", [6, 5000, 8192])
def test_of_two_samples_either_comes_first(length: int) -> None:
    """Samples 0 and 1, and first and last, come in both orders equally often in 500 epochs."""
    places = np.array(
        [np.argsort(order(length, 2, epoch))[[0, 1, length - 1]] for epoch in range(500)]
    )
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert_uniform(np.bincount(places[:, one] < places[:, other], minlength=2))


@pytest.mark.parametrize("length", [500, 5000, 8192])
def test_orders_have_as_many_fixed_points_as_chance_gives(length: int) -> None:
    """The samples that stay in their place are Poisson distributed with mean 1, over 500 epochs."""
    fixed = [int((order(length, 6, epoch) == np.arange(length)).sum()) for epoch in range(500)]
    chances = [math.exp(-1) / math.factorial(points) for points in range(4)]
    observed = np.bincount(np.minimum(fixed, 4), minlength=5)
    assert_uniform(observed, [500 * chance for chance in [*chances, 1 - sum(chances)]])


@pytest.mark.parametrize("length", [700, 5000, 8192])
def test_successive_samples_are_uncorrelated(length: int) -> None:
    """The serial correlation of epochs, times the root of their length, is normal: 400 epochs."""
    epochs = (order(length, 3, epoch) for epoch in range(400))
    found = [np.corrcoef(numbers[:-1], numbers[1:])[0, 1] for numbers in epochs]
    assert_standard_normal(np.array(found) * math.sqrt(length))


@pytest.mark.parametrize("vary", ["seed", "epoch"])
@pytest.mark.parametrize("length", [700, 5000, 8192])
def test_consecutive_epochs_and_seeds_are_independent(length: int, vary: str) -> None:
    """An order and the next epoch's, or the next seed's, correlate as unrelated orders do."""
    orders = [order(length, **{vary: run}) for run in range(400)]
    found = [np.corrcoef(*pair)[0, 1] for pair in pairwise(orders)]
    assert_standard_normal(np.array(found) * math.sqrt(length))


def test_every_bit_of_a_seed_counts() -> None:
    """Seeds that differ beyond 64 bits, and seed and epoch swapped, give other orders."""
    seeds = [1, 1 + 2**32, 1 + 2**64, 1 + 2**128, 2**5000]
    orders = {tuple(order(50, seed, 0).tolist()) for seed in seeds}
    orders |= {tuple(order(50, *pair).tolist()) for pair in [(0, 1), (1, 16), (17, 0), (0, 2**64)]}
    assert len(orders) == 9


# Epochs


def samplers(length: int) -> dict[str, Sampler]:
    """Return each kind of sampler over ``length`` samples."""
    return {
        "sequential": Sequential().bind(length, 0),
        "shuffled": Shuffled().bind(length, 5),
        "list": Custom(order(length, 5).tolist()).bind(length, 0),
        "array": Custom(order(length, 5)).bind(length, 0),
    }


@pytest.mark.parametrize("kind", ["sequential", "shuffled", "list", "array"])
@given(length=st.integers(1, 300), sizes=st.lists(st.integers(0, 100), max_size=9))
@settings(max_examples=30, deadline=None)
def test_an_epoch_is_the_same_however_it_is_taken(kind: str, length: int, sizes: list[int]) -> None:
    """Takes of any sizes join to the whole epoch.

    Then come empty ones, all of them contiguous int64.
    """
    sampler = samplers(length)[kind]
    whole = sampler.epoch(0).take(length)
    epoch = sampler.epoch(0)
    taken = [epoch.take(size) for size in [*sizes, length, 3]]
    assert np.concatenate(taken).tolist() == whole.tolist()
    assert sorted(whole.tolist()) == list(range(length))
    assert taken[-1].size == 0
    assert all(numbers.dtype == np.int64 and numbers.flags.c_contiguous for numbers in taken)


@pytest.mark.parametrize("size", [1000, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_a_shuffled_epoch_crosses_its_chunks_unnoticed(size: int) -> None:
    """Takes smaller and larger than the chunks of a permutation give the order of `permute`."""
    length = 2 * CHUNK + 5000
    epoch = Shuffled().bind(length, 3).epoch(4)
    numbers = [epoch.take(size) for _ in range(-(-length // size) + 1)]
    assert [part.size for part in numbers[:-2]] == [size] * (len(numbers) - 2)
    assert np.array_equal(np.concatenate(numbers), order(length, 3, 4))


def test_epochs_do_not_disturb_each_other() -> None:
    """Two epochs of one sampler, read in turn, and a repeated one give each its own order."""
    sampler = Shuffled().bind(100, 1)
    one, other, again = sampler.epoch(1), sampler.epoch(2), sampler.epoch(1)
    mixed = [(one.take(10), other.take(10), again.take(10)) for _ in range(10)]
    assert np.concatenate([row[0] for row in mixed]).tolist() == order(100, 1, 1).tolist()
    assert np.concatenate([row[1] for row in mixed]).tolist() == order(100, 1, 2).tolist()
    assert np.concatenate([row[2] for row in mixed]).tolist() == order(100, 1, 1).tolist()


def test_a_billion_samples_take_no_memory() -> None:
    """The first 300 batches of a shuffled billion are had within two megabytes."""
    tracemalloc.start()
    try:
        epoch = Shuffled().bind(10**9, 0).epoch(0)
        for _ in range(300):
            assert epoch.take(128).size == 128
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20


def test_lengths_and_purity() -> None:
    """What a loader asks of each sampler before it reads."""
    samplers: list[Sampler] = [
        Sequential().bind(5, 0),
        Shuffled().bind(5, 0),
        Custom([1, 2]).bind(5, 0),
        PassOrder(lambda: 5),
    ]
    assert [(sampler.length, sampler.pure, sampler.order) for sampler in samplers] == [
        (5, True, "sequential"),
        (5, True, "shuffled"),
        (2, False, "custom"),
        (5, True, "passes"),
    ]
    assert (RoundRobinSampler(([],), 2).length, RoundRobinSampler(([],), 2).order) == (0, "streams")
    assert Custom(np.arange(3)).bind(5, 0).length == 3
    assert Custom(iter([1, 2])).bind(5, 0).length is None
    assert Custom(lambda epoch: [epoch]).bind(5, 0).length is None
    assert Custom(Endless()).bind(5, 0).length is None


def test_an_unknown_length_counts_on() -> None:
    """A dataset that ends by itself is numbered for as long as it goes."""
    epoch = Sequential().bind(None, 0).epoch(0)
    assert Sequential().bind(None, 0).length is None
    assert epoch.take(3).tolist() == [0, 1, 2]
    assert epoch.take(2).tolist() == [3, 4]


def test_empty_epochs_are_over_at_once() -> None:
    """No samples, no numbers, no error."""
    for sampler in (
        Sequential().bind(0, 0),
        Shuffled().bind(0, 0),
        Custom([]).bind(0, 0),
        Custom(np.arange(0)).bind(0, 0),
    ):
        assert sampler.epoch(0).take(5).tolist() == []


# The user's own order


class TorchLike:
    """A sampler as torch makes them.

    New order for each iteration, told of the epoch by ``set_epoch``.
    """

    def __init__(self) -> None:
        """No epoch yet."""
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        """Remember the epoch."""
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter([self.epochs[-1], 7, 8])

    def __len__(self) -> int:
        return 3


class Endless:
    """A sampler that has ``__len__`` but no length, as the base classes of some frameworks do."""

    def __iter__(self) -> Iterator[int]:
        return count()

    def __len__(self) -> int:
        raise NotImplementedError


class Both:
    """Iterable and callable: it is read, not called."""

    def __iter__(self) -> Iterator[int]:
        return iter([8, 7])

    def __call__(self, epoch: int) -> None:
        """Return nothing that could be read."""


class OldSequence:
    """Iterable by ``__getitem__`` alone."""

    def __getitem__(self, place: int) -> int:
        return [4, 2][place]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ([3, 1, 2, 1], [3, 1, 2, 1]),
        ((3, 1), [3, 1]),
        (range(9, 0, -3), [9, 6, 3]),
        ({5: "a", 6: "b"}, [5, 6]),
        ([np.int32(3), np.uint8(4), 5], [3, 4, 5]),
        (np.array([3, 1], dtype=np.uint8), [3, 1]),
        (np.array([3, 1], dtype=np.uint64), [3, 1]),
        (np.array([3, 1], dtype=">i4"), [3, 1]),
        (np.arange(10)[::-4], [9, 5, 1]),
        (lambda epoch: (epoch + n for n in range(2)), [6, 7]),
        (lambda epoch: np.array([epoch, 1]), [6, 1]),
        (OldSequence(), [4, 2]),
        (Both(), [8, 7]),
    ],
    ids=str,
)
def test_any_iterable_of_integers_is_an_order(source: object, expected: list[int]) -> None:
    """Repeats and subsets included, the same in every reading and with any sizes of takes."""
    for size in (1, 2, 100):
        assert read(Custom(source).bind(10, 0).epoch(6), size) == expected


def test_a_torch_sampler_learns_the_epoch() -> None:
    """``set_epoch`` is called before each epoch is read, and the sampler's length is passed on."""
    source = TorchLike()
    sampler = Custom(source).bind(10, 0)
    assert sampler.length == 3
    assert [read(sampler.epoch(number)) for number in (0, 5)] == [[0, 7, 8], [5, 7, 8]]
    assert source.epochs == [0, 5]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_an_iterable_is_read_no_further_than_asked(size: int) -> None:
    """Its side effects happen when its numbers are needed: ``take(5)`` reads five."""
    reads: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            reads.append(number)
            yield number

    epoch = Custom(numbers()).bind(100, 0).epoch(0)
    assert reads == []
    assert epoch.take(size).tolist() == list(range(size))
    assert reads == list(range(size))


class Restarting:
    """Against the rules of iterators: it goes on after the end."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.asked = 0

    def __iter__(self) -> Restarting:
        return self

    def __next__(self) -> int:
        self.asked += 1
        if self.asked == 3:
            raise StopIteration
        return self.asked


def test_an_iterable_is_not_asked_again_after_its_end() -> None:
    """An iterator that would begin again after StopIteration does not lengthen the epoch."""
    source = Restarting()
    epoch = Custom(source).bind(10, 0).epoch(0)
    assert [epoch.take(4).tolist(), epoch.take(4).tolist()] == [[1, 2], []]
    assert source.asked == 3


def test_an_iterator_serves_one_epoch() -> None:
    """A generator cannot be read again; an epoch without samples would lose training silently."""
    sampler = Custom(number for number in range(3)).bind(3, 0)
    assert read(sampler.epoch(0)) == [0, 1, 2]
    with pytest.raises(ValueError, match="iterator") as e:
        sampler.epoch(1)
    assert str(e.value) == (
        "sampler is an iterator (generator) that epoch 0 has read, and cannot be read again for "
        "epoch 1; give a list, an object whose __iter__ makes a new iterator, or a function from "
        "the number of an epoch to an iterable"
    )


def test_a_function_must_not_return_the_same_iterator_twice() -> None:
    """The same mistake one level deeper is found as well; new iterators are welcome."""
    numbers = iter([1, 2])
    sampler = Custom(lambda _: numbers).bind(3, 0)
    assert read(sampler.epoch(3)) == [1, 2]
    with pytest.raises(
        ValueError, match=r"that epoch 3 has read, and cannot be read again for epoch 4"
    ):
        sampler.epoch(4)
    fresh = Custom(lambda epoch: iter([epoch])).bind(3, 0)
    assert [read(fresh.epoch(number)) for number in (1, 2)] == [[1], [2]]


@pytest.mark.parametrize(
    ("source", "length", "text"),
    [
        ([*range(17), 1000], 1000, "17, but the dataset has 1000 samples (0..999)"),
        (np.array([*range(17), 1000]), 1000, "17, but the dataset has 1000 samples (0..999)"),
        (np.array([1, 2**63], dtype=np.uint64), 5, "1, but the dataset has 5 samples (0..4)"),
        ([3, -1], 5, "1, but the dataset has 5 samples (0..4)"),
        (np.array([-1]), 5, "0, but the dataset has 5 samples (0..4)"),
        ([0, 0, 0, 1], 1, "3, but the dataset has 1 sample (0)"),
        ([0], 0, "0, but the dataset is empty"),
        ([0, 2**70, -1], 5, "1, but the dataset has 5 samples (0..4)"),
        ([np.uint64(2**63)], 5, "0, but the dataset has 5 samples (0..4)"),
        ([4, -2], None, "1, expected a sample number from 0 to 9223372036854775806"),
        ([2**70], None, "0, expected a sample number from 0 to 9223372036854775806"),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [3, 100])
def test_a_number_that_is_no_sample_is_refused(
    source: Any, length: int | None, text: str, size: int
) -> None:
    """The error names the number, its position in the epoch and what the dataset has."""
    position = int(text.partition(",")[0])
    with pytest.raises(IndexError) as e:
        read(Custom(source).bind(length, 0).epoch(0), size)
    assert str(e.value) == f"sampler yielded {source[position]} at position {text}"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ([1, True], "sampler yielded True of type bool at position 1, expected an integer"),
        (
            [1, 2, 3, np.bool_(1)],
            "sampler yielded np.True_ of type bool at position 3, expected an integer",
        ),
        ([0, 1.0], "sampler yielded 1.0 of type float at position 1, expected an integer"),
        (
            [[0, 1]],
            "sampler yielded [0, 1] of type list at position 0, expected an integer; what yields "
            "whole batches is for batch_sampler=",
        ),
        (["a"], "sampler yielded 'a' of type str at position 0, expected an integer"),
        ([None], "sampler yielded None of type NoneType at position 0, expected an integer"),
        (np.array([1.0]), "sampler is an array of float64, expected one of integers"),
        (
            np.array([True]),
            (
                "sampler is an array of bool, expected one of integers; np.flatnonzero turns a "
                "mask into sample numbers"
            ),
        ),
        (
            lambda epoch: epoch,
            "sampler(2) returned type int, expected an iterable of sample numbers",
        ),
    ],
)
def test_what_is_no_integer_is_refused(source: object, text: str) -> None:
    """Truth values and floats are not taken for numbers; the position is that in the epoch."""
    with pytest.raises(TypeError) as e:
        read(Custom(source).bind(9, 0).epoch(2), 2)
    assert str(e.value) == text


def test_a_table_of_numbers_is_refused() -> None:
    """One row per batch is another meaning than one row per epoch, so neither is guessed."""
    with pytest.raises(ValueError, match="axis") as e:
        Custom(np.zeros((5, 2), dtype=int)).bind(9, 0).epoch(0)
    assert (
        str(e.value) == "sampler is an array of shape (5, 2), expected one axis of sample numbers"
    )


def test_errors_of_the_users_sampler_pass_through() -> None:
    """What an iterable raises itself is not wrapped."""

    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Custom(broken()).bind(5, 0).epoch(0).take(2)


# Choosing one


def test_the_arguments_choose_the_sampler() -> None:
    """Sequential without arguments, shuffled on request, the user's where given."""
    assert sampler_of(shuffle=False).bind(3, 0).epoch(0).take(9).tolist() == [
        0,
        1,
        2,
    ]
    shuffled = sampler_of(shuffle=True).bind(50, 7)
    assert shuffled.epoch(2).take(50).tolist() == order(50, 7, 2).tolist()
    assert sampler_of(shuffle=False, sampler=[2, 2]).bind(3, 0).epoch(0).take(9).tolist() == [
        2,
        2,
    ]
    assert sampler_of(shuffle=False).bind(None, 0).length is None
    numpy_seed: Any = np.uint8(7)
    same = sampler_of(shuffle=True).bind(50, numpy_seed)
    assert same.epoch(2).take(50).tolist() == order(50, 7, 2).tolist()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"shuffle": True, "sampler": [1]},
            ValueError,
            "shuffle=True and sampler= exclude each other: give the one or the other",
        ),
        (
            {"shuffle": True, "length": None},
            ValueError,
            "shuffle=True needs a dataset with a length; shuffle inside the dataset instead",
        ),
        (
            {"shuffle": True, "length": 2**62 + 1},
            ValueError,
            "cannot shuffle 4611686018427387905 samples: 2**62 is the most",
        ),
        (
            {"sampler": 5},
            TypeError,
            (
                "sampler is of type int, expected an iterable of sample numbers or a function "
                "from the number of an epoch to one"
            ),
        ),
    ],
)
def test_arguments_that_make_no_order_are_refused(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Before anything is read, with the remedy."""
    length = arguments.pop("length", 10)
    with pytest.raises(error) as e:
        sampler_of(**{"shuffle": False, **arguments}).bind(length, 0)
    assert str(e.value) == text


def lost(epoch: int) -> Any:
    """Yield some numbers, and raise."""
    yield from range(5)
    raise ValueError(epoch)


def test_a_sampler_that_raises_is_no_short_epoch() -> None:
    """What a sampler raises is raised again by every next(), until a new epoch begins."""
    with ringfeed.Loader(list(range(8)), batch_size=2, workers=0, slots=2, sampler=lost) as loader:
        for epoch in range(2):
            iterator = iter(loader)
            assert next(iterator).tolist() == [0, 1]
            for _ in range(3):
                with pytest.raises(ValueError, match=str(epoch)):
                    next(iterator)
