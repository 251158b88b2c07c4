"""`ringfeed.share` with torch: tensors over the slots, a dataset of the script, and torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import ringfeed
import shared

torch = pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_tensors_lie_over_the_slots() -> None:
    """They hold them, and can be written to; a cast one is of its own."""
    name = shared.unique("torch")
    with ringfeed.share(
        shared.make, name=name, ranks=1, mode="broadcast", timeout_s=60
    ) as training:
        group = shared.group_of(training.host_pid)
        found = []
        for images, labels, sums in training.to_torch():
            assert images.dtype == torch.uint8
            assert shared.is_right((images.numpy(), labels, sums))
            found.append(labels.tolist())
            images.zero_()
        for images, labels, sums in training.to_torch(cast=("float32", None, None)):
            assert images.dtype == torch.float32
            assert shared.is_right((images.to(torch.uint8).numpy(), labels, sums))
            found.append(labels.tolist())
    assert found == shared.expected(2)
    assert training.stats().copies == 0
    shared.gone(group)


TRAIN = """
import json, os, sys
import numpy as np, ringfeed, torch

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return np.float32(i), i * i

def make_loader():
    return ringfeed.Loader(Squares(), batch_size=8, shuffle=True, seed=3, workers=1)

with ringfeed.share(make_loader, name=sys.argv[1], ranks=2, mode="split", timeout_s=60) as loader:
    found = [(x.tolist(), y.tolist()) for x, y in loader.to_torch()]
with open(os.environ["RANK"], "w") as file:
    json.dump([loader.host_pid, found], file)
"""


def test_torchrun(tmp_path: Path) -> None:
    """It works under torchrun, where no common parent makes it, with a dataset of the script."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--standalone",
        str(script),
    ]
    name = shared.unique("torchrun")
    subprocess.run([*command, name], check=True, timeout=120, capture_output=True, cwd=tmp_path)
    (host, one), (same, two) = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    assert host == same
    assert sorted(x for xs, _ in one + two for x in xs) == [*range(64)]
    assert all([x * x for x in xs] == ys for xs, ys in one + two)
    shared.gone({host})
