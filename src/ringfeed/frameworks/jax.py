"""A loader's batches as jax arrays over the slots themselves.

JAX runs some 30 steps behind the program, and reads a batch long after the program has dropped it. The slot comes back
when the runtime has let go, without Python: then the loader waits, up to its ``timeout_s``, and the run-ahead is
bounded by the slots. Where the program itself refers to an array in every slot but one, waiting is in vain, and the
next batch is a private copy, with a SlotsHeldWarning. The same after ten seconds in which JAX computed nothing
and the slots stayed held, for example by what other frameworks made of jax arrays through DLPack.
"""

from __future__ import annotations

import weakref
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ringfeed.errors import SpecError
from ringfeed.frameworks.cast import NUMBERS, TO_CHW, Chosen, apart, casts_of, in_numpy, steps_of
from ringfeed.frameworks.copies import copy_aligned
from ringfeed.frameworks.cuda import Refusal
from ringfeed.frameworks.epochs import Epochs
from ringfeed.frameworks.prefetch import DeviceEpochs
from ringfeed.spec._fields import Fields
from ringfeed.spec.builder import BatchBuilder
from ringfeed.spec.dlpack import Exported, Exports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.frameworks.base import BatchStream, LoaderInfo
    from ringfeed.frameworks.cast import Casts, CastTree
    from ringfeed.ring._ring import Lease
    from ringfeed.spec.conversion import Cast
    from ringfeed.spec.spec import AnyArray, AnyDtype, Leaf


def to_jax(stream: BatchStream, device: jax.Device | str | None = None, cast: CastTree = None) -> Epochs:
    """Epochs of the loader in jax arrays, in the structure of a sample.

    Nothing is copied but what goes to another device than the first CPU, and the leaves of 64 bits while JAX has these
    switched off (`jax_enable_x64`): they become what `jax.numpy.asarray` makes of them, an int32 of an int64, in memory
    of its own. An integer that does not fit is a SpecError; floats are rounded, but not to infinity. Raises ValueError
    for a device that JAX does not see, SpecError for a leaf of which JAX has no arrays.

    What is ``cast`` is a new array, made by one compiled function where the batch is; XLA may round its steps
    differently from NumPy in the last bits. JAX dispatches it and returns: the slot comes back when it is there, unless
    leaves that are not cast keep it. JAX's run-ahead is then no longer bounded by the slots. What JAX would narrow
    before is cast by NumPy, with the values of NumPy.
    """
    where = find_device(device)
    info = stream.info
    casts = casts_of(info.spec, cast, "to_jax", check_width)
    builder = _Arrays(info, casts)  # what cannot be handed out is refused now
    if where is not None:
        return DeviceEpochs(stream, JaxDevice(where), builder.leaves, builder.finish)
    return Epochs(stream, builder.anew)


IN_FLIGHT_S = 10.0  # an unseen step may take as long: one whose results are all dropped


class _Arrays(BatchBuilder):
    """Makes the batches of one epoch, and remembers by weak references what the program has of each slot."""

    copied_by = "a jax array is copied by jax.numpy.array(x)"

    def __init__(self, info: LoaderInfo, casts: Casts | None = None) -> None:
        casts = casts or {}
        spec, offsets = info.spec, info.offsets
        self._exports = Exports(spec.leaves, offsets)
        self._fields = Fields(spec, offsets)
        self._leaves = spec.leaves
        self._unflatten = spec.unflatten
        found = enumerate(map(_dtype_in_jax, spec.leaves))
        self._narrow = {number: dtype for number, dtype in found if dtype != spec.leaves[number].dtype}
        in_host, on_device = apart(casts, cast_in_host(spec.leaves))
        self._cast_in_host = in_numpy(in_host)
        self.finish = jax_casts(on_device)
        """Casts leaves, in their list."""
        self._copied = {*self._narrow, *in_host}
        self._private = {*self._copied, *on_device}  # leaves with memory of their own
        self._copies = info.copy
        self._handed_out: dict[int, list[weakref.ref[jax.Array]]] = {}  # by slot

    def __call__(self, lease: Lease, rows: int) -> Any:
        arrays = self.finish(self.leaves(lease, rows))
        aliases = [array for number, array in enumerate(arrays) if number not in self._private]
        self._handed_out[lease.slot] = [] if self._copies else [weakref.ref(array) for array in aliases]
        return self._unflatten(arrays)

    def private(self, lease: Lease, rows: int) -> Any:
        self._handed_out.pop(lease.slot, None)
        views, cpu = self._fields.views(lease, rows), jax.devices("cpu")[0]
        arrays = [
            self._narrowed(number, view) if number in self._copied else jax.device_put(copy_aligned(view), cpu)
            for number, view in enumerate(views)
        ]
        return self._unflatten(self.finish(arrays))

    def anew(self) -> _Arrays:
        """The same for another epoch, with what JAX has compiled."""
        made = copy(self)
        made._handed_out = {}  # noqa: SLF001 - one of its kind
        return made

    def leaves(self, lease: Lease, rows: int) -> list[jax.Array]:
        """The arrays over the slot, in the order of the spec; those that are narrowed have memory of their own."""
        capsules = self._exports.capsules(lease, rows)
        views = self._fields.views(lease, rows) if self._copied else []
        return [
            self._narrowed(number, views[number]) if number in self._copied else self._over_slot(number, capsule)
            for number, capsule in enumerate(capsules)
        ]

    def lets_go_later(self, waited_s: float, held: int) -> bool:
        """Whether the program has no jax array of some held slot any more, so that JAX may still read it in a step."""
        in_hand = [slot for slot, arrays in self._handed_out.items() if any(map(_is_alive, arrays))]
        return len(in_hand) < held and (waited_s < IN_FLIGHT_S or _is_computing())

    def _over_slot(self, number: int, capsule: object) -> jax.Array:
        array = jax.dlpack.from_dlpack(Exported(capsule))
        return jax.numpy.array(array) if self._copies and number not in self.finish.numbers else array

    def _narrowed(self, number: int, array: AnyArray) -> jax.Array:
        cast = self._cast_in_host.get(number)
        narrow = cast(array) if cast else _cut(array, self._narrow[number], self._leaves[number])
        return jax.device_put(narrow, jax.devices("cpu")[0])


def _dtype_in_jax(leaf: Leaf) -> AnyDtype:
    """The dtype that JAX gives an array of this leaf."""
    try:
        dtype: AnyDtype = jax.numpy.asarray(np.empty(0, leaf.dtype)).dtype
    except TypeError:
        message = f"{leaf.path} has dtype {leaf.dtype}, of which JAX has no arrays; convert it in __getitem__"
        raise SpecError(message) from None
    return dtype


def _cut(array: AnyArray, dtype: AnyDtype, leaf: Leaf) -> AnyArray:
    """A copy in a dtype of half the bits; SpecError for a value that it cannot hold."""
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    lost = narrow != array if dtype.kind in "iu" else np.isinf(narrow) & ~np.isinf(array)
    if lost.any():
        row = int(np.argwhere(lost)[0][0])
        raise SpecError(
            f"{leaf.path} holds {array[lost][0]} in row {row} of a batch, expected what fits into {dtype}, which JAX "
            f"makes of {leaf.dtype}; set jax_enable_x64, or convert it in __getitem__"
        )
    return narrow


def _is_computing() -> bool:
    """Whether JAX owes the program a result."""
    return any(not array.is_deleted() and not array.is_ready() for array in jax.live_arrays())


def _is_alive(reference: weakref.ref[jax.Array]) -> bool:
    array = reference()
    return array is not None and not array.is_deleted()  # a donated array is deleted, and has no memory


# ---- casts, on the device of the arrays, in one compiled function ----


def jax_casts(casts: Casts) -> Chosen:
    """What casts these leaves of each batch; JAX lets go of what it read when the new arrays are there."""
    return Chosen(list(casts), _compiled(tuple(casts.values())))


@cache
def _compiled(casts: tuple[Cast, ...]) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """One function for all equal casts, so that it is compiled once."""

    def ringfeed_cast(arrays: list[jax.Array]) -> list[jax.Array]:
        return [_cast(cast, array) for cast, array in zip(casts, arrays, strict=True)]

    found: Callable[[list[jax.Array]], list[jax.Array]] = jax.jit(ringfeed_cast)
    return found


def _cast(cast: Cast, array: jax.Array) -> jax.Array:
    dtype = jax.numpy.dtype(cast.dtype)
    found = (array.transpose(TO_CHW) if cast.layout else array).astype(dtype)
    for operate, number in steps_of(cast):
        found = operate(found, number.astype(dtype))
    return found


def cast_in_host(leaves: Sequence[Leaf]) -> frozenset[int]:
    """The numbers of the leaves that NumPy casts: JAX would narrow them before, or compile anew for every shape."""
    return frozenset(
        number
        for number, leaf in enumerate(leaves)
        if leaf.variable
        or (leaf.dtype.kind in NUMBERS and jax.dtypes.canonicalize_dtype(leaf.dtype.name) != leaf.dtype.name)
    )


def check_width(casts: Casts, leaves: Sequence[Leaf], method: str) -> None:
    """Refuse float64 where JAX has it switched off: it would give float32."""
    for number, cast in casts.items():
        if jax.dtypes.canonicalize_dtype(cast.dtype) != cast.dtype:
            raise SpecError(
                f"{method}(cast=...): {leaves[number].path} is cast to {cast.dtype!r}, expected a dtype that JAX has; "
                "set jax_enable_x64, or name 'float32'"
            )


# ---- copies to a GPU or another device ----


class JaxDevice:
    """One device, and its client.

    JAX has no streams to choose: it copies beside what it computes. Memory that the CUDA driver has registered it
    copies by way of a buffer of its own all the same; only what its client has registered goes straight to the GPU.
    """

    def __init__(self, device: jax.Device) -> None:
        self._device = device
        client = device.client
        on_gpu = device.platform == "gpu" and hasattr(client, "dma_map") and hasattr(client, "dma_unmap")
        self.registrar = JaxRegistrar(client) if on_gpu else None

    def copy(self, tensors: list[jax.Array]) -> tuple[list[jax.Array], JaxEvent]:
        """Begin to copy."""
        copies = jax.device_put(tensors, self._device)
        return copies, JaxEvent(copies)

    def hand_over(self, _copies: list[jax.Array], event: JaxEvent) -> None:
        """Wait for the copy, which was begun a step ago: an array that a step was given may be donated and gone.

        To ask a deleted array whether it is ready ends the process (JAX 0.10), and so no code does afterwards.
        """
        event.wait()


class JaxEvent:
    """The end of a copy: its arrays are there."""

    def __init__(self, arrays: list[jax.Array]) -> None:
        self._arrays = arrays

    def passed(self) -> bool:
        """Answer at once."""
        return all(array.is_ready() for array in self._arrays)

    def wait(self) -> None:
        """Return when it has passed."""
        jax.block_until_ready(self._arrays)
        self._arrays = []


class JaxRegistrar:
    """Registers slots with the client of a GPU."""

    name = "JAX"

    def __init__(self, client: Any) -> None:
        self._client = client

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def register(self, address: int, size: int) -> None:
        """Register memory; Refusal where it cannot be."""
        self._asked("dma_map", address, size)

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._asked("dma_unmap", address)

    def _asked(self, name: str, *arguments: int) -> None:
        try:
            getattr(self._client, name)(*arguments)
        except jax.errors.JaxRuntimeError as error:
            raise Refusal(f"{name}: {error}") from error


def find_device(device: jax.Device | str | None) -> jax.Device | None:
    """The device, or the first of the platform of this name; None for the first CPU, which reads the slots themselves.

    Raises ValueError where JAX does not see it.
    """
    try:
        here = jax.devices("cpu")[0]
        found = jax.devices(device)[0] if isinstance(device, str) else device
    except RuntimeError as error:
        raise ValueError(
            f"to_jax(device={str(device)!r}) takes the slots as arrays on the CPU, and JAX answers: {error}; install "
            "the jax that is made for the device, name both platforms in JAX_PLATFORMS (as in 'cuda,cpu'), or leave "
            "device out"
        ) from None
    return None if found == here else found
