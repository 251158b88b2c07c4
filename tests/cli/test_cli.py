"""The command ``ringfeed``."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import ringfeed
from ringfeed import plan
from ringfeed.cli.main import load, main

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
import numpy as np

class Rows:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return np.zeros(1000, np.uint8)

class here:
    dataset = Rows()

def make():
    return Rows()

def names():
    return ["a", "bcd"] * 50

import ringfeed
text = ringfeed.Text(1000)
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory."""
    name = f"rows_{tmp_path.name}"
    tmp_path.joinpath(f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_plan_of_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints what the function returns."""
    arguments = [
        "--shape",
        "8,8,3",
        "--shape",
        "16",
        "--dtype",
        "uint8,float32",
        "--batch-size",
        "4,8",
        "--slots",
        "2,4",
    ]
    assert main(["plan", *arguments, "--workers", "3"]) == 0
    expected = plan(shape=[(8, 8, 3), (16,)], dtype=["uint8", "float32"], batch_size=[4, 8], slots=[2, 4], workers=3)
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize("name", ["here.dataset", "make", "Rows"])
def test_plan_of_a_dataset(module: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A dataset in the current directory is found by name, and called where it is a function or a class."""
    assert main(["plan", f"{module}:{name}", "--batch-size", "10", "--memory", "1MB"]) == 0
    assert capsys.readouterr().out == f"{plan(load(f'{module}:{name}'), batch_size=10, memory='1MB')}\n"


def test_plan_of_samples_that_differ_in_length(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With a spec, which is named like a dataset."""
    assert main(["plan", f"{module}:names", "--spec", f"{module}:text", "--slots", "2", "--workers", "0"]) == 0
    assert "a batch needs about" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plan"], "ringfeed plan: give a dataset, or the shape of a sample: one of them says what is planned for\n"),
        (["plan", "rows"], "ringfeed plan: 'rows' names no dataset; write module:name, as in mymodule:dataset\n"),
        (["plan", "no_such_module:rows"], "ringfeed plan: No module named 'no_such_module'\n"),
        (["plan", "math:rows"], "ringfeed plan: module 'math' has no attribute 'rows'\n"),
        (
            ["plan", "math:pi"],
            "ringfeed plan: a float is no dataset: it has neither __getitem__ nor __iter__; give an object with "
            "__len__ and __getitem__, a tuple or dict of arrays, or an iterable\n",
        ),
        (
            ["plan", "--shape", "3", "--slots", "1"],
            "ringfeed plan: slots=1: at least 2 are needed, one to fill while one is in use\n",
        ),
    ],
)
def test_refusals(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be done is one line on standard error, and a status of its own."""
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", text)


def test_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    """What is no number is refused as any other wrong argument."""
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--shape", "a,b"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "ringfeed plan: error: argument --shape: 'a,b' is no list of whole numbers; write them as 64,128"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["x"], "argument pid: 'x' is no whole number above 0"),
        (["0"], "argument pid: '0' is no whole number above 0"),
        (["-5"], "argument pid: '-5' is no whole number above 0"),
        (["7", "--loader", "1.5"], "argument --loader: '1.5' is no whole number above 0"),
        (["7", "--interval", "0"], "argument --interval: '0' is no time from 0.05 to 3600 seconds"),
        (["7", "--interval", "nan"], "argument --interval: 'nan' is no time from 0.05 to 3600 seconds"),
        (["7", "--interval", "soon"], "argument --interval: 'soon' is no time from 0.05 to 3600 seconds"),
    ],
)
def test_wrong_arguments_of_top(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number that cannot be meant is refused as any other wrong argument."""
    with pytest.raises(SystemExit) as caught:
        main(["top", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"ringfeed top: error: {text}"


def test_as_a_module() -> None:
    """``python -m ringfeed`` is the same command."""
    command = [sys.executable, "-m", "ringfeed", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert found.stdout == f"ringfeed {ringfeed.__version__}\n"
