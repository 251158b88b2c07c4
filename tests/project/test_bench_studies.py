"""The studies of the bench: each runs as a short look, and says what it was made to say."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.long
STUDIES = Path(__file__).parents[2] / "bench" / "studies"


class Study(NamedTuple):
    """A script of the bench, what it is run with, what it needs, and what its output or its file must hold."""

    script: str
    arguments: tuple[str, ...]
    said: tuple[str, ...]
    needs: tuple[str, ...] = ()
    writes: str = ""


RUNS = [
    Study(
        "beside",
        ("--quick", "--child", "beside"),
        ("losses", "cpu_s_per_batch"),
        ("PIL", "jax", "keras", "sklearn"),
    ),
    Study("borders", ("--quick", "--child", "38.5 MB", "1"), ("within_s", "across_s", "longest_s")),
    Study(
        "cache",
        ("--quick", "--contender", "in memory", "an array"),
        ("later_s", "planned_mb", '"held": 256'),
        ("PIL", "simplejpeg", "sklearn", "skimage"),
        writes="--out",
    ),
    Study("convert", ("--quick",), ("224 HWC", "1024 CHW", "in place", "numpy"), writes="--out"),
    Study("counting", ("--child",), (".",)),
    Study("wait_counts", ("--pairs", "4"), ("ready", "waited", "itself"), writes="--output"),
    Study(
        "dlio",
        ("--quick", "--case", "resized", "--loader", "ringfeed"),
        ('"samples": 12', "au_of_epochs", "dlio_commit", "commit"),
        ("dlio_benchmark", "mpi4py", "torch"),
        writes="--out",
    ),
    Study(
        "first_batch",
        ("--quick", "--contenders", "forkserver", "--workers", "1"),
        ("first_s",),
        writes="--output",
    ),
    Study(
        "elastic",
        ("--quick", "--contender", "ringfeed"),
        ("state_bytes", "same_batches", "a worker killed", "commit"),
        writes="--out",
    ),
    Study("forks", ("--forks", "2"), ("huge_bytes", "private_bytes")),
    Study("forms", ("--quick",), ("detection", "encoded", "ragged, total"), writes="--out"),
    Study(
        "keras_training",
        ("--quick", "--case", "epoch", "killed", "--contender", 'feed(memory="100MB")'),
        ("epoch_s", "longest_s", "weights", "commit"),
        ("PIL", "sklearn", "skimage", "tensorflow"),
        writes="--out",
    ),
    Study(
        "leaves", ("--quick",), ("np.int64", "NamedTuple", "dict of 20 np.float32"), writes="--out"
    ),
    Study(
        "packing",
        ("--quick", "--contender", "ringfeed"),
        ("padding", "state_bytes", "same_batches", "a worker killed", "commit"),
        writes="--out",
    ),
    Study("paths", ("--quick",), ("ringfeed, spawn", "Frozen"), writes="--out"),
    Study(
        "photographs",
        ("--quick", "--contender", "ringfeed, Pillow"),
        ("images_per_s", "trainer_cpu_s", "digest", "commit"),
        ("PIL", "sklearn", "skimage"),
        writes="--out",
    ),
    Study(
        "neighbour",
        ("--quick", "--contender", "ringfeed, Pillow"),
        ("headspace", "p99_us", "trainer_cpu_ms", "commit"),
        ("PIL", "sklearn", "skimage"),
        writes="--out",
    ),
    Study("share", ("--quick",), ("loaders_s", "share_s", "commit"), ("PIL",), writes="--out"),
    Study("streams", ("--quick",), ("by number", "interleaved"), ("PIL",), writes="--out"),
    Study("text", ("--quick",), ("padding", "buckets", "budget"), ("tensorflow",), writes="--out"),
    Study(
        "torch_door",
        ("--quick", "--case", "114 leaves"),
        ("import changed", "Loader, ahead"),
        ("torch",),
    ),
    Study("waiting", ("--one", "asyncio", "even", "0.2"), ("samples_per_s", "of_ideal")),
    Study("waiting", ("--one", "threads", "even", "0.2"), ("samples_per_s", "of_ideal")),
]


@pytest.mark.parametrize(
    "study", RUNS, ids=lambda study: " ".join((study.script, *study.arguments))
)
def test_a_short_look(study: Study, tmp_path: Path) -> None:
    """A process of its own ends well; its lines have the names of what it measures."""
    if missing := [name for name in study.needs if find_spec(name) is None]:
        pytest.skip(f"could not import {', '.join(missing)}")
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, str(STUDIES / f"{study.script}.py"), *study.arguments]
    command += [study.writes, str(lines)] if study.writes else []
    # `share` also fails where its promise of speed is not kept, which is not for a test to judge.
    environment = os.environ | {"KERAS_BACKEND": "jax" if "jax" in study.needs else "tensorflow"}
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=240, env=environment
    )
    assert ended.returncode == 0 or "NOT KEPT" in ended.stdout, ended.stderr
    found = lines.read_text() if study.writes else ended.stdout
    assert [name for name in study.said if name not in found] == []
