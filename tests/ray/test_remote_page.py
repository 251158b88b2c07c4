"""The examples of docs/remote.md, with actors that are threads, and with Ray if it is installed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import cluster
import ringfeed
from fake_fleet import FakeRay

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = (Path(__file__).parents[2] / "docs" / "remote.md").read_text()
ALL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


class Pictures:
    """What the page calls dataset."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        return np.full((8, 8), index, np.uint8), index


def in_threads(**given: Any) -> FakeRay:
    """Return actors that are threads, of any environment."""
    return FakeRay(**{**given, "runtime_env": None})


def run(code: str, monkeypatch: pytest.MonkeyPatch, ray: Callable[..., Any]) -> None:
    """Run an example, and close its loaders."""
    loaders: list[Any] = []
    made: Any = ringfeed.Loader

    def loader(*given: Any, **named: Any) -> Any:
        loaders.append(made(*given, **named, timeout_s=200))
        return loaders[-1]

    monkeypatch.setattr(ringfeed.ray, "Ray", ray)
    monkeypatch.setattr(ringfeed, "Loader", loader, raising=False)
    try:
        names = {"ringfeed": ringfeed, "dataset": Pictures(), "train_step": lambda _: None}
        exec(code, names)  # noqa: S102
    finally:
        for one in loaders:
            one.close()


@pytest.mark.parametrize("number", range(len(ALL)))
def test_an_example_runs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With actors that are threads."""
    run(ALL[number], monkeypatch, in_threads)


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(cluster.why_not()), reason=f"{cluster.why_not()}: make test-all")
def test_all_examples_run_on_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, on a cluster of this machine."""
    with cluster.start(1, cpus=64, environment={"RAY_worker_niceness": "0"}) as found:
        monkeypatch.setenv("RAY_ADDRESS", found.address)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        few = {"workers": 2}
        for code in ALL:
            with monkeypatch.context() as patch:
                ray = ringfeed.ray.Ray
                run(code, patch, lambda ray=ray, **given: ray(**{**given, **few}))


def test_the_page_says_what_the_parameters_are() -> None:
    """Each has a row of the table."""
    from dataclasses import fields  # noqa: PLC0415

    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert {field.name for field in fields(ringfeed.ray.Ray)} == told
    assert importlib.util.find_spec("ringfeed.ray") is not None
