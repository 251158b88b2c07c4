"""The simulator's model: the laws that any queue obeys, and what deaths cost. No clock: times are the model's own."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.simulation.model import simulate
from ringfeed.simulation.terms import Costs, Setting, Work

pytestmark = pytest.mark.once

FREE = Costs(0.0, 0.0, 0.0, 0.0, start_s=1.0, actor_lost_s=0.02, node_lost_s=1.7)
EVEN = Work(0.02, 0.0, 0)


def pauses(times: tuple[float, ...]) -> list[float]:
    """Return the times between batches."""
    return [later - sooner for sooner, later in pairwise(times)]


settings = st.builds(
    Setting,
    workers=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    rows=st.integers(1, 20),
    window=st.integers(1, 8),
    slots=st.integers(2, 20),
    bridges=st.integers(1, 4),
    actors_per_node=st.integers(1, 20),
    step_s=st.sampled_from([0.0, 0.001, 0.05]),
    node_gbits=st.sampled_from([math.inf, 0.1, 10.0]),
    gbits=st.sampled_from([math.inf, 0.1, 25.0]),
    latency_s=st.floats(0.0, 0.01),
    cores=st.sampled_from([None, 1, 2, 8]),
    lost=st.lists(st.tuples(st.floats(0.0, 5.0), st.sampled_from(["actor", "node"])), max_size=3).map(tuple),
)
works = st.builds(Work, st.floats(0.001, 0.1), st.floats(0.0, 3.0), st.integers(0, 5_000_000))
costs = st.builds(Costs)


@given(settings, works, costs, st.integers(0, 9))
def test_laws(setting: Setting, work: Work, costs: Costs, seed: int) -> None:
    """Batches come in order, each once; Little's law holds; no part passes more than it can; a seed fixes the run."""
    found = simulate(setting, work, costs, batches=20, seed=seed)
    assert found == simulate(setting, work, costs, batches=20, seed=seed)
    assert len(found.batches) == 20
    assert [*found.batches] == sorted(found.batches)
    rate = found.tickets / found.took_s
    assert found.in_flight == pytest.approx(rate * found.flight_s, rel=1e-6)
    assert found.in_flight <= setting.workers * setting.window + len(setting.lost) * setting.workers * setting.window
    if setting.step_s:
        assert min(pauses(found.batches)) >= setting.step_s * (1 - 1e-9)
    busy = {name: share for name, share in found.busy.items() if name != "actors"}
    assert max(busy.values()) <= 1 + 1e-9
    assert 0.0 <= found.stall <= 1.0


@pytest.mark.parametrize("workers", [1, 2, 8, 32])
def test_without_costs_it_is_linear(workers: int) -> None:
    """One ticket a worker, no latency, even samples: each worker brings as much as the first."""
    setting = Setting(workers, batch_size=32, window=1, slots=2 * workers)
    assert simulate(setting, EVEN, FREE).samples_per_s == pytest.approx(workers / EVEN.sample_s, rel=0.03)


BOUND = Setting(32, batch_size=32, window=4, slots=32)


@pytest.mark.parametrize(
    ("name", "setting", "changed"),
    [
        ("actors", BOUND, {}),
        ("bridge", replace(BOUND, workers=200, slots=200), {"call_s": 0.001}),
        ("link", replace(BOUND, gbits=0.5), {}),
        ("node link", replace(BOUND, node_gbits=0.1), {}),
        ("trainer", replace(BOUND, step_s=0.1), {}),
    ],
)
def test_the_lowest_bound_is_met(name: str, setting: Setting, changed: dict[str, float]) -> None:
    """With much in flight the rate is that of the narrowest part, and never more."""
    work, costs = Work(0.02, 0.0, 150_000), replace(FREE, **changed)
    bounds = setting.bounds(work, costs)
    assert min(bounds, key=lambda each: bounds[each]) == name
    rate = simulate(setting, work, costs, batches=300).samples_per_s
    assert 0.93 * bounds[name] <= rate <= 1.03 * bounds[name]


def test_latency_is_hidden_by_the_window() -> None:
    """One ticket at a time waits for the way there and back; two do not."""
    setting = Setting(4, batch_size=8, window=1, slots=20, latency_s=0.01)
    alone, two = (simulate(replace(setting, window=window), EVEN, FREE).samples_per_s for window in (1, 2))
    assert alone == pytest.approx(4 / 0.04, rel=0.03)
    assert two == pytest.approx(4 / 0.02, rel=0.03)


def test_two_slots_wait_for_the_slowest() -> None:
    """Samples that differ hold up a batch, and few slots the actors with it."""
    work, setting = Work(0.02, 2.0, 0), Setting(16, batch_size=16, window=2, slots=2)
    few, many = (simulate(replace(setting, slots=slots), work, FREE, batches=400) for slots in (2, 40))
    assert many.samples_per_s > 1.5 * few.samples_per_s
    assert few.starved > 0.3
    assert many.starved < 0.01


def test_cores_are_shared() -> None:
    """Sixty-four actors that wait, and answer by two cores, are bound by these."""
    costs = replace(FREE, call_s=0.0003, actor_call_s=0.0009)
    setting = Setting(64, batch_size=64, slots=20, cores=2)
    assert simulate(setting, EVEN, costs).samples_per_s == pytest.approx(2 / 0.0012, rel=0.08)


@pytest.mark.parametrize(("what", "pause_s"), [("actor", 0.02), ("node", 1.0)])
def test_a_death_costs_its_notice(what: str, pause_s: float) -> None:
    """Rows run again when the death is noticed, or hedged: nothing is lost, and the pause is not much longer."""
    setting = Setting(16, batch_size=16, slots=6, actors_per_node=8)
    whole = simulate(setting, EVEN, FREE, batches=400)
    broken = simulate(replace(setting, lost=((whole.took_s / 3, what),)), EVEN, FREE, batches=400)
    assert pause_s <= max(pauses(broken.batches)) <= pause_s + 0.1
    assert broken.tickets == whole.tickets
    assert broken.took_s > whole.took_s


def test_the_only_worker_dies() -> None:
    """Nothing goes on until another one has started."""
    setting = replace(Setting(1, batch_size=1, slots=4), lost=((1.0, "actor"),))
    times = simulate(setting, EVEN, FREE, batches=100).batches
    assert max(pauses(times)) > 1.0
