"""Errors in the words of what gives a sample: the user's own texts and keys stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringfeed


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
            ringfeed.Pack(Raising(ValueError(NOTES)), [4] * 50, 8), batch_size=4, workers=0, on_error="skip"
        )
    assert str(caught.value) == (
        f"row 0 of the Pack, read for the spec, raised ValueError: {NOTES}, and the 24 rows read after it failed, too; "
        f"on_error='skip' leaves none out before the spec is known: give spec="
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
    given: Any = ringfeed.Mix([raising, raising]) if dataset == "mix" else elements
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
        "the batch of dataset[i] (i = 0, 1, 2, 3): batch['__getitem__'][0] is of type str, expected an array with a "
        "leading row axis; return arrays with a row axis from collate_fn"
    )
