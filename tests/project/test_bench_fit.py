"""Whole epochs of `fit` in the bench: it trains on every backend, and its table says what was measured."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benched import BENCH, bench, record

sys.path.append(str(BENCH))

import run
from harness import proctree
from report import report
from report.bounds import bounds
from report.results import Results
from workloads.cases import BACKENDS, SIZES
from workloads.photographs import PHOTOGRAPHS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

CASE = "fit/jax/input-bound"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_is_trained_and_measured(backend: str, tmp_path: Path) -> None:
    """Each contender trains on the same batches, leaves nothing behind, and stands beside its bounds."""
    for package in (backend, "keras", "PIL", *PHOTOGRAPHS):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    # With JAX and torch Keras' own PyDataset begins elsewhere (it has taken a batch to see its
    # form); its processes are forked beside TensorFlow's threads, and may hang.
    names = ["model", "ringfeed", *(["keras-threads"] if backend == "tensorflow" else [])]
    case = f"fit/{backend}/input-bound"
    arguments = ("--workload", case, "--batches", "4", "--seconds", "0.01", "--timeout", "200")
    status, lines = bench(
        tmp_path / "lines.jsonl", *arguments, "--contender", *names, forks=backend == "tensorflow"
    )
    shown = (tmp_path / "lines.log").read_text()
    assert status == 0, shown
    loader, *fits = lines
    assert (loader["case"], [(fit["case"], fit["contender"]) for fit in fits]) == (
        "input/jpeg",
        [(case, name) for name in names],
    )
    figures = {fit["contender"]: fit["figures"] for fit in fits}
    assert all(
        (one["batches"], one["left_behind"], one["copied"]) == (4, 0, 0) for one in figures.values()
    )
    assert all(one["per_batch_s"] > 0 and one["cpu_s_per_batch"] > 0 for one in figures.values())
    assert f"| ringfeed, {backend}, input-bound |" in shown
    fed = [one["losses"][:3] for name, one in figures.items() if name != "model"]
    assert all(losses == pytest.approx(fed[0], rel=1e-3) for losses in fed)


def fitted(contender: str, repetition: int, **figures: float) -> dict[str, Any]:
    """Return a line of an epoch of `fit` on JAX."""
    return record(contender, repetition, CASE, **figures)


def measured(number: int, epoch_s: float) -> list[dict[str, Any]]:
    """Return one repetition of ringfeed and its bounds, the largest of them 20 ms of CPU seconds over two cores."""
    return [
        record("ringfeed", number, "input/jpeg", per_batch_s=0.017, cpu_s_per_batch=0.034),
        fitted("model", number, per_batch_s=0.002, cpu_s_per_batch=0.003),
        fitted(
            "ringfeed",
            number,
            per_batch_s=epoch_s,
            cpu_s_per_batch=0.04,
            cores_of_others=0.1,
            cores_idle=0.02,
        ),
    ]


def promised(records: list[dict[str, Any]]) -> str:
    """Return the last row of the table of promises."""
    return report.target_table(Results(records)).splitlines()[-1]


def test_an_epoch_stands_beside_its_bounds() -> None:
    """An epoch is held against the largest of its three bounds in the same repetition, and that of the bare work."""
    processes = fitted(
        "keras-processes", 0, per_batch_s=0.034, cpu_s_per_batch=0.05, cores_idle=0.5
    )
    results = Results([*measured(0, 0.021), processes])
    assert report.fit_table(results) == (
        "|  | epoch, per batch | input alone | model alone | CPU over cores | over the largest | "
        "over the work | cores idle | cores of others |\n| --- | ---: | ---: | ---: | ---: | ---: "
        "| ---: | ---: | ---: |\n| ringfeed, jax, input-bound | 21.0 ms | 17.0 ms | 2.00 ms | "
        "20.0 ms | 1.05x | 1.14x | 0.02 | 0.10 |\n| Keras PyDataset, processes, jax, input-bound "
        "| 34.0 ms | 17.0 ms | 2.00 ms | 25.0 ms | 1.36x | 1.84x | 0.50 | - |"
    )
    assert report.small_fit_table(results) == (
        "| an epoch, per batch | ringfeed | over its largest bound | Keras PyDataset, processes |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| Keras fit on jax, input-bound | 21.0 ms | 1.05x | 34.0 ms (1.62x) |"
    )
    page = report.render(results)
    assert report.fit_table(results) in page
    assert report.small_fit_table(results) in report.figures(results)


def test_an_epoch_near_its_largest_bound_keeps_the_promise() -> None:
    """The median over repetitions of an epoch over the largest bound may be 1.05, and no more."""
    title = (
        "| Keras fit on jax, input-bound: an epoch over the largest of its bounds | at most 1.05x"
    )
    assert promised(measured(0, 0.021)) == f"{title} | 1.05x | 1 | kept |"
    several = [*measured(0, 0.0208), *measured(1, 0.0216), *measured(2, 0.022)]
    assert promised(several) == f"{title} | 1.08x (1.04 - 1.1) | 3 | **missed** |"


@pytest.mark.parametrize(("longest", "over"), [("input", 1.25), ("model", 1.0)])
def test_the_largest_bound_may_be_any(longest: str, over: float) -> None:
    """Where the input or the model alone takes longest, an epoch is held against that."""
    lines = measured(0, 0.025)
    if longest == "input":
        lines[0]["figures"]["per_batch_s"] = 0.02
        lines[2]["figures"]["cpu_s_per_batch"] = 0.03
    else:
        lines[1]["figures"]["per_batch_s"] = 0.025
    assert bounds(Results(lines), CASE, "ringfeed")[0]["over_largest"] == pytest.approx(over)


def test_without_a_bound_nothing_is_held_against_an_epoch() -> None:
    """A run that failed is listed; where it was a bound, the epoch has its time and no promise."""
    loader, model, epoch = measured(0, 0.021)
    failed = {**model, "error": "no end within its time"}
    del failed["figures"]
    results = Results([loader, epoch, failed])
    text = report.render(results)
    assert "| ringfeed, jax, input-bound | 21.0 ms | - | - | - | - | - | 0.02 | 0.10 |" in text
    assert text.endswith(f"\n\n- {CASE}, model: no end within its time")
    assert report.target_table(results) == report.small_fit_table(results) == ""


def test_contenders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each repetition has the input alone, then every backend there is, each time beginning with another contender."""
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in {"tensorflow", "torch"} else name
    )
    options = run.options_of(
        ["--workload", "fit", "--contender", "model", "ringfeed", "--repetitions", "2"]
    )
    order = [(job.repetition, job.workload, job.contender) for job in run.planned(options, "")]
    one, other = CASE, "fit/jax/compute-bound"
    assert order == [
        (0, "input/jpeg", "ringfeed"),
        (0, one, "model"),
        (0, one, "ringfeed"),
        (0, other, "model"),
        (0, other, "ringfeed"),
        (1, "input/jpeg", "ringfeed"),
        (1, one, "ringfeed"),
        (1, one, "model"),
        (1, other, "ringfeed"),
        (1, other, "model"),
    ]
    assert [line for line in run.left_out(options) if line.startswith("fit")] == [
        f"fit/{backend}/{size} is left out: run pip install {backend}"
        for backend in ("tensorflow", "torch")
        for size in SIZES
    ]


def test_the_machine_is_busy_with_all_but_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ticks of users, nice or not, of the kernel, of interrupts and of other guests count.

    Idle ones, twice, do not.
    """
    (tmp_path / "stat").write_text("cpu  100 20 30 1000 50 4 5 6 70 8\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    monkeypatch.setattr(proctree, "PROC", tmp_path)
    assert proctree.cpu_s_of_machine() == 165 / os.sysconf("SC_CLK_TCK")
