"""The CUDA driver, as far as the registration of memory goes; no framework is imported here.

A GPU copies registered memory by itself, at the speed of the bus and beside the program. Memory that is not
registered goes through a buffer of the driver's, by the hand of the calling thread. Registration belongs to a process:
only the consumer registers. The driver is asked by ctypes, so that nothing of CUDA is needed to build or to install;
its calls are described in https://docs.nvidia.com/cuda/cuda-driver-api/.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ringfeed.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACES = ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
"""Where the driver is, the first as the dynamic linker finds it. It comes with the kernel module, not with CUDA."""

PORTABLE = 1  # registered for all contexts, whichever GPU a framework copies to
OUT_OF_MEMORY, DEINITIALIZED, INVALID_CONTEXT = 2, 4, 201
CONTEXT_IS_DESTROYED, ALREADY_REGISTERED, NOT_PERMITTED, NOT_SUPPORTED = 709, 712, 800, 801
GONE = (DEINITIALIZED, INVALID_CONTEXT, CONTEXT_IS_DESTROYED)
"""What the driver answers when all it knew is gone, registrations included: at exit, or after a reset of the GPU."""

_OUT_INT, _OUT_POINTER, _OUT_TEXT = map(ctypes.POINTER, (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p))
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
    OUT_OF_MEMORY: "use fewer or smaller slots, since memory that is registered cannot be paged out",
    NOT_PERMITTED: "allow this process to lock memory (ulimit -l, or the settings of its container)",
    NOT_SUPPORTED: "this GPU, or the machine around it, cannot register memory: leave pin out",
    ALREADY_REGISTERED: "other code registered these addresses and did not undo it before they were unmapped",
}


class Refusal(Exception):  # noqa: N818 - the driver's answer, turned into an error of ours by its caller
    """The driver answered no. ``code``: its error; ``remedy``: what the user may do about it, or nothing."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.remedy = _REMEDIES.get(code, "")


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
        return f"{(name.value or b'error %d' % code).decode()} ({(text.value or b'unknown').decode()})"


def open_library() -> Any:
    """Return the driver's library; PlanError where there is none."""
    reasons = []
    for place in PLACES:
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            reasons.append(str(error))
    raise PlanError(
        f"pin=True registers the slots with the CUDA driver, which is not on this machine (looked for "
        f"{' and '.join(PLACES)}: {'; '.join(reasons)}); install NVIDIA's driver, give a container its GPUs (as docker "
        "run --gpus all does), or leave pin out"
    )


def start_driver() -> Driver:
    """Return the driver, started; PlanError where there is none, where it does not start, or has no GPU."""
    library = open_library()
    try:
        return Driver(library)
    except Refusal as refusal:
        raise PlanError(
            f"pin=True registers the slots with the CUDA driver, which does not start: {refusal}; see that nvidia-smi "
            "shows a GPU and that CUDA_VISIBLE_DEVICES leaves one, or leave pin out"
        ) from None
