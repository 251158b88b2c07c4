"""SPDL's `iterate_in_subprocess`: the batches of a generator in another process, as pickles in a queue."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from workloads.workload import Workload

PAGE = 4096
HELD = 2  # segments beside those that are buffered: one being written, one in the consumer's hands


def settings(
    workload: Workload, workers: int, slots: int, *, arena: bool = False, producers: int | None = 1
) -> dict[str, Any]:
    """One producer, or one for each worker (None); and, with an arena, as many segments as there are slots."""
    count = workers if producers is None else producers
    segments = max(HELD + 1, slots // count)
    chosen = {"producers": count, "buffer_size": segments - HELD, "mp_context": "fork"}
    return {
        **chosen,
        **({"segment_size": workload.batch_bytes() + PAGE, "count": segments} if arena else {}),
    }


class Share:
    """Every n-th batch of an epoch, as often as it is iterated over."""

    def __init__(self, workload: Workload, first: int, step: int) -> None:
        self._workload, self._first, self._step = workload, first, step

    def __iter__(self) -> Iterator[Any]:
        length = len(self._workload.dataset) // (self._workload.batch_size or 1)
        return map(self._workload.batch, range(self._first, length, self._step))


class InTurn:
    """A batch of each producer in turn."""

    def __init__(self, shares: list[Iterable[Any]]) -> None:
        self._shares = shares

    def __iter__(self) -> Iterator[Any]:
        if len(self._shares) == 1:  # apart, so that one producer is what SPDL makes of it
            return iter(self._shares[0])
        return self._alternating()

    def _alternating(self) -> Iterator[Any]:
        walks = [iter(share) for share in self._shares]
        while True:
            for walk in walks:
                batch = next(walk, None)
                if batch is None:
                    return
                yield batch


@contextmanager
def batches(
    workload: Workload, workers: int, slots: int, *, arena: bool = False, producers: int | None = 1
) -> Iterator[Iterable[Any]]:
    """The producers' batches; the processes begin with the first."""
    chosen = settings(workload, workers, slots, arena=arena, producers=producers)
    count = chosen["producers"]
    yield InTurn(
        [_produced(partial(Share, workload, number, count), chosen) for number in range(count)]
    )


def _produced(make: Callable[[], Share], chosen: dict[str, Any]) -> Iterable[Any]:
    pool = (
        SharedMemorySegmentPool(chosen["segment_size"], chosen["count"])
        if "count" in chosen
        else None
    )
    usual = {"buffer_size": chosen["buffer_size"], "mp_context": chosen["mp_context"]}
    produced: Iterable[Any] = iterate_in_subprocess(make, **usual, arena=pool)
    return produced
