"""The code in the README runs as it stands, and every module has its line in ARCHITECTURE.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfeed

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def keras_model() -> Any:
    """Return a compiled model as small as they come."""
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


def keras_names() -> dict[str, Any]:
    """Return what the blocks about Keras take for granted: a dataset's class, and a model."""
    keras = pytest.importorskip("keras")

    class MyPyDataset(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return np.full((8, 3), index, np.float32), np.zeros((8, 1), np.float32)

    return {"MyPyDataset": MyPyDataset, "model": keras_model()}


def test_the_first_example() -> None:
    """A loop, a fit and a tf.data.Dataset over one loader."""
    pytest.importorskip("tensorflow")
    steps: list[int] = []
    names: dict[str, Any] = {
        "dataset": (np.zeros((256, 3), np.float32), np.zeros((256, 1), np.float32)),
        "train_step": lambda x, y: steps.append(len(x) + len(y)),
        "model": keras_model(),
    }
    code = BLOCKS[0].replace("epochs=10", "epochs=2").replace("dataset = loader.", "elements = loader.")
    exec(code, names)  # noqa: S102 - the README's own code
    assert steps == [256, 256]
    assert len(list(names["elements"])) == 2
    names["loader"].close()


def test_what_the_workers_do() -> None:
    """Samples and batches change in place, each with its own numbers, and nothing of the dataset."""
    images = np.arange(90, dtype=np.uint8).reshape(10, 3, 3)
    names: dict[str, Any] = {"dataset": {"image": images.copy()}, "ringfeed": ringfeed}
    exec(next(block for block in BLOCKS if "batch_transform" in block), names)  # noqa: S102 - the README's own code
    with names["loader"] as loader:
        (batch,) = loader
    assert not np.array_equal(batch["image"], images)
    assert np.array_equal(names["dataset"]["image"], images)


def test_to_stop_and_go_on() -> None:
    """The state of a loop, loaded into its loader, gives the rest."""
    code = next(block for block in BLOCKS if "load_state_dict" in block)
    with ringfeed.Loader(np.arange(40).reshape(40, 1), batch_size=4, workers=0) as loader:
        iterator = iter(loader)
        next(iterator)
        exec(code, {"loader": loader})  # noqa: S102 - the README's own code
        assert next(iter(loader)).ravel().tolist() == [4, 5, 6, 7]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_two_lines_that_replace_a_keras_dataset() -> None:
    """The second line's replacement trains on the same dataset."""
    _, replacement = BLOCKS[1].split("\n\n")
    names = keras_names()
    exec("import ringfeed\n" + replacement, names)  # noqa: S102 - the README's own code
    names["loader"].close()


def test_every_dataset_with_no_other_change() -> None:
    """The block about install() trains on a dataset that is not named in it twice."""
    exec(BLOCKS[2], keras_names())  # noqa: S102 - the README's own code


def block(word: str) -> str:
    """Return the one block that has this word."""
    (found,) = [code for code in BLOCKS if word in code]
    return f"import ringfeed\n{found}"


def test_bytes_in_the_slots_and_floats_at_the_model() -> None:
    """The block about cast= trains on pictures that stay uint8."""
    names = {"images": np.full((96, 3), 255, np.uint8), "labels": np.zeros(96, np.int64), "model": keras_model()}
    exec(block("Cast("), names)  # noqa: S102 - the README's own code
    names["loader"].close()  # type: ignore[union-attr]


def test_a_loader_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block about ranks has each sample count once."""
    weights: list[float] = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        names = {"dataset": (np.zeros(99), np.zeros(99)), "np": np, "train_step": lambda _x, _y, w: weights.extend(w)}
        exec(block("shard="), names)  # noqa: S102 - the README's own code
        names["loader"].close()  # type: ignore[union-attr]
    assert (len(weights), sum(weights)) == (100, 99)


class Pictures:
    """Small ones, of ones."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return np.full((224, 224, 3), 255, np.uint8), index


def test_floats_in_the_slots_of_bytes() -> None:
    """The block about a converting Array gives what it says."""
    names: dict[str, Any] = {"pictures": Pictures()}
    exec(block("mean="), names)  # noqa: S102 - the README's own code
    with names["loader"] as loader:
        images, _ = next(iter(loader))
    assert images.shape == (4, 3, 224, 224)
    assert float(images[0, 0, 0, 0]) == np.float32(1) - np.float32(0.485)


PACKAGES = [path.relative_to(ROOT / "src" / "ringfeed") for path in (ROOT / "src" / "ringfeed").rglob("__init__.py")]
SUFFIXES = {".py", ".pyx", ".pxi", ".pxd"}


def listed(package: Path) -> set[str]:
    """The modules that ARCHITECTURE.md names below a package's line."""
    rooms = (ROOT / "ARCHITECTURE.md").read_text()
    pattern = rf"^ {{{2 * len(package.parts)}}}{package.name}/ .*\n((?: {{16,}}.*\n)+)"
    found = re.search(pattern, rooms, re.MULTILINE)
    assert found, f"{package} has no line in ARCHITECTURE.md"
    return set(re.findall(r"\w+", found[1]))


@pytest.mark.parametrize("package", sorted(path.parent for path in PACKAGES if path.parent.name), ids=str)
def test_the_architecture_names_every_module(package: Path) -> None:
    """The modules named below a package are the modules that it has: none is missing, and none has gone."""
    files = (ROOT / "src" / "ringfeed" / package).iterdir()
    assert listed(package) == {path.stem for path in files if path.suffix in SUFFIXES} - {"__init__"}


def test_the_architecture_names_the_core() -> None:
    """So are the files in C, and the modules beside the packages."""
    rooms = (ROOT / "ARCHITECTURE.md").read_text()
    names = [path.name for path in (ROOT / "cext").rglob("*.c")]
    names += [path.stem for path in (ROOT / "src" / "ringfeed").glob("*.py") if path.stem != "__init__"]
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", rooms)] == []
