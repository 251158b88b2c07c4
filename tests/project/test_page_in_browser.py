"""The page of a traced run, opened in a real browser."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from harness.browser import Browser, chromium
from studies.page import made_up

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("bokeh") is None, reason="bokeh is not installed"),
]


def test_a_browser_shows_it(tmp_path: Path) -> None:
    """All is drawn on wide and on narrow screens, nothing sticks out, and the console has nothing to complain of."""
    from ringfeed.monitor.page import report  # noqa: PLC0415 - where bokeh is

    trace = tmp_path / "run.json"
    trace.write_text(json.dumps(made_up(100_000)))
    page = report(trace)
    with Browser() as browser:
        for width in (1280, 400):
            opened = browser.open(page, width)
            assert opened.complaints == []
            assert opened.overflow == 0
            assert "Training waits for its batches" in opened.text
            charts = browser.value("Bokeh.documents[0].roots().length")
            areas = browser.value(
                "Bokeh.index.roots.map(view => view.bbox.width * view.bbox.height)"
            )
            assert charts == 4
            assert sorted(areas)[-charts] > 300 * 150


def test_a_page_with_a_fault_is_found_out(tmp_path: Path) -> None:
    """What the test above relies on: exceptions, errors of the console and files that are missing are all told."""
    page = tmp_path / "page.html"
    page.write_text(
        "<script>document.documentElement.dataset.drawnMs = 1; console.error('one'); "
        "console.warn('two');setTimeout(() => { throw Error('three') })</script><img "
        "src=nowhere.png><div style='width: 500px'>wide</div>"
    )
    with Browser() as browser:
        for width, overflow in ((400, 108), (1280, 0)):
            browser.open(page, width)
            browser.value("new Promise(end => setTimeout(end, 200))")
            opened = browser.open(page, width)
            assert opened.overflow == overflow
            found = " ".join([*opened.complaints, *browser.complaints])
            for part in ("one", "two", "three", "ERR_FILE_NOT_FOUND"):
                assert part in found
