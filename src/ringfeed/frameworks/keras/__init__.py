"""`Loader.to_keras()`: fit, evaluate and predict on TensorFlow, JAX and torch.

    LoaderAdapter ── one copy for each call of Keras ──▶ Call ◀── KerasEpoch, one for each epoch

The modules below need a Keras that takes data adapters, so they are imported on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from ringfeed.frameworks.base import BatchStream
    from ringfeed.frameworks.cast import CastTree
    from ringfeed.frameworks.keras.call import ClassWeight

TAKES_ADAPTERS = (3, 7)
"""The first Keras that takes a data adapter as it is."""


def to_keras(
    stream: BatchStream, *, class_weight: ClassWeight | None = None, cast: CastTree = None
) -> Any:
    """What ``model.fit``, ``evaluate``, ``predict`` take for ``x``, on any Keras 3 backend.

    Batches are ``x``, ``(x, y)`` or ``(x, y, sample_weight)``, each an array or a structure of
    arrays; lists become tuples. Every epoch of Keras is an epoch of the loader, begun with its
    first batch; where ``steps_per_epoch`` is below the loader's length, an epoch of the loader goes
    on over several of Keras', as with a tf.data.Dataset. A ``fit`` with ``initial_epoch=``, or that
    Keras' `BackupAndRestore` restores, begins with the loader's epoch of that number (under a
    distribution strategy, whose threads ask for batches, call ``set_epoch`` of the loader). After
    ``load_state_dict`` or ``skip`` of the loader Keras has the rest of that epoch once, by the
    numbers that its steps have in a whole one, and whole epochs then;
    `ringfeed.keras.BackupAndRestore` restores all of a training.

    The step reads the memory that the workers filled: TensorFlow, JAX on the CPU and torch get
    tensors over the slot, which comes back when the framework lets go of them. Where it holds all
    slots but one, as `predict` does with ``steps_per_execution`` above the slots, the next batch is
    a private copy; ``copied`` counts these. `fit` has none from three slots on. Copied as well:
    leaves whose dtype the framework does not take from others (64 bits in JAX unless enabled,
    unsigned ones above 8 bits in torch), every batch for a distribution strategy, or for JAX on
    other devices than the CPU.

    A leaf with ``form="pad"`` is a tensor as long as its batch, with lengths or a mask a tuple of
    two: two inputs of a model. JAX compiles the step for each length that comes, TensorFlow and
    torch do not; ``pad_to=`` bounds how many do. A ragged leaf is a `tf.RaggedTensor`, and `Bytes`
    and `Text` are tensors of `tf.string`, on TensorFlow alone: on other backends Keras has none of
    them, and they are refused with a SpecError.

    ``class_weight``, here or in ``fit``, gives each row the weight of its class (1 where the class
    is not in the mapping), as Keras does for arrays; one-hot targets count as the class with the
    largest value.

    The loader's own ``shuffle`` and ``batch_size`` decide: ``fit(shuffle=True)``, Keras' default,
    changes nothing, and over a loader that keeps the dataset's order a warning says so. What cannot
    be honoured is refused with a ValueError: ``y`` and ``sample_weight`` beside the adapter,
    another ``batch_size``, ``shuffle=False`` over a loader that shuffles.

    ``cast`` makes floating point of uint8 after the hand-over: slots of uint8 are a quarter of
    slots of float32. Keras' backend does it before the step and on its device, reading each batch
    once and writing it once; a GPU is sent the uint8. What is cast does not hold its slot.
    TensorFlow casts by an eager op, which runs where TensorFlow places it (on a GPU if there is
    one), or by a function compiled by XLA where the cast has steps; JAX by one compiled function.
    These may round the last bits of steps differently from NumPy and from each other. For a
    distribution strategy, for `keras.distribution` the CPU does it. The other way is a layer:
    without ``cast`` the model is given the uint8, and `keras.layers.Rescaling(1 / 255)` at its
    beginning casts and scales within the compiled step.

    Raises ImportError before Keras 3.7, which takes no adapters.
    """
    check_takes_adapters("to_keras()")
    from ringfeed.frameworks.keras.adapter import LoaderAdapter  # noqa: PLC0415 - needs Keras 3.7

    return LoaderAdapter(stream, class_weight, cast)


def check_takes_adapters(what: str) -> None:
    """Raise ImportError for a Keras that takes no data adapters."""
    if tuple(map(int, keras.__version__.split(".")[:2])) < TAKES_ADAPTERS:
        least = ".".join(map(str, TAKES_ADAPTERS))
        raise ImportError(
            f"{what} needs Keras {least} or later, which takes data adapters, and this is "
            f"{keras.__version__}; update it: pip install -U keras"
        )
