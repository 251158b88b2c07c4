"""Workers on a Ray cluster: the same bits, and nothing left."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import ringfeed
from remote_sets import KINDS, content

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-remote"),
    pytest.mark.usefixtures("nothing_left"),
]


def test_a_cluster_that_the_loader_starts_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its actors give the same bits, and Ray is not imported here."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # or Ray would make a token for this user
    dataset, given = KINDS["samples"]
    ray = ringfeed.Ray(workers=2, num_cpus=0.1, address="local")
    assert content(dataset, workers=0, backend=ray, **given) == content(dataset, workers=1, **given)
    assert "ray" not in sys.modules
