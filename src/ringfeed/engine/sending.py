"""Prepares a dataset for its way to the workers, before the first epoch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ringfeed._process import Finalizer, Worker
from ringfeed._units import show_bytes
from ringfeed.engine.plan import plan_for
from ringfeed.errors import RingfeedError
from ringfeed.monitor.free_memory import check_free
from ringfeed.system.machine import check_futex
from ringfeed.transport.shared_dataset import pack, to_shared_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.datasets.base import Source
    from ringfeed.engine.options import Options
    from ringfeed.engine.plan import Plan
    from ringfeed.orders.sampler import Sampler
    from ringfeed.transport.shared_dataset import DatasetPickle, SharedDataset
    from ringfeed.workers.process import Launcher


class Sending:
    """Sends one loader's dataset to its worker processes, if it has any."""

    def __init__(self, source: Source, options: Options, make_order: Callable[[], Sampler]) -> None:
        """Raise TypeError or ShipError for a dataset that cannot be sent.

        ``make_order`` asks the dataset for its length.
        """
        self._source, self._options, self._make_order = source, options, make_order
        self._packs = options.sends and options.start_method != "fork"
        self.sent: SharedDataset | None = None
        """What the first workers are sent, where samples were read of it."""
        if options.sends:
            source.check_sendable()
        self._packed = self._pack(weigh=True) if self._packs else None

    def _pack(self, *, weigh: bool) -> DatasetPickle:
        return pack(self._source.sent, weigh=weigh)

    def learn(self) -> Sampler:
        """Return the order, after the source has read its first sample.

        A dataset that is sent to workers is not read itself. The sample is read from a copy, made
        from what the workers are sent; if workers are forked, another forked process reads it.
        """
        source, packed = self._source, self._packed
        if not (self._options.sends and source.reads):
            order = self._make_order()
            source.learn()
        elif packed is None:
            from ringfeed.workers.first_sample_fork import learn  # noqa: PLC0415 - if needed

            order = self._make_order()
            learn(source, self._options.timeout_s)
        else:
            from ringfeed.transport.copied import read_from  # noqa: PLC0415 - it imports pickling

            if packed.buffers:
                Finalizer.finish()  # what dropped loaders hold is free then
                check_free(
                    packed.shared,
                    f"the workers' copy of the dataset needs {show_bytes(packed.shared)}",
                )
                if self._options.start_method == "forkserver":
                    from ringfeed.workers import warm  # noqa: PLC0415 - only where it is needed

                    warm.expect()  # it comes up while the copy is made
                self.sent = to_shared_memory(packed)
            with read_from(source, packed, self.sent):
                order = self._make_order()
                source.learn()
        return order

    def order(self) -> Sampler:
        """Return the order of the dataset as it is now; a copy is asked for the length."""
        if not self._packs or not self._source.reads:
            return self._make_order()
        from ringfeed.transport.copied import read_from  # noqa: PLC0415 - if needed

        # The dataset itself is sent untouched.
        with read_from(self._source, self._pack(weigh=False), None):
            return self._make_order()

    @property
    def size(self) -> int:
        """Bytes of shared memory already reserved for the workers' copy."""
        return 0 if self.sent is None else self.sent.size

    def handed_over(self) -> SharedDataset | None:
        """Return the packed dataset for the first workers; the engine closes it."""
        sent, self.sent = self.sent, None
        return sent

    def close(self) -> None:
        """Free the packed dataset that no worker was sent."""
        if self.sent is not None:
            self.sent.close()

    def plan(self) -> Plan:
        """Return the plan for the dataset and the slots."""
        options, packed = self._options, self._packed
        if options.sends and not self._packs:
            from ringfeed.transport.unpicklable import refuse_to_share  # noqa: PLC0415 - if needed

            refuse_to_share(self._source.sent)
        plan = plan_for(options, self._source, packed)
        if not options.sends:
            return plan
        from ringfeed.transport.object_size import advice  # noqa: PLC0415 - if needed

        known = () if packed is None else (packed.unpickled,)
        return replace(plan, advice=advice(self._source.sent, *known))

    def begin_to_launch(self) -> Launcher | None:
        """Start a forkserver, which imports the workers' modules while the program continues."""
        packed, self._packed = self._packed, None
        if Worker.is_here or not self._options.sends or self._options.start_method != "forkserver":
            return None
        from ringfeed.workers.launchers import Forkserver  # noqa: PLC0415 - only where it is needed

        modules = () if packed is None else packed.modules
        with suppress(
            RingfeedError, OSError
        ):  # what keeps it from starting is raised by the first epoch
            check_futex()
            return Forkserver.begun(self._options.timeout_s, self._source.packages, modules)
        return None
