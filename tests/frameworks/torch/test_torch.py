"""A loader's batches as torch tensors over the slots: aliasing, lifetimes, training, ends."""

from __future__ import annotations

import gc
import importlib
from typing import Any

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
    Named,
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
from ringfeed.frameworks.batch import TensorBuilder

torch = pytest.importorskip("torch", reason="torch is not installed")
adapter = importlib.import_module("ringfeed.frameworks.torch")

FREE = ["free"] * 3


def raw(tensor: Any) -> bytes:
    """Return the bytes of a tensor of any dtype."""
    return bytes(tensor.contiguous().view(torch.uint8).numpy()) if tensor.numel() else b""


# ---- the memory ----


@pytest.mark.parametrize("dtype", [*DTYPES, *WIDE])
def test_tensors_lie_over_the_slot(dtype: str) -> None:
    """A tensor has the slot's address, and each sees what is written through the other."""
    given = of_dtype(dtype)
    with make((Y[:7], given), batch_size=4) as loader:
        lease, (_, tensor) = with_lease(loader, TensorBuilder(loader._stream.info, adapter.TORCH))
        assert tensor.data_ptr() == lease.address + loader.plan.layout.offsets[1]
        assert (tensor.dtype, tuple(tensor.shape)) == (getattr(torch, dtype), (4, 5, 7))
        content = slot_bytes(lease, 1, loader, 4)
        assert raw(tensor) == given[:4].tobytes() == content.tobytes()
        content[:] = 1
        assert raw(tensor) == b"\1" * content.size
        tensor.zero_()
        assert not content.any()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_arrives(shape: tuple[int, ...]) -> None:
    """Samples without axes, of one element and of none, whole batches and the shorter last one."""
    given = of_dtype("int16", shape)
    with make((given,), batch_size=4) as loader:
        found = [tensor.clone() for (tensor,) in loader.to_torch()]
        assert [tuple(tensor.shape) for tensor in found] == [(4, *shape), (3, *shape)]
        np.testing.assert_array_equal(torch.cat(found).numpy(), given)
        assert loader.slot_states() == FREE


def test_a_batch_has_the_structure_of_a_sample() -> None:
    """Dicts, lists, tuples and NamedTuples hold the tensors, whichever process fills them."""

    class Structured:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return Named(X[index], {"pair": [index, index > 1], "one": (np.float64(index),)})

    with ringfeed.Loader(Structured(), batch_size=4, workers=1) as loader:
        (batch,) = loader.to_torch()
    assert type(batch) is Named
    assert torch.equal(batch.image, torch.from_numpy(X[:4]))
    assert [tensor.tolist() for tensor in batch.more["pair"]] == [
        [0, 1, 2, 3],
        [False, False, True, True],
    ]
    assert (type(batch.more["pair"]), type(batch.more["one"])) == (list, tuple)
    assert batch.more["one"][0].dtype == torch.float64


def test_every_iteration_is_an_epoch() -> None:
    """The epochs are the loader's own, in its order, and their length its length."""
    with make(shuffle=True) as loader, make(shuffle=True) as plain:
        tensors = loader.to_torch()
        assert len(tensors) == len(loader) == 4
        for _ in range(2):
            for (x, y), (expected_x, expected_y) in zip(tensors, plain, strict=True):
                assert x.tolist() == expected_x.tolist()
                assert y.tolist() == expected_y.tolist()
        assert loader.epoch == 2


def test_a_length_may_be_unknown() -> None:
    """Without a length of the loader there is none here, and all batches come all the same."""
    with make(sampler=(index for index in range(ROWS))) as loader:
        tensors = loader.to_torch()
        with pytest.raises(TypeError) as caught:
            len(tensors)
        assert str(caught.value) == "the length of this loader is unknown: its sampler has no len()"
        assert [len(y) for _, y in tensors] == [32, 32, 32, 4]


def test_failed_rows_are_left_out() -> None:
    """With on_error="skip" a batch lacks the samples that failed; else an error names the first."""
    with make(Poisoned(), on_error="skip") as loader:
        found = torch.cat([y.clone() for _, y in loader.to_torch()])
        assert found.tolist() == np.delete(Y, 40).tolist()
    with (
        make(Poisoned()) as loader,
        pytest.raises(ringfeed.WorkerError, match=r"^dataset\[40\] raised OSError: no"),
    ):
        list(loader.to_torch())


# ---- lifetimes ----


def test_a_slot_comes_back_with_the_last_tensor() -> None:
    """A strided view of one leaf keeps the slot; the last view to go gives it back at once."""
    gc.disable()
    try:
        with make() as loader:
            batches = iter(loader.to_torch())
            x, y = next(batches)
            part = x[3:5].T
            del x, y
            assert loader.slot_states().count("held") == 1
            assert torch.equal(part, torch.from_numpy(X[3:5].T))
            del part
            assert "held" not in loader.slot_states()
    finally:
        gc.enable()


def test_a_tensor_outlives_its_loader() -> None:
    """What is held when the loader is closed stays as it is, and writable."""
    with make() as loader:
        x, _ = next(iter(loader.to_torch()))
    del loader
    gc.collect()
    assert torch.equal(x, torch.from_numpy(X[:32]))
    x += 1
    assert x[0, 0] == X[0, 0] + 1


def test_a_tensor_in_a_forked_child_is_private() -> None:
    """A forked child has each tensor as it was, whatever the parent does with the slot."""
    with make((X, Y), batch_size=4) as loader:
        x, _ = next(iter(loader.to_torch()))
        content = x.numpy().copy()
        child = Child(lambda: np.testing.assert_array_equal(x.numpy(), content))
        x.zero_()
        assert child.go() == 0


def test_what_backward_needs_is_kept() -> None:
    """A loss that is alive keeps the batch that its gradient is computed from."""
    with make() as loader:
        batches = iter(loader.to_torch())
        weights = torch.ones(6, requires_grad=True)
        loss = ((next(batches)[0] * weights) ** 2).sum()
        next(batches)
        assert loader.slot_states().count("held") == 1
        loss.backward()
        expected = (2 * torch.from_numpy(X[:32]) ** 2).sum(0)
        torch.testing.assert_close(weights.grad, expected)


@pytest.mark.parametrize("slots", [2, 3])
def test_all_can_be_kept(slots: int) -> None:
    """A batch that takes the last slot is a copy; one warning names the slots and the ways out."""
    with make(slots=slots, timeout_s=None) as loader:
        with pytest.warns(ringfeed.SlotsHeldWarning) as seen:
            kept = list(loader.to_torch())
        assert [held_text(warning.message) for warning in seen] == [
            f"{slots - 1} of {slots} slots are held by arrays that are still referenced (taken "
            f"{', '.join(['T'] * (slots - 1))} s ago; ringfeed.debug() says where), so batches are "
            "handed out as private copies until a slot comes back; copy what you keep, raise "
            "slots=, or give copy=True (a tensor is copied by .clone())"
        ]
        assert seen[0].filename == __file__
        assert torch.equal(torch.cat([x for x, _ in kept]), torch.from_numpy(X))
        del kept
        assert [len(y) for _, y in loader.to_torch()] == [32, 32, 32, 4]


def test_keeping_both_slots_too_late_is_an_error_after_a_second() -> None:
    """Only with two slots, after batches that were let go, without a timeout; then all goes on."""
    with make(slots=2, timeout_s=None, batch_size=10) as loader:
        batches, kept = iter(loader.to_torch()), []
        for _ in range(6):
            batch = next(batches)
        kept += [batch, next(batches)]
        del batch
        with pytest.raises(ringfeed.SlotsHeldError) as caught:
            next(batches)
        assert held_text(caught.value) == (
            "all 2 slots are held by arrays that are still referenced (taken T, T s ago; "
            "ringfeed.debug() says where), so no batch can be filled; copy what you keep, raise "
            "slots=, or give copy=True (a tensor is copied by .clone())"
        )
        del kept, caught
        assert [len(y) for _, y in loader.to_torch()] == [10] * 10


@pytest.mark.parametrize("dtype", [*DTYPES, *WIDE])
def test_copies_have_the_values_of_the_slot(dtype: str) -> None:
    """With copy=True a tensor of each dtype has memory of its own, with the very bytes."""
    given = of_dtype(dtype, rows=4)
    with make((given,), batch_size=4, copy=True) as loader:
        lease, (tensor,) = with_lease(loader, TensorBuilder(loader._stream.info, adapter.TORCH))
        assert (tensor.dtype, tuple(tensor.shape)) == (getattr(torch, dtype), (4, 5, 7))
        slot_bytes(lease, 0, loader, 4)[:] = 1
        assert raw(tensor) == given.tobytes()


def test_copies_hold_no_slots() -> None:
    """copy=True hands out tensors of their own, all of which can be kept."""
    with make(slots=2, copy=True) as loader:
        kept = list(loader.to_torch())
        assert loader.slot_states() == ["free", "free"]
        assert torch.equal(torch.cat([x for x, _ in kept]), torch.from_numpy(X))


# ---- what is refused ----


def test_other_devices_are_refused() -> None:
    """The CPU and CUDA are fed (see test_torch_cuda); the error says what to do instead."""
    with make() as loader:
        with pytest.raises(ValueError, match="mps") as caught:
            loader.to_torch(device="mps:0")
        assert str(caught.value) == (
            "to_torch(device='mps:0') is not there yet, expected 'cuda', 'cpu' or None; move each "
            "batch yourself, as in x.to(device)"
        )
        assert len(next(iter(loader.to_torch(device="cpu")))[0]) == 32
        assert len(next(iter(loader.to_torch(torch.device("cpu", 0))))[0]) == 32


def test_a_dtype_of_a_later_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this torch has no such tensors, the leaf and the versions are named at once."""
    monkeypatch.delattr(torch, "uint16")
    with make((X, of_dtype("uint16", rows=ROWS))) as loader:
        with pytest.raises(ringfeed.SpecError) as caught:
            loader.to_torch()
        assert str(caught.value) == (
            f"sample[1] has dtype uint16, of which torch {torch.__version__} has no tensors; "
            "convert it in __getitem__"
        )


@pytest.mark.parametrize("dtype", [">i4", "datetime64[s]"])
def test_what_is_no_number_is_refused(dtype: str) -> None:
    """Foreign byte orders and dates have no tensors."""
    with (
        make((np.zeros(7, dtype),)) as loader,
        pytest.raises(ringfeed.SpecError, match=r"^sample\[0\] has dtype"),
    ):
        loader.to_torch()


# ---- training ----


def trained(batches: Any, epochs: int = 3) -> list[bytes]:
    """Return the weights of a small net after training on (x, y)."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    return [raw(weights.detach()) for weights in net.parameters()]


@pytest.mark.parametrize("workers", [0, 2])
def test_training_is_equal_bit_for_bit(workers: int) -> None:
    """Weights are those of training on plain tensors, also with two slots; no lease is left."""
    parts = [slice(start, start + 32) for start in range(0, ROWS, 32)]
    plain = [(torch.from_numpy(X[part].copy()), torch.from_numpy(Y[part].copy())) for part in parts]
    with make(slots=2, workers=workers) as loader:
        assert trained(loader.to_torch()) == trained(plain)
        gc.collect()
        assert "held" not in loader.slot_states()


# ---- the plain protocol ----


def test_arrays_go_through_dlpack_themselves() -> None:
    """Torch and NumPy take the loader's arrays by DLPack without a copy, and keep the slot."""
    with make() as loader:
        batches = iter(loader)
        x, y = next(batches)
        tensor, array = torch.from_dlpack(x), np.from_dlpack(y)
        assert (tensor.data_ptr(), array.ctypes.data) == (x.ctypes.data, y.ctypes.data)
        x[0, 0] = 7
        assert tensor[0, 0] == 7
        del x, y, tensor
        assert loader.slot_states().count("held") == 1
        del array
        assert "held" not in loader.slot_states()
        x, _ = next(batches)
        tensor = torch.from_numpy(x)
        del x
    assert torch.equal(tensor, torch.from_numpy(X[32:64]))


def test_a_closed_loader_closes_the_epoch() -> None:
    """After close() an iterator over tensors raises what the loader's own does."""
    loader = make()
    batches = iter(loader.to_torch())
    next(batches)
    loader.close()
    with pytest.raises(ringfeed.ClosedError, match=r"^this loader is closed; make a new one$"):
        next(batches)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_with_a_live_iterator(ending: str) -> None:
    """However a script ends amid an epoch, it ends at once and with its own status."""
    ends_as_it_should(ending, "to_torch", "x, = next(batches); total = (x @ x).sum()")


def test_one_iterator_over_several_epochs() -> None:
    """repeat() gives what as many loops give, and the state is that of the loader."""
    with make((Y[:12], Y[:12]), batch_size=4, shuffle=True) as loader:
        epochs = loader.to_torch()
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
