"""`ringfeed simulate`, and the profile that it reads: what it writes, and what it says of bad input, whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ringfeed.cli.main import main
from ringfeed.cli.profile import Profile, Timed

pytestmark = pytest.mark.once

GIVEN = ["--sample-ms", "20", "--bytes", "1000", "--appetite", "100", "--workers", "1,4"]
PROFILE = {"sample_s": 0.02, "cv": 0.5, "sample_bytes": 1000, "batch_size": 16}


def run(*arguments: str) -> int:
    """Run the command."""
    return main(["simulate", *arguments])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a folder with a profile."""
    monkeypatch.chdir(tmp_path)
    Path("profile.json").write_text(json.dumps(PROFILE))
    return tmp_path


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each number of workers, and what is needed."""
    assert run(*GIVEN) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[5:7]] == ["1", "4"]
    assert lines[-1] == "needed: 3 workers on 1 node, 4 slots of 32 samples (128.0 kB), 1 bridge, 0.00 Gbit/s"


def test_figures(capsys: pytest.CaptureFixture[str], here: Path) -> None:  # noqa: ARG001 - the folder
    """As JSON; a profile says what a sample takes, and the batch size; --step-ms is an appetite."""
    assert run("--profile", "profile.json", "--step-ms", "160", "--workers", "1,4", "--json") == 0
    by_step = json.loads(capsys.readouterr().out)
    assert [row["workers"] for row in by_step["rows"]] == [1, 4]
    assert run("--profile", "profile.json", "--appetite", "100", "--workers", "1,4", "--json") == 0
    assert json.loads(capsys.readouterr().out) == by_step


def test_a_calibration(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """It is in the place of what was measured elsewhere."""
    names = ("inline_s_per_gb", "plasma_s_per_gb", "actor_call_s", "start_s", "actor_lost_s", "node_lost_s")
    (here / "costs.json").write_text(json.dumps({"call_s": 0.01, "machine": "mine", **dict.fromkeys(names, 0.0)}))
    assert run(*GIVEN, "--calibration", "costs.json") == 0
    assert capsys.readouterr().out.splitlines()[2] == (
        "a ticket: 10.0 ms of a bridge, and 0 s a GB up to 8 MB, 0 above; 0.0 us of an actor (as calibrated)"
    )


@pytest.mark.parametrize("name", ["found.svg", "found.png"])
def test_a_picture(here: Path, name: str) -> None:
    """It is drawn beside the table."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert run(*GIVEN, "--plot", name) == 0
    assert (here / name).stat().st_size > 1000


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """The error names the package."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run(*GIVEN, "--plot", "found.svg") == 2
    assert capsys.readouterr().err == (
        "ringfeed simulate: --plot draws by the package matplotlib, which is missing: pip install matplotlib\n"
    )
    assert not (here / "found.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--appetite", "1"], "give --profile, or --sample-ms and --bytes"),
        (["--appetite", "1", "--sample-ms", "3"], "give --profile, or --sample-ms and --bytes"),
        (GIVEN[:4], "give either --appetite, samples a second, or --step-ms, the time of a batch"),
        ([*GIVEN, "--step-ms", "2"], "give either --appetite, samples a second, or --step-ms, the time of a batch"),
        ([*GIVEN, "--appetite", "0"], "--appetite 0 must be above 0"),
        ([*GIVEN, "--appetite", "nan"], "--appetite nan must be above 0"),
        ([*GIVEN, "--gbit", "-1"], "--gbit -1 must be above 0"),
        ([*GIVEN, "--latency-ms", "-1"], "--latency-ms -1 must be 0 or more"),
        ([*GIVEN, "--actor-losses", "inf"], "--actor-losses inf must be 0 or more"),
        ([*GIVEN, "--batch-size", "0"], "--batch-size 0 must be 1 or more"),
        ([*GIVEN, "--bridges", "0"], "--bridges 0 must be 1 or more"),
        ([*GIVEN, "--slots", "1"], "slots=1 must be a number of 2 or more"),
        ([*GIVEN, "--sample-ms", "0"], "sample_s=0.0 must be a number above 0"),
        ([*GIVEN, "--cv", "-1"], "cv=-1.0 must be a number of 0 or more"),
        ([*GIVEN, "--bytes", "-5"], "sample_bytes=-5 must be a number of 0 or more"),
        (
            ["--profile", "profile.json", "--cv", "1", "--bytes", "2", "--appetite", "1"],
            "--profile says what a sample takes: leave out --cv, --bytes",
        ),
        (
            ["--profile", "nowhere.json", "--appetite", "1"],
            "nowhere.json: No such file or directory; give a profile; write one by "
            "`ringfeed profile --json mymodule:dataset > profile.json`",
        ),
        (
            ["--profile", "list.json", "--appetite", "1"],
            "list.json is no JSON object; give a profile; write one by "
            "`ringfeed profile --json mymodule:dataset > profile.json`",
        ),
        (
            [*GIVEN, "--calibration", "profile.json"],
            "profile.json lacks actor_call_s, actor_lost_s, call_s, inline_s_per_gb, node_lost_s, plasma_s_per_gb, "
            "start_s; it has batch_size, cv, sample_bytes, sample_s",
        ),
        (
            [*GIVEN, "--calibration", "words"],
            "words is no JSON object; give a calibration; write one by `python bench/studies/remote.py --calibrate`",
        ),
        ([*GIVEN, "--plot", "found.gif"], "--plot found.gif: the name of a picture ends in .svg, .png, .pdf"),
        ([*GIVEN, "--plot", "no/found.svg"], "--plot no/found.svg: there is no folder no; make it first"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str], text: str) -> None:
    """One line says what and where, and what to give."""
    (here / "list.json").write_text("[1]")
    (here / "words").write_text("call_s = 1")
    assert run(*arguments) == 2
    assert capsys.readouterr() == ("", f"ringfeed simulate: {text}\n")


@pytest.mark.parametrize("value", [-1, True, "fast", None, float("nan")])
def test_a_profile_with_what_is_no_number(capsys: pytest.CaptureFixture[str], here: Path, value: Any) -> None:
    """The error names the figure."""
    (here / "profile.json").write_text(json.dumps({**PROFILE, "sample_s": value}))
    assert run("--profile", "profile.json", "--appetite", "1") == 2
    assert capsys.readouterr().err == f"ringfeed simulate: sample_s={value!r} must be a number above 0\n"


def test_workers_that_are_no_list(capsys: pytest.CaptureFixture[str]) -> None:
    """As argparse says it."""
    with pytest.raises(SystemExit):
        run(*GIVEN, "--workers", "1,20000")
    assert capsys.readouterr().err.splitlines()[-1] == (
        "ringfeed simulate: error: argument --workers: '1,20000' is no list of whole numbers from 1 to 10,000; write "
        "them as 10,100,1000"
    )


def test_a_profile_as_json() -> None:
    """Seconds of a sample with its write, how they differ, and bytes."""
    samples = (Timed(4, 0.002, 0.001, 0.001), Timed(2, 0.004, 0.001, 0.001))
    assert Profile("mine", 64, 4, 150528, samples, ()).as_json() == {
        "name": "mine",
        "batch_size": 64,
        "samples": 2,
        "sample_s": pytest.approx(0.004),
        "cv": pytest.approx(0.25),
        "cpu_s": pytest.approx(0.001),
        "sample_bytes": 150528,
    }


def test_a_profile_of_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    """It is of loaders, and says nothing of a sample."""
    assert main(["profile", "--json", "--script", "train.py"]) == 2
    assert capsys.readouterr().err == (
        "ringfeed profile: --json says what a sample costs: give module:name of a dataset, no loader and no --script\n"
    )
