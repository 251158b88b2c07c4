"""The ways out of a loader, into training: what each framework takes, made by its adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    import jax
    import tensorflow as tf
    import torch
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    from ringfeed.adapters.epochs import Epochs
    from ringfeed.loader import Loader


class Outlets:
    """A loader as the frameworks take it; each is imported when it is asked for."""

    def to_keras(self, *, class_weight: Mapping[int, float] | None = None) -> DataAdapter:
        """Return what ``fit``, ``evaluate`` and ``predict`` of a Keras 3 model take as ``x``, over the slots."""
        from ringfeed.adapters.keras import to_keras  # noqa: PLC0415 - imports Keras

        return to_keras(cast("Loader", self), class_weight=class_weight)

    def to_tf_dataset(self) -> tf.data.Dataset:
        """Return a ``tf.data.Dataset`` whose every iteration is one epoch.

        TensorFlow copies to a GPU itself: ahead of the step with, as the last step of a pipeline,
        ``.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))``, and from the slot itself with ``pin=True``.
        """
        from ringfeed.adapters.tensorflow import to_tf_dataset  # noqa: PLC0415 - imports TensorFlow

        return to_tf_dataset(cast("Loader", self))

    def to_torch(self, device: torch.device | str | None = None) -> Epochs:
        """Return epochs whose batches are torch tensors over the slots.

        ``device="cuda"``: on that GPU, each copied ahead of the step that wants it, on a stream of its own; the slot
        comes back when the copy has passed. With ``pin=True`` the GPU copies beside what it computes.
        """
        from ringfeed.adapters.torch import to_torch  # noqa: PLC0415 - imports torch

        return to_torch(cast("Loader", self), device)

    def to_jax(self, device: jax.Device | str | None = None) -> Epochs:
        """Return epochs whose batches are jax arrays over the slots.

        ``device``, a ``jax.Device`` or the name of a platform: on that device, each copied by JAX ahead of the step
        that wants it; the slot comes back when the copy is there. With ``pin=True`` the slots are registered by JAX's
        own client where it can (``dma_map``), since it puts what others registered through a buffer of its own.
        """
        from ringfeed.adapters.jax import to_jax  # noqa: PLC0415 - imports JAX

        return to_jax(cast("Loader", self), device)
