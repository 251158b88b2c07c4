"""The loader that the host runs, checked, and what the trainings are told of it and its batches."""

from __future__ import annotations

import itertools
import os
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.errors import SpecError
from ringfeed.loader import Loader, runner_of, stream_of
from ringfeed.sharing.flow import MIN_SLOTS
from ringfeed.spec.builder import BatchBuilder
from ringfeed.system._system import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.engine.engine import Engine
    from ringfeed.ring._ring import Lease
    from ringfeed.sharing.terms import Terms
    from ringfeed.spec.spec import Spec

_segments = itertools.count(1)


class SharedInfo(NamedTuple):
    """What a training is told of the loader when it joins."""

    spec: Spec
    offsets: tuple[int, ...]
    slots: int
    slot_size: int
    batch_size: int | None
    length: int | None  # batches of an epoch
    why_no_length: str
    copy: bool
    uneven: str
    state: dict[str, Any]
    shown: str  # the loader's repr
    host: int  # pid


class _Leased(BatchBuilder):
    """Keeps the lease itself: arrays are made in the trainings."""

    waits_for_slots = True

    def __call__(self, lease: Lease, rows: int) -> tuple[Lease, int]:
        return lease, rows

    private = __call__  # `Flow` has taken the last slot, and the trainings make copies


class HostLoader:
    """A loader, checked."""

    def __init__(self, make_loader: Callable[[], Any], terms: Terms) -> None:
        """Call the user's function; TypeError, ValueError or SpecError if it cannot be shared."""
        self.loader = loader = make_loader()
        where = f"share(name={terms.name!r})"
        if not isinstance(loader, Loader):
            raise TypeError(
                f"{where}: make_loader returned a {type(loader).__name__}, expected a "
                "ringfeed.Loader"
            )
        self._check(where, terms)
        self._segment = 0
        self._engine: Engine | None = None  # whose slots these are
        self.slots: Descriptor | None = None
        """Their file, which the engine may close while trainings hold batches in it."""

    def _check(self, where: str, terms: Terms) -> None:
        loader, runner = self.loader, runner_of(self.loader)
        forms = [leaf.path for leaf in loader.spec.leaves if leaf.form is not None]
        if forms:
            message = (
                f"{where}: {forms[0]} differs in length from sample to sample, which a share "
                "cannot hand out yet"
            )
            raise SpecError(message + "; pad it in __getitem__, or give each training a Loader")
        if runner.source.has_weights:
            raise ValueError(
                f"{where}: a PrioritizedSampler hears of no training's errors in the host process; "
                "use a Loader"
            )
        if runner.tuner is not None:
            raise ValueError(
                f'{where}: the loader has slots="auto" or workers="auto", expected numbers; '
                "give it both"
            )
        if loader.plan.slots < MIN_SLOTS:
            raise ValueError(
                f"{where}: the loader has {loader.plan.slots} slots, expected at least "
                f"{MIN_SLOTS}; give it slots="
            )
        rank = loader._order.shard  # noqa: SLF001 - only the loader's repr says so otherwise
        if rank.sources and rank.world_size > 1:
            raise ValueError(
                f"{where}: make_loader has shard='auto', which found {rank} for the training that "
                "came first, and the loader is for all of this host; give it "
                "shard=ringfeed.Shard(rank, world_size) of the host, or none"
            )
        size = loader.batch_size
        if terms.mode == "split" and size is not None and size % terms.ranks:
            raise ValueError(
                f"{where}: the loader has batch_size={size}, which {terms.ranks} ranks cannot "
                "share equally; give the rows of all ranks together, a multiple of ranks"
            )

    def info(self, host: int) -> SharedInfo:
        """Return what a training is told."""
        loader, plan, why = self.loader, self.loader.plan, ""
        try:
            length: int | None = len(loader)
        except TypeError as error:
            length, why = None, str(error)
        return SharedInfo(
            spec=loader.spec,
            offsets=plan.layout.offsets,
            slots=plan.slots,
            slot_size=plan.slot_size,
            batch_size=loader.batch_size,
            length=length,
            why_no_length=why,
            copy=loader.copy,
            uneven=runner_of(loader).position.shard.uneven,
            state=loader.state_dict(),
            shown=repr(loader),
            host=host,
        )

    # ---- epochs; by one thread ----

    def is_next(self, wish: list[Any] | None) -> bool:
        """Whether the epoch that a training asks for is the one that comes next anyway."""
        is_amid = runner_of(self.loader).position.is_amid
        return wish is None or (wish == ["epoch", self.loader.epoch] and not is_amid)

    def begin(self, wish: list[Any] | None) -> Iterator[tuple[Lease, int]]:
        """Begin the next epoch where the trainings ask for it."""
        if wish is not None:
            kind, value = wish
            (self.loader.set_epoch if kind == "epoch" else self.loader.load_state_dict)(value)
        batches: Any = stream_of(self.loader).epoch(_Leased())
        engine = runner_of(self.loader).engine
        assert engine is not None
        if self._engine is not engine:  # the first, or one after its workers have failed
            self._engine, self._segment = engine, next(_segments)
            self.slots = Descriptor(os.dup, engine.segment.slots_fd)
        return batches

    def content(self, lease: Lease, rows: int) -> dict[str, Any]:
        """Return what the trainings are told of a batch."""
        state = pickle.dumps(self.loader.state_dict())
        return {"segment": self._segment, "slot": lease.slot, "rows": rows, "state": state}
