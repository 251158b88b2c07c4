"""What workers are told: each in its first message, and all of them when the dataset has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.system.interpreter import family
from ringfeed.transport.shared_dataset import SharedDataset, pack, to_shared_memory
from ringfeed.workers.worker_main import WorkerConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ringfeed.workers.pool import PoolConfig
    from ringfeed.workers.process import Launcher, WorkerProcess


class Handshake:
    """The first message of each worker, and the version of the dataset that it names; the owner holds a lock."""

    def __init__(self, config: PoolConfig, launcher: Launcher) -> None:
        """Nothing is sent before the first dataset."""
        self.version = 0
        self.bars: list[
            tuple[int, int]
        ] = []  # epoch and number of elements of iterables that were given up
        self.streams: dict[
            int, int
        ] = {}  # by worker: the one that it reads, also its place among the workers
        self._config = config
        self._launcher = launcher
        self._sent = config.sent
        self._starts = [0] * config.ring.ids
        self._forked: bytes | None = None  # what tells whether what was forked is the dataset still

    def send_first(self, dataset: Any) -> None:
        """Have the workers that are started from now on hold the dataset, or be sent it."""
        if self._launcher.sends_dataset and (changed := self.change(dataset)) is not None:
            previous, self._sent = self._sent, changed
            if previous is not None:
                previous.close()
        elif not self._launcher.sends_dataset and self._config.source.changes:
            self._forked = _fingerprint(dataset)
        self._launcher.hold(dataset, self._sent)

    def greet(
        self, number: int, worker: WorkerProcess, others: Collection[int], stack_fd: int
    ) -> None:
        """Send a worker the segment, the source, and the dataset unless it holds it; ``others`` are at work."""
        sent, states = None if self._launcher.holds_dataset else self._sent, self._config.states
        taken = {self.streams.get(other) for other in others}
        self.streams[number] = next(
            stream for stream in range(1, self._config.workers + 1) if stream not in taken
        )
        told, tracker = family()
        its_fds = () if states is None or states.memfd is None else (states.memfd.fileno(),)
        config = self._config_of(number, sent)._replace(
            family=told, states_size=0 if states is None else states.size
        )
        self._starts[number] += 1
        self._send_first(worker, config, stack_fd, *its_fds, *tracker)

    def greet_bridge(
        self, number: int, worker: WorkerProcess, stack_fd: int, terms: Any, fds: tuple[int, ...]
    ) -> None:
        """Send a bridge to a cluster the same, with the terms and descriptors of its own."""
        config = self._config_of(number, self._sent)._replace(remote=terms)
        self._send_first(worker, config, stack_fd, *fds)

    def _config_of(self, number: int, sent: SharedDataset | None) -> WorkerConfig:
        config = self._config
        return WorkerConfig(
            source=config.source,
            offsets=config.offsets,
            sizes=config.segment.sizes,
            number=number,
            stream=self.streams.get(number, 0),
            workers=config.workers,
            starts=self._starts[number],
            version=self.version,
            manifest=None if sent is None else sent.manifest(),
            bars=self.bars,
        )

    def _send_first(
        self, worker: WorkerProcess, config: WorkerConfig, stack_fd: int, *fds: int
    ) -> None:
        segment = self._config.segment
        sent = () if config.manifest is None else self.descriptors()
        worker.send(config, (segment.control_fd, segment.slots_fd, stack_fd, *sent, *fds))

    def change(self, dataset: Any) -> SharedDataset | None:
        """Return what has changed in the dataset, to be sent with `send`; None where nothing has.

        Of what was forked nothing was sent, so all of it is.
        """
        is_forked = self._sent is None and not self._launcher.sends_dataset
        if is_forked and self._is_as_forked(dataset):
            return None
        return to_shared_memory(pack(dataset, previous=self._sent), self._sent)

    def _is_as_forked(self, dataset: Any) -> bool:
        """Whether a dataset is as it was; one that cannot be compared is, unless it has hooks."""
        if self._forked is None:
            return not self._config.source.has_hooks
        return self._forked == _fingerprint(dataset)

    def send(self, sent: SharedDataset, workers: Iterable[WorkerProcess]) -> None:
        """Send workers a new version; those that are started from now on get it with their first message."""
        previous, self._sent, self.version = self._sent, sent, self.version + 1
        self._launcher.holds_dataset = False  # what it has is out of date
        message = {"version": self.version, "manifest": sent.manifest()}
        try:
            for worker in workers:
                worker.send(message, sent.fds)
        finally:
            if previous is not None:
                previous.close()

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of what was sent of the dataset."""
        return () if self._sent is None else self._sent.fds

    def close(self) -> None:
        """Close them."""
        if self._sent is not None:
            self._sent.close()


def _fingerprint(dataset: Any) -> bytes | None:
    from ringfeed.transport.pickler import fingerprint  # noqa: PLC0415 - threads pickle nothing

    return fingerprint(dataset)
