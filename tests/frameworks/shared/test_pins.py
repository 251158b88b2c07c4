"""Slots that are registered for the device they are copied to; see test_cuda for the driver."""

from __future__ import annotations

from typing import Any

import pytest

from datasets import check, flat
from fakedevice import LENGTH, FakeDevice, epochs_of, oracle, outcomes
from ringfeed.frameworks.pinned import Refusal


class Registrar:
    """Registers nothing, and notes what it is asked."""

    name = "another"

    def __init__(self, refuse_at: int = 0) -> None:
        self.calls: list[tuple[str, int]] = []
        self.refuse_at = refuse_at

    def open(self) -> None:
        """Get ready."""
        self.calls.append(("open", 0))

    def close(self) -> None:
        """Be done."""
        self.calls.append(("close", 0))

    def register(self, address: int, size: int) -> None:
        """Note it."""
        assert size
        if sum(what == "register" for what, _ in self.calls) + 1 == self.refuse_at:
            self.refuse_at = 0
            raise Refusal("no room")
        self.calls.append(("register", address))

    def unregister(self, address: int) -> None:
        """Note it."""
        self.calls.append(("unregister", address))


@pytest.mark.usefixtures("nothing_left")
def test_a_device_registers_the_slots() -> None:
    """Each once, for all epochs, and undoes it at close()."""
    device, registrar = FakeDevice(), Registrar()
    device.registrar = lambda: registrar
    with oracle(slots=3) as loader:
        for _ in range(2):
            assert flat(outcomes(epochs_of(loader, device))) == list(range(LENGTH))
            assert [what for what, _ in registrar.calls] == ["open", *["register"] * 3]
    calls = registrar.calls
    assert [what for what, _ in calls] == ["open", *["register"] * 3, *["unregister"] * 3, "close"]
    assert sorted(calls[1:4]) == sorted(("register", address) for _, address in calls[4:7])


def test_the_first_device_keeps_the_slots() -> None:
    """Another one copies from them as they are: memory is registered once."""
    first, second, registrar = FakeDevice(), FakeDevice(), Registrar()
    first.registrar, second.registrar = (lambda: registrar), Registrar
    with oracle(slots=3) as loader:
        for device in (first, second):
            assert flat(outcomes(epochs_of(loader, device))) == list(range(LENGTH))
    assert sum(what == "register" for what, _ in registrar.calls) == 3


def test_a_loader_that_has_run_already_registers_its_slots() -> None:
    """Where a plain loop came first, the slots of its ring are registered when a device is asked for."""
    device, registrar = FakeDevice(), Registrar()
    device.registrar = lambda: registrar
    with oracle(slots=3) as loader:
        assert flat(map(check, loader)) == list(range(LENGTH))
        assert flat(outcomes(epochs_of(loader, device))) == list(range(LENGTH))
        assert [what for what, _ in registrar.calls] == ["open", *["register"] * 3]
    assert [what for what, _ in registrar.calls[4:]] == [*["unregister"] * 3, "close"]


def test_a_device_that_cannot_register_says_so_once() -> None:
    """The slot is named, nothing is registered, and all batches come."""
    device, registrar = FakeDevice(), Registrar(refuse_at=2)
    device.registrar = lambda: registrar
    with oracle(slots=3) as loader:
        epochs = epochs_of(loader, device)
        with pytest.warns(RuntimeWarning) as caught:
            assert flat(outcomes(epochs)) == list(range(LENGTH))
        assert [str(one.message) for one in caught] == [
            "copies of the slots to the GPU go through a buffer of the driver's: another does not "
            "register slot 1 of 3 (36.9 kB each): no room"
        ]
        assert flat(outcomes(epochs)) == list(range(LENGTH))
    assert [what for what, _ in registrar.calls] == ["open", "register", "unregister", "close"]


@pytest.mark.parametrize("settings", [{}, {"slots": "auto"}], ids=str)
def test_nobody_registers_unless_it_helps(settings: dict[str, Any]) -> None:
    """Not for a device that copies as fast without, and not slots of which some have no memory yet."""
    device, registrar = FakeDevice(), Registrar()
    device.registrar = (lambda: registrar) if settings else None
    with oracle(**settings) as loader:
        outcomes(epochs_of(loader, device))
    assert registrar.calls == []
