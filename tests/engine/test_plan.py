"""The plan: every byte known before anything is reserved, and refused with the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfeed
from datasets import Oracle
from ringfeed._units import parse_memory, show_bytes
from ringfeed.engine.plan import make_plan
from ringfeed.monitor import free_memory
from ringfeed.ring import _ring
from ringfeed.spec.layout import Layout
from ringfeed.spec.spec import Array, Spec

IMAGE = Spec((Array((224, 224, 3), "float32"), Array((), "int64")))


def test_fields_start_at_multiples_of_64() -> None:
    """Fields, in the spec's order, do not overlap and are aligned.

    Failures, indices and marks follow.
    """
    spec = Spec(
        (Array((3,), "uint8"), Array((5, 7), "float64"), Array((), "bool"), Array((0,), "int8"))
    )
    layout = Layout.of(spec, 11, 11, 4)
    assert layout.offsets == (0, 64, 64 + 3136, 64 + 3136 + 64)
    assert layout.failures_at == layout.offsets[-1] == 3264
    assert layout.indices_at == layout.failures_at + 4 * 4096
    assert layout.marks_at == layout.indices_at + 88
    assert layout.slot_size == 20480


def test_shapes_stand_before_their_fields() -> None:
    """Where the shape varies, 64 bits an axis precede the field, which stays aligned."""
    fixed = Layout.of(Spec((Array((3, 4), "uint8"), Array((1,) * 9, "uint8"))), 10, 1, 1)
    assert (fixed.offsets, fixed.failures_at) == ((0, 128), 192)
    arrays = Array((3, 4), "uint8", variable=(0,)), Array((1,) * 9, "uint8", variable=True)
    varying = Layout.of(Spec(arrays), 10, 1, 1)
    assert (varying.offsets, varying.failures_at) == ((64, 64 + 128 + 128), 64 + 128 + 128 + 64)


def test_the_plan_counts_all() -> None:
    """The total is slots times slot size, the control block, and the dataset's copies.

    Indices come on top.
    """
    made = make_plan(IMAGE, 64, 64, workers=2, slots=4, dataset_shared=1000, dataset_per_worker=10)
    assert made.planned_size == 2 * (16384 // 64) * 64 * 8
    assert made.total == 4 * made.slot_size + made.control_size + 1020
    assert made.slot_size - 64 * (224 * 224 * 3 * 4 + 8) < 70_000
    assert made.control_size <= 2**20


def test_memory_picks_the_slots() -> None:
    """memory= gives as many slots as fit into the budget, no byte more."""
    made = make_plan(IMAGE, 64, 64, workers=2, memory="200MB")
    assert made.slots == 5
    assert made.total <= 200e6 < made.total + made.slot_size
    assert make_plan(Spec(Array((), "int8")), 1, 1, workers=1, memory="1GB").slots == 256


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MB", 512 * 10**6), ("1.5 GiB", 3 * 2**29), (77, 77), ("2kb", 2000), ("9", 9)],
)
def test_amounts_of_memory(text: Any, size: int) -> None:
    """MB is 10**6, MiB 2**20, a bare number bytes."""
    assert parse_memory(text) == size


@pytest.mark.parametrize("memory", ["lots", "12XB", None, 1.5, True])
def test_nonsense_memory_is_refused(memory: Any) -> None:
    """What is no amount is named."""
    with pytest.raises(ValueError, match="is no amount of memory") as caught:
        parse_memory(memory)
    assert str(caught.value) == (
        f"memory={memory!r} is no amount of memory; write it as in '512MB', '2GiB' or a number of "
        "bytes"
    )


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        (
            {"slots": 1},
            ringfeed.PlanError,
            "slots=1: at least 2 are needed, one to fill while one is in use",
        ),
        (
            {"slots": 2, "memory": 5},
            ValueError,
            "give slots= or memory=, not both: each decides the other",
        ),
        (
            {"memory": "50MB"},
            ringfeed.PlanError,
            "memory='50MB' is 50.0 MB, but 2 slots of 38.6 MB, the control block of 8.2 kB and "
            "the dataset's 0 bytes need 77.2 MB; allow that much, or make batch_size smaller",
        ),
        (
            {"slots": 100_000},
            ringfeed.PlanError,
            "slots=100000 with 2 workers needs a control block of more than 1 MiB; use fewer slots",
        ),
    ],
)
def test_plans_that_cannot_be(settings: dict[str, Any], kind: type[Exception], text: str) -> None:
    """A budget under two slots, and contradictions, are refused with the figures."""
    with pytest.raises(kind) as caught:
        make_plan(IMAGE, 64, 64, workers=2, **settings)
    assert str(caught.value) == text


def test_many_slots_shrink_the_cells() -> None:
    """The control block keeps its bound however many slots there are."""
    for slots in (2, 256, 1024, 4096):
        made = make_plan(Spec(Array((), "int8")), 64, 64, workers=8, slots=slots)
        assert made.control_size <= _ring.CONTROL_MAX
        assert 1 <= made.layout.cells <= _ring.MAX_CELLS


def test_more_than_the_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan above available memory is refused by the loader, before anything is reserved."""
    monkeypatch.setattr(free_memory, "free_memory", lambda: iter([(10**6, "the machine has")]))
    with pytest.raises(ringfeed.PlanError) as caught:
        ringfeed.Loader(np.zeros((64, 1000, 1000), np.uint8), batch_size=64, workers=0)
    assert str(caught.value) == (
        "the plan needs 256.3 MB (4 slots of 64.1 MB), but the machine has 1.0 MB free; use fewer "
        "slots, a smaller batch_size, or memory=: not even 2 slots of one row fit, so make a row "
        "smaller, which is 1.0 MB"
    )
    monkeypatch.setattr(free_memory, "free_memory", lambda: iter([(10**8, "the machine has")]))
    with pytest.raises(ringfeed.PlanError) as caught:
        ringfeed.Loader(np.zeros((64, 1000, 1000), np.uint8), batch_size=64, workers=0)
    assert str(caught.value) == (
        "the plan needs 256.3 MB (4 slots of 64.1 MB), but the machine has 100.0 MB free; use "
        "fewer slots, a smaller batch_size, or memory=: with 2 slots, batches of 49 rows fit"
    )


def test_sizes_are_shown_as_people_read_them() -> None:
    """Decimal units, one digit."""
    assert [show_bytes(size) for size in (5, 1500, 38_535_168, 2 * 10**9, 10**13)] == [
        "5 bytes",
        "1.5 kB",
        "38.5 MB",
        "2.0 GB",
        "10.0 TB",
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_kernel_reserves_is_the_plan(workers: int) -> None:
    """The memfds of a running loader and its dataset are to the byte what the plan says."""
    dataset = np.zeros((64, 5000), np.float32), np.arange(64)
    others = _memfds()  # of another test, whose thread has not ended
    with ringfeed.Loader(dataset, batch_size=8, workers=workers, slots=3) as loader:
        next(iter(loader))
        reserved = sum(size for inode, size in _memfds().items() if inode not in others)
        assert reserved == loader.memory - loader.plan.copies * loader.plan.dataset_per_worker


def _memfds() -> dict[int, int]:
    """Return the bytes of the memfds of loaders that this process has open, by their inodes."""
    names = ("ringfeed-control", "ringfeed-slots", "ringfeed-dataset")
    fds = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    found = [fd.stat() for fd in fds if any(name in str(fd.readlink()) for name in names)]
    return {fd.st_ino: fd.st_blocks * 512 for fd in found}


@pytest.mark.parametrize("slots", [2**20, 2**32, 2**62, 2**70])
def test_slots_beyond_count(slots: int) -> None:
    """More slots than can be counted are too many."""
    with pytest.raises(ringfeed.PlanError) as caught:
        ringfeed.Loader(Oracle(8), workers=0, slots=slots)
    assert str(caught.value) == (
        f"slots={slots} with 0 workers needs a control block of more than 1 MiB; use fewer slots"
    )


def test_memory_beyond_count() -> None:
    """An amount that no float holds is none."""
    with pytest.raises(ValueError, match="is no amount of memory; write it as in"):
        ringfeed.Loader(Oracle(8), workers=0, memory="9" * 400 + "GB")
