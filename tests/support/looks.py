"""Looks at loaders that are made up, for tests of what is drawn from them."""

from __future__ import annotations

from typing import Any

from ringfeed.monitor.snapshot import Consumer, Slot, Snapshot, Worker

MS = 10**6
S = 10**9


def slot(state: str = "free", batch: int = 0, **fields: Any) -> Slot:
    """A slot of 8 tickets."""
    return Slot(
        **{
            "state": state,
            "batch": batch,
            "epoch": 2,
            "rows": 32,
            "tickets": 8,
            "claimed": 0,
            "over": 0,
            "held_ns": 0,
            **fields,
        }
    )


def worker(pid: int = 0, **fields: Any) -> Worker:
    """A worker that has done nothing."""
    return Worker(
        **{
            "pid": pid,
            "inside": None,
            "since_ns": 0,
            "busy_ns": 0,
            "wait_ns": 0,
            "samples": 0,
            "tickets": 0,
            "timed": 0,
            "read_ns": 0,
            "write_ns": 0,
            "leave": False,
            **fields,
        }
    )


def look(at_ns: int, slots: list[Slot], workers: list[Worker], **consumer: Any) -> Snapshot:
    """All of a loader at one moment."""
    counts = {
        "batches": 0,
        "samples": 0,
        "stall_ns": 0,
        "wait_ns": 0,
        "open_slots": len(slots),
        "stopped": False,
    }
    return Snapshot(at_ns, tuple(slots), tuple(workers), Consumer(**{**counts, **consumer}))
