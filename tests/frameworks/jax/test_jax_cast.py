"""``to_jax(cast=...)``: what arrives, on which device it is cast, and when the slot comes back."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from frameworks import DTYPES, WIDE, make, of_dtype, with_lease
from ringfeed import Cast
from ringfeed.frameworks.cast import FLOATS, casts_of, in_numpy
from watching import run_script, wait_until

jax = pytest.importorskip("jax", reason="jax is not installed")
adapter = importlib.import_module("ringfeed.frameworks.jax")

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 20  # two batches of 8 and one of 4
IMAGES = np.random.default_rng(0).integers(0, 256, (ROWS, 6, 5, 3)).astype(np.uint8)
LABELS = np.arange(ROWS, dtype=np.int32)
FULL = Cast("float32", 1 / 255, 0.25, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "CHW")
NUMBERS = [name for name in (*DTYPES, *WIDE) if not name.startswith("complex")]


def images(*arrays: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader of three batches over three slots, filled in this process."""
    return make(arrays or (IMAGES, LABELS), **{"batch_size": 8, **settings})


def none_held(loader: ringfeed.Loader) -> bool:
    """Return whether JAX has let go of every slot, having been given the time."""
    wait_until(lambda: "held" not in loader.slot_states())
    return True


@pytest.fixture
def wide() -> Iterator[None]:
    """JAX with 64 bits."""
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003 - JAX's own call
    yield
    jax.config.update("jax_enable_x64", False)  # noqa: FBT003


def check_values(given: str, dtypes: tuple[str, ...]) -> None:
    """Check that a leaf of this dtype becomes what NumPy makes of it."""
    array = of_dtype(given, rows=8)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        array = array + array.dtype.type(2**40)  # which 32 bits do not hold
    with images(array) as loader:
        for dtype in dtypes:
            ((found,),) = loader.to_jax(cast=(dtype,))
            assert found.dtype == jax.numpy.dtype(dtype)
            assert np.asarray(found).tobytes() == in_numpy({0: Cast(dtype)})[0](array).tobytes()


@pytest.mark.parametrize("given", NUMBERS)
def test_a_plain_cast_has_the_values_of_numpy(given: str) -> None:
    """From every dtype of numbers, bit for bit; 64 bits are not narrowed first."""
    check_values(given, ("bfloat16", "float32"))


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("given", WIDE[:3])
def test_the_same_where_jax_has_64_bits(given: str) -> None:
    """Then to float64 as well, by JAX itself."""
    check_values(given, FLOATS[2:])


def test_float64_is_refused_where_jax_has_none() -> None:
    """JAX would give a float32 in silence."""
    with images() as loader:
        with pytest.raises(ringfeed.SpecError) as caught:
            loader.to_jax(cast=("float32", "float64"))
        assert str(caught.value) == (
            "to_jax(cast=...): sample[1] is cast to 'float64', expected a dtype that JAX has; set "
            "jax_enable_x64, or name 'float32'"
        )
        assert loader.epoch == 0


def test_float64_is_refused_of_what_is_float64() -> None:
    """A cast that changes nothing in the slot is a promise all the same."""
    with images(LABELS.astype(np.float64)) as loader, pytest.raises(ringfeed.SpecError) as caught:
        loader.to_jax(cast=("float64",))
    assert str(caught.value) == (
        "to_jax(cast=...): sample[0] is cast to 'float64', expected a dtype that JAX has; set "
        "jax_enable_x64, or name 'float32'"
    )


@pytest.mark.parametrize(
    ("cast", "rtol"),
    [
        (FULL, 1e-5),
        (Cast("float16", scale=1 / 255, mean=0.5), 1e-2),
        (Cast("bfloat16", std=(2, 3, 4)), 1e-2),
    ],
)
def test_steps_have_the_values_of_numpy(cast: Cast, rtol: float) -> None:
    """As far as XLA does not fuse them; the short last batch too, and the next epoch again."""
    expected = in_numpy({0: cast})[0](IMAGES).astype(np.float64)
    with images() as loader:
        epochs = loader.to_jax(cast=(cast, None))
        for _ in range(2):
            found = [(np.array(x), np.array(y)) for x, y in epochs]
            x = np.concatenate([x for x, _ in found])
            assert x.dtype == jax.numpy.dtype(cast.dtype)
            np.testing.assert_allclose(x.astype(np.float64), expected, rtol=rtol, atol=rtol)
            assert np.concatenate([y for _, y in found]).tolist() == LABELS.tolist()


def test_the_slot_comes_back_when_the_cast_is_done() -> None:
    """Two slots are enough for all batches that are kept, where every leaf is cast.

    One that is not keeps its slot.
    """
    with images(slots=2, workers=1, backend="thread") as loader:
        for _ in range(2):
            kept = list(loader.to_jax(cast=("float32", "float32")))
            assert none_held(loader)
            found = np.concatenate([np.asarray(x) for x, _ in kept])
            np.testing.assert_array_equal(found, IMAGES.astype(np.float32))
        x, y = next(iter(loader.to_jax(cast="float32")))
        x.block_until_ready()
        assert loader.slot_states().count("held") == 1
        assert y.tolist() == LABELS[:8].tolist()
        del y
        assert none_held(loader)


def test_what_is_cast_is_read_from_the_slot() -> None:
    """The compiled function is given the slot's own memory, also with copy=True of the loader."""
    for copy in (False, True):
        with images(copy=copy) as loader:
            builder = adapter._builder(
                loader._stream.info, casts_of(loader.spec, "float32", "to_jax")
            )
            read: list[int] = []
            real = builder._cast

            def spy(arrays: list[Any], read: Any = read, real: Any = real) -> Any:
                read.extend(arrays[number].unsafe_buffer_pointer() for number in real)
                return real(arrays)

            builder._cast = spy
            lease, (x, y) = with_lease(loader, builder)
            addresses = [lease.address + offset for offset in loader.plan.layout.offsets]
            assert read == addresses[:1]
            assert x.dtype == np.float32
            assert (y.unsafe_buffer_pointer() == addresses[1]) is not copy
            del lease, x, y


def test_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every epoch of every loader is cast by the same function, traced once for a shape."""
    traced: list[tuple[int, ...]] = []
    real = adapter.caster_of

    def counting(*given: Any) -> Any:
        caster = real(*given)

        def traced_cast(array: Any) -> Any:
            traced.append(array.shape)
            return caster(array)

        return traced_cast

    monkeypatch.setattr(adapter, "caster_of", counting)
    for _ in range(2):
        with images() as loader:
            epochs = loader.to_jax(cast=Cast(scale=0.1234))
            for _ in range(2):
                assert [len(y) for _, y in epochs] == [8, 8, 4]
    assert traced == [(8, 6, 5, 3), (4, 6, 5, 3)]


ELSEWHERE = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np, ringfeed
from ringfeed.frameworks.jax import JaxDevice

there, sent, copy = jax.devices()[1], [], JaxDevice.copy

def spy(self, tensors):
    sent.extend(str(tensor.dtype) for tensor in tensors)
    return copy(self, tensors)

JaxDevice.copy = spy
X, Y = np.arange(400, dtype=np.uint8).reshape(20, 20), 2**40 * np.arange(20)
with ringfeed.Loader((X, Y), batch_size=8, workers=1, slots=3, timeout_s=100) as loader:
    for _ in range(2):
        kept = list(loader.to_jax(there, cast=("float32", "float32")))
        leaves = [leaf for batch in kept for leaf in batch]
        assert {(*leaf.devices(), leaf.dtype.name) for leaf in leaves} == {(there, "float32")}
        assert (np.concatenate([np.asarray(x) for x, _ in kept]) == X.astype(np.float32)).all()
        assert (np.concatenate([np.asarray(y) for _, y in kept]) == Y.astype(np.float32)).all()
print(sorted(set(sent)))
"""


class Growing:
    """Whole batches, each larger than the one before it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return (IMAGES[: index + 1, : index + 3],)


def test_shapes_that_vary_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX would compile anew for each shape, and keep it for ever.

    NumPy casts as the batch leaves its slot.
    """
    monkeypatch.setattr(adapter, "caster_of", None)
    spec = (ringfeed.Array((6, 5, 3), "uint8", variable=(0,)),)
    with ringfeed.Loader(
        Growing(), batch_size=None, max_batch_size=3, spec=spec, workers=0, slots=2
    ) as loader:
        for number, (x,) in enumerate(loader.to_jax(cast=(FULL,))):
            np.testing.assert_array_equal(np.asarray(x), in_numpy({0: FULL})[0](*Growing()[number]))


def test_another_device_is_sent_the_uint8() -> None:
    """The cast is done there, after the copy.

    What JAX would narrow on its way goes as what it is cast to.
    """
    out, err, status = run_script(ELSEWHERE)
    assert (out, status) == ("['float32', 'uint8']\n", 0), err
