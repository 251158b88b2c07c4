"""Messages that name the way out, each compared whole."""

from __future__ import annotations

import copy
import pickle
import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Callable


class Samples:
    """A dataset of a function of the index."""

    def __init__(self, sample: Callable[[int], Any], length: int = 8) -> None:
        self.sample, self.length = sample, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class Open(Samples):
    """A dataset that has a file open."""

    def __init__(self, file: Any) -> None:
        super().__init__(np.zeros)
        self.file = file


def refusal(error: type[Exception], dataset: Any, **settings: Any) -> str:
    """Return what is said of a dataset, by the loader or of its first epoch."""
    with (
        pytest.raises(error) as caught,
        ringfeed.Loader(dataset, **{"batch_size": 8, "workers": 0, **settings}) as it,
    ):
        list(it)
    return str(caught.value)


class csr_matrix:  # noqa: N801 - as scipy has it
    """What scipy's sparse matrices look like."""

    shape = (3, 3)

    def toarray(self) -> Any:
        """Return it dense."""
        return np.eye(3)


csr_matrix.__module__ = "scipy.sparse._csr"


class Tensor:
    """A sparse tensor of torch's: it has a shape, and NumPy makes no array of it."""

    shape = (3, 3)
    layout = "torch.sparse_coo"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        message = "it is sparse"
        raise TypeError(message)

    def to_dense(self) -> Any:
        """Return it dense."""
        return np.eye(3)


Tensor.__module__ = "torch"

LAMBDA = (
    "a lambda of (i) is no dataset: give an object whose __len__ is the number of samples and "
    "whose __getitem__(i) calls it or, for an iterable, a lambda without arguments that returns "
    "one"
)
DENSE = (
    "if that fits in memory, or an object whose __getitem__(i) makes row i of it dense and "
    "returns it with those of the other arrays"
)
SPARSE = {
    "alone": (
        TypeError,
        csr_matrix(),
        "a csr_matrix has no rows that are arrays, expected a dataset; give a tuple of its "
        ".toarray() if that fits in memory, or an object whose __getitem__(i) makes row i dense",
    ),
    "beside an array": (
        ringfeed.SpecError,
        {"x": csr_matrix(), "y": np.arange(3)},
        "dataset['x'] is of type csr_matrix, expected an array like all in a dict of arrays; give "
        "its .toarray() " + DENSE,
    ),
    "torch's": (
        ringfeed.SpecError,
        (Tensor(), np.arange(3)),
        "dataset[0] is a torch.Tensor, of which NumPy can make no array (it is sparse); give its "
        ".to_dense() " + DENSE,
    ),
}


def test_a_lambda_of_an_index() -> None:
    """It has no length, so an object with one is to be given."""
    assert refusal(TypeError, lambda i: np.zeros(i + 1)) == LAMBDA


@pytest.mark.parametrize(("error", "dataset", "text"), SPARSE.values(), ids=SPARSE)
def test_sparse_columns(error: type[Exception], dataset: Any, text: str) -> None:
    """Their rows are no arrays: dense ones are to be given, or an object that makes them."""
    assert refusal(error, dataset) == text


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_is_neither_pickled_nor_copied(way: Callable[[Any], Any]) -> None:
    """It says what to keep instead."""
    with (
        ringfeed.Loader(np.zeros((4, 2)), batch_size=2, workers=0) as loader,
        pytest.raises(TypeError) as caught,
    ):
        way(loader)
    assert str(caught.value) == (
        "a Loader cannot be pickled or copied, as it has workers and shared memory of its own; "
        "make another one of its dataset, and give it this one's state_dict() to go on from here"
    )


def test_an_open_file_is_told_of_without_our_frames(tmp_path: Any) -> None:
    """The cause is one line: what pickling went through says nothing to a user."""
    path = tmp_path / "open.txt"
    path.write_text("")
    with path.open() as file, pytest.raises(ringfeed.ShipError) as caught:
        ringfeed.Loader(Open(file), batch_size=2, workers=1)
    cause = caught.value.__cause__
    assert cause is not None
    told = "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))
    assert told == f"_pickle.PicklingError: cannot pickle the open file {path}\n"


PICTURES = [
    ((4, 5), (4, 5, 3), "1 channel", "3 channels", "RGB"),
    ((4, 5, 1), (4, 5, 3), "1 channel", "3 channels", "RGB"),
    ((4, 5, 4), (4, 5, 3), "4 channels", "3 channels", "RGB"),
    ((4, 5, 3), (4, 5), "3 channels", "1 channel", "L"),
]


@pytest.mark.parametrize(("odd", "usual", "given", "wanted", "mode"), PICTURES)
def test_one_grey_picture_among_coloured_ones(
    odd: tuple[int, ...], usual: tuple[int, ...], given: str, wanted: str, mode: str
) -> None:
    """A picture of other channels is to be converted, not cropped."""
    dataset = Samples(lambda index: np.zeros(odd if index == 5 else usual, np.uint8))
    assert refusal(ringfeed.SpecError, dataset) == (
        f"dataset[5]: sample has shape {odd}, expected {usual}; it is a picture of {given} where "
        f"others have {wanted}: convert it in __getitem__, as by PIL's .convert({mode!r}), to the "
        "same shape"
    )


def test_too_few_samples_for_a_batch() -> None:
    """drop_remainder=True of fewer samples than a batch has gives no batch: a warning says so."""
    with pytest.warns(RuntimeWarning) as caught:
        loader = ringfeed.Loader(np.zeros((10, 2)), batch_size=32, drop_remainder=True, workers=0)
    assert str(caught[0].message) == (
        "drop_remainder=True leaves no batch at all: 10 samples are fewer than batch_size=32; "
        "make batch_size smaller, or keep the last batch with drop_remainder=False"
    )
    assert caught[0].filename == __file__
    assert (len(loader), list(loader)) == (0, [])


def test_an_empty_part_of_interleave() -> None:
    """It is named, and may be left out."""
    dataset = ringfeed.datasets.Interleave([lambda: iter([]), lambda: iter(np.arange(4))])
    assert refusal(ringfeed.SpecError, dataset) == (
        "iterable 0 of Interleave() is empty, so there is no element to infer the spec from; "
        "leave it out, or give spec="
    )


@pytest.mark.parametrize(("value", "code", "name"), [(b"ab", "S", "Bytes"), ("ab", "U", "Text")])
def test_a_batch_of_strings_as_objects(value: bytes | str, code: str, name: str) -> None:
    """What a tensor of tf.string gives by .numpy() has two ways out."""
    batch = np.array([value, value], object)
    assert refusal(ringfeed.SpecError, Samples(lambda _: batch), batch_size=None) == (
        "dataset[0]: batch has dtype object, expected one without Python objects; convert it by "
        f"its .astype('{code}64') or, returned by __getitem__, give ringfeed.{name}(64) in its "
        "place in spec="
    )
    spec = getattr(ringfeed, name)(64)
    settings: Any = {"batch_size": None, "max_batch_size": 2, "workers": 0, "spec": spec}
    with ringfeed.Loader(Samples(lambda _: batch), **settings) as loader:
        assert [*next(iter(loader))] == [value, value]


def test_float8_for_a_framework() -> None:
    """No framework takes it over DLPack: its bits may go as uint8."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from ringfeed.frameworks.dlpack import type_of  # noqa: PLC0415 - what `to_jax` and `to_torch` ask

    leaf: Any = SimpleNamespace(path="sample", dtype=np.dtype(ml_dtypes.float8_e4m3fn))
    with pytest.raises(ringfeed.SpecError) as caught:
        type_of(leaf)
    assert str(caught.value) == (
        "sample has dtype float8_e4m3fn, of which frameworks have no tensors; convert it in "
        "__getitem__, as in value.astype('float32'), or return value.view('uint8') and take these "
        "bits for what they are in the step, as by jax.lax.bitcast_convert_type(batch, "
        "'float8_e4m3fn') or tensor.view(torch.float8_e4m3fn)"
    )
