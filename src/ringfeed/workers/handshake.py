"""What workers are told: each in its first message, and all of them when the dataset has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.transport.shared_dataset import Shipment, pack, ship

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ringfeed.workers.pool import PoolConfig
    from ringfeed.workers.process import Launcher, WorkerProcess


class Handshake:
    """The first message of each worker, and the version of the dataset that it names; the owner holds a lock."""

    def __init__(self, config: PoolConfig, launcher: Launcher) -> None:
        """Nothing is sent before the first dataset."""
        self.version = 0
        self.bars: list[tuple[int, int]] = []  # epoch and number of elements of iterables that were given up
        self._config = config
        self._launcher = launcher
        self._shipment: Shipment | None = None
        self._starts = [0] * config.ring.ids
        self._lanes: dict[int, int] = {}  # by worker

    def send_first(self, dataset: Any) -> None:
        """Have the workers that are started from now on hold the dataset, or be sent it."""
        if self._launcher.ships:
            self._shipment = ship(pack(dataset))
        self._launcher.hold(dataset, self._shipment)

    def greet(self, number: int, worker: WorkerProcess, others: Collection[int], stack_fd: int) -> None:
        """Send a worker the segment, the source, and the dataset unless it holds it; ``others`` are at work."""
        segment, states = self._config.segment, self._config.states
        shipment = None if self._launcher.holds_dataset else self._shipment
        self._lanes[number] = self._free_lane(others)
        hello = {
            "source": self._config.source,
            "offsets": self._config.offsets,
            "number": number,
            "lane": self._lanes[number],
            "workers": self._config.workers,
            "sizes": segment.sizes,
            "version": self.version,
            "manifest": None if shipment is None else shipment.manifest(),
            "bars": self.bars,
            "start": self._starts[number],
            "states": 0 if states is None else states.size,
        }
        self._starts[number] += 1
        fds = () if shipment is None else shipment.fds
        its_fds = () if states is None or states.memfd is None else (states.memfd.fileno(),)
        worker.tell(hello, (segment.control_fd, segment.slots_fd, stack_fd, *fds, *its_fds))

    def greet_bridge(self, number: int, worker: WorkerProcess, stack_fd: int, terms: Any, board_fd: int) -> None:
        """Send a bridge to a cluster the same, with the terms of its own."""
        segment, shipment = self._config.segment, self._shipment
        assert shipment is not None
        hello = {
            "source": self._config.source,
            "offsets": self._config.offsets,
            "number": number,
            "sizes": segment.sizes,
            "version": self.version,
            "manifest": shipment.manifest(),
            "remote": terms,
        }
        worker.tell(hello, (segment.control_fd, segment.slots_fd, stack_fd, *shipment.fds, board_fd))

    def _free_lane(self, others: Collection[int]) -> int:
        taken = {self._lanes.get(other) for other in others}
        return next(lane for lane in range(1, self._config.workers + 1) if lane not in taken)

    def lanes_of(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return the lane of each of these workers."""
        return {number: self._lanes.get(number, 0) for number in numbers}

    def change(self, dataset: Any) -> Shipment | None:
        """Return what has changed in the dataset, to be sent with `send`; None where nothing has."""
        return ship(pack(dataset, previous=self._shipment), self._shipment)

    def send(self, shipment: Shipment, workers: Iterable[WorkerProcess]) -> None:
        """Send workers a new version; those that are started from now on get it with their first message."""
        previous, self._shipment, self.version = self._shipment, shipment, self.version + 1
        self._launcher.holds_dataset = False  # what it has is out of date
        message = {"version": self.version, "manifest": shipment.manifest()}
        try:
            for worker in workers:
                worker.tell(message, shipment.fds)
        finally:
            if previous is not None:
                previous.close()

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of what was sent of the dataset."""
        shipment = self._shipment
        return () if shipment is None else (*shipment.fds,)

    def close(self) -> None:
        """Close them."""
        if self._shipment is not None:
            self._shipment.close()
