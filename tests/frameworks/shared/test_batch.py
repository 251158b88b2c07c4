"""What a batch is made of, and when it goes out as a copy: without any framework."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed.frameworks.batch import Framework, Outstanding, TensorBuilder
from ringfeed.frameworks.cast import Chosen
from ringfeed.frameworks.dlpack import Exported


class Tensor:
    """Something to refer to weakly."""


def test_slots_of_living_tensors_are_not_waited_for() -> None:
    """A slot of which the program has a tensor may never come back.

    One without comes when JAX lets go.
    """
    framework = Framework(None, np.asarray, in_flight_s=7.5, is_computing=lambda: False)
    outstanding = Outstanding()
    with ringfeed.Loader((np.arange(4),), batch_size=4, workers=0) as loader:
        builder = TensorBuilder(loader._stream.info, framework, outstanding=outstanding)
    kept = [Tensor(), Tensor()]
    outstanding.add(1, kept[:1])
    outstanding.add(2, kept[1:])
    assert not builder.lets_go_later(0.0, 2)
    kept.pop()
    assert builder.lets_go_later(0.0, 2)
    assert not builder.lets_go_later(8.0, 2)


def test_what_is_remembered_is_bounded_by_the_slots() -> None:
    """However many batches have gone out, no more is remembered than there are slots."""
    outstanding = Outstanding()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(2000):
        outstanding.add(number % 4, [Tensor()])
    gc.collect()
    assert len(gc.get_objects()) - before < 100


# ---- what a batch is made of ----


def over(capsule: object) -> Any:
    """Return an array over the memory of a capsule."""
    return np.from_dlpack(Exported(capsule))


@pytest.mark.parametrize("copy", [False, True])
def test_a_leaf_that_is_cast_is_read_from_the_slot(copy: bool) -> None:  # noqa: FBT001
    """Other leaves are copied where asked for, where they are converted, or DLPack has no code."""
    arrays = (np.arange(4, dtype=np.uint8), np.arange(4), np.arange(4.0), np.arange(4, dtype=">i2"))
    with ringfeed.Loader(arrays, batch_size=4, workers=0, slots=2, copy=copy) as loader:
        info = loader._stream.info
        read: list[int] = []

        def cast(array: Any) -> Any:
            read.append(array.ctypes.data)
            return array.astype(np.float32)

        builder = TensorBuilder(
            info,
            Framework(over, np.asarray),
            cast=Chosen({0: cast}),
            own={2: lambda view: view * 2},
        )
        assert [*builder.over_slot] == ([0] if copy else [0, 1])
        lease, made, private = next(
            loader._stream.epoch(
                lambda lease, rows: (lease, builder(lease, rows), builder.private(lease, rows))
            )
        )
        at = [lease.address + offset for offset in info.offsets]
        assert read[0] == at[0] != read[1]
        assert [leaf.ctypes.data == place for leaf, place in zip(made, at, strict=True)] == [
            False,
            not copy,
        ] + [False] * 2
        np.frombuffer(lease, np.uint8)[:] = 255
        assert [leaf.tolist() for leaf in private] == [
            [0, 1, 2, 3],
            [0, 1, 2, 3],
            [0, 2, 4, 6],
            [0, 1, 2, 3],
        ]
        assert [leaf.dtype for leaf in private] == ["f4", "i8", "f8", "i2"]
