"""A worker process: its guard, the dataset it is sent, and its last words.

How it fills tickets stands in `data.base`.

A spawned process runs `main`, which starts the guard before the slow imports, then waits for its
first message (`Processes`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ringfeed.ring import _ring
from ringfeed.system._system import Descriptor
from ringfeed.system.guard import become_worker, flush_output, join_family
from ringfeed.transport import imports as _imports

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import HasFileno


class WorkerMain:
    """A worker process's state: its end of the ring, and the newest dataset it was sent."""

    def __init__(self, channel: Descriptor, dataset: Any = None) -> None:
        """Wait for the first message and open the segment.

        ``dataset`` is set in a forked worker.
        """
        import faulthandler  # noqa: PLC0415 - after the guard, like all that is slow

        from ringfeed.datasets.reader import Port  # noqa: PLC0415 - imports NumPy
        from ringfeed.orders.rng import scatter  # noqa: PLC0415 - likewise
        from ringfeed.ring.mapping import open_ring  # noqa: PLC0415 - as above
        from ringfeed.system import channel as channels  # noqa: PLC0415 - as above

        self._receive, self._channel = channels.receive, channel
        config, fds = self._receive(channel)
        self._source, self._version, number, starts = (
            config.source,
            config.version,
            config.number,
            config.starts,
        )
        join_family(config.family, f"ringfeed-{number}", fds)
        control, slots, self._stack = fds[:3]
        states = None
        if config.states_size:
            from ringfeed.datasets.states import StreamStates  # noqa: PLC0415

            states = StreamStates.opened(fds.pop(), config.states_size, self._source.streams)
        ring = open_ring(control.fileno(), slots.fileno(), config.sizes)
        end, its_place = (
            _ring.WorkerEnd(ring, number, config.stream),
            (config.stream - 1, config.workers, starts),
        )
        # Whatever Python is doing.
        faulthandler.register(signal.SIGUSR1, file=self._stack.fileno(), all_threads=False)
        # One of them says it.
        _imports.expect(self._source.packages, silent=number > 0 or starts > 0)
        dataset = dataset if config.manifest is None else _unpack(config.manifest, fds[3:])
        scatter(self._source.seed, number, starts)
        self._port = Port(
            end, ring, config.offsets, bars=config.bars, states=states, worker=its_place
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
            message, fds = self._receive(self._channel)
            self._version = message["version"]
        self._reader = self._source.reader(_unpack(message["manifest"], fds), self._port)


def _unpack(manifest: bytes, fds: list[Descriptor]) -> Any:
    from ringfeed.transport.unpacking import unpack  # noqa: PLC0415 - imports NumPy

    return unpack(manifest, [fd.fileno() for fd in fds])


def live(channel: HasFileno, body: Callable[[], object]) -> NoReturn:
    """Run all that a process is for, and leave.

    The consumer is told what goes wrong outside any sample.

    The dataset's own threads and atexit hooks must not keep a process that is done.
    """
    status = 1
    try:
        try:
            body()
            status = 0
        except BaseException as error:  # noqa: BLE001 - reported, whatever it is
            # In a process that is about to end.
            from ringfeed._failure import encode  # noqa: PLC0415
            from ringfeed.system import channel as channels  # noqa: PLC0415 - likewise

            with contextlib.suppress(OSError):  # the consumer is gone
                if not isinstance(error, channels.PeerGoneError):
                    channels.send(channel, {"broken": encode(error)})
        flush_output()
    finally:
        os._exit(status)


def run_spawned(
    start: Callable[[Descriptor, tuple[int, int]], object],
    channel_fd: int,
    parent_fd: int,
    lifeline_fd: int,
) -> NoReturn:
    """Run a spawned process: its guard, then ``start(channel, lifeline)``, to the end of both."""
    os.set_inheritable(channel_fd, False)  # noqa: FBT003 - see become_worker()
    channel = Descriptor(int, channel_fd)

    def body() -> None:
        become_worker(parent_fd, lifeline_fd)
        start(channel, (parent_fd, lifeline_fd))

    live(channel, body)


def _work(channel: Descriptor, _: tuple[int, int]) -> None:
    # While the consumer packs the dataset.
    import numpy as np  # noqa: F401, PLC0415

    WorkerMain(channel).run()


main = partial(run_spawned, _work)
