"""Bars of progress: only on a terminal, on standard error, where a command takes long."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ringfeed import _progress
from ringfeed._progress import showing, tell
from watching import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once

SLOW = """
import time
import numpy as np

class Slow:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(1.2)
        return np.zeros(4, np.float32)

dataset = Slow()
"""
QUICK = SLOW.replace("1.2", "0")


def run(tmp_path: Path, script: str, *arguments: str, prelude: str = "") -> tuple[str, str, int]:
    """Run the command with standard error on a terminal; return both outputs and the status."""
    tmp_path.joinpath("slow_samples.py").write_text(script)
    code = (
        f"import sys; {prelude or 0}; from ringfeed.tools.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    environment = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "100",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    above, below = pty.openpty()
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=below, cwd=tmp_path, env=environment
    ) as process:
        os.close(below)
        shown = bytearray()
        while part := _read(above):
            shown += part
        assert process.stdout is not None
        out = process.stdout.read().decode()
        status = process.wait(60)
    os.close(above)
    return out, shown.decode(), status


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:  # nothing has the other end open any more
        return b""


PLAN = ("plan", "slow_samples.py:dataset", "--workers", "0", "--slots", "2")


@pytest.mark.long
def test_a_long_plan(tmp_path: Path) -> None:
    """The step is on the terminal until the end; the table is on standard output as ever."""
    script = SLOW.replace("dataset = Slow()", "time.sleep(3)\ndataset = Slow()")
    out, shown, status = run(tmp_path, script, *PLAN)
    assert status == 0
    assert "loading slow_samples.py:dataset" in shown
    assert shown.endswith("\x1b[1A\x1b[2K")  # the line is taken away
    assert "in all" in out
    assert "\x1b" not in out
    assert run(tmp_path, QUICK, *PLAN)[:2] == (out, "")


@pytest.mark.long
def test_a_long_profile(tmp_path: Path) -> None:
    """Both halves are told of, with how far they are."""
    arguments = ("profile", "slow_samples.py:dataset", "--batch-size", "2", "--seconds", "5")
    out, shown, status = run(tmp_path, SLOW, *arguments)
    assert status == 0
    assert "timing samples" in shown
    assert "reading samples under cProfile" in shown
    assert "a sample" in out


@pytest.mark.parametrize(
    "prelude", ["sys.modules['rich'] = None", "import os; os.environ['TERM'] = 'dumb'"]
)
def test_where_no_bar_can_be(tmp_path: Path, prelude: str) -> None:
    """Without rich, or on a terminal that cannot move its cursor, nothing is shown or fails."""
    script = SLOW.replace("dataset = Slow()", "time.sleep(2.5)\ndataset = Slow()")
    out, shown, status = run(tmp_path, script, *PLAN, prelude=prelude)
    assert (shown, status) == ("", 0)
    assert "in all" in out


def test_not_into_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where standard error is no terminal, or is closed, nothing is written there."""
    monkeypatch.setattr(_progress, "SILENT_S", 0.0)
    with showing(ticks=True):
        tell("something", 0.5)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", None)
    with showing():
        tell("something")


def test_a_bar_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an error the bar and its thread are gone; the next command has its own."""
    monkeypatch.setattr(_progress, "SILENT_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    for what in ("one", "[two]"):
        before = {*threading.enumerate()}
        _fails_beside(what)
        wait_until(lambda before=before: before >= {*threading.enumerate()})
        assert _progress._shown == []
        assert what in capsys.readouterr().err


def _fails_beside(what: str) -> None:
    """Fail with a bar, within which another is asked for, once a thread draws it."""
    count = threading.active_count()
    with suppress(KeyError), showing(ticks=True):
        with showing():
            tell(what, 0.5)
        wait_until(lambda: threading.active_count() > count)
        raise KeyError
