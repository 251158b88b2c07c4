"""The examples of docs/dashboards.md run in their order, with the real libraries where these are installed."""

from __future__ import annotations

import importlib.util
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

pytestmark = pytest.mark.once
PAGE = (Path(__file__).parents[2] / "docs" / "dashboards.md").read_text()
BLOCKS = re.findall(r"```python(?: needs (\S+))?\n(.*?)```", PAGE, re.DOTALL)
PLAIN = "".join(code for needs, code in BLOCKS if not needs)


def run(code: str, names: dict[str, object]) -> None:
    """Run a block, and compare what it prints with its comments."""
    said = StringIO()
    with redirect_stdout(said):
        exec(code, names)  # noqa: S102 - the page's own code
    printed = said.getvalue().splitlines()
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(printed) == len(expected)
    for line, comment in zip(printed, expected, strict=True):
        assert re.fullmatch(re.escape(comment).replace("…", ".+"), line)


@pytest.fixture(scope="module")
def names() -> dict[str, object]:
    """What the plain blocks of the page have defined, all of them run."""
    found: dict[str, object] = {}
    run(PLAIN, found)
    return found


def test_plain_examples(names: dict[str, object]) -> None:
    """They need no package, and print what the page says."""
    assert "loader" in names


@pytest.mark.long
@pytest.mark.parametrize(
    ("needs", "code"), [pytest.param(*block, id=block[0]) for block in BLOCKS if block[0]]
)
def test_a_library(
    names: dict[str, object],
    needs: str,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each callback writes to the real library."""
    for package in needs.split(","):
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(code, {**names})
    if needs != "opentelemetry.sdk":
        assert any(path.stat().st_size > 100 for path in tmp_path.rglob("*") if path.is_file())


def test_prometheus_reads_the_text(names: dict[str, object]) -> None:
    """Prometheus' own client finds each family with its kind, and the histogram whole."""
    parser = pytest.importorskip("prometheus_client.parser", reason="it is not installed")
    families = {f.name: f for f in parser.text_string_to_metric_families(str(names["text"]))}
    assert families["ringfeed_batches"].type == "counter"
    assert families["ringfeed_read_seconds"].type == "gauge"
    waits = families["ringfeed_wait_seconds"]
    assert waits.type == "histogram"
    assert {sample.labels["rank"] for sample in waits.samples} == {"0"}
    assert [s.value for s in waits.samples if s.name.endswith("_count")] == [199.0]
