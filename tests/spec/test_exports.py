"""A slot's fields as DLPack capsules: the same memory, held until the framework lets go."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ringfeed
from exports import capsules_of
from ringfeed.frameworks.dlpack import CPU, Exported

DTYPES = (
    "uint8",
    "int8",
    "uint16",
    "int32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "bool",
)


def begin(*arrays: np.ndarray[Any, Any], **settings: Any) -> tuple[ringfeed.Loader, Any, int]:
    """Return a loader, and the lease and rows of its first batch of three."""
    loader = ringfeed.Loader(arrays, **{"batch_size": 3, "slots": 2, "workers": 0, **settings})
    batches = loader._stream.epoch(lambda lease, rows: (lease, rows))
    lease, rows = next(batches)
    return loader, lease, rows


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_memory(dtype: str) -> None:
    """Each leaf is exported with its shape and dtype, at its place in the slot."""
    samples = np.arange(24).reshape(4, 2, 3).astype(dtype)
    loader, lease, rows = begin(samples, samples[:, 0])
    first, second = map(np.from_dlpack, map(Exported, capsules_of(loader, lease, rows)))
    np.testing.assert_array_equal(first, samples[:3], strict=True)
    np.testing.assert_array_equal(second, samples[:3, 0], strict=True)
    offsets = loader.plan.layout.offsets
    assert [
        array.__array_interface__["data"][0] - lease.address for array in (first, second)
    ] == list(offsets)


def test_each_capsule_holds_the_slot() -> None:
    """The slot comes back with the last capsule and what was made of it, also after `close`."""
    loader, lease, rows = begin(np.arange(9.0), np.arange(9))
    first, second = capsules_of(loader, lease, rows)
    del lease
    assert loader.slot_states().count("held") == 1
    array = np.from_dlpack(Exported(first))
    del first, second
    assert loader.slot_states().count("held") == 1
    view = array[1:]
    del array
    assert loader.slot_states().count("held") == 1
    del view
    gc.collect()
    assert "held" not in loader.slot_states()
    loader, lease, rows = begin(np.arange(9.0))
    (capsule,) = capsules_of(loader, lease, rows)
    loader.close()
    del loader, lease
    assert np.from_dlpack(Exported(capsule)).tolist() == [0, 1, 2]


def test_fewer_rows() -> None:
    """As many rows are exported as asked for, batch by batch."""
    loader, lease, _ = begin(np.arange(9.0))
    for rows in (3, 2, 2, 1, 3):
        (capsule,) = capsules_of(loader, lease, rows)
        assert np.from_dlpack(Exported(capsule)).tolist() == list(range(rows))


def test_a_capsule_is_taken_once() -> None:
    """The protocol's object gives its capsule away, for any version, and says so afterwards."""
    loader, lease, rows = begin(np.arange(9.0))
    exported = Exported(capsules_of(loader, lease, rows)[0])
    assert exported.__dlpack_device__() == CPU == (1, 0)
    assert "dltensor" in repr(exported.__dlpack__(max_version=(1, 0), stream=None))
    with pytest.raises(BufferError) as caught:
        exported.__dlpack__()
    assert str(caught.value) == "this capsule was taken already"


def test_bfloat16() -> None:
    """bfloat16 has a code of its own, which NumPy does not know."""
    loader, lease, rows = begin(np.ones(9, ml_dtypes.bfloat16))
    (capsule,) = capsules_of(loader, lease, rows)
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(Exported(capsule))


@pytest.mark.parametrize("dtype", [">f4", "S5", "datetime64[s]", "longdouble"])
def test_dtypes_without_tensors(dtype: str) -> None:
    """What DLPack has no code for is refused with its path, and what to do."""
    with pytest.raises(ringfeed.SpecError) as caught:
        capsules_of(*begin(np.ones(9), np.zeros(9, dtype)))
    assert str(caught.value) == (
        f"sample[1] has dtype {np.dtype(dtype)}, of which frameworks have no tensors; convert it "
        "in __getitem__, as in value.astype('float32')"
    )
