"""The bench: its runner works, every contender delivers right batches, the tables say what was measured."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from benched import BENCH, bench, record

sys.path.append(str(BENCH))

from typing import TYPE_CHECKING

import run
from contenders import CONTENDERS
from harness import proctree
from report import page, report, tables
from report.results import Results
from workloads import samples
from workloads.cases import CASES, chosen_cases, contenders_of
from workloads.photographs import PHOTOGRAPHS
from workloads.samples import Arrays, Stamped, Uneven, Witnessed
from workloads.workload import Window, Workload, make

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long


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
    forks = ("tensorflow", "tensorflow") in CONTENDERS[contender].requires
    status, records = bench(tmp_path / "lines.jsonl", *arguments, forks=forks)
    seen = [(one["case"], one.get("error"), one["figures"]["left_behind"]) for one in records]
    assert (status, seen) == (0, [("ready", None, 0), ("tiny", None, 0)])
    assert all(one["figures"]["right"] >= 2 and one["figures"]["batches"] >= 1 for one in records)


def test_ringfeed_loses_no_batch_when_every_worker_is_killed(tmp_path: Path) -> None:
    """Two workers killed with SIGKILL in mid-epoch: every batch arrives, in order, right."""
    status, [line] = bench(
        tmp_path / "lines.jsonl", "--workload", "kill", "--contender", "ringfeed"
    )
    figures = line["figures"]
    kept = {
        name: figures[name] for name in ("batches", "expected", "right", "killed", "left_behind")
    }
    assert status == 0
    assert kept == {"batches": 400, "expected": 400, "right": 400, "killed": 2, "left_behind": 0}


def test_memory_of_the_tree_is_seen_from_outside(tmp_path: Path) -> None:
    """The peak counts the slots, in shared memory, and every process of the plain script: two fork the two workers."""
    arguments = ("--workload", "memory/plain", "--contender", "ringfeed", "--seconds", "0.3")
    # On a busy machine no look may fall into the moments in which all processes are there.
    for turn in range(5):
        status, [line] = bench(tmp_path / f"lines-{turn}.jsonl", *arguments)
        figures = line["figures"]
        if figures["peak_processes"] == 5:
            break
    assert (status, figures["peak_processes"]) == (0, 5)
    assert figures["slots_bytes"] == 4 * 64 * 224 * 224 * 3 * 4 <= figures["peak_shared_bytes"]
    assert figures["peak_bytes"] == figures["bare_bytes"] + figures["above_bare_bytes"]


def test_line_says_where_and_how_it_was_had(tmp_path: Path) -> None:
    """A line carries machine, versions, commit, settings and load besides its figures."""
    _, [line] = bench(
        tmp_path / "lines.jsonl", "--workload", "tiny", "--contender", "plain", "--seconds", "0.01"
    )
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


def test_contenders_take_turns() -> None:
    """Each workload sees every contender in turn, and each repetition begins with another."""
    options = run.options_of(
        ["--workload", "tiny", "ready", "--contender", "plain", "ideal", "--repetitions", "2"]
    )
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


def test_repetitions_go_on_where_a_file_ends() -> None:
    """What is added to a file is numbered after what it holds.

    What is told by one repetition is not asked again.
    """
    names = [
        "--workload",
        "slow",
        "epochs",
        "--contender",
        "ringfeed",
        "ideal",
        "--first",
        "1",
        "--repetitions",
        "2",
    ]
    jobs = [
        (job.repetition, job.workload, job.contender)
        for job in run.planned(run.options_of(names), "")
    ]
    assert jobs == [
        (1, "slow", "ideal"),
        (1, "slow", "ringfeed"),
        (2, "slow", "ringfeed"),
        (2, "slow", "ideal"),
    ]


def test_conditions_say_how_many_repetitions_there_are() -> None:
    """From the least of a contender to the most; what one repetition tells does not count."""
    several = [record("ringfeed", number, "slow", per_batch_s=1.0) for number in range(3)]
    lines = [
        *several,
        record("pool", 0, "slow", per_batch_s=1.0),
        record("ringfeed", 0, "epochs", between_s=1.0),
    ]
    assert "; medians of 1 to 3 fresh processes each (least - most); " in report.conditions(
        Results(lines)
    )
    assert "; medians of 3 fresh processes each (least - most); " in report.conditions(
        Results([*several, lines[-1]])
    )


def test_names_choose_cases_and_contenders() -> None:
    """What stands before a slash means all behind it.

    A contender leaves its own cases only when both are named.
    """
    assert chosen_cases(["memory", "kill"]) == ["memory/plain", "memory/unguarded", "kill"]
    assert chosen_cases(["fit/jax"]) == [
        "input/jpeg",
        "fit/jax/input-bound",
        "fit/jax/compute-bound",
    ]
    assert chosen_cases([]) == list(CASES)
    assert "jpeg/warm" not in chosen_cases([], quick=True)
    assert contenders_of("kill", [], case_named=True) == ["ringfeed"]
    assert contenders_of("kill", ["torch", "ideal"], case_named=True) == ["torch"]
    assert contenders_of("kill", ["torch", "ideal"], case_named=False) == []
    assert contenders_of("ready", ["pool", "plain"], case_named=True) == ["pool", "plain"]
    assert contenders_of("ready", ["pool", "plain"], case_named=False) == ["plain"]
    assert contenders_of("arrays", [], case_named=False, quick=True) == ["ringfeed", "ideal"]


def test_what_is_no_time_is_measured_once() -> None:
    """System calls or ends of epochs are told by one repetition.

    Everybody takes part where that is asked for.
    """
    names = ["--workload", "epochs", "slow", "--repetitions", "2"]
    jobs = list(run.planned(run.options_of([*names, "--contender", "ringfeed"]), ""))
    assert [(job.repetition, job.workload) for job in jobs] == [
        (0, "slow"),
        (0, "epochs"),
        (1, "slow"),
    ]
    arrays = ["--workload", "arrays", "--repetitions", "1", "--everybody"]
    everybody = {job.contender for job in run.planned(run.options_of(arrays), "")}
    assert everybody == {name for name, contender in CONTENDERS.items() if not contender.missing()}


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


def test_photographs_are_cropped_the_same_way_each_time() -> None:
    """A crop of 224 x 224 in colour follows from its index, and so does its label."""
    for package in (*PHOTOGRAPHS, "PIL"):
        pytest.importorskip(package, reason="the photographs come inside it, or it decodes them")
    workload = make("jpeg", 0.0)
    crop, label = workload.dataset[8]
    assert (crop.shape, crop.dtype, label) == ((224, 224, 3), np.uint8, 1)
    assert workload.is_right(2, workload.batch(2))
    assert not np.array_equal(crop, workload.dataset[15][0])  # the same photograph elsewhere


def test_a_batch_asks_for_each_sample_once() -> None:
    """Whoever makes whole batches pays for as many samples as the ideal does."""
    dataset = Witnessed(64)
    workload = Workload("witnessed", dataset, 4, Window(0, 10, 0.0))
    images, indices = workload.batch(3)
    assert (len(dataset.makers()), indices.tolist()) == (4, [12, 13, 14, 15])
    workload.fill(3, (images, indices))
    assert len(dataset.makers()) == 8


@pytest.mark.parametrize(
    "name", ["ready", "tiny", "pixels", "slow", "variable", "bytes/1000", "fields/1", "fields/3"]
)
def test_workloads_tell_right_from_wrong(name: str) -> None:
    """A batch made as a careful user makes it is right in its own place, and in no other."""
    workload = make(name, 0.0)
    batch = workload.batch(3)
    assert workload.is_right(3, batch)
    assert not workload.is_right(4, batch)


def test_shuffled_arrays_are_told_by_their_numbers() -> None:
    """Rows in any order are right where each is the one its number names, and is there once."""
    dataset = Arrays(40, (2, 3), 20)
    workload = Workload(
        "arrays", dataset, 4, Window(0, 10, 0.0), given=dataset.given, shuffled=True
    )
    rows, numbers = workload.batch(7)
    by_hand = [dataset[index] for index in range(28, 32)]
    assert np.array_equal(rows, np.stack([row for row, _ in by_hand]))
    assert numbers.tolist() == [number for _, number in by_hand]
    assert workload.is_right(0, (rows[::-1], numbers[::-1]))
    assert not workload.is_right(0, (rows[::-1], numbers))
    assert not workload.is_right(0, (rows[[0, 0]], numbers[[0, 0]]))


def test_one_sample_in_fifty_costs_more() -> None:
    """Which ones follows from a hash of the index, and they are neither more nor fewer."""
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "_hashed", lambda index, size: sizes.append(size))  # noqa: ARG005 - as called
        for index in range(5000):
            Uneven(5000)[index]
    assert set(sizes) == {samples.LIGHT, samples.HEAVY}
    assert samples.HEAVY == 50 * samples.LIGHT
    assert 80 <= sizes.count(samples.HEAVY) <= 120


# ---- what the kernel says ----


def test_usage_of_the_tree_counts_children_alive_and_buried() -> None:
    """CPU seconds of a child count while it lives, and not twice nor less once it is waited for."""
    before = proctree.usage_of_tree()
    burn = "import sys\nsum(range(3_000_000))\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
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
    """A ratio is the median over repetitions of figures of the same repetition.

    Half pairs are left out.
    """
    records = [
        record("ringfeed", number, per_batch_s=cost) for number, cost in enumerate((2.0, 4.0, 8.0))
    ]
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
def test_times_have_three_digits(
    value: float | None, spread: tuple[float, float] | None, text: str
) -> None:
    """In the largest unit they reach, with the least and the most behind them."""
    assert report.quantity(value, report.TIME, spread) == text


def test_figures_compare_with_ringfeed() -> None:
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
    assert report.figures(results) == (
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
            record("ringfeed", 1, per_batch_s=7e-6),
            record("keras-processes", 0, per_batch_s=99e-6),
            *(
                record(name, 0, "tiny", per_batch_s=cost)
                for name, cost in (("ringfeed", 1.0), ("ideal", 0.8))
            ),
            *(
                record(name, 0, "slow", per_batch_s=cost)
                for name, cost in (("ringfeed", 1.0), ("ray", 0.9), ("pool", 2.0))
            ),
            *(
                record(name, 0, "first_batch/plain", first_batch_s=cost)
                for name, cost in (("ringfeed", 0.5), ("ray", 2.0), ("torch", 0.1))
            ),
            *(
                record("ringfeed", number, "kill", right=right, expected=400)
                for number, right in enumerate((399, 400, 400))
            ),
        ]
    )
    assert report.target_table(results) == (
        "|  | promised | measured | repetitions |  |\n| --- | ---: | ---: | ---: | ---: |\n| "
        "ready 1 kB batch | at most 6 µs | 8 µs (7 - 9) | 2 | **missed** |\n| ready 1 kB batch: "
        "keras-processes over ringfeed | at least 15x | 11x | 1 | **missed** |\n| 32 tiny "
        "samples, of the ideal | at least 60 % | 80 % | 1 | kept |\n| slow source: the best rival "
        "over ringfeed | at least 1x | 0.9x, ray | 1 | **missed** |\n| first batch | at most 0.3 "
        "s | 0.5 s | 1 | **missed** |\n| first batch: the soonest rival that does not fork, over "
        "ringfeed | at least 1x | 4x, ray | 1 | kept |\n| batches right and in order, all workers "
        "killed | at least 100 % | 99.75 % (99.75 - 100) | 3 | **missed** |"
    )


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.99, 1.0, 1.02], "tie"),
        ([0.97, 1.02, 1.06], "tie"),
        ([0.98, 1.05, 1.06], "kept"),
        ([1.01, 1.02, 1.2], "kept"),
        ([0.9, 0.9, 0.9, 0.9, 1.01], "**missed**"),
        ([0.95, 0.99, 0.999], "**missed**"),
        ([0.999], "**missed**"),
        ([1.001], "kept"),
    ],
)
def test_nobody_is_ahead_within_the_spread(ratios: list[float], verdict: str) -> None:
    """The best rival ties where repetitions fell to both sides and their median is within half of their spread."""
    records = [record("ringfeed", number, "slow", per_batch_s=1.0) for number in range(len(ratios))]
    records += [
        record("pool", number, "slow", per_batch_s=ratio) for number, ratio in enumerate(ratios)
    ]
    records += [record("torch", number, "slow", per_batch_s=2.0) for number in range(len(ratios))]
    assert report.target_table(Results(records)).endswith(f", pool | {len(ratios)} | {verdict} |")


def test_a_promised_figure_never_ties() -> None:
    """A figure that was promised is kept or missed by its median, however wide its spread."""
    costs = {"ringfeed": (1.0, 1.0, 1.0), "ideal": (0.5, 0.94, 1.5)}
    records = [
        record(name, number, "slow", per_batch_s=cost)
        for name in costs
        for number, cost in enumerate(costs[name])
    ]
    assert report.target_table(Results(records)).endswith("| 94 % (50 - 150) | 3 | **missed** |")


def test_failed_runs_are_listed() -> None:
    """A run without figures shows in the rendered page with its error, and in no table."""
    failed = {**record("torch", 1), "error": "no end within its time"}
    del failed["figures"]
    text = report.render(Results([record("ringfeed", 0, per_batch_s=5e-6), failed]))
    assert text.endswith("### Runs without figures\n\n- ready, torch: no end within its time")


def test_tables_go_between_the_marks(tmp_path: Path) -> None:
    """What stands between the marks of a name is replaced, all else stays.

    A page without them stays as it is.
    """
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
