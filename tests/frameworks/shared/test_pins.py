"""Slots that are registered for the device they are copied to; see test_cuda for how long."""

from __future__ import annotations

from typing import Any

import pytest

from datasets import check, flat
from fakedevice import LENGTH, FakeDevice, epochs_of, oracle, outcomes


class Driver:
    """Registers nothing, and notes what it is asked."""

    def __init__(self, refuse_at: int = 0) -> None:
        self.calls: list[tuple[str, int]] = []
        self.refuse_at = refuse_at
        self.registrar = self._register, self._unregister

    def _register(self, address: int, size: int) -> None:
        assert size
        if len(self.calls) + 1 == self.refuse_at:
            self.refuse_at = 0
            raise RuntimeError("no room")
        self.calls.append(("register", address))

    def _unregister(self, address: int) -> None:
        self.calls.append(("unregister", address))


@pytest.mark.usefixtures("nothing_left")
def test_a_device_registers_the_slots() -> None:
    """Each once, for all epochs, and undoes it at close()."""
    device, driver = FakeDevice(), Driver()
    device.registrar = driver.registrar
    with oracle(slots=3) as loader:
        for _ in range(2):
            assert flat(outcomes(epochs_of(loader, device))) == list(range(LENGTH))
            assert [what for what, _ in driver.calls] == ["register"] * 3
    calls = driver.calls
    assert [what for what, _ in calls] == ["register"] * 3 + ["unregister"] * 3
    assert sorted(calls[:3]) == sorted(("register", address) for _, address in calls[3:])


def test_the_first_device_keeps_the_slots() -> None:
    """Another one copies from them as they are: memory is registered once."""
    first, second, driver = FakeDevice(), FakeDevice(), Driver()
    first.registrar, second.registrar = driver.registrar, Driver().registrar
    with oracle(slots=3) as loader:
        for device in (first, second):
            assert flat(outcomes(epochs_of(loader, device))) == list(range(LENGTH))
    assert sum(what == "register" for what, _ in driver.calls) == 3


def test_a_loader_that_has_run_already_registers_its_slots() -> None:
    """The slots of a ring that runs already are registered when a device is asked for."""
    device, driver = FakeDevice(), Driver()
    device.registrar = driver.registrar
    with oracle(slots=3) as loader:
        assert flat(map(check, loader)) == list(range(LENGTH))
        assert flat(outcomes(epochs_of(loader, device))) == list(range(LENGTH))
        assert [what for what, _ in driver.calls] == ["register"] * 3
    assert [what for what, _ in driver.calls[3:]] == ["unregister"] * 3


def test_a_device_that_cannot_register_says_so_once() -> None:
    """The slot is named, nothing is registered, and all batches come."""
    device, driver = FakeDevice(), Driver(refuse_at=2)
    device.registrar = driver.registrar
    with oracle(slots=3) as loader:
        epochs = epochs_of(loader, device)
        with pytest.warns(RuntimeWarning) as caught:
            assert flat(outcomes(epochs)) == list(range(LENGTH))
        assert [str(one.message) for one in caught] == [
            "copies of the slots to the GPU go through a buffer of the driver's: it does not "
            "register slot 1 of 3 (36.9 kB each): no room; use fewer or smaller slots, or allow "
            "this process to lock memory (ulimit -l, or the settings of its container)"
        ]
        assert flat(outcomes(epochs)) == list(range(LENGTH))
    assert [what for what, _ in driver.calls] == ["register", "unregister"]


@pytest.mark.parametrize("settings", [{}, {"slots": "auto"}], ids=str)
def test_slots_are_registered_only_where_it_helps(settings: dict[str, Any]) -> None:
    """Not for a device that copies as fast without, nor slots some of which have no memory yet."""
    device, driver = FakeDevice(), Driver()
    device.registrar = driver.registrar if settings else None
    with oracle(**settings) as loader:
        outcomes(epochs_of(loader, device))
    assert driver.calls == []
