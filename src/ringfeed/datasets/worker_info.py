"""Which worker a thread is, for the user's code."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from typing import Any

from ringfeed.orders.rng import derive, seed_torch, when_torch_is_here


class WorkerInfo:
    """What `worker_info` says of a worker, in ``dataset[i]`` and in the user's functions.

    id: its number, from 0 on. A worker that replaces a dead one has its number.
    workers: how many there are; with ``workers="auto"``, the most there may be.
    dataset: this worker's copy of the dataset (with threads, the dataset itself); of a `Mix`, the
        tuple of its datasets.
    """

    __slots__ = ("_numbers", "as_torch", "dataset", "id", "workers")

    def __init__(self, number: int, workers: int, dataset: Any, seed: int, starts: int) -> None:
        """``seed``: that of the loader; ``starts``: how often the worker was started again."""
        self.id = number
        self.workers = workers
        self.dataset = dataset
        self._numbers = seed, number, starts
        self.as_torch: Any = None
        """What torch's ``get_worker_info()`` says in a thread that is this worker."""

    @property
    def seed(self) -> int:
        """A number below 2**32 to seed other packages with: another in each worker.

        A worker that replaces a dead one has another seed, so what is drawn from it depends on the
        worker; what `ringfeed.rng` gives does not.
        """
        return int.from_bytes(derive("worker info", self._numbers, 4), "little")

    def __repr__(self) -> str:
        """Return it in a line, without the dataset's content."""
        dataset = type(self.dataset).__name__
        return (
            f"WorkerInfo(id={self.id}, workers={self.workers}, seed={self.seed}, "
            f"dataset=<{dataset}>)"
        )


class _Here(threading.local):
    info: WorkerInfo | None = None
    process = 0  # the pid: a forked child has this, too


_here = _Here()
being: ContextVar[WorkerInfo | None] = ContextVar("being", default=None)
"""Which worker a task belongs to, or a thread that reads for one."""


def worker_info() -> WorkerInfo | None:
    """Return this worker's ``id``, ``workers``, ``seed`` and ``dataset``; None in the consumer.

    It is also None with ``workers=0``, and in threads that the dataset starts itself. Use it for
    files that each worker opens and packages that each worker seeds: samples that depend on it
    depend on the number of workers.
    """
    return _here.info or being.get()


def introduce(info: WorkerInfo, *, again: bool, reads_all: bool) -> bool:
    """Make this thread that worker, for torch as well; returns whether it was none before.

    ``again``: torch was told already. ``reads_all``: it must not take a part of the data for
    itself, as a torch dataset does by its worker: the worker reads all of it.
    """
    if not again:
        part = (0, 1) if reads_all else (info.id, info.workers)
        info.as_torch = tell_torch(*part, info.seed, info.dataset)
    was_none = _here.process != os.getpid()
    _here.info, _here.process = info, os.getpid()
    return was_none


class Newest:
    """What torch was told last of this process; None where it is no worker."""

    told: Any = None
    is_waited_for = False  # that torch is imported
    as_torch = False


def tell_torch(
    number: int, workers: int, seed: int, dataset: Any, *, as_torch: bool = False
) -> dict[str, Any]:
    """Let torch's ``get_worker_info()`` say this, now or when torch is imported; returns it.

    ``as_torch``: also compute with one thread, and begin with this seed, as a worker of torch's
    does. What the main thread of a worker process tells holds for all threads there; a worker that
    is a thread keeps what it has told in `WorkerInfo.as_torch`.
    """
    told = {"id": number, "num_workers": workers, "seed": seed, "dataset": dataset}
    if threading.current_thread() is threading.main_thread():
        Newest.told, Newest.as_torch = told, as_torch
        if as_torch:
            seed_torch(seed)
    if not Newest.is_waited_for:  # else the newest is told
        Newest.is_waited_for = True
        when_torch_is_here(_tell)
    return told


def _tell() -> None:
    from ringfeed.datasets.torch_info import tell  # noqa: PLC0415 - with torch only

    Newest.is_waited_for = False
    tell(Newest.told, as_torch=Newest.as_torch)
