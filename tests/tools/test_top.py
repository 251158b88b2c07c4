"""`ringfeed top`: another process's loader, shown until it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest

from ringfeed.tools.discover import running
from ringfeed.tools.main import main
from ringfeed.tools.top import _keys, top
from trainer import Trainer
from watching import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once

OPEN = (
    'loader = ringfeed.Loader(Oracle(96), batch_size=4, workers=2, backend="thread", slots=3); '
    "batches = iter(loader)"
)
MORE = (
    "more = ringfeed.Loader(Oracle(96), batch_size=8, workers=0, slots=2); other = next(iter(more))"
)


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    """A process with a loader, which holds its first batch and takes no other."""
    with Trainer() as found:
        found.do(OPEN)
        found.do("held = next(batches)")
        while "ready" not in found.do(
            "print(loader.slot_states().count('ready') == 2 and 'ready')"
        ):
            time.sleep(0.01)
        yield found


def plain(text: str) -> str:
    """Return a picture without the ages, and without which worker has done what."""
    text = re.sub(r"\d+\.\d (s|ms|us)\b", "AGE", text)
    return re.sub(
        r"thread +\d+%.*(waits for a slot|starts)$", "thread ... idle", text, flags=re.MULTILINE
    )


@pytest.mark.usefixtures("nothing_left")
def test_once(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """A single picture of a loader whose consumer is at something else."""
    assert main(["top", str(trainer.pid), "--once", "--interval", "0.2"]) == 0
    title, *lines = plain(capsys.readouterr().out).splitlines()
    assert title.startswith(f"ringfeed top   process {trainer.pid}   ")
    assert len(title) <= 120
    assert lines == [
        "",
        "loader 1  3 slots of 20.5 kB   2 workers   epoch 0   1 batches so far",
        "training  waits   0%       0.0 batches/s           0 samples/s    0 bytes/s",
        "          no batch was taken for AGE: training is at something else",
        "",
        "",
        "slots     HRR",
        "          H held 1  R ready 2  F filling 0  . free 0  longest held AGE",
        "workers   0% busy",
        "  worker      pid  busy  samples/s  a sample   copy       for  does",
        "       0   thread ... idle",
        "       1   thread ... idle",
        "    slot      batch  rows  state",
        "       0          0     4  held by training for AGE",
        "       1          1     4  ready",
        "       2          2     4  ready",
        "",
    ]


@pytest.mark.usefixtures("nothing_left")
def test_several_loaders(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """All are shown, or the one that is chosen."""
    trainer.do(MORE)
    assert main(["top", str(trainer.pid), "--once", "--interval", "0.05"]) == 0
    heads = [
        line[:18] for line in capsys.readouterr().out.splitlines() if line.startswith("loader")
    ]
    assert heads == ["loader 1  3 slots ", "loader 2  2 slots "]
    assert main(["top", str(trainer.pid), "--once", "--interval", "0.05", "--loader", "2"]) == 0
    heads = [
        line[:18] for line in capsys.readouterr().out.splitlines() if line.startswith("loader")
    ]
    assert heads == ["loader 2  2 slots "]


@pytest.mark.usefixtures("nothing_left")
def test_the_list(trainer: Trainer) -> None:
    """Without a process, those that have a loader are listed; and it is said where none has."""
    head, *lines = running().splitlines()
    assert head == "     pid  loaders  command"
    assert [line.split()[1] for line in lines if int(line.split()[0]) == trainer.pid] == ["1"]


def test_an_empty_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing runs, that is no error."""
    monkeypatch.setattr("ringfeed.tools.discover.processes", list)
    assert main(["top"]) == 0
    assert capsys.readouterr().out == "no process of yours has a running loader\n"


def test_no_keys_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where standard input is closed, the display runs on without keys."""
    monkeypatch.setattr(sys, "stdin", None)
    with _keys() as keys:
        assert keys is None


# ---- refusals ----


def test_no_such_process(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, and the status of the other commands."""
    assert main(["top", "4194305"]) == 2
    assert capsys.readouterr() == (
        "",
        (
            "ringfeed top: there is no process 4194305; `ringfeed top` alone lists those that "
            "have a running loader\n"
        ),
    )


def test_a_process_without_a_loader(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said when there would be one."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as other:
        assert main(["top", str(other.pid)]) == 2
    assert capsys.readouterr().err == (
        f"ringfeed top: process {other.pid} has no running loader: an epoch begins one, and "
        "close() ends it\n"
    )


@pytest.mark.usefixtures("nothing_left")
def test_no_such_loader(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers that there are, are told."""
    assert main(["top", str(trainer.pid), "--loader", "3"]) == 2
    trainer.do(MORE)
    assert main(["top", str(trainer.pid), "--loader", "3"]) == 2
    assert capsys.readouterr().err == (
        f"ringfeed top: process {trainer.pid} has no loader 3: its only one has number 1\n"
        f"ringfeed top: process {trainer.pid} has no loader 3: those that run are numbered 1 to 2\n"
    )


@pytest.mark.usefixtures("nothing_left")
def test_another_version(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loader of another version is said to be one, and what to do."""
    refusal = "this is no loader of this version of ringfeed: seals, magic, ABI or sizes differ"

    def refuse(*_: object, **__: object) -> None:
        raise ValueError(refusal)

    monkeypatch.setattr("ringfeed.tools.discover.Observer", refuse)
    assert main(["top", str(trainer.pid)]) == 2
    assert capsys.readouterr().err == (
        f"ringfeed top: process {trainer.pid}: {refusal}; run the ringfeed of its own environment\n"
    )


WITHOUT_RICH = """
import sys
sys.modules["rich"] = None
from ringfeed.tools.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 0, ""),
        (
            ["1", "--once"],
            2,
            (
                "ringfeed top: the picture is drawn by the package rich, which is missing: pip "
                "install 'ringfeed[top]'\n"
            ),
        ),
    ],
    ids=["list", "picture"],
)
def test_without_rich(arguments: list[str], status: int, said: str) -> None:
    """What is missing is named, and how it is had; the list does without."""
    command = [sys.executable, "-c", WITHOUT_RICH, "top", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (status, said)


# ---- how it ends ----


@pytest.fixture
def observer(trainer: Trainer) -> Iterator[subprocess.Popen[str]]:
    """`ringfeed top` on the trainer, writing into a pipe; its first picture has come."""
    command = [sys.executable, "-m", "ringfeed", "top", str(trainer.pid), "--interval", "0.05"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ringfeed top   process")
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("loader.close()", "process {pid} has closed what was shown\n"),
        ("os._exit(3)", "process {pid} has ended\n"),
    ],
    ids=["close", "end"],
)
def test_the_end_of_what_is_watched(
    trainer: Trainer, observer: subprocess.Popen[str], act: str, said: str
) -> None:
    """That the loader was closed, or the process ended, is said, and is no error."""
    trainer.begin(act)
    out, err = observer.communicate(timeout=PATIENCE_S)
    assert (observer.returncode, err) == (0, "")
    assert out.endswith(said.format(pid=trainer.pid))


@pytest.mark.usefixtures("nothing_left")
def test_ctrl_c(trainer: Trainer, observer: subprocess.Popen[str]) -> None:
    """Ctrl-C leaves quietly, and the loader goes on."""
    observer.send_signal(signal.SIGINT)
    _, err = observer.communicate(timeout=PATIENCE_S)
    assert (observer.returncode, err) == (0, "")
    assert trainer.do("print(len(drain(batches)))") == "92\n"


@pytest.mark.usefixtures("nothing_left")
def test_a_reader_that_has_had_enough(trainer: Trainer, observer: subprocess.Popen[str]) -> None:
    """A pipe that nobody reads any more ends it without a word."""
    assert trainer.pid
    assert observer.stdout is not None
    assert observer.stderr is not None
    observer.stdout.close()
    assert observer.wait(PATIENCE_S) == 0
    assert observer.stderr.read() == ""


# ---- live ----


@pytest.mark.usefixtures("nothing_left")
def test_in_a_terminal(trainer: Trainer) -> None:
    """It is drawn on the terminal's other screen, in colours; Ctrl-C restores the terminal."""
    process, fd = _in_terminal(trainer.pid)
    seen = bytearray()
    try:
        wait_until(
            lambda: _read(fd, seen) and b"longest held" in seen and b"waits for a slot" in seen
        )
        assert b"\x1b[?1049h" in seen
        assert b"\x1b[35mH" in seen  # held: magenta
        process.send_signal(signal.SIGINT)
        wait_until(lambda: _read(fd, seen) and b"\x1b[?1049l" in seen and b"\x1b[?25h" in seen)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(fd)


@pytest.mark.usefixtures("nothing_left")
def test_several_in_a_terminal(trainer: Trainer) -> None:
    """The loaders share a terminal's lines: a long picture leaves room for the next."""
    trainer.do(
        "more = ringfeed.Loader(Oracle(96), batch_size=1, workers=0, slots=40); other = "
        "next(iter(more))"
    )
    process, fd = _in_terminal(trainer.pid)
    seen = bytearray()
    try:
        wait_until(lambda: _read(fd, seen) and b"loader 1" in seen and b"loader 2" in seen)
        os.write(fd, b"q")
        wait_until(lambda: _read(fd, seen) and b"\x1b[?1049l" in seen)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(fd)


@pytest.mark.usefixtures("nothing_left")
def test_q_quits(trainer: Trainer) -> None:
    """Other keys do nothing; q ends it, and the terminal shows what is typed as before."""
    process, fd = _in_terminal(trainer.pid)
    seen = bytearray()
    shown = termios.tcgetattr(fd)[3]
    try:
        wait_until(lambda: _read(fd, seen) and b"longest held" in seen)
        assert termios.tcgetattr(fd)[3] != shown
        os.write(fd, b"xy")
        before = len(seen)
        wait_until(lambda: _read(fd, seen) and len(seen) > before + 1000)
        assert process.poll() is None
        os.write(fd, b"q")
        wait_until(lambda: _read(fd, seen) and b"\x1b[?1049l" in seen)
        assert process.wait(PATIENCE_S) == 0
        assert termios.tcgetattr(fd)[3] == shown
    finally:
        process.kill()
        process.wait()
        os.close(fd)


@pytest.mark.usefixtures("nothing_left")
def test_in_a_tiny_terminal_that_changes(trainer: Trainer) -> None:
    """It is drawn on whatever rows and columns a terminal has, and no line is wrapped."""
    process, fd = _in_terminal(trainer.pid, (1, 1))
    seen = bytearray()
    try:
        for rows, columns in [
            (1, 1),
            (2, 2),
            (0, 0),
            (1, 80),
            (24, 1),
            (24, 2),
            (24, 3),
            (3, 40),
            (24, 80),
        ]:
            _resize(fd, rows, columns)
            for _ in range(2):  # one may have been drawn for the size before
                before = len(seen)
                wait_until(lambda before=before: _read(fd, seen) and len(seen) > before)
            assert process.poll() is None, seen.decode(errors="replace")
        wait_until(lambda: _read(fd, seen) and b"longest held" in seen)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: _read(fd, seen) and b"\x1b[?1049l" in seen)
        assert process.wait(PATIENCE_S) == 0
        assert b"Traceback" not in seen
    finally:
        process.kill()
        process.wait()
        os.close(fd)


def _resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _in_terminal(pid: int, size: tuple[int, int] = (24, 80)) -> tuple[subprocess.Popen[bytes], int]:
    """Start `ringfeed top` in a pseudo terminal; return it, and the terminal's other end."""
    ours, theirs = pty.openpty()
    _resize(ours, *size)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TERM": "xterm-256color",
    }
    command = [sys.executable, "-m", "ringfeed", "top", str(pid), "--interval", "0.05"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    return process, ours


def _read(fd: int, seen: bytearray) -> bool:
    if select.select([fd], [], [], 0.1)[0]:
        seen += os.read(fd, 65536)
    return True


def test_what_is_returned(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """A single picture ends by itself, with nothing to say."""
    assert top(trainer.pid, interval_s=0.05, once=True) == ""
    assert capsys.readouterr().out.count("ringfeed top   process") == 1
