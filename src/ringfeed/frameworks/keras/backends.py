"""How each backend of Keras takes memory, and casts: where it computes, or by NumPy as the batch leaves its slot.

Every function imports its framework alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras

from ringfeed.frameworks.base import Framework
from ringfeed.frameworks.batch import NUMPY
from ringfeed.frameworks.cast import NOTHING, apart, casts_of, in_numpy
from ringfeed.frameworks.forms import STRINGS, Joiner, refuse_forms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ringfeed.frameworks.batch import Own
    from ringfeed.frameworks.cast import Casts, CastTree, Chosen
    from ringfeed.frameworks.tensorflow.cast import TensorFlowCasts
    from ringfeed.spec.array import AnyArray, Leaf
    from ringfeed.spec.spec import Spec

WIDE = "int64", "uint64", "float64", "complex128"
TORCH_LACKS = frozenset({"uint16", "uint32", "uint64"})  # it has these dtypes, and hardly an operation on them


def tensorflow_memory() -> Framework:
    """EagerTensors. TensorFlow holds them no longer than Python does, or than it takes to copy them to a GPU."""
    import tensorflow as tf  # noqa: PLC0415 - not on other backends

    from ringfeed.frameworks.tensorflow.forms import JOINS  # noqa: PLC0415 - as above

    return Framework(
        tf.experimental.dlpack.from_dlpack,
        # tf.convert_to_tensor copies in any case; Identity does not where the array is aligned.
        lambda array: tf.raw_ops.Identity(input=array),
        joins=JOINS,
        strings=True,
    )


def jax_memory() -> Framework:
    """Arrays on the CPU; NumPy's where steps run elsewhere, or on several devices, and Keras places arrays itself.

    JAX dispatches many steps ahead, and holds what they are to read.
    """
    import jax  # noqa: PLC0415 - not on other backends

    from ringfeed.frameworks.jax import is_computing, jax_framework  # noqa: PLC0415 - not on other backends

    if jax.default_backend() != "cpu" or jax.config.jax_default_device is not None or keras.distribution.distribution():
        return replace(NUMPY, is_computing=is_computing)
    narrowed = frozenset(name for name in WIDE if jax.dtypes.canonicalize_dtype(name) != name)  # unless told otherwise
    framework = jax_framework(narrowed)

    def put(array: AnyArray) -> Any:
        try:
            return framework.from_numpy(array)
        except TypeError:  # JAX has no strings and no dates, and Keras hands them to the step as they are
            return array

    return replace(framework, from_numpy=put)


def torch_memory() -> Framework:
    """Tensors on the CPU, which Keras moves to its device; arrays it converts itself, and has its own rules for.

    Keras walks structures of tensors by functions that refer to themselves (its `tree.traverse`): each step leaves its
    batch in such a cycle.
    """
    import torch  # noqa: PLC0415 - not on other backends

    return Framework(torch.from_dlpack, lambda array: array, leaves_alone=TORCH_LACKS, in_cycles=True)


# ---- what Keras has of leaves whose samples differ in length ----


def _pair(values: Any, beside: Any) -> Any:
    return values if beside is None else (values, beside)


PAIRS = {"pad": _pair}
"""Padded values and what is beside them as two inputs of a model, which Keras does not know in a NamedTuple."""


def form_joiner(leaves: Sequence[Leaf]) -> Joiner:
    """What the backend makes of values and of what is beside them; SpecError where Keras has nothing there."""
    if keras.backend.backend() != "tensorflow":
        lack = f"Keras has no tensors on {keras.backend.backend()}, but on TensorFlow alone"
        refuse_forms(leaves, frozenset({"ragged"}), lack, "give form='pad' in spec=")
        refuse_forms(leaves, STRINGS, lack, "make numbers of it in __getitem__")
        return Joiner(leaves, PAIRS, strings=True)
    from ringfeed.frameworks.tensorflow.forms import JOINS  # noqa: PLC0415 - not on other backends

    return Joiner(leaves, {**JOINS, **PAIRS}, strings=True)


# ---- what `to_keras` casts ----


class KerasCasts:
    """The casts of one loader; a backend compiles them once. Each function imports its framework alone."""

    def __init__(self, spec: Spec, asked: CastTree) -> None:
        """Refuse what cannot be cast."""
        self._leaves = spec.leaves
        self._made: dict[str, Any] = {}
        check = None
        if keras.backend.backend() == "jax":
            from ringfeed.frameworks.jax import check_width  # noqa: PLC0415 - not on other backends

            check = check_width
        self._casts = casts_of(spec, asked, "to_keras", check)

    @property
    def in_numpy(self) -> Own:
        """Every cast, by NumPy."""
        return in_numpy(self._casts)

    def in_tensorflow(self, specs: Sequence[Any]) -> TensorFlowCasts | None:
        """Every cast, by TensorFlow's eager ops or in its graph; the loader's leaves come first in ``specs``."""
        if self._casts and "tensorflow" not in self._made:
            from ringfeed.frameworks.tensorflow.cast import TensorFlowCasts  # noqa: PLC0415 - not on other backends

            self._made["tensorflow"] = TensorFlowCasts(self._casts, specs)
        found: TensorFlowCasts | None = self._made.get("tensorflow")
        return found

    def in_jax(self) -> tuple[Own, Chosen]:
        """NumPy's for leaves that JAX would narrow first or whose shape varies; JAX's for others.

        All are NumPy's where Keras spreads batches.
        """
        if keras.distribution.distribution() is not None:
            return self.in_numpy, NOTHING
        from ringfeed.frameworks.jax import cast_in_host, jax_casts  # noqa: PLC0415 - not on other backends

        return self._split("jax", cast_in_host(self._leaves), jax_casts)

    def in_torch(self) -> tuple[Own, Chosen]:
        """NumPy's for the leaves that torch hardly computes with; torch's for others, on Keras' device."""
        from ringfeed.frameworks.torch import torch_casts  # noqa: PLC0415 - not on other backends

        lacking = (number for number, leaf in enumerate(self._leaves) if leaf.dtype.name in TORCH_LACKS)
        return self._split("torch", lacking, lambda casts: torch_casts(casts, keras.ops.convert_to_tensor))

    def _split(self, name: str, numbers: Iterable[int], made_of: Callable[[Casts], Chosen]) -> tuple[Own, Chosen]:
        if name not in self._made:
            mine, others = apart(self._casts, numbers)
            self._made[name] = in_numpy(mine), made_of(others)
        found: tuple[Own, Chosen] = self._made[name]
        return found
