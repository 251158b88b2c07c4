"""Errors in the words of what gives a sample: the user's own texts and keys stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from numbered import same

if TYPE_CHECKING:
    from pathlib import Path


class Raising:
    """Each sample raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        raise self.error


NOTES = "shard 3 has no samples left: see dataset[0] of my notes"


def test_a_pack_says_what_a_sample_has_raised_in_its_own_words() -> None:
    """The loader's words are of rows, and the error's text stays."""
    with pytest.raises(ringfeed.SpecError) as caught:
        ringfeed.Loader(
            ringfeed.datasets.Pack(Raising(ValueError(NOTES)), [4] * 50, 8),
            batch_size=4,
            workers=0,
            on_error="skip",
        )
    assert str(caught.value) == (
        f"row 0 of the Pack, read for the spec, raised ValueError: {NOTES}, and the 24 read "
        "after it failed, too; on_error='skip' leaves none out before the spec is known: give "
        "spec="
    )


@pytest.mark.parametrize("dataset", ["mix", "stream"])
def test_a_spec_error_of_the_users_own_keeps_its_text(dataset: str) -> None:
    """An error that a sample raises itself is not taken for one of ringfeed's."""
    text = "see dataset[0] and dataset[1] of my notes"

    def elements() -> Any:
        yield np.int64(0)
        raise ringfeed.SpecError(text)

    spec = ringfeed.Array((), "int64")
    raising = Raising(ringfeed.SpecError(text))
    given: Any = ringfeed.datasets.Mix([raising, raising]) if dataset == "mix" else elements
    loader = ringfeed.Loader(given, batch_size=2, workers=0, spec=spec)
    with loader, pytest.raises(ringfeed.RingfeedError) as caught:
        list(loader)
    assert text in str(caught.value)


def test_a_key_that_is_a_methods_name_stays() -> None:
    """What collate_fn gives is named by its own keys."""

    def collate(_: list[int]) -> dict[str, Any]:
        return {"__getitem__": ["a", object()]}

    with pytest.raises(ringfeed.SpecError) as caught:
        ringfeed.Loader([1, 2, 3, 4] * 20, batch_size=4, workers=0, collate_fn=collate)
    assert str(caught.value) == (
        "the batch of dataset[i] (i = 0, 1, 2, 3): batch['__getitem__'][0] is of type str, "
        "expected an array with a leading row axis; return arrays with a row axis from collate_fn"
    )


TEXT = "see dataset.dataset, dataset.functions.transform and dataset[0] of my notes"


class Unsendable(Raising):
    """Cannot be pickled, for a reason of its own; `held` can neither be."""

    def __reduce__(self) -> Any:
        raise self.error


def plain(dataset: Any) -> dict[str, Any]:
    """Give a loader the dataset alone."""
    return {"dataset": dataset}


def transformed(dataset: Any) -> dict[str, Any]:
    """Give it a function, too."""
    return {"dataset": dataset, "transform": same}


def packed(dataset: Any) -> dict[str, Any]:
    """Give it rows of several samples."""
    return {"dataset": ringfeed.datasets.Pack(dataset, [4] * 50, 8)}


def both(dataset: Any) -> dict[str, Any]:
    """Give it rows that a function changes."""
    return {**packed(dataset), "transform": same}


WRAPPED = [plain, transformed, packed, both]


def not_sent(**settings: Any) -> str:
    """Return why a loader does not send its dataset."""
    with pytest.raises(ringfeed.ShipError) as caught:
        ringfeed.Loader(batch_size=4, workers=1, **settings)
    return str(caught.value)


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_what_the_users_own_object_raises_when_it_is_sent_stays(wrapped: Any) -> None:
    """The path to it has the user's names alone, and its text is the user's."""
    dataset = Raising(ValueError())
    dataset.dataset = Unsendable(ValueError(TEXT))  # type: ignore[attr-defined]
    said = not_sent(**wrapped(dataset))
    assert said.startswith("dataset.dataset is a test_words.Unsendable object (")
    assert f"(ValueError: {TEXT}) and cannot be sent to a worker process; " in said


@pytest.mark.parametrize("method", ["process", "fork"])
def test_a_function_is_named_as_it_was_given(method: str, tmp_path: Path) -> None:
    """Where what it holds cannot be sent, or must not be shared."""
    (tmp_path / "words").write_text("one")
    with (tmp_path / "words").open() as words:

        def transform(sample: Any) -> Any:
            return words.read(sample)

        said = not_sent(
            dataset=[1, 2, 3], transform=transform, backend=method, spec=ringfeed.Array((), "int64")
        )
    assert said.startswith(f"transform: variable 'words' is an open file ({words.name!r})")


class Listed:
    """Samples beside a long list."""

    def __init__(self) -> None:
        self.names = [f"{number:99}" for number in range(50_000)]

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        return np.full(4, index)


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_long_list_is_named_as_the_user_has_it(wrapped: Any) -> None:
    """Also as what is to be given to `Frozen`."""
    with ringfeed.Loader(batch_size=4, workers=1, **wrapped(Listed())) as loader:
        advice = str(loader.plan.advice)
    assert advice.startswith("dataset.names, a list of 50,000 items, is some ")
    assert advice.endswith(
        " in each worker that reads it: as ringfeed.datasets.Frozen(names) it is one copy for all"
    )


@pytest.mark.parametrize("members", [1, 2])
def test_a_mix_leaves_the_users_text_as_it_is(members: int) -> None:
    """An error that a sample raises itself begins as those of ringfeed, and is none."""
    good = [np.int64(0)] * 50
    raising = Raising(ringfeed.SpecError("dataset[0] of my notes is bad"))
    with pytest.raises(ringfeed.SpecError) as caught:
        ringfeed.Loader(
            ringfeed.datasets.Mix([*[good] * (members - 1), raising]), batch_size=2, workers=0
        )
    assert str(caught.value) == f"dataset {members - 1}: dataset[0] of my notes is bad"


def test_a_mix_names_what_differs_by_its_own_keys() -> None:
    """Keys of the user's that read as words of ringfeed stay."""
    key = "of type Array; dataset[0]"
    with pytest.raises(ringfeed.SpecError) as caught:
        ringfeed.Loader(
            ringfeed.datasets.Mix([[{key: (1, 2)}] * 4, [{key: 3}] * 4]), batch_size=2, workers=0
        )
    assert str(caught.value) == (
        f"dataset 1[0]: sample[{key!r}] is Array((), 'int64'), expected (Array((), 'int64'), "
        "Array((), 'int64')) as in dataset 0; a Mix needs samples of one structure, shape and "
        "dtype: convert those of one dataset in its "
        "__getitem__"
    )
