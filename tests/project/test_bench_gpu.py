"""The bench of what needs a GPU: the whole script on the CPU as a stand-in, its budget, and rows that hang."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from devices.common import PAGEABLE, PINNED, SLOTS, Scale
from harness import machine
from report import page, tables
from studies import gpu, photographs

BENCH = Path(__file__).parents[2] / "bench"
TORCH = [row for row in gpu.ROWS if row[0].endswith("torch")]
FIGURES = {"copy_s": 1e-3, "gigabytes_per_s": 38.5, "step_alone_s": 1e-2, "step_s": 1.25e-2}
FIGURES |= {"idle": 0.2, "hidden": 0.5, "input_s": 2e-3, "images_per_s": 5120.0}


def lacks(framework: str) -> str:
    """Return the packages that a framework's rows lack."""
    found = [gpu.missing(*row) for row in gpu.ROWS if gpu.framework_of(row[0]) == framework]
    return next(filter(None, found), "")


# ---- measured, without a GPU ----


@pytest.mark.long
@pytest.mark.timeout(1000)  # each row imports a framework, with others at once
@pytest.mark.parametrize("framework", gpu.FRAMEWORKS)
def test_every_row_comes_out(framework: str, tmp_path: Path) -> None:
    """On the CPU as a stand-in, each row is a line of JSON with its figures, and a row of the table."""
    if reason := lacks(framework):
        pytest.skip(reason)
    output = tmp_path / "lines.jsonl"
    words = ["--device", "cpu", "--quick", "--framework", framework, "--repetitions", "1"]
    words += ["--seconds", "900", "--bound", "300", "--commit", "abc", "--output", str(output)]
    command = [sys.executable, str(BENCH / "studies" / "gpu.py"), *words]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=960)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    rows = [row for row in gpu.ROWS if gpu.framework_of(row[0]) == framework]
    assert [(line["case"], line["contender"]) for line in lines] == [
        (f"gpu/{case}", contender) for case, contender in rows
    ]
    for line in lines:
        figures, case = line["figures"], line["case"]
        names = {"step_alone_s", "step_s", "batch_bytes", "workers"}
        names |= {"images_per_s"} if " on " in case else set()
        names |= set() if "fit" in case else {"copy_s", "gigabytes_per_s", "input_s"}
        assert min(figures[name] for name in names) > 0
        assert 0 <= figures["idle"] < 1
        assert line["commit"] == "abc"
        assert framework in line["versions"]
        assert line["machine"]["gpu"] == "cpu"
    assert all(f"\n| {case}: {contender} | " in ended.stdout for case, contender in rows)
    assert "Failed" not in ended.stdout
    assert "Left out" not in ended.stdout


@pytest.mark.long
@pytest.mark.parametrize("framework", gpu.FRAMEWORKS)
def test_a_framework_that_sees_no_gpu_says_so(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is measured."""
    if reason := lacks(framework):
        pytest.skip(reason)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options = SimpleNamespace(folder="", quick=True, device=None)
    row = next(row for row in gpu.ROWS if row[0] == f"fit on {framework}")
    said = gpu.run(row, 300, options)
    assert said["why_not"].startswith(f"{framework} ")
    assert said["why_not"].endswith(" sees no GPU")


@pytest.mark.long
def test_measures_on_a_gpu() -> None:
    """On a machine with a GPU, torch's copies from slots that are pinned have figures."""
    if reason := lacks("torch"):
        pytest.skip(reason)
    found = gpu.run(TORCH[0], 300, SimpleNamespace(folder="", quick=True, device=None))
    if "why_not" in found:
        pytest.skip(found["why_not"])
    assert found.get("gigabytes_per_s", 0) > 0, found


def test_a_batch_is_as_large_as_it_is_said_to_be() -> None:
    """The page speaks of 38.5 MB; an epoch is long enough for steps and for batches without."""
    for case in ("torch", "photographs on torch"):
        scale = gpu.scale_of(case, "folder", quick=False)
        assert scale.batch_bytes == 38_535_168
        assert len(scale.order) >= scale.rows * 2 * (scale.warm_up + scale.steps)
        assert scale.warm_up > SLOTS
    assert set(Scale().order) == set(range(Scale().samples))


def test_an_nvidia_gpu_is_named_with_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nvidia-smi has it; without one, or without a GPU, nothing is said."""
    asked = tmp_path / "nvidia-smi"
    for said, found in (
        ("echo 'A GPU, 580.1'; echo 'A GPU, 580.1'", {"gpu": "A GPU", "driver": "580.1"}),
        ("echo 'no devices were found'; exit 6", {}),
    ):
        asked.write_text(f"#!/bin/sh\n{said}\n")
        asked.chmod(0o755)
        machine.gpu.cache_clear()
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert machine.gpu() == found
    machine.gpu.cache_clear()


ROOT = BENCH.parent
CLAIMS = re.compile(
    r'to_torch\((device=)?"cuda|to_jax\("gpu|cop[a-z]+ to (a|the) GPU|on (a|the) GPU|pinned'
)
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_that_speaks_of_copies_to_a_gpu_says_that_none_was_measured(path: Path) -> None:
    """Until the page of the bench has figures of one."""
    text = path.read_text()
    if CLAIMS.search(text) and "Not measured on a GPU yet." in (BENCH / "README.md").read_text():
        assert "on a GPU yet" in text


# ---- the runner ----


@pytest.fixture
def readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with a place for the table; all packages are installed, no photographs are written."""
    path = tmp_path / "README.md"
    path.write_text("\n".join(page.marks("gpu")))
    monkeypatch.setattr(tables, "README", path)
    monkeypatch.setattr(photographs, "write_files", lambda *_: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return path


class Clock:
    """Time that passes while a row runs, and only then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.needs_s: dict[tuple[str, str], float] = {}
        self.ran: list[tuple[str, str]] = []
        self.bounds_s: list[float] = []
        clock = SimpleNamespace(monotonic=lambda: self.now_s, strftime=time.strftime)
        monkeypatch.setattr(gpu, "time", clock)
        monkeypatch.setattr(gpu, "run", self.run)

    def run(self, row: tuple[str, str], bound_s: float, _options: Any) -> dict[str, Any]:
        """Take ten seconds, or more."""
        self.ran.append(row)
        self.bounds_s.append(bound_s)
        needs_s = self.needs_s.get(row, 10.0)
        self.now_s += min(needs_s, bound_s)
        return {"error": "no end"} if needs_s > bound_s else dict(FIGURES)


def test_repetitions_are_dropped_first(
    tmp_path: Path,
    readme: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All rows come once, then the first rows again; what was left out is said, in the file too."""
    clock, output = Clock(monkeypatch), tmp_path / "lines.jsonl"
    words = ["--framework", "torch", "--seconds", "105", "--output", str(output), "--render"]
    assert gpu.main(words) == 0
    assert clock.ran == [*TORCH, *TORCH[:2]]
    assert clock.bounds_s == [60, 60, 60, 60, 60, 55, 45, 35, 25, 15]
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == 3 * len(TORCH)
    assert sum("left_out" in line for line in lines) == 2 * len(TORCH) - 2
    text = readme.read_text()
    row = "| torch: ringfeed, pinned | 38.5 GB/s | 1.00 ms | 10.0 ms | 12.5 ms (12.5 - 12.5) |"
    assert f"{row} 20 % | 50 % | 2.00 ms | 5,120 |" in text
    assert (
        "Left out:\n\n- left out for time, of 105 s: torch: ringfeed, pageable (2 times); " in text
    )
    assert "torch: DataLoader (2 times); torch: ringfeed, pinned; torch: DataLoader, pin_" in text
    assert "100 s of 105" in capsys.readouterr().out


def test_rows_for_which_no_time_is_left_are_said(
    tmp_path: Path, readme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that matter least; one that the end of all time kills has not failed."""
    clock = Clock(monkeypatch)
    clock.needs_s[TORCH[4]] = 20
    words = ["--framework", "torch", "--seconds", "55", "--repetitions", "1", "--render"]
    assert gpu.main([*words, "--output", str(tmp_path / "lines.jsonl")]) == 0
    assert clock.ran == TORCH[:5]
    assert clock.now_s == 55
    gone = "; ".join(f"{case}: {contender}" for case, contender in TORCH[4:])
    assert f"\n- left out for time, of 55 s: {gone}\n" in readme.read_text()


HANGS = """
import json, os, signal, sys, time
if {contender!r} in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork():
        open({pids!r}, "a").write(f"{{os.getpid()}} ")
    else:
        open({pids!r}, "a").write(f"{{os.getpid()}} ")
    time.sleep(600)
print(json.dumps({figures!r}))
"""


@pytest.mark.long
@pytest.mark.usefixtures("readme")
def test_a_row_that_hangs_is_killed_at_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the process that it started; it is said, it is not tried again, and the others come."""
    script, pids, output = tmp_path / "row.py", tmp_path / "pids", tmp_path / "lines.jsonl"
    script.write_text(HANGS.format(contender=gpu.PIN_MEMORY, pids=str(pids), figures=FIGURES))
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(gpu, "ROWS", TORCH[:3])
    words = ["--framework", "torch", "--bound", "8", "--repetitions", "2", "--output", str(output)]
    began_s = time.monotonic()
    assert gpu.main(words) == 1
    assert time.monotonic() - began_s < 60
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(line["contender"], "figures" in line) for line in lines] == [
        (PINNED, True),
        (gpu.PIN_MEMORY, False),
        (PAGEABLE, True),
        (PINNED, True),
        (PAGEABLE, True),
    ]
    assert lines[1]["error"] == "no end within 8 s"
    assert (
        "Failed:\n\n- no end within 8 s: torch: DataLoader, pin_memory" in capsys.readouterr().out
    )
    started = [Path(f"/proc/{pid}/stat") for pid in pids.read_text().split()]
    assert len(started) == 2
    while any(path.exists() and path.read_text().split(") ")[1][0] != "Z" for path in started):
        assert time.monotonic() - began_s < 60
        time.sleep(0.01)


def test_without_a_gpu(
    tmp_path: Path,
    readme: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No file is left; the page says which rows are missing, and why; a framework is asked once."""
    asked: list[str] = []

    def run(row: tuple[str, str], *_: Any) -> dict[str, Any]:
        asked.append(row[0])
        return {"why_not": "torch 1.0 sees no GPU"}

    monkeypatch.setattr(gpu, "run", run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jax" else name)
    output = tmp_path / "lines.jsonl"
    assert gpu.main(["--framework", "torch", "jax", "--output", str(output), "--render"]) == 0
    assert asked == ["torch"]
    assert not output.exists()
    jax = [row for row in gpu.ROWS if row[0].endswith("jax")]
    lines = [
        f"- {reason}: " + "; ".join(f"{case}: {contender}" for case, contender in rows)
        for reason, rows in (("torch 1.0 sees no GPU", TORCH), ("jax not installed", jax))
    ]
    begin, end = page.marks("gpu")
    told = "\n".join(["Not measured yet:\n", *lines])
    assert readme.read_text() == f"{begin}\n{told}\n{end}"
    assert told in capsys.readouterr().out


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is begun for a number of repetitions below one, or a framework that there is not."""
    for arguments, text in (
        (["--repetitions", "0"], "--repetitions 0: at least 1"),
        (["--framework", "mxnet"], "argument --framework: invalid choice: 'mxnet'"),
    ):
        with pytest.raises(SystemExit) as caught:
            gpu.main(arguments)
        assert caught.value.code == 2
        assert text in capsys.readouterr().err.splitlines()[-1]
