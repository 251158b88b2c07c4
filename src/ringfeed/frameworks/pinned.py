"""The slots of one segment, registered for copies to a device: each once, and undone once, whatever happens.

A GPU copies registered memory by itself, at the speed of the bus and beside the program. Memory
that is not registered goes through a buffer of the driver's, by the hand of the calling thread.
Registration belongs to a process: only the consumer registers. The CUDA driver is asked by ctypes,
so that nothing of CUDA is needed to build or to install; its calls are described in
https://docs.nvidia.com/cuda/cuda-driver-api/.

A copy that reads registered slots is in the loader's `PendingCopies`, which are waited for before
registration is undone. It is undone when the ring ends, not when the last view dies: a view stays
valid, as memory that is not registered.
"""

from __future__ import annotations

import ctypes
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ringfeed._process import Forks
from ringfeed._units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.ring._ring import Ring


PLACES = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
"""Where the driver is, the first as the dynamic linker finds it. It comes with the kernel module, not with CUDA."""

PORTABLE = 1  # registered for all contexts, whichever GPU a framework copies to
OUT_OF_MEMORY, DEINITIALIZED, INVALID_CONTEXT = 2, 4, 201
CONTEXT_IS_DESTROYED, ALREADY_REGISTERED, NOT_PERMITTED, NOT_SUPPORTED = 709, 712, 800, 801
GONE = (DEINITIALIZED, INVALID_CONTEXT, CONTEXT_IS_DESTROYED)
"""What the driver answers when all it knew is gone, registrations included: at exit, or after a reset of the GPU."""

_OUT_INT, _OUT_POINTER, _OUT_TEXT = map(
    ctypes.POINTER, (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
)
_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuDeviceGetCount": [_OUT_INT],
    "cuDeviceGet": [_OUT_INT, ctypes.c_int],
    "cuCtxGetDevice": [_OUT_INT],
    "cuDevicePrimaryCtxRetain": [_OUT_POINTER, ctypes.c_int],
    "cuDevicePrimaryCtxRelease_v2": [ctypes.c_int],
    "cuCtxPushCurrent_v2": [ctypes.c_void_p],
    "cuCtxPopCurrent_v2": [_OUT_POINTER],
    "cuMemHostRegister_v2": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint],
    "cuMemHostUnregister": [ctypes.c_void_p],
    "cuGetErrorName": [ctypes.c_int, _OUT_TEXT],
    "cuGetErrorString": [ctypes.c_int, _OUT_TEXT],
}
_REMEDIES = {
    OUT_OF_MEMORY: (
        "use fewer or smaller slots, since memory that is registered cannot be paged out"
    ),
    NOT_PERMITTED: (
        "allow this process to lock memory (ulimit -l, or the settings of its container)"
    ),
    NOT_SUPPORTED: "this GPU, or the machine around it, cannot register memory",
    ALREADY_REGISTERED: (
        "other code registered these addresses and did not undo it before they were unmapped"
    ),
}


class Refusal(Exception):  # noqa: N818 - the driver's answer, turned into a warning by `DeviceSlots`
    """The driver answered no. ``code``: its error, whose remedy the text ends with."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(f"{text}; {_REMEDIES[code]}" if code in _REMEDIES else text)
        self.code = code


class Registrar(Protocol):
    """Registers memory with a device's driver. What it refuses, it refuses with `Refusal`."""

    name: str

    def open(self) -> None:
        """Get ready to register."""

    def close(self) -> None:
        """Be done; all that was registered no longer is."""

    def register(self, address: int, size: int) -> None:
        """Register memory."""

    def unregister(self, address: int) -> None:
        """Undo `register`."""


class Pins:
    """Every slot, registered. Belongs to the process that made it: a forked child of it has nothing to undo."""

    def __init__(self, registrar: Registrar, ring: Ring, slot_size: int) -> None:
        """Register each slot, or raise `Refusal` and leave none registered."""
        self._ring = ring  # keeps the slots mapped for as long as they are registered
        self._slot_size = slot_size
        self._forks = Forks.count
        self._open = False
        self._registered: list[int] = []  # slots
        self._registrar = registrar
        try:
            registrar.open()
            self._open = True
            for slot in range(self._ring.slots):
                registrar.register(self._address(slot), self._slot_size)
                self._registered.append(slot)
        except BaseException as error:
            where = (
                f"slot {len(self._registered)} of {self._ring.slots} "
                f"({show_bytes(self._slot_size)} each)"
            )
            self.release()
            if isinstance(error, Refusal):
                raise Refusal(f"{registrar.name} does not register {where}: {error}") from None
            raise

    def release(self) -> None:
        """Undo what is registered, which is nothing the second time. No copy is in flight."""
        if self._forks != Forks.count:
            return
        refused = []
        while self._registered:
            slot = self._registered.pop()
            what = f"slot {slot} ({show_bytes(self._slot_size)})"
            refused += self._undone(what, self._registrar.unregister, self._address(slot))
        if self._open:
            self._open = False
            refused += self._undone("the context of the slots", self._registrar.close)
        for message in refused:
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _address(self, slot: int) -> int:
        return self._ring.address + slot * self._slot_size

    def _undone(self, what: str, undo: Callable[..., None], *arguments: int) -> list[str]:
        """Undo something; a failure is a warning, since the caller that ends a loader cannot do anything about it."""
        try:
            undo(*arguments)
        except Refusal as refusal:
            if refusal.code not in GONE:
                return [
                    (
                        f"{self._registrar.name} does not give {what} back before this process ends: "
                        f"{refusal}"
                    )
                ]
        return []


# ---- the CUDA driver, as far as the registration of memory goes ----


class Driver:
    """The driver of this machine, started. Between `open` and `close` it can register memory."""

    name = "the CUDA driver"

    def __init__(self, library: Any) -> None:
        """Start the driver in ``library``; Refusal where it cannot start or has no GPU."""
        self._library = library
        self._device = ctypes.c_int()
        self._primary = ctypes.c_void_p()
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name, None)
            if function is None:
                raise Refusal(f"it has no {name}: it is too old")
            function.argtypes, function.restype = arguments, ctypes.c_int
        self._call("cuInit", 0)
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if not count.value:
            raise Refusal("it sees no GPU")

    def open(self) -> None:
        """Keep the context that frameworks use: of the GPU that this thread works with, or else of the first."""
        if self._library.cuCtxGetDevice(ctypes.byref(self._device)):
            self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._primary), self._device)

    def close(self) -> None:
        """Let go of the context."""
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def register(self, address: int, size: int) -> None:
        """Register memory; Refusal where it cannot be."""
        with self._context():
            self._call("cuMemHostRegister_v2", address, size, PORTABLE)

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        with self._context():
            self._call("cuMemHostUnregister", address)

    @contextmanager
    def _context(self) -> Iterator[None]:
        """Let the calls of this thread, whichever it is, go to the context that is kept."""
        self._call("cuCtxPushCurrent_v2", self._primary)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise Refusal(f"{name}: {self._describe(code)}", code)

    def _describe(self, code: int) -> str:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(name))
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return (
            f"{(name.value or b'error %d' % code).decode()} ({(text.value or b'unknown').decode()})"
        )


def open_library() -> Any:
    """Return the driver's library; Refusal where there is none."""
    reasons = []
    for place in PLACES:
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            reasons.append(str(error))
    raise Refusal(
        f"the CUDA driver is not on this machine (looked for {' and '.join(PLACES)}: "
        f"{'; '.join(reasons)}); install NVIDIA's driver, or give a container its GPUs (as docker "
        "run --gpus all does)"
    )


def start_driver() -> Driver:
    """Return the driver, started; Refusal where there is none, where it does not start, or has no GPU."""
    library = open_library()
    try:
        return Driver(library)
    except Refusal as refusal:
        raise Refusal(
            f"the CUDA driver does not start: {refusal}; see that nvidia-smi shows a GPU and that "
            "CUDA_VISIBLE_DEVICES leaves one"
        ) from None
