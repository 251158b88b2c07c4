"""A worker that writes over shared memory: an error that says so, or right batches.

Never a crash, never a hang.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

import ringfeed
import scribbling
from ringfeed.errors import WorkerError

pytestmark = pytest.mark.once

CAUSE = (
    "the likely cause is a read_into, or a C extension that the dataset calls, which writes past "
    "its own row: look there"
)
LOST = "; what was not delivered is lost, and the next epoch begins with fresh memory"
PLAN = ringfeed.Loader(
    scribbling.Scribbler("row", 0, 0, 0), batch_size=scribbling.BATCH, workers=2, slots=3
).plan


class Overrun:
    """Sample i is i, alone in its batch.

    That of sample 5 is written with so many bytes more, the first time.
    """

    def __init__(self, bytes_before: int, size: int) -> None:
        self.place = bytes_before, size
        self.done = False

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> np.int64:
        return np.int64(index)

    def read_into(self, index: int, out: np.ndarray) -> None:
        out[...] = index
        if index == 5 and not self.done:
            self.done = True
            scribbling.memory(out.ctypes.data + self.place[0], self.place[1])[:] = 1


def loader_of(before: int, size: int) -> ringfeed.Loader:
    """Return a loader in this process, so that the write comes at the same moment each time."""
    return ringfeed.Loader(Overrun(before, size), batch_size=1, slots=2, workers=0)


def test_an_overwritten_mark_names_the_sample() -> None:
    """A row that is marked as failed without a failure is a slot that was overwritten."""
    plan = loader_of(0, 0).plan
    with loader_of(plan.layout.marks_at, 1) as loader:
        batches = iter(loader)
        assert [int(next(batches)[0]) for _ in range(5)] == list(range(5))
        with pytest.raises(WorkerError) as caught:
            next(batches)
        assert str(caught.value) == (
            "the slot was overwritten: the failures of row 0 of batch 5 (dataset[5]) are not as "
            f"they were left; {CAUSE}{LOST}"
        )


def test_overwritten_indices_end_the_epoch() -> None:
    """A write that runs as far as the indices is found before the batch is delivered.

    The next epoch is whole again.
    """
    plan = loader_of(0, 0).plan
    size = plan.layout.marks_at - plan.layout.failures_at
    with loader_of(plan.layout.failures_at, size) as loader:
        batches = iter(loader)
        assert [int(next(batches)[0]) for _ in range(5)] == list(range(5))
        with pytest.raises(WorkerError) as caught:
            next(batches)
        assert str(caught.value) == (
            "the slot was overwritten: the indices of row 0 of batch 5 are not as they were left; "
            f"{CAUSE}{LOST}"
        )
        assert [int(batch[0]) for batch in loader] == list(range(8))


def test_a_short_overrun_meets_no_rows() -> None:
    """A write of up to 4 KiB past the last field changes no batch.

    The failure records lie there.
    """
    with loader_of(8, 4096 - 8 - 8) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(8))


@pytest.mark.parametrize("pattern", scribbling.PATTERNS)
def test_the_whole_control_block_overwritten(pattern: int | str) -> None:
    """The run ends with an error that says so, soon."""
    end = scribbling.live(("control", 0, PLAN.control_size, pattern))
    assert end.startswith("WorkerError: the control block was overwritten: ")
    assert end.endswith(f" not as they were left; {CAUSE}{LOST}")


SOME = random.Random(19).sample(scribbling.places(), 24)  # noqa: S311 - no secret


@pytest.mark.parametrize("place", SOME, ids=str)
def test_some_place_overwritten(place: tuple[str, int, int, int | str]) -> None:
    """Wherever a worker writes, batches are right or an error comes, and close() works."""
    end = scribbling.live(place)
    assert end == "right" or end.startswith(("WorkerError: the ", "StallError: "))
