"""torch's own ``get_worker_info()`` in worker processes, which its datasets ask; no torch is imported for it.

Where torch is told that it is in a worker, its default_collate makes each batch in shared memory of its own, in fresh
pages of a /dev/shm that may be small. Here a batch is written into a slot next, so it is made in plain memory.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed.orders.rng import when_torch_is_here

if TYPE_CHECKING:
    from collections.abc import Callable

_WORKER = "torch.utils.data._utils.worker"


class _Told(NamedTuple):
    id: int
    num_workers: int
    seed: int
    dataset: Any


class _Newest:
    told: _Told | None = None
    is_waited_for = False  # that torch is imported
    threads: int | None = None


def tell_torch(number: int, workers: int, seed: int, dataset: Any, *, threads: int | None = None) -> None:
    """Have ``get_worker_info()`` say this, now or when torch is imported; ``threads``: as many as torch computes with.

    Only in the main thread of a worker process: what it says holds for the whole process.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _Newest.told = _Told(number, workers, seed, dataset)
    _Newest.threads = threads or _Newest.threads
    if not _Newest.is_waited_for:  # else the newest is told
        _Newest.is_waited_for = True
        when_torch_is_here(_tell)


def _tell() -> None:
    _Newest.is_waited_for = False
    if _Newest.told is None:
        return
    with suppress(ImportError, AttributeError):  # a torch that keeps it elsewhere
        worker: Any = import_module(_WORKER)
        worker._worker_info = worker.WorkerInfo(**_Newest.told._asdict())  # noqa: SLF001 - there is no other way
        _stack_in_plain_memory(worker)
        if _Newest.threads is not None:
            import_module("torch").set_num_threads(_Newest.threads)


def _stack_in_plain_memory(worker: Any) -> None:
    """Have default_collate not know that this is a worker, while it makes one tensor of many."""
    functions = import_module("torch.utils.data._utils.collate").default_collate_fn_map
    kind = import_module("torch").Tensor
    stack: Callable[..., Any] = functions[kind]
    if getattr(stack, "is_in_plain_memory", False):
        return

    def stacked(batch: Any, **more: Any) -> Any:
        before, worker._worker_info = worker._worker_info, None  # noqa: SLF001 - as above
        try:
            return stack(batch, **more)
        finally:
            worker._worker_info = before  # noqa: SLF001

    stacked.is_in_plain_memory = True  # type: ignore[attr-defined]
    functions[kind] = stacked
