"""The bench of what needs a GPU: without one it says what is missing, and all but pinned memory is run on the CPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import warm

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from devices.common import PAGEABLE, PINNED, Scale
from report import page, tables
from studies import device_copy

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[2] / "bench"
TINY = """
import json, sys
sys.path.insert(0, {bench!r})
from devices.common import Scale
from studies.device_copy import checked, contenders_of, measure
scale = Scale(rows=4, shape=(8, 8, 3), samples=8, copies=3, steps=4, warm_up=2, step_s=1e-4, width=8)
framework = {framework!r}
device = () if framework.startswith("fit") else ("cpu",)
found = {{name: measure(framework, name, *device, scale=scale) for name in contenders_of(framework)[1:]}}
print(json.dumps({{"found": found, "why_not": checked(framework)}}))
"""


def missing(framework: str) -> list[pytest.MarkDecorator]:
    """Return a skip for what a framework needs and is not installed."""
    found = [
        name
        for name in device_copy.packages_of(framework)
        if importlib.util.find_spec(name) is None
    ]
    return [pytest.mark.skip(reason=f"{' and '.join(found)} not installed")] if found else []


@pytest.mark.parametrize(
    "framework", [pytest.param(name, marks=missing(name)) for name in device_copy.MODULES]
)
def test_all_but_pinned_memory_runs_on_the_cpu(framework: str) -> None:
    """Every contender gives every figure; a framework that sees no GPU says so."""
    code = TINY.format(bench=str(BENCH), framework=framework)
    environment = device_copy.environment(framework) | {"CUDA_VISIBLE_DEVICES": ""}
    backend = framework.rpartition(" ")[2]
    ended = warm.run_keras(["-c", code], backend, env=environment)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["why_not"].endswith("sees no GPU")
    assert [*said["found"]] == [PAGEABLE, *device_copy.RIVALS[framework.partition(" ")[0]]]
    for figures in said["found"].values():
        if framework.startswith("fit"):
            assert len(figures["epochs_s"]) == 3
            assert figures["per_batch_s"] > 0
        else:
            assert figures["batch_bytes"] == 4 * 4 * 8 * 8 * 3
            assert (
                min(
                    figures[name]
                    for name in ("copy_s", "gigabytes_per_s", "step_alone_s", "step_s")
                )
                > 0
            )
            assert figures["hidden"] <= 1


def test_a_batch_is_as_large_as_it_is_said_to_be() -> None:
    """The page speaks of 38.5 MB; an epoch is long enough for all copies and steps."""
    scale = Scale()
    assert scale.batch_bytes == 38_535_168
    assert len(scale.order) >= scale.rows * (2 * scale.warm_up + scale.copies + scale.steps)
    assert set(scale.order) == set(range(scale.samples))


def test_contenders_are_those_of_the_modules() -> None:
    """The list that needs no framework is that of each framework's own module."""
    for framework, name in device_copy.MODULES.items():
        text = (BENCH / "devices" / f"{name}.py").read_text()
        assert all(
            f'"{rival}"' in text for rival in device_copy.RIVALS[framework.partition(" ")[0]]
        )
        assert device_copy.contenders_of(framework)[:2] == (PINNED, PAGEABLE)


# ---- the runner ----


@pytest.fixture
def readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with a place for the table."""
    path = tmp_path / "README.md"
    path.write_text("\n".join(page.marks("device_copy")))
    monkeypatch.setattr(tables, "README", path)
    return path


def test_without_a_gpu(
    tmp_path: Path,
    readme: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is measured, no file is left, and the page says which figures are missing, and why."""
    monkeypatch.setattr(
        device_copy, "run", lambda framework, *_: {"why_not": f"{framework} 1.0 sees no GPU"}
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jax" else name)
    output = tmp_path / "lines.jsonl"
    arguments = ["--framework", "torch", "jax", "fit on jax", "--output", str(output), "--render"]
    assert device_copy.main(arguments) == 0
    lines = [
        "torch: torch 1.0 sees no GPU; missing: ringfeed, pinned; ringfeed, pageable; DataLoader, "
        "pin_memory; DataLoader",
        (
            "jax: jax not installed; missing: ringfeed, pinned; ringfeed, pageable; device_put, "
            "one ahead"
        ),
        (
            "fit on jax: jax not installed; missing: ringfeed, pinned; ringfeed, pageable; "
            "PyDataset, threads"
        ),
    ]
    assert capsys.readouterr().out.splitlines() == [
        *lines,
        "nothing was measured",
        f"{readme}: the reasons",
    ]
    assert not output.exists()
    begin, end = page.marks("device_copy")
    told = "\n".join(f"- {line}" for line in lines)
    assert readme.read_text() == f"{begin}\nNot measured yet:\n\n{told}\n{end}"


def test_with_a_gpu(
    tmp_path: Path,
    readme: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Contenders take turns, one that fails is a line without figures, and the table names what is missing."""
    ran: list[str] = []

    def run(framework: str, *words: str) -> dict[str, Any]:
        if words == ("--check",):
            return (
                {"error": "Traceback\nImportError: no CUDA"}
                if framework == "jax"
                else {"why_not": ""}
            )
        ran.append(words[1])
        if words[1] == "DataLoader":
            return {"error": "out of memory"}
        return {
            "gpu": "A GPU",
            "copy_s": 1e-3,
            "gigabytes_per_s": 38.5,
            "step_alone_s": 1e-2,
            "step_s": 1e-2,
            "hidden": 1.0,
        }

    monkeypatch.setattr(device_copy, "run", run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    output = tmp_path / "lines.jsonl"
    arguments = [
        "--framework",
        "torch",
        "jax",
        "--repetitions",
        "2",
        "--output",
        str(output),
        "--render",
    ]
    assert device_copy.main(arguments) == 1
    names = [*device_copy.contenders_of("torch")]
    assert ran == [*names, *names[1:], names[0]]
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["contender"] for line in lines] == ran
    assert lines[0]["machine"]["gpu"] == "A GPU"
    assert [line.get("error") for line in lines if line["contender"] == "DataLoader"] == [
        "out of memory"
    ] * 2
    text = readme.read_text()
    assert (
        "| torch: ringfeed, pinned | 38.5 GB/s | 1.00 ms | 10.0 ms | 10.0 ms | 100 % | - |" in text
    )
    assert "- device/torch: out of memory" in text
    assert "Not measured yet:\n\n- jax: ImportError: no CUDA; missing: ringfeed, pinned; " in text
    capsys.readouterr()


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is begun for a number of repetitions below one, or a framework that there is not."""
    for arguments, text in (
        (["--repetitions", "0"], "--repetitions 0: at least 1"),
        (["--framework", "mxnet"], "argument --framework: invalid choice: 'mxnet'"),
    ):
        with pytest.raises(SystemExit) as caught:
            device_copy.main(arguments)
        assert caught.value.code == 2
        assert text in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(bool(missing("torch")), reason="torch is not installed")
def test_measures_on_a_gpu() -> None:
    """On a machine with a GPU, each contender of torch has figures of it."""
    if reason := device_copy.why_not("torch"):
        pytest.skip(reason)
    for contender in device_copy.contenders_of("torch"):
        found = device_copy.run("torch", "--measure", contender)
        assert found.get("gigabytes_per_s", 0) > 0, found
