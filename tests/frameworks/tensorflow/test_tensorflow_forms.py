"""Leaves whose samples differ in length in tf.data.

Ragged tensors, strings, padded tensors, with the right specs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import ringfeed
from formed import LENGTHS, ROWS, SPEC, STRINGS, Formed, digest, expected, make, plain, told
from ringfeed import Array, Text

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


def said(batch: dict[str, Any]) -> dict[str, Any]:
    """Say what a batch holds; its types are those that `to_tf_dataset` promises."""
    found: dict[str, Any] = {}
    for name, leaf in batch.items():
        if isinstance(leaf, tf.RaggedTensor):
            found[name] = told(leaf.values.numpy(), leaf.row_splits.numpy())
        elif isinstance(leaf, tuple):
            assert type(leaf) is {"measured": ringfeed.Padded, "masked": ringfeed.Masked}[name]
            found[name] = [plain(part.numpy()) for part in leaf]
        elif leaf.dtype == tf.string:
            found[name] = [
                sample.decode() if name == "title" else sample for sample in leaf.numpy().tolist()
            ]
        else:
            found[name] = plain(leaf.numpy())
    return found


@pytest.mark.parametrize(
    "settings",
    [{}, {"copy": True}, {"shuffle": True, "drop_remainder": True}, {"on_error": "skip"}],
)
def test_batches_are_those_of_the_loader(settings: dict[str, Any]) -> None:
    """Value for value, also where the number of batches is unknown to TensorFlow."""
    with make(**settings) as loader:
        dataset = loader.to_tf_dataset()
        found = [said(batch) for batch in dataset.prefetch(2)]
        for batch in dataset:
            tf.nest.map_structure(
                lambda spec, part: spec.is_compatible_with(part) or pytest.fail(str(spec)),
                dataset.element_spec,
                batch,
            )
    assert digest(found) == digest(expected(**settings))


def is_in_a_slot(tensor: Any) -> bool:
    """Return whether a tensor's memory is shared memory of a ring."""
    address = np.asarray(memoryview(tensor)).__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5)
        begin, end = (int(edge, 16) for edge in span.split("-"))
        if begin <= address < end:
            return "memfd:" in name
    return False


def test_values_are_not_copied() -> None:
    """They lie in the slot, one batch after another, until there is no slot left to fill.

    What is kept stays right.
    """
    names = ["boxes", "wide", "tokens", "measured", "masked", "number"]
    with make(names, slots=4) as loader:
        kept = list(loader.to_tf_dataset())
        for batch in kept[:2]:
            parts = (batch["boxes"].values, batch["wide"].values, batch["tokens"], batch["number"])
            assert all(
                map(is_in_a_slot, (*parts, batch["measured"].values, batch["masked"].values))
            )
            assert not is_in_a_slot(batch["measured"].lengths)
            del parts
        assert digest(map(said, kept)) == digest(expected(names))
        del batch, kept
    with make(names, slots=4, copy=True) as loader:
        assert not any(is_in_a_slot(batch["boxes"].values) for batch in loader.to_tf_dataset())


def specs(rows: int | None) -> dict[str, Any]:
    """Return the specs of batches of so many rows."""
    return {
        "boxes": tf.RaggedTensorSpec((rows, None, 2), tf.float32, 1, tf.int64),
        "wide": tf.RaggedTensorSpec((rows, None), tf.int64, 1, tf.int64),
        "tokens": tf.TensorSpec((rows, None), tf.int32),
        "measured": ringfeed.Padded(
            tf.TensorSpec((rows, None), tf.int32), tf.TensorSpec((rows,), tf.int64)
        ),
        "masked": ringfeed.Masked(
            tf.TensorSpec((rows, None, None), tf.uint8), tf.TensorSpec((rows, None, None), tf.bool)
        ),
        "number": tf.TensorSpec((rows,), tf.float32),
        "picture": tf.TensorSpec((rows,), tf.string),
        "title": tf.TensorSpec((rows,), tf.string),
    }


def test_element_spec() -> None:
    """Rows where all batches have as many, None along the axes that differ."""
    with make() as loader:
        assert loader.to_tf_dataset().element_spec == specs(None)
    with make(drop_remainder=True) as loader:
        assert loader.to_tf_dataset().element_spec == specs(ROWS)


@pytest.mark.parametrize(("pad_to", "axis"), [(None, None), (16, 16), ((4, 8), None)])
def test_one_length_is_known(pad_to: Any, axis: int | None) -> None:
    """``pad_to`` of one number is the length of all batches."""
    spec = {"tokens": Array((None,), "int32", max_shape=(8,), form="pad", pad_to=pad_to, mask=True)}
    with ringfeed.Loader(Formed(["tokens"]), spec=spec, batch_size=ROWS, workers=0) as loader:
        dataset = loader.to_tf_dataset()
        found = dataset.element_spec["tokens"]
        assert [found.values.shape.as_list(), found.mask.shape.as_list()] == [[None, axis]] * 2
        assert all(batch["tokens"].values.shape == batch["tokens"].mask.shape for batch in dataset)


def test_two_axes_that_differ() -> None:
    """Lengths of two axes are two numbers a row."""

    class Pictures:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return np.ones((1 + index, 4 - index, 3), np.uint8)

    spec = Array((None, None, 3), "uint8", max_shape=(4, 4, 3), form="pad", lengths=True)
    with ringfeed.Loader(Pictures(), spec=spec, batch_size=2, workers=0) as loader:
        dataset = loader.to_tf_dataset()
        assert dataset.element_spec == ringfeed.Padded(
            tf.TensorSpec((None, None, None, 3), tf.uint8), tf.TensorSpec((None, 2), tf.int64)
        )
        assert [batch.lengths.numpy().tolist() for batch in dataset] == [
            [[1, 4], [2, 3]],
            [[3, 2], [4, 1]],
        ]


def test_a_function_is_traced_once() -> None:
    """For ragged tensors of all lengths, and of a smaller last batch, that come out of a `map`."""
    traced = []

    def total(batch: Any) -> Any:
        traced.append(batch["boxes"].shape.as_list())
        return tf.reduce_sum(batch["boxes"], axis=[1, 2]), tf.strings.length(batch["title"])

    with make(["boxes", "title"]) as loader:
        found = [
            (sums.numpy().tolist(), sizes.numpy().tolist())
            for sums, sizes in loader.to_tf_dataset().map(total)
        ]
    assert traced == [[None, None, 2]]
    samples = [Formed(["boxes", "title"])[index] for index in range(len(LENGTHS))]
    assert [size for _, sizes in found for size in sizes] == [
        len(sample["title"].encode()) for sample in samples
    ]
    assert [one for sums, _ in found for one in sums] == [
        sample["boxes"].sum() for sample in samples
    ]


def test_casts() -> None:
    """Ragged values are cast as they are; bytes and text are no numbers, and stay what they are."""
    names = ["boxes", "masked", *STRINGS]
    with make(names) as loader:
        cast = {"boxes": ringfeed.Cast("float32", scale=2), "masked": "float16"}
        dataset = loader.to_tf_dataset(cast=cast)
        assert dataset.element_spec["masked"].values.dtype == tf.float16
        found = [said(batch) for batch in dataset]
    for batch, plainly in zip(found, expected(names), strict=True):
        assert batch["boxes"][1] == [
            (2 * np.array(sample)).tolist() for sample in plainly["boxes"][1]
        ]
        assert [batch[name] for name in STRINGS] == [plainly[name] for name in STRINGS]
    with make([*STRINGS, "masked"]) as loader:
        spec = loader.to_tf_dataset(cast="float32").element_spec
        assert [spec[name].dtype for name in STRINGS] == [tf.string] * 2


def test_a_bare_text() -> None:
    """A sample that is a string alone; empty batches of nothing but empty strings, too."""

    class Names:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> str:
            return "" if index < 2 else "ü" * index

    with ringfeed.Loader(Names(), spec=Text(16), batch_size=2, workers=0) as loader:
        dataset = loader.to_tf_dataset()
        assert dataset.element_spec == tf.TensorSpec((None,), tf.string)
        assert [batch.numpy().tolist() for batch in dataset] == [
            [b"", b""],
            ["üü".encode(), "üüü".encode()],
        ]


def test_empty_epochs_have_the_specs() -> None:
    """Where TensorFlow does not know how many batches come, none may."""

    class Bad(Formed):
        def __getitem__(self, index: int) -> Any:
            raise OSError(index)

    with ringfeed.Loader(Bad(), spec=SPEC, batch_size=ROWS, workers=0, on_error="skip") as loader:
        assert list(loader.to_tf_dataset()) == []
