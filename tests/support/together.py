"""Several processes that train together: each runs one script, and prints what it found as JSON in its last line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from itertools import chain
from typing import Any

import warm
from ringfeed.orders.permutation import Shuffled

WORLD = 2
BATCH = 4
LENGTH = 37  # four global batches of 8, and one of 5
PATIENCE_S = (
    240  # of all processes together; importing a framework twice on a busy machine takes its time
)
PRELUDE = f"""
import json, os, sys
import numpy as np
import ringfeed
rank, ports = int(sys.argv[1]), sys.argv[2:]

def loader(**parameters):
    rows = np.arange({LENGTH}, dtype="int32")
    x = np.stack([rows, rows % 5 + 1], 1).astype("float32")
    given = dict(batch_size={BATCH}, shuffle=True, seed=3, shard="auto", workers=1, slots=3, timeout_s=120)
    return ringfeed.Loader((x, (x @ [[0.1], [1.0]]).astype("float32")), **given | parameters)

def say(loader, batches, **more):
    print(json.dumps(dict(repr=repr(loader), count=len(loader), batches=batches, **more)), flush=True)
"""


def ports(count: int) -> list[str]:
    """Return the numbers of ports that are free."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def run_together(script: str, *given: str, **environment: str) -> list[dict[str, Any]]:
    """Run the script once for each rank, after the prelude; return what each has printed.

    ``given``: the script's arguments behind the rank. What outlives its time is killed.
    """
    with ExitStack() as ends:
        outputs = [ends.enter_context(tempfile.TemporaryFile("w+")) for _ in range(WORLD)]
        processes = [
            _start(script, [str(rank), *given], environment, out)
            for rank, out in enumerate(outputs)
        ]
        for process in processes:
            ends.callback(_end, process)
        deadline = time.monotonic() + PATIENCE_S
        with suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(max(deadline - time.monotonic(), 0))
        statuses = [process.poll() for process in processes]
        said = [output.seek(0) or output.read() for output in outputs]
    return _told(statuses, said)


def run_with_tensorflow(script: str, *given: str, **environment: str) -> list[dict[str, Any]]:
    """Do the same where TensorFlow is loaded: see `warm`."""
    with ExitStack() as ends:
        programs = []
        for rank in range(WORLD):
            arguments = ["-c", PRELUDE + script, str(rank), *given]
            programs.append(warm.start(arguments, env=_environment(environment)))
            ends.callback(programs[-1].kill)
        deadline = time.monotonic() + PATIENCE_S
        said = [
            "".join(program.communicate(max(deadline - time.monotonic(), 0)))
            for program in programs
        ]
    return _told([program.returncode for program in programs], said)


def _told(statuses: list[int | None], said: list[str]) -> list[dict[str, Any]]:
    assert statuses == [0] * WORLD, "\n".join(said)
    return [
        json.loads(next(line for line in reversed(text.splitlines()) if line.startswith("{")))
        for text in said
    ]


def _environment(more: dict[str, str]) -> dict[str, str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in {"TF_CONFIG", "RANK", "WORLD_SIZE"}
    }
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return env | more


def _start(
    script: str, given: list[str], environment: dict[str, str], output: Any
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + script, *given]
    env = _environment(environment)
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, env=env)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def global_batches(epoch: int = 0) -> list[list[int]]:
    """Return the global batches of an epoch."""
    order = Shuffled().bind(LENGTH, 3).epoch(epoch).take(LENGTH).tolist()
    return [order[first : first + WORLD * BATCH] for first in range(0, LENGTH, WORLD * BATCH)]


def check_ranks(ranks: list[dict[str, Any]], found: str) -> None:
    """Fail unless the ranks have the first epoch between them, padded, and each knows its place."""
    for number, one in enumerate(ranks):
        assert f"rank {number} of {WORLD} ({found})" in one["repr"]
        assert one["count"] == len(one["batches"]) == 5
    *full, rest = global_batches()
    padded = [*rest, rest[0]]
    together = [[*chain(*parts)] for parts in zip(*(one["batches"] for one in ranks), strict=True)]
    assert together == [*full, padded]
