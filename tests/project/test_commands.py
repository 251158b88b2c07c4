"""Each command that README.md and CONTRIBUTING.md name is run by .ci/run, but for those of a release."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.once
ROOT = Path(__file__).parents[2]
RUN = re.findall(r"^run (?:build/pip/bin/)?(.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
OF_A_RELEASE = {"make", "make wheels test-wheels", "make pythons", "make versions", "make upstream"}
"""Hours, or what needs other places than PyPI; `make` alone lists the targets."""


def commands(page: str) -> set[str]:
    """Return the commands of a page: the lines of its blocks of shell, and what stands between backticks."""
    text = (ROOT / page).read_text()
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)).splitlines()
    named = re.findall(r"`(make(?: [a-z-]+)*|\.venv/bin/python [^`]+)`", text)
    return {line.partition("    #")[0].strip() for line in lines} | {*named}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_a_command_of_a_page_is_run(page: str) -> None:
    """In a fresh clone, by .ci/run."""
    assert len(commands(page)) >= 4
    assert commands(page) - {*RUN} - OF_A_RELEASE == set()
