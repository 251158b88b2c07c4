"""A `ringfeed.Cache` by the doors of frameworks: torch, Keras and Ray."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest

import cluster
import ringfeed
from cached import COUNT, Bulk, Images, run
from ringfeed.ray import Ray

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = "5MB"
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # or each worker would import pytest

# ---- torch ----


@pytest.mark.parametrize("kind", [Images, Bulk])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_of_a_cache(kind: Any, workers: int) -> None:
    """Batches are torch's own of the dataset; later epochs find all samples."""
    torch = pytest.importorskip("torch")
    loader_of = partial(torch.utils.data.DataLoader, Images(), batch_size=7)
    cache = ringfeed.Cache(kind(), memory=MEMORY)
    loader = ringfeed.torch.DataLoader(
        cache, batch_size=7, num_workers=workers, persistent_workers=workers > 0
    )
    for _ in range(3):
        for found, expected in zip(loader, loader_of(), strict=True):
            assert all(map(torch.equal, found, expected))
    assert cache.stats().samples == COUNT
    assert cache.stats().hits >= 2 * COUNT
    for found, expected in zip(
        torch.utils.data.DataLoader(cache, batch_size=7), loader_of(), strict=True
    ):
        assert all(map(torch.equal, found, expected))
    del loader


# ---- Keras ----


def test_a_keras_dataset_in_a_cache(tmp_path: Path) -> None:
    """`feed` takes a cache of whole batches, and runs the dataset's hooks."""
    keras = pytest.importorskip("keras")
    ringfeed_keras = pytest.importorskip("ringfeed.keras")

    log = tmp_path / "log"

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            with log.open("a") as file:
                file.write("read ")
            return np.full((4, 3), index, np.float32), np.ones((4, 1), np.float32)

        def on_epoch_end(self) -> None:
            with log.open("a") as file:
                file.write("end ")

    cache = ringfeed.Cache(Batches(), memory=MEMORY)
    weights, ends = [], []
    for data in (Batches(), ringfeed_keras.feed(cache, backend="thread", workers=1)):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        log.write_text("")
        model.fit(data, epochs=3, verbose=0, shuffle=False)
        weights.append([one.tolist() for one in model.get_weights()])
        ends.append(log.read_text().count("end"))
    assert weights[0] == weights[1]
    assert ends[0] == ends[1] >= 3
    assert cache.stats()[1:5] == (5, 0, 0, 5)
    data.close()


def test_a_keras_dataset_that_shuffles_itself_is_refused() -> None:
    """Its batches are others in each epoch, and a cache would give those of the first."""
    keras = pytest.importorskip("keras")
    ringfeed_keras = pytest.importorskip("ringfeed.keras")

    class Shuffled(keras.utils.PyDataset):
        def __init__(self) -> None:
            super().__init__()
            self.order = np.arange(5)

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return np.full((4, 3), self.order[index], np.float32), np.ones((4, 1), np.float32)

        def on_epoch_end(self) -> None:
            self.order = self.order[::-1].copy()

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for backend in ("thread", "process"):
        cache = ringfeed.Cache(Shuffled(), memory=MEMORY)
        data = ringfeed_keras.feed(cache, backend=backend, workers=1)
        with pytest.raises(ringfeed.StateError, match="has changed since its Cache was made"):
            model.fit(data, epochs=3, verbose=0, shuffle=False)
        data.close()


@pytest.mark.parametrize("settings", [{}, {"workers": 2, "use_multiprocessing": True}])
def test_a_keras_dataset_that_reads_from_a_cache(settings: dict[str, Any]) -> None:
    """It may shuffle as it likes: the cache has samples. By `install`, in threads and processes."""
    keras = pytest.importorskip("keras")
    ringfeed_keras = pytest.importorskip("ringfeed.keras")

    class Shuffled(keras.utils.PyDataset):
        def __init__(self, samples: Any, **settings: Any) -> None:
            super().__init__(**settings)
            self.samples, self.order = samples, np.arange(COUNT)

        def __len__(self) -> int:
            return COUNT // 6

        def __getitem__(self, index: int) -> Any:
            rows = [self.samples[int(one)] for one in self.order[6 * index : 6 * index + 6]]
            images, numbers = (np.array(part, np.float32) for part in zip(*rows, strict=True))
            return images.reshape(6, -1) / 255, numbers[:, None]

        def on_epoch_end(self) -> None:
            self.order = np.roll(self.order, 7)

    cache = ringfeed.Cache(Images(), memory=MEMORY)
    weights = []
    for samples in (Images(), cache):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with ringfeed_keras.install():
            model.fit(Shuffled(samples, **settings), epochs=3, verbose=0, shuffle=False)
        weights.append([one.tolist() for one in model.get_weights()])
    assert weights[0] == weights[1]
    assert (cache.stats().samples, cache.stats().left_out) == (COUNT, 0)
    assert cache.stats().hits >= 2 * COUNT


# ---- Ray ----


@pytest.mark.once
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(cluster.why_not()), reason=cluster.why_not())
def test_actors_have_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine, in memory and in a file: they find what others have kept."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    expected = run(Images(), workers=1)
    with cluster.start(1, cpus=2, environment={"RAY_worker_niceness": "0"}) as found:
        for where in ({"memory": MEMORY}, {"path": tmp_path / "cache.rf"}):
            cache = ringfeed.Cache(Images(), **where)
            for _ in range(2):
                ray = Ray(workers=2, num_cpus=0.1, address=found.address)
                assert run(cache, workers=0, backend=ray, timeout_s=200) == expected
            assert (cache.stats().samples, cache.stats().left_out) == (COUNT, 0)
            assert cache.stats().hits >= 4 * COUNT
