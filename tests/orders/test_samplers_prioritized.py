"""`ringfeed.orders.PrioritizedSampler` by itself.

Its draws, its weights, what it is told, and its state.
"""

from __future__ import annotations

import io
import math
import pickle
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.orders.prioritized import SumTree
from ringfeed.orders.rng import derive

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.once

LENGTH = 100
SEED = 7
FINITE = "expected a finite number of 0 or more, such as the absolute value of an error"


def unpack(draws: Any) -> tuple[Any, Any]:
    """Return the numbers and the weights of some draws."""
    return draws & (2**32 - 1), (draws >> 32).astype(np.uint32).view(np.float32)


def drawn(
    sampler: ringfeed.orders.PrioritizedSampler, count: int, epoch: int = 0, start: int = 0
) -> tuple[Any, Any]:
    """Return some draws."""
    return unpack(sampler.bind(None, SEED).epoch(epoch, start).take(count))


# ---- the tree ----


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 33, 1000, 4097])
def test_the_tree_agrees_with_sums(size: int) -> None:
    """Total, least and the place of each point, after changes of a few numbers and of all."""
    random = np.random.default_rng(size)
    tree, values = SumTree(size), np.zeros(size)
    assert (tree.total(), tree.least()) == (0, np.inf)
    for count in (size, 1, 3, size, 200, 1):
        indices = random.integers(0, size, count)
        new = random.integers(0, 5, count).astype(float)  # whole numbers: sums have no rounding
        tree.put(indices, new)
        values[indices] = new
        assert np.array_equal(tree.values, values)
        assert tree.total() == values.sum()
        assert tree.least() == min(values[values > 0], default=np.inf)
        points = random.random(300) * values.sum() if values.any() else np.empty(0)
        assert np.array_equal(
            tree.find(points), np.searchsorted(values.cumsum(), points, side="right")
        )


def test_the_tree_depends_on_its_numbers_alone() -> None:
    """Not on the order in which they came: a tree that is made anew finds the same."""
    random = np.random.default_rng(0)
    tree, anew = SumTree(1000), SumTree(1000)
    for _ in range(50):
        tree.put(random.integers(0, 1000, 30), random.random(30) ** 9)
    anew.put(np.arange(1000), tree.values.copy())
    points = random.random(10_000) * tree.total()
    assert anew.total() == tree.total()
    assert np.array_equal(anew.find(points), tree.find(points))


def test_a_point_that_rounding_moved_is_in_no_number_of_0() -> None:
    """The largest points of sums that were rounded, beside zeros."""
    values = np.array([1e-17, 1.0, 0.1, 0.0, 0.2, 1e-300, 0.0, 0.0, 0.7, 0.0])
    tree = SumTree(values.size)
    tree.put(np.arange(values.size), values)
    points = np.array(
        [
            0.0,
            *[np.nextafter(end, 0) for end in values.cumsum()[:-1]],
            np.nextafter(tree.total(), 0),
        ]
    )
    assert (values[tree.find(np.append(points, [tree.total(), 9.0]))] > 0).all()


def test_what_broke_off_is_added_up_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C amid the sums leaves none of them wrong."""
    tree = SumTree(50)
    tree.put(np.arange(50), np.ones(50))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tree._least, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tree.total()
    tree.put(np.array([3]), np.array([0.5]))
    assert (tree.total(), tree.least()) == (49.5, 0.5)


# ---- draws ----


@pytest.mark.parametrize(("alpha", "beta"), [(0, 0), (0.6, 0.4), (1, 1), (2.5, 0.7)])
def test_frequencies_and_weights_are_those_of_the_paper(alpha: float, beta: float) -> None:
    """10**6 draws pass a chi-squared test; weights are (N P(i))**-beta over the largest."""
    priorities = np.random.default_rng(0).random(LENGTH) + 0.05
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH, alpha=alpha, beta=beta, num_samples=10**6)
    sampler.update(np.arange(LENGTH), priorities)
    numbers, weights = drawn(sampler, 10**6)
    chances = priorities**alpha / (priorities**alpha).sum()
    expected = chances * 10**6
    chi_squared = ((np.bincount(numbers, minlength=LENGTH) - expected) ** 2 / expected).sum()
    assert chi_squared < 99 + 5 * math.sqrt(2 * 99)
    ideal = (LENGTH * chances) ** -beta
    np.testing.assert_allclose(weights, (ideal / ideal.max())[numbers], rtol=1e-6)
    assert weights.dtype == np.float32


def test_draws_follow_updates_at_once() -> None:
    """A chi-squared test over what is left after many small updates, with samples of priority 0."""
    random = np.random.default_rng(1)
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH, alpha=1, num_samples=10**9)
    priorities = np.ones(LENGTH)
    order = sampler.bind(LENGTH, SEED).epoch(0)
    for _ in range(300):
        indices = random.choice(LENGTH, 8, replace=False)
        new = random.random(8)
        order.take(16)
        sampler.update(indices, new)
        priorities[indices] = new
    sampler.update([3, 5], [0, 0])
    priorities[[3, 5]] = 0
    counts = np.bincount(unpack(order.take(10**6))[0], minlength=LENGTH)
    assert not counts[[3, 5]].any()
    expected = priorities / priorities.sum() * 10**6
    there = expected > 0
    chi_squared = ((counts - expected)[there] ** 2 / expected[there]).sum()
    assert chi_squared < 97 + 5 * math.sqrt(2 * 97)


def test_draws_depend_on_seed_epoch_and_position() -> None:
    """Priorities that stay have an order that can be begun anywhere, in parts of any length."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH, num_samples=1000)
    sampler.update(np.arange(LENGTH), np.arange(LENGTH) + 1)
    whole = drawn(sampler, 1000)[0]
    for start in (0, 1, 5, 998):
        assert np.array_equal(drawn(sampler, 99, start=start)[0], whole[start : start + 99])
    epoch = sampler.bind(None, SEED).epoch(0)
    parts = [unpack(epoch.take(count))[0] for count in (1, 2, 300, 0, 5, 1000, 1)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert [part.size for part in parts] == [1, 2, 300, 0, 5, 692, 0]
    others = [
        drawn(sampler, 1000, epoch=1)[0],
        unpack(sampler.bind(None, 8).epoch(0).take(1000))[0],
    ]
    assert not any(np.array_equal(whole, other) for other in others)


def test_the_draws_are_what_they_were() -> None:
    """Written down once: a change would alter everyone's runs. With alpha=1 no power is rounded."""
    sampler = ringfeed.orders.PrioritizedSampler(5000, alpha=1, beta=1)
    sampler.update(np.arange(5000), np.arange(5000) % 7 + 1)
    numbers, weights = drawn(sampler, 6, epoch=2)
    assert numbers.tolist() == [4675, 4429, 637, 685, 4668, 4835]
    assert weights.tolist() == [pytest.approx(1 / (number % 7 + 1)) for number in numbers]
    key = np.frombuffer(derive("prioritized", (SEED, 2, 5000), 16), "<u8").astype(np.uint64)
    points = (np.random.Philox(key=key, counter=0).random_raw(6) >> np.uint64(11)) * 2.0**-53
    sums = (np.arange(5000) % 7 + 1).cumsum()
    assert np.searchsorted(sums, points * sums[-1], side="right").tolist() == numbers.tolist()


def test_beta() -> None:
    """A number, a function of the updates so far, or a number that is assigned.

    It holds for later draws.
    """
    steps: list[int] = []

    def beta(step: int) -> float:
        steps.append(step)
        return step / 10

    sampler = ringfeed.orders.PrioritizedSampler(4, alpha=1, beta=beta)
    order = sampler.bind(4, SEED).epoch(0)
    sampler.update([0, 1, 2, 3], [1, 2, 2, 2])
    found = [unpack(order.take(1)) for _ in range(2)]
    assert steps == [1, 1]
    assert [float(weight[0]) for _, weight in found] == [
        pytest.approx(1 if number[0] == 0 else 0.5**0.1) for number, _ in found
    ]
    sampler.beta = 1
    sampler.update([0], [0])
    sampler.update([1], [1])
    numbers, weights = unpack(order.take(2))
    assert weights.tolist() == [1.0 if number == 1 else 0.5 for number in numbers]


# ---- a buffer that fills ----


def test_what_is_not_there_is_not_drawn() -> None:
    """New samples come with the highest priority so far, or with their own.

    What is removed comes no more.
    """
    sampler = ringfeed.orders.PrioritizedSampler(6, alpha=1, filled=0, num_samples=10**6)
    order = sampler.bind(6, SEED).epoch(0)

    def there() -> dict[int, int]:
        numbers, count = np.unique(unpack(order.take(10_000))[0], return_counts=True)
        return {
            int(number): round(float(share) * 20)
            for number, share in zip(numbers, count / 10_000, strict=True)
        }

    sampler.add(2)
    assert there() == {2: 20}
    sampler.update([2], [3.0])
    sampler.add([4])
    assert there() == {2: 10, 4: 10}
    sampler.update([2, 4], [1.0, 1.0])
    sampler.add([0, 5], [1.0, 2.0])
    assert there() == {0: 4, 2: 4, 4: 4, 5: 8}
    sampler.remove([0, 2])
    sampler.update([0, 2, 3], [9.0, 9.0, 9.0])  # too late
    assert there() == {4: 7, 5: 13}
    sampler.add(0)
    assert there() == {0: 10, 4: 3, 5: 7}  # of 3, the highest so far
    assert repr(sampler) == "<PrioritizedSampler: 3 of 6 samples, alpha=1>"


def test_the_last_of_an_index_counts() -> None:
    """Where a batch had a sample twice."""
    sampler = ringfeed.orders.PrioritizedSampler(2, alpha=1)
    sampler.update([0, 1, 0], [5.0, 1.0, 0.0])
    assert not drawn(sampler, 2)[0].tolist().count(0)


def test_pending() -> None:
    """Samples that were drawn in this epoch, and not updated since."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH)
    assert sampler.pending == 0
    order = sampler.bind(LENGTH, SEED).epoch(0)
    numbers, _ = unpack(order.take(30))
    assert sampler.pending == 30
    sampler.update(numbers[:10], np.ones(10))
    assert (sampler.pending, sampler.updates) == (20, 1)
    order.take(10)
    assert sampler.pending == 30
    sampler.bind(LENGTH, SEED).epoch(1).take(5)
    order.take(10)  # of an epoch that was broken off
    assert sampler.pending == 5


def test_updates_from_other_threads() -> None:
    """While draws go on; in the end the sums are those of the priorities."""
    sampler = ringfeed.orders.PrioritizedSampler(1000, alpha=1, num_samples=10**9)
    order = sampler.bind(1000, SEED).epoch(0)
    failures: list[BaseException] = []

    def update(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(200):
                sampler.update(random.integers(0, 1000, 32), random.random(32) + 0.01)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=update, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    numbers = np.concatenate([unpack(order.take(64))[0] for _ in range(200)])
    for thread in threads:
        thread.join(60)
    assert not failures
    assert sampler.updates == 600
    assert numbers.min() >= 0
    assert numbers.max() < 1000
    state = sampler.state_dict()
    other = ringfeed.orders.PrioritizedSampler(1000, alpha=1, num_samples=10**9)
    other.load_state_dict(state)
    for one in (sampler, other):
        one.beta = 1
    pair = [unpack(one.bind(1000, SEED).epoch(5).take(1000)) for one in (sampler, other)]
    assert all(np.array_equal(*parts) for parts in zip(*pair, strict=True))


def test_memory_is_what_the_docstring_says() -> None:
    """17 bytes a sample, and little besides."""
    size = 200_000
    ringfeed.orders.PrioritizedSampler(10).bind(10, 0).epoch(0).take(1)  # what is imported
    tracemalloc.start()
    try:
        sampler = ringfeed.orders.PrioritizedSampler(size)
        order = sampler.bind(size, 0).epoch(0)
        for _ in range(500):
            sampler.update(unpack(order.take(128))[0], np.ones(128))
        stays, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stays < 17 * size + 10**5


# ---- its state ----


def test_a_state_goes_on_bit_for_bit() -> None:
    """Through a file; draws that were made ahead come again as they were, weights too."""

    def begin() -> tuple[ringfeed.orders.PrioritizedSampler, Any]:
        sampler = ringfeed.orders.PrioritizedSampler(LENGTH, filled=50, beta=0.5)
        return sampler, sampler.bind(LENGTH, SEED)

    def go_on(sampler: ringfeed.orders.PrioritizedSampler, epoch: Any, steps: range) -> list[int]:
        found: list[int] = []
        for step in steps:
            draws = epoch.take(4)
            found += draws.tolist()
            numbers, _ = unpack(draws)
            sampler.update(numbers, (numbers + step) % 5 / 3 + 0.01)
            sampler.add(50 + step)
        return found

    sampler, order = begin()
    epoch = order.epoch(3)
    ahead = epoch.take(8).tolist()
    go_on(sampler, epoch, range(5))
    state, json = sampler.state_dict(), epoch.state(8)
    whole = ahead + go_on(sampler, epoch, range(5, 9))
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    for start in (0, 4, 8, 12, 20, 28):
        again, order = begin()
        with np.load(io.BytesIO(file.getvalue())) as loaded:
            again.load_state_dict(loaded)
        assert all(np.array_equal(value, state[name]) for name, value in again.state_dict().items())
        rest = order.epoch(3, start, json)
        found = rest.take(28 - start).tolist()  # the draws ahead
        assert found == state["draws"][start:].tolist()
        found += go_on(again, rest, range(5, 9))
        assert found[-16:] == whole[-16:]
        assert again.pending == 28 - start


def test_weights_may_be_zero_where_numpy_raises() -> None:
    """With np.seterr(all="raise"): 2**-900 of 2**900 is not there any more in 64 bits."""
    sampler = ringfeed.orders.PrioritizedSampler(2, alpha=1, beta=1)
    with np.errstate(all="raise"):
        sampler.update([0, 1], [1e-270, 1e270])
        _, weights = unpack(sampler.bind(2, SEED).epoch(0).take(2))
    assert weights.tolist() == [0, 0]


def test_beta_is_in_the_state_where_it_is_a_number() -> None:
    """One that was assigned comes back; a function stays, and is asked for the same step."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH, beta=0.4)
    sampler.beta = 0.7
    again = ringfeed.orders.PrioritizedSampler(LENGTH, beta=0.4)
    again.load_state_dict(sampler.state_dict())
    assert again.beta == 0.7

    def anneal(step: int) -> float:
        return 1 / step

    other = ringfeed.orders.PrioritizedSampler(LENGTH, beta=anneal)
    other.load_state_dict(sampler.state_dict())
    assert other.beta is anneal
    again.load_state_dict(other.state_dict())
    assert again.beta == 0.7


def test_the_last_draws_are_kept() -> None:
    """As many as are ahead of any loop."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH, num_samples=10**9)
    epoch = sampler.bind(LENGTH, SEED).epoch(0)
    epoch.take(30 * 8)
    for _ in range(300):
        epoch.take(8)
    state = sampler.state_dict()
    assert state["draws"].size == 4 * 30 * 8
    assert state["first"] == (300 + 30) * 8 - 4 * 30 * 8
    again = ringfeed.orders.PrioritizedSampler(LENGTH, num_samples=10**9)
    again.load_state_dict(state)
    with pytest.raises(ringfeed.StateError) as raised:
        again.bind(LENGTH, SEED).epoch(0, 5, 0)
    assert str(raised.value) == (
        "the loader's state is at sample 5 of epoch 0, and the PrioritizedSampler's has the draws "
        "from sample 1680 on; take the states within 64 batches of the draw"
    )
    for number in range(5):
        order = again.bind(LENGTH, SEED)
        epoch = order.epoch(number)
        epoch.take(16)
        for _ in range(99):
            epoch.take(8)
        again.load_state_dict(again.state_dict())
        epoch = order.epoch(number, 808 - 5 * 8, 0)
        epoch.take(16)
        assert again.state_dict()["draws"].size == 5 * 8
        for _ in range(99):
            epoch.take(8)
        assert again.state_dict()["draws"].size == 64 * 8  # not more with each run


def test_a_state_without_draws_goes_on() -> None:
    """Also one whose arrays became lists on the way."""
    state = {name: value.tolist() for name, value in sampler_state().items()}
    again = ringfeed.orders.PrioritizedSampler(LENGTH)
    again.load_state_dict(state)
    assert again.bind(LENGTH, SEED).epoch(0, 0, 0).take(5).dtype == np.int64


def sampler_state() -> dict[str, Any]:
    """Return the state of a sampler that has drawn nothing."""
    return ringfeed.orders.PrioritizedSampler(LENGTH).state_dict()


EXPECTED = "expected what PrioritizedSampler.state_dict() returned"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda _: [1], f"the sampler's state is a list, {EXPECTED}"),
        (
            lambda state: {**state, "powers": 3.0},
            f"the sampler's state has no 'powers'; {EXPECTED}",
        ),
        (
            lambda state: {name: value for name, value in state.items() if name != "most"},
            f"the sampler's state has no 'most'; {EXPECTED}",
        ),
        (
            lambda state: {**state, "powers": np.ones(7)},
            "the sampler's state is of 7 samples, and this sampler of 100; make it with n=7",
        ),
        (
            lambda state: {**state, "alpha": 0.5},
            (
                "the sampler's state was taken with alpha=0.5, and this sampler has alpha=0.6; "
                "give it that alpha"
            ),
        ),
        (
            lambda state: {**state, "powers": state["powers"] * np.nan},
            "the sampler's state has nan in 'powers', expected numbers from 0 to 2**900; it was changed "
            "since",
        ),
        (
            lambda state: {**state, "powers": state["powers"] * 1e300},
            (
                "the sampler's state has 1e+300 in 'powers', expected numbers from 0 to 2**900; it was "
                "changed since"
            ),
        ),
        (
            lambda state: {**state, "most": np.nan},
            "the sampler's state has nan in 'most', expected numbers from 0 to 2**900; it was changed "
            "since",
        ),
        (
            lambda state: {**state, "updates": -1},
            (
                "the sampler's state has -1 for 'updates', expected an int of 0 or more; it was "
                "changed since"
            ),
        ),
        (
            lambda state: {**state, "first": 0.5},
            (
                "the sampler's state has 0.5 for 'first', expected an int of 0 or more; it was "
                "changed since"
            ),
        ),
        (
            lambda state: {**state, "draws": np.array([LENGTH])},
            (
                "the sampler's state has draws that are of no sample from 0 to 99; it was changed "
                "since"
            ),
        ),
    ],
)
def test_states_that_do_not_fit(change: Callable[[Any], Any], text: str) -> None:
    """The error names both sides; nothing has changed."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH)
    before = sampler.state_dict()
    with pytest.raises(ringfeed.StateError) as raised:
        sampler.load_state_dict(change(before))
    assert str(raised.value) == text
    assert all(np.array_equal(value, before[name]) for name, value in sampler.state_dict().items())


# ---- what is refused ----


def test_it_is_not_pickled() -> None:
    """A copy would hear of no update."""
    with pytest.raises(TypeError) as raised:
        pickle.dumps(ringfeed.orders.PrioritizedSampler(LENGTH))
    assert str(raised.value) == (
        "a PrioritizedSampler stays in the process that trains; leave it out of what __getstate__ "
        "of the dataset returns, and save its state_dict()"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"n": 0}, ValueError, "n=0 must be at least 1"),
        ({"n": 2.5}, TypeError, "n=2.5 must be an int"),
        ({"n": 2**31 + 1}, ValueError, "n=2147483649 must be at most 2147483648"),
        ({"alpha": -0.1}, ValueError, "alpha is -0.1, expected a finite number of 0 or more"),
        ({"alpha": math.nan}, ValueError, "alpha is nan, expected a finite number of 0 or more"),
        ({"alpha": math.inf}, ValueError, "alpha is inf, expected a finite number of 0 or more"),
        ({"alpha": "1"}, TypeError, "alpha is '1', expected a finite number of 0 or more"),
        (
            {"beta": 1.1},
            ValueError,
            "beta is 1.1, expected a number from 0 to 1, or a function to one",
        ),
        (
            {"beta": -1},
            ValueError,
            "beta is -1, expected a number from 0 to 1, or a function to one",
        ),
        (
            {"beta": math.nan},
            ValueError,
            "beta is nan, expected a number from 0 to 1, or a function to one",
        ),
        (
            {"beta": None},
            TypeError,
            "beta is None, expected a number from 0 to 1, or a function to one",
        ),
        ({"num_samples": 0}, ValueError, "num_samples=0 must be at least 1"),
        ({"filled": -1}, ValueError, "filled=-1 must be at least 0"),
        ({"filled": 101}, ValueError, "filled=101 must be at most 100"),
    ],
)
def test_parameters_that_do_not_fit(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """When the sampler is made."""
    with pytest.raises(error) as raised:
        ringfeed.orders.PrioritizedSampler(**{"n": LENGTH, **arguments})
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            ([0, 100], [1, 1]),
            IndexError,
            "indices[1] is 100, expected 0 to 99: the sampler is of 100 samples",
        ),
        (
            ([-1], [1]),
            IndexError,
            "indices[0] is -1, expected 0 to 99: the sampler is of 100 samples",
        ),
        (([0.5], [1]), TypeError, "indices are an array of float64, expected integers"),
        (([True], [1]), TypeError, "indices are an array of bool, expected integers"),
        (([[0, 1]], [1, 1]), ValueError, "indices are an array of shape (1, 2), expected one axis"),
        (
            ([0, 1], [1]),
            ValueError,
            "priorities are an array of shape (1,), expected (2,): one for each index",
        ),
        (
            ([0, 1], [[1], [1]]),
            ValueError,
            "priorities are an array of shape (2, 1), expected (2,): one for each index",
        ),
        (([0], ["a"]), TypeError, "priorities are an array of <U1, expected numbers"),
        (
            ([0, 1], [1, math.nan]),
            ValueError,
            f"priorities[1] is nan, {FINITE}",
        ),
        (
            ([0, 1], [1, math.inf]),
            ValueError,
            f"priorities[1] is inf, {FINITE}",
        ),
        (
            ([0, 1], [-0.5, 1]),
            ValueError,
            f"priorities[0] is -0.5, {FINITE}",
        ),
        (
            ([0, 1], [1, 1e300]),
            ValueError,
            "priorities[1] is 1e+300, expected at most 2**900 to the power of alpha=2; divide all "
            "of them by the largest",
        ),
    ],
)
def test_updates_that_do_not_fit(arguments: Any, error: type[Exception], text: str) -> None:
    """They change nothing; neither does `add`."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH, alpha=2)
    before = sampler.state_dict()
    for tell in (sampler.update, sampler.add):
        with pytest.raises(error) as raised:
            tell(*arguments)
        assert str(raised.value) == text
    assert all(np.array_equal(value, before[name]) for name, value in sampler.state_dict().items())


def test_nothing_to_update() -> None:
    """A batch of which every sample was left out, say."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH)
    sampler.update([], [])
    assert sampler.updates == 1


def test_small_and_large_priorities() -> None:
    """What is above 0 stays so, and no sum overflows."""
    sampler = ringfeed.orders.PrioritizedSampler(3, alpha=2, beta=1)
    sampler.update([0, 1, 2], [1e-300, 1e-200, 0])
    numbers, weights = drawn(sampler, 3)
    assert set(numbers.tolist()) <= {0, 1}
    assert np.isfinite(weights).all()
    sampler.update([0, 1], [1e130, 1e-300])
    assert drawn(sampler, 3)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "make", [lambda s: s.update(range(LENGTH), np.zeros(LENGTH)), lambda s: s.remove(range(LENGTH))]
)
def test_nothing_to_draw(make: Callable[[ringfeed.orders.PrioritizedSampler], None]) -> None:
    """Not an endless search, but an error."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH)
    make(sampler)
    with pytest.raises(ValueError, match="nothing to draw") as raised:
        drawn(sampler, 1)
    assert str(raised.value) == (
        "PrioritizedSampler has nothing to draw: all 100 samples have priority 0; add() those "
        "that are there, and update() with errors plus a little, such as 1e-6"
    )


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (1.5, ValueError, "beta(0) is 1.5, expected a number from 0 to 1"),
        (None, TypeError, "beta(0) is None, expected a number from 0 to 1"),
    ],
)
def test_a_function_that_returns_no_beta(answer: Any, error: type[Exception], text: str) -> None:
    """When it is asked."""
    sampler = ringfeed.orders.PrioritizedSampler(LENGTH, beta=lambda _: answer)
    with pytest.raises(error) as raised:
        drawn(sampler, 1)
    assert str(raised.value) == text
