"""Workers of programs that use multiprocessing: they are told what its own children are told."""

from __future__ import annotations

import pytest

from watching import run_script

METHODS = ["spawn", "fork", "process"]

SHARED = """
import os, sys
from multiprocessing import resource_tracker, shared_memory
import numpy as np, ringfeed
class Shared:
    def __init__(self, block, name): self.block, self.name = block, name
    def __len__(self): return 6
    def __getitem__(self, i):
        block = self.block or shared_memory.SharedMemory(name=self.name)
        tracker = resource_tracker._resource_tracker
        row = np.ndarray((6,), "int64", block.buf)[i].copy()
        return row, tracker._pid or 0, int(tracker._check_alive())
block = shared_memory.SharedMemory(create=True, size=48)
np.ndarray((6,), "int64", block.buf)[:] = range(6)
own = resource_tracker._resource_tracker._pid
for dataset in (Shared(block, None), Shared(None, block.name)):
    with ringfeed.Loader(dataset, batch_size=3, workers=2, backend=METHOD) as loader:
        for rows, pids, alive in loader:
            print(rows.tolist(), [pid for pid in pids.tolist() if pid != own], alive.tolist())
print(os.path.exists("/dev/shm/" + block.name))
block.close()
block.unlink()
"""


@pytest.mark.parametrize("method", METHODS)
def test_shared_memory_that_workers_open_is_not_removed(method: str) -> None:
    """A worker that opens a block of the user's leaves it to the consumer's tracker."""
    output, errors, status = run_script(SHARED.replace("METHOD", repr(method)))
    batches = ["[0, 1, 2] [0, 0, 0] [1, 1, 1]", "[3, 4, 5] [0, 0, 0] [1, 1, 1]"]
    assert (output.splitlines(), errors, status) == ([*batches, *batches, "True"], "", 0)


MANAGED = """
import multiprocessing, numpy as np, ringfeed
class Cached:
    def __init__(self, cache): self.cache = cache
    def __len__(self): return 8
    def __getitem__(self, i):
        self.cache[i] = 2 * i
        return np.int64(self.cache[i])
if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        cache = manager.dict()
        with ringfeed.Loader(Cached(cache), batch_size=4, workers=2, backend=METHOD) as loader:
            for _ in range(2):
                print([batch.tolist() for batch in loader])
        print(sorted(cache.items()) == [(i, 2 * i) for i in range(8)])
"""


@pytest.mark.parametrize("method", METHODS)
def test_proxies_of_managers_open_in_workers(method: str) -> None:
    """A worker reaches a manager of the consumer's by a connection of its own."""
    output, errors, status = run_script(MANAGED.replace("METHOD", repr(method)))
    epoch = "[[0, 2, 4, 6], [8, 10, 12, 14]]"
    assert (output.splitlines(), errors, status) == ([epoch, epoch, "True"], "", 0)


TOLD = """
import logging, multiprocessing, os, sys
import numpy as np, ringfeed
class Told:
    def __len__(self): return 2
    def __getitem__(self, i):
        own, parent = multiprocessing.current_process(), multiprocessing.parent_process()
        return np.array([
            own.name == f"ringfeed-{ringfeed.worker_info().id}",
            parent.name == "Trainer",
            parent.pid == PID,
            parent.is_alive(),
            bytes(own.authkey) == b"secret",
            multiprocessing.get_start_method() == "spawn",
            multiprocessing.get_logger().getEffectiveLevel() == logging.ERROR,
            sys.argv == ["train.py", "--fast"],
        ])
PID = os.getpid()
sys.argv[:] = ["train.py", "--fast"]
own = multiprocessing.current_process()
own.name, own.authkey = "Trainer", b"secret"
multiprocessing.set_start_method("spawn")
multiprocessing.get_logger().setLevel(logging.ERROR)
spec = ringfeed.Array((8,), "bool")
with ringfeed.Loader(Told(), batch_size=2, workers=1, backend=METHOD, spec=spec) as loader:
    print([batch.tolist() for batch in loader])
"""


@pytest.mark.parametrize("method", METHODS)
def test_workers_know_their_parent_as_its_own_children_do(method: str) -> None:
    """A worker is told what a child of multiprocessing is told.

    That is name, parent, key, start method, level of the log, and arguments.
    """
    output, errors, status = run_script(TOLD.replace("METHOD", repr(method)))
    assert (output, errors, status) == (f"[[{[True] * 8}, {[True] * 8}]]\n", "", 0)
