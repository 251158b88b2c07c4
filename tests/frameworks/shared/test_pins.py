"""Slots that a device registers itself; see test_cuda for all others."""

from __future__ import annotations

import pytest

import ringfeed
from datasets import check, flat
from fakecuda import FakeCuda
from fakedevice import LENGTH, ROWS, FakeDevice, epochs_of, oracle, outcomes
from ringfeed.frameworks import pinned
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


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """The driver that loaders find."""
    driver = FakeCuda()
    monkeypatch.setattr(pinned, "open_library", lambda: driver)
    return driver


@pytest.mark.usefixtures("nothing_left")
def test_a_device_may_register_the_slots_itself(fake: FakeCuda) -> None:
    """Then the driver lets go of them first, once; the device registers each once, and undoes it at close()."""
    device = FakeDevice()
    device.registrar = Registrar()
    with oracle(pin=True, slots=3) as loader:
        for _ in range(2):
            assert flat(outcomes(epochs_of(loader, device))) == list(range(LENGTH))
            fake.check_paired(3)
            assert [what for what, _ in device.registrar.calls] == ["open", *["register"] * 3]
    calls = device.registrar.calls
    assert [what for what, _ in calls] == ["open", *["register"] * 3, *["unregister"] * 3, "close"]
    assert sorted(calls[1:4]) == sorted(("register", address) for _, address in calls[4:7])


def test_slots_change_hands_when_no_copy_is_in_flight(fake: FakeCuda) -> None:
    """A device that registers itself waits for the copies of one that does not, before the driver lets go."""
    first, second = FakeDevice(), FakeDevice()
    second.registrar = Registrar()
    with oracle(pin=True, slots=3) as loader:
        older = iter(epochs_of(loader, first))
        batch = next(older)
        assert len(loader._slots.pending)
        in_flight: list[int] = []
        fake.before_unregister = lambda: in_flight.append(len(loader._slots.pending))
        assert flat(outcomes(epochs_of(loader, second))) == list(range(LENGTH))
        assert in_flight == [0, 0, 0]
        assert check(batch) == list(range(ROWS))


def test_a_device_that_cannot_register_says_so(fake: FakeCuda) -> None:
    """The slot is named, nothing is registered, and the next epoch tries again."""
    device = FakeDevice()
    device.registrar = Registrar(refuse_at=2)
    with oracle(pin=True, slots=3) as loader:
        epochs = epochs_of(loader, device)
        with pytest.raises(ringfeed.PlanError) as caught:
            iter(epochs)
        assert str(caught.value) == (
            "pin=True cannot register slot 1 of 3 (36.9 kB each) with another: no room; see the answer, or leave pin "
            "out"
        )
        assert [what for what, _ in device.registrar.calls] == ["open", "register", "unregister", "close"]
        fake.check_paired(3)
        assert flat(outcomes(epochs)) == list(range(LENGTH))
    assert [what for what, _ in device.registrar.calls[4:]] == ["open", *["register"] * 3, *["unregister"] * 3, "close"]


def test_nobody_registers_unless_asked() -> None:
    """Without pin a device's registrar is left alone."""
    device = FakeDevice()
    device.registrar = Registrar()
    with oracle() as loader:
        outcomes(epochs_of(loader, device))
    assert device.registrar.calls == []
