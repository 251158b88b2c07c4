"""Arrays, mapped files and tensors arrive as they left: content, dtype, layout, writable or not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import travel
from ringfeed.transport import shared_dataset, unpacking

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_left")

MIXED = np.dtype([("image", "u1", (3, 5)), ("label", ">i4")])


def readonly(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, not writable any more."""
    array.flags.writeable = False
    return array


def looks(array: Any) -> Any:
    """Everything about an array that has to arrive."""
    flags = array.flags
    layout = array.shape, flags.writeable, flags.c_contiguous, flags.f_contiguous
    return type(array).__name__, str(array.dtype), *layout, array.tolist()


SMALL = {
    "float": lambda: np.arange(10.0),
    "empty": lambda: np.zeros((0, 5)),
    "no axis": lambda: np.array(3, "int16"),
    "objects": lambda: np.array([{"a": 1}, [2], "three"], dtype=object),
    "read-only": lambda: readonly(np.arange(10)),
    "strings": lambda: np.array(["ab", "c"]),
    "read-only dates": lambda: readonly(np.arange(9).astype("M8[D]")),
    "no bytes": lambda: np.zeros((2, 3), "S0"),
}
LARGE: dict[str, Callable[[], Any]] = {
    "float": lambda: np.arange(5000.0),
    "many axes": lambda: np.arange(5040, dtype="i2").reshape(7, 8, 9, 10),
    "Fortran order": lambda: np.asfortranarray(np.arange(6000).reshape(60, 100)),
    "big-endian": lambda: np.arange(5000, dtype=">u4"),
    "bool": lambda: np.arange(5000) % 3 == 0,
    "complex": lambda: np.arange(5000) * (1 + 2j),
    "dates": lambda: np.arange(5000).astype("M8[s]"),
    "records": lambda: np.zeros(500, MIXED),
    "bytes": lambda: np.full(3000, b"xyz"),
    "read-only": lambda: readonly(np.arange(5000)),
    "read-only Fortran": lambda: readonly(np.asfortranarray(np.ones((60, 100)))),
    "aligned oddly": lambda: np.zeros(8001, np.uint8)[1:].view("i8"),
}
STRIDED: dict[str, Callable[[], Any]] = {
    "every other": lambda: np.arange(10000)[::2],
    "backwards": lambda: np.arange(5000)[::-1],
    "axes swapped": lambda: np.arange(8 * 9 * 100).reshape(8, 9, 100).transpose(0, 2, 1),
    "read-only": lambda: readonly(np.arange(10000)[::2]),
    "small": lambda: readonly(np.arange(20)[::2]),
}
SERIES = np.arange(5000, dtype="i2")
REPEATED: dict[
    str, tuple[Callable[[], Any], int]
] = {  # with the bytes that have all of their elements
    "windows": (lambda: sliding_window_view(SERIES, 100), 10_000),
    "windows that may be written": (
        lambda: sliding_window_view(SERIES.copy(), 100, writeable=True),
        10_000,
    ),
    "windows of every other": (lambda: sliding_window_view(SERIES[::2], 100), 9_998),
    "windows backwards": (lambda: sliding_window_view(SERIES[::-1], 100), 10_000),
    "windows of rows": (lambda: sliding_window_view(SERIES.reshape(50, 100), (10, 10)), 10_000),
    "repeated": (lambda: np.broadcast_to(np.arange(1000), (100, 1000)), 8_000),
    "one number": (lambda: np.broadcast_to(np.array(7.5), (1000, 100)), 0),
    "dates": (lambda: sliding_window_view(SERIES.astype("M8[s]"), 100), 40_000),
    "records": (lambda: np.broadcast_to(np.zeros(500, MIXED), (3, 500)), 500 * MIXED.itemsize),
}


def test_arrays_of_all_kinds_arrive_as_they_left() -> None:
    """Small and large arrays of every dtype and layout are the same in a worker."""
    arrays = [make() for make in (*SMALL.values(), *LARGE.values())]
    arrived = travel.ask(arrays, lambda arrays: repr([looks(array) for array in arrays]))
    assert arrived == repr([looks(array) for array in arrays])


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
def test_large_arrays_travel_out_of_band(make: Callable[[], Any]) -> None:
    """All bytes of a large array are shared, whatever its dtype.

    The stream holds only its description.
    """
    array = make()
    packed = shared_dataset.pack(array)
    assert packed.out_of_band == array.nbytes
    assert packed.in_band < 500


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_arrays_with_gaps_keep_their_values(make: Callable[[], Any]) -> None:
    """An array that is not contiguous travels out of band as a copy, as writable as it was."""
    array = make()
    assert shared_dataset.pack(array).out_of_band == (array.nbytes if array.nbytes >= 4096 else 0)
    there, here = travel.ask(array, looks), looks(array)
    assert (there[:4], there[-1]) == (here[:4], here[-1])
    assert there[4] is True


@pytest.mark.parametrize(("make", "size"), REPEATED.values(), ids=REPEATED)
def test_elements_in_several_places_travel_once(make: Callable[[], Any], size: int) -> None:
    """A view that shows some memory many times travels as that memory, and is a view there."""
    array = make()
    assert shared_dataset.pack(array).out_of_band == size
    there = travel.ask(array, lambda there: repr((looks(there), there.strides)))
    assert there == repr((looks(array), array.strides))


def test_an_array_in_two_places_is_one_array_there_too() -> None:
    """References to one array stay references to one array, and it travels once."""
    array = np.zeros(5000)
    packed = shared_dataset.pack({"x": array, "y": array})
    assert packed.out_of_band == array.nbytes
    assert travel.ask({"x": array, "y": array}, lambda dataset: dataset["x"] is dataset["y"])


def test_arrays_are_not_copied_by_pack() -> None:
    """A pickled dataset refers to the arrays themselves.

    What is written before they are in shared memory travels.
    """
    array = np.zeros(5000)
    packed = shared_dataset.pack(array)
    array[7] = 3
    sent = shared_dataset.to_shared_memory(packed)
    assert sent
    assert unpacking.unpack(sent.manifest(), sent.fds)[7] == 3
    sent.close()


# Mapped files.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 16 bytes that are no array, and then the int32 numbers below 5000."""
    path = tmp_path / "numbers.bin"
    path.write_bytes(bytes(16) + np.arange(5000, dtype="i4").tobytes())
    return path


VIEWS: dict[str, Callable[[Any], Any]] = {
    "all": lambda mapped: mapped,
    "a part": lambda mapped: mapped[10:90],
    "a part of a part": lambda mapped: mapped[10:90][5:, 3],
    "backwards": lambda mapped: mapped[::-2, ::-1],
    "turned": lambda mapped: mapped.T,
    "other dtype": lambda mapped: mapped.view("i2"),
    "plain array": lambda mapped: np.asarray(mapped)[3:],
    "plain array of a part": lambda mapped: np.asarray(mapped[4:])[3:],
    "one number": lambda mapped: mapped[5:6, 6:7],
    "read-only": lambda mapped: readonly(mapped[3:]),
    "repeated": lambda mapped: np.broadcast_to(np.asarray(mapped)[0], (1000, 50)),
}


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_mapped_files_travel_as_their_names(file: Path, mode: Any) -> None:
    """Every view of a np.memmap is the same view of the same file in a worker.

    No byte of it travels.
    """
    mapped = np.memmap(file, "i4", mode, 16, (100, 50))
    views = [view(mapped) for view in VIEWS.values()]
    assert shared_dataset.pack(views).out_of_band == 0
    assert shared_dataset.pack(views).in_band < 4000
    assert travel.ask(views, lambda views: repr(list(map(looks, views)))) == repr(
        list(map(looks, views))
    )


def test_a_mapped_file_is_still_a_memmap_there(file: Path) -> None:
    """The attributes of a np.memmap arrive; its offset is that of the file, as here."""
    mapped = np.memmap(file, "i4", "r+", 16, (100, 50))
    there = travel.ask(
        mapped[1:], lambda view: (str(view.filename), view.offset, view.mode, view.shape)
    )
    assert there == (str(file), 16, "r+", (99, 50))


@pytest.mark.parametrize("mode", ["w+", "r+"])
def test_a_file_that_is_mapped_to_be_written_is_neither_emptied_nor_cut(
    tmp_path: Path, mode: Any
) -> None:
    """Mode w+, which empties a file, arrives as r+.

    A worker reads what is there, and writes to the file.
    """
    path = tmp_path / "made.bin"
    path.write_bytes(bytes(100_000))
    mapped = np.memmap(path, "i4", mode, 0, (5000,))
    mapped[:] = np.arange(5000)
    size = path.stat().st_size

    def write(mapped: Any) -> tuple[int, str]:
        mapped[0] = 77
        mapped.flush()
        return int(mapped[4999]), mapped.mode

    assert travel.ask(mapped, write) == (4999, "r+")
    assert mapped[0] == 77
    assert path.stat().st_size == size


def test_what_was_written_to_a_private_mapping_travels(file: Path) -> None:
    """With mode c the file lacks what was written: the content is sent, as an ordinary array."""
    mapped = np.memmap(file, "i4", "c", 16, (100, 50))
    mapped[3, 3] = -1
    assert shared_dataset.pack(mapped).out_of_band == mapped.nbytes
    assert travel.ask(mapped, looks) == ("ndarray", *looks(mapped)[1:])


def test_the_content_of_a_deleted_file_travels(file: Path) -> None:
    """A mapped file that cannot be opened by its name any more is sent."""
    mapped = np.memmap(file, "i4", "r", 16, (100, 50))
    file.unlink()
    assert travel.ask(mapped, looks) == ("ndarray", *looks(mapped)[1:])


def test_npy_files_travel_as_their_names(tmp_path: Path) -> None:
    """What np.load maps is mapped again, in Fortran order too."""
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(6000).reshape(60, 100)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert shared_dataset.pack(mapped).out_of_band == 0
    assert travel.ask(mapped, looks) == looks(mapped)


# Tensors. In a process of its own, as torch would stay in this one.

_TENSORS = """
import sys; sys.path[:0] = {path!r}
import warnings
import torch, travel
from ringfeed.transport import shared_dataset, unpacking

parameter = torch.nn.Parameter(torch.ones(3))
tensors = [
    torch.arange(12.0).reshape(3, 4), torch.arange(9000), torch.arange(9000).reshape(90, 100)[:, ::2],
    torch.ones(5000, dtype=torch.bfloat16), torch.tensor(3), torch.zeros(0, 2), torch.tensor([True, False]),
    torch.arange(9000).unfold(0, 100, 1), torch.ones(5000).expand(50, 5000), parameter,
]
def looks(tensors):
    return [(type(t).__name__, str(t.dtype), tuple(t.shape), t.requires_grad, t.sum(0).tolist()) for t in tensors]
packed = shared_dataset.pack(tensors)
assert packed.out_of_band == 9000 * 8 * 2 + 90 * 50 * 8 + 5000 * 2 + 5000 * 4, packed.out_of_band
assert packed.in_band < 7000, packed.in_band
def shared(tensors):
    tensors[1][3] = -7
    return tensors[1].numpy()[3].item()
assert travel.ask(tensors, looks) == looks(tensors)
assert travel.ask(tensors, shared) == -7
assert tensors[1][3] == 3
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_cpu_tensors_arrive_as_tensors() -> None:
    """Tensors of any dtype travel out of band and are writable there.

    Parameters go torch's own way.
    """
    script = _TENSORS.format(path=sys.path)
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=travel.TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
