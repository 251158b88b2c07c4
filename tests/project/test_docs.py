"""The examples of docs/resume.md, each killed amid its run and run again, and the texts of its errors."""

from __future__ import annotations

import importlib.util
import re
import signal
import socket
from typing import TYPE_CHECKING

import pytest

import documented
import paged

if TYPE_CHECKING:
    from pathlib import Path

NEEDS = {
    "torch": "torch",
    "torch on several processes": "torch",
    "JAX": "jax",
    "Keras": "keras",
    "tf.data": "tensorflow",
    "Several batches a step": "tensorflow",
}
DIE_AT = {"A sampler of your own": 12, "Hooks": 22, "Keras": 22}
KILLED = -signal.SIGKILL
RANKS = "Ranks that change"
DDP = "torch on several processes"
APART = {RANKS, DDP, "A proof for your dataset", "SIGTERM: Slurm, Ray and spot machines"}


def needed(section: str) -> list[pytest.MarkDecorator]:
    """Return a skip for what a section needs and is not installed."""
    package = NEEDS.get(section)
    missing = package is not None and importlib.util.find_spec(package) is None
    return [pytest.mark.skip(reason=f"{package} is not installed")] if missing else []


def sections(names: set[str]) -> list[object]:
    """Return parameters."""
    return [pytest.param(name, marks=needed(name)) for name in documented.blocks() if name in names]


@pytest.mark.long
@pytest.mark.parametrize("section", sections({*documented.blocks()} - APART))
def test_an_example_goes_on(section: str, tmp_path: Path) -> None:
    """Killed and run again, its steps are those of a run that was not, from the last save on."""
    die_at = DIE_AT.get(section, 38)
    whole = documented.finish(documented.begin(section, tmp_path / "whole"), tmp_path / "whole")
    here = tmp_path / "cut"
    first = documented.finish(documented.begin(section, here, die_at=die_at), here, status=KILLED)
    assert first == whole[: die_at - 1]
    rest = documented.finish(documented.begin(section, here), here)
    assert rest == whole[len(whole) - len(rest) :]
    assert die_at - 6 <= len(whole) - len(rest) < die_at


def test_sigterm(tmp_path: Path) -> None:
    """What was asked to end saves where it is: no step comes twice."""
    section = "SIGTERM: Slurm, Ray and spot machines"
    whole = documented.finish(documented.begin(section, tmp_path / "whole"), tmp_path / "whole")
    here = tmp_path / "cut"
    first = documented.finish(documented.begin(section, here, die_at=38), here)
    assert len(first) == 38
    assert first + documented.finish(documented.begin(section, here), here) == whole


def test_ranks_that_change(tmp_path: Path) -> None:
    """Two ranks that are killed, and one that goes on for both: each sample of the epoch comes once."""
    seen: list[int] = []
    for rank in range(2):
        here = tmp_path / str(rank)
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2"}
        first = documented.finish(
            documented.begin(RANKS, here, die_at=5, **ranks), here, status=KILLED
        )
        seen += [label for _, labels in first for label in labels]
    rest = documented.finish(documented.begin(RANKS, here, RANK="0", WORLD_SIZE="1"), here)
    labels = [label for _, labels in rest for label in labels]
    assert len(seen) == 4 * 2 * 32
    assert sorted(seen + labels[: documented.SAMPLES - len(seen)]) == [*range(documented.SAMPLES)]
    assert len(labels) == 10 * documented.SAMPLES - len(seen)


@pytest.mark.parametrize("section", sections({DDP}))
def test_ddp(section: str, tmp_path: Path) -> None:
    """Two processes that are killed and run again, from what one of them has saved."""
    found = []
    for die_at in (0, 38, 0):
        with socket.create_server(
            ("127.0.0.1", 0)
        ) as server:  # one may be taken until the next run
            port = server.getsockname()[1]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        here = tmp_path / ("cut" if found else "whole")
        here.mkdir(exist_ok=True)
        folders = [here, here / "other"]
        if (here / "run.pt").exists():
            (folders[1] / "run.pt").write_bytes((here / "run.pt").read_bytes())
        began = [
            documented.begin(section, folder, die_at=die_at, RANK=str(rank), **where)
            for rank, folder in enumerate(folders)
        ]
        status = KILLED if die_at else 0
        found.append(
            [
                documented.finish(one, folder, status=status)
                for one, folder in zip(began, folders, strict=True)
            ]
        )
    whole, cut, rest = ([[labels for _, labels in steps] for steps in ranks] for ranks in found)
    for number in range(2):
        assert cut[number] == whole[number][:37]
        assert rest[number] == whole[number][35:]


def test_a_proof_for_your_dataset(tmp_path: Path) -> None:
    """It passes."""
    documented.finish(documented.begin("A proof for your dataset", tmp_path), tmp_path)


def texts() -> list[str]:
    """Return the texts of errors that the page has."""
    _, _, table = documented.PAGE.read_text().partition("| Text | What to do |")
    return [found[1] for line in table.splitlines() if (found := re.match(r"\| `([^`]+)`", line))]


def test_the_texts_of_errors_are_those_of_the_source() -> None:
    """Each is there, but for the words that differ from error to error."""
    code = paged.source()
    assert len(texts()) > 10
    assert [text for text in texts() if text not in code] == []
