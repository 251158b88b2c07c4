"""Datasets of columns that change between epochs.

The same batches on every backend, or an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2, "backend": "thread"},
    *({"workers": 2, "backend": method} for method in ("spawn", "fork", "process")),
]
KEPT = "keep their keys, dtypes and shapes of rows, or make a new loader"


class Columns(dict[str, Any]):
    """Columns whose hook changes them."""

    def __init__(self, change: Callable[[Columns], object] | None, **columns: Any) -> None:
        super().__init__(**columns)
        self.change = change

    def on_epoch_end(self) -> None:
        """Change the columns."""
        if self.change is not None:
            self.change(self)


class Converted:
    """An array of another package."""

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array)
        self.shape = self._array.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._array

    def __add__(self, other: int) -> Converted:
        return Converted(self._array + other)


def grow(columns: Columns) -> None:
    """Put other arrays in the place of those that are there."""
    columns["x"] = columns["x"] + 100


def turn(columns: Columns) -> None:
    """Put the keys in another order."""
    columns["x"] = columns.pop("x") + 100


def stride(columns: Columns) -> None:
    """Put an array in the place of another whose rows are strided."""
    wide = np.zeros((4, 4), np.int64)
    wide[:, ::2] = columns["x"] + 100
    columns["x"] = wide[:, ::2]


def pair() -> dict[str, Any]:
    """Return two columns of one shape."""
    return {"x": np.arange(8).reshape(4, 2), "y": -np.arange(8).reshape(4, 2)}


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("change", [grow, turn, stride])
@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_a_hook_that_replaces_a_column_changes_the_next_epoch(
    how: dict[str, Any], change: Callable[[Columns], object]
) -> None:
    """A column that a hook replaces is read from the next epoch on, by every backend."""
    with ringfeed.Loader(Columns(change, **pair()), batch_size=4, **how) as loader:
        for epoch in range(3):
            (batch,) = list(loader)
            assert batch["x"].tolist() == (pair()["x"] + 100 * epoch).tolist()
            assert batch["y"].tolist() == pair()["y"].tolist()


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_a_hook_that_replaces_a_converted_column_changes_the_next_epoch(
    how: dict[str, Any],
) -> None:
    """Columns of other packages are converted again after a hook, nested ones, too."""
    columns = Columns(grow, x=Converted(np.arange(4)), y=Converted(np.arange(4)))
    for dataset, of in (
        (columns, lambda batch: batch["x"]),
        ((columns, np.arange(4)), lambda batch: batch[0]["x"]),
    ):
        hooked = dataset if dataset is columns else Hooked(dataset)
        columns["x"] = Converted(np.arange(4))
        with ringfeed.Loader(hooked, batch_size=4, **how) as loader:
            read = [of(batch).tolist() for _ in range(2) for batch in loader]
        assert read == [[0, 1, 2, 3], [100, 101, 102, 103]]


class Hooked(tuple[Any, ...]):
    """A tuple whose hook is that of its first member."""

    __slots__ = ()

    def on_epoch_end(self) -> None:
        """Change the first member."""
        self[0].on_epoch_end()


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_fewer_rows_make_a_shorter_epoch(how: dict[str, Any]) -> None:
    """A hook that shortens all columns gives an epoch of so many rows."""
    with ringfeed.Loader(
        Columns(lambda own: own.update(x=np.full(3, 7.0)), x=np.zeros(8)), batch_size=4, **how
    ) as it:
        assert [[batch["x"].tolist() for batch in it] for _ in range(2)] == [
            [[0.0] * 4] * 2,
            [[7.0] * 3],
        ]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("change", "now"),
    [
        ({"x": np.full((8, 5), 7.0)}, "{'x': Array((5,), 'float64')}"),
        ({"x": np.full((8, 20), 7.0)}, "{'x': Array((20,), 'float64')}"),
        ({"x": np.full((8, 10), 7, "float32")}, "{'x': Array((10,), 'float32')}"),
        ({"x": np.full((8, 10), 7, ">f8")}, "{'x': Array((10,), '>f8')}"),
        ({"x": np.full(8, 7.0)}, "{'x': Array((), 'float64')}"),
        ({"y": np.zeros(8)}, "{'x': Array((10,), 'float64'), 'y': Array((), 'float64')}"),
    ],
    ids=["narrower", "wider", "float32", "big-endian", "no axis", "another key"],
)
@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_columns_with_other_rows_are_refused(
    how: dict[str, Any], change: dict[str, Any], now: str
) -> None:
    """Columns with rows of another spec are an error on every backend, before anything is read."""
    x = np.arange(80.0).reshape(8, 10)
    expected = (
        f"the arrays of the dataset are {now} now, expected {{'x': Array((10,), 'float64')}} as "
        f"when the loader was made; {KEPT}"
    )
    with ringfeed.Loader(
        Columns(lambda own: own.update(change), x=x), batch_size=4, **how
    ) as loader:
        list(loader)
        with pytest.raises(ringfeed.SpecError) as caught:
            iter(loader)
        assert str(caught.value) == expected


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_columns_that_are_no_arrays_any_more_are_refused(how: dict[str, Any]) -> None:
    """A list in the place of an array is an error that says so, on every backend."""
    with ringfeed.Loader(
        Columns(lambda own: own.update(x=[1, 2]), x=np.arange(2)), batch_size=2, **how
    ) as loader:
        with pytest.raises(ringfeed.SpecError) as caught:
            list(loader)
        expected = (
            "dataset['x'] is of type list, expected an array as when the loader was made; give "
            "numpy.asarray() of it"
        )
        assert str(caught.value) == expected


@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_columns_of_unlike_lengths_are_refused(how: dict[str, Any]) -> None:
    """A hook that shortens one column of two is an error, on every backend."""
    change = Columns(lambda own: own.update(y=np.arange(3)), x=np.arange(4), y=np.arange(4))
    with ringfeed.Loader(change, batch_size=2, **how) as loader:
        with pytest.raises(ringfeed.SpecError) as caught:
            list(loader)
        expected = (
            "the arrays of a dataset must be equally long, but their shapes are (4,), (3,); cut "
            "them to one length"
        )
        assert str(caught.value) == expected


@pytest.mark.parametrize("wrap", ["transform", "mix", "bare"])
@pytest.mark.parametrize("how", BACKENDS, ids=str)
def test_columns_that_change_before_the_first_epoch_are_looked_at(
    how: dict[str, Any], wrap: str
) -> None:
    """A column may become one that the spec refuses before the first epoch, too."""
    own = {"x": np.arange(80.0).reshape(8, 10)}
    dataset: Any = ringfeed.datasets.Mix([own, own]) if wrap == "mix" else own
    with ringfeed.Loader(
        dataset, batch_size=4, transform=add if wrap == "transform" else None, **how
    ) as loader:
        own["x"] = np.full((8, 5), 7.0)
        with pytest.raises(ringfeed.SpecError) as caught:
            iter(loader)
        begin = "dataset 0: " if wrap == "mix" else ""
        expected = (
            f"{begin}the arrays of the dataset are {{'x': Array((5,), 'float64')}} now, expected "
            f"{{'x': Array((10,), 'float64')}} as when the loader was made; {KEPT}"
        )
        assert str(caught.value) == expected


def add(sample: dict[str, Any]) -> None:
    """Change a sample in place."""
    sample["x"] += 1


@pytest.mark.parametrize("how", BACKENDS[:2], ids=str)
def test_a_column_that_changes_amid_an_epoch_is_never_read_beyond_its_rows(
    how: dict[str, Any],
) -> None:
    """Where reader and user share a dataset, each ticket checks the columns before it copies."""
    own = {"x": np.arange(80.0).reshape(8, 10)}
    with ringfeed.Loader(own, batch_size=1, slots=2, **how) as loader:
        batches = iter(loader)
        next(batches)
        own["x"] = np.full((8, 5), 7.0)
        with pytest.raises(ringfeed.SpecError) as caught:
            for _ in batches:
                pass
        index = str(caught.value)[len("dataset[") :].partition("]")[0]
        expected = (
            f"dataset[{index}]: sample['x'] has shape (5,), expected (10,); every sample must have "
            "the shape of the spec: crop, pad or resize it in __getitem__; or allow many shapes: "
            "spec= with variable=, form='pad' or form='ragged'"
        )
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    "strides", [(80, 8), (0, 8), (-80, 8), (8, 8), (80, 0), (8, 80), (40, 16)], ids=str
)
def test_columns_are_gathered_by_their_strides(strides: tuple[int, int]) -> None:
    """Rows are what NumPy says they are, however the array is strided."""
    base = np.arange(100.0)
    column = as_strided(base[50:] if strides[0] < 0 else base, (4, 4), strides)
    with ringfeed.Loader((column,), batch_size=4, workers=0) as loader:
        assert next(iter(loader))[0].tolist() == column.tolist()


def test_a_column_that_is_one_row_short_amid_an_epoch() -> None:
    """The row behind its end is an error, and no memory of another's.

    The rows before it come as they are.
    """
    columns = {"x": np.arange(8), "y": np.arange(8)}
    with ringfeed.Loader(columns, batch_size=4, workers=0, on_error="skip") as loader:
        batches = iter(loader)
        assert next(batches)["x"].tolist() == [0, 1, 2, 3]
        columns["x"] = np.arange(8)[:7]
        assert next(batches)["x"].tolist() == [4, 5, 6]
        assert loader.stats().skipped == [7]
