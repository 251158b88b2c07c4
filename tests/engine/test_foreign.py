"""The words of other loaders: an error that says the word here."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import ringfeed

pytestmark = pytest.mark.once
TORCH = "; ringfeed.torch.DataLoader takes torch's words as they are"
KERAS = "; ringfeed.keras.feed() and install() take Keras' datasets as they are"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_workers": 2}, f"num_workers= is torch's, and here that is workers={TORCH}"),
        (
            {"batch_size": 2, "drop_last": True, "prefetch_factor": 2},
            "drop_last= is torch's, and here that is drop_remainder=; prefetch_factor= is torch's, and here that is "
            f"slots=, the batches that exist in all{TORCH}",
        ),
        (
            {"persistent_workers": True},
            f"persistent_workers= is torch's, and here workers always stay; leave it out{TORCH}",
        ),
        (
            {"use_multiprocessing": True},
            f"use_multiprocessing= is Keras', and here that is backend='process' or 'thread'{KERAS}",
        ),
        (
            {"timeout": 3, "max_queue_size": 10},
            f"timeout= is torch's, and here that is timeout_s={TORCH}; max_queue_size= is Keras', and here that is "
            f"slots={KERAS}",
        ),
    ],
)
def test_words_of_other_loaders_are_translated(settings: Any, text: str) -> None:
    """One error names them all, the words that they have here, and the door where they mean what they mean there."""
    with pytest.raises(TypeError) as error:
        ringfeed.Loader(np.zeros((4, 2)), **settings)
    assert str(error.value) == text


def test_values_need_names() -> None:
    """As torch takes them, by their place, they could mean anything."""
    with pytest.raises(TypeError) as error:
        ringfeed.Loader(np.zeros((4, 2)), 8, True)  # type: ignore[call-arg, misc]  # noqa: FBT003 - what is tested
    assert str(error.value) == (
        "Loader() takes the dataset alone without a name, and got 2 more; give them by name, as in batch_size=8"
    )


def test_other_words_are_pythons_to_refuse() -> None:
    """What is no word of any loader stays Python's own error; the signature stays the loader's."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        ringfeed.Loader(np.zeros((4, 2)), batchsize=3)  # type: ignore[call-arg]
    assert "drop_remainder" in inspect.signature(ringfeed.Loader).parameters
