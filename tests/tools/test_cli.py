"""The command ``ringfeed``."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import ringfeed
from ringfeed import plan
from ringfeed.tools.main import main
from ringfeed.tools.place import load
from watching import PATIENCE_S

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
    expected = plan(
        shape=[(8, 8, 3), (16,)],
        dtype=["uint8", "float32"],
        batch_size=[4, 8],
        slots=[2, 4],
        workers=3,
    )
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize("name", ["here.dataset", "make", "Rows"])
def test_plan_of_a_dataset(module: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A dataset of the current directory is found by name; a function or a class is called."""
    assert main(["plan", f"{module}:{name}", "--batch-size", "10", "--memory", "1MB"]) == 0
    assert (
        capsys.readouterr().out
        == f"{plan(load(f'{module}:{name}'), batch_size=10, memory='1MB')}\n"
    )


def test_plan_of_samples_that_differ_in_length(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a spec, which is named like a dataset."""
    assert (
        main(
            [
                "plan",
                f"{module}:names",
                "--spec",
                f"{module}:text",
                "--slots",
                "2",
                "--workers",
                "0",
            ]
        )
        == 0
    )
    assert "a batch needs about" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["plan"],
            (
                "ringfeed plan: give a dataset, or the shape of a sample: one of them says what "
                "is planned for\n"
            ),
        ),
        (
            ["plan", "rows"],
            (
                "ringfeed plan: 'rows' names no dataset; write module:name or script.py:name, as "
                "in mymodule:dataset\n"
            ),
        ),
        (["plan", "no_such_module:rows"], "ringfeed plan: No module named 'no_such_module'\n"),
        (["plan", "math:rows"], "ringfeed plan: module 'math' has no attribute 'rows'\n"),
        (
            ["plan", "math:pi"],
            "ringfeed plan: a float is no dataset: it has neither __getitem__ nor __iter__; give "
            "an object with __len__ and __getitem__, a tuple or dict of arrays, or an iterable\n",
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
        "ringfeed plan: error: argument --shape: 'a,b' is no list of whole numbers; write them as "
        "64,128"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["x"], "error: argument pid: invalid int value: 'x'"),
        (["0"], "there is no process 0; "),
        (["-5"], "there is no process -5; "),
        (["7", "--loader", "1.5"], "error: argument --loader: invalid int value: '1.5'"),
        (["7", "--interval", "soon"], "error: argument --interval: invalid float value: 'soon'"),
        (["7", "--interval", "0"], "interval=0.0 must be positive, the time between two looks"),
        (["7", "--interval", "nan"], "interval=nan must be positive, the time between two looks"),
    ],
)
def test_wrong_arguments_of_top(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong number is refused in a line, with the exit status of any wrong argument."""
    try:
        status = main(["top", *arguments])
    except SystemExit as ended:  # argparse's own
        status = ended.code
    assert status == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"ringfeed top: {text}")


def test_as_a_module() -> None:
    """``python -m ringfeed`` is the same command."""
    command = [sys.executable, "-m", "ringfeed", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert found.stdout == f"ringfeed {ringfeed.__version__}\n"


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    """``ringfeed`` without a command says which there are; that is no error."""
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: ringfeed")
    assert all(command in shown for command in ("plan", "profile", "top", "report"))


def test_a_trace_is_not_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names what is, whatever else was given."""
    assert main(["trace", "-o", "run.html", "train.py"]) == 2
    assert capsys.readouterr().err == (
        "ringfeed trace: there is no such command, since a program traces itself: `with "
        'loader.trace("run.html"):` around its loop writes the page of the run; where it says '
        '"run.json", `ringfeed report run.json` makes the page\n'
    )


@pytest.mark.parametrize("name", ["here.dataset", "make", "Rows"])
def test_plan_of_a_script(
    module: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script is named by its path, from any directory, and found again by the second look."""
    for path in (f"{module}.py", f"./{module}.py", str(tmp_path / f"{module}.py")):
        assert main(["plan", f"{path}:{name}", "--batch-size", "10"]) == 0
        assert capsys.readouterr().out == f"{plan(load(f'{path}:{name}'), batch_size=10)}\n"


def test_a_script_is_not_run_as_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code below the main guard does not run; imports from the script's folder work."""
    folder = tmp_path / "project"
    folder.mkdir()
    folder.joinpath("beside_a_script.py").write_text("rows = [1, 2, 3]")
    lines = (
        "from beside_a_script import rows",
        "dataset = rows",
        "if __name__ == '__main__':",
        "    raise SystemExit(3)",
    )
    folder.joinpath("a_guarded_script.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("a_guarded_script", "beside_a_script"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert load("project/a_guarded_script.py:dataset") == [1, 2, 3]


SAFE = """
import os, sys
dataset = [1.0, 2.0, 3.0]
if os.getcwd() in sys.path:
    sys.exit(7)
"""
NO_MODULE = (
    "no module 'apart' on sys.path, and PYTHONSAFEPATH is set, so the current directory is not "
    "looked at; name the file, as in apart.py:dataset, or put its folder on PYTHONPATH\n"
)


@pytest.mark.parametrize(
    ("words", "status", "errors"),
    [
        (["plan", "apart.py:dataset"], 0, ""),
        (["profile", "apart.py:dataset", "--seconds", "0.1"], 0, ""),
        (
            ["profile", "--script", "apart.py"],
            2,
            "ringfeed profile: apart.py has ended, and read ne",
        ),
        (["plan", "apart:dataset"], 2, f"ringfeed plan: {NO_MODULE}"),
        (["profile", "apart:dataset"], 2, f"ringfeed profile: {NO_MODULE}"),
    ],
)
def test_a_safe_path_is_left_as_it_is(
    words: list[str], status: int, errors: str, tmp_path: Path
) -> None:
    """With PYTHONSAFEPATH no command imports from a folder; the error names a way."""
    tmp_path.joinpath("apart.py").write_text(SAFE)
    command = [sys.executable, "-P", "-m", "ringfeed", *words]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr[: len(errors)]) == (status, errors)


def test_scripts_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing script, one with a module's name, or one that fails is a line; nothing stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    tmp_path.joinpath("json.py").write_text("dataset = [1]")
    tmp_path.joinpath("a_failing_script.py").write_text(
        "dataset = [1]\nraise ValueError('no such folder')"
    )
    tmp_path.joinpath("plain_text").write_text("dataset = [1]")
    texts = {
        "nowhere.py:dataset": "there is no script 'nowhere.py'",
        "json.py:dataset": (
            "json.py has the name of a module that Python has imported already, json; rename the "
            "script"
        ),
        "a_failing_script.py:dataset": "no such folder",
        "./plain_text:dataset": "'plain_text' is no script of Python: its name does not end in .py",
        "json.py:": (
            "'json.py:' names no dataset; write module:name or script.py:name, as in "
            "mymodule:dataset"
        ),
    }
    for place, text in texts.items():
        assert main(["plan", place]) == 2
        assert capsys.readouterr() == ("", f"ringfeed plan: {text}\n")
    assert "a_failing_script" not in sys.modules
