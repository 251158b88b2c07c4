"""The search of `bench/studies/dlio.py`: it finds the shortest step of a made-up loader, without DLIO."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))  # the packages of the bench

from studies.dlio import Search, table


def search_for(pace_s: float, hidden: float) -> Search:
    """Let a loader be searched that takes `pace_s` for a batch, of which steps hide a part of 0 to 1."""
    search = Search()
    for _ in range(8):
        step_s = search.next_step()
        batch_s = max(step_s, pace_s) * hidden + (step_s + pace_s) * (1 - hidden)
        search.learn(
            {
                "step_s": step_s,
                "au": 100 * step_s / batch_s,
                "batch_s": batch_s,
                "batch_with_first_s": batch_s,
            }
        )
    return search


def test_a_loader_that_reads_during_the_step_needs_nine_tenths_of_its_pace() -> None:
    """The shortest step that keeps 90 % is 0.9 of the pace, between those that kept and those that fell."""
    search = search_for(0.1, hidden=1.0)
    assert max(search.fell_s) < 0.09 <= min(search.kept_s)
    assert min(search.kept_s) == pytest.approx(0.09, rel=0.02)


def test_a_loader_that_reads_between_the_steps_is_followed_to_longer_ones() -> None:
    """Where no step hides the reading, 90 % needs nine times the pace, far over the first bound."""
    search = search_for(0.1, hidden=0.0)
    assert max(search.fell_s) < 0.9 <= min(search.kept_s)


def test_the_table_says_where_nothing_was_found() -> None:
    """A loader without any run has dashes for the steps that were not found."""
    assert table({("whole", "torch"): Search()}, 0.1, 1).splitlines()[-1].split()[-2:] == ["-", "-"]
