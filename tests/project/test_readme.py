"""The code of README.md and CONTRIBUTING.md runs as it stands, and README is short."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import paged
import ringfeed

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FIRST, SECOND = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
WORDS = 900
"""A screen and a half, of which 300 words are the table of figures and where it was measured."""


def test_the_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs alone, and prints ten batches, which are the whole dataset."""
    exec(compile(FIRST, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102 - the README's own code
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == ["(100, 32, 32, 3)"] * 10
    assert sum(int(line.split()[-1]) for line in lines) == 100 * sum(range(10))


def test_the_error() -> None:
    """Its text is what the first example says of a picture with another shape."""
    code = FIRST.replace("np.full((32, 32, 3)", "np.full((30 if i == 17 else 32, 32, 3)")
    with pytest.raises(ringfeed.SpecError) as info:
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102 - the README's own code
    shown = re.search(r"```\nSpecError: (.*?)\n```", README, re.DOTALL)
    assert shown
    assert shown[1].replace("\n", " ") == str(info.value)


def test_the_example_of_frameworks() -> None:
    """A fit, a tf.data.Dataset and, where torch is, a loop over tensors, of one loader."""
    keras = pytest.importorskip("keras")
    pytest.importorskip("tensorflow")
    code, loop, rest = SECOND.replace("epochs=10", "epochs=2").partition("for pictures")
    has_torch = importlib.util.find_spec("torch") is not None
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    steps: list[int] = []
    arrays = np.zeros((256, 3), np.float32), np.zeros((256, 1), np.float32)
    with ringfeed.Loader(
        arrays, batch_size=128, shuffle=True, seed=0, workers=1, backend="thread"
    ) as loader:
        names = {
            "model": model,
            "loader": loader,
            "train_step": lambda x, y: steps.append(len(x) + len(y)),
        }
        exec(code + (loop + rest if has_torch else ""), names)  # noqa: S102 - the README's own code
        assert steps == [256, 256] * has_torch
        assert len(names["dataset"]) == 2  # type: ignore[arg-type]


def test_it_is_a_screen_and_a_half() -> None:
    """What is more belongs into docs/."""
    assert len(README.split()) <= WORDS


@pytest.mark.parametrize(
    "word", ["pip install", "make demo", "make test", "docs/index.md", "bench/README.md"]
)
def test_it_names(word: str) -> None:
    """What a newcomer looks for is there."""
    assert word in README


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "bench/README.md"]
)
def test_the_links(page: str) -> None:
    """Each leads to a file, or to a heading of one."""
    assert [*paged.broken_links(ROOT / page)] == []


def test_contributing_names_what_there_is() -> None:
    """Each file, folder, target and name of a module that it tells of exists."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    source = ROOT / "src" / "ringfeed"
    paths = [
        path
        for path in re.findall(r"`([\w./]+/[\w./]+|[\w]+\.\w+)`", text)
        if not path.startswith("ringfeed.")
    ]
    assert len(paths) > 20
    missing = [
        path
        for path in paths
        if not any((folder / path).exists() for folder in (ROOT, source, source.parent))
    ]
    assert missing == ["tests/frameworks/NAME"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {*re.findall(r"\bmake ([a-z-]+)", text)} <= targets
