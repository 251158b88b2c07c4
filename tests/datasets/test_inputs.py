"""Bad input, widely.

Whatever a dataset returns arrives bit for bit, or is an error that says where and what.

The oracle of `judge` decides which; every way of reading a dataset must agree with it, and all with
one another.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from inputs import (
    DTYPES,
    WAYS,
    BulkSamples,
    Catalogue,
    Samples,
    WholeBatches,
    Written,
    content,
    sample,
)
from judge import Fault, Pair, judged, judged_batch, raw
from ringfeed import Array

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.once

SHAPES = st.lists(st.integers(0, 3), max_size=3) | st.sampled_from([[1] * 32, [2**14, 0]])
LEAVES = st.builds(Array, SHAPES, st.sampled_from(list(DTYPES.values())))
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.tuples(inner, st.none()),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(
            st.sampled_from(["a", "b", 3, None, "k" * 30]), inner, min_size=1, max_size=3
        ),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=4,
)
SEEDS = st.integers(0, 2**32)


def flat(tree: Any) -> list[Any]:
    """Return the leaves of a tree or of a batch, depth first; None is none."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [leaf for child in tree.values() for leaf in flat(child)]
    return (
        [leaf for child in tree for leaf in flat(child)]
        if isinstance(tree, tuple | list)
        else [tree]
    )


def outcomes(dataset: Any, tree: Any, **how: Any) -> list[Any]:
    """Return, for each batch of an epoch, the bytes of its leaves, or the text of its error."""
    found: list[Any] = []
    settings = {"batch_size": 1, "workers": 0, "timeout_s": 120, **how}
    with ringfeed.Loader(dataset, spec=tree, **settings) as loader:
        iterator = iter(loader)
        while True:
            try:
                batch = next(iterator)
            except ringfeed.SpecError as error:
                found.append(str(error))
            except StopIteration:
                break
            else:
                assert [leaf.dtype for leaf in flat(batch)] == [leaf.dtype for leaf in flat(tree)]
                found.append([raw(leaf) for leaf in flat(batch)])
        assert loader.stats().restarts == 0
    return found


def check(
    found: list[Any], judge: Callable[[int], list[bytes]], indices: list[int] | None = None
) -> None:
    """Compare what came with what the oracle says of each sample, or of these indices."""
    for index, outcome in zip(
        range(len(found)) if indices is None else indices, found, strict=True
    ):
        try:
            expected = judge(index)
        except Fault as fault:
            path, text = fault.args
            assert isinstance(outcome, str), f"{path} of sample {index} must be refused: {text}"
            if " ... " not in outcome:
                assert outcome.startswith(f"dataset[{index}]: {path} ")
                assert text in outcome
            assert ", expected " in outcome
            assert "; " in outcome
        else:
            assert outcome == expected, f"sample {index}"


@settings(max_examples=250)
@given(TREES, st.lists(SEEDS, min_size=1, max_size=4))
def test_any_sample_arrives_or_is_refused(tree: Any, seeds: list[int]) -> None:
    """A sample's bytes arrive as they are; of one that does not fit, the first fault is named."""
    dataset = Samples(tree, seeds)
    found = outcomes(dataset, tree)
    assert len(found) == len(seeds)
    check(found, lambda index: judged(tree, dataset[index]))


@settings(max_examples=150)
@given(TREES, st.lists(SEEDS, min_size=1, max_size=4))
def test_any_batch_arrives_or_is_refused(tree: Any, seeds: list[int]) -> None:
    """The same of whole batches of 0 rows and more; those of None are left out."""
    dataset = WholeBatches(tree, seeds)
    found = outcomes(dataset, tree, batch_size=None, max_batch_size=dataset.MOST)
    there = [index for index in range(len(seeds)) if dataset[index] is not None]
    check(found, lambda index: judged_batch(tree, dataset[index], dataset.MOST), there)


@settings(max_examples=80)
@given(TREES, st.lists(SEEDS, min_size=1, max_size=4), st.integers(1, 3))
def test_many_at_once_are_judged_alike(tree: Any, seeds: list[int], batch_size: int) -> None:
    """__getitems__ gives the same batches and the same errors, down to the last word."""
    one, many = (
        outcomes(kind(tree, seeds), tree, batch_size=batch_size) for kind in (Samples, BulkSamples)
    )
    assert one == many


@settings(max_examples=80)
@given(TREES, st.lists(SEEDS, min_size=1, max_size=4))
def test_what_is_written_in_place_arrives(tree: Any, seeds: list[int]) -> None:
    """read_into gets a place of the right structure, dtype and shape for each leaf."""
    dataset = Written(tree, seeds)
    found = outcomes(dataset, tree)
    for index, outcome in enumerate(found):
        assert outcome == [raw(np.asarray(value)) for value in flat(dataset[index])]


ARRAY_WAYS = sorted(set(WAYS) - {"array-like", "interface", "scalar"})
ARRAY_TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=80)
@given(ARRAY_TREES, SEEDS, st.integers(0, 5), st.integers(1, 3), st.booleans())
def test_arrays_arrive_by_rows(
    tree: Any,
    seed: int,
    rows: int,
    batch_size: int,
    shuffle: bool,  # noqa: FBT001
) -> None:
    """A nest of arrays, however each lies in memory, arrives row by row, as bytes."""
    draw = random.Random(seed)  # noqa: S311
    arrays = sample(
        tree, draw, lambda leaf, _: WAYS[draw.choice(ARRAY_WAYS)](content(leaf, draw, (rows,)))
    )
    with ringfeed.Loader(
        arrays, batch_size=batch_size, workers=0, shuffle=shuffle, copy=True
    ) as loader:
        found = [flat(batch) for batch in loader]
    order = [0, 1, 2, 3, 4][:rows] if not shuffle else shuffled(rows)
    for number, array in enumerate(flat(arrays)):
        came = b"".join(raw(batch[number]) for batch in found)
        assert came == raw(np.asarray(array)[order, ...])


def shuffled(rows: int) -> list[int]:
    """Return the order in which a shuffling loader of this seed reads."""
    with ringfeed.Loader(
        np.arange(rows), batch_size=1, workers=0, shuffle=True, copy=True
    ) as loader:
        return [int(batch[0]) for batch in loader]


@pytest.fixture(scope="module")
def in_this_process() -> list[Any]:
    """What becomes of the catalogue without any worker."""
    return outcomes(Catalogue(), Catalogue.TREE)


def test_the_catalogue(in_this_process: list[Any]) -> None:
    """Each odd value in the place of each leaf arrives or is refused as the oracle says."""
    assert len(in_this_process) == len(Catalogue.CASES)
    check(in_this_process, lambda index: judged(Catalogue.TREE, Catalogue()[index]))
    refused = sum(isinstance(outcome, str) for outcome in in_this_process)
    assert len(Catalogue.CASES) // 2 < refused < len(Catalogue.CASES)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "how",
    [
        {"backend": "spawn"},
        {"backend": "fork"},
        {"backend": "process"},
        {"backend": "thread"},
    ],
    ids=lambda how: next(iter(how.values())),
)
def test_workers_judge_alike(how: Any, in_this_process: list[Any]) -> None:
    """Every pool gives the same bytes and the same words, sample by sample and in order."""
    assert outcomes(Catalogue(), Catalogue.TREE, workers=1, **how) == in_this_process
