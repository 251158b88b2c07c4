"""How settings are chosen for a trainer, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringfeed.simulation.report import Report
from ringfeed.simulation.sizing import Wanted, needed, row_of, rows_of, setting_of
from ringfeed.simulation.terms import Costs, Work

pytestmark = pytest.mark.once

TABLE = """\
workers  nodes  rows a ticket  window  slots  bridges  Gbit/s  samples/s     fed  stall an hour  limit
      1      1              1       2      4        1    0.06         48    9.6%      3,255.5 s  actors
      4      1              1       2      4        1    0.23        191   38.3%      2,222.0 s  actors
     16      1              1       2      4        1    0.60        500  100.0%          0.0 s  trainer

needed: 11 workers on 1 node, 4 slots of 64 samples (38.4 MB), 1 bridge, 0.60 Gbit/s"""
WANTED = Wanted(Work(0.02, 0.0, 150_000), Costs(), batch_size=64, appetite=500.0)


def test_tickets_are_worth_a_call() -> None:
    """Of 20 ms or 8 MB, two a batch at least and 64 at most."""
    for work, rows in (
        (Work(0.02, 0.0, 1), 1),
        (Work(0.001, 0.0, 1), 20),
        (Work(0.0001, 0.0, 1), 32),
        (Work(0.001, 0.0, 1_000_000), 8),
        (Work(5.0, 0.0, 1), 1),
    ):
        assert setting_of(replace(WANTED, work=work), 10).rows == rows
    assert setting_of(replace(WANTED, batch_size=1000), 10).rows == 16


def test_latency_widens_the_window() -> None:
    """So far that an actor never waits; eight at most."""
    windows = [setting_of(replace(WANTED, latency_s=latency_s), 10).window for latency_s in (0.0, 0.02, 1.0)]
    assert windows == [2, 4, 8]


def test_slots_and_bridges_grow_with_workers() -> None:
    """Until each actor has its tickets, and no bridge is too busy; a number that is given stays."""
    hungry = replace(WANTED, appetite=20_000.0)
    few, many = (setting_of(hungry, workers) for workers in (4, 512))
    assert (few.slots, few.bridges) == (4, 1)
    assert (many.slots, many.bridges) == (18, 11)
    fixed = setting_of(replace(hungry, slots=5, bridges=2), 512)
    assert (fixed.slots, fixed.bridges) == (5, 2)


def test_what_is_needed_is_enough_and_not_too_much() -> None:
    """The trainer is fed, and would not be by a tenth less."""
    found = needed(WANTED)
    assert found is not None
    assert found.is_fed
    assert found.limit == "trainer"
    assert 500 * 0.02 <= found.setting.workers <= 12
    assert not row_of(WANTED, int(0.9 * found.setting.workers)).is_fed


@pytest.mark.parametrize(
    ("changed", "limit"),
    [
        ({"gbits": 0.4}, "link"),
        ({"bridges": 1, "appetite": 9000.0}, "bridge"),
    ],
)
def test_what_workers_cannot_bring(changed: dict[str, float], limit: str) -> None:
    """Where another part is too narrow, no number of workers is enough, and that part is named."""
    wanted = replace(WANTED, **changed)
    assert needed(wanted) is None
    assert row_of(wanted, 600).limit == limit


def test_narrow_nodes_need_more_of_them() -> None:
    """A link of each node: more workers than the work asks for bring more links."""
    wanted = replace(WANTED, node_gbits=0.1, actors_per_node=4)
    assert row_of(wanted, 12).limit == "node link"
    found = needed(wanted)
    assert found is not None
    assert found.setting.nodes * 0.1 >= 500 * 150_000 * 8e-9
    assert found.setting.workers > 20


def test_samples_that_differ_need_more_slots() -> None:
    """As many as bring something: the slots that were reckoned are not enough where a batch waits for its slowest."""
    uneven = replace(WANTED, work=Work(0.02, 2.0, 1000), appetite=4000.0)
    assert row_of(uneven, 64).setting.slots > setting_of(uneven, 64).slots
    assert row_of(replace(uneven, slots=4), 64).setting.slots == 4
    assert row_of(replace(uneven, slots=4), 64).limit == "slots"


def test_deaths_cost_stall() -> None:
    """So many an hour, times what one costs."""
    fed = replace(WANTED, actor_losses=0.0)
    assert row_of(fed, 16).stall_s == 0.0
    one, ten = (row_of(replace(fed, node_losses=losses), 16).stall_s for losses in (1.0, 10.0))
    assert 0.5 < one < 3.0
    assert ten == pytest.approx(10 * one)


def test_the_report_as_a_user_reads_it() -> None:
    """All of it."""
    found = needed(WANTED)
    report = Report(WANTED, tuple(rows_of(WANTED, (1, 4, 16))), found, calibrated=False)
    assert str(report) == (
        "a trainer that takes 500 samples a second: a batch of 64 every 128.0 ms\n"
        "a sample: 20.0 ms of work (coefficient of variation 0), 150.0 kB\n"
        "a ticket: 300.0 us of a bridge, and 0.84 s a GB up to 8 MB, 0.2 above; 900.0 us of an actor (by default, as "
        f"measured on two cores: calibrate on your own machines)\n\n{TABLE}"
    )
    assert [row["workers"] for row in report.as_json()["rows"]] == [1, 4, 16]
    assert report.as_json()["needed"]["workers"] == found.setting.workers if found else 0


def test_the_report_of_what_cannot_be() -> None:
    """The last line says what is the most, and the limit."""
    wanted = replace(WANTED, gbits=0.4)
    last = str(Report(wanted, tuple(rows_of(wanted, (4, 32))), needed(wanted), calibrated=True)).splitlines()[-1]
    assert last == (
        "no number of workers up to 10,000 feeds it: the most is 333 samples a second with 32 workers, and the limit "
        "is link"
    )
