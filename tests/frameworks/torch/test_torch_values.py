"""What datasets of torch's users return: ToTensor()'s results, other dtypes, and refused ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ringfeed

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.once


def to_tensor(picture: Any) -> Any:
    """Return what torchvision's ToTensor makes of a picture: float32 of 0 to 1, channels first."""
    return torch.from_numpy(picture).permute(2, 0, 1).contiguous().div(255)


class Pictures:
    """Pictures as torchvision's datasets give them."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return to_tensor(np.full((4, 5, 3), 50 * index, np.uint8)), index


def test_to_tensor_gives_what_a_dataloader_gives() -> None:
    """Bit for bit."""
    expected = [*torch.utils.data.DataLoader(Pictures(), batch_size=3)]
    with ringfeed.Loader(Pictures(), batch_size=3, workers=0) as loader:
        for (x, y), (image, label) in zip(loader.to_torch(), expected, strict=True):
            assert torch.equal(x, image)
            assert torch.equal(y, label)


def test_tensors_are_converted_where_asked_for() -> None:
    """float64 to float32, as cast=True says."""
    given = [torch.linspace(0, 1, 5, dtype=torch.float64)] * 2
    spec = ringfeed.Array((5,), "float32", cast=True)
    with ringfeed.Loader(
        torch.stack(given), spec=spec, batch_size=2, workers=0, copy=True
    ) as loader:
        assert torch.equal(torch.from_numpy(next(iter(loader))), torch.stack(given).float())


def test_none_stays_none() -> None:
    """Beside tensors."""
    with ringfeed.Loader([(torch.ones(2), None)] * 2, batch_size=2, workers=0) as loader:
        x, nothing = next(iter(loader.to_torch()))
    assert (tuple(x.shape), nothing) == ((2, 2), None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            torch.ones(2, dtype=torch.bfloat16),
            "NumPy has no bfloat16: return its .float(), or its bits as .view(torch.int16)",
        ),
        (torch.eye(2).to_sparse(), "return its .to_dense(), or its indices and values as leaves"),
    ],
)
def test_tensors_that_numpy_has_not_are_refused(value: Any, text: str) -> None:
    """The refusal says what to return."""
    with pytest.raises(ringfeed.SpecError) as caught:
        ringfeed.Loader([(value, 1)], workers=0)
    assert str(caught.value).startswith(
        "dataset[0]: sample[0] is of type Tensor, whose conversion raised TypeError: "
    )
    assert str(caught.value).endswith(f", expected an array; {text}")
