"""torch's own ``get_worker_info()`` in worker processes; torch is not imported for it.

Where torch is told that it is in a worker, its default_collate makes each batch in shared memory of
its own, in fresh pages of a /dev/shm that may be small. Here a batch is written into a slot next,
so it is made in plain memory.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_WORKER = "torch.utils.data._utils.worker"


def tell(worker: dict[str, Any], *, as_torch: bool) -> None:
    """Let torch say this of this process; ``as_torch``: it computes with one thread, as there."""
    with suppress(ImportError, AttributeError):  # a torch that keeps it elsewhere
        module: Any = import_module(_WORKER)
        swapped(module, module.WorkerInfo(**worker))
        _stack_in_plain_memory(module)
        if as_torch:
            import_module("torch").set_num_threads(1)


def swapped(module: Any, info: Any) -> Any:
    """Let torch's ``get_worker_info()`` return ``info``; returns what it returned before."""
    before, module._worker_info = module._worker_info, info  # noqa: SLF001 - there is no other way
    return before


def _stack_in_plain_memory(worker: Any) -> None:
    """Hide from default_collate that this is a worker, while it makes one tensor of many."""
    functions = import_module("torch.utils.data._utils.collate").default_collate_fn_map
    kind = import_module("torch").Tensor
    stack: Callable[..., Any] = functions[kind]
    if getattr(stack, "is_in_plain_memory", False):
        return

    def stacked(batch: Any, **more: Any) -> Any:
        before = swapped(worker, None)
        try:
            return stack(batch, **more)
        finally:
            swapped(worker, before)

    stacked.is_in_plain_memory = True  # type: ignore[attr-defined]
    functions[kind] = stacked
