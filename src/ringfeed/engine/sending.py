"""A dataset's way to the workers, as far as it is settled before the first epoch."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ringfeed._process import Worker
from ringfeed.engine.plan import plan_for
from ringfeed.errors import RingfeedError, ShipError
from ringfeed.system.machine import check_futex
from ringfeed.transport.shared_dataset import pack

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from ringfeed.data.base import Source
    from ringfeed.engine.options import Options
    from ringfeed.engine.plan import Plan
    from ringfeed.workers.process import Launcher


class Sending:
    """How one loader's dataset is sent to its worker processes, if it has such."""

    def __init__(self, source: Source, options: Options) -> None:
        """Raise TypeError for a dataset that cannot be sent."""
        self._source = source
        self._options = options
        self._modules: Collection[str] = ()  # that workers import
        if options.sends:
            source.check_sendable()

    def as_before(self) -> AbstractContextManager[None]:
        """Have what is read here, in the place of workers, leave nothing open in the dataset that is sent to them."""
        if not self._options.sends:
            return nullcontext()
        from ringfeed.transport.opened import as_before  # noqa: PLC0415 - it imports what pickles datasets

        return as_before(self._source.dataset)

    def plan(self) -> Plan:
        """Pack the dataset, and return what the loader reserves for it and for the slots."""
        try:
            return self._plan(self._source.dataset)
        except ShipError as error:
            error.args = (self._source.in_users_words(str(error)),)
            raise

    def _plan(self, dataset: Any) -> Plan:
        options = self._options
        if options.sends and options.start_method == "fork":
            from ringfeed.transport.opened import refuse_to_share  # noqa: PLC0415 - as above

            refuse_to_share(dataset)
        sent = options.sends and options.start_method != "fork"
        packed = pack(dataset, weigh=True) if sent else None
        self._modules = () if packed is None else packed.modules
        plan = plan_for(options, self._source, packed)
        if not options.sends:
            return plan
        from ringfeed.transport.object_size import advice  # noqa: PLC0415 - as above

        return replace(plan, advice=self._source.in_users_words(advice(dataset)))

    def begin_to_launch(self) -> Launcher | None:
        """Have a forkserver import what the workers need while the user's program goes on."""
        if Worker.is_here or not self._options.sends or self._options.start_method != "forkserver":
            return None
        from ringfeed.forkserver.launchers import Forkserver  # noqa: PLC0415 - its room

        with suppress(RingfeedError, OSError):  # what keeps it from starting is raised by the first epoch
            check_futex()
            return Forkserver.begun(self._options.timeout_s, self._source.packages, self._modules)
        return None
