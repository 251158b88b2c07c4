"""The words of other loaders, and of ringfeed up to 0.2: an error that says the word here."""

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
            "drop_last= is torch's, and here that is drop_remainder=; prefetch_factor= is "
            f"torch's, and here that is slots=, the batches that exist in all{TORCH}",
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
            f"timeout= is torch's, and here that is timeout_s={TORCH}; max_queue_size= is Keras', "
            f"and here that is slots={KERAS}",
        ),
    ],
)
def test_words_of_other_loaders_are_translated(settings: Any, text: str) -> None:
    """One error names them all, the words that they have here.

    The door where they mean what they mean there.
    """
    with pytest.raises(TypeError) as error:
        ringfeed.Loader(np.zeros((4, 2)), **settings)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"rank": 1, "world_size": 4},
            "rank= and world_size= since 0.3; write shard=ringfeed.Shard(1, 4)",
        ),
        (
            {"rank": 1, "world_size": 4, "uneven": "keep"},
            (
                "rank= and world_size= and uneven= since 0.3; write shard=ringfeed.Shard(1, 4, "
                "uneven='keep')"
            ),
        ),
        ({"world_size": 2}, "world_size= since 0.3; write shard=ringfeed.Shard(0, 2)"),
        ({"uneven": "drop"}, "uneven= since 0.3; write shard=ringfeed.Shard(0, 1, uneven='drop')"),
        (
            {"shard": "auto", "uneven": "keep"},
            "uneven= since 0.3; write shard=ringfeed.Shard.find(uneven='keep')",
        ),
        ({"start_method": "forkserver"}, "start_method= since 0.3; write backend='process'"),
        ({"start_method": "fork"}, "start_method= since 0.3; write backend='fork'"),
        (
            {"start_method": "forked"},
            "start_method= since 0.3; write backend='process', 'spawn' or 'fork'",
        ),
        (
            {"pin": True},
            (
                "pin= since 0.3; leave it out: to_torch(device='cuda') and to_jax(device) "
                "register the slots"
            ),
        ),
        (
            {"prefetch_epochs": False},
            "prefetch_epochs= since 0.3; leave it out: worker processes read ahead, but not of a "
            "dataset with on_epoch_end()",
        ),
        (
            {"max_restarts": 3},
            (
                "max_restarts= since 0.3; leave it out: max_attempts= says how many workers may "
                "die of a sample"
            ),
        ),
        (
            {"fingerprint": "v1"},
            (
                "fingerprint= since 0.3; give the dataset an attribute of this name, as in "
                "dataset.fingerprint = 'v1'"
            ),
        ),
    ],
)
def test_words_of_before_are_translated(settings: Any, text: str) -> None:
    """Each says what to write in its place."""
    with pytest.raises(TypeError) as error:
        ringfeed.Loader(np.zeros((4, 2)), **settings)
    assert str(error.value) == f"Loader() has no {text}"


def test_several_words_of_before_are_one_error() -> None:
    """With those of other loaders, too."""
    with pytest.raises(TypeError) as error:
        ringfeed.Loader(np.zeros((4, 2)), start_method="spawn", pin=True, num_workers=2)  # type: ignore[call-arg]
    assert str(error.value) == (
        "Loader() has no start_method= since 0.3; write backend='spawn'; Loader() has no pin= "
        "since 0.3; leave it out: to_torch(device='cuda') and to_jax(device) register the slots; "
        f"num_workers= is torch's, and here that is workers={TORCH}"
    )


@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("datasets", ["Frozen", "Interleave", "Mix", "Pack"]),
        (
            "orders",
            [
                "Buckets",
                "PrioritizedSampler",
                "StratifiedSampler",
                "SubsetSampler",
                "WeightedSampler",
                "WindowShuffle",
            ],
        ),
        ("ray", ["Ray"]),
    ],
)
def test_names_that_have_moved_say_where_they_are(package: str, names: list[str]) -> None:
    """And are there, as the package's own."""
    for name in names:
        with pytest.raises(AttributeError) as error:
            getattr(ringfeed, name)
        assert str(error.value) == (
            f"module 'ringfeed' has no attribute {name!r}: it is ringfeed.{package}.{name} since "
            "0.3"
        )
        assert callable(getattr(getattr(ringfeed, package), name))
    assert sorted(getattr(ringfeed, package).__all__) == names


def test_a_name_that_a_package_does_not_have() -> None:
    """Is Python's own error."""
    with pytest.raises(
        AttributeError, match=r"^module 'ringfeed.orders' has no attribute 'Sorted'$"
    ):
        _ = ringfeed.orders.Sorted  # type: ignore[attr-defined]


def test_values_need_names() -> None:
    """As torch takes them, by their place, they could mean anything."""
    with pytest.raises(TypeError) as error:
        ringfeed.Loader(np.zeros((4, 2)), 8, True)  # type: ignore[call-arg, misc]  # noqa: FBT003 - what is tested
    assert str(error.value) == (
        "Loader() takes the dataset alone without a name, and got 2 more; give them by name, as "
        "in batch_size=8"
    )


def test_other_words_are_pythons_to_refuse() -> None:
    """What is no word of any loader stays Python's own error; the signature stays the loader's."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
        ringfeed.Loader(np.zeros((4, 2)), epsilon=3)  # type: ignore[call-arg]
    assert "drop_remainder" in inspect.signature(ringfeed.Loader).parameters


@pytest.mark.parametrize(
    ("word", "meant"),
    [("batchsize", "batch_size"), ("shuffel", "shuffle"), ("collate", "collate_fn")],
)
def test_a_misspelt_word_is_recognised(word: str, meant: str) -> None:
    """The error has the parameter that the word resembles most."""
    with pytest.raises(TypeError) as error:
        ringfeed.Loader(np.zeros((4, 2)), **{word: None})
    assert str(error.value) == f"Loader() has no {word}=; did you mean {meant}=?"
