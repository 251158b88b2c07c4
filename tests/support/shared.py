"""Trainings of one share: in processes of their own, and what is left of a host process.

    python tests/support/shared.py NAME RANKS MODE EPOCHS [key=value ...]     one training; a line of JSON a batch

`python tests/support/shared_kills.py` kills them at random.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
from ahead import loader_with
from datasets import Oracle
from ringfeed.workers import roster
from watching import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.sharing.client import SharedLoader

SAMPLES, ROWS = 96, 8
MARK = "RINGFEED_TEST_SHARE"
HERE = Path(__file__).parent


def make(**given: Any) -> ringfeed.Loader[Any]:
    """Return a loader of samples that know their content."""
    given = {"batch_size": ROWS, "shuffle": True, "seed": 3, "workers": 1, **given}
    samples = given.pop("samples", SAMPLES)
    if given.pop("irreplaceable", False):  # in the host process, where no fixture reaches
        roster.EARLY_DEATHS = 0
    return loader_with(Oracle(samples), **given)


def unique(name: str) -> str:
    """Return a name that no other test has."""
    return f"{name}-{os.getpid()}-{time.monotonic_ns()}"


def is_right(batch: Any) -> bool:
    """Whether each sample has its content."""
    images, _, sums = batch
    return all(
        zlib.crc32(np.ascontiguousarray(image).tobytes()) == int(total)
        for image, total in zip(images, sums, strict=True)
    )


def together(*trainings: Any) -> Iterator[list[Any]]:
    """Yield a batch of each training; zip() would hold two besides."""
    batches = [iter(training) for training in trainings]
    with suppress(StopIteration):
        while True:
            yield [next(one) for one in batches]
    for one in batches:
        assert next(one, None) is None


def first_of(*trainings: Any) -> Iterator[Any]:
    """Yield the batches of the first, while the others keep step."""
    for batch, *_ in together(*trainings):
        yield batch


def expected(epochs: int, **given: Any) -> list[list[int]]:
    """Return the samples of each batch, as a loader of one process has them."""
    with make(**{**given, "workers": 0}) as loader:
        return [batch[1].tolist() for _ in range(epochs) for batch in loader]


def numbers(batches: Any) -> list[list[int]]:
    """Return the samples of each batch, which are right."""
    found = []
    for batch in batches:
        assert is_right(batch)
        found.append(batch[1].tolist())
    return found


class Share:
    """Trainings of one share in this process."""

    def __init__(self) -> None:
        self.name = unique("test")
        self.joined: list[SharedLoader] = []

    def join(
        self, make: Callable[[], Any] = make, ranks: int = 2, mode: Any = "broadcast", **given: Any
    ) -> SharedLoader:
        """Join once more."""
        given = {"timeout_s": 60, **given}
        self.joined.append(ringfeed.share(make, name=self.name, ranks=ranks, mode=mode, **given))
        return self.joined[-1]

    def all(self, ranks: int = 2, mode: Any = "broadcast", **given: Any) -> list[SharedLoader]:
        """Join as often as there are trainings."""
        with_rank = [{"rank": rank} if mode == "split" else {} for rank in range(ranks)]
        return [self.join(ranks=ranks, mode=mode, **rank, **given) for rank in with_rank]

    def end(self) -> None:
        """Leave, and wait for the end of the host and its workers."""
        hosts = {loader.host_pid for loader in self.joined}
        processes = set().union(*map(group_of, hosts))
        for loader in self.joined:
            loader.close()
        self.joined.clear()
        gc.collect()
        gone(processes)


def begin(name: str, ranks: int, mode: str, epochs: int, **given: Any) -> subprocess.Popen[str]:
    """Start a training."""
    words = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    command = [sys.executable, __file__, name, str(ranks), mode, str(epochs), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(name), text=True)


def environment(name: str) -> dict[str, str]:
    """Return that of a training, which imports this module. Host and workers inherit it."""
    return {
        **os.environ,
        MARK: name,
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }


def lines(training: subprocess.Popen[str], timeout_s: float = 120) -> list[Any]:
    """Return what a training has said, when it has ended."""
    said, _ = training.communicate(timeout=timeout_s)
    return [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]


def is_all_gone(name: str) -> bool:
    """Whether no process lives that was started for a share of this name, and its socket is not there."""
    word = f"{MARK}={name}".encode()
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError):  # it has ended, or is another user's
                if word in (place / "environ").read_bytes().split(b"\0"):
                    return False
    return not is_bound(name)


def is_bound(name: str) -> bool:
    """Whether a socket has this share's name."""
    return f"/{name}" in Path("/proc/net/unix").read_text()


def state_of(pid: int) -> str:
    """Return the letter of a process's state; "" where there is none.

    A host has no parent here that waits for it.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def group_of(host: int) -> set[int]:
    """Return the host and all processes below it that live."""
    parents = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(") ")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                parents[int(place.name)] = int(fields[1])
    found, size = {host}, 0
    while size < len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found & parents.keys()


def gone(pids: set[int]) -> None:
    """Wait until none of these processes lives."""
    wait_until(lambda: all(state_of(pid) in {"", "Z"} for pid in pids))


def until_it_fails(batches: Any) -> Iterator[list[int]]:
    """Yield the samples of what comes; what it raises is the caller's."""
    while True:
        yield next(batches)[1].tolist()


def say(**found: Any) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def train(name: str, ranks: int, mode: str, epochs: int, options: dict[str, Any]) -> None:
    """Be a training: say the samples of each batch, and whether they are right."""
    step_s, made = options.pop("step_s", 0.0), options.pop("make", {})
    loader: SharedLoader = ringfeed.share(
        partial(make, **made), name=name, ranks=ranks, mode=mode, **options
    )  # type: ignore[arg-type]
    say(host=loader.host_pid, rank=loader.rank)
    with loader:
        for epoch in range(epochs):
            for batch in loader:
                say(epoch=epoch, samples=batch[1].tolist(), right=is_right(batch))
                time.sleep(step_s)
                assert is_right(batch), "it has changed while it was held"


if __name__ == "__main__":
    name_, ranks_, mode_, epochs_, *words = sys.argv[1:]
    pairs = (word.partition("=") for word in words)
    train(
        name_, int(ranks_), mode_, int(epochs_), {key: json.loads(value) for key, _, value in pairs}
    )
