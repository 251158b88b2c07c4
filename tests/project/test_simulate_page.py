"""The examples of docs/simulate.md run, in their order, and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ringfeed.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]

pytestmark = [pytest.mark.once, pytest.mark.long]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Be in a folder that has the page's module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("pictures.py").write_text(CODE[0])
    yield tmp_path
    sys.modules.pop("pictures", None)


def run(command: str) -> str:
    """Run a command of the page; return what it writes, also where that goes to a file."""
    command, _, target = command.partition(" > ")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert main(shlex.split(command)[1:]) == 0
    if target:
        Path(target).write_text(output.getvalue())
    return output.getvalue()


def test_from_a_profile(here: Path) -> None:
    """A profile, a table and a picture."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    run(COMMANDS[0])
    profile = json.loads((here / "profile.json").read_text())
    assert profile["sample_bytes"] == 96 * 96 * 3 + 8
    assert profile["batch_size"] == 64
    assert run(COMMANDS[1]).startswith("a trainer that takes 20,000 samples a second: a batch of 64 every 3.2 ms\n")
    assert (here / "workers.svg").exists()


def test_by_hand() -> None:
    """What the page shows is what is written."""
    (shown,) = re.findall(r"```\n(a trainer .*?)```", PAGE, re.DOTALL)
    assert run(COMMANDS[2]) == shown


def test_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints a line for each number of slots."""
    exec(CODE[1], {})  # noqa: S102 - the page's own code
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["4", "8", "16"]
