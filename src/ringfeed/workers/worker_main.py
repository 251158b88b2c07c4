"""A worker process: the segment and the dataset that it is sent, and its loop.

How it fills tickets stands in `datasets.reader`. The guard runs before this module is imported: see
`start`.
"""

from __future__ import annotations

import faulthandler
import signal
from typing import TYPE_CHECKING, Any

from ringfeed.datasets.reader import Port
from ringfeed.orders.rng import scatter
from ringfeed.ring._ring import WorkerEnd
from ringfeed.ring.mapping import open_ring
from ringfeed.system import channel as channels
from ringfeed.transport import imports as _imports
from ringfeed.transport.unpacking import unpack

if TYPE_CHECKING:
    from ringfeed.system._system import Descriptor


class WorkerMain:
    """A worker process's state: its end of the ring, and the newest dataset it was sent."""

    def __init__(self, channel: Descriptor, dataset: Any = None) -> None:
        """Wait for the first message and open the segment.

        ``dataset`` is set in a forked worker.
        """
        self._channel = channel
        config, fds = channels.receive(channel)
        self._source, self._version = config.source, config.version
        number, starts = config.number, config.starts
        if config.family is not None:
            from ringfeed.system.interpreter import join_family  # noqa: PLC0415 - with multiprocessing only

            join_family(config.family, f"ringfeed-{number}", fds)
        control, slots, self._stack = fds[:3]
        states = None
        if config.states_size:
            from ringfeed.datasets.states import StreamStates  # noqa: PLC0415 - iterables only

            states = StreamStates(config.states_size, self._source.streams, fds.pop())
        ring = open_ring(control.fileno(), slots.fileno(), config.sizes)
        # In C, so whatever Python is doing.
        faulthandler.register(signal.SIGUSR1, file=self._stack.fileno(), all_threads=False)
        # Of all workers one warns.
        _imports.expect(self._source.packages, silent=number > 0 or starts > 0)
        if config.manifest is not None:
            dataset = unpack(config.manifest, [fd.fileno() for fd in fds[3:]])
        scatter(self._source.seed, number, starts)
        self._port = Port(
            WorkerEnd(ring, number, config.stream),
            ring,
            config.offsets,
            bars=config.bars,
            states=states,
            worker=(config.stream - 1, config.workers, starts),
        )
        self._reader = self._source.reader(dataset, self._port)

    def run(self) -> None:
        """Fill tickets until the ring stops.

        Newer versions of the dataset are fetched as batches ask for them.
        """
        claimed = False
        while claimed := self._reader.serve(self._version, claimed=claimed):
            self._fetch(self._port.end.version)

    def _fetch(self, version: int) -> None:
        """Read messages up to the version that a batch asks for.

        The version was sent before the batch was bound.
        """
        while self._version != version:
            message, fds = channels.receive(self._channel)
            self._version = message["version"]
        dataset = unpack(message["manifest"], [fd.fileno() for fd in fds])
        self._reader = self._source.reader(dataset, self._port)


def main(channel: Descriptor, _: tuple[int, ...]) -> None:
    """Run a spawned worker."""
    WorkerMain(channel).run()
