"""A CUDA runtime without a GPU, as `torch.cuda.cudart()` returns it, and strict about what it is told."""

from __future__ import annotations

import mmap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, ALREADY_REGISTERED, NOT_REGISTERED = 0, 1, 2, 712, 713
PORTABLE = 1


def is_mapped(address: int, size: int) -> bool:
    """Return whether a memfd is mapped over all of these addresses."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address and address + size <= last:
            return "/memfd:" in line
    return False


class FakeCuda:
    """What is registered, and what was done wrong.

    ``refuse`` maps (function, number of the call) to the error that this call answers.
    """

    def __init__(self, refuse: Mapping[tuple[str, int], int] | None = None) -> None:
        self.refuse = dict(refuse or {})
        self.registered: dict[int, int] = {}  # address: size
        self.calls: Counter[str] = Counter()
        self.history: list[tuple[str, int]] = []  # (register or unregister, address)
        self.faults: list[str] = []
        self.before_unregister: Callable[[], None] = lambda: None

    def _refused(self, name: str) -> int:
        self.calls[name] += 1
        return self.refuse.get((name, self.calls[name]), SUCCESS)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's
        """Register whole pages that are mapped, once."""
        if code := self._refused("cudaHostRegister"):
            return code
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
        return SUCCESS

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's
        """Undo it, while the memory is mapped."""
        if code := self._refused("cudaHostUnregister"):
            return code
        if address not in self.registered:
            self.faults.append(f"{address:#x} was unregistered and is not registered")
            return NOT_REGISTERED
        if not is_mapped(address, self.registered[address]):
            self.faults.append(f"{address:#x} was unmapped before it was unregistered")
        self.before_unregister()
        del self.registered[address]
        self.history.append(("unregister", address))
        return SUCCESS

    @property
    def registrar(self) -> tuple[Callable[[int, int], None], Callable[[int], None]]:
        """What a device gives to have its slots registered."""

        def check(code: int) -> None:
            if code:
                raise RuntimeError(f"CUDA error ({code})")

        return (
            lambda address, size: check(self.cudaHostRegister(address, size, PORTABLE)),
            lambda address: check(self.cudaHostUnregister(address)),
        )

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
