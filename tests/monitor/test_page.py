"""The page of a traced run, made and read without a browser."""

from __future__ import annotations

import importlib.util
import json
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ahead import loader_with
from datasets import Oracle
from looks import MS, look, slot, worker
from ringfeed.monitor.timeline import AT_WORK, EVENT, MEMORY, STALL, Timeline
from ringfeed.monitor.timeline import STEP as TRAINS
from ringfeed.monitor.trace import Trace
from ringfeed.tools.main import main
from watching import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from ringfeed.monitor.snapshot import Slot, Worker

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bokeh") is None,
    reason="bokeh is not installed, nor asked for on Python 3.13: 3.13t has no wheel of PyYAML and tornado",
)

HINT = 'give the file that `with loader.trace("run.json"):` has written'
FACTS = {
    "program": "ringfeed",
    "version": "1.2.3",
    "began": "2026-01-01 12:00:00 +0000",
    "loader": "<Loader of <i>Rows</i>: batches of 4>",
    "limit": "input-bound",
    "seen": [
        ["training waited 40% of the time"],
        [
            "workers are 97% busy in dataset[i], 1.0 ms a sample",
            "add workers (now 1, for 2 CPUs) or make it cheaper",
        ],
        ["start-up took 1.5 s before the first batch: workers start"],
    ],
    "batches": 1,
    "slot_size": 1_000_000,
    "memory": "planned    2.0 MB\nreserved   1.0 MB",
}


def write_trace(path: Path, **facts: Any) -> None:
    """Write a trace of 20 ms: a wait of 4 ms, a step, a ticket of 3 ms, and a slot."""
    with Trace(lambda: None, path, every_s=600, facts=lambda: facts) as trace:
        at = trace._began_ns
        looks: list[tuple[int, list[Slot], list[Worker], int]] = [
            (1, [slot("filling", 0)], [worker(inside=7, since_ns=at + MS, tickets=1)], 0),
            (5, [slot("held", 0, held_ns=at + 4 * MS)], [worker(busy_ns=3 * MS, tickets=1)], 4),
        ]
        for ms, slots, workers, stall_ms in looks:
            trace.look(look(at + ms * MS, slots, workers, stall_ns=stall_ms * MS))
        trace._finish(at + 20 * MS)


def read(page: Path) -> str:
    """Return what can be read on a page, without its scripts and styles."""
    body = page.read_text().partition("<body>")[2]
    return unescape(
        re.sub(r"<[^>]*>", " ", re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL))
    )


def loads(page: Path) -> list[str]:
    """Return what a page would fetch."""
    tags = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page.read_text(), flags=re.DOTALL)
    return [
        url
        for url in re.findall(r"""\b(?:src|href)=["']?([^"'\s>]+)""", tags)
        if not url.startswith("data:")
    ]


def test_what_is_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file has the bottleneck, figures, the longest waits and tickets, and the loader."""
    write_trace(tmp_path / "run.json", **FACTS)
    assert main(["report", str(tmp_path / "run.json")]) == 0
    page = tmp_path / "run.html"
    assert capsys.readouterr() == (f"{page}\n", "")
    text = " ".join(read(page).split())
    expected = [
        "began 2026-01-01 12:00:00 +0000; 20.0 ms, 5 events, ringfeed 1.2.3",
        "Training waits for its batches training waited 40% of the time",
        (
            "workers are 97% busy in dataset[i], 1.0 ms a sample: add workers (now 1, for 2 CPUs) "
            "or make it cheaper"
        ),
        "start-up took 1.5 s before the first batch: workers start",
        (
            "1 batches 50.0 batches a second 4.0 ms to the first batch 4.0 ms, 20% training "
            "waited 15% workers busy"
        ),
        "The longest waits at for 0.000 s 4.0 ms",
        "The slowest tickets seen in by took dataset[7] worker 0 3.0 ms",
        "Workers busy events longest worker 0 15% 1 3.0 ms",
        "<Loader of <i>Rows</i>: batches of 4> planned 2.0 MB reserved 1.0 MB",
    ]
    for part in expected:
        assert part in text
    assert "<i>Rows</i>" not in page.read_text()
    assert loads(page) == []


@pytest.mark.parametrize(
    ("span_s", "stalls", "opening"),
    [
        (1.5, [(0.1, 0.4)], (0.0, 1.5)),
        (60.0, [], (0.0, 60.0)),
        (60.0, [(0.0, 9.0), (30.0, 0.4), (50.0, 0.2)], (29.2, 31.2)),
        (60.0, [(0.0, 9.0), (59.5, 0.4)], (58.0, 60.0)),
        (60.0, [(0.0, 9.0), (9.2, 0.4)], (8.4, 10.4)),
        (60.0, [(0.0, 9.0), (20.0, 4.0)], (19.0, 25.0)),
        (60.0, [(0.0, 1.0)], (0.0, 2.0)),
        (9.0, [(0.9, 8.0)], (0.0, 9.0)),
    ],
)
def test_it_opens_on_the_longest_wait(
    span_s: float, stalls: list[tuple[float, float]], opening: tuple[float, float]
) -> None:
    """Two seconds around it, or more where it is longer; the wait of the start is not meant."""
    from ringfeed.monitor.charts import charts_of  # noqa: PLC0415 - needs bokeh

    rows = [(0, STALL, at, lasted, lasted, "stall") for at, lasted in stalls]
    rows += [(0, TRAINS, at + lasted, 0.01, 0.01, "step") for at, lasted in stalls]
    rows.append((1, AT_WORK, 0.0, span_s, span_s, "ticket"))
    events = np.array(sorted(rows, key=lambda row: row[2]), EVENT).view(np.recarray)
    timeline = Timeline(("consumer", "worker 0"), events, np.empty(0, MEMORY).view(np.recarray), {})
    charts = charts_of(timeline, timeline)
    for chart in charts.values():
        times = chart.x_range
        assert (times.start, times.end) == pytest.approx(opening)
        assert (times.reset_start, times.reset_end) == pytest.approx((0.0, span_s))


def test_a_name_for_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is written where it is wanted, and never over its own trace."""
    trace, page = tmp_path / "run.html", tmp_path / "other.htm"
    write_trace(trace, **FACTS)
    before = trace.read_text()
    assert main(["report", str(trace), "-o", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")
    capsys.readouterr()
    assert main(["report", str(trace)]) == 2
    text = f"the page would take the place of the trace {trace}; give another name with -o"
    assert capsys.readouterr() == ("", f"ringfeed report: {text}\n")
    assert trace.read_text() == before
    assert main(["report", str(trace), "-o", str(tmp_path / "no" / "page.html")]) == 2
    where = tmp_path / "no" / "page.html"
    text = f"the page cannot be written: [Errno 2] No such file or directory: '{where}'"
    assert capsys.readouterr() == ("", f"ringfeed report: {text}\n")


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", ["run.html", "run.HTM"])
def test_a_loader_draws_its_own(tmp_path: Path, name: str) -> None:
    """``loader.trace("run.html")`` makes the page at once, of the work since its beginning."""
    slow = Oracle(64, sleep_s=0.005)  # a trace looks once in a while, and is to see some of it
    with loader_with(slow, batch_size=8, workers=1, slots=2, ahead=False) as loader:
        assert len(list(map(len, loader))) == 8
        with loader.trace(tmp_path / name) as trace:

            def looked_at(_batch: Any) -> None:
                before = trace._looked_ns
                wait_until(lambda: trace._looked_ns > before)

            assert len(list(map(looked_at, loader))) == 8
    text = " ".join(read(tmp_path / name).split())
    assert "8 batches" in text
    assert "Consumer, workers and slots" in text
    assert f"ringfeed {ringfeed.__version__}" in text
    assert "Loader of Oracle: batches of 8, workers by forkserver: 1, slots: 2" in text
    assert "held 0 of 2 slots" in text


@pytest.mark.usefixtures("nothing_left")
def test_nothing_ran(tmp_path: Path) -> None:
    """A page without an epoch says so, and draws nothing."""
    with (
        ringfeed.Loader(Oracle(64), batch_size=8, workers=0) as loader,
        loader.trace(tmp_path / "run.html"),
    ):
        pass
    text = " ".join(read(tmp_path / "run.html").split())
    assert "Too short to say what limits it 0 batches in 0.0 s" in text
    assert "Consumer, workers and slots" not in text


@pytest.mark.parametrize(
    ("limit", "seen", "shown"),
    [
        (
            "compute-bound",
            [["training waited 0.1% of the time"], ["workers are 40% busy", "1 worker would do"]],
            "Batches wait for training: the model is the limit training waited 0.1% of the time "
            "workers are 40% busy: 1 worker would do A loader cannot make this run faster.",
        ),
        (
            "input-bound",
            [["auto: 2 workers: more gave nothing"]],
            (
                "Training waits for its batches auto: 2 workers: more gave nothing ringfeed "
                "profile module:dataset says"
            ),
        ),
        (
            "in this process",
            [
                ["90% of the time went into filling batches, 1.0 ms a sample"],
                ["workers= would do it beside"],
            ],
            "Batches are filled in the training process itself 90% of the time went into filling "
            "batches, 1.0 ms a sample workers= would do it beside workers=1 or more",
        ),
        (
            "too early to say",
            [["3 batches in 0.1 s"]],
            "Too short to say what limits it 3 batches in 0.1 s Trace a longer run",
        ),
        (
            "",
            [["no batch in 9.0 s: workers import tensorflow"]],
            "No batch came no batch in 9.0 s: workers import tensorflow",
        ),
    ],
)
def test_each_verdict_has_a_heading(tmp_path: Path, limit: str, seen: Any, shown: str) -> None:
    """What to change stands apart from what was seen, and the page says where to go on."""
    write_trace(tmp_path / "run.json", program="ringfeed", limit=limit, seen=seen)
    assert main(["report", str(tmp_path / "run.json")]) == 0
    assert shown in " ".join(read(tmp_path / "run.html").split())


def test_a_trace_of_an_older_version(tmp_path: Path) -> None:
    """It has the verdict as a text alone, which is shown as it is."""
    write_trace(
        tmp_path / "run.json", program="ringfeed", verdict="too early to say: 3 batches in 0.1 s"
    )
    assert main(["report", str(tmp_path / "run.json")]) == 0
    text = " ".join(read(tmp_path / "run.html").split())
    assert "What limits the run too early to say: 3 batches in 0.1 s" in text


def test_a_trace_of_nothing(tmp_path: Path) -> None:
    """Without an event there is nothing to say but how to trace."""
    Trace(
        lambda: None, tmp_path / "run.json", every_s=600, facts=lambda: {"program": "ringfeed"}
    ).stop()
    assert main(["report", str(tmp_path / "run.json")]) == 0
    text = " ".join(read(tmp_path / "run.html").split())
    assert (
        "Nothing ran while the trace was made no epoch was under way; put the loop or fit() into "
        "the with" in text
    )


def test_a_trace_without_words(tmp_path: Path) -> None:
    """Of a trace that says nothing of its loader the figures are shown."""
    write_trace(tmp_path / "run.json")
    assert main(["report", str(tmp_path / "run.json")]) == 0
    text = " ".join(read(tmp_path / "run.html").split())
    assert (
        "The trace does not say what limits the run training waited 20% of the time; workers were "
        "15% busy" in text
    )


def test_without_bokeh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing library is named before anything is traced, with the line to type."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    text = (
        "the page is drawn by the package bokeh, which is missing: pip install 'ringfeed[report]'"
    )
    with ringfeed.Loader(Oracle(8), batch_size=8, workers=0) as loader:
        with pytest.raises(ModuleNotFoundError) as caught:
            loader.trace(tmp_path / "run.html")
        assert str(caught.value) == text
        loader.trace(tmp_path / "run.json").stop()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert main(["report", str(tmp_path / "run.json")]) == 2
    assert capsys.readouterr() == ("", f"ringfeed report: {text}\n")


OTHERS = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "chrome"}}
GROUP = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "ringfeed consumer"}}
LINE = {"ph": "M", "pid": 1, "tid": 1000, "name": "thread_name", "args": {"name": "consumer"}}
STEP = {"ph": "X", "pid": 1, "tid": 1000, "name": "step 0", "ts": 1.0, "dur": 2.0, "args": {}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, f"run.json cannot be read: No such file or directory; {HINT}"),
        (b"\xff\xfe\x00", f"run.json cannot be read: it is no text; {HINT}"),
        (b"", "run.json is empty: a trace is written when it is stopped"),
        (
            b'{"traceEvents": [',
            (
                "run.json is no trace, or was cut off: Expecting value: line 1 column 18 (char "
                f"17); {HINT}"
            ),
        ),
        (b"[1, 2]", f"run.json is no trace: it has no list of traceEvents; {HINT}"),
        ([], f"run.json is a trace of another program; {HINT}"),
        ([OTHERS], f"run.json is a trace of another program; {HINT}"),
        (
            [GROUP, LINE, 3],
            (
                "run.json has an event that is damaged (TypeError: 'int' object is not "
                f"subscriptable); {HINT}"
            ),
        ),
        (
            [GROUP, LINE, {**STEP, "dur": -1.0}],
            f"run.json has an event that is damaged (ValueError: -1.0 is no time); {HINT}",
        ),
        (
            [GROUP, LINE, {**STEP, "ts": float("nan")}],
            f"run.json has an event that is damaged (ValueError: nan is no time); {HINT}",
        ),
        (
            [GROUP, LINE, {**STEP, "tid": 7}],
            f"run.json has an event that is damaged (KeyError: 7); {HINT}",
        ),
    ],
)
def test_no_trace(
    content: Any,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is no trace of ringfeed is refused with the reason, and no page is made."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(json.dumps({"traceEvents": content}))
    assert main(["report", "run.json"]) == 2
    assert capsys.readouterr() == ("", f"ringfeed report: {text}\n")
    assert not path.with_suffix(".html").exists()
