"""The demo: a small slice of it from end to end, and what must be true of its parts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import warm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES = Path(__file__).parents[2] / "examples"
HIDE_SKIMAGE = """
import importlib.util, runpy, sys
importlib.util.find_spec = lambda name: None if name == "skimage" else name
runpy.run_path(sys.argv[1], run_name="__main__")
"""
USAGE = """\
usage: demo.py [-h] [--epochs N] [--workers N] [--slots N] [--samples N]
               [--batch-size N] [--output PATH]
"""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that imports a module of the examples, or skips the test without its packages."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return lambda name: pytest.importorskip(name, reason="needs the packages of the demo")


@pytest.fixture
def run(
    example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Return a function that starts a Run around a shell script, with so much patience."""
    demo_run = example("demo_run")
    runs: list[Any] = []

    def start(script: str, patience_s: float = 120.0) -> Any:
        monkeypatch.setattr(demo_run, "PATIENCE_S", patience_s)
        runs.append(demo_run.Run("keras", ["/bin/sh", "-c", script]))
        return runs[-1]

    yield start
    for started in runs:
        started.stop()


def has_ended(process: int) -> bool:
    """Return whether the process is gone, or a zombie, soon."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if stat.rpartition(") ")[2].startswith("Z"):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.long
def test_a_slice_of_the_demo_fills_its_table_and_leaves_a_picture(
    example: Callable[[str], Any], tmp_path: Path
) -> None:
    """In a file, without a display, the table has every figure, and nothing else is written but a picture."""
    for module in "demo_photos", "demo_picture", "tensorflow", "rich":
        example(module)
    small = ["--epochs=2", "--samples=60", "--batch-size=16", "--slots=2"]
    done = warm.run([EXAMPLES / "demo.py", *small], cwd=tmp_path, forks=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    rows = {
        row[0].strip(): [cell.strip() for cell in row[1:]]
        for row in (
            line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")
        )
    }
    patterns = {
        "Held-out crops recognised (guessing: 8%)": [r"\d+\.\d%"] * 2,
        "Time per epoch": [r"\d+\.\d\d s"] * 2,
        "in which the training waited for input": [r"\d+\.\d\d s"] * 2,
        "Shared memory planned": [r"[1-9]\d*\.\d MB", ""],
        "Shared memory really used": [r"[1-9]\d*\.\d MB", ""],
    }
    assert list(rows) == list(patterns)
    for words, wanted in patterns.items():
        assert [bool(re.fullmatch(*pair)) for pair in zip(wanted, rows[words], strict=True)] == [
            True,
            True,
        ]
    assert [path.name for path in tmp_path.iterdir()] == ["demo.png"]
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_package_is_one_clear_line() -> None:
    """Without one of its packages the demo says which and what to do, and fails."""
    command = [sys.executable, "-c", HIDE_SKIMAGE, str(EXAMPLES / "demo.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    told = "demo: not installed: skimage; `make demo` installs all that the demo needs\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)


@pytest.fixture
def options(example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that gives the demo's options for a command line."""
    for module in "demo_photos", "demo_picture", "tensorflow", "rich":
        example(module)

    def read(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["demo.py", *arguments])
        return example("demo").read_options()

    return read


def test_the_least_numbers_are_taken(options: Callable[..., Any]) -> None:
    """Each option's least number, as named in its refusal, is taken."""
    taken = options("--epochs=2", "--workers=1", "--slots=2", "--samples=48", "--batch-size=1")
    assert (taken.epochs, taken.workers, taken.slots, taken.samples, taken.batch_size) == (
        2,
        1,
        2,
        48,
        1,
    )
    assert taken.output == "demo.png"


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--epochs=1", "--epochs: expected a whole number of 2 or more, got '1'"),
        ("--slots=many", "--slots: expected a whole number of 2 or more, got 'many'"),
        ("--samples=47", "--samples: expected a whole number of 48 or more, got '47'"),
        ("--output=no/where/demo.png", "--output: no folder 'no/where'; make it first"),
    ],
)
def test_an_option_that_cannot_work_is_refused(
    option: str, complaint: str, options: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before any work, with what was expected."""
    with pytest.raises(SystemExit) as ended:
        options(option)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{USAGE}demo.py: error: argument {complaint}\n"


def test_a_silent_training_is_called_hung_and_ended_with_all_it_started(
    run: Callable[..., Any],
) -> None:
    """A child that tells nothing for too long is given up, and its own children end with it."""
    hung = run("sleep 600 & echo $! >&2; wait", 3.0)
    hung.train_an_epoch(lambda: None)
    hung.finish()
    assert hung.trouble == "hung"
    assert has_ended(int(hung.last_words))


def test_a_training_that_dies_is_called_failed_with_its_last_words(
    run: Callable[[str], Any],
) -> None:
    """What a dying child wrote to its standard error is kept."""
    failed = run("echo no such picture >&2; exit 3")
    failed.train_an_epoch(lambda: None)
    failed.finish()
    assert (failed.trouble, failed.last_words) == ("failed", "no such picture")


def test_a_training_goes_when_told_and_its_events_are_kept(run: Callable[[str], Any]) -> None:
    """Batches are counted, each epoch's and the last report's figures are kept."""
    script = """
        head -c 1 >/dev/null
        echo '{"event": "batch"}'; echo '{"event": "batch"}'; echo '{"event": "epoch", "seconds": 3}'
        echo '{"event": "done", "used": 7}'; sleep 600
    """
    batches: list[None] = []
    going = run(script)
    going.train_an_epoch(lambda: batches.append(None))
    going.finish()
    assert (len(batches), going.trouble) == (2, "")
    assert going.epochs == [{"event": "epoch", "seconds": 3}]
    assert going.memory == {"event": "done", "used": 7}


def test_a_dozen_photographs_lie_inside_installed_packages(example: Callable[[str], Any]) -> None:
    """Nothing has to be fetched: every file is there, in the folder of its package."""
    photos = example("demo_photos")
    assert len(photos.PHOTOGRAPHS) == 12
    for path in photos.PHOTOGRAPHS.values():
        assert path.is_file()
        assert path.parent in (photos.SKIMAGE, photos.SKLEARN)


def test_a_crop_depends_on_its_generator_alone(example: Callable[[str], Any]) -> None:
    """The same draws give the same crop, other draws another, whatever was cropped in between."""
    import numpy as np  # noqa: PLC0415 - the demo's packages may be missing, NumPy with them

    photos = example("demo_photos")
    first, other, again = (
        photos.random_crop(photos.encoded_photographs()[7], np.random.default_rng(seed))
        for seed in (1, 2, 1)
    )
    assert (first.shape, first.dtype) == ((96, 96, 3), np.uint8)
    assert first.tobytes() == again.tobytes() != other.tobytes()


def test_held_out_crops_never_change_and_training_crops_do(example: Callable[[str], Any]) -> None:
    """A fixed seed fixes the crop of an index; without one it is new each time; the label stays."""
    photos = example("demo_photos")
    encoded = photos.encoded_photographs()
    for seed, same in (5, True), (None, False):
        (crop, label), (again, label_again) = (
            photos.Crops(encoded, 24, seed)[16] for _ in range(2)
        )
        assert label == label_again == 4
        assert (crop.tobytes() == again.tobytes()) is same


def test_the_timeline_joins_equal_neighbours(example: Callable[[str], Any]) -> None:
    """Sightings of one state in a row become one stretch, up to the sighting of the next state."""
    sightings = [
        (0.0, ["free"]),
        (0.5, ["free"]),
        (1.0, ["filling"]),
        (2.0, ["ready"]),
        (4.0, ["ready"]),
    ]
    stretches = list(example("demo_picture").stretches(sightings, 0))
    assert stretches == [("free", 0.0, 1.0), ("filling", 1.0, 1.0), ("ready", 2.0, 2.0)]
