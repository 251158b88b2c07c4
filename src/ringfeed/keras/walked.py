"""A tf.data.Dataset that is walked in Python by whatever its maker says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class WalkedDataset(tf.data.Dataset):  # type: ignore[misc]  # tensorflow has no types
    """Another dataset in a graph, as under a distribution strategy, and what ``begin`` begins in Python."""

    def __init__(self, inner: tf.data.Dataset, begin: Callable[[], Iterator[Any]]) -> None:
        """Wrap ``inner``."""
        self._inner = inner
        self._begin = begin
        super().__init__(inner._variant_tensor)  # noqa: SLF001 - no public way to wrap one

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._inner]

    @property
    def element_spec(self) -> Any:
        """The form of one batch."""
        return self._inner.element_spec

    def __iter__(self) -> Iterator[Any]:
        return self._begin()
