"""Datasets with one fault each, and others with none: what `ringfeed check` is to name, and what it is to pass.

FAULTS has for each name the class, and the fault that the report must have; SOUND those without.
"""

from __future__ import annotations

import functools
import itertools
import os
import queue
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import ringfeed

LENGTH = 40
HELD = threading.Lock()
_SETTINGS = {"scale": 1}


class Rows:
    """Rows of an array, as a list has them: nothing is wrong with it."""

    def __init__(self) -> None:
        self.rows = np.arange(LENGTH * 6, dtype=np.float32).reshape(LENGTH, 6)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], np.int64(index % LENGTH)


# ---- with a fault ----


class DrawsGlobally(Rows):
    """An augmentation from NumPy's global state."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index] + np.random.random(6).astype(np.float32)  # noqa: NPY002 - the fault


class KeepsAGenerator(Rows):
    """An augmentation from a generator of its own, which each worker copies."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index] * self.generator.random(dtype=np.float32)


class ChangesInPlace(Rows):
    """It normalizes the row that it keeps."""

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        row += 1
        return row


class OfTheClock(Rows):
    """A sample has the time."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], np.int64(time.perf_counter_ns())


class OfTheProcess(Rows):
    """A sample depends on the process, as what is seeded in __init__ by a worker does."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], np.int64(os.getpid())


class OfHashes(Rows):
    """The classes are numbered in the order of a set of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [f"class {number % 10}" for number in range(LENGTH)]

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], np.int64([*{*self.names}].index(self.names[index]))


class OfAGlobal(Rows):
    """The program sets a global of the module after its import."""

    def __init__(self) -> None:
        super().__init__()
        _SETTINGS["scale"] = 3

    def __getitem__(self, index: int) -> Any:
        return self.rows[index] * _SETTINGS["scale"]


class KeepsALock(Rows):
    """A lock cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class KeepsAFile(Rows):
    """An open file, whose position a fork shares."""

    def __init__(self) -> None:
        super().__init__()
        self.file = Path(__file__).open("rb")  # noqa: SIM115 - the fault

    def __del__(self) -> None:
        self.file.close()

    def __getitem__(self, index: int) -> Any:
        self.file.seek(index)
        return np.frombuffer(self.file.read(4), np.uint8)


class KeepsADatabase(Rows):
    """A connection."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = sqlite3.connect(":memory:")

    def __del__(self) -> None:
        self.connection.close()


class WaitsForALock(Rows):
    """A lock of the module that a thread of the program holds."""

    def __init__(self) -> None:
        super().__init__()
        if not HELD.locked():
            HELD.acquire()

    def __getitem__(self, index: int) -> Any:
        with HELD:
            return self.rows[index]


class WaitsForAThread(Rows):
    """Samples come from a thread that only the first process has."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: Any = None
        self._begin()

    def _begin(self) -> None:
        self.asked, self.answers = queue.SimpleQueue[int](), queue.SimpleQueue[Any]()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.answers.put(self.rows[self.asked.get()])

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __getitem__(self, index: int) -> Any:
        self.asked.put(range(LENGTH)[index])
        return self.answers.get()


class Crashes(Rows):
    """A sample ends its process."""

    def __getitem__(self, index: int) -> Any:
        if index == LENGTH - 1:
            os.abort()
        return self.rows[index]


class LeavesStateOut(Rows):
    """Its __getstate__ leaves out what a sample needs."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "rows"}

    def __len__(self) -> int:
        return LENGTH


class DoesNotRestore(Rows):
    """Its load_state_dict() does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def __getitem__(self, index: int) -> Any:
        self.read = 7
        return super().__getitem__(index)

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


class Stream:
    """An iterable with a state that it goes on from."""

    ahead = 0

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Any:
        for number in range(self.read + self.ahead * bool(self.read), LENGTH):
            self.read = number + 1
            yield np.full(3, number)

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class StreamThatSkips(Stream):
    """It goes on one element too far."""

    ahead = 1


class ShuffledStream:
    """An iterable in another order each time."""

    def __iter__(self) -> Any:
        numbers = [*range(LENGTH)]
        random.shuffle(numbers)
        return iter([np.full(3, number) for number in numbers])


class Leaks(Rows):
    """It keeps something of each sample that was read."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []

    def __getitem__(self, index: int) -> Any:
        self.log.append(self.rows[index].copy())
        return self.rows[index]


class KeepsSamples:
    """A cache without a bound."""

    def __init__(self) -> None:
        self.cache: dict[int, Any] = {}

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        index = range(len(self))[index]
        if index not in self.cache:
            self.cache[index] = np.full(12_000, index % 256, np.uint8)
        return self.cache[index]


class LongList(Rows):
    """A list of names that each worker copies."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [f"pictures/of/a/folder/{number:09}.jpg" for number in range(100_000)]


class DifferInLength(Rows):
    """Sentences."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index][: 1 + index % 5]


class DifferInDtype(Rows):
    """Some rows are integers."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index].astype(np.float32 if index else np.int64)


class GivesASet(Rows):
    """A sample that has no place in a batch."""

    def __getitem__(self, index: int) -> Any:
        return {1, 2, len(self.rows[index])}


class SlowLength(Rows):
    """A length that is counted each time."""

    def __len__(self) -> int:
        return sum(number < LENGTH for number in range(400_000))


class Grows(Rows):
    """A length that changes as samples are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def __len__(self) -> int:
        return LENGTH + self.read

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return self.rows[range(LENGTH)[index]]


class TakesAnyIndex(Rows):
    """There is a sample for every number."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % LENGTH]


class NegativeIsAnother(Rows):
    """It computes what a list would look up."""

    def __getitem__(self, index: int) -> Any:
        if index >= LENGTH:
            raise IndexError(index)
        return np.full(3, index)


class RefusesNumPy(Rows):
    """It asks for Python's own int."""

    def __getitem__(self, index: int) -> Any:
        if type(index) is not int:
            raise TypeError(f"an index is an int, not a {type(index).__name__}")
        return self.rows[index]


class Empty:
    """The folder was not there."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)


class Raises(Rows):
    """A file is missing."""

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            raise FileNotFoundError("pictures/0.jpg")
        return self.rows[index]


FAULTS: dict[type, str] = {
    DrawsGlobally: "not pure",
    KeepsAGenerator: "not pure",
    ChangesInPlace: "not pure",
    OfTheClock: "not pure",
    ShuffledStream: "not pure",
    OfTheProcess: "changes with the process",
    OfHashes: "changes with the process",
    OfAGlobal: "changes with the process",
    KeepsALock: "not picklable",
    KeepsAFile: "holds a handle",
    KeepsADatabase: "holds a handle",
    WaitsForALock: "blocks",
    WaitsForAThread: "blocks",
    Crashes: "ends its process",
    LeavesStateOut: "fails",
    Raises: "fails",
    DoesNotRestore: "does not resume",
    StreamThatSkips: "does not resume",
    Leaks: "grows memory",
    KeepsSamples: "keeps samples",
    LongList: "long list",
    DifferInLength: "samples differ",
    DifferInDtype: "samples differ",
    GivesASet: "no sample",
    Empty: "no sample",
    SlowLength: "slow length",
    Grows: "changes its length",
    TakesAnyIndex: "index past the end",
    NegativeIsAnother: "negative index",
    RefusesNumPy: "NumPy's index",
}


# ---- with none ----


class OpensOnFirstUse(Rows):
    """A file of each process's own."""

    file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = Path(__file__).open("rb")  # noqa: SIM115 - for as long as the worker lives
        self.file.seek(range(LENGTH)[index])
        return np.frombuffer(self.file.read(4), np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "file": None}


class Augments(Rows):
    """Random numbers of the sample's own."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index] + ringfeed.rng().random(6, np.float32)


class Seeded(Rows):
    """A generator that each sample seeds."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index] + random.Random(int(index) % LENGTH).random()  # noqa: S311 - no secret


class Texts(Rows):
    """Texts of any length, in a dict."""

    def __getitem__(self, index: int) -> Any:
        return {"text": "word " * (1 + range(LENGTH)[index]), "label": index % LENGTH}


class Remembers(Rows):
    """A cache with a bound."""

    def __init__(self) -> None:
        super().__init__()
        self.made = functools.lru_cache(4)(_made)

    def __getitem__(self, index: int) -> Any:
        return self.made(range(LENGTH)[index])


def _made(index: int) -> Any:
    return np.full(1000, index, np.float32)


class MakesALock(Rows):
    """A lock of each process's own."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __getitem__(self, index: int) -> Any:
        with self.__dict__.setdefault("lock", threading.Lock()):
            return self.rows[index]


class OneBuffer(Rows):
    """Each sample lies in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.empty(6, np.float32)

    def __getitem__(self, index: int) -> Any:
        np.multiply(self.rows[index], 2, out=self.buffer)
        return self.buffer


class Counts(Rows):
    """A state that is restored."""

    epoch = 0

    def on_epoch_end(self) -> None:
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


def elements() -> Any:
    """A function that returns an iterable."""
    return ({"x": np.full(3, number)} for number in itertools.count())


SOUND: dict[str, Any] = {
    "rows": Rows,
    "a file opened on first use": OpensOnFirstUse,
    "draws of ringfeed.rng()": Augments,
    "draws seeded by the sample": Seeded,
    "texts": Texts,
    "a bounded cache": Remembers,
    "a lock made on first use": MakesALock,
    "one buffer": OneBuffer,
    "a state": Counts,
    "a stream with a state": Stream,
    "a function of an iterable": lambda: elements,
    "arrays": lambda: (np.zeros((LENGTH, 3)), np.zeros(LENGTH)),
    "a list": lambda: [np.zeros(3) for _ in range(LENGTH)],
    "Frozen": lambda: ringfeed.datasets.Frozen(["a", "bc"] * LENGTH),
    "Mix": lambda: ringfeed.datasets.Mix([Rows(), Rows()], weights=[0.5, 0.5]),
}
