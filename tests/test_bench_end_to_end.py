"""The bench of whole epochs: it trains on every backend, and its table says what was measured."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))

import end_to_end  # noqa: E402
import proctree  # noqa: E402
from photographs import PHOTOGRAPHS  # noqa: E402


@pytest.mark.parametrize("backend", end_to_end.BACKENDS)
def test_every_backend_is_trained_and_measured(backend: str, tmp_path: Path) -> None:
    """Each contender trains on the same batches, leaves nothing behind, and stands beside its bounds."""
    for package in (backend, "keras", "PIL", *PHOTOGRAPHS):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    # With JAX and torch Keras' own PyDataset begins elsewhere (it has taken a batch to see its form); its processes are
    # forked beside TensorFlow's threads, and may hang.
    names = ["model", "ringfeed", *(["keras-threads"] if backend == "tensorflow" else [])]
    output = tmp_path / "lines.jsonl"
    command = [sys.executable, str(BENCH / "end_to_end.py"), "--output", str(output), "--quick", "--batches", "4"]
    command += ["--backend", backend, "--size", "input-bound", "--seconds", "0.01", "--timeout", "200"]
    with output.with_suffix(".log").open("w+") as log:
        ended = subprocess.run([*command, "--contender", *names], stdout=log, stderr=log, timeout=280, check=False)
        log.seek(0)
        shown = log.read()
    assert ended.returncode == 0, shown
    loader, *fits = map(json.loads, output.read_text().splitlines())
    case = f"fit/{backend}/input-bound"
    assert (loader["case"], [(fit["case"], fit["contender"]) for fit in fits]) == ("jpeg", [(case, n) for n in names])
    figures = {fit["contender"]: fit["figures"] for fit in fits}
    assert all((one["batches"], one["left_behind"], one["copied"]) == (4, 0, 0) for one in figures.values())
    assert all(one["per_batch_s"] > 0 and one["cpu_s_per_batch"] > 0 for one in figures.values())
    assert f"| ringfeed, {backend}, input-bound |" in shown
    fed = [one["losses"][:3] for name, one in figures.items() if name != "model"]
    assert all(losses == pytest.approx(fed[0], rel=1e-3) for losses in fed)


def record(contender: str, repetition: int, case: str = "fit/jax/input-bound", **figures: float) -> dict[str, Any]:
    """Return a line of results with these figures."""
    return {
        "time": "2026-11-20T12:00:00+0000",
        "case": case,
        "contender": contender,
        "repetition": repetition,
        "workers": 2,
        "slots": 4,
        "commit": "0123456789ab",
        "machine": {"cpu": "CPU", "cores": 2, "kernel": "6.1"},
        "versions": {"numpy": "2.4.6"},
        "figures": figures,
    }


def test_the_table_holds_the_bounds() -> None:
    """An epoch stands over the largest of its three bounds in the same repetition, and over that of the bare work."""
    records = [
        record("ringfeed", 0, "jpeg", per_batch_s=0.017, cpu_s_per_batch=0.034),
        record("model", 0, per_batch_s=0.002, cpu_s_per_batch=0.003, cores_of_others=0.0),
        record("ringfeed", 0, per_batch_s=0.021, cpu_s_per_batch=0.04, cores_of_others=0.1, cores_idle=0.02),
        record("keras-processes", 0, per_batch_s=0.034, cpu_s_per_batch=0.05, cores_of_others=0.02, cores_idle=0.5),
    ]
    head = (
        "CPU, 2 cores, Linux 6.1; numpy 2.4.6; commit 0123456789ab; 2 workers, 4 slots; others used 0.02 cores "
        "(at most 0.10); medians of 1 fresh processes each (least - most); 2026-11-20.\n\n"
        "|  | epoch, per batch | input alone | model alone | CPU over cores | over the largest | over the work "
        "| cores idle |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| ringfeed, jax, input-bound | 21.0 ms (21.0 - 21.0) | 17.0 ms | 2.00 ms | 20.0 ms | 1.05x | 1.14x | 0.02 |\n"
    )
    tail = (
        "| Keras PyDataset, processes, jax, input-bound | 34.0 ms (34.0 - 34.0) | 17.0 ms | 2.00 ms | 25.0 ms "
        "| 1.36x | 1.84x | 0.50 |"
    )
    kept = "\n\nPromised of ringfeed: at most 1.05x the largest; at worst 1.050x (fit/jax/input-bound): kept."
    assert end_to_end.render(records) == head + tail + kept
    missed = record("ringfeed", 1, per_batch_s=0.023, cpu_s_per_batch=0.04)
    others = [record("ringfeed", 1, "jpeg", per_batch_s=0.01, cpu_s_per_batch=0.02)]
    others += [record("model", 1, per_batch_s=0.001, cpu_s_per_batch=0.002)]
    assert end_to_end.render([*records, missed, *others]).endswith("at worst 1.100x (fit/jax/input-bound): **missed**.")


def test_a_run_without_figures_is_listed() -> None:
    """A run that failed stands below the table, and where a bound is missing nothing is held against it."""
    failed = {**record("model", 0), "error": "no end within its time"}
    del failed["figures"]
    loader = record("ringfeed", 0, "jpeg", per_batch_s=0.017, cpu_s_per_batch=0.034)
    text = end_to_end.render([loader, record("ringfeed", 0, per_batch_s=0.021, cpu_s_per_batch=0.04), failed])
    assert "| ringfeed, jax, input-bound | 21.0 ms (21.0 - 21.0) | - | - | - | - | - | - |" in text
    assert text.endswith("\n\n- fit/jax/input-bound, model: no end within its time")


def test_contenders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each repetition has the input alone, then every backend and size, beginning with another contender."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "jax" else None)
    options = end_to_end.options_of(["--quick", "--repetitions", "2"])
    order = [(job.repetition, job.workload, job.contender) for job in end_to_end.planned(options, "")]
    one, other = "fit/jax/input-bound", "fit/jax/compute-bound"
    assert order == [
        (0, "jpeg", "ringfeed"),
        (0, one, "model"),
        (0, one, "ringfeed"),
        (0, other, "model"),
        (0, other, "ringfeed"),
        (1, "jpeg", "ringfeed"),
        (1, one, "ringfeed"),
        (1, one, "model"),
        (1, other, "ringfeed"),
        (1, other, "model"),
    ]


def test_the_machine_is_busy_with_all_but_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks of users, nice or not, of the kernel, of interrupts and of other guests count; idle ones, twice, do not."""
    (tmp_path / "stat").write_text("cpu  100 20 30 1000 50 4 5 6 70 8\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    monkeypatch.setattr(proctree, "PROC", tmp_path)
    assert proctree.cpu_s_of_machine() == 165 / os.sysconf("SC_CLK_TCK")
