"""The bench: its runner works, every contender delivers right batches, the tables say what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))

import launch  # noqa: E402
import page  # noqa: E402
import proctree  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import tables  # noqa: E402
from cases import CASES, chosen_cases, contenders_of  # noqa: E402
from contenders import ASKED, CONTENDERS  # noqa: E402
from results import Results  # noqa: E402
from workloads import PHOTOGRAPHS, Stamped, Window, Workload, make, touch  # noqa: E402


def bench(output: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the bench in a process of its own, as a user does: its exit status and its lines."""
    command = [
        sys.executable,
        str(BENCH / "run.py"),
        "--output",
        str(output),
        "--repetitions",
        "1",
        *arguments,
    ]
    with output.with_suffix(".log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, timeout=240, check=False)
    lines = output.read_text().splitlines() if output.exists() else []
    return done.returncode, [json.loads(line) for line in lines]


def record(contender: str, repetition: int, case: str = "ready", **figures: float) -> dict[str, Any]:
    """A line of results with these figures."""
    place = {"cpu": "CPU", "cores": 2, "memory_bytes": 8e9, "kernel": "6.1", "libc": "glibc 2.36"}
    return {
        "time": "2026-11-20T12:00:00+0000",
        "case": case,
        "contender": contender,
        "repetition": repetition,
        "quick": False,
        "workers": 2,
        "slots": 4,
        "commit": "0123456789ab",
        "machine": place,
        "versions": {"numpy": "2.4.6"},
        "figures": figures,
    }


def stamped() -> Workload:
    """A workload of two fields, four samples a batch."""
    return Workload("stamped", Stamped(40), 4, Window(0, 10, 0.0))


# ---- the runner ----


@pytest.mark.parametrize("contender", CONTENDERS)
def test_every_contender_delivers_right_batches(contender: str, tmp_path: Path) -> None:
    """Batches made of samples and ready ones hold what they must, and no process outlives the run."""
    if missing := CONTENDERS[contender].missing():
        pytest.skip(f"needs {' and '.join(missing)}")
    arguments = ("--workload", "ready", "tiny", "--contender", contender, "--seconds", "0.05")
    status, records = bench(tmp_path / "lines.jsonl", *arguments)
    seen = [(one["case"], one.get("error"), one["figures"]["left_behind"]) for one in records]
    assert (status, seen) == (0, [("ready", None, 0), ("tiny", None, 0)])
    assert all(one["figures"]["right"] >= 2 and one["figures"]["batches"] >= 1 for one in records)


def test_ringfeed_loses_no_batch_when_every_worker_is_killed(tmp_path: Path) -> None:
    """Two workers killed with SIGKILL in mid-epoch: every batch arrives, in order, right."""
    status, [line] = bench(tmp_path / "lines.jsonl", "--workload", "kill", "--contender", "ringfeed")
    figures = line["figures"]
    kept = {name: figures[name] for name in ("batches", "expected", "right", "killed", "left_behind")}
    assert status == 0
    assert kept == {"batches": 400, "expected": 400, "right": 400, "killed": 2, "left_behind": 0}


def test_memory_of_the_tree_is_seen_from_outside(tmp_path: Path) -> None:
    """The peak counts the slots, in shared memory, and every process of the plain script."""
    arguments = ("--workload", "memory/plain", "--contender", "ringfeed", "--seconds", "0.3")
    status, [line] = bench(tmp_path / "lines.jsonl", *arguments)
    figures = line["figures"]
    assert (status, figures["peak_processes"]) == (0, 3)
    assert figures["slots_bytes"] == 4 * 64 * 224 * 224 * 3 * 4 <= figures["peak_shared_bytes"]
    assert figures["peak_bytes"] == figures["bare_bytes"] + figures["above_bare_bytes"]


def test_line_says_where_and_how_it_was_had(tmp_path: Path) -> None:
    """A line carries machine, versions, commit, settings and load besides its figures."""
    _, [line] = bench(tmp_path / "lines.jsonl", "--workload", "tiny", "--contender", "plain", "--seconds", "0.01")
    assert set(line["machine"]) == {"cpu", "cores", "memory_bytes", "kernel", "libc"}
    assert line["versions"]["numpy"] == np.__version__
    assert line["settings"] == {"workers": 0}
    assert (line["workers"], line["slots"], line["quick"], line["seconds"]) == (2, 4, False, 0.01)
    assert line["commit"]
    assert line["load"] >= 0


def test_run_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    """A process that outstays its time is ended, listed without figures, and makes the bench fail."""
    arguments = ("--workload", "tiny", "--contender", "plain", "--timeout", "0.01")
    status, [line] = bench(tmp_path / "lines.jsonl", *arguments)
    assert (status, line["error"], "figures" in line) == (1, "no end within its time", False)


def test_error_of_a_process_is_told_in_one_line() -> None:
    """The last line of what it printed stands behind its exit status."""
    ending = launch.Ending(1, True, 0, launch.Peak(), "Traceback\nValueError: no")  # noqa: FBT003
    assert ending.error() == "exit status 1: ValueError: no"


def test_contenders_take_turns() -> None:
    """Each workload sees every contender in turn, and each repetition begins with another."""
    options = run.options_of(["--workload", "tiny", "ready", "--contender", "plain", "ideal", "--repetitions", "2"])
    order = [(job.repetition, job.workload, job.contender) for job in run.planned(options, "")]
    assert order == [
        (0, "ready", "plain"),
        (0, "ready", "ideal"),
        (0, "tiny", "plain"),
        (0, "tiny", "ideal"),
        (1, "ready", "ideal"),
        (1, "ready", "plain"),
        (1, "tiny", "ideal"),
        (1, "tiny", "plain"),
    ]


def test_names_choose_cases_and_contenders() -> None:
    """A name with two scripts means both; a contender leaves its own cases only when both are named."""
    assert chosen_cases(["memory", "kill"]) == ["memory/plain", "memory/unguarded", "kill"]
    assert chosen_cases([]) == [case for case in CASES if case != "tiny"]
    assert contenders_of("kill", [], case_named=True) == ["ringfeed"]
    assert contenders_of("kill", ["torch", "ideal"], case_named=True) == ["torch"]
    assert contenders_of("kill", ["torch", "ideal"], case_named=False) == []
    assert not set(ASKED) & set(contenders_of("ready", [], case_named=True))
    assert contenders_of("ready", ["pool", "plain"], case_named=True) == ["pool", "plain"]
    assert contenders_of("ready", ["pool", "plain"], case_named=False) == ["plain"]


# ---- the oracle ----


def test_right_batch_is_told_from_a_wrong_one() -> None:
    """Any other byte, index, order, dtype or number of fields makes a batch wrong."""
    workload = stamped()
    images, indices = workload.batch(3)
    assert workload.is_right(3, (images, indices))
    assert workload.is_right(3, [images.copy(), indices.copy()])
    other = images.copy()
    other[2, 5, 5, 1] ^= 1
    wrong = [
        (other, indices),
        (images, indices[::-1]),
        (images, indices.astype(np.int32)),
        (images[:3], indices[:3]),
        (images,),
        workload.batch(4),
    ]
    assert [workload.is_right(3, batch) for batch in wrong] == [False] * len(wrong)


def test_touch_reads_the_first_element() -> None:
    """Of a bare array and of a tuple alike."""
    images, indices = stamped().batch(0)
    assert touch(images) == touch((images, indices)) == images[0, 0, 0, 0]


def test_photographs_are_cropped_the_same_way_each_time() -> None:
    """A crop of 224 x 224 in colour follows from its index, and so does its label."""
    for package in (*PHOTOGRAPHS, "PIL"):
        pytest.importorskip(package, reason="the photographs come inside it, or it decodes them")
    workload = make("jpeg", 0.0)
    crop, label = workload.dataset[8]
    assert (crop.shape, crop.dtype, label) == ((224, 224, 3), np.uint8, 1)
    assert workload.is_right(2, workload.batch(2))
    assert not np.array_equal(crop, workload.dataset[15][0])  # the same photograph elsewhere


# ---- what the kernel says ----


def test_usage_of_the_tree_counts_children_alive_and_buried() -> None:
    """CPU seconds of a child count while it lives, and not twice nor less once it is waited for."""
    before = proctree.usage_of_tree()
    burn = "import sys\nsum(range(3_000_000))\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = proctree.usage_of_tree()
        assert child.pid in proctree.workers(os.getpid())
    buried = proctree.usage_of_tree()
    assert before.cpu_s < alive.cpu_s - 0.01 < buried.cpu_s
    assert before.faults + 100 < alive.faults <= buried.faults
    assert child.pid not in proctree.descendants(os.getpid())


def test_shared_memory_counts_though_nobody_has_mapped_it() -> None:
    """A memfd of 8 MB that is only written to is part of the tree's memory, once for all who hold it open."""
    before = proctree.memory_of_tree([os.getpid()]).shared
    file = os.memfd_create("ringfeed-test")
    try:
        os.write(file, bytes(8 << 20))
        after = proctree.memory_of_tree([os.getpid(), os.getpid()]).shared
    finally:
        os.close(file)
    assert after - before == 8 << 20


# ---- results and tables ----


def test_ratios_are_of_runs_side_by_side() -> None:
    """A ratio is the median over repetitions of figures of the same repetition; half pairs are left out."""
    records = [record("ringfeed", number, per_batch_s=cost) for number, cost in enumerate((2.0, 4.0, 8.0))]
    records += [record("ideal", number, per_batch_s=cost) for number, cost in enumerate((1.0, 1.0))]
    results = Results(records)
    assert results.median("ready", "ringfeed", "per_batch_s") == 4.0
    assert results.ratio("ready", "ringfeed", "ideal") == 3.0
    assert results.ratio("ready", "ringfeed", "torch") is None
    assert results.spread("ready", "ringfeed", "per_batch_s") == (2.0, 8.0)


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (0.0000051, None, "5.10 µs"),
        (0.0266, (0.0259, 0.0312), "26.6 ms (25.9 - 31.2)"),
        (0.207, None, "207 ms"),
        (1.5, None, "1.50 s"),
        (4e-8, None, "0.04 µs"),
        (None, None, "-"),
    ],
)
def test_times_have_three_digits(value: float | None, spread: tuple[float, float] | None, text: str) -> None:
    """In the largest unit they reach, with the least and the most behind them."""
    assert report.quantity(value, report.TIME, spread) == text


def test_small_table_compares_with_ringfeed() -> None:
    """A row for each contender, a column for each workload, ratios to ringfeed, and where it was had."""
    results = Results(
        [
            record("ringfeed", 0, per_batch_s=5e-6),
            record("torch", 0, per_batch_s=8e-4),
            record("ringfeed", 0, "jpeg", per_batch_s=0.027),
            record("torch", 0, "jpeg", per_batch_s=0.054),
            record("torch-arrays", 0, per_batch_s=1e-4),
        ]
    )
    assert report.small_table(results) == (
        "| time per batch (over ringfeed) | ready 1 kB batch | 32 JPEG photographs |\n"
        "| --- | ---: | ---: |\n"
        "| ringfeed | 5.00 µs | 27.0 ms |\n"
        "| torch DataLoader, tensors | 800 µs (160x) | 54.0 ms (2.00x) |\n"
        "| torch DataLoader, arrays | 100 µs (20.0x) | - |\n"
        "\n"
        "CPU, 2 cores, 8 GB, Linux 6.1, glibc 2.36; numpy 2.4.6; commit 0123456789ab; "
        "2 workers, 4 slots; median of one fresh process each; 2026-11-20."
    )


def test_promises_stand_beside_what_was_measured() -> None:
    """A target is kept or missed by its figure, and left out where nothing was measured."""
    results = Results(
        [
            record("ringfeed", 0, per_batch_s=9e-6),
            record("keras-processes", 0, per_batch_s=99e-6),
            record("ringfeed", 0, "kill", right=400, expected=400),
        ]
    )
    assert report.target_table(results) == (
        "|  | promised | measured |  |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| ready 1 kB batch | at most 8 µs | 9 µs | **missed** |\n"
        "| Keras processes over that | at least 10x | 11x | kept |\n"
        "| batches right and in order, all workers killed | at least 100 % | 100 % | kept |"
    )


def test_failed_runs_are_listed() -> None:
    """A run without figures shows in the rendered page with its error, and in no table."""
    failed = {**record("torch", 1), "error": "no end within its time"}
    del failed["figures"]
    text = report.render(Results([record("ringfeed", 0, per_batch_s=5e-6), failed]))
    assert text.endswith("### Runs without figures\n\n- ready, torch: no end within its time")


def test_tables_go_between_the_marks(tmp_path: Path) -> None:
    """What stands between the marks of a name is replaced, all else stays; a page without them stays as it is."""
    file, other = tmp_path / "page.md", tmp_path / "other.md"
    begin, end = page.marks("bench")
    file.write_text(f"above\n{begin}\nold\n{end}\nbelow\n")
    other.write_text("nothing\n")
    assert page.insert(file, "bench", "new")
    assert file.read_text() == f"above\n{begin}\nnew\n{end}\nbelow\n"
    assert not page.insert(file, "recovery", "newer")
    assert not page.insert(other, "bench", "new")
    assert other.read_text() == "nothing\n"
    assert not page.insert(tmp_path / "absent.md", "bench", "new")


def test_page_has_its_marks() -> None:
    """The bench's page takes the tables of every bench, each once."""
    text = (BENCH / "README.md").read_text()
    marks = [mark for name in ("bench", "recovery", *tables.MARKS) for mark in page.marks(name)]
    assert {mark: text.count(mark) for mark in marks} == dict.fromkeys(marks, 1)
