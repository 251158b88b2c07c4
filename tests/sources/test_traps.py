"""The traps that docs/sources names, each made to happen on the real package, and its remedy."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
import sourced
from ahead import loader_with

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOLDEN = (  # two records of tf.train.Example, as TensorFlow 2.21 writes them
    "3d000000000000006049f1ec0a3b0a130a046e616d65120b0a090a05726f7720300a000a110a0178120c120a0a0800000000000080bf0a11"
    "0a0179120c1a0a0a080000808080808020ead40f1b46000000000000007235b9a50a440a130a046e616d65120b0a090a05726f7720310a00"
    "0a110a0178120c120a0a080000003f000080bf0a1a0a017912151a130a1101ffffffffffffffffff01808080808020319633a2"
)

LEAVES_FILES_OPEN = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def names_of(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the code of a page here, without its loops, and return its names."""
    if absent := sourced.missing(sourced.code_of(page)):
        pytest.skip(f"{absent[0]} is not installed")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(ringfeed, "Loader", lambda *_, **__: ())
    names: dict[str, Any] = {}
    exec(sourced.code_of(page), names)  # noqa: S102 - the page's own code
    monkeypatch.undo()
    return names


@pytest.fixture(autouse=True)
def _without_our_own_datasets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `import datasets` find Hugging Face's, and not the module of tests/support."""
    ours = {name: sys.modules.pop(name) for name in ("datasets",) if name in sys.modules}
    monkeypatch.setattr(sys, "path", sourced.path_without_tests())
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "datasets"]:
        del sys.modules[name]
    sys.modules.update(ours)


def read_here() -> int:
    """Return the bytes that this process has asked files for."""
    with open("/proc/self/io") as file:  # noqa: PTH123 - read again and again
        return int(file.readline().split()[1])


def test_tfrecords_of_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the page read what TensorFlow has written, and find a byte that has changed."""
    names = names_of("tfrecord", tmp_path, monkeypatch)
    path = tmp_path / "golden.tfrecord"
    path.write_bytes(bytes.fromhex(GOLDEN))
    records = names["Records"](str(path), names["index_of"](str(path)), names["example"])
    assert [record["name"] for record in records] == [[b"row 0", b""], [b"row 1", b""]]
    assert [record["x"].tolist() for record in records] == [[0, -1], [0.5, -1]]
    assert [record["y"].tolist() for record in records] == [[0, 0, 1 << 40], [1, -1, 1 << 40]]
    if names["crc32c"] is not None:
        names["write"](str(tmp_path / "same"), names["Records"](records.path, records.index, bytes))
        assert (tmp_path / "same").read_bytes() == path.read_bytes()
        path.write_bytes(path.read_bytes().replace(b"row 1", b"row 2"))
        with pytest.raises(ValueError, match=r"record 1 of .* is damaged"):
            records[1]
    path.write_bytes(bytes.fromhex(GOLDEN)[:-5])
    with pytest.raises(ValueError, match="ends amid record 1"):
        names["index_of"](str(path))


@LEAVES_FILES_OPEN
def test_the_package_webdataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterable of its own for each shard gives what the lines of the page give."""
    webdataset = pytest.importorskip("webdataset")
    names = names_of("webdataset", tmp_path, monkeypatch)
    streams = [
        webdataset.WebDataset(shard, shardshuffle=False).decode().to_tuple("npy", "cls")
        for shard in names["shards"]
    ]
    for stream, shard in zip(streams, names["shards"], strict=True):
        assert [(x.tolist(), label) for x, label in stream] == [
            (x.tolist(), y) for x, y in names["Shard"](shard)
        ]
    with ringfeed.Loader(
        ringfeed.datasets.Interleave(streams), batch_size=50, workers=2, copy=True
    ) as loader:
        assert sorted(np.concatenate([labels for _, labels in loader]).tolist()) == list(range(400))


def test_row_groups_in_a_random_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group is read for most rows; with whole groups in windows, once."""
    names = names_of("parquet", tmp_path, monkeypatch)
    counts = []
    for order in ({"shuffle": True}, {"sampler": ringfeed.orders.WindowShuffle(1000, block=100)}):
        groups = names["Groups"](names["folder"] / "rows.parquet")
        with ringfeed.Loader(groups, batch_size=64, workers=0, **order) as loader:
            assert sum(len(y) for _, y in loader) == 4000
        counts.append(groups.group.cache_info().misses)
    assert counts[0] > 50 * 40
    assert counts[1] <= 41


def test_chunks_of_hdf5_in_a_random_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is read for most rows where the cache is small.

    With whole chunks in windows, once.
    """
    names = names_of("hdf5", tmp_path, monkeypatch)
    sizes = []
    for order in ({"shuffle": True}, {"sampler": ringfeed.orders.WindowShuffle(1000, block=100)}):
        rows = names["Rows"](names["folder"] / "rows.h5")
        rows.y = rows.y[:]
        rows.x = names["h5py"].File(rows.path, rdcc_nbytes=10 * 6400)["x"]  # ten chunks
        before = read_here()
        with ringfeed.Loader(rows, batch_size=64, workers=0, **order) as loader:
            assert sum(len(y) for _, y in loader) == 4000
        sizes.append(read_here() - before)
    assert sizes[0] > 20 * sizes[1]


def test_a_file_of_hdf5_in_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused by name where it would be pickled or forked."""
    names = names_of("hdf5", tmp_path, monkeypatch)
    monkeypatch.delattr(names["Rows"], "__reduce__")
    for method in ("spawn", "fork", "process"):
        rows = names["Rows"](names["folder"] / "rows.h5")
        with pytest.raises(ringfeed.ShipError, match=r"dataset\.file is an h5py object \(File\)"):
            next(iter(ringfeed.Loader(rows, workers=1, backend=method)))


def test_two_environments_of_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one in a process is refused; the page's function gives the first one again."""
    names = names_of("lmdb", tmp_path, monkeypatch)
    with pytest.raises(names["lmdb"].Error, match="already open in this process"):
        names["lmdb"].open(names["folder"], readonly=True, lock=False)
    assert names["Rows"](names["folder"]).environment is names["Rows"](names["folder"]).environment


def test_arrays_of_zarr_and_hdf5_as_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused, since all of them would be read."""
    names = names_of("zarr", tmp_path, monkeypatch)
    with pytest.raises(ringfeed.SpecError, match="is read piece by piece"):
        ringfeed.Loader((names["array"],))
    with pytest.raises(TypeError, match="has no __len__"):
        ringfeed.Loader(names["array"])


def test_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a format each number is a leaf; indices are mapped, or not.

    What is on disk travels as names of files.
    """
    names = names_of("huggingface", tmp_path, monkeypatch)
    dataset = names["dataset"]
    with ringfeed.Loader(dataset.with_format(None), batch_size=4, workers=0) as loader:
        x = next(iter(loader))["x"]
    assert (len(x), len(x[0]), x[0][0].shape) == (8, 8, (4,))
    shuffled = dataset.shuffle(seed=0)
    assert shuffled._indices is not None
    assert shuffled.flatten_indices()._indices is None
    in_memory = names["datasets"].Dataset.from_dict({"x": np.zeros(100_000)}).with_format("numpy")
    assert _travels(dataset) < 20_000
    assert _travels(in_memory) > 800_000


def _travels(dataset: Any) -> int:
    plan = ringfeed.Loader(dataset, workers=1).plan
    return plan.dataset_shared + plan.dataset_per_worker


def test_a_memmap_travels_as_a_name(tmp_path: Path) -> None:
    """A slice of it, too; what is computed of it does not."""
    np.save(tmp_path / "x.npy", np.zeros((100_000, 8), np.float32))
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert _travels((array,)) < 20_000
    assert _travels((array[10:-10],)) < 20_000
    assert _travels((array + 1,)) > array.nbytes


def test_a_mapped_file_that_is_cut(tmp_path: Path) -> None:
    """The worker dies, and the one in its place says why it cannot begin."""
    np.save(tmp_path / "x.npy", np.ones((200_000, 16), np.float32))
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    with loader_with((array,), shuffle=True, workers=1, slots=2, ahead=False) as loader:
        batches = iter(loader)
        next(batches)
        os.truncate(tmp_path / "x.npy", 100_000)
        with pytest.raises(ringfeed.WorkerError, match="mmap length is greater than file size"):
            sum(len(x) for (x,) in batches)


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, categories and strings are refused, and numbers with gaps are floating point."""
    table = names_of("pandas", tmp_path, monkeypatch)["table"]
    with pytest.raises(TypeError, match="a DataFrame has no rows by number"):
        ringfeed.Loader(table)
    for column in ("text", "kind"):
        with pytest.raises(ringfeed.SpecError, match="dtype object"):
            ringfeed.Loader({column: table[column]})
    assert table["count"].to_numpy(float).dtype == np.float64


def test_a_damaged_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out, and told."""
    names = names_of("images", tmp_path, monkeypatch)
    (names["folder"] / "cats" / "3.jpg").write_bytes(b"no picture")
    pictures = names["Pictures"](names["folder"])
    with ringfeed.Loader(pictures, batch_size=16, workers=0, on_error="skip") as loader:
        assert sum(len(labels) for _, labels in loader) == 99
        assert [os.path.basename(pictures.paths[i]) for i in loader.stats().skipped] == ["3.jpg"]  # noqa: PTH119


def test_a_dataset_prepared_as_tfrecord(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no samples by number."""
    names = names_of("tfds", tmp_path, monkeypatch)
    builder = names["Rows"](data_dir=tmp_path / "other", file_format="tfrecord")
    with pytest.raises(
        NotImplementedError, match=r"Random access data source for file format FileFormat.TFRECORD"
    ):
        builder.as_data_source("train")


@LEAVES_FILES_OPEN
def test_mosaicml_s_own_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once read, it holds a lock, which cannot be sent."""
    names = names_of("mosaicml", tmp_path, monkeypatch)
    from streaming import StreamingDataset  # noqa: PLC0415 - it may be absent

    dataset = StreamingDataset(local=names["folder"], batch_size=8)
    with ringfeed.Loader(dataset, batch_size=8, workers=0) as loader:
        assert sum(len(batch["y"]) for batch in loader) == 1000
    with pytest.raises(ringfeed.ShipError, match="is a lock and cannot be sent"):
        next(iter(ringfeed.Loader(dataset, batch_size=8, workers=1)))
