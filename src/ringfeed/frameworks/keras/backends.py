"""How each backend of Keras takes memory, and casts: by itself, or by NumPy before that.

Every function imports its framework alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import keras

from ringfeed.frameworks.batch import Framework, Own
from ringfeed.frameworks.cast import NOTHING, Casts, CastTree, Chosen, apart, casts_of, in_numpy
from ringfeed.frameworks.forms import STRINGS, refuse_forms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.spec.array import AnyArray, Leaf
    from ringfeed.spec.spec import Spec

    Way: TypeAlias = "tuple[Framework, Own, Chosen]"
    """How a backend takes memory; what NumPy casts before; what the backend casts."""

TORCH_LACKS = frozenset(
    {"uint16", "uint32", "uint64"}
)  # it has these dtypes, and hardly an operation on them


PAIRS = {"pad": lambda values, beside: values if beside is None else (values, beside)}
"""Padded values and what is beside them: two inputs of a model, since Keras knows no NamedTuple."""
NUMPY = Framework(from_dlpack=None, from_numpy=lambda array: array, joins=PAIRS, strings=True)


def check_forms(leaves: Sequence[Leaf]) -> None:
    """Raise SpecError for samples that differ in length, where Keras has no tensors for them."""
    if keras.backend.backend() != "tensorflow":
        lack = f"Keras has no tensors on {keras.backend.backend()}, but on TensorFlow alone"
        refuse_forms(leaves, frozenset({"ragged"}), lack, "give form='pad' in spec=")
        refuse_forms(leaves, STRINGS, lack, "make numbers of it in __getitem__")


def keras_casts(spec: Spec, asked: CastTree) -> Casts:
    """Return the casts that were asked for, or refuse what cannot be cast."""
    check = None
    if keras.backend.backend() == "jax":
        from ringfeed.frameworks.jax import check_width  # noqa: PLC0415 - not on other backends

        check = check_width
    return casts_of(spec, asked, "to_keras", check)


def numpy_way(casts: Casts) -> Way:
    """Return private arrays, all casts by NumPy."""
    return NUMPY, in_numpy(casts), NOTHING


def tensorflow_memory() -> Framework:
    """EagerTensors: TensorFlow holds one as long as Python does, or as a copy to a GPU takes."""
    import tensorflow as tf  # noqa: PLC0415 - not on other backends

    from ringfeed.frameworks.tensorflow.forms import JOINS  # noqa: PLC0415 - as above

    return Framework(
        tf.experimental.dlpack.from_dlpack,
        # tf.convert_to_tensor copies in any case; Identity does not where the array is aligned.
        lambda array: tf.raw_ops.Identity(input=array),
        joins={**JOINS, **PAIRS},
        strings=True,
    )


def jax_way(leaves: Sequence[Leaf], casts: Casts) -> Way:
    """Arrays on the CPU; NumPy's where Keras places arrays itself, on other devices or several.

    JAX dispatches many steps ahead, and holds what they are to read. NumPy casts leaves that JAX
    would narrow first or whose shape varies, and all where Keras spreads batches; JAX the others.
    """
    import jax  # noqa: PLC0415 - not on other backends

    from ringfeed.frameworks import jax as ours  # noqa: PLC0415 - as above

    is_spread = keras.distribution.distribution() is not None
    mine, others = apart(casts, casts if is_spread else ours.cast_in_host(leaves))
    if is_spread or jax.default_backend() != "cpu" or jax.config.jax_default_device is not None:
        return (
            replace(NUMPY, is_computing=ours.is_computing),
            in_numpy(mine),
            ours.jax_casts(others),
        )
    narrowed = frozenset(
        name for name in ours.WIDE if jax.dtypes.canonicalize_dtype(name) != name
    )  # unless told otherwise
    framework = ours.jax_framework(narrowed)

    def put(array: AnyArray) -> Any:
        try:
            return framework.from_numpy(array)
        except (
            TypeError
        ):  # JAX has no strings and no dates, and Keras hands them to the step as they are
            return array

    return replace(framework, from_numpy=put, joins=PAIRS), in_numpy(mine), ours.jax_casts(others)


def torch_way(leaves: Sequence[Leaf], casts: Casts) -> Way:
    """Tensors on the CPU, which Keras moves to its device; other leaves are NumPy's arrays.

    Keras has its own rules for the dtypes that it converts.

    Keras walks structures of tensors by functions that refer to themselves (its `tree.traverse`):
    each step leaves its batch in such a cycle. NumPy casts the leaves that torch hardly computes
    with; torch the others, on Keras' device.
    """
    import torch  # noqa: PLC0415 - not on other backends

    from ringfeed.frameworks.torch import torch_casts  # noqa: PLC0415 - as above

    mine, others = apart(
        casts, {number for number, leaf in enumerate(leaves) if leaf.dtype.name in TORCH_LACKS}
    )
    memory = replace(NUMPY, from_dlpack=torch.from_dlpack, leaves_alone=TORCH_LACKS, in_cycles=True)
    return memory, in_numpy(mine), torch_casts(others, keras.ops.convert_to_tensor)
