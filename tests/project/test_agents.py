"""SKILL.md and llms.txt, for coding agents: their code and commands run as they stand, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import paged
from watching import PATIENCE_S

pytestmark = pytest.mark.once
SKILL, LLMS = paged.ROOT / "SKILL.md", paged.ROOT / "llms.txt"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", SKILL.read_text(), re.DOTALL | re.MULTILINE)


def _run(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def _promised(code: str) -> list[str]:
    return re.findall(r"print\(.*\)  # (.*)", code)


@pytest.mark.long
def test_the_skill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks run in their order, in an empty folder: a script under the name that it has, a command as it is written."""
    pytest.importorskip("torch")
    pytest.importorskip("libcst")
    monkeypatch.chdir(tmp_path)
    command = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    monkeypatch.setenv("PATH", command)
    monkeypatch.syspath_prepend(tmp_path)
    ran = []
    for kind, code in BLOCKS:
        if kind == "python":
            named = re.match(r"# (\w+\.py)\n", code)
            script = Path(named[1] if named else "verify.py")
            # A block without a name goes on after those before it.
            before = script.read_text() if script.exists() and not named else ""
            script.write_text(before + code)
            assert _run(sys.executable, str(script)).splitlines() == _promised(code)
            continue
        for line in code.splitlines():
            words = line.partition("    #")[0].strip()
            if words.startswith("ringfeed "):
                run = words.replace("ringfeed ", f"{sys.executable} -m ringfeed ", 1)
                if "| patch" in words:
                    (tmp_path / "patched.py").write_text(Path("old.py").read_text())
                    run = run.replace("| patch old.py", "| patch patched.py")
                _run("bash", "-o", "pipefail", "-c", run)
                ran.append(words)
    assert len(ran) == 6
    assert "from ringfeed.torch import DataLoader" in (tmp_path / "patched.py").read_text()


def test_what_the_skill_installs() -> None:
    """Each extra exists."""
    extras = tomllib.loads((paged.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]  # fmt: skip
    (line,) = re.findall(r'^pip install "\.\[(.*)\]"', SKILL.read_text(), re.MULTILINE)
    assert {*line.split(","), "torch", "tensorflow", "jax"} <= extras.keys()


def test_the_head_of_the_skill() -> None:
    """Agents find it by its name and its description."""
    head = re.match(r"---\nname: ([a-z-]+)\ndescription: (.*)\n---\n", SKILL.read_text())
    assert head
    assert head[1] == "ringfeed"
    assert len(head[2]) <= 1024


def test_the_text_for_language_models() -> None:
    """It has the form of llms.txt: a title, a summary, lists of links; its program prints what it says."""
    text = LLMS.read_text()
    assert re.match(r"# ringfeed\n\n> .+\n\n", text)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert {*_run(sys.executable, "-c", code).splitlines()} == {*_promised(code)}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        _, *lines = section.strip().splitlines()
        assert all(re.match(r"- \[.+\]\(.+\)", line) for line in lines if line)


@pytest.mark.parametrize("path", [SKILL, LLMS], ids=lambda path: path.name)
def test_the_links(path: Path) -> None:
    """Each leads to a file, or to a heading of one."""
    assert [*paged.broken_links(path)] == []
