"""The bench of the auto modes: it tunes, sweeps and compares, and its table says what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from harness import machine  # noqa: E402
from report import page  # noqa: E402
from studies import auto  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each part of a run take a moment."""
    monkeypatch.setattr(auto, "QUICK", auto.Times(0.2, 0.05, 0.05, 2))
    monkeypatch.setattr(auto, "SORTED", 1500)
    monkeypatch.setattr(auto, "QUICK_WORKERS", (1,))
    monkeypatch.setattr(auto, "QUICK_SLOTS", (2, 3))


@pytest.mark.usefixtures("_in_no_time")
@pytest.mark.parametrize("job", auto.JOBS)
def test_each_job_tunes_sweeps_and_compares(job: str) -> None:
    """There is a rate for every setting of the sweep, and one of each contender for every turn."""
    figures = auto.measure(job, quick=True)
    assert [(workers, slots) for workers, slots, _ in figures["sweep"]] == [(1, 2), (1, 3)]
    assert all(rate > 0 for _, _, rate in figures["sweep"])
    assert tuple(figures["best"]) in {(1, 2), (1, 3)}
    assert len(figures["auto_per_s"]) == len(figures["best_per_s"]) == 2
    assert min(figures["auto_per_s"] + figures["best_per_s"]) > 0
    last = figures["trajectory"][-1] if figures["trajectory"] else {"workers": 1, "slots": 2}
    assert figures["setting"] == [last["workers"], last["slots"]]
    assert figures["verdict"]
    json.dumps(figures)


def record(job: str, *turns: tuple[float, float], **figures: Any) -> dict[str, Any]:
    """Return a line of results with these turns."""
    return {
        "time": "2026-11-21T08:00:00+0000",
        "case": f"auto/{job}",
        "repetition": 0,
        "commit": "0123456789ab",
        "machine": {"cpu": "CPU", "cores": 2, "kernel": "6.1"},
        "versions": {"numpy": "2.4.6"},
        "figures": {
            "trajectory": [],
            "setting": [1, 2],
            "verdict": "compute-bound",
            "best": [1, 2],
            "auto_per_s": [one for one, _ in turns],
            "best_per_s": [other for _, other in turns],
            **figures,
        },
    }


RECORDS = [
    record(
        "source",
        (90.0, 100.0),
        (96.0, 100.0),
        (97.0, 100.0),
        trajectory=[{"batches": 64, "workers": 2, "slots": 2, "why": "training waits"}],
        setting=[2, 2],
        best=[4, 3],
        verdict="input-bound",
    ),
    record("compute", (50.0, 50.0)),
]


def test_the_table_holds_the_lines() -> None:
    """Turns are compared in pairs, and every move is told."""
    failed = {**record("input"), "error": "no end within its time"}
    del failed["figures"]
    assert auto.render([*RECORDS, failed]) == (
        "CPU, 2 cores, Linux 6.1; numpy 2.4.6; commit 0123456789ab; batches of 16; 2026-11-21.\n\n"
        "|  | came to | moves | after | best of the sweep | auto | best | auto over best |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| slow source | 2 workers, 2 slots | 1 | 64 batches | 4 workers, 3 slots | 96/s | 100/s | 96.0% |\n"
        "| compute-bound | 1 worker, 2 slots | 0 | 0 batches | 1 worker, 2 slots | 50/s | 50/s | 100.0% |\n\n"
        "slow source:\n\n- 64 batches, 2 workers, 2 slots: training waits\n- in the end: input-bound\n\n"
        "compute-bound:\n\n- in the end: compute-bound\n\n"
        "- auto/input: no end within its time"
    )


def test_the_table_goes_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering puts the table into the page, and once only."""
    text, lines = tmp_path / "README.md", tmp_path / "lines.jsonl"
    text.write_text("\n".join(page.marks(auto.MARK)))
    monkeypatch.setattr(auto, "README", text)
    lines.write_text("\n".join(json.dumps(one) for one in RECORDS))
    for _ in range(2):
        assert auto.main(["--render", str(lines)]) == 0
    assert text.read_text().count("| slow source | 2 workers, 2 slots |") == 1


def test_lines_say_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run leaves a line with its figures, or with why there are none; then the bench fails."""
    output, answers = tmp_path / "lines.jsonl", iter([(0, RECORDS[0]["figures"]), (1, None)])

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        status, figures = next(answers)
        return subprocess.CompletedProcess(command, status, json.dumps({"figures": figures}), "it broke")

    monkeypatch.setattr(machine.subprocess, "run", answer)
    monkeypatch.setattr(machine, "commit", lambda: "0123456789ab")
    assert auto.main(["--quick", "--job", "source", "compute", "--output", str(output)]) == 1
    first, second = map(json.loads, output.read_text().splitlines())
    assert first["case"] == "auto/source"
    assert first["figures"] == RECORDS[0]["figures"]
    assert first["settings"]["wait_s"] == 0.002
    assert {"commit", "machine", "load", "time", "quick", "repetition"} <= first.keys()
    assert (second["case"], second["error"]) == ("auto/compute", "it broke")
