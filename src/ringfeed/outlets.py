"""The ways out of a loader, into training: what each framework takes, made by its adapter."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import jax
    import tensorflow as tf
    import torch
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    from ringfeed.frameworks.cast import CastTree
    from ringfeed.frameworks.epochs import Epochs
    from ringfeed.loader import Loader


class Outlets:
    """A loader as the frameworks take it; each is imported when it is asked for."""

    def to_keras(self, *, class_weight: Mapping[int, float] | None = None, cast: CastTree = None) -> DataAdapter:
        """Return what ``fit``, ``evaluate`` and ``predict`` of a Keras 3 model take as ``x``, over the slots.

        ``cast``: leaves that become floating point after the hand-over. The slots hold them as the uint8 that they are,
        in a quarter of the memory of float32. It is

        - a dtype, such as ``"float32"``, or a `ringfeed.Cast`, for every uint8 leaf; or
        - a sample's structure of these and of None, for leaves of any numbers, as in ``("float32", None)`` or
          ``{"image": Cast(scale=1 / 255), "label": "float32"}``. None, or no key: the leaf stays as it is.

        Raises SpecError for what cannot be cast so.
        """
        from ringfeed.frameworks.keras.door import to_keras  # noqa: PLC0415 - imports Keras

        return to_keras(typing.cast("Loader", self), class_weight=class_weight, cast=cast)

    def to_tf_dataset(self, *, cast: CastTree = None) -> tf.data.Dataset:
        """Return a ``tf.data.Dataset`` whose every iteration is one epoch.

        ``cast``: as for `to_keras`; here it is done on the CPU.

        TensorFlow copies to a GPU itself: ahead of the step with, as the last step of a pipeline,
        ``.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))``, and from the slot itself with ``pin=True``.
        """
        from ringfeed.frameworks.tensorflow.dataset import to_tf_dataset  # noqa: PLC0415 - imports TensorFlow

        return to_tf_dataset(typing.cast("Loader", self), cast)

    def to_torch(self, device: torch.device | str | None = None, *, cast: CastTree = None) -> Epochs:
        """Return epochs whose batches are torch tensors over the slots.

        ``device="cuda"``: on that GPU, each copied ahead of the step that wants it, on a stream of its own; the slot
        comes back when the copy has passed. With ``pin=True`` the GPU copies beside what it computes. ``cast``: as for
        `to_keras`; done on the device.
        """
        from ringfeed.frameworks.torch import to_torch  # noqa: PLC0415 - imports torch

        return to_torch(typing.cast("Loader", self), device, cast)

    def to_jax(self, device: jax.Device | str | None = None, *, cast: CastTree = None) -> Epochs:
        """Return epochs whose batches are jax arrays over the slots.

        ``device``, a ``jax.Device`` or the name of a platform: on that device, each copied by JAX ahead of the step
        that wants it; the slot comes back when the copy is there. With ``pin=True`` the slots are registered by JAX's
        own client where it can (``dma_map``), since it puts what others registered through a buffer of its own.
        ``cast``: as for `to_keras`; done on the device.
        """
        from ringfeed.frameworks.jax import to_jax  # noqa: PLC0415 - imports JAX

        return to_jax(typing.cast("Loader", self), device, cast)
