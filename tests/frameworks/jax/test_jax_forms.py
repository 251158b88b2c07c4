"""Leaves whose samples differ in length in JAX.

Values of one shape over the slot, and what the loader itself gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

import ringfeed
from formed import LENGTHS, MOST, ROWS, Formed, digest, expected, make, plain, told, without
from frameworks import with_lease
from ringfeed import Array
from ringfeed.errors import SpecError
from ringfeed.frameworks.batch import TensorBuilder
from ringfeed.frameworks.jax import RaggedArrays, jax_framework

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
NAMES = without("picture", "title", "wide")  # of 64 bits, which JAX has not unless it is told to


def said(batch: dict[str, Any]) -> dict[str, Any]:
    """Say what a batch holds; its types are those that `to_jax` promises."""
    found: dict[str, Any] = {}
    for name, leaf in batch.items():
        if isinstance(leaf, RaggedArrays):
            values, lengths = np.asarray(leaf.values), np.asarray(leaf.lengths)
            assert not values[lengths.sum() :].any()
            found[name] = told(values[: lengths.sum()], np.concatenate([[0], np.cumsum(lengths)]))
        elif isinstance(leaf, tuple):
            assert type(leaf) is {"measured": ringfeed.Padded, "masked": ringfeed.Masked}[name]
            values, beside = map(plain, leaf)
            found[name] = [values, ("int64", beside[1]) if beside[0] == "int32" else beside]
        else:
            found[name] = plain(leaf)
    return found


@pytest.mark.parametrize(
    "settings", [{}, {"copy": True}, {"shuffle": True, "drop_remainder": True}]
)
def test_batches_are_those_of_the_loader(settings: dict[str, Any]) -> None:
    """Value for value.

    Behind the last sample there is nothing but zeros, whatever was in the slot before.
    """
    with make(NAMES, **settings) as loader:
        found = [said(batch) for _ in range(2) for batch in loader.to_jax()][: len(loader)]
    assert digest(found) == digest(expected(NAMES, **settings))


@pytest.mark.parametrize(("total", "room"), [(None, MOST * ROWS), (21, 21)])
def test_a_jitted_function_is_compiled_once(total: int | None, room: int) -> None:
    """For ragged values, whatever the lengths.

    A slot's room is their shape, of ``total`` where that is given.
    """
    traced: list[Any] = []

    @jax.jit
    def sums(ragged: RaggedArrays) -> Any:
        traced.append(ragged.values.shape)
        rows = len(ragged.lengths)
        number = jax.numpy.repeat(
            jax.numpy.arange(rows), ragged.lengths, total_repeat_length=len(ragged.values)
        )
        return jax.ops.segment_sum(ragged.values[:, 0], number, rows)

    spec = {"boxes": Array((None, 2), "float32", max_shape=(MOST, 2), form="ragged", total=total)}
    with ringfeed.Loader(
        Formed(["boxes"]), spec=spec, batch_size=ROWS, workers=0, drop_remainder=True
    ) as loader:
        found = np.concatenate([sums(batch["boxes"]) for batch in loader.to_jax()])
    assert traced == [(room, 2)]
    own = [
        sum(2 * number + index for number in range(LENGTHS[index])) for index in range(len(found))
    ]
    np.testing.assert_array_equal(found, own)


def test_values_are_the_slot() -> None:
    """Nothing is copied: ragged values are all of their field, padded ones its beginning."""
    with make(NAMES, workers=0) as loader:
        lease, batch = with_lease(loader, TensorBuilder(loader._stream.info, jax_framework()))
        start = np.frombuffer(lease, np.uint8).ctypes.data
        arrays = (
            batch["boxes"].values,
            batch["tokens"],
            batch["measured"].values,
            batch["masked"].values,
        )
        for number, array in enumerate(arrays):
            assert array.unsafe_buffer_pointer() == start + loader.plan.layout.offsets[number]
        del lease, batch, arrays, array


def test_wide_values_are_narrowed() -> None:
    """As other leaves are: in memory of their own, and refused where they do not fit."""

    class Wide:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return np.array([1, 2**31 - 1 + index])

    spec = Array((None,), "int64", max_shape=(3,), form="ragged")
    with ringfeed.Loader(Wide(), spec=spec, batch_size=1, workers=0) as loader:
        batches = iter(loader.to_jax())
        first = next(batches)
        assert (first.values.dtype, first.values.tolist(), first.lengths.tolist()) == (
            "int32",
            [1, 2**31 - 1, 0],
            [2],
        )
        with pytest.raises(
            SpecError,
            match=r"^sample holds 2147483648 in row 1 of a batch, expected what fits into",
        ):
            next(batches)


def test_casts() -> None:
    """By a compiled function where all batches have one shape, and else by NumPy."""
    with make(["boxes", "tokens"]) as loader:
        cast = {"boxes": ringfeed.Cast("float32", scale=2), "tokens": "float32"}
        found = [said(batch) for batch in loader.to_jax(cast=cast)]
    for batch, plainly in zip(found, expected(["boxes", "tokens"]), strict=True):
        assert batch["tokens"] == ("float32", plainly["tokens"][1])
        assert batch["boxes"][1] == [
            (2 * np.array(sample)).tolist() for sample in plainly["boxes"][1]
        ]


@pytest.mark.parametrize(("name", "form"), [("picture", "bytes"), ("title", "text")])
def test_strings_are_refused(name: str, form: str) -> None:
    """Before the first batch, with the way out."""
    with make([name, "number"]) as loader, pytest.raises(SpecError) as raised:
        loader.to_jax()
    assert str(raised.value) == (
        f"sample[{name!r}] is {form}, of which JAX has no arrays; leave it out of the sample, or "
        "take the batches of the loader itself, by iter(loader)"
    )
