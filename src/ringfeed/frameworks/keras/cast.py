"""What `to_keras` casts: by Keras' backend where it computes, or by NumPy as the batch leaves its slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from ringfeed.frameworks.cast import Chosen, apart, casts_of, in_numpy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ringfeed.frameworks.cast import Casts, CastTree
    from ringfeed.frameworks.copies import Own
    from ringfeed.frameworks.tensorflow.cast import TensorFlowCasts
    from ringfeed.spec.spec import Spec


class KerasCasts:
    """The casts of one loader; a backend compiles them once. Each function imports its framework alone."""

    def __init__(self, spec: Spec, asked: CastTree) -> None:
        """Refuse what cannot be cast."""
        self._leaves = spec.leaves
        self._made: dict[str, Any] = {}
        check = None
        if keras.backend.backend() == "jax":
            from ringfeed.frameworks.jax_cast import check_width  # noqa: PLC0415 - not on other backends

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
            return self.in_numpy, Chosen((), tuple)
        from ringfeed.frameworks.jax_cast import jax_casts, narrowed, varying  # noqa: PLC0415 - not on other backends

        return self._split("jax", narrowed(self._leaves) | varying(self._leaves), jax_casts)

    def in_torch(self) -> tuple[Own, Chosen]:
        """NumPy's for the leaves that torch hardly computes with; torch's for others, on Keras' device."""
        from ringfeed.frameworks.keras.backends import TORCH_LACKS  # noqa: PLC0415 - as below
        from ringfeed.frameworks.torch_cast import torch_casts  # noqa: PLC0415 - not on other backends

        lacking = (number for number, leaf in enumerate(self._leaves) if leaf.dtype.name in TORCH_LACKS)
        return self._split("torch", lacking, lambda casts: torch_casts(casts, keras.ops.convert_to_tensor))

    def _split(self, name: str, numbers: Iterable[int], made_of: Callable[[Casts], Chosen]) -> tuple[Own, Chosen]:
        if name not in self._made:
            mine, others = apart(self._casts, numbers)
            self._made[name] = in_numpy(mine), made_of(others)
        found: tuple[Own, Chosen] = self._made[name]
        return found
