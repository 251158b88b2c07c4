"""The bench of copies to a GPU says what it had, or why it had nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from studies import device_copy

if TYPE_CHECKING:
    from types import ModuleType

torch: ModuleType = pytest.importorskip("torch", reason="torch is not installed")


def test_says_why_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without torch, or where it sees no GPU, nothing is measured, which is no error."""
    monkeypatch.setattr(sys, "argv", ["device_copy.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device_copy.main()
    monkeypatch.setattr(device_copy, "torch", None)
    device_copy.main()
    assert capsys.readouterr().out.splitlines() == [
        f"nothing was measured: torch {torch.__version__} sees no GPU",
        "nothing was measured: torch is not installed",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine")
def test_measures_registered_and_pageable_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line has all figures of both, and what they were had with."""
    output = tmp_path / "lines.jsonl"
    monkeypatch.setattr(sys, "argv", ["device_copy.py", "--output", str(output)])
    device_copy.main()
    line = json.loads(output.read_text())
    assert line == json.loads(capsys.readouterr().out)
    assert line["machine"]["gpu"] == torch.cuda.get_device_name()
    for name in ("pinned", "pageable"):
        assert line["figures"][name].keys() == {"copy_s", "gigabytes_per_s", "step_s", "hidden"}
        assert line["figures"][name]["gigabytes_per_s"] > 0
