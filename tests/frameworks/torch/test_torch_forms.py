"""Leaves whose samples differ in length in torch: over the slot, equal to the loader's own."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import ringfeed
from formed import SPEC, STRINGS, Formed, digest, expected, make, plain, told, without
from frameworks import with_lease
from ringfeed import Array, Bytes, Text
from ringfeed.errors import SlotsHeldWarning, SpecError
from ringfeed.frameworks.batch import TensorBuilder
from ringfeed.frameworks.device import DevicePrefetcher
from ringfeed.frameworks.torch import TORCH, to_torch

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


def said(batch: dict[str, Any]) -> dict[str, Any]:
    """Say what a batch holds; its types are those that `to_torch` promises."""
    found: dict[str, Any] = {}
    for name, leaf in batch.items():
        if name == "picture":
            assert {type(sample) for sample in leaf} == {torch.Tensor}
            assert type(leaf) is list
            found[name] = [sample.numpy().tobytes() for sample in leaf]
        elif name == "title":
            assert {type(sample) for sample in leaf} == {str}
            found[name] = leaf
        elif isinstance(leaf, tuple):
            assert type(leaf) is {"measured": ringfeed.Padded, "masked": ringfeed.Masked}[name]
            found[name] = [plain(part) for part in leaf]
        elif leaf.is_nested:
            assert leaf.layout == torch.jagged
            found[name] = told(leaf.values(), leaf.offsets())
        else:
            found[name] = plain(leaf)
    return found


@pytest.mark.parametrize(
    "settings", [{}, {"copy": True}, {"shuffle": True, "drop_remainder": True}]
)
def test_batches_are_those_of_the_loader(settings: dict[str, Any]) -> None:
    """Value for value, in torch's own types; over slots, as copies, and in another order."""
    with make(**settings) as loader:
        found = [said(batch) for batch in loader.to_torch()]
    assert found == expected(**settings)
    assert digest(found) == digest(expected(**settings))


def test_values_are_the_slot() -> None:
    """The tensors read what the slot holds, and keep it until the last of them is gone."""
    loader = make(without("title"), workers=0, slots=2)
    lease, batch = with_lease(loader, TensorBuilder(loader._stream.info, TORCH))
    boxes, tokens, picture = batch["boxes"], batch["tokens"], batch["picture"]
    for number, first in ((0, boxes.values()), (2, tokens), (6, picture[0])):
        offset = loader.plan.layout.offsets[number]
        np.frombuffer(lease, np.uint8)[offset : offset + 4] = 1
        assert (
            first.reshape(-1)[0] == np.ones(4, np.uint8).view(loader.spec.leaves[number].dtype)[0]
        )
    del lease, batch, tokens, picture, first
    gc.collect()
    assert loader.slot_states().count("held") == 1
    loader.close()
    assert boxes.values().reshape(-1)[1].item() == 1.0
    assert boxes.sum().item() != 0
    del boxes
    gc.collect()


def test_batches_that_are_kept() -> None:
    """Where every slot but one is held, batches are private copies with the same values."""
    with make(slots=2) as loader, pytest.warns(SlotsHeldWarning):
        kept = list(loader.to_torch())
    assert [said(batch) for batch in kept] == expected()


def test_a_nested_tensor_trains() -> None:
    """A gradient flows through a layer over samples of all lengths, the empty ones too."""
    layer = torch.nn.Linear(2, 3)
    with make(["boxes", "number"]) as loader:
        for batch in loader.to_torch():
            layer(batch["boxes"]).values().sum().backward()
    rows = np.concatenate([Formed()[index]["boxes"] for index in range(len(Formed()))])
    np.testing.assert_allclose(layer.weight.grad[0].numpy(), rows.sum(0), rtol=1e-5)


def test_casts() -> None:
    """Values are cast where they are; bytes and text are no numbers, and stay what they are."""
    names = ["boxes", "masked", *STRINGS]
    with make(names) as loader:
        found = [said(batch) for batch in loader.to_torch(cast="float16")]
    for batch, plainly in zip(found, expected(names), strict=True):
        assert batch["masked"][0] == ("float16", plainly["masked"][0][1])
        assert [batch[name] for name in ("boxes", *STRINGS)] == [
            plainly[name] for name in ("boxes", *STRINGS)
        ]
    with make(names) as loader:
        cast = ringfeed.Cast("float64", scale=2)
        (first, *_) = (batch["boxes"] for batch in loader.to_torch(cast={"boxes": cast}))
        assert first.values().dtype == torch.float64
        assert first.values()[:2].tolist() == [[0.0, 2.0], [4.0, 6.0]]


REFUSED = {
    "text": (
        {"title": "float32"},
        (
            "to_torch(cast=...): sample['title'] is text, expected numbers to cast; put None in "
            "its place"
        ),
    ),
    "channels": (
        {"wide": ringfeed.Cast("float32", mean=[1.0, 2.0, 3.0])},
        "to_torch(cast=...): sample['wide'] has shape (None,), expected the same channels in all "
        "batches, as mean or std has a number for each; give one number for all",
    ),
    "layout": (
        {"cube": ringfeed.Cast("float32", layout="CHW")},
        "to_torch(cast=...): sample['cube'] is ragged, expected samples of one shape for "
        "layout='CHW'; leave layout out, or give form='pad' in spec=",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_casts_that_are_refused(case: str) -> None:
    """The text says which leaf, and what to do."""
    cast, text = REFUSED[case]

    class Cubes:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return {**Formed(["wide", "title"])[index], "cube": np.zeros((1, 2, 3), np.float32)}

    cube = Array((None, 2, 3), "float32", max_shape=(4, 2, 3), form="ragged")
    spec = {"wide": SPEC["wide"], "title": SPEC["title"], "cube": cube}
    with (
        ringfeed.Loader(Cubes(), spec=spec, workers=0) as loader,
        pytest.raises(SpecError) as raised,
    ):
        loader.to_torch(cast=cast)
    assert str(raised.value) == text


def test_an_older_torch_has_no_ragged_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before the first batch; padded leaves are taken."""
    monkeypatch.delattr(torch.nested, "nested_tensor_from_jagged")
    with make(["boxes"]) as loader, pytest.raises(SpecError) as raised:
        loader.to_torch()
    assert str(raised.value) == (
        f"sample['boxes'] is ragged, of which torch {torch.__version__} has no tensors: they need "
        "2.4; update torch, or give form='pad' in spec="
    )
    with make(["tokens"]) as loader:
        assert [said(batch) for batch in loader.to_torch()] == expected(["tokens"])


def test_strings_of_numpy_stay_arrays() -> None:
    """Beside tensors, as copies of their own: they outlive the slot."""

    class Named:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return np.array(f"é{index}", "U4"), np.array(b"b%d" % index, "S3"), np.float32(index)

    with ringfeed.Loader(Named(), batch_size=2, workers=0, slots=2) as loader:
        batches = []
        for unicode, raw, number in loader.to_torch():
            assert (type(unicode), type(raw), type(number)) == (
                np.ndarray,
                np.ndarray,
                torch.Tensor,
            )
            batches.append((unicode, raw))
    assert [unicode.tolist() for unicode, _ in batches] == [["é0", "é1"], ["é2", "é3"]]
    assert [raw.tolist() for _, raw in batches] == [[b"b0", b"b1"], [b"b2", b"b3"]]
    assert {raw.dtype.str for _, raw in batches} == {"|S3"}


def test_ragged_strings_of_numpy_stay_ragged() -> None:
    """As those of one shape stay arrays."""
    spec = Array((None,), "S3", max_shape=(4,), form="ragged")
    samples = [np.full(length, b"b%d" % length) for length in (2, 0, 1)]
    with ringfeed.Loader(samples, batch_size=3, spec=spec, workers=0) as loader:
        (batch,) = loader.to_torch()
    assert type(batch) is ringfeed.Ragged
    assert [sample.tolist() for sample in batch] == [[b"b2", b"b2"], [], [b"b1"]]


class Elsewhere:
    """A device whose copies are there at once, and are told by their dtype."""

    registrar = None

    def __init__(self) -> None:
        self.handed: list[int] = []

    def copy(self, tensors: list[Any]) -> tuple[list[Any], Any]:
        """Copy into memory of its own."""
        return [tensor.clone() for tensor in tensors], self

    def is_computing(self) -> bool:
        """Whether it is not through: never."""
        return False

    def hand_over(self, copies: list[Any], _event: Any) -> None:
        """Count what it has."""
        self.handed.append(len(copies))

    def query(self) -> bool:
        """It has passed."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


def test_a_device_gets_values_and_what_is_beside_them() -> None:
    """Ragged and padded tensors are made of copies there and keep no slot; strings stay here."""
    names = ["boxes", "tokens", "measured", "picture", "title", "number"]
    with make(names) as loader:
        device, builder = Elsewhere(), TensorBuilder(loader._stream.info, TORCH)
        found = [said(batch) for batch in DevicePrefetcher(loader._stream, device, builder)]
    assert found == expected(names)
    assert device.handed == [6] * 3  # boxes and their splits, tokens, measured and lengths, number


def test_only_strings() -> None:
    """A sample of bytes alone, or of text alone."""

    class Files:
        def __init__(self, sample: Any) -> None:
            self.sample = sample

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return self.sample * index

    for spec, sample, told_as in ((Bytes(8), b"ab", list), (Text(8), "ab", str)):
        with ringfeed.Loader(Files(sample), spec=spec, batch_size=3, workers=0) as loader:
            (batch,) = to_torch(loader._stream)
            found = [one if told_as is str else one.numpy().tobytes() for one in batch]
            assert found == [sample * index for index in range(3)]
