"""Notebooks show a loader, its plan, statistics and memory as tables of escaped text."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING

import pytest

import ringfeed
from datasets import Oracle
from ringfeed._html import table
from ringfeed.monitor.memory import Held, Memory, Pages, WorkerMemory
from ringfeed.monitor.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Iterator


def cells(html: str | None) -> list[list[str]]:
    """Return the texts of a table, row by row."""
    assert html is not None
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [
        [unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows
    ]


@pytest.fixture
def loader() -> Iterator[ringfeed.Loader]:
    """A loader that has begun nothing."""
    with ringfeed.Loader(Oracle(64), batch_size=8, workers=1, slots=2) as made:
        yield made


def test_a_table() -> None:
    """Texts are escaped wherever they stand."""
    html = table("<a>", [("<b>", "&"), ("c", 3)], ("<x>", "y"))
    assert cells(html) == [["<x>", "y"], ["<b>", "&"], ["c", "3"]]
    assert "<caption>&lt;a&gt;</caption>" in html
    assert not re.search(r"<[abx]>", html)


def test_a_loader(loader: ringfeed.Loader) -> None:
    """What it is, its epochs, its memory, and what was done."""
    list(map(len, loader))
    html = loader._repr_html_()
    assert html is not None
    assert "<caption>Loader of Oracle: batches of 8, workers by forkserver: 1, slots: 2, " in html
    rows = dict(cells(html))
    assert rows["epochs"] == "number 1 is next, 8 batches each"
    assert rows["memory"] == str(loader.plan)
    assert rows["batches"] == "8 of 64 samples"
    assert rows["verdict"].startswith(
        ("too early to say", "no batch", "input-bound", "compute-bound")
    )


@pytest.mark.usefixtures("nothing_left")
def test_a_loader_of_unknown_length() -> None:
    """An iterable's epochs have no number of batches, and a class's own name is escaped."""
    named = type("<b>", (), {"__iter__": lambda _: iter(range(8))})
    with ringfeed.Loader(named(), batch_size=4, workers=0) as loader:
        html = loader._repr_html_()
    assert html is not None
    assert "<b>" not in html
    assert dict(cells(html))["epochs"] == "number 0 is next, of unknown length"


def test_a_loader_that_was_refused() -> None:
    """An object whose parameters were refused has no table: a notebook takes its repr."""
    assert object.__new__(ringfeed.Loader)._repr_html_() is None


def test_a_plan(loader: ringfeed.Loader) -> None:
    """The total, its parts, and the advice where there is one."""
    (name, total), *others = cells(loader.plan._repr_html_())
    assert (name, total) == ("in all", str(loader.plan).partition(":")[0])
    assert ", ".join(text for kind, text in others if kind != "besides") in str(loader.plan)
    assert [kind for kind, _ in others] == ["slots", "control", "dataset", "per worker", "besides"]


def test_advice_stands_once(loader: ringfeed.Loader) -> None:
    """The plan says what would make it smaller; the memory of a run, which shows the plan, does not."""
    advised = replace(loader.plan, advice="keep <uint8>")
    assert cells(advised._repr_html_())[-1] == ["advice", "keep <uint8>"]
    assert str(advised) == f"{loader.plan}; keep <uint8>"
    assert Memory(advised).lines()[0] == ("planned", str(loader.plan))


def test_a_closed_loader_says_so(loader: ringfeed.Loader) -> None:
    """Its repr, its statistics and their table; before, and in a part of the statistics, none does."""
    list(map(len, loader))
    before = copy(loader.stats())
    texts = [repr(loader), repr(before), str(before.lines())]
    assert [text for text in texts if "closed" in text] == []
    loader.close()
    stats = loader.stats()
    assert repr(loader) == f"{texts[0].removesuffix('>')}, closed>"
    assert repr(stats).endswith("; closed>")
    assert stats.lines()[-1] == ("loader", "closed")
    assert cells(loader._repr_html_())[-1] == ["loader", "closed"]
    assert (before.is_closed, stats.is_closed) == (False, True)
    assert [stats.since(then).is_closed for then in (before, copy(stats))] == [True, True]


def test_statistics() -> None:
    """Counts and times; what is rare stands there only if it happened."""
    usual = Stats(
        batches=1200,
        samples=9600,
        stall_s=1.0,
        startup_s=0.25,
        busy_s=3.0,
        elapsed_s=4.0,
        read_s=2e-3,
    )
    assert cells(usual._repr_html_()) == [
        ["batches", "1,200 of 9,600 samples"],
        ["time", "4.0 s, of it 1.0 s waited for batches"],
        ["start-up", "250.0 ms of the waiting"],
        ["workers", "3.0 s at work, 0.0 s waiting for slots, all together"],
        ["a sample", "2.0 ms to read, 0.0 us to write"],
    ]
    rare = Stats(restarts=2, skipped=[3], none_batches=1, verdict="<all> is well")
    assert cells(rare._repr_html_())[5:] == [
        ["replaced", "2 workers"],
        ["skipped", "1 samples"],
        ["left out", "1 batches of None"],
        ["verdict", "<all> is well"],
    ]


def test_statistics_since_a_copy(loader: ringfeed.Loader) -> None:
    """What was done since is the difference of all counts and times; the copy stays as it is."""
    list(map(len, loader))
    before = copy(loader.stats())
    list(map(len, loader))
    stats = loader.stats()
    done = stats.since(before)
    assert (done.batches, done.samples, before.batches) == (8, 64, 8)
    for name in ("stall_s", "busy_s", "elapsed_s", "startup_s", "launch_s", "startup_busy_s"):
        assert getattr(done, name) == pytest.approx(getattr(stats, name) - getattr(before, name))
    assert Stats(skipped=[1, 2, 3]).since(Stats(skipped=[1, 2])).skipped == [3]


def test_memory(loader: ringfeed.Loader) -> None:
    """The four lines of its text, and one for each worker."""
    workers = (WorkerMemory(7, Pages(1000, 500), 2000, 1500),)
    memory = Memory(loader.plan, 5000, Pages(3000, 1000), (Held(1.5, "<train>"),), workers)
    assert cells(memory._repr_html_()) == [
        ["planned", str(loader.plan)],
        ["reserved", "5.0 kB"],
        ["touched", "3.0 kB by this process"],
        ["held", "1 of 2 slots, for 1.5 s: 1 from <train>"],
        ["worker 7", "touched 1.0 kB; with its interpreter 2.0 kB, of which 1.5 kB are its own"],
    ]


def test_plans() -> None:
    """A comparison of plans is its table, with the notes below."""
    found = ringfeed.plan(shape=(8, 8), batch_size=[4, 8], workers=1)
    html = found._repr_html_()
    assert cells(html) == [
        ["sample", "batch size", "slots", "one slot", "in all"],
        *([*row.cells] for row in found.rows),
    ]
    assert html.count("<p>") == len(found.notes)
