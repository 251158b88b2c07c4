"""What the tests of the adapters to torch and JAX share; no framework is imported here."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import ringfeed
from watching import run_script

ROWS = 100  # three batches of 32 and one of 4
X = np.random.default_rng(0).random((ROWS, 6), np.float32)
Y = np.random.default_rng(1).integers(0, 3, ROWS)

DTYPES = [
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "float16",
    "bfloat16",
    "float32",
    "bool",
    "complex64",
]
WIDE = ["uint64", "int64", "float64", "complex128"]
SHAPES = [(), (1,), (3, 0), (5, 7), (1, 3, 1, 2)]


class Named(NamedTuple):
    """A sample with names."""

    image: Any
    more: Any


def make(dataset: Any = (X, Y), **settings: Any) -> ringfeed.Loader:
    """Return a loader that fills in this process."""
    return ringfeed.Loader(dataset, **{"workers": 0, "slots": 3, "timeout_s": 120, **settings})


def of_dtype(name: str, shape: tuple[int, ...] = (5, 7), rows: int = 7) -> Any:
    """Return an array of samples of one dtype, with values that any dtype has.

    Hardly two neighbours are equal.
    """
    dtype = np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" else np.dtype(name)
    numbers = np.arange(np.prod((rows, *shape), dtype=int)).reshape(rows, *shape) % 101
    return (numbers % 2).astype(bool) if dtype.kind == "b" else numbers.astype(dtype)


def with_lease(loader: ringfeed.Loader, maker: Any) -> Any:
    """Return the lease of the next batch, whose bytes can be read and written, and what an adapter made of it."""
    return next(loader._stream.epoch(lambda lease, rows: (lease, maker(lease, rows))))


def slot_bytes(lease: Any, number: int, loader: ringfeed.Loader, rows: int) -> Any:
    """Return a leaf of the leased slot as writable bytes."""
    start, size = loader.plan.layout.offsets[number], loader.spec.leaves[number].nbytes * rows
    return np.frombuffer(lease, np.uint8)[start : start + size]


def held_text(error: BaseException) -> str:
    """Return the text of a SlotsHeldError without its times, which differ from run to run."""
    return re.sub(r"\d+\.\d", "T", str(error))


class Poisoned:
    """Samples of which number 40 cannot be had."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index == 40:
            raise OSError("no such picture")
        return X[index], Y[index]


ENDINGS: dict[str, tuple[str, int, str]] = {
    "a live iterator": ("", 0, ""),
    "an exception": ("raise OSError('no more')", 1, "OSError: no more"),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(200)", -2, "KeyboardInterrupt"),
    "os._exit": ("os._exit(7)", 7, ""),
    "a closed loader": ("import json; json.kept = dict(globals()); loader.close()", 0, ""),
    "garbage in a cycle": (
        "kept = [dict(globals())]; kept.append(kept); del kept, loader, batches",
        0,
        "",
    ),
}
"""What a script does with an iterator and a batch in its hands.

Its status, and the last line of its errors.
"""


def ends_as_it_should(ending: str, method: str, use: str) -> None:
    """Check how a script ends that computes with a batch of ``loader.<method>()`` and has not finished its epoch."""
    deed, status, last = ENDINGS[ending]
    text = _SCRIPT.format(method=method, use=use, deed=deed)
    out, err, found = run_script(text)
    assert (out, found) == ("computed\n", status), err
    assert (err.splitlines() or [""])[-1] == last, err


_SCRIPT = """
import os, signal, time
import numpy as np
import ringfeed

X = np.ones((6400, 32, 32), np.float32)
loader = ringfeed.Loader((X,), batch_size=16, workers=2, slots=3)
batches = iter(loader.{method}())
{use}
print("computed", flush=True)
{deed}
"""
