"""README's figures are from a commit near the head."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_COMMITS, MOST_DAYS = 60, 14


def git(*words: str) -> str:
    """What a command of git's prints; the test is skipped where this is no clone."""
    program = shutil.which("git")
    if program is None or not (ROOT / ".git").exists():
        pytest.skip("not in a clone, so commits have no age here")
    ended = subprocess.run(
        [program, "-C", str(ROOT), *words], check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def commits_of(page: str) -> list[str]:
    """The commits that a page's figures name."""
    block = page.partition("<!-- figures:begin -->")[2].partition("<!-- figures:end -->")[0]
    return re.findall(r"[0-9a-f]{12}\b", block.rpartition("; commit ")[2])


def faults_of(commit: str) -> list[str]:
    """Why a commit is too old: what has changed in the package since it."""
    changes = git("log", "--format=%ct", f"{commit}..HEAD", "--", "src", "cext").split()
    measured = int(git("log", "-1", "--format=%ct", commit))
    faults = []
    if len(changes) > MOST_COMMITS:
        faults.append(f"{len(changes)} commits changed src or cext since {commit}")
    if changes and (days := (int(changes[0]) - measured) // 86400) > MOST_DAYS:
        faults.append(f"src or cext changed {days} days after {commit}")
    return faults


def test_the_figures_are_of_today() -> None:
    """At most 60 commits or 14 days lie between what was measured and the last change of the package."""
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone has no history")
    commits = commits_of((ROOT / "README.md").read_text())
    assert commits
    assert [fault for commit in commits for fault in faults_of(commit)] == []


def test_old_figures_are_seen() -> None:
    """A commit with more changes behind it than are allowed is a fault."""
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone has no history")
    changes = git("log", "--format=%h", f"-{MOST_COMMITS + 2}", "--abbrev=12", "--", "src").split()
    assert len(faults_of(changes[-1])) >= 1
    assert commits_of(f"<!-- figures:begin -->x; commit {changes[0]}; y<!-- figures:end -->") == [
        changes[0]
    ]
