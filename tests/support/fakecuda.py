"""A CUDA driver without a GPU, called by the C ABI as the real one is, and strict about what it is told.

Its prototypes are those of cuda.h, written down apart from those in `ringfeed.frameworks.pinned`:
where the two differ, arguments arrive cut or shifted, and it refuses them.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import Counter
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED, NO_DEVICE = 1, 2, 3, 4, 100
INVALID_CONTEXT, ALREADY_REGISTERED, NOT_REGISTERED, NOT_PERMITTED = 201, 712, 713, 800
NAMES = {
    INVALID_VALUE: (b"CUDA_ERROR_INVALID_VALUE", b"invalid argument"),
    OUT_OF_MEMORY: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    NO_DEVICE: (b"CUDA_ERROR_NO_DEVICE", b"no CUDA-capable device is detected"),
    ALREADY_REGISTERED: (
        b"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        b"part or all of it is registered already",
    ),
    NOT_PERMITTED: (b"CUDA_ERROR_NOT_PERMITTED", b"operation not permitted"),
}
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuCtxGetDevice": (POINTER(c_int),),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}
CONTEXT = 0x7F00_0000_1000  # of GPU 0; the others follow. Too wide for an int
PORTABLE = 1


def is_mapped(address: int, size: int) -> bool:
    """Return whether a memfd is mapped over all of these addresses."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address and address + size <= last:
            return "/memfd:" in line
    return False


class FakeCuda:
    """What is registered, how often what was called, and what was done wrong.

    ``refuse`` maps (function, number of the call) to the error that this call answers. ``current``
    is the GPU whose context the program made current, or None.
    """

    def __init__(
        self,
        *,
        gpus: int = 1,
        current: int | None = None,
        refuse: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        self.gpus = gpus
        self.refuse = dict(refuse or {})
        self.registered: dict[int, int] = {}  # address: size
        self.retained: Counter[int] = Counter()  # GPU: how often
        self.contexts: list[int] = [] if current is None else [CONTEXT + current]
        self._before = list(self.contexts)
        self.calls: Counter[str] = Counter()
        self.history: list[tuple[str, int]] = []  # (register or unregister, address)
        self.arguments: tuple[int, ...] = ()  # of the last registration that was asked for
        self.faults: list[str] = []
        self.gone = False
        self.before_unregister: Callable[[], None] = lambda: None
        for name, arguments in PROTOTYPES.items():
            setattr(self, name, ctypes.CFUNCTYPE(c_int, *arguments)(self._function(name)))

    def _function(self, name: str) -> Callable[..., int]:
        body = getattr(self, f"_{name}")
        answers_errors = name.startswith("cuGetError")

        def call(*arguments: Any) -> int:
            if answers_errors:
                return int(body(*arguments))
            self.calls[name] += 1
            if self.gone:
                return DEINITIALIZED
            refused = self.refuse.get((name, self.calls[name]))
            if refused is not None:
                return refused
            if name != "cuInit" and not self.calls["cuInit"]:
                return NOT_INITIALIZED
            return int(body(*arguments))

        return call

    def _cuInit(self, flags: int) -> int:  # noqa: N802
        return INVALID_VALUE if flags else 0

    def _cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count[0] = self.gpus
        return 0

    def _cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device[0] = number
        return 0 if number < self.gpus else INVALID_VALUE

    def _cuCtxGetDevice(self, device: Any) -> int:  # noqa: N802
        if not self.contexts:
            return INVALID_CONTEXT
        device[0] = self.contexts[-1] - CONTEXT
        return 0

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:  # noqa: N802
        self.retained[device] += 1
        context[0] = CONTEXT + device
        return 0

    def _cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:  # noqa: N802
        self.retained[device] -= 1
        if self.registered:
            self.faults.append("a context was released before what is registered in it")
        return 0

    def _cuCtxPushCurrent_v2(self, context: int) -> int:  # noqa: N802
        if self.retained[context - CONTEXT] < 1:
            return INVALID_CONTEXT
        self.contexts.append(context)
        return 0

    def _cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        context[0] = self.contexts.pop()
        return 0

    def _cuMemHostRegister_v2(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.arguments = (address, size, flags)
        if not self.contexts:
            return INVALID_CONTEXT
        if flags != PORTABLE or address % mmap.PAGESIZE or not size or size % mmap.PAGESIZE:
            return INVALID_VALUE
        if not is_mapped(address, size):
            return INVALID_VALUE
        if any(
            address < other + length and other < address + size
            for other, length in self.registered.items()
        ):
            return ALREADY_REGISTERED
        self.registered[address] = size
        self.history.append(("register", address))
        return 0

    def _cuMemHostUnregister(self, address: int) -> int:  # noqa: N802
        if address not in self.registered:
            self.faults.append(f"{address:#x} was unregistered and is not registered")
            return NOT_REGISTERED
        if not is_mapped(address, self.registered[address]):
            self.faults.append(f"{address:#x} was unmapped before it was unregistered")
        self.before_unregister()
        del self.registered[address]
        self.history.append(("unregister", address))
        return 0

    def _cuGetErrorName(self, code: int, text: Any) -> int:  # noqa: N802
        if code not in NAMES:
            return INVALID_VALUE
        text[0] = NAMES[code][0]
        return 0

    def _cuGetErrorString(self, code: int, text: Any) -> int:  # noqa: N802
        if code not in NAMES:
            return INVALID_VALUE
        text[0] = NAMES[code][1]
        return 0

    def check_paired(self, registrations: int) -> None:
        """Assert that so many slots were registered, each once, and unregistered once, and that nothing is kept."""
        assert self.faults == []
        done = Counter(self.history)
        addresses = [address for what, address in done if what == "register"]
        assert len(self.history) == 2 * registrations
        assert all(
            done["register", address] == done["unregister", address] for address in addresses
        )
        assert self.registered == {}
        assert not +self.retained
        assert self.contexts == self._before
