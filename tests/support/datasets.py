"""Datasets that know their own content, so that a test can check every row it gets.

Importable in workers.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterable

FOREVER_S = 600  # more than anything is waited for


class Pair(NamedTuple):
    """A sample with names."""

    image: Any
    label: Any


class Oracle:
    """Each sample carries its index and a checksum of its content, which depends on the index alone."""

    SPEC = (
        ringfeed.Array((5, 7), "uint8"),
        ringfeed.Array((), "int64"),
        ringfeed.Array((), "int64"),
    )

    def __init__(self, length: int, *, sleep_s: float = 0.0) -> None:
        self.length = length
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int, int]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        content = np.random.default_rng(index).integers(0, 256, (5, 7), np.uint8)
        return content, index, zlib.crc32(content.tobytes())


def flat(batches: Iterable[list[int]]) -> list[int]:
    """Return the lists of an epoch, one after another."""
    return list(itertools.chain.from_iterable(batches))


def check(batch: tuple[np.ndarray[Any, Any], ...]) -> list[int]:
    """Return the indices of an Oracle's batch, having checked each row's content against its checksum."""
    contents, indices, sums = batch
    assert len(contents) == len(indices) == len(sums)
    for content, index, checksum in zip(contents, indices, sums, strict=True):
        assert zlib.crc32(content.tobytes()) == checksum, f"row of sample {index} is corrupt"
    return [int(index) for index in indices]


def drain(batches: Iterable[Any]) -> list[int]:
    """Return the indices of an Oracle's batches, all checked."""
    return [index for batch in batches for index in check(batch)]


class Drawing:
    """Samples that depend on their index and on ringfeed.rng()."""

    def __len__(self) -> int:
        return 61

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = ringfeed.rng()
        return {
            "noise": random.normal(size=3).astype(np.float32),
            "index": index,
            "more": random.integers(99),
        }


class Misbehaving:
    """Does ``deed`` at one index, and is an Oracle elsewhere."""

    def __init__(self, deed: str, length: int = 40, at: int = 17) -> None:
        self.deed = deed
        self.oracle = Oracle(length)
        self.at = at

    def __len__(self) -> int:
        return len(self.oracle)

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            found = getattr(self, self.deed)()
            if found is not None:
                return found
        return self.oracle[index]

    def raises(self) -> None:
        message = "bad seventeen"
        raise KeyError(message)

    def exits(self) -> None:
        raise SystemExit(3)

    def dies(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def leaves(self) -> None:
        os._exit(0)

    def sleeps(self) -> None:
        time.sleep(FOREVER_S)

    def wrong_shape(self) -> Any:
        return np.zeros((5, 8), np.uint8), 17, 0

    def wrong_dtype(self) -> Any:
        return np.zeros((5, 7), np.float32), 17, 0

    def wrong_structure(self) -> Any:
        return [np.zeros((5, 7), np.uint8), 17, 0]

    def too_large(self) -> Any:
        return np.zeros((5, 7), np.uint8), 2**70, 0


class BadBulk(Misbehaving):
    """Makes many samples at once, one of them a bad one."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Given:
    """Samples that are there already."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Indices:
    """Sample i is i; the length may change."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Batches:
    """A dataset of whole batches, as a Keras PyDataset is: 6 rows each, fewer in the last."""

    def __init__(self, length: int = 9) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        rows = 4 if index == self.length - 1 else 6
        first = 6 * index
        return np.arange(first, first + rows, dtype=np.int32), np.full((rows, 2), index, np.float32)


class ReadInto:
    """Writes its samples into their rows."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": np.full((3, 4), index, np.uint8), "label": index}

    def read_into(self, index: int, out: dict[str, Any]) -> None:
        out["image"][...] = index
        out["label"][...] = index


class Bulk(Oracle):
    """Gives many samples at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [super(Bulk, self).__getitem__(index) for index in indices]


class Reshuffling:
    """Changes, and shrinks, between epochs."""

    def __init__(self) -> None:
        self.order = np.arange(40)
        self.begun = self.ended = 0

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> int:
        return int(self.order[index])

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.ended += 1
        self.order = self.order[::-1][: len(self.order) - 4].copy()


class Witness:
    """Tells, as text in each sample, what ``look`` finds in the process that makes it."""

    def __init__(self, look: str = "surroundings") -> None:
        self.look = look

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        told = json.dumps(getattr(self, self.look)()).encode()
        return np.frombuffer(told.ljust(8192), np.uint8)

    def surroundings(self) -> dict[str, Any]:
        names = (
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "MKL_NUM_THREADS",
            "NUMEXPR_NUM_THREADS",
        )
        return {
            "pid": os.getpid(),
            "group": os.getpgrp(),
            "stdin": str(Path("/proc/self/fd/0").readlink()),
            "cwd": str(Path.cwd()),
            "path": [entry for entry in sys.path if isinstance(entry, str)],
            "threads": sorted(
                {os.environ.get(name, "") for name in (*names, "OPENCV_FOR_THREADS_NUM")}
            ),
            "ignores_ctrl_c": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "handles": sorted(
                int(n) for n in signal.valid_signals() if callable(signal.getsignal(n))
            ),
            "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
            "main": getattr(sys.modules["__main__"], "__file__", None),
            "frameworks": sorted({"tensorflow", "keras", "torch", "jax"} & set(sys.modules)),
        }

    def faults(self) -> int:
        """Count the page faults of making an array of 8 MB anew."""
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            np.ones(1 << 20)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def offspring(self) -> int:
        """Start a process that outlives the worker, unless somebody ends it."""
        return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"]).pid


class Unhurried(Oracle):
    """Takes for ever to unpickle, and says so in the name of its process."""

    def __setstate__(self, state: object) -> None:
        Path("/proc/self/comm").write_text("unpickling")
        time.sleep(FOREVER_S)


def told(batch: Any) -> Any:
    """Return what the first sample of a batch of a Witness tells."""
    return json.loads(bytes(batch[0]))


SAID = 300  # bytes


class Imported:
    """Says which modules that read datasets, or put them in order, the process that reads it has imported."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        names = [name.removeprefix("ringfeed.") for name in sys.modules]
        names = [name for name in names if name.startswith(("datasets.", "orders."))]
        return np.frombuffer(" ".join(sorted(names)).ljust(SAID).encode(), np.uint8)


class ImportedBatches(Imported):
    """Says so in whole batches."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[None]


def imported_in_turn() -> Any:
    """Return an iterable that says so."""
    return (Imported()[index] for index in range(2))
