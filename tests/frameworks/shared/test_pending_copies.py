"""Copies in flight: which thread waits for which, and when their slots come back."""

from __future__ import annotations

import threading

import pytest

from ringfeed.frameworks.device import DeviceSlots


class Stuck:
    """An event that passes when the test says."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.waiting = threading.Semaphore(0)

    def query(self) -> bool:
        """Answer at once."""
        return self.over.is_set()

    def synchronize(self) -> None:
        """Return when the test has said so."""
        self.waiting.release()
        assert self.over.wait(120)


def test_a_copy_that_another_thread_waits_for_has_not_passed() -> None:
    """Two threads that wait for the same copy both return after it has passed."""
    flight, event = DeviceSlots(0, registers=False), Stuck()
    flight.add(object(), event)  # type: ignore[arg-type]
    threads = [threading.Thread(target=flight.wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert event.waiting.acquire(timeout=120)
    assert all(thread.is_alive() for thread in threads)
    assert len(flight) == 1
    event.over.set()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert len(flight) == 0


def test_waits_for_all_although_one_breaks() -> None:
    """The first error is raised when all have passed or failed."""

    class Broken(Stuck):
        def synchronize(self) -> None:
            raise ZeroDivisionError(len(flight))

    flight, last = DeviceSlots(0, registers=False), Stuck()
    last.over.set()
    for event in (Broken(), Broken(), last):
        flight.add(object(), event)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError, match=r"^3$"):
        flight.wait()
    assert len(flight) == 0
    assert last.waiting.acquire(blocking=False)


def test_waits_for_the_oldest_only_as_far_as_asked() -> None:
    """The newest copies may go on."""
    flight, events = DeviceSlots(0, registers=False), [Stuck() for _ in range(3)]
    for event in events:
        flight.add(object(), event)  # type: ignore[arg-type]
    events[0].over.set()
    flight.wait(2)
    assert len(flight) == 2
    events[2].over.set()  # on another stream: it is not looked at before the one before it
    flight.give_back_passed()
    assert len(flight) == 2
    events[1].over.set()
    flight.give_back_passed()
    assert len(flight) == 0
