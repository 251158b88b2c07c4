"""The order of a mix: shares that hold everywhere, exact ends, and any position to go on at."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.orders.mix import MixSampler
from ringfeed.orders.permutation import permute
from ringfeed.orders.proportions import FINEST, floor_sum, rounded, shares_of, step_of
from ringfeed.orders.rng import derive

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN = [70, 0, 40, 71, 1, 2, 41, 3, 4, 42, 72, 5]
BATCHES = [0, 40, 70, 1, 2, 41, 71, 3, 4, 42, 5, 43, 72, 6, 44, 7]
SHUFFLED = [5, 2, 4, 1, 11, 0, 10, 3]
MANY = 10**9
NEAR = 6  # draws that a dataset may be off its share, at any moment
pytestmark = pytest.mark.once  # arithmetic


def mixed(
    lengths: Sequence[int], weights: Any = None, stop: str = "first", rows: int = 8, **more: Any
) -> MixSampler:
    """Return an order as a loader makes it."""
    if not callable(weights):
        weights = tuple(lengths) if weights is None else shares_of(weights, len(lengths))
    return MixSampler(lengths, weights, stop, rows, **{"per_batch": False, "seed": None, **more})


def members_of(sampler: MixSampler, indices: Any) -> Any:
    """Return which dataset each index is of."""
    starts = [*accumulate(sampler.lengths, initial=0)]
    return np.searchsorted(starts, indices % starts[-1], "right") - 1


def counts_of(sampler: MixSampler, indices: Any) -> list[int]:
    """Return how many indices are of each dataset."""
    return np.bincount(members_of(sampler, indices), minlength=len(sampler.lengths)).tolist()


@st.composite
def mixes(
    draw: st.DrawFn,
    stops: Sequence[str] = ("first", "all", "never"),
    *,
    per_batch: bool | None = None,
) -> Any:
    """Return any order of small datasets."""
    lengths = draw(st.lists(st.integers(1, 300), min_size=1, max_size=5))
    weight = st.one_of(
        st.integers(1, 5), st.floats(0.01, 1), st.sampled_from([0.1, 0.25, 0.5, 1 / 3])
    )
    weights = draw(
        st.one_of(st.none(), st.lists(weight, min_size=len(lengths), max_size=len(lengths)))
    )
    per_batch = draw(st.booleans()) if per_batch is None else per_batch
    seed = draw(st.sampled_from([None, 0, 5]))
    rows = draw(st.sampled_from([1, 2, 7, 32, 500]))
    return mixed(
        lengths, weights, draw(st.sampled_from(stops)), rows, per_batch=per_batch, seed=seed
    )


# ---- going on ----


@given(sampler=mixes(), data=st.data())
def test_an_epoch_goes_on_at_any_position(sampler: MixSampler, data: st.DataObject) -> None:
    """The rest is that of an epoch from its start, with its state or without."""
    epoch = sampler.epoch(3)
    most = 1000 if sampler.length is None else min(sampler.length, 3000)
    whole = epoch.take(most)
    assert len(whole) == most
    position = data.draw(st.integers(0, most))
    state = json.loads(json.dumps(epoch.state(position)))
    for kept in (None, state):
        rest = sampler.epoch(3, position, kept)
        first = rest.take(data.draw(st.integers(0, most - position)))
        assert [*first, *rest.take(most - position - len(first))] == whole[position:].tolist()


@given(sampler=mixes(("first", "all")), past=st.integers(0, 100))
def test_past_the_end_there_is_nothing(sampler: MixSampler, past: int) -> None:
    """An epoch has as many draws as its length says, and none behind."""
    assert sampler.length is not None
    assert sampler.epoch(0, max(sampler.length - 5, 0)).take(100).size == min(sampler.length, 5)
    assert sampler.epoch(0, sampler.length + past).take(10).size == 0


@given(
    sampler=mixes(("first", "all"), per_batch=True),
    data=st.data(),
    rows=st.sampled_from([1, 3, 32]),
)
def test_another_batch_size_loses_and_repeats_nothing(
    sampler: MixSampler, data: st.DataObject, rows: int
) -> None:
    """With quotas for each batch, an epoch that goes on in other batches has the same draws."""
    assert sampler.length is not None
    epoch = sampler.epoch(1)
    whole = epoch.take(sampler.length)
    first, second = sorted(data.draw(st.integers(0, len(whole))) for _ in range(2))
    other = MixSampler(
        sampler.lengths, sampler.weights, sampler.stop, rows, per_batch=True, seed=sampler._seed
    )
    assert (other.length, other.order) == (sampler.length, sampler.order)
    then = other.epoch(1, first, json.loads(json.dumps(epoch.state(first))))
    middle = then.take(second - first)
    last = sampler.epoch(1, second, json.loads(json.dumps(then.state(second)))).take(len(whole) + 9)
    assert sorted([*whole[:first], *middle, *last]) == sorted(whole.tolist())


def test_two_changes_of_batch_size_keep_the_totals() -> None:
    """What is left may be two short of a dataset's share of the full batches.

    No draw is lost over it.
    """
    first = mixed([154, 45, 239], [0.25, 0.1, 0.25], rows=2, per_batch=True)
    second = mixed([154, 45, 239], [0.25, 0.1, 0.25], rows=32, per_batch=True)
    begun = second.epoch(0, 103, first.epoch(0).state(103))
    rest = first.epoch(0, 232, begun.state(232)).take(300)
    whole = first.epoch(0).take(300)
    assert sorted([*whole[:103], *begun.take(232 - 103), *rest]) == sorted(whole.tolist())


@given(
    line=st.tuples(
        st.integers(0, 60), st.integers(0, 500), st.integers(0, 500), st.integers(1, 200)
    ),
)
def test_floors_of_a_line_are_summed(line: tuple[int, int, int, int]) -> None:
    """The sum that a position's counts come from is that of its terms."""
    count, first, step, period = line
    assert floor_sum(count, first, step, period) == sum(
        (first + k * step) // period for k in range(count)
    )


# ---- where it ends ----


@given(sampler=mixes(("first",)))
def test_first_ends_when_a_dataset_is_used_up(sampler: MixSampler) -> None:
    """No sample comes twice, one dataset has none left, and the counts follow the weights."""
    assert sampler.length is not None
    whole = sampler.epoch(0).take(sampler.length)
    counts = counts_of(sampler, whole)
    assert len(set(whole.tolist())) == len(whole)
    assert any(count == length for count, length in zip(counts, sampler.lengths, strict=True))
    parts = sampler.weights
    assert not callable(parts)
    assert all(
        abs(count - len(whole) * part / sum(parts)) < 1
        for count, part in zip(counts, parts, strict=True)
    )


@given(sampler=mixes(("all",)))
def test_all_ends_when_every_dataset_was_used_up(sampler: MixSampler) -> None:
    """Each sample comes at least once.

    Some exactly once, since it ends as soon as that is so.
    """
    assert sampler.length is not None
    whole = sampler.epoch(0).take(sampler.length)
    counts = counts_of(sampler, whole)
    assert set(range(sum(sampler.lengths))) <= set(whole.tolist())
    parts = sampler.weights
    assert not callable(parts)
    shorter = [
        (len(whole) - 1) * part < length * sum(parts)
        for part, length in zip(parts, sampler.lengths, strict=True)
    ]
    assert any(shorter)
    assert all(count >= length for count, length in zip(counts, sampler.lengths, strict=True))


@pytest.mark.parametrize("stop", ["first", "all"])
@pytest.mark.parametrize("per_batch", [False, True])
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_without_weights_each_sample_comes_once(
    lengths: list[int],
    stop: str,
    per_batch: bool,  # noqa: FBT001
) -> None:
    """The lengths are the weights, and all datasets end together."""
    whole = mixed(lengths, None, stop, per_batch=per_batch, seed=1).epoch(0).take(10**4)
    assert sorted(whole.tolist()) == [*range(sum(lengths))]


def test_a_dataset_of_weight_0_is_not_waited_for() -> None:
    """It is never drawn, and neither ends an epoch nor keeps it from its end."""
    for stop, length in (("first", 20), ("all", 40)):
        sampler = mixed([10, 5, 20], [1, 0, 1], stop)
        assert counts_of(sampler, sampler.epoch(0).take(100)) == [length // 2, 0, length // 2]


def test_never_goes_on() -> None:
    """An epoch without end has no length, and every dataset begins again."""
    sampler = mixed([3, 5], [1, 1], "never")
    assert sampler.length is None
    assert counts_of(sampler, sampler.epoch(0, 10**12).take(1000)) == [500, 500]


# ---- shares ----


@pytest.mark.parametrize("per_batch", [False, True])
@pytest.mark.parametrize(
    "weights", [[0.7, 0.2, 0.1], [1, 1], [1 / 3, 2 / 3], [3**0.5, 2**0.5, 1, 0.001], [5, 1] * 10]
)
def test_a_million_draws_have_the_shares_of_the_weights(
    weights: list[float],
    per_batch: bool,  # noqa: FBT001
) -> None:
    """At every moment each dataset is within a few draws of its share.

    Far nearer than chance would be.
    """
    sampler = mixed([MANY] * len(weights), weights, "never", 32, per_batch=per_batch)
    members = members_of(sampler, sampler.epoch(0).take(10**6))
    for number, weight in enumerate(weights):
        share = weight / sum(weights) * np.arange(1, 10**6 + 1)
        assert abs(np.cumsum(members == number) - share).max() < NEAR
    counts, shares = np.bincount(members), 10**6 * np.array(weights) / sum(weights)
    assert ((counts - shares) ** 2 / shares).sum() < 0.1  # chi-squared


def test_shares_are_exact_after_each_period() -> None:
    """Weights with few decimals are exact over as many draws as they have parts."""
    sampler = mixed([MANY] * 3, [0.7, 0.2, 0.1], "never")
    for ten in sampler.epoch(0).take(1000).reshape(100, 10):
        assert counts_of(sampler, ten) == [7, 2, 1]


def test_quotas_that_are_whole_are_exact_in_each_batch() -> None:
    """Half and two quarters of 32 are 16, 8 and 8 in every batch, spread over it."""
    sampler = mixed([1003, 900, 902], [0.5, 0.25, 0.25], "first", 32, per_batch=True)
    whole = sampler.epoch(0).take(10**4)
    for batch in (whole[at : at + 32] for at in range(0, len(whole) - 31, 32)):
        assert counts_of(sampler, batch) == [16, 8, 8]
        assert [counts_of(sampler, batch[at : at + 8]) for at in range(0, 32, 8)] == [[4, 2, 2]] * 4


@given(sampler=mixes(per_batch=True))
def test_quotas_are_rounded_up_or_down_in_each_batch(sampler: MixSampler) -> None:
    """Each full batch has either whole number beside a dataset's share of it.

    What is missing comes later.
    """
    rows, parts = sampler.rows, sampler.weights
    assert not callable(parts)
    whole = sampler.epoch(0).take(3000)
    for at in range(0, len(whole) - rows + 1, rows):
        for count, part in zip(counts_of(sampler, whole[at : at + rows]), parts, strict=True):
            share = Fraction(part * rows, sum(parts))
            assert math.floor(share) <= count <= math.ceil(share)
        for count, part in zip(counts_of(sampler, whole[: at + rows]), parts, strict=True):
            assert abs(count - part * (at + rows) / sum(parts)) < NEAR


def test_remainders_are_rounded_to_their_total() -> None:
    """Parts are rounded up by largest remainders, the first named ahead, and none falls below 0."""
    halves = [Fraction(1, 2), Fraction(3, 2), Fraction(5, 2)]
    assert rounded(halves, 5) == [1, 2, 2]
    assert rounded(halves, 4, [False, False, True]) == [0, 1, 3]
    assert rounded([Fraction(-1, 2), Fraction(-1, 2), Fraction(3)], 2) == [0, 0, 2]


@pytest.mark.parametrize("lengths", [[2**40, 2**50 + 7], [2**61, 2**61 - 1], [1, 2**62 - 1]])
@pytest.mark.parametrize("per_batch", [False, True])
def test_lengths_up_to_the_last_bit(lengths: list[int], per_batch: bool) -> None:  # noqa: FBT001
    """Shares and indices of datasets of any length are exact."""
    sampler = mixed(lengths, None, "all", 10**4, per_batch=per_batch, seed=0)
    start = sum(lengths) - 5000
    rest = sampler.epoch(0, start).take(10**4)
    assert len(set(rest.tolist())) == 5000
    before = sampler.epoch(0, start)._patterns[-1].counts(start)
    assert [a + b for a, b in zip(before, counts_of(sampler, rest), strict=True)] == lengths


def test_a_step_has_no_large_terms() -> None:
    """No period has a step that brings it near to a shorter one."""
    for period in [*range(1, 300), 10**6, 2**30, 999983, 5040, MANY]:
        step, rest, terms = step_of(period), period, []
        assert math.gcd(step, period) == 1
        while step:
            terms.append(rest // step)
            rest, step = step, rest % step
        assert max(terms, default=0) <= 6


# ---- samples ----


def test_the_order_is_the_one_that_is_documented() -> None:
    """The rule is part of the interface: these numbers must stay."""
    plain = mixed([40, 30, 20], [0.5, 0.3, 0.2])
    assert plain.epoch(0).take(12).tolist() == PLAIN
    batches = mixed([40, 30, 20], [0.5, 0.3, 0.2], per_batch=True)
    assert batches.epoch(0).take(16).tolist() == BATCHES
    shuffled = mixed([4, 2], [1, 1], "all", seed=7)
    assert shuffled.epoch(2).take(8).tolist() == SHUFFLED


@given(sampler=mixes(("never",)), block=st.integers(0, 10**9))
def test_a_block_draws_by_the_formula(sampler: MixSampler, block: int) -> None:
    """Datasets 0 to i have floor(X_i + u_k) draws of block k, as the documentation has it."""
    rows = sampler.rows if sampler.per_batch else 1
    parts = sampler.weights
    assert not callable(parts)
    edges = [Fraction(edge * rows, sum(parts)) for edge in accumulate(parts, initial=0)]
    period = math.lcm(*(edge.denominator for edge in edges))
    shift = Fraction(block * step_of(period) % period, period)
    drawn = [math.floor(edge + shift) for edge in edges]
    found = sampler.epoch(0, block * rows).take(rows)
    assert counts_of(sampler, found) == [high - low for low, high in pairwise(drawn)]


def test_each_dataset_has_an_order_of_its_own_in_each_pass() -> None:
    """A dataset's samples come in the order of `permute`, by a seed of the dataset and the pass."""
    sampler = mixed([50, 50], [1, 1], "never", seed=9)
    whole = sampler.epoch(4).take(200)
    members = members_of(sampler, whole)
    for member in range(2):
        drawn = whole[members == member].reshape(2, 50)
        for number, samples in enumerate(drawn):
            seed = int.from_bytes(derive("mix", (9, member, number), 16), "little")
            own = permute(np.arange(50), 50, seed, 4)
            assert samples.tolist() == (own + 50 * member + 100 * number).tolist()


# ---- weights that change ----


def test_weights_that_are_a_function_of_the_batch() -> None:
    """Counts follow the sum of the weights of all batches, however they change.

    The order goes on anywhere.
    """

    def ramp(epoch: int, batch: int) -> list[float]:
        assert epoch == 5
        return [1.0, batch / 100, 0.3]

    for per_batch in (False, True):
        sampler = mixed([MANY] * 3, ramp, rows=16, per_batch=per_batch, seed=2)
        assert (sampler.length, sampler.pure) == (None, False)
        epoch = sampler.epoch(5)
        whole = np.concatenate([epoch.take(48) for _ in range(100)])
        shares = np.array([ramp(5, position // 16) for position in range(4800)])
        shares = np.cumsum(shares / shares.sum(1, keepdims=True), 0)
        members = members_of(sampler, whole)
        for member in range(3):
            assert abs(np.cumsum(members == member) - shares[:, member]).max() < 2 * NEAR
        for position in (0, 160, 167, 2000):
            state = json.loads(json.dumps(epoch.state(position)))
            assert (
                sampler.epoch(5, position).take(500).tolist()
                == whole[position : position + 500].tolist()
            )
            assert (
                sampler.epoch(5, position, state).take(500).tolist()
                == whole[position : position + 500].tolist()
            )
            later = sampler.epoch(5, position + 32, state)  # a loader that skips batches
            assert later.take(99).tolist() == whole[position + 32 : position + 131].tolist()


def test_weights_set_at_run_time_repeat_nothing() -> None:
    """A function may return what a variable holds.

    What was drawn is in the state, and is not drawn again.
    """
    now, asked = [1.0, 1.0], []

    def current(_: int, batch: int) -> list[float]:
        asked.append(batch)
        return now

    sampler = mixed([400, 400], current)
    epoch = sampler.epoch(0)
    first = epoch.take(80)
    assert asked == [*range(10)]
    now[:] = [3.0, 1.0]
    second = epoch.take(80)
    assert counts_of(sampler, first) == [40, 40]
    assert counts_of(sampler, second) == [60, 20]
    assert epoch.state(80)["weights"] == [3, 1]
    assert epoch.state(79)["weights"] == [1, 1]
    state = json.loads(json.dumps(epoch.state(160)))
    now[:], asked[:] = [1.0, 3.0], []
    third = sampler.epoch(0, 160, state).take(80)
    assert asked == [*range(20, 30)]
    assert counts_of(sampler, third) == [20, 60]
    assert len({*first.tolist(), *second.tolist(), *third.tolist()}) == 240


@pytest.mark.parametrize(("stop", "counts"), [("first", [10, 10]), ("all", [30, 30])])
def test_an_epoch_of_changing_weights_ends_by_its_datasets(stop: str, counts: list[int]) -> None:
    """Where it ends depends on what was drawn, and not on a length."""
    sampler = mixed([10, 30], lambda _, batch: [1, 1] if batch % 2 else [2, 2], stop)
    assert counts_of(sampler, sampler.epoch(0).take(1000)) == counts


def test_a_function_that_returns_no_weights() -> None:
    """What it returns is checked, and the error says for which batch."""
    sampler = mixed([10, 30], lambda _, batch: [1, 1] if batch < 1 else [1, -1])
    epoch = sampler.epoch(2)
    epoch.take(8)
    with pytest.raises(ValueError, match="weights") as caught:
        epoch.take(8)
    assert str(caught.value) == "weights(2, 1)[1] is -1, expected a finite number of 0 or more"


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ([0.7, 0.2, 0.1], (7, 2, 1)),
        (np.array([0.5, 0.5, 1]), (1, 1, 2)),
        ([np.float32(0.5), np.int64(2), Fraction(1, 3)], (3, 12, 2)),
        ((1e-300, 0, 1), (1, 0, FINEST)),
        (iter([10**400, 10**400, 0]), (1, 1, 0)),
    ],
)
def test_weights_are_exact_fractions(weights: Any, parts: tuple[int, ...]) -> None:
    """Decimals are what they are written as, and a weight above 0 never becomes 0."""
    assert shares_of(weights, 3) == parts


@pytest.mark.parametrize(
    ("weights", "kind", "text"),
    [
        ([1, 2], ValueError, "weights has length 2, expected 3, a number for each dataset"),
        (1.5, TypeError, "weights is of type float, expected 3 numbers"),
        ([1, math.nan, 1], ValueError, "weights[1] is nan, expected a finite number of 0 or more"),
        ([1, 1, math.inf], ValueError, "weights[2] is inf, expected a finite number of 0 or more"),
        ([-0.5, 1, 1], ValueError, "weights[0] is -0.5, expected a finite number of 0 or more"),
        ([0, 0.0, 0], ValueError, "weights is [0, 0.0, 0], expected at least one number above 0"),
        ("abc", TypeError, "weights[0] is 'a' of type str, expected a number"),
        ([1, True, 1], TypeError, "weights[1] is True of type bool, expected a number"),
        (np.ones((3, 2)), TypeError, "weights[0] is [1.0, 1.0] of type list, expected a number"),
    ],
)
def test_weights_that_are_refused(weights: Any, kind: type[Exception], text: str) -> None:
    """What is no weight is named by its place, with what was expected."""
    with pytest.raises(kind) as caught:
        shares_of(weights, 3)
    assert str(caught.value) == text
