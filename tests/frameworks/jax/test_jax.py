"""A loader's batches as jax arrays over the slots.

Aliasing, what JAX still reads, few slots, and how it all ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from forking import Child
from frameworks import (
    DTYPES,
    ENDINGS,
    ROWS,
    SHAPES,
    WIDE,
    Poisoned,
    X,
    Y,
    ends_as_it_should,
    held_text,
    make,
    of_dtype,
    slot_bytes,
    with_lease,
)
from ringfeed.datasets.first import packages_in
from watching import PATIENCE_S, wait_until

jax = pytest.importorskip("jax", reason="jax is not installed")
jnp = jax.numpy
adapter = importlib.import_module("ringfeed.frameworks.jax")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LABELS = Y.astype(np.int32)  # of which JAX takes the very memory


@pytest.fixture
def wide() -> Iterator[None]:
    """JAX with 64 bits."""
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003 - JAX's own call
    yield
    jax.config.update("jax_enable_x64", False)  # noqa: FBT003


def is_over(array: Any, lease: Any, number: int, loader: ringfeed.Loader) -> bool:
    """Return whether an array lies where the slot's field does."""
    where = lease.address + loader.plan.layout.offsets[number]
    return bool(array.unsafe_buffer_pointer() == where)


def check_alias(dtype: str) -> None:
    """Check that an array of this dtype has the slot's memory.

    The address, the values, and another's writes.
    """
    given = of_dtype(dtype)
    with make((LABELS[:7], given), batch_size=4) as loader:
        lease, (_, array) = with_lease(loader, adapter._builder(loader._stream.info, {}))
        assert is_over(array, lease, 1, loader)
        assert (array.dtype, array.shape) == (given.dtype, (4, 5, 7))
        content = slot_bytes(lease, 1, loader, 4)
        assert np.asarray(array).tobytes() == given[:4].tobytes() == content.tobytes()
        content[:] = 1
        assert jnp.array(array).tobytes() == b"\1" * content.size


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_lie_over_the_slot(dtype: str) -> None:
    """An array has the slot's address, and sees what is written there."""
    check_alias(dtype)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("dtype", WIDE)
def test_arrays_of_64_bits_lie_over_the_slot_where_jax_has_them(dtype: str) -> None:
    """With jax_enable_x64 nothing is copied."""
    check_alias(dtype)


@pytest.mark.parametrize("dtype", WIDE)
def test_leaves_of_64_bits_become_what_jax_makes_of_them(dtype: str) -> None:
    """Without jax_enable_x64 that leaf alone is a copy, in the dtype of jax.numpy.asarray."""
    given = of_dtype(dtype)
    with make((LABELS[:7], given), batch_size=4) as loader:
        lease, (labels, array) = with_lease(loader, adapter._builder(loader._stream.info, {}))
        assert is_over(labels, lease, 0, loader)
        assert not is_over(array, lease, 1, loader)
        expected = jnp.asarray(given[:4])
        assert array.dtype == expected.dtype != given.dtype
        assert (array == expected).all()
        assert array.devices() == labels.devices()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_epoch_has_the_width_that_jax_has_when_it_begins(device: str | None) -> None:
    """Whatever it had when to_jax() was called.

    A change amid an epoch is an error, and no batch of zeros.
    """
    numbers = np.arange(1, 9)
    with make((numbers,), batch_size=2, slots=12) as loader:
        jax.config.update("jax_enable_x64", True)  # noqa: FBT003 - JAX's own call
        try:
            epochs = loader.to_jax(device)
        finally:
            jax.config.update("jax_enable_x64", False)  # noqa: FBT003
        narrow = [array for (array,) in epochs]
        with jax.enable_x64(True):  # noqa: FBT003
            batches = iter(epochs)
            next(batches)
        with pytest.raises(ringfeed.SpecError) as caught:
            list(batches)
        with jax.enable_x64(True):  # noqa: FBT003
            wide = [array for (array,) in epochs]
            assert (
                [array.tolist() for array in wide]
                == [array.tolist() for array in narrow]
                == [[1, 2], [3, 4], [5, 6], [7, 8]]
            )
    assert str(caught.value) == (
        "jax_enable_x64 was changed amid an epoch, and the leaves of 64 bits are not what they "
        "were; set it before the epoch begins"
    )
    assert {str(array.dtype) for array in narrow} == {"int32"}
    assert {str(array.dtype) for array in wide} == {"int64"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            np.int64(2**31),
            (
                "2147483648 in row 1 of a batch, expected what fits into int32, which JAX makes "
                "of int64"
            ),
        ),
        (
            np.uint64(2**32),
            (
                "4294967296 in row 1 of a batch, expected what fits into uint32, which JAX makes "
                "of uint64"
            ),
        ),
        (
            np.float64(1e39),
            (
                "1e+39 in row 1 of a batch, expected what fits into float32, which JAX makes of "
                "float64"
            ),
        ),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(value: Any, text: str) -> None:
    """JAX would wrap it in silence. The loader goes on with the next batch."""
    numbers = np.zeros((4, 2), value.dtype)
    numbers[1, 1] = value
    with make((numbers,), batch_size=2) as loader:
        batches = iter(loader.to_jax())
        with pytest.raises(ringfeed.SpecError) as caught:
            next(batches)
        assert (
            str(caught.value)
            == f"sample[0] holds {text}; set jax_enable_x64, or convert it in __getitem__"
        )
        assert [array.tolist() for (array,) in batches] == [[[0, 0], [0, 0]]]


def test_floats_are_rounded_as_jax_rounds() -> None:
    """A float64 becomes the nearest float32; what is infinite or no number already is let pass."""
    numbers = np.array([0.1, np.inf, -np.inf, np.nan])
    with make((numbers,), batch_size=4) as loader:
        ((array,),) = loader.to_jax()
    np.testing.assert_array_equal(array, numbers.astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_arrives(shape: tuple[int, ...]) -> None:
    """Samples without axes, of one element and of none, whole batches and the shorter last one."""
    given = of_dtype("int16", shape)
    with make((given,), batch_size=4) as loader:
        found = [np.array(array) for (array,) in loader.to_jax()]
        assert [array.shape for array in found] == [(4, *shape), (3, *shape)]
        np.testing.assert_array_equal(np.concatenate(found), given)


def test_a_worker_needs_all_of_jax_for_samples_of_arrays() -> None:
    """Their class is in jaxlib, and a worker that is forked, or warns, knows that they need jax."""
    assert packages_in({"x": jnp.zeros(2), "y": np.zeros(2)}) == {"jax", "numpy"}


def test_every_iteration_is_an_epoch() -> None:
    """Batches mirror the sample, the epochs are the loader's own, and their length its length."""
    arrays = {"x": X, "y": (LABELS, (Y,))}
    with make(arrays, shuffle=True) as loader, make(arrays, shuffle=True) as plain:
        found = loader.to_jax()
        assert len(found) == len(loader) == 4
        for _ in range(2):
            for batch, expected in zip(found, plain, strict=True):
                assert jax.tree.structure(batch) == jax.tree.structure(expected)
                for leaf, expected_leaf in zip(
                    jax.tree.leaves(batch), jax.tree.leaves(expected), strict=True
                ):
                    np.testing.assert_array_equal(leaf, expected_leaf)


def test_failed_rows_are_left_out() -> None:
    """With on_error="skip" a batch is shorter by the samples that failed."""
    with make(Poisoned(), on_error="skip") as loader:
        found = np.concatenate([np.array(y) for _, y in loader.to_jax()])
    np.testing.assert_array_equal(found, np.delete(Y, 40))


# ---- what JAX still reads ----


@jax.jit
def busy(numbers: Any, times: Any) -> Any:
    """Keep JAX's threads busy, for longer the more ``times``; the result is zero."""
    return 0 * jax.lax.fori_loop(0, times, lambda _, x: jnp.tanh(x @ x), numbers)[0, 0]


@jax.jit
def total(x: Any, after: Any) -> Any:
    """The sum of a batch, not begun before ``after`` is there."""
    return (x + after).sum()


def test_a_slot_that_jax_still_reads_is_not_filled() -> None:
    """A step that is dispatched, and not begun, keeps its batch when the program has dropped it."""
    numbers = jnp.ones((256, 256))
    total(jnp.ones((32, 6)), busy(numbers, 1)).block_until_ready()
    for times in (
        1 << power for power in range(5, 13)
    ):  # until JAX is busy for longer than it takes to look
        with make(slots=2) as loader:
            batches = iter(loader.to_jax())
            gate = busy(numbers, times)
            found = total(next(batches)[0], gate)
            gc.collect()
            states = loader.slot_states()
            if gate.is_ready():
                continue
            assert states.count("held") == 1
            rest = [
                float(total(x, 0)) for x, _ in batches
            ]  # of which the second waits for that very slot
            assert found.is_ready()
        break
    else:
        pytest.skip(
            "this JAX has computed when a call returns, so that nothing is left to read later"
        )
    sums = [float(jnp.asarray(X[start : start + 32]).sum()) for start in range(0, ROWS, 32)]
    np.testing.assert_allclose([float(found), *rest], sums, rtol=1e-6)


def test_a_view_of_the_memory_keeps_the_slot() -> None:
    """NumPy arrays and jax arrays over a jax array keep the slot when the first is gone."""
    with make((X,)) as loader:
        batches = iter(loader.to_jax())
        (x,) = next(batches)
        same, view = jax.device_put(x), np.asarray(x)
        del x
        gc.collect()
        assert loader.slot_states().count("held") == 1
        assert not view.flags.writeable
        np.testing.assert_array_equal(same, X[:32])
        del same, view
        wait_until(lambda: "held" not in loader.slot_states())


@pytest.mark.parametrize("function", [lambda x: x + 1, lambda x: x, lambda x: x.at[0, 0].set(7.0)])
def test_a_donated_batch_is_never_written(function: Callable[[Any], Any]) -> None:
    """XLA takes a donation of foreign memory for a release.

    The slot's bytes stay, the result lies elsewhere.
    """
    with make((X,)) as loader:
        lease, (x,) = with_lease(loader, adapter._builder(loader._stream.info, {}))
        found = jax.jit(function, donate_argnums=0)(x).block_until_ready()
        assert x.is_deleted()
        assert slot_bytes(lease, 0, loader, 32).tobytes() == X[:32].tobytes()
        assert not is_over(found, lease, 0, loader)
        np.testing.assert_array_equal(found, function(jnp.asarray(X[:32])))


def test_an_array_outlives_its_loader() -> None:
    """What is held when the loader is closed stays as it is, for JAX's threads too."""
    with make() as loader:
        x, _ = next(iter(loader.to_jax()))
        result = total(x, busy(jnp.ones((256, 256)), 8))
    del loader
    gc.collect()
    np.testing.assert_array_equal(x, X[:32])
    del x
    np.testing.assert_allclose(float(result), X[:32].sum(), rtol=1e-6)


def test_an_array_in_a_forked_child_is_private() -> None:
    """A child that the user forks has each array as it was, whatever comes into the slot."""
    with make(workers=1, slots=2) as loader:
        batches = iter(loader.to_jax())
        x, _ = next(batches)
        child = Child(lambda: np.testing.assert_array_equal(np.asarray(x), X[:32]))
        ctypes.memset(x.unsafe_buffer_pointer(), 255, x.nbytes)
        assert child.go() == 0


# ---- every slot in use ----


@jax.jit
def step(weights: Any, x: Any, y: Any) -> Any:
    """One step of training, slow enough that batches pile up."""
    grad = jax.grad(lambda w: ((jnp.tanh(x @ w).sum(1) - y) ** 2).mean())
    return jax.lax.fori_loop(0, 4, lambda _, w: w - 1e-3 * grad(w), weights)


def trained(batches: Any) -> bytes:
    """Return the weights after training on (x, y), the steps dispatched as fast as batches come."""
    weights = jnp.eye(64)
    for x, y in batches:
        weights = step(weights, x, y)
    return weights.tobytes()


@pytest.mark.parametrize("workers", [0, 1])
def test_training_never_comes_to_a_stop(workers: int) -> None:
    """200 steps over 2 to 8 slots give the weights of plain arrays, and all slots come back."""
    images = np.random.default_rng(2).random((6400, 64), np.float32)
    labels = np.arange(6400) % 10
    parts = [slice(start, start + 32) for start in range(0, 6400, 32)]
    expected = trained([(images[part].copy(), labels[part].copy()) for part in parts])
    for slots in (2, 3, 4, 8):
        with make((images, labels), slots=slots, workers=workers, timeout_s=120) as loader:
            assert trained(loader.to_jax()) == expected
            wait_until(lambda loader=loader: "held" not in loader.slot_states())


def warned(slots: int) -> str:
    """Return what is said, without its times, when the program keeps batches."""
    return (
        f"{slots - 1} of {slots} slots are held by arrays that are still referenced (taken "
        f"{', '.join(['T'] * (slots - 1))} s ago; ringfeed.debug() says where), so batches are "
        "handed out as private copies until a slot comes back; copy what you keep, raise slots=, "
        "or give copy=True (a jax array is copied by jax.numpy.array(x))"
    )


@pytest.mark.parametrize("slots", [2, 3])
def test_all_can_be_kept(slots: int) -> None:
    """No wait makes a program let go.

    What takes the last slot is a copy, without a timeout_s, with one warning.
    """
    with make(slots=slots, timeout_s=None) as loader:
        with pytest.warns(ringfeed.SlotsHeldWarning) as seen:
            kept = list(loader.to_jax())
        assert [held_text(warning.message) for warning in seen] == [warned(slots)]
        assert seen[0].filename == __file__
        np.testing.assert_array_equal(np.concatenate([x for x, _ in kept]), X)
        del kept
        assert [len(y) for _, y in loader.to_jax()] == [32, 32, 32, 4]


def test_keeping_one_array_leaves_the_others() -> None:
    """Of two slots the program keeps one for itself.

    All the rest of the epoch is copied from the other.
    """
    with make(slots=2, timeout_s=None) as loader:
        batches = iter(loader.to_jax())
        first, _ = next(batches)
        with pytest.warns(ringfeed.SlotsHeldWarning):
            found = [float(total(x, 0)) for x, _ in batches]
        np.testing.assert_array_equal(first, X[:32])
    np.testing.assert_allclose(
        found, [X[start : start + 32].sum() for start in (32, 64, 96)], rtol=1e-5
    )


def test_kept_views_are_told_of_when_jax_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that only NumPy's arrays of jax arrays hold are not waited for when JAX is idle."""
    monkeypatch.setattr(adapter, "IN_FLIGHT_S", 1.5)
    with make(slots=2, timeout_s=None) as loader:
        with pytest.warns(ringfeed.SlotsHeldWarning) as seen:
            kept = [np.from_dlpack(x) for x, _ in loader.to_jax()]
        assert [held_text(warning.message) for warning in seen] == [warned(2)]
        np.testing.assert_array_equal(np.concatenate(kept), X)


def test_what_is_kept_of_an_earlier_epoch_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program's arrays are known by their slots, whichever epoch they are of."""
    monkeypatch.setattr(adapter, "is_computing", lambda: True)  # for ever, were it waited for
    monkeypatch.setattr(adapter, "IN_FLIGHT_S", 0)
    with make(slots=2, timeout_s=None) as loader:
        epochs = loader.to_jax()
        first, _ = next(iter(epochs))
        with pytest.warns(ringfeed.SlotsHeldWarning):
            assert [len(y) for _, y in epochs] == [32, 32, 32, 4]
        np.testing.assert_array_equal(first, X[:32])


def test_what_holds_slots_for_ever_is_waited_for_to_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step that never ends, as it seems, is told of after `timeout_s`, and no sooner.

    Then it is not waited for.
    """
    monkeypatch.setattr(adapter, "is_computing", lambda: True)
    monkeypatch.setattr(adapter, "IN_FLIGHT_S", 0)
    with make(slots=2, timeout_s=2.5) as loader:
        with pytest.warns(ringfeed.SlotsHeldWarning, match=r"^1 of 2 slots are held by"):
            kept = [(np.from_dlpack(x), time.monotonic()) for x, _ in loader.to_jax()]
        assert [*(np.diff([when for _, when in kept]) >= 2.5)].count(True) == 1
        np.testing.assert_array_equal(np.concatenate([x for x, _ in kept]), X)


def test_a_step_longer_than_a_second_is_waited_for() -> None:
    """Slots that only JAX reads are waited for, also if the program keeps deleted arrays."""
    numbers, times = jnp.ones((512, 512)), 64
    spent = 0.0
    while spent < 1.5:
        times *= 2
        began = time.monotonic()
        busy(numbers, times).block_until_ready()
        spent = time.monotonic() - began
    for keeps in (False, True):
        with make((X[:96],), slots=2, timeout_s=PATIENCE_S) as loader:
            gate, kept = busy(numbers, times), []
            for (x,) in loader.to_jax():
                total(x, gate)
                if keeps:
                    x.delete()
                kept.append(x if keeps else None)
            assert len(kept) == 3


def test_garbage_in_a_cycle_holds_nothing_up() -> None:
    """Arrays that only the garbage collector can find are collected when the slots run out."""
    gc.disable()
    try:
        with make(slots=2, timeout_s=120) as loader:
            for batch in loader.to_jax():
                cycle: list[Any] = [batch]
                cycle.append(cycle)
    finally:
        gc.enable()


def test_copies_hold_no_slots() -> None:
    """copy=True hands out arrays of their own, all of which can be kept."""
    with make(slots=2, copy=True) as loader:
        kept = list(loader.to_jax())
        wait_until(lambda: loader.slot_states() == ["free", "free"])
        np.testing.assert_array_equal(np.concatenate([x for x, _ in kept]), X)


# ---- what is refused ----


def test_the_cpu_can_be_named() -> None:
    """The first CPU is what is fed anyway; for other devices see test_jax_device."""
    with make() as loader:
        assert len(next(iter(loader.to_jax(device="cpu")))[0]) == 32
        assert len(next(iter(loader.to_jax(jax.devices("cpu")[0])))[0]) == 32


@pytest.mark.parametrize("dtype", [">i4", "datetime64[s]", "S3"])
def test_what_is_no_number_is_refused(dtype: str) -> None:
    """Foreign byte orders, dates and text have no arrays in JAX."""
    with (
        make((np.zeros(7, dtype),)) as loader,
        pytest.raises(ringfeed.SpecError, match=r"^sample\[0\] has dtype"),
    ):
        loader.to_jax()


# ---- the plain protocol, and the end ----


def test_arrays_go_through_dlpack_themselves() -> None:
    """JAX takes the loader's own arrays by the protocol without a copy, and keeps the slot."""
    with make((X, LABELS)) as loader:
        batches = iter(loader)
        x, y = next(batches)
        array = jnp.from_dlpack(x)
        assert array.unsafe_buffer_pointer() == x.ctypes.data
        del x, y
        gc.collect()
        assert loader.slot_states().count("held") == 1
        np.testing.assert_array_equal(array, X[:32])
        del array
        gc.collect()
        wait_until(lambda: "held" not in loader.slot_states())


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_with_a_live_iterator(ending: str) -> None:
    """A script that ends while JAX computes with a batch ends at once, with its own status."""
    use = "import jax\nx, = next(batches)\ny = jax.jit(lambda x: (x @ x).sum())(x)\ndel x"
    ends_as_it_should(ending, "to_jax", use)


def test_one_iterator_over_several_epochs() -> None:
    """repeat() gives what as many loops give, and the state is that of the loader."""
    with make((LABELS[:12], LABELS[:12]), batch_size=4, shuffle=True) as loader:
        epochs = loader.to_jax()
        expected = [y.tolist() for _ in range(2) for _, y in epochs]
        loader.set_epoch(0)
        batches = epochs.repeat(2)
        assert len(batches) == 6
        seen = []
        for _, y in batches:
            seen.append(y.tolist())
            assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == divmod(
                4 * len(seen), 12
            )
        assert seen == expected


# ---- statistics ----


class Slow:
    """Samples that take a while."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return X[index]


@pytest.mark.parametrize("computes", [False, True])
def test_a_wait_in_which_jax_computes_is_no_stall(
    monkeypatch: pytest.MonkeyPatch, *, computes: bool
) -> None:
    """JAX runs behind the program.

    Where it has work left when the batch comes, the wait held up nothing.
    """
    monkeypatch.setattr(adapter, "is_computing", lambda: computes)
    with ringfeed.Loader(Slow(), batch_size=8, workers=1) as loader:
        assert sum(1 for _ in loader.to_jax()) == 5
        stats = loader.stats()
        assert (stats.stall_s - stats.startup_s < 1e-6) == computes


def test_what_jax_owes_is_seen() -> None:
    """A result that is not there is; one that is, or was given away, is not."""
    numbers = jnp.ones((512, 512))
    numbers.block_until_ready()
    jax.block_until_ready(jax.live_arrays())
    assert not adapter.is_computing()
    result = busy(numbers, 1 << 10)
    assert adapter.is_computing()
    result.block_until_ready()
    donating = jax.jit(lambda array: array + 1, donate_argnums=0)
    donating(numbers).block_until_ready()
    assert numbers.is_deleted()
    assert not adapter.is_computing()


def test_an_array_that_another_thread_donates_meanwhile_is_computed_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is there when the first question is put, and gone at the second."""

    class Donated:
        def is_deleted(self) -> bool:
            return False

        def is_ready(self) -> bool:
            raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: Array has been deleted.")

    monkeypatch.setattr(jax, "live_arrays", lambda: [Donated()])
    assert adapter.is_computing()
