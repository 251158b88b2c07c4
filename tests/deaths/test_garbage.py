"""Loaders that the garbage collector ends: it runs amid any allocation, in any thread, under any lock."""

from __future__ import annotations

import gc
import weakref

import pytest

from ringfeed._process import Finalizer
from watching import run_script

LOADERS = """
import asyncio, faulthandler, gc, sys
import numpy as np
import ringfeed

faulthandler.dump_traceback_later(100, exit=True)

class Rows:
    def __len__(self): return 8
    def __getitem__(self, index): return np.full(3, index)

class Awaited(Rows):
    __slots__ = ()
    async def __getitem__(self, index):
        await asyncio.sleep(0)
        return np.full(3, index)

def made(kind):
    backend = "thread" if kind == "thread" else "process"
    workers = 0 if kind in ("here", "in flight") else 1
    dataset = Awaited() if kind == "in flight" else Rows()
    spec = ringfeed.Array((3,), "int64")
    return ringfeed.Loader(dataset, batch_size=2, workers=workers, backend=backend, spec=spec)

def leave_garbage(kind):
    loader = made(kind)
    batches = iter(loader)
    next(batches)
    cycle = [loader, batches]
    cycle.append(cycle)
"""

WATCHED = """
import _thread, gc, threading
gc.disable()
collecting, waited = set(), []

def note(phase, info):
    (collecting.add if phase == "start" else collecting.discard)(threading.get_ident())

gc.callbacks.append(note)

def watch(call):
    def watched(self, *given, **named):
        waits = given[:1] != (False,) and named.get("blocking", True)
        if waits and threading.get_ident() in collecting:
            import traceback
            waited.append("".join(traceback.format_stack()))
        return call(self, *given, **named)
    return watched

class Reentrant(_thread.RLock):
    acquire = __enter__ = watch(_thread.RLock.acquire)

class Lock:
    def __init__(self): self.lock = _thread.allocate_lock()
    acquire = watch(lambda self, *given, **named: self.lock.acquire(*given, **named))
    def release(self): self.lock.release()
    def locked(self): return self.lock.locked()
    def _at_fork_reinit(self): self.lock._at_fork_reinit()
    def __enter__(self): self.acquire()
    def __exit__(self, *_): self.release()

_thread.RLock, threading.RLock, threading.Lock = Reentrant, Reentrant, Lock
threading.Thread.join = watch(threading.Thread.join)
threading.Thread.start = watch(threading.Thread.start)
"""

COLLECT = """
for kind in {kinds}:
    leave_garbage(kind)
    gc.collect()
print(*waited, end="")
"""

KINDS = ["process", "thread", "here", "in flight"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_garbage_collector_ends_waits_for_nothing(kind: str) -> None:
    """Its finalizers take no lock that another thread may hold, join no thread and start none by `threading`."""
    assert run_script(WATCHED + LOADERS + COLLECT.format(kinds=[kind])) == ("", "", 0)


DOOR = """
from ringfeed.torch import DataLoader

def leave_garbage(kind):
    loader = DataLoader(Rows(), batch_size=2, num_workers=1)
    iterators = [iter(loader), iter(loader)]  # two rings, of which one is kept
    for iterator in iterators: next(iterator)
    cycle = [iterators] if kind == "iterators" else [loader, iterators]
    cycle.append(cycle)
"""


@pytest.mark.parametrize("kind", ["iterators", "a loader"])
def test_what_it_ends_of_torchs_door_waits_for_nothing(kind: str) -> None:
    """Iterators of a DataLoader, of whose rings one is kept for the next epoch, and the DataLoader with them."""
    pytest.importorskip("torch")
    assert run_script(WATCHED + LOADERS + DOOR + COLLECT.format(kinds=[kind])) == ("", "", 0)


SWEEP = """
gc.freeze()
gc.disable()
for allocations in range(0, 700, 20):
    leave_garbage({kind!r})
    gc.set_threshold(gc.get_count()[0] + allocations)
    gc.enable()
    with made({kind!r}) as loader:
        found = [batch[:, 0].tolist() for batch in loader]
    gc.disable()
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]], found
gc.set_threshold(1)  # a collection at every allocation
gc.enable()
for _ in range(3):
    leave_garbage({kind!r})
    with made({kind!r}) as loader:
        found = [batch[:, 0].tolist() for batch in loader]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]], found
"""


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_is_ended_at_any_allocation_of_the_next(kind: str) -> None:
    """The collector ends a dropped loader at each moment of a new one's life: neither hangs, or loses a batch."""
    assert run_script(LOADERS + SWEEP.format(kind=kind)) == ("", "", 0)


OWN = """
class Trainer:
    def __init__(self, kind):
        self.loader = made(kind)
        self.me = self
        next(iter(self.loader))
    def __del__(self): self.loader.close()

def leave_garbage(kind): Trainer(kind)
"""


def test_a_users_finalizer_may_close_a_loader() -> None:
    """It waits where the collector runs: for no thread that waits for what is held there."""
    assert run_script(LOADERS + OWN + SWEEP.format(kind="process")) == ("", "", 0)


def test_a_finalizer_that_ctrl_c_keeps_from_its_start_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it was to end dies as any object does."""

    class Mortal:
        def end(self) -> None:
            """End."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    mortal = Mortal()
    death = weakref.ref(mortal)
    with monkeypatch.context() as patch:
        patch.setattr(weakref, "finalize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Finalizer(mortal.end).watch(mortal)
    del mortal
    gc.collect()
    assert death() is None
