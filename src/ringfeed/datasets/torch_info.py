"""torch's own ``get_worker_info()`` in workers; torch is not imported for it.

Where torch is told that it is in a worker, its default_collate makes each batch in shared memory of
its own, in fresh pages of a /dev/shm that may be small. Here a batch is written into a slot next,
so it is made in plain memory.

Torch keeps one for the process, and workers may be threads. So its function is given other code,
which asks `shown`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ringfeed.datasets.worker_info import Newest, worker_info

if TYPE_CHECKING:
    from collections.abc import Callable

_WORKER = "torch.utils.data._utils.worker"


class _Here(threading.local):
    is_stacking = False


_here = _Here()


def tell(worker: dict[str, Any] | None, *, as_torch: bool) -> None:
    """Let torch say this of this process; ``as_torch``: it computes with one thread, as there.

    None: it is no worker, and threads of it are.
    """
    with suppress(ImportError, AttributeError):  # a torch that keeps it elsewhere
        module: Any = import_module(_WORKER)
        module._ringfeed_shown = shown  # noqa: SLF001 - there is no other way
        module.get_worker_info.__code__ = _asked.__code__
        _stack_in_plain_memory()
        if worker is not None:
            swapped(module, module.WorkerInfo(**worker))
        if as_torch:
            import_module("torch").set_num_threads(1)


def _asked() -> Any:
    return _ringfeed_shown(_worker_info)  # type: ignore[name-defined]  # noqa: F821 - torch's own


def shown(told: Any) -> Any:
    """Return what ``get_worker_info()`` says in this thread; ``told``: what it was told."""
    info = worker_info()
    if Newest.told is None and info is None:
        return told  # no worker of ringfeed's: another's, or none
    if _here.is_stacking:
        return None
    if Newest.told is not None or info is None:
        return told
    if isinstance(info.as_torch, dict):
        info.as_torch = import_module(_WORKER).WorkerInfo(**info.as_torch)
    return info.as_torch


def swapped(module: Any, info: Any) -> Any:
    """Let torch's ``get_worker_info()`` return ``info``; returns what it returned before."""
    before, module._worker_info = module._worker_info, info  # noqa: SLF001 - there is no other way
    return before


def _stack_in_plain_memory() -> None:
    """Hide from default_collate that this is a worker, while it makes one tensor of many."""
    functions = import_module("torch.utils.data._utils.collate").default_collate_fn_map
    kind = import_module("torch").Tensor
    stack: Callable[..., Any] = functions[kind]
    if getattr(stack, "is_in_plain_memory", False):
        return

    def stacked(batch: Any, **more: Any) -> Any:
        _here.is_stacking = True
        try:
            return stack(batch, **more)
        finally:
            _here.is_stacking = False

    stacked.is_in_plain_memory = True  # type: ignore[attr-defined]
    functions[kind] = stacked
