"""`Loader.stats`: statistics in time and in words."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
from datasets import Oracle
from ringfeed.monitor import memory

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.usefixtures("nothing_left")
def test_elapsed_is_the_time_of_epochs() -> None:
    """It counts while an epoch is under way, however that ends, and never between."""
    with ringfeed.Loader(Oracle(40), batch_size=8, workers=1, slots=2) as loader:
        assert loader.stats().elapsed_s == 0
        for _ in loader:
            pass
        first_s = loader.stats().elapsed_s
        assert first_s > 0
        time.sleep(0.01)
        assert loader.stats().elapsed_s == first_s
        batches = iter(loader)
        next(batches)
        second_s = loader.stats().elapsed_s
        assert second_s > first_s
        time.sleep(0.01)
        third_s = loader.stats().elapsed_s
        assert third_s >= second_s + 0.01
    last_s = loader.stats().elapsed_s
    assert last_s >= third_s
    assert loader.stats().elapsed_s == last_s


def test_the_verdict_is_of_these_statistics() -> None:
    """It is brought up to date with them."""
    with ringfeed.Loader(Oracle(40, sleep_s=0.02), batch_size=8, workers=0) as loader:
        assert loader.stats().verdict == "too early to say: 0 batches in 0.0 s"
        for _ in loader:
            pass
        assert loader.stats().verdict.startswith("in this process: ")


class Slow(Oracle):
    """Takes its time to arrive in a worker."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(2.5)
        self.__dict__.update(state)


START = "s before the first batch: workers start and read the dataset"


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("backend", ["spawn", "process"])
def test_start_up_is_said_apart(backend: Any) -> None:
    """A wait for workers to start is part of no share, and no reason for more slots."""
    how: Any = {"backend": backend, "spec": Oracle.SPEC}
    with ringfeed.Loader(Slow(96), batch_size=8, workers=1, **how) as loader:
        for _ in loader:
            time.sleep(0.1)
        stats = loader.stats()
    assert stats.launch_s + stats.startup_s >= 2
    assert stats.startup_s <= stats.stall_s <= stats.elapsed_s
    assert "raise slots=" not in stats.verdict
    assert "; start-up took " in stats.verdict
    assert stats.verdict.endswith(START)


@pytest.mark.usefixtures("nothing_left")
def test_start_up_ends_with_the_first_batch() -> None:
    """Later waits and later epochs are not part of it; without workers there is none."""
    with ringfeed.Loader(Oracle(40, sleep_s=0.01), batch_size=8, workers=1, slots=2) as loader:
        next(batches := iter(loader))
        started_s = loader.stats().startup_s
        assert 0 < started_s <= loader.stats().stall_s
        assert all(map(len, batches))
        assert all(map(len, loader))
        assert loader.stats().startup_s == started_s < loader.stats().stall_s
    with ringfeed.Loader(Oracle(40), batch_size=8, workers=0) as loader:
        assert all(map(len, loader))
        assert loader.stats().startup_s == 0


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("backend", ["spawn", "process"])
def test_before_the_first_batch(backend: Any) -> None:
    """Another thread that asks meanwhile hears that no batch has come, and what workers do."""
    how: Any = {"workers": 1, "backend": backend, "spec": Oracle.SPEC}
    with ringfeed.Loader(Slow(8), batch_size=8, **how) as loader, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: (time.sleep(1.5), loader.stats().verdict)[1])
        next(iter(loader))
    assert re.fullmatch(
        r"no batch in [\d.]+ s: workers start and read the dataset", asked.result(60)
    )


def test_imports_of_workers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries that worker processes map tell which frameworks they import."""
    monkeypatch.setattr(memory, "PROC", tmp_path)
    for pid, lines in {
        7: "/a/torch/lib/libtorch.so\n/b/libc.so\n",
        8: "/a/jaxlib/x.so.1\n/a/torch/x.so\n",
    }.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "maps").write_text(lines)
    assert memory.frameworks_in([7, 8, 9]) == ["jax", "torch"]
