"""The bench of recovery: it kills and measures, and its table says what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from studies import gaps, recovery  # noqa: E402

pytestmark = pytest.mark.long


@pytest.mark.parametrize("case", gaps.CASES)
def test_each_case_kills_and_measures(case: str, tmp_path: Path) -> None:
    """Each kill leaves a figure, each victim was replaced, and the line says where and with what it was had."""
    output = tmp_path / "lines.jsonl"
    script = BENCH / "studies" / "recovery.py"
    command = [sys.executable, str(script), "--quick", "--kills", "2", "--output", str(output)]
    command += ["--case", case, "--method", "fork"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert output.exists(), ended.stderr
    (line,) = map(json.loads, output.read_text().splitlines())
    figures = line["figures"]
    assert (figures["kills"], len(figures["gaps_s"])) == (2, 2)
    assert figures["restarts"] >= 1  # the last may not have been noticed yet
    assert all(gap_s < recovery.TIMEOUT_S for gap_s in figures["gaps_s"])
    assert line["case"] == f"recovery/{case}"
    assert line["settings"]["start_method"] == "fork"
    assert {"commit", "machine", "load", "versions", "time"} <= line.keys()
    assert f"| {gaps.CASES[case].title}, fork | 2 |" in ended.stdout


def record(case: str, method: str, *gaps_s: float, predicted_s: float = 0.0) -> dict[str, Any]:
    """Return a line of results with these gaps."""
    return {
        "time": "2026-11-20T12:00:00+0000",
        "case": f"recovery/{case}",
        "repetition": 0,
        "commit": "0123456789ab",
        "machine": {"cpu": "CPU", "cores": 2, "kernel": "6.1"},
        "versions": {"numpy": "2.4.6"},
        "settings": {"start_method": method},
        "figures": {"gaps_s": list(gaps_s), "predicted_s": predicted_s},
    }


def test_the_table_holds_the_lines() -> None:
    """Kills of several processes are counted together, medians are held against what is promised, and errors shown."""
    records = [
        record("another", "spawn", 0.01, 0.02, predicted_s=0.015),
        record("another", "spawn", 0.03, predicted_s=0.015),
        record("sole", "spawn", 0.2, 0.4, 0.5, predicted_s=0.3),
        record("sole", "fork", 0.2, 0.4, 0.5, predicted_s=0.3),
        record("ready", "fork", 1e-5, 2e-5, 3e-5),
    ]
    text = recovery.render(records)
    assert text == (
        "CPU, 2 cores, Linux 6.1; numpy 2.4.6; commit 0123456789ab; batches of 4 samples of 5 ms; "
        "2026-11-20.\n\n|  | kills | median | one in ten over | longest | predicted | promised "
        "median |  |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n| another worker "
        "lives, spawn | 3 | 20.0 ms | 28.0 ms | 30.0 ms | 15.0 ms | at most 60 ms | kept |\n| the "
        "sole worker, spawn | 3 | 400 ms | 480 ms | 500 ms | 300 ms | at most 300 ms | **missed** "
        "|\n| the sole worker, fork | 3 | 400 ms | 480 ms | 500 ms | 300 ms | - |  |\n| the sole "
        "worker, enough batches ready, fork | 3 | 20.0 µs | 28.0 µs | 30.0 µs | none | none | "
        "kept |"
    )
    assert not recovery.kept(records)
    assert recovery.kept(records[:2])
    failed = {**record("another", "fork"), "error": "no end within its time"}
    del failed["figures"]
    assert recovery.render([*records, failed]).endswith(
        "\n\n- recovery/another, fork: no end within its time"
    )
    assert not recovery.kept([*records[:2], failed])


def test_what_is_predicted() -> None:
    """A survivor alone takes a batch and the lost sample; a start takes what the first one took.

    A stock hides both.
    """
    found = [gaps.predicted(name, 0.02, 0.2) for name in ("another", "sole", "ready")]
    assert found == pytest.approx([0.03, 0.185, 0.0])
