"""TensorFlow's specs as spec=, its ragged and sparse tensors refused, and None in its datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed.spec.spec import Spec

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

pytestmark = pytest.mark.once

ROWS: Any = (np.ones((4, 3), np.float32), np.arange(4, dtype=np.int32), None)


def test_an_element_spec_is_the_spec_of_whole_batches() -> None:
    """Of a dataset of batches, whose last one is shorter, and of None in them."""
    dataset = tf.data.Dataset.from_tensors(ROWS)
    given = [(ROWS[0][:rows], ROWS[1][:rows], None) for rows in (4, 2)]
    how: Any = {"batch_size": None, "max_batch_size": 4, "workers": 0, "copy": True}
    with ringfeed.Loader(given, spec=dataset.element_spec, **how) as loader:
        assert [(x.shape, y.tolist(), nothing) for x, y, nothing in loader] == [
            ((4, 3), [0, 1, 2, 3], None),
            ((2, 3), [0, 1], None),
        ]


def test_tensor_specs_are_arrays() -> None:
    """Of samples, as an output_signature has them."""
    spec = {"x": tf.TensorSpec((2, 3), tf.uint8), "y": tf.TensorSpec((), tf.float32), "z": None}
    assert Spec(spec) == Spec(
        {"x": ringfeed.Array((2, 3), "u1"), "y": ringfeed.Array((), "f4"), "z": None}
    )


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            tf.TensorSpec((None, 3)),
            "spec is a TensorSpec of shape (None, 3), expected a shape that is known; ",
        ),
        (
            tf.TensorSpec(None),
            "spec is a TensorSpec of shape unknown, expected a shape that is known; ",
        ),
        (
            tf.TensorSpec((), tf.string),
            "spec is a TensorSpec of dtype tf.string, expected a dtype of fixed width; ",
        ),
        (
            tf.RaggedTensorSpec((None, 4)),
            "spec is of type RaggedTensorSpec, expected a spec of dense tensors; give "
            "ringfeed.Array((None, 4), 'float32', max_shape=(300, 4), form='ragged'), with the "
            "largest sample in the place of 300",
        ),
        (
            tf.RaggedTensorSpec((2, None), tf.string),
            (
                "spec is of type RaggedTensorSpec, expected a spec of dense tensors; give a "
                "ringfeed.Array of the shape of"
            ),
        ),
    ],
)
def test_specs_that_leave_something_open_are_refused(spec: Any, text: str) -> None:
    """TensorFlow's own objects are known by their names."""
    with pytest.raises(ringfeed.SpecError) as caught:
        Spec(spec)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            tf.ragged.constant([[1], [1, 2]]),
            "of type RaggedTensor, expected an array or number, or a tuple, list or dict of them; "
            "return its .to_tensor(), which pads it, or its .flat_values and row lengths as leaves",
        ),
        (
            tf.sparse.from_dense([[1, 0]]),
            "of type SparseTensor, expected an array or number, or a tuple, list or dict of them; "
            "return tf.sparse.to_dense() of it, or its .indices and .values as leaves",
        ),
    ],
)
def test_ragged_and_sparse_tensors_are_refused(value: Any, text: str) -> None:
    """The refusal says what to return."""
    with pytest.raises(ringfeed.SpecError) as caught:
        ringfeed.Loader([(value,)], workers=0)
    assert str(caught.value) == f"dataset[0]: sample[0] is {text}"


def test_none_goes_through_a_tf_dataset() -> None:
    """As (x, y, None), which Keras knows as no weights."""
    with ringfeed.Loader(
        [(np.ones(3, np.float32), 1, None)] * 4, batch_size=2, workers=0
    ) as loader:
        found = [(x.shape, y.numpy().tolist(), nothing) for x, y, nothing in loader.to_tf_dataset()]
    assert found == [((2, 3), [1, 1], None)] * 2


@pytest.mark.parametrize("skips", [False, True], ids=["known", "unknown"])
def test_text_that_is_not_ascii(*, skips: bool) -> None:
    """It is UTF-8, as of TensorFlow itself, whether the length of an epoch is known or not."""
    words = np.array(["é", "", "日本", "ascii"])
    how: Any = {"batch_size": 2, "workers": 0, "on_error": "skip" if skips else "raise"}
    with ringfeed.Loader((words, np.arange(4.0)), **how) as loader:
        found = [word for batch, _ in loader.to_tf_dataset() for word in batch.numpy().tolist()]
    assert found == tf.constant(words).numpy().tolist()
