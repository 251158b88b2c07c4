"""Kills the training of `backed_up` at random moments, starts it again until it is done, and holds it to one that ran.

``python killed_training.py BACKEND WAY SAVE_FREQ KILLS SEED`` does it as often as wanted. What a
killed training wrote of a batch or an epoch must be what an undisturbed one wrote of it, to the
last bit, however often it wrote it.
"""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import warm

if TYPE_CHECKING:
    from collections.abc import Iterator

Process: TypeAlias = "subprocess.Popen[str] | warm.Program"
SCRIPT = Path(__file__).with_name("backed_up.py")
PATIENCE_S = 200.0  # for one life: most of it is the start of a framework
MOST_LINES = 12  # of a life, before its kill is due
MOST_DELAY_S = 0.05  # and then


def start(directory: Path, backend: str, way: str, save_freq: str) -> Process:
    """Start a training, or start it again."""
    command = [str(SCRIPT), str(directory), way, save_freq]
    env = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if backend == warm.BACKEND:
        return warm.start(command, env=env)
    return subprocess.Popen([sys.executable, *command], env=env, stderr=subprocess.PIPE, text=True)


def finish(process: Process) -> None:
    """Let a training come to its end."""
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, errors


def kill_after(process: Process, curve: Path, lines: int, delay_s: float) -> bool:
    """SIGKILL it when it has written so many lines more, and some time later.

    False where it has ended before.
    """
    wanted, deadline_s = count(curve) + lines, time.monotonic() + PATIENCE_S
    while count(curve) < wanted and process.poll() is None:
        assert time.monotonic() < deadline_s, (
            f"{count(curve)} lines, and none more for {PATIENCE_S} s"
        )
        time.sleep(0.002)
    time.sleep(delay_s)
    process.kill()
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode in (0, -9), errors
    return process.returncode != 0


def count(curve: Path) -> int:
    """Count the lines so far."""
    return curve.read_text().count("\n") if curve.exists() else 0


@functools.cache
def undisturbed(backend: str, way: str) -> tuple[str, ...]:
    """Return the lines of a training that ran to its end, without backups."""
    with tempfile.TemporaryDirectory() as directory:
        finish(start(Path(directory), backend, way, "off"))
        return tuple((Path(directory) / "curve").read_text().splitlines())


def check(backend: str, way: str, save_freq: str, kills: int, seed: int) -> int:
    """Kill a training that often, and compare; returns how many lines were written twice."""
    told = f"{backend}, {way}, save_freq={save_freq}, seed {seed}"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for lines, delay_s in moments(kills, seed, save_freq):
            process = start(directory, backend, way, save_freq)
            killed = kill_after(process, directory / "curve", lines, delay_s)
            sys.stderr.write(
                f"{told}: {'killed' if killed else 'over'} at line {count(directory / 'curve')}\n"
            )
        finish(start(directory, backend, way, save_freq))
        lines_ = (directory / "curve").read_text().splitlines()
        assert not (directory / "backup").exists(), (
            f"{told}: a training that is over left its backup"
        )
    expected = undisturbed(backend, way)
    others = [line for line in lines_ if line not in expected]
    assert not others, f"{told}: {others[:3]} instead of {of_the_same(others[:3], expected)}"
    missing = [line for line in expected if line not in lines_]
    assert not missing, f"{told}: no {missing[:3]}"
    return len(lines_) - len(expected)


def of_the_same(lines: list[str], expected: tuple[str, ...]) -> list[str]:
    """Return the lines of an undisturbed training about the same batches."""
    keys = {line.partition(" ")[0] for line in lines}
    return [line for line in expected if line.partition(" ")[0] in keys]


def moments(kills: int, seed: int, save_freq: str) -> Iterator[tuple[int, float]]:
    """Yield when to kill, life by life.

    Where only epochs are saved, most lives come to the end of one.
    """
    draw = random.Random(seed)  # noqa: S311 - any will do
    for _ in range(kills):
        lines = draw.randrange(20, 40) if save_freq == "epoch" else draw.randrange(MOST_LINES)
        yield lines, draw.random() * MOST_DELAY_S


if __name__ == "__main__":
    backend, way, save_freq, kills, seed = sys.argv[1:]
    twice = check(backend, way, save_freq, int(kills), int(seed))
    sys.stdout.write(
        f"{backend}, {way}, save_freq={save_freq}: {kills} kills, {twice} lines twice, the same "
        "curve\n"
    )
