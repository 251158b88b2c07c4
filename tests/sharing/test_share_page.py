"""The examples of docs/share.md, each run by two processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shared
from watching import wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "share.md").read_text()
BLOCKS = dict(re.findall(r"\n## ([^\n]+)\n.*?```python\n(.*?)```", PAGE, re.DOTALL))
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
AROUND = """
import json, sys
import numpy as np
import ringfeed

class Dataset:
    def __len__(self):
        return 512
    def __getitem__(self, i):
        return np.full(4, i, np.float32), i

def make_loader():
    return ringfeed.Loader(Dataset(), batch_size=128, shuffle=True, seed=0, workers=1)

seen, saved = [], None
def train_step(images, labels):
    assert images[:, 0].tolist() == labels.tolist()
    seen.append(labels.tolist())

EXAMPLE
print(json.dumps([loader.host_pid, seen]))
"""


@pytest.mark.parametrize("title", BLOCKS)
def test_an_example(title: str) -> None:
    """Two processes run it: each sample of three epochs comes once, or once to each."""
    is_split = title == "Each rank its part"
    name = shared.unique("page")
    example = re.sub(r'name="\w+"', f'name="{name}"', BLOCKS[title]).replace(
        "workers=4", "workers=1"
    )
    environment = [{"LOCAL_RANK": str(rank)} for rank in range(2)]
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", AROUND.replace("EXAMPLE", example)],
            env={**shared.environment(name), **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        for variables in environment
    ]
    found = [json.loads(training.communicate(timeout=120)[0]) for training in begun]
    (host, one), (same, two) = found
    assert host == same
    epochs = 1 if title == "Going on" else 3
    if not is_split:
        assert one == two
        two = []
    assert sorted(label for labels in one + two for label in labels) == sorted(
        [*range(512)] * epochs
    )
    wait_until(lambda: shared.is_all_gone(name))
