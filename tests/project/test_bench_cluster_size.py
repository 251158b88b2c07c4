"""`bench/studies/cluster_size.py`: laws that any queue obeys, and the table.

No clock: times are the model's own.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = [pytest.mark.once, pytest.mark.long]
pytest.importorskip("simpy")

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
from studies.cluster_size import Costs, Setting, simulate  # noqa: E402 - a script of the bench

FREE = Costs(0.0, 0.0, 0.0, 0.0)
BOUND = Setting(32, 0.02, 150_000, window=4, slots=32)


@pytest.mark.parametrize("workers", [1, 2, 8, 32])
def test_without_costs_it_is_linear(workers: int) -> None:
    """With one call an actor and even samples, each actor brings as much as the first."""
    setting = Setting(workers, 0.02, 0, window=1, slots=2 * workers)
    assert simulate(setting, FREE) == pytest.approx(workers / 0.02, rel=0.03)


@pytest.mark.parametrize(
    ("name", "setting", "costs"),
    [
        ("actors", BOUND, FREE),
        ("bridges", replace(BOUND, workers=200, slots=200), FREE._replace(call_s=0.001)),
        ("link", replace(BOUND, gbit=0.5), FREE),
        ("node links", replace(BOUND, node_gbit=0.1), FREE),
        ("trainer", replace(BOUND, step_s=0.1), FREE),
    ],
)
def test_the_lowest_bound_is_met(name: str, setting: Setting, costs: Costs) -> None:
    """With much in flight the rate is that of the narrowest part, and never more."""
    most = setting.most(costs)
    assert min(most, key=lambda each: most[each]) == name
    assert 0.93 * most[name] <= simulate(setting, costs, batches=300) <= 1.03 * most[name]


def test_latency_is_hidden_by_the_window() -> None:
    """One call at a time waits for the way there and back; two do not."""
    setting = Setting(4, 0.02, 0, batch_size=8, slots=20, latency_s=0.01)
    one, two = (simulate(replace(setting, window=window), FREE) for window in (1, 2))
    assert one == pytest.approx(4 / 0.04, rel=0.03)
    assert two == pytest.approx(4 / 0.02, rel=0.03)


def test_samples_that_differ_need_slots() -> None:
    """A batch waits for its slowest sample, and with few slots the actors wait for the batch."""
    setting = Setting(16, 0.02, 0, cv=2.0, batch_size=16)
    few, many = (simulate(replace(setting, slots=slots), FREE, batches=400) for slots in (2, 40))
    assert many > 1.5 * few


def test_cores_are_shared() -> None:
    """Sixty-four actors that wait, and answer by two cores, bring no more than these can compute."""
    setting = Setting(64, 0.02, 0, batch_size=64, slots=20, cores=2)
    costs = FREE._replace(call_s=0.0003, actor_call_s=0.0009)
    assert 0.85 * 2 / 0.0012 <= simulate(setting, costs) <= 2 / 0.0012


def test_the_table() -> None:
    """A line for each number of actors, with what limits it."""
    given = ["--sample-ms", "20", "--bytes", "150528", "--batch-size", "64", "--appetite", "2000"]
    command = [
        sys.executable,
        str(BENCH / "studies" / "cluster_size.py"),
        *given,
        "--workers",
        "1",
        "50",
    ]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert ended.stdout == (
        "workers  rows a call  slots  bridges  samples/s     fed    limit\n"
        "      1            8      4        1         50    2.5%   actors\n"
        "     50            6     12        1       2000  100.0%  trainer\n"
    ), ended.stderr
