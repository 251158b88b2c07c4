"""A loader's batches as jax arrays over the slots themselves.

JAX runs some 30 steps behind the program, and reads a batch long after the program has dropped it.
The slot comes back when the runtime has let go, without Python: then the loader waits, up to its
``timeout_s``, and the run-ahead is bounded by the slots. Where the program itself refers to an
array in every slot but one, waiting is in vain, and the next batch is a private copy, with a
SlotsHeldWarning. The same after ten seconds in which JAX computed nothing and the slots stayed
held, for example by what other frameworks made of jax arrays through DLPack.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import filterfalse
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from ringfeed.errors import SpecError
from ringfeed.frameworks.base import BatchStream, Epochs, LoaderInfo
from ringfeed.frameworks.batch import Framework, Own, TensorBuilder
from ringfeed.frameworks.cast import (
    NUMBERS,
    Casts,
    CastTree,
    Chosen,
    apart,
    caster_of,
    casts_of,
    in_numpy,
)
from ringfeed.frameworks.device import DevicePrefetcher
from ringfeed.frameworks.dlpack import Exported, type_of
from ringfeed.frameworks.forms import STRINGS, refuse_forms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.spec.conversion import Cast
    from ringfeed.spec.spec import AnyArray, AnyDtype, Leaf


def to_jax(
    stream: BatchStream, device: jax.Device | str | None = None, cast: CastTree = None
) -> Epochs:
    """Epochs of the loader in jax arrays, in the structure of a sample.

    Nothing is copied but what goes to another device than the first CPU, and the leaves of 64 bits
    while JAX has these switched off (`jax_enable_x64`): they become what `jax.numpy.asarray` makes
    of them, an int32 of an int64, in memory of its own. An integer that does not fit is a
    SpecError; floats are rounded, but not to infinity. Raises ValueError for a device that JAX does
    not see, SpecError for a leaf of which JAX has no arrays.

    What is ``cast`` is a new array, made by a compiled function where the batch is; XLA may round
    its steps differently from NumPy in the last bits. JAX dispatches it and returns: the slot comes
    back when it is there, unless leaves that are not cast keep it. JAX's run-ahead is then no
    longer bounded by the slots. What JAX would narrow before is cast by NumPy, with the values of
    NumPy.

    A leaf with ``form="ragged"`` is a `RaggedArrays`: its values, of one shape in all batches, and
    the lengths. One with ``form="pad"`` is an array, with lengths or a mask a `Padded` or `Masked`
    of arrays: a jitted function is compiled for each length that comes, and ``pad_to=`` bounds how
    many do. SpecError for `Bytes` and `Text`, of which JAX has no arrays.
    """
    where = find_device(device)
    info = stream.info
    casts = casts_of(info.spec, cast, "to_jax", check_width)
    remedy = "leave it out of the sample, or take the batches of the loader itself, by iter(loader)"
    refuse_forms(info.spec.leaves, STRINGS, "JAX has no arrays", remedy)
    if where is not None:
        info = replace(info, copy=False)
    # What JAX makes of a leaf is asked ahead of each epoch: `jax_enable_x64` may be set in between.
    # A builder of the same width goes on, since it knows the slots that arrays of earlier epochs
    # hold.
    builder_of = cache(lambda _: _builder(info, casts))
    builder_of(jax.config.jax_enable_x64)  # raises now what it would raise then
    if where is None:
        return Epochs(stream, lambda: stream.epoch(builder_of(jax.config.jax_enable_x64)))
    there = JaxDevice(where)
    return Epochs(
        stream, lambda: DevicePrefetcher(stream, there, builder_of(jax.config.jax_enable_x64))
    )


class RaggedArrays(NamedTuple):
    """The samples of a ragged leaf, one after another; all batches have the same shape.

    values: as many as a slot has room for, which is the leaf's ``total``, or rows times the
        longest; 0 behind the last sample. lengths: of each sample, one for each row of the batch.

    ``jnp.repeat(jnp.arange(rows), lengths, total_repeat_length=len(values))`` says which sample
    each value is of.
    """

    values: jax.Array
    lengths: jax.Array


WIDE = "int64", "uint64", "float64", "complex128"
"""What JAX has otherwise without `jax_enable_x64`."""
IN_FLIGHT_S = 10.0  # an unseen step may take as long: one whose results are all dropped


def _builder(info: LoaderInfo, casts: Casts) -> TensorBuilder:
    own, on_device = conversions(info.spec.leaves, casts)
    framework = jax_framework()
    if any(leaf.dtype.name in WIDE for leaf in info.spec.leaves):
        framework = replace(
            framework, from_dlpack=partial(_taken_as_begun, framework, jax.config.jax_enable_x64)
        )
    return TensorBuilder(info, framework, cast=on_device, own=own)


def _taken_as_begun(
    framework: Framework,
    wide: bool,  # noqa: FBT001 - JAX's own
    capsule: object,
) -> Any:
    """Take memory; SpecError where JAX would take each half of a number for one."""
    if jax.config.jax_enable_x64 != wide:
        raise SpecError(
            "jax_enable_x64 was changed amid an epoch, and the leaves of 64 bits are not what "
            "they were; set it before the epoch begins"
        )
    assert framework.from_dlpack is not None
    return framework.from_dlpack(capsule)


def jax_framework(leaves_alone: frozenset[str] = frozenset()) -> Framework:
    """How JAX takes memory, on the first CPU."""
    # In so many words: JAX compiles each step once for arrays that are put somewhere, and once for
    # others.
    cpu = jax.devices("cpu")[0]
    return Framework(
        from_dlpack=lambda capsule: jax.dlpack.from_dlpack(Exported(capsule)),
        from_numpy=lambda array: jax.device_put(array, cpu),
        leaves_alone=leaves_alone,
        copied_by="a jax array is copied by jax.numpy.array(x)",
        has_memory=lambda array: not array.is_deleted(),  # by a donation
        in_flight_s=IN_FLIGHT_S,
        is_computing=is_computing,
        joins={"ragged": RaggedArrays},
        has_one_shape=True,
    )


def conversions(leaves: Sequence[Leaf], casts: Casts) -> tuple[Own, Chosen]:
    """What makes arrays of the leaves that NumPy casts or narrows, and what casts the others."""
    in_host, on_device = apart(casts, cast_in_host(leaves))
    return _narrowed(leaves) | in_numpy(in_host), jax_casts(on_device)


def _narrowed(leaves: Sequence[Leaf]) -> dict[int, Callable[[AnyArray], AnyArray]]:
    """What makes arrays of the leaves that JAX has in another dtype.

    SpecError for a leaf of which JAX has no arrays.
    """
    found: dict[int, Callable[[AnyArray], AnyArray]] = {}
    for number, leaf in enumerate(leaves):
        dtype = _dtype_in_jax(leaf)
        type_of(leaf)
        if dtype != leaf.dtype:
            found[number] = partial(_cut, dtype=dtype, leaf=leaf)
    return found


def _dtype_in_jax(leaf: Leaf) -> AnyDtype:
    """The dtype that JAX gives an array of this leaf."""
    try:
        dtype: AnyDtype = jax.numpy.asarray(np.empty(0, leaf.dtype)).dtype
    except TypeError:
        raise SpecError(
            f"{leaf.path} has dtype {leaf.dtype}, of which JAX has no arrays; convert it in "
            "__getitem__"
        ) from None
    return dtype


def _cut(array: AnyArray, dtype: AnyDtype, leaf: Leaf) -> AnyArray:
    """A copy in a dtype of half the bits; SpecError for a value that it cannot hold."""
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    lost = narrow != array if dtype.kind in "iu" else np.isinf(narrow) & ~np.isinf(array)
    if lost.any():
        row = int(np.argwhere(lost)[0][0])
        raise SpecError(
            f"{leaf.path} holds {array[lost][0]} in row {row} of a batch, expected what fits into "
            f"{dtype}, which JAX makes of {leaf.dtype}; set jax_enable_x64, or convert it in "
            "__getitem__"
        )
    return narrow


_is_deleted, _is_ready = methodcaller("is_deleted"), methodcaller("is_ready")


def is_computing() -> bool:
    """Whether JAX owes the program a result.

    Python takes no step between the two questions: to ask a deleted array whether it is ready may
    end the process (JAX 0.10).
    """
    try:
        return not all(map(_is_ready, filterfalse(_is_deleted, jax.live_arrays())))
    except (
        jax.errors.JaxRuntimeError
    ):  # another thread has just donated one: to what is computed now
        return True


# ---- casts, on the device of the arrays, compiled ----


def jax_casts(casts: Casts) -> Chosen:
    """What casts these leaves; JAX lets go of what it read when the new arrays are there."""
    return Chosen({number: _compiled(cast) for number, cast in casts.items()})


@cache
def _compiled(cast: Cast) -> Callable[[jax.Array], jax.Array]:
    """One function for all equal casts, so that it is compiled once."""
    dtype = jax.numpy.dtype(cast.dtype)
    caster = caster_of(
        cast,
        jax.numpy.transpose,
        lambda array: array.astype(dtype),
        lambda number: number.astype(dtype),
    )
    found: Callable[[jax.Array], jax.Array] = jax.jit(caster)
    return found


def cast_in_host(leaves: Sequence[Leaf]) -> frozenset[int]:
    """The numbers of the leaves that NumPy casts.

    JAX would narrow them first, or compile anew for every shape.
    """
    return frozenset(
        number
        for number, leaf in enumerate(leaves)
        if leaf.variable
        or (leaf.form is not None and leaf.form.is_padded)
        or (
            leaf.dtype.kind in NUMBERS
            and jax.dtypes.canonicalize_dtype(leaf.dtype.name) != leaf.dtype.name
        )
    )


def check_width(casts: Casts, leaves: Sequence[Leaf], method: str) -> None:
    """Refuse float64 where JAX has it switched off: it would give float32."""
    for number, cast in casts.items():
        if jax.dtypes.canonicalize_dtype(cast.dtype) != cast.dtype:
            raise SpecError(
                f"{method}(cast=...): {leaves[number].path} is cast to {cast.dtype!r}, expected a "
                "dtype that JAX has; set jax_enable_x64, or name 'float32'"
            )


# ---- copies to a GPU or another device ----


class JaxDevice:
    """One device, and its client.

    JAX has no streams to choose: it copies beside what it computes. Only memory
    that its own client has registered goes straight to the GPU.
    """

    def __init__(self, device: jax.Device) -> None:
        self._device = device
        self.registrar = None
        if device.platform == "gpu" and hasattr(device.client, "dma_map"):
            self.registrar = device.client.dma_map, device.client.dma_unmap
        self.is_computing = is_computing

    def copy(self, tensors: list[jax.Array]) -> tuple[list[jax.Array], JaxEvent]:
        """Begin to copy."""
        copies = jax.device_put(tensors, self._device)
        return copies, JaxEvent(copies)

    def hand_over(self, _copies: list[jax.Array], event: JaxEvent) -> None:
        """Wait for the copy, which was begun a step ago.

        An array that a step was given may be donated and gone.

        To ask a deleted array whether it is ready ends the process (JAX 0.10), and so no code does
        afterwards.
        """
        event.synchronize()


class JaxEvent:
    """The end of a copy: its arrays are there."""

    def __init__(self, arrays: list[jax.Array]) -> None:
        self._arrays = arrays

    def query(self) -> bool:
        """Whether it has passed; answers at once."""
        return all(array.is_ready() for array in self._arrays)

    def synchronize(self) -> None:
        """Return when it has passed."""
        jax.block_until_ready(self._arrays)
        self._arrays = []


def find_device(device: jax.Device | str | None) -> jax.Device | None:
    """The device, or the first one of a platform; None for the first CPU, which reads the slots.

    Raises ValueError where JAX does not see it.
    """
    try:
        here = jax.devices("cpu")[0]
        found = jax.devices(device)[0] if isinstance(device, str) else device
    except RuntimeError as error:
        raise ValueError(
            f"to_jax(device={str(device)!r}) takes the slots as arrays on the CPU, and JAX "
            f"answers: {error}; install the jax that is made for the device, name both platforms "
            "in JAX_PLATFORMS (as in 'cuda,cpu'), or leave device out"
        ) from None
    return None if found == here else found
