"""`ringfeed profile` on a torch DataLoader as it is, by a call and in a training script."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.tools.loaders import profile_loader
from ringfeed.tools.main import main

torch = pytest.importorskip("torch", reason="torch is not installed")
# After the skip above.
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

SOON = {"samples": 8, "seconds": 30.0}


class Pictures(Dataset):  # type: ignore[misc]  # torch is not seen by the type checker
    """Noise, which counts how often it was asked in this process."""

    def __init__(self, length: int = 40) -> None:
        self.length = length
        self.asked = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        # It draws from each global generator.
        return torch.rand(3, 4) + np.random.rand() + random.random(), index  # noqa: NPY002, S311


class Endless(IterableDataset):  # type: ignore[misc]
    """Has no end."""

    def __iter__(self) -> Iterator[Any]:
        number = 0
        while True:
            yield torch.full((3,), float(number))
            number += 1


def test_a_loader_with_workers() -> None:
    """Both are read; random numbers, the generator and the dataset are as before."""
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(
        Pictures(),
        batch_size=4,
        shuffle=True,
        num_workers=1,
        generator=generator,
        persistent_workers=True,
    )
    states = (
        torch.get_rng_state(),
        generator.get_state(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
    )
    found = profile_loader(loader, **SOON)
    assert [reading.label for reading in found.readings] == ["torch", "ringfeed"]
    for reading in found.readings:
        assert (reading.batches, reading.samples, reading.size, reading.failure) == (
            10,
            40,
            4 * (48 + 8),
            "",
        )
        assert reading.workers >= 1
        assert reading.memory.private > 0
        assert not math.isnan(reading.batch_s + reading.own_cpu_s + reading.worker_cpu_s)
    assert found.stages is not None
    assert found.stages.read_s > 0
    assert found.stages.send_s > 0
    assert found.name == "DataLoader of Pictures (batch_size=4, num_workers=1)"
    (note,) = found.readings[1].notes
    assert note.startswith("runs over ringfeed: 1 worker process, 3 slots, ")
    now = (
        torch.get_rng_state(),
        generator.get_state(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
    )
    assert [torch.equal(a, b) for a, b in zip(states[:2], now[:2], strict=True)] == [True, True]
    assert states[2:] == now[2:]
    assert loader.dataset.asked == 0
    assert loader._iterator is None


def test_a_loader_without_workers() -> None:
    """It is read as it is, and both with workers beside it."""
    found = profile_loader(DataLoader(Pictures(12), batch_size=4), **SOON)
    count = len(os.sched_getaffinity(0))
    assert [reading.label for reading in found.readings] == [
        "torch, num_workers=0",
        f"torch, {count}",
        f"ringfeed, {count}",
    ]
    assert [reading.batches for reading in found.readings] == [3, 3, 3]
    assert found.own.workers == 0
    assert found.stages is not None
    assert found.stages.send_s == 0
    assert found.readings[2].change.endswith(f", and num_workers={count}")


def test_the_same_order_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shuffled loader is read in the same order each time, so that all read the same files."""
    seen: list[list[int]] = []
    own = DataLoader(TensorDataset(torch.arange(24)), batch_size=4, shuffle=True, num_workers=1)

    def size_of(batch: Any) -> tuple[int, int]:
        seen.append(batch[0].tolist())
        return 1, 4

    monkeypatch.setattr("ringfeed.tools.reading.size_of", size_of)
    profile_loader(own, **SOON)
    assert len(seen) == 18
    assert seen[:6] == seen[6:12] == seen[12:]


def test_an_infinite_iterable() -> None:
    """Read up to the limit."""
    found = profile_loader(DataLoader(Endless(), batch_size=2, num_workers=1), **SOON)
    assert all(reading.batches >= 4 for reading in found.readings)
    assert found.reader == "iterating the dataset"
    assert found.stages is not None


class Once(IterableDataset):  # type: ignore[misc]
    """Can be read once."""

    def __init__(self) -> None:
        self.elements = iter([torch.zeros(2)] * 9)

    def __iter__(self) -> Iterator[Any]:
        return self.elements


def test_what_can_be_read_only_once() -> None:
    """Nothing of it is read here; workers have a copy each."""
    dataset = Once()
    with pytest.raises(ringfeed.RingfeedError) as caught:
        profile_loader(DataLoader(dataset, batch_size=2))
    assert str(caught.value) == (
        "the DataLoader of Once (batch_size=2, num_workers=0) can be read only once: iter() of "
        "its dataset gives one and the same iterator, whose elements would be missing in "
        "training; have __iter__ begin anew each time"
    )
    found = profile_loader(DataLoader(dataset, batch_size=2, num_workers=1), **SOON)
    assert found.own.batches == 5
    assert "can be read only once" in found.why
    assert len(list(dataset)) == 9


def test_three_samples() -> None:
    """No rate, and nothing to change."""
    text = str(profile_loader(DataLoader(Pictures(3), batch_size=2, num_workers=1), **SOON))
    assert "2 batches are too few to tell a rate" in text
    assert "to change" not in text


def test_what_ringfeed_leaves_to_torch() -> None:
    """The reason is told, and where the ways out are."""
    dataset = Pictures()
    with Path(__file__).open() as dataset.file:
        found = profile_loader(DataLoader(dataset, batch_size=4, num_workers=1), **SOON)
    assert found.readings[1].fell_back
    reason, ways_out = found.readings[1].notes
    assert reason.startswith(
        f"is left to torch: dataset.file is an open file ({__file__!r}), and forked workers "
    )
    assert ways_out == (
        'these are torch\'s own batches: docs/torch.md, "What is left to torch", names the ways out'
    )


def test_a_loader_of_ringfeeds() -> None:
    """It is the first, and torch's class with the same parameters beside it."""
    loader = ringfeed.torch.DataLoader(Pictures(), batch_size=4, num_workers=1)
    found = profile_loader(loader, **SOON)
    assert [reading.label for reading in found.readings] == ["ringfeed", "torch"]
    assert found.own.notes[0].startswith("runs over ringfeed")
    assert found.readings[1].change == "from torch.utils.data import DataLoader"


# ---- scripts ----

SCRIPT = """
import argparse
import torch
from torch.utils.data import DataLoader, Dataset

class Digits(Dataset):
    def __init__(self, length):
        self.length = length
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return torch.rand(1, 8, 8), index % 10

def epoch(loader):
    return sum(x.sum().item() for x, _ in loader)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
chosen = parser.parse_args()
torch.manual_seed(0)
quick = {"num_workers": 1, "multiprocessing_context": "fork"}  # no other process imports torch
train = DataLoader(Digits(16), batch_size=4, shuffle=True, **quick)
valid = DataLoader(Digits(8), batch_size=8, **quick)
for _ in range(chosen.epochs):
    print("train", epoch(train))
    print("valid", epoch(valid))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A training script."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command of ringfeed's in a process of its own."""
    src = Path(ringfeed.__file__).parents[1]
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(src), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def profiled(*words: object) -> subprocess.CompletedProcess[str]:
    """Run `ringfeed profile` in short."""
    return run("-m", "ringfeed", "profile", "--seconds", "30", "--samples", "4", *words)


def profiled_here(*words: object) -> int:
    """Run `ringfeed profile` in this process, which has imported torch."""
    return main(["profile", "--seconds", "30", "--samples", "4", *map(str, words)])


def test_the_loader_that_a_script_reads_first(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is profiled, the script ends there, and torch's class is as it was."""
    own = DataLoader.__iter__
    assert profiled_here("--script", script, "--epochs", "1") == 0
    told = capsys.readouterr().out
    assert (
        "train.py, line 15: DataLoader of Digits (batch_size=4, num_workers=1)\n16 samples in 4 "
        "batches, 1.1 kB" in told
    )
    assert told.count("DataLoader of Digits") == 1
    assert "train " not in told
    assert DataLoader.__iter__ is own


def test_a_loader_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`module:name` may be a DataLoader, or a function that returns one."""
    name = f"loaders_{tmp_path.name}"
    code = (
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\ndef make():\n    "
        "return "
    )
    settings = "num_workers=1, multiprocessing_context='fork'"
    tmp_path.joinpath(f"{name}.py").write_text(
        f"{code}DataLoader(TensorDataset(torch.zeros(9, 2)), 3, {settings})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert profiled_here(f"{name}:make") == 0
    assert capsys.readouterr().out.startswith(
        "DataLoader of TensorDataset (batch_size=3, num_workers=1)\n9 samples in 3 batches, 24 "
        "bytes each, "
    )


def test_a_script_whose_loader_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, with the loader's error."""
    path = tmp_path / "train.py"
    path.write_text(
        SCRIPT.replace("return torch.rand(1, 8, 8)", "raise OSError(index)\n        return 0")
    )
    assert profiled_here("--script", path, "--epochs", "1") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "ringfeed profile: the DataLoader of Digits (batch_size=4, num_workers=1) fails as it is, "
        "so there is nothing to compare with: OSError: "
    )


def test_a_loader_that_gives_no_batch(tmp_path: Path) -> None:
    """The process ends in time, with the place that it is at, also where C code waits for ever."""
    path = tmp_path / "train.py"
    path.write_text(
        "import ctypes, torch\n"
        "from torch.utils.data import DataLoader\n"
        "class Held(list):\n"
        "    def __getitem__(self, index):\n"
        "        libc = ctypes.CDLL(None)\n"
        "        while True: libc.sleep(600)\n"
        "from ringfeed.tools import script\n"
        "script.START_S = 0.1\n"
        "for batch in DataLoader(Held([1, 2])): pass\n"
    )
    ended = run("-m", "ringfeed", "profile", "--seconds", "0.1", "--script", path)
    assert ended.returncode == 1
    assert f'File "{path}", line 6 in __getitem__' in ended.stderr
    assert f'File "{path}", line 9 in <module>' in ended.stderr


def test_a_loader_that_a_thread_reads(tmp_path: Path) -> None:
    """It is profiled, and the script ends there."""
    path = tmp_path / "train.py"
    lines = [
        "import threading",
        SCRIPT.partition("for _ in range")[0],
        "thread = threading.Thread(target=epoch, args=(train,))",
        "thread.start()",
        "thread.join()",
        "print('went on')",
    ]
    path.write_text("\n".join(lines))
    ended = profiled("--script", path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "DataLoader of Digits" in ended.stdout
    assert "went on" not in ended.stdout
