"""The bench of growing cost, and the plots: each point is measured, each file is drawn the same way every time."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benched import BENCH, record

sys.path.append(str(BENCH))

import growth
from report import plot
from workloads import workload as workloads

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long


def write(file: Path, records: list[dict[str, Any]]) -> Path:
    """Return the file, with these lines in it."""
    file.write_text("\n".join(map(json.dumps, records)))
    return file


def test_ends_of_an_axis_are_measured(tmp_path: Path) -> None:
    """A quick run takes the first and the last point, each with its own slots, and shows them."""
    output = tmp_path / "growth-now.jsonl"
    command = [
        sys.executable,
        str(BENCH / "growth.py"),
        "--quick",
        "--axis",
        "slots",
        "--seconds",
        "0.02",
    ]
    ended = subprocess.run(
        [*command, "--output", str(output)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert output.exists(), ended.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert ended.returncode == 0
    assert [(line["case"], line["slots"], line["settings"]["slots"]) for line in lines] == [
        ("slots/2", 2, 2),
        ("slots/256", 256, 256),
    ]
    assert "| slots, ready batches of 1 kB | time per batch |" in ended.stdout


def test_one_thing_grows_at_a_time() -> None:
    """Workers and slots are as usual but on their own axes, and every point is a workload."""
    options = growth.options_of(["--repetitions", "1"])
    jobs = list(growth.planned(options, ""))
    assert [job.workload for job in jobs] == [
        f"{name}/{one}" for name, axis in growth.AXES.items() for one in axis.points
    ]
    others = [
        (job.workers, job.slots)
        for job in jobs
        if job.workload.partition("/")[0] not in {"workers", "slots"}
    ]
    assert set(others) == {(2, 4)}
    assert [job.workers for job in jobs if job.workload.startswith("workers/")] == [
        0,
        1,
        2,
        4,
        8,
        16,
        32,
    ]
    assert {job.workload.partition("/")[0] for job in jobs} == set(workloads.SIZED)


def test_growth_has_a_table_for_each_axis() -> None:
    """A row for each point that was measured; failed ones are listed."""
    failed = record("ringfeed", 0, "bytes/1000")
    del failed["figures"]
    records = [
        record("ringfeed", 0, "epoch/1", between_s=1e-5),
        record("ringfeed", 1, "epoch/1", between_s=3e-5),
        record("torch", 0, "epoch/64", between_s=1e-3),
        {**failed, "error": "no end within its time"},
    ]
    assert growth.render(records) == (
        "CPU, 2 cores, 8 GB, Linux 6.1, glibc 2.36; numpy 2.4.6; commit 0123456789ab; 2 workers "
        "and 4 slots where they do not grow; medians of 2 fresh processes each (least - most); "
        "2026-11-20.\n\n| ready batches in an epoch | from one epoch to the next | CPU per batch "
        "| page faults per batch | first batch |\n| --- | ---: | ---: | ---: | ---: |\n| 1 | 20.0 "
        "µs (10.0 - 30.0) | - | - | - |\n| 64, torch | 1.00 ms (1.00 - 1.00) | - | - | - |\n\n- "
        "bytes/1000, ringfeed: no end within its time"
    )


def test_plots_are_drawn_the_same_every_time(tmp_path: Path) -> None:
    """Bars of a run and lines of growth become SVG files that hold the names.

    What has no plot gives none.
    """
    if plot.missing():
        pytest.skip(plot.missing())
    figures = {"ringfeed": 1.6e-6, "torch": 4.4e-4, "ideal": 4e-7}
    bars = [
        record(name, 0, case, per_batch_s=s)
        for name, s in figures.items()
        for case in ("ready", "jpeg", "tiny")
    ]
    lines = [
        record("ringfeed", number, f"slots/{slots}", per_batch_s=1e-6)
        for number in (0, 1)
        for slots in (2, 64)
    ]
    sources = write(tmp_path / "run-now.jsonl", bars), write(tmp_path / "growth-now.jsonl", lines)
    drawn = [plot.plot(source, tmp_path) for source in sources]
    assert drawn == [tmp_path / "run.svg", tmp_path / "growth.svg"]
    texts = [file.read_text() for file in drawn if file]
    assert "torch DataLoader, tensors" in texts[0]
    assert "440 µs" in texts[0]
    assert "time per batch over slots, ready batches of 1 kB" in texts[1]
    assert [
        plot.plot(source, tmp_path) and file.read_text()
        for source, file in zip(sources, drawn, strict=True)
        if file
    ] == texts
    assert plot.plot(write(tmp_path / "recovery-now.jsonl", lines), tmp_path) is None
    assert (
        plot.plot(
            write(tmp_path / "run-memory.jsonl", [record("torch", 0, "memory/plain")]), tmp_path
        )
        is None
    )
