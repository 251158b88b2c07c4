"""A worker that writes where nothing is its own: over the control block, and past its row, in a loader that runs.

    python tests/support/scribbling.py      # every 64 bytes of the control block, every 4 KiB behind the fields
    python tests/support/scribbling.py 40   # some forty of these places

Each life is a loader of two worker processes over `Scribbler`; at one sample its worker writes one
pattern over one place. A batch is then right, or the loader raises an error of ringfeed's within a
bound, is closed, and leaves nothing.
"""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ringfeed
from ringfeed.errors import RingfeedError

PATTERNS = (0, 1, 255, "random")
STRIDE = 64
BATCH = 4
LENGTH = 96
SCRIBBLES = 41  # the sample during which it happens
ROW = 16  # of the dataset, in int64


def shared_maps(name: str) -> list[tuple[int, int]]:
    """Return where this process has mapped the memfd of that name: begin and end."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    lines = [line.split() for line in maps if f"memfd:{name}" in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in (line[0].split("-") for line in lines)]


def memory(begin: int, size: int) -> np.ndarray[Any, Any]:
    """Return the bytes at an address of this process."""
    import ctypes  # noqa: PLC0415 - as a dataset that calls C code

    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(begin))


def scribble(place: np.ndarray[Any, Any], pattern: int | str, seed: int) -> None:
    """Write the pattern."""
    place[:] = (
        np.random.default_rng(seed).integers(0, 256, place.size) if pattern == "random" else pattern
    )


class Scribbler:
    """Sample i is ROW times i; the worker of one sample writes over shared memory, once."""

    def __init__(self, where: str, offset: int, size: int, pattern: int | str) -> None:
        self.place = where, offset, size, pattern

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        return np.full(ROW, index)

    def read_into(self, index: int, out: np.ndarray[Any, Any]) -> None:
        out[:] = index
        where, offset, size, pattern = self.place
        if index != SCRIBBLES:
            return
        if where == "row":  # behind this very row, as a loop does that runs too far
            begin = out.ctypes.data + out.nbytes + offset
            (_, end), *_ = shared_maps("ringfeed-slots")
            size = min(size, end - begin)
        else:
            (begin, _), *_ = shared_maps("ringfeed-control")
            begin += offset
        if size > 0:
            scribble(memory(begin, size), pattern, offset)


def live(place: tuple[str, int, int, int | str], timeout_s: float = 2.0) -> str:
    """Run a loader whose dataset scribbles.

    Returns how it ended, AssertionError for a batch that is wrong.
    """
    loader = ringfeed.Loader(
        Scribbler(*place),
        batch_size=BATCH,
        workers=2,
        slots=3,
        timeout_s=timeout_s,
        backend="fork",
    )
    try:
        for number, batch in enumerate(loader):
            hit = place[0] == "row" and number == SCRIBBLES // BATCH
            rows = (
                SCRIBBLES % BATCH + 1 if hit else BATCH
            )  # those behind it cannot be told from others
            expected = np.arange(number * BATCH, number * BATCH + rows)
            assert np.array_equal(batch[:rows, 0], expected), (
                f"{place}: batch {number} is {batch[:, 0].tolist()}"
            )
    except RingfeedError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        loader.close()
    return "right"


def places(stride: int = STRIDE) -> list[tuple[str, int, int, int | str]]:
    """Return each place of the control block, and behind a row, with each pattern."""
    plan = ringfeed.Loader(Scribbler("row", 0, 0, 0), batch_size=BATCH, workers=2, slots=3).plan
    size = plan.layout.slot_size - plan.layout.failures_at
    control = itertools.product(
        ["control"], range(0, plan.control_size, stride), [stride], PATTERNS
    )
    behind = itertools.product(["row"], [0], [8, *range(4096, size, 4096), size], PATTERNS)
    return [*control, *behind]


def main() -> None:
    """Scribble over all places, or over some."""
    todo = places()
    if len(sys.argv) > 1:
        todo = random.Random(0).sample(todo, int(sys.argv[1]))  # noqa: S311 - no secret
    ends: dict[str, int] = {}
    for place in todo:
        end = live(place).split(":")[0]
        ends[end] = ends.get(end, 0) + 1
    sys.stdout.write(
        f"{len(todo)} lives: "
        + ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        + "\n"
    )


if __name__ == "__main__":
    main()
