"""Tensors of torch, which C reads by DLPack: what arrives equals what `numpy()` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import ringfeed
from judge import raw
from ringfeed.spec.spec import Array, Spec

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")

PLAIN: dict[str, Callable[[], Any]] = {
    "float32": lambda: torch.rand(2, 3),
    "float64": lambda: torch.rand(2, 3, dtype=torch.float64),
    "float16": lambda: torch.rand(2, 3).half(),
    "int64": lambda: torch.arange(6).reshape(2, 3),
    "uint8": lambda: torch.arange(6, dtype=torch.uint8).reshape(2, 3),
    "bool": lambda: torch.tensor([[True, False]]),
    "0-d": lambda: torch.arange(6)[4],
    "0-d float": lambda: torch.rand(6)[4],
    "row": lambda: torch.rand(4, 3)[2],
    "one column": lambda: torch.rand(4, 3)[:, :1][1:2],
    "large": lambda: torch.rand(30_000),
}
ODD: dict[str, Callable[[], Any]] = {
    "transposed": lambda: torch.rand(2, 3).T,
    "expanded": lambda: torch.rand(1, 3).expand(2, 3),
    "empty": lambda: torch.zeros(0, 3),
    "complex": lambda: torch.rand(3, dtype=torch.complex64),
    "conjugate": lambda: torch.rand(3, dtype=torch.complex64).conj(),
    "negative bit": lambda: torch.rand(3, dtype=torch.complex64).conj().imag,
    "negative bit 0-d": lambda: torch.rand(3, dtype=torch.complex64).conj().imag[0],
    "requires grad": lambda: torch.rand(3, requires_grad=True),
    "detached": lambda: torch.rand(3, requires_grad=True).detach(),
    "parameter": lambda: torch.nn.Parameter(torch.rand(3), requires_grad=False),
    "sparse": lambda: torch.zeros(3).to_sparse(),
    "meta": lambda: torch.zeros(3, device="meta"),
    "bfloat16": lambda: torch.zeros(3, dtype=torch.bfloat16),
    "zero tensor": lambda: torch._efficientzerotensor(3),
    "another shape": lambda: torch.rand(5),
}


def arrived(spec: Spec, tensor: Any) -> bytes | str:
    """Return the leaf's bytes or the refusal; the tensor follows one that shows its type."""
    with ringfeed.Loader([(tensor,)] * 2, spec=(spec.tree,), batch_size=1, workers=0) as loader:
        try:
            return [raw(leaf[0, ...]) for (leaf,) in loader][1]
        except ringfeed.SpecError as error:
            return str(error)


def expected(spec: Spec, tensor: Any) -> bytes | str:
    """Return the same by `Spec`."""
    try:
        return raw(Spec((spec.tree,)).array(0, tensor, 0))
    except ringfeed.SpecError as error:
        return str(error)


@pytest.mark.parametrize("name", [*PLAIN, *ODD])
def test_a_tensor_arrives_as_numpy_has_it(name: str) -> None:
    """Bit for bit, or refused in the slow way's words, into leaves of its dtype and of another."""
    arrived(Spec(Array((), "f4")), torch.tensor(1.0))
    tensor = (PLAIN | ODD)[name]()
    shape = tuple(tensor.shape) if name != "another shape" else (3,)
    for dtype in (str(tensor.dtype).removeprefix("torch."), "float32", ">f4", "int8", "uint16"):
        spec = Spec(Array(shape, dtype if dtype != "bfloat16" else "V2"))
        assert arrived(spec, tensor) == expected(spec, tensor)


@pytest.mark.parametrize("name", list(PLAIN))
def test_no_plain_tensor_goes_the_slow_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contiguous tensors are never asked for an array, where torch shows C how to describe them."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no exchange by C")
    tensor = PLAIN[name]()
    spec = Spec.infer(tensor, 0)
    arrived(Spec(Array((), "f4")), torch.tensor(1.0))
    with monkeypatch.context() as patched:
        patched.delattr(torch.Tensor, "__array__")
        found = arrived(spec, tensor)
    assert found == expected(spec, tensor)
