"""``to_torch(cast=...)``: what arrives, where it is cast, and when the slot comes back."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import ringfeed
from frameworks import DTYPES, WIDE, make, of_dtype, slot_bytes, with_lease
from ringfeed import Cast
from ringfeed.frameworks.batch import TensorBuilder
from ringfeed.frameworks.cast import FLOATS, Chosen, caster_of, casts_of, in_numpy, steps_of

torch = pytest.importorskip("torch", reason="torch is not installed")
adapter = importlib.import_module("ringfeed.frameworks.torch")

ROWS = 20  # two batches of 8 and one of 4
IMAGES = np.random.default_rng(0).integers(0, 256, (ROWS, 6, 5, 3)).astype(np.uint8)
LABELS = np.arange(ROWS)
FULL = Cast("float32", 1 / 255, 0.25, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "CHW")


def images(*arrays: Any, **settings: Any) -> ringfeed.Loader:
    """Return a loader of three batches over three slots, filled in this process."""
    return make(arrays or (IMAGES, LABELS), **{"batch_size": 8, **settings})


def builder(loader: ringfeed.Loader, cast: Any) -> TensorBuilder:
    """Return what makes batches on the CPU."""
    casts = adapter.torch_casts(casts_of(loader.spec, cast, "to_torch"))
    return TensorBuilder(loader._stream.info, adapter.TORCH, cast=casts)


def raw(tensor: Any) -> bytes:
    """Return the bytes of a tensor of any dtype."""
    return bytes(tensor.contiguous().view(torch.uint8).numpy())


NUMBERS = [name for name in (*DTYPES, *WIDE) if not name.startswith("complex")]


@pytest.mark.parametrize("given", NUMBERS)
def test_a_plain_cast_has_the_values_of_numpy(given: str) -> None:
    """From every dtype of numbers to every floating-point one, bit for bit."""
    array = of_dtype(given, rows=8)
    with images(array) as loader:
        for dtype in FLOATS:
            ((tensor,),) = loader.to_torch(cast=(dtype,))
            assert tensor.dtype == getattr(torch, dtype)
            assert raw(tensor) == in_numpy({0: Cast(dtype)})[0](array).tobytes()


@pytest.mark.parametrize(
    "cast",
    [
        FULL,
        Cast("float16", scale=1 / 255, mean=0.5),
        Cast("bfloat16", std=(2, 3, 4)),
        Cast(layout="CHW"),
    ],
)
def test_steps_have_the_values_of_numpy(cast: Cast) -> None:
    """Each step in the cast's dtype, the short last batch too, and the next epoch again."""
    expected = in_numpy({0: cast})[0](IMAGES)
    with images() as loader:
        epochs = loader.to_torch(cast=(cast, None))
        for _ in range(2):
            found = [(x, y.clone()) for x, y in epochs]
            assert [tuple(x.shape) for x, _ in found] == [(8, *expected.shape[1:])] * 2 + [
                (4, *expected.shape[1:])
            ]
            assert raw(torch.cat([x for x, _ in found])) == expected.tobytes()
            assert torch.cat([y for _, y in found]).tolist() == LABELS.tolist()
            assert all(x.is_contiguous() for x, _ in found)


def test_the_slot_is_free_when_the_batch_is_cast() -> None:
    """Leaves that are cast hold no slot, whatever is kept; one that is not cast lies over it."""
    with images() as loader:
        kept = []
        for batch in loader.to_torch(cast=("float32", "float32")):
            assert "held" not in loader.slot_states()
            kept.append(batch)
        assert torch.equal(
            torch.cat([x for x, _ in kept]), torch.from_numpy(IMAGES.astype(np.float32))
        )
        x, y = next(iter(loader.to_torch(cast="float32")))
        assert loader.slot_states().count("held") == 1
        del y
        assert loader.slot_states().count("held") == 0
        assert torch.equal(x, torch.from_numpy(IMAGES[:8].astype(np.float32)))


def test_what_is_cast_is_read_from_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy is made between the slot and the new tensor, also with copy=True of the loader."""
    read: list[int] = []
    real = Chosen.__call__

    def spy(self: Chosen, leaves: list[Any]) -> list[Any]:
        read.extend(leaves[number].data_ptr() for number in self)
        return real(self, leaves)

    monkeypatch.setattr(Chosen, "__call__", spy)
    for copy in (False, True):
        with images(copy=copy) as loader:
            addresses = []

            def look(
                lease: Any, rows: int, addresses: Any = addresses, loader: Any = loader
            ) -> Any:
                addresses.extend(lease.address + offset for offset in loader.plan.layout.offsets)
                maker = builder(loader, "float32")
                return maker(lease, rows)

            x, y = next(loader._stream.epoch(look))
            assert read == addresses[:1]
            assert x.dtype == torch.float32
            assert (y.data_ptr() == addresses[1]) is not copy
            del x, y
            read.clear()


def test_steps_are_not_done_in_the_slot() -> None:
    """A leaf that has the dtype already is copied for them."""
    floats = IMAGES.astype(np.float32)
    with images(floats) as loader:
        lease, (tensor,) = with_lease(loader, builder(loader, (Cast(offset=1.0),)))
        assert raw(tensor) == (floats[:8] + 1).tobytes()
        assert slot_bytes(lease, 0, loader, 8).tobytes() == floats[:8].tobytes()


class Elsewhere:
    """A device, in the place of a GPU, that notes down what is done."""

    registrar = None

    def __init__(self) -> None:
        self.told: list[Any] = []

    def copy(self, tensors: list[Any]) -> tuple[list[Any], Any]:
        """Copy at once."""
        self.told.append(("copied", [str(tensor.dtype) for tensor in tensors]))
        return [tensor.clone() for tensor in tensors], self

    def is_computing(self) -> bool:
        """Whether it is not through: never."""
        return False

    def hand_over(self, copies: list[Any], event: Any) -> None:
        """Note it down."""
        assert event is self
        self.told.append(("handed over", [str(tensor.dtype) for tensor in copies]))

    def query(self) -> bool:
        """Every copy has."""
        return True

    def synchronize(self) -> None:
        """Not at all."""


def test_a_gpu_is_sent_the_uint8(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the slot holds is copied, and cast on the device when the step asks for it."""
    device = Elsewhere()
    monkeypatch.setattr(adapter, "CudaDevice", lambda _where: device)
    expected = in_numpy({0: FULL})[0](IMAGES)
    with images() as loader:
        found = list(loader.to_torch("cuda", cast=FULL))
        assert raw(torch.cat([x for x, _ in found])) == expected.tobytes()
        assert "held" not in loader.slot_states()
    assert {tuple(dtypes) for _, dtypes in device.told} == {("torch.uint8", "torch.int64")}
    assert [what for what, _ in device.told].count("handed over") == 3


def test_numbers_follow_the_tensor_to_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means of the channels are put once where the first batch is."""
    with torch.device("meta"):
        elsewhere = torch.empty((2, 6, 5, 3), dtype=torch.uint8)
    put: list[Any] = []

    def put_once(cast: Cast, transpose: Any, convert: Any, number: Any) -> Any:
        assert not put
        put.extend(number(value) for _, value in steps_of(cast))
        return caster_of(cast, transpose, convert, number)

    monkeypatch.setattr(adapter, "caster_of", put_once)
    adapter._caster.cache_clear()
    for _ in range(2):
        (found,) = adapter.torch_casts({0: FULL})([elsewhere])
        assert (found.device.type, found.dtype, tuple(found.shape)) == (
            "meta",
            torch.float32,
            (2, 3, 6, 5),
        )
    assert [number.device.type for number in put] == ["meta"] * 4


def test_refused_at_the_call() -> None:
    """Nothing is begun for a cast that cannot be."""
    with images() as loader:
        with pytest.raises(ringfeed.SpecError) as caught:
            loader.to_torch(cast="uint8")
        assert str(caught.value) == (
            "to_torch(cast=...): sample[0] is cast to 'uint8', expected one of float16, bfloat16, "
            "float32, float64; name one of these"
        )
        assert loader.epoch == 0
