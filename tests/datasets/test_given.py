"""What is given as a dataset, whole: taken as columns, or refused with what to give instead.

Never misread.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import ringfeed
from ringfeed.frameworks.base import Epochs
from ringfeed.loader import stream_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once

X, Y = np.arange(200, dtype=np.float32).reshape(100, 2), np.arange(100)


class Tensor:
    """What NumPy makes an array of, as it does of torch's tensors and of Series."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """As an array has it."""
        return self.array.shape

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.array[index])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


class OnDevice(Tensor):
    """What NumPy cannot read."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("copy it to host memory first")


class Columns(NamedTuple):
    """Columns with names."""

    x: Any
    y: Any


def foreign(name: str, base: type = object, **members: Any) -> Any:
    """A class of another package, by its name."""
    package, _, own = name.rpartition(".")
    return type(own, (base,), {"__module__": package, **members})


def only(dataset: Any, **settings: Any) -> Any:
    """The one batch of 100 samples."""
    with ringfeed.Loader(dataset, batch_size=100, workers=0, copy=True, **settings) as loader:
        (batch,) = loader
    return batch


def refusal(dataset: Any, kind: type[Exception] = ringfeed.SpecError, **settings: Any) -> str:
    """The text of the error of a loader's constructor."""
    with pytest.raises(kind) as caught:
        ringfeed.Loader(dataset, workers=settings.pop("workers", 0), **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    "dataset",
    [
        (X, Y),
        (Tensor(X), Tensor(Y)),
        (X, Tensor(Y)),
        Columns(Tensor(X), Y),
        {"x": Tensor(X), "y": Y},
        (Tensor(Y), (X,)),
    ],
)
def test_columns_of_any_kind_are_taken(dataset: Any) -> None:
    """Tensors and Series are columns as arrays are, in tuples, NamedTuples and dicts."""
    batch = only(dataset)
    assert type(batch) is type(dataset)
    first, second = batch.values() if isinstance(batch, dict) else batch
    if isinstance(second, tuple):
        first, second = second[0], first
    assert np.array_equal(first, X)
    assert np.array_equal(second, Y)


def test_columns_of_one_shape_are_no_two_samples() -> None:
    """Two tensors of one shape and dtype, which two samples might be, are 100 samples."""
    batch = only((Tensor(X), Tensor(X + 1)))
    assert type(batch) is tuple
    noisy, clean = batch
    assert np.array_equal(noisy + 1, clean)


def test_workers_share_converted_columns() -> None:
    """They are sent once, as arrays."""
    with ringfeed.Loader((Tensor(X), Tensor(Y)), batch_size=32, workers=1, copy=True) as loader:
        assert np.concatenate([y for _, y in loader]).tolist() == Y.tolist()
        assert loader.dataset[1].array is Y


def test_columns_of_two_lengths() -> None:
    """The text gives all shapes, as for arrays."""
    assert refusal((Tensor(X), Tensor(Y[:99]))) == (
        "the arrays of a dataset must be equally long, but their shapes are (100, 2), (99,); cut "
        "them to one length"
    )


def test_a_series_is_read_by_position() -> None:
    """Its own numbers are labels, which a shuffled table has in another order."""

    class Series(Tensor):
        __module__ = "pandas.core.series"

        def __getitem__(self, index: Any) -> Any:
            raise KeyError(index)

    assert np.array_equal(only(Series(Y)), Y)
    assert np.array_equal(only((X, Series(Y)))[1], Y)


TUPLE, DICT = (f"expected an array like all in a {kind} of arrays" for kind in ("tuple", "dict"))
FEW = "expected a tuple of columns or many samples; give tuple() of it for"


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (
            (X, Y.tolist()),
            f"dataset[1] is of type list, {TUPLE}; give numpy.asarray() of it",
        ),
        ((X, None), f"dataset[1] is None, {TUPLE}; leave it out"),
        ((X, ()), f"dataset[1] is of type tuple, {TUPLE}; give numpy.asarray() of it"),
        ({"x": X, "y": {}}, f"dataset['y'] is of type dict, {DICT}; give numpy.asarray() of it"),
        (
            ([X, X], Y),
            f"dataset[0] is of type list, {TUPLE}; make it a tuple, as in ((x1, x2), y)",
        ),
        (
            (X, 5),
            f"dataset[1] is of type int, {TUPLE}; give numpy.asarray() of it",
        ),
        (
            {"x": X, "y": [0, 1]},
            f"dataset['y'] is of type list, {DICT}; give numpy.asarray() of it",
        ),
        (
            {"x": (X, 5)},
            f"dataset['x'][1] is of type int, {DICT}; give numpy.asarray() of it",
        ),
        (
            [X, X],
            (
                f"the dataset is a list of 2 arrays of length 100, {FEW} 100 samples, "
                "numpy.stack() of it for 2"
            ),
        ),
        (
            [X, Y],
            (
                f"the dataset is a list of 2 arrays of length 100, {FEW} 100 samples, "
                "numpy.stack() of it for 2"
            ),
        ),
        (
            [Tensor(X)],
            (
                f"the dataset is a list of 1 array of length 100, {FEW} 100 samples, numpy.stack() "
                "of it for 1"
            ),
        ),
        (
            (X, OnDevice(Y)),
            "dataset[1] is a test_given.OnDevice, of which NumPy can make no array (copy it to "
            "host memory first); give a NumPy array in its place",
        ),
        (
            (foreign("zarr.core.Array", Tensor)(X), Y),
            "dataset[0] is a zarr.Array, which is read piece by piece, expected an array in "
            "memory; give numpy.asarray() of it if it fits there, or an object whose "
            "__getitem__(i) reads row i of each column",
        ),
    ],
)
def test_columns_that_are_no_arrays_are_refused(dataset: Any, text: str) -> None:
    """The text says which of them is none, and what to do; nothing is taken for two samples."""
    assert refusal(dataset) == text


@pytest.mark.parametrize(
    ("dataset", "count"),
    [
        ([np.zeros(3)] * 5, 5),
        ([np.zeros((28, 28))] * 9, 9),
        ([(X[0], 1), (X[1], 0)], 2),
        (((X[0], 1), (X[1], 0)), 2),
        ([np.float32(1), np.float32(2)], 2),
        ([X[:1]], 1),
        ({0: X, 1: X}, 2),
    ],
)
def test_samples_in_lists_and_tuples_stay_samples(dataset: Any, count: int) -> None:
    """More than a few arrays, or arrays shorter than their number, are samples.

    And so are pairs and numbers.
    """
    if isinstance(dataset, dict):
        dataset = {**dataset, 2: None}
        del dataset[2]
    with ringfeed.Loader(dataset, batch_size=1, workers=0) as loader:
        assert len(loader) == (100 if isinstance(dataset, dict) else count)


def test_a_spec_says_that_a_list_holds_samples() -> None:
    """With a spec each sample is checked, so that nothing can be misread.

    Whole batches are no columns either.
    """
    spec = ringfeed.Array(X.shape, X.dtype)
    with ringfeed.Loader([X, X], batch_size=2, workers=0, spec=spec, copy=True) as loader:
        assert [batch.shape for batch in loader] == [(2, 100, 2)]
    for batches in ([X, X], (Tensor(X), Tensor(X))):
        with ringfeed.Loader(batches, batch_size=None, workers=0, copy=True) as loader:
            assert [batch.shape for batch in loader] == [(100, 2)] * 2


def needy(path: str) -> Iterator[int]:
    """A generator function that needs an argument."""
    yield len(path)


class Indexed:
    """A dataset class."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return index


LOADER = foreign("torch.utils.data.dataloader.DataLoader", __iter__=lambda _: iter([X, X]))
MAKES = (
    "makes batches itself, expected a dataset of samples; give the loader's .dataset, or "
    "batch_size=None to have its batches as they are"
)
FRAME = (
    "has no rows by number, expected a dataset; give its columns: "
    "{name: table[name].to_numpy() for name in table."
)


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (
            "a.parquet",
            "'a.parquet' is a str, expected a dataset and not the name of one; read it into "
            "arrays, or give an object whose __getitem__(i) reads sample i",
        ),
        (
            Path("a.npy"),
            f"{Path('a.npy')!r} is a {type(Path()).__name__}, expected a dataset and not the name "
            "of one; read it into arrays, or give an object whose __getitem__(i) reads sample i",
        ),
        (foreign("pandas.core.frame.DataFrame", Tensor)(X), f"a DataFrame {FRAME}columns}}"),
        (foreign("polars.dataframe.frame.DataFrame", Tensor)(X), f"a DataFrame {FRAME}columns}}"),
        (foreign("pyarrow.lib.Table", Tensor)(X), f"a Table {FRAME}column_names}}"),
        (LOADER(), f"a DataLoader {MAKES}"),
        (ringfeed.Loader((X, X), workers=0), f"a Loader {MAKES}"),
        (Indexed, "Indexed is a class, expected a dataset; give an instance: Indexed(...)"),
        (
            needy,
            "needy(path: 'str') -> 'Iterator[int]' cannot be called without arguments (missing a "
            "required argument: 'path'), as a function that returns an iterable is; give lambda: "
            "needy(...)",
        ),
    ],
)
def test_what_is_no_dataset_is_refused_by_name(dataset: Any, text: str) -> None:
    """The text says what to give in its place."""
    for workers in (0, 1):
        assert refusal(dataset, TypeError, workers=workers) == text


def test_what_gives_batches_of_a_loader_is_refused() -> None:
    """Its batches would be taken for samples, and made batches of."""
    with ringfeed.Loader((X, X), workers=0) as loader:
        assert (
            refusal(Epochs(stream_of(loader), lambda: iter(())), TypeError, batch_size=4)
            == f"an Epochs {MAKES}"
        )
        assert refusal(iter(loader), TypeError, batch_size=4) == f"a BatchIterator {MAKES}"
        assert refusal(loader.repeat(), TypeError, batch_size=4) == f"a Repeated {MAKES}"


def test_a_tf_dataset_is_read_here_alone() -> None:
    """No worker process can have it; a thread can."""
    dataset = foreign(
        "tensorflow.python.data.ops.dataset_ops.DatasetV2", __iter__=lambda _: iter(X)
    )()
    assert refusal(dataset, TypeError, workers=1) == (
        "a tf.data.Dataset cannot be sent to a worker process; give the arrays or files that it "
        "is made of, or use backend='thread' to have it read here"
    )
    with ringfeed.Loader(dataset, batch_size=100, workers=1, backend="thread", copy=True) as loader:
        assert np.array_equal(next(iter(loader)), X)


def test_batches_of_a_dataloader() -> None:
    """With batch_size=None they are taken as they are."""
    with ringfeed.Loader(LOADER(), batch_size=None, workers=0, copy=True) as loader:
        assert [batch.shape for batch in loader] == [(100, 2)] * 2


class Corrupt(Indexed):
    """Its first samples cannot be read, or are None."""

    def __init__(self, *, bad: int = 1, length: int = 4) -> None:
        self.bad, self.length = bad, length
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        if index < self.bad - 1:
            return None
        if index < self.bad:
            raise ValueError(f"corrupt {index}")
        return np.full(2, index)


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [4, None])
def test_a_first_sample_that_is_skipped(batch_size: int | None, bad: int) -> None:
    """The spec is learnt from the first sample that can be read; those before it are left out."""
    dataset = Corrupt(bad=bad)
    with ringfeed.Loader(
        dataset, batch_size=batch_size, workers=0, on_error="skip", copy=True
    ) as loader:
        assert dataset.read == [*range(bad + 1)]
        found = np.concatenate([np.atleast_1d(batch.ravel()) for batch in loader])
        assert found.tolist() == np.repeat(range(bad, 4), 2).tolist()


@pytest.mark.parametrize(
    ("batch_size", "bad", "length", "text"),
    [
        (
            2,
            1,
            1,
            (
                "ValueError: corrupt 0; on_error='skip' leaves none out before the spec is known: "
                "give spec="
            ),
        ),
        (
            None,
            1,
            1,
            "ValueError: corrupt 0; on_error='skip' leaves none out before the spec is known: "
            "give spec= and max_batch_size=",
        ),
        (
            2,
            3,
            3,
            "SpecError: dataset[0]: sample is None, expected an array or number, or a tuple, list "
            "or dict of them; return one of these from __getitem__; on_error='skip' leaves out "
            "samples that are None, and the 2 read after it failed, too; on_error='skip' "
            "leaves none out before the spec is known: give spec=",
        ),
    ],
)
def test_no_sample_that_can_be_read(
    batch_size: int | None, bad: int, length: int, text: str
) -> None:
    """The error says what the samples were read for, and how many.

    With a spec they are skipped like any other.
    """
    found = refusal(Corrupt(bad=bad, length=length), on_error="skip", batch_size=batch_size)
    assert found == f"dataset[0], read for the spec, raised {text}"
    spec = ringfeed.Array((2,), "int64")
    with ringfeed.Loader(
        Corrupt(), batch_size=4, workers=0, on_error="skip", spec=spec, copy=True
    ) as loader:
        assert next(iter(loader))[:, 0].tolist() == [1, 2, 3]


def test_so_many_first_samples_are_tried() -> None:
    """The search ends after 32 failed samples, and without on_error="skip" with the first one."""
    dataset = Corrupt(bad=100, length=1000)
    refusal(dataset, on_error="skip")
    assert dataset.read == [*range(32)]
    dataset = Corrupt()
    assert refusal(dataset, ValueError) == "corrupt 0"
    assert dataset.read == [0]


@pytest.mark.parametrize("as_function", [False, True])
def test_a_masked_sampler_is_refused(as_function: bool) -> None:  # noqa: FBT001
    """The numbers under its mask would be read as if they were meant."""
    order = np.ma.masked_array([0, 1, 2, 3], [False, True, False, True])
    with ringfeed.Loader(
        np.arange(4), workers=0, sampler=(lambda _: order) if as_function else order
    ) as loader:
        with pytest.raises(TypeError) as caught:
            iter(loader)
        assert str(caught.value) == (
            "sampler is a masked array, expected a plain one; .compressed() leaves masked numbers "
            "out"
        )
