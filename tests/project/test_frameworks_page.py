"""The examples of docs/frameworks.md run, each alone, and print what their comments say."""

from __future__ import annotations

import re

import pytest

import paged

BLOCKS = dict(
    re.findall(r"\n## ([^\n]*)\n\n```python\n(.*?)```", paged.text_of("frameworks"), re.DOTALL)
)
NEEDS = {"Keras": "keras", "tf.data": "tensorflow", "torch": "torch", "JAX": "jax"}

pytestmark = pytest.mark.once


def test_all_are_found() -> None:
    """Each framework has one, which follows its heading."""
    assert [*BLOCKS] == [*NEEDS]
    assert paged.text_of("frameworks").count("```python") == len(NEEDS)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("section", BLOCKS)
def test_an_example(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs to its end."""
    pytest.importorskip(NEEDS[section], reason=f"{NEEDS[section]} is not installed")
    exec(compile(BLOCKS[section], "frameworks.md", "exec"), {"__name__": "__main__"})  # noqa: S102 - the page's own code
    lines = iter(capsys.readouterr().out.splitlines())
    for promise in paged.promised(BLOCKS[section]):
        assert any(promise.fullmatch(line) for line in lines), promise.pattern
