"""Rooms of features: a loader that needs none of them imports none, and would work if they were not there."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import ringfeed
from datasets import Oracle
from watching import run_script

pytestmark = pytest.mark.once
# fmt: off
ROOMS = {
    "bulk", "coercion", "conversion", "forms", "iterables", "datasets", "transforms", "waiting", "relay", "forkserver",
    "threads", "remote", "tuning", "profiling", "report",
}
# fmt: on
GONE = sorted({*ROOMS, "cli", "keras", "testing", "torch"})

WITHOUT_THEM = f"""
import sys

class Gone:
    def find_spec(name, path=None, target=None):
        if name.startswith("ringfeed.") and name.split(".")[1] in {GONE}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Gone)
import numpy as np
import ringfeed
from datasets import Oracle

x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
for backend, workers in (("process", 0), ("process", 1)):
    how = {{"workers": workers, "backend": backend, "start_method": "spawn"}}  # the room of the default is gone, too
    with ringfeed.Loader((x, y), batch_size=4, **how) as loader:
        assert [batch[1].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with ringfeed.Loader(Oracle(10), batch_size=4, shuffle=True, **how) as loader:
        assert sum(len(batch[0]) for batch in loader) == 10
        assert loader.state_dict()["epoch"] == 1
        loader.stats()
print("done")
"""


def test_a_loader_works_without_them() -> None:
    """Arrays and samples of arrays and numbers need none of the rooms, nor what makes loaders of its own."""
    assert run_script(WITHOUT_THEM) == ("done\n", "", 0)


class Telling(Oracle):
    """Fails where a room has been imported by the process that reads it, once it has written a sample."""

    def __getitem__(self, index: int) -> Any:
        found = [name for name in sys.modules if name.startswith("ringfeed.") and name.split(".")[1] in ROOMS]
        assert index == 0 or found == []
        return super().__getitem__(index)


def test_a_worker_imports_none() -> None:
    """Nor does a worker process, whose spec was unpickled: it writes arrays and numbers as the consumer does."""
    with ringfeed.Loader(Telling(4), batch_size=4, workers=1, start_method="spawn") as loader:
        assert [len(batch[1]) for batch in loader] == [4]
