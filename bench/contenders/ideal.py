"""The ideal: the same number of processes fill private warm buffers, and nothing is handed over.

A loader that gives batches to a consumer does all of this and more. It can still be faster where it
copies in another way: ringfeed writes large batches past the caches, and NumPy, which copies here, does
not. Each process takes every n-th batch, into as many buffers as its part of the slots, with a heap that
keeps its memory; start-up is over before the clock starts.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.proctree import Usage, usage_of_self

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

    from workloads.workload import Workload

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEEP_HEAP = ((M_TRIM_THRESHOLD, 64 << 20), (M_MMAP_THRESHOLD, 32 << 20))
BARRIER_TIMEOUT_S = 60.0


class Share(NamedTuple):
    """What one process did: times in nanoseconds, when it began and after each batch."""

    began: int
    stamps: array[int]
    usage: Usage
    right: bool


def settings(workload: Workload, workers: int, slots: int) -> dict[str, Any]:
    """How the processes are set up."""
    del workload
    heap = {"M_TRIM_THRESHOLD": KEEP_HEAP[0][1], "M_MMAP_THRESHOLD": KEEP_HEAP[1][1]}
    return {"processes": workers, "buffers": workers * max(1, slots // workers), **heap}


def fill(workload: Workload, workers: int, slots: int) -> list[Share]:
    """Let `workers` processes fill batches until the workload's window ends.

    What each of them did.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(workers)
    pipes = [context.Pipe(duplex=False) for _ in range(workers)]
    processes = [
        context.Process(
            target=_work, args=(workload, (number, workers), slots, barrier, sender), daemon=True
        )
        for number, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    shares: list[Share] = [receiver.recv() for receiver, _ in pipes]
    for process in processes:
        process.join()
    return shares


def _work(
    workload: Workload, place: tuple[int, int], slots: int, barrier: Barrier, sender: Connection
) -> None:
    """One process: warm up, wait for the others, fill its part of the batches."""
    libc = ctypes.CDLL(None)
    for setting in KEEP_HEAP:
        libc.mallopt(*setting)
    number, workers = place
    buffers = [workload.buffers() for _ in range(max(1, slots // workers))]
    for step in range(max(len(buffers), workload.window.warmup // workers)):
        workload.fill(number + step * workers, buffers[step % len(buffers)])
    barrier.wait(BARRIER_TIMEOUT_S)
    sender.send(_timed(workload, place, buffers))


def _timed(workload: Workload, place: tuple[int, int], buffers: list[tuple[Any, ...]]) -> Share:
    """Fill every n-th batch of the window, and look at the last one afterwards."""
    number, workers = place
    stamps = array("q")
    before, began = usage_of_self(), time.perf_counter_ns()
    deadline = began + int(workload.window.seconds * 1e9)
    batch = number
    for step in range(workload.window.most // workers):
        batch = number + step * workers
        workload.fill(batch, buffers[step % len(buffers)])
        now = time.perf_counter_ns()
        stamps.append(now)
        if now > deadline:
            break
    usage = usage_of_self().since(before)
    last = buffers[(len(stamps) - 1) % len(buffers)]
    return Share(began, stamps, usage, workload.is_right(batch, last))
