"""The tables of the benches of frameworks: each says what its lines hold, and goes to its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

from report import page, tables  # noqa: E402

pytestmark = pytest.mark.long

MACHINE = {"cpu": "CPU", "cores": 2, "kernel": "6.1"}
COMMON = {"commit": "0123456789ab", "versions": {"numpy": "2.4.6"}}
WHERE = (
    "CPU, 2 cores, Linux 6.1; numpy 2.4.6; commit 0123456789ab; medians of 2 repetitions (least - "
    "most)"
)


def step(contender: str, repetition: int, step_s: float) -> dict[str, Any]:
    """Return a line of fit_step.py."""
    figures = {"step_s": step_s, "copied": 0}
    case = {"case": "fit_step/jax", "contender": contender, "repetition": repetition}
    return {**COMMON, **MACHINE, **case, "figures": figures}


def element(contender: str, repetition: int, s: float, case: str = "idle") -> dict[str, Any]:
    """Return a line of elements.py."""
    when = {"time": "2026-11-20T12:00:00+0000", "machine": MACHINE}
    return {
        **COMMON,
        **when,
        "case": case,
        "contender": contender,
        "repetition": repetition,
        "s": s,
    }


def test_a_step_is_held_against_the_constant() -> None:
    """Ratios are of one repetition; ringfeed's has a promise, and a failed run is listed."""
    records = [step("constant", 0, 1e-4), step("ringfeed", 0, 1.2e-4), step("ringfeed", 1, 1.8e-4)]
    records += [
        step("constant", 1, 1.2e-4),
        {**COMMON, **MACHINE, "case": "fit_step/jax", "error": "exit status 1"},
    ]
    assert tables.fit_step_table(records) == (
        f"{WHERE}.\n\n"
        "|  | a step | over the constant | batches copied | promised |  |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| constant, jax | 110 µs (100 - 120) | 1.00x | 0 | - |  |\n"
        "| ringfeed, jax | 150 µs (120 - 180) | 1.35x | 0 | at most 1.25x | **missed** |\n\n"
        "- fit_step/jax: exit status 1"
    )


def test_an_element_is_held_against_from_generator() -> None:
    """Idle and with a thread in the way; the op has a promise for each."""
    records = [element("generator", 0, 9e-5), element("op", 0, 3e-5), element("generator", 1, 9e-5)]
    records += [
        element("op", 1, 2e-5),
        element("generator", 0, 5e-3, "burning"),
        element("op", 0, 5e-4, "burning"),
    ]
    assert tables.elements_table(records) == (
        f"{WHERE}; 2026-11-20.\n\n"
        "|  | an element | from_generator takes | promised |  |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| generator, idle | 90.0 µs (90.0 - 90.0) | 1.00x | - |  |\n"
        "| op, idle | 25.0 µs (20.0 - 30.0) | 3.75x | at least 1.5x | kept |\n"
        "| generator, burning | 5.00 ms (5.00 - 5.00) | 1.00x | - |  |\n"
        "| op, burning | 500 µs (500 - 500) | 10.0x | at least 30x | **missed** |"
    )


def of_gpu(case: str, contender: str, repetition: int, **figures: Any) -> dict[str, Any]:
    """Return a line of gpu.py."""
    when = {"time": "2026-11-20T12:00:00+0000"}
    when["machine"] = {**MACHINE, "gpu": "GPU", "driver": "580.1"}
    facts = {"case": f"gpu/{case}", "contender": contender, "repetition": repetition}
    return {**COMMON, **when, **facts, "figures": figures}


def test_what_a_gpu_was_measured_with_is_shown_in_the_order_of_the_script() -> None:
    """Copies, steps, what they wait for and hide; `fit` has steps alone; failures are named."""
    copies = {"copy_s": 7e-4, "gigabytes_per_s": 55.0, "step_alone_s": 1e-2, "input_s": 2e-3}
    steps = {"step_alone_s": 1e-3, "idle": 0.5, "images_per_s": 32_000.0}
    records = [
        of_gpu("fit on jax", "ringfeed", 0, step_s=2e-3, **steps),
        of_gpu("fit on jax", "ringfeed", 1, step_s=4e-3, **steps),
        of_gpu("torch", "DataLoader", 0, step_s=4e-2, idle=0.75, **copies),
        of_gpu("torch", "ringfeed, pinned", 0, step_s=1.05e-2, idle=0.05, hidden=0.93, **copies),
        {"case": "gpu/jax", "contender": "ringfeed, pinned", "error": "Traceback\nout of memory\n"},
    ]
    assert tables.gpu_table(records) == (
        "CPU, 2 cores, GPU, driver 580.1, Linux 6.1; numpy 2.4.6; commit 0123456789ab; medians of "
        "2 repetitions (least - most); 2026-11-20.\n\n|  | a copy alone | which takes | the step "
        "alone | a fed step | the GPU waits | of the copy hidden | a batch without a step | images "
        "a second |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| torch: ringfeed, pinned | 55.0 GB/s | 700 µs | 10.0 ms | 10.5 ms (10.5 - 10.5) | 5 % | "
        "93 % | 2.00 ms | - |\n"
        "| fit on jax: ringfeed | - | - | 1.00 ms | 3.00 ms (2.00 - 4.00) | 50 % | - | - | 32,000 "
        "|\n"
        "| torch: DataLoader | 55.0 GB/s | 700 µs | 10.0 ms | 40.0 ms (40.0 - 40.0) | 75 % | - | "
        "2.00 ms | - |\n\nFailed:\n\n- out of memory: jax: ringfeed, pinned"
    )


def test_each_file_goes_to_its_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name says which bench it is from.

    Of no other bench it is taken, and without names the newest are.
    """
    readme, results = tmp_path / "README.md", tmp_path / "results"
    readme.write_text("\n".join(mark for name in tables.MARKS for mark in page.marks(name)))
    results.mkdir()
    for day, step_s in (("2026-11-19", 1e-4), ("2026-11-20", 2e-4)):
        (results / f"fit_step-{day}.jsonl").write_text(json.dumps(step("constant", 0, step_s)))
    (results / "elements-2026-11-20.jsonl").write_text(json.dumps(element("generator", 0, 9e-5)))
    monkeypatch.setattr(tables, "README", readme)
    monkeypatch.setattr(tables, "BENCH", tmp_path)
    assert tables.main([]) == 0
    assert readme.read_text().count("| constant, jax | 200 µs") == 1
    assert readme.read_text().count("| generator, idle | 90.0 µs") == 1
    assert tables.main([str(results / "fit_step-2026-11-19.jsonl")]) == 0
    assert readme.read_text().count("| constant, jax | 100 µs") == 1
    capsys.readouterr()
    assert tables.main(["run-2026-11-20.jsonl"]) == 1
    assert capsys.readouterr().err == (
        "run-2026-11-20.jsonl: expected a name that begins with one of fit_step, elements, gpu, "
        "growth, photographs, neighbour, keras_training, elastic, packing, cache and a hyphen\n"
    )
