"""torch tensors copied to a GPU ahead of the step; without a GPU, on streams of a stand-in."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import fakecuda
import ringfeed
from datasets import Oracle, check, flat

torch = pytest.importorskip("torch", reason="torch is not installed")
adapter = importlib.import_module("ringfeed.frameworks.torch")
faketorch = importlib.import_module("faketorch")

if TYPE_CHECKING:
    from faketorch import Fake

BENCH = str(Path(__file__).parents[3] / "bench")
LENGTH, ROWS = 60, 8
NO_GPU = "torch sees no CUDA device on this machine"
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)


def oracle(**settings: Any) -> ringfeed.Loader:
    """Return a loader of an Oracle's batches."""
    usual: dict[str, Any] = {"batch_size": ROWS, "workers": 2, "timeout_s": 120, "slots": 3}
    return ringfeed.Loader(Oracle(LENGTH), **usual | settings)


def told(batch: Any) -> list[int]:
    """Return the indices of a batch on whatever device, checked."""
    return check(tuple(tensor.cpu().numpy() for tensor in batch))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Have torch find two GPUs, the second of them current."""
    return faketorch.install(monkeypatch)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("slots", [2, 3, 5])
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")], ids=str)
def test_copies_on_a_stream_of_its_own(fake: Fake, device: Any, slots: int) -> None:
    """Late copies are right: the program's stream waits for them, their memory outlives its use."""
    with oracle(slots=slots) as loader:
        epochs = loader.to_torch(device)
        for _ in range(2):
            fake.recorded.clear()
            batches, addresses = [], []
            for batch in epochs:
                batches.append(told(batch))
                addresses += [tensor.data_ptr() for tensor in batch]
            assert flat(batches) == list(range(LENGTH))
            assert fake.recorded == [(address, fake.default) for address in addresses]
        assert len(fake.streams) == 1
        assert loader.slot_states().count("held") == 0


def test_the_stream_that_waits_is_the_one_that_is_current(fake: Fake) -> None:
    """Whatever stream the program is on at the time of a next() can use the batch."""
    own = faketorch.Stream()
    with oracle() as loader:
        epochs = iter(loader.to_torch("cuda"))
        with fake.use(own):
            batch = next(epochs)
        assert told(batch) == list(range(ROWS))
        assert {stream for _, stream in fake.recorded} == {own}


def test_the_stream_that_is_current_says_whether_the_gpu_computes(fake: Fake) -> None:
    """What the program has asked of it, and not what is copied beside it."""
    device = adapter.CudaDevice(torch.device("cuda", 1))
    device.copy([torch.zeros(3)])
    assert not device.is_computing()
    fake.current.jobs.append(lambda: None)
    assert device.is_computing()
    fake.current.synchronize()
    assert not device.is_computing()


def test_a_copy_that_fails_in_its_middle_is_waited_for(fake: Fake) -> None:
    """When the error is raised, nothing reads that batch's slot; the other batches come."""
    with oracle() as loader:
        epochs = iter(loader.to_torch("cuda"))
        fake.fail_at = 2
        with pytest.raises(RuntimeError, match=r"^CUDA out of memory$"):
            next(epochs)
        assert fake.streams[0].jobs[0] is None
        assert flat([told(batch) for batch in epochs]) == list(range(ROWS, LENGTH))


def test_registers_the_slots(fake: Fake) -> None:
    """Torch registers each slot once, and they are unregistered after the last copy."""
    late: list[Any] = []
    with oracle() as loader:
        fake.cuda.before_unregister = lambda: late.extend(
            job for job in fake.streams[0].jobs if job is not None
        )
        batches = iter(loader.to_torch("cuda"))
        next(batches)
        assert len(fake.cuda.registered) == 3
    assert late == []
    fake.cuda.check_paired(3)


def test_slots_that_cannot_be_registered_are_copied_all_the_same(fake: Fake) -> None:
    """A warning says why, and every batch comes."""
    fake.cuda.refuse = {("cudaHostRegister", 2): fakecuda.OUT_OF_MEMORY}
    with oracle() as loader:
        with pytest.warns(
            RuntimeWarning, match=r"does not register slot 1 of 3 .* error \(2\); use"
        ):
            batches = [told(batch) for batch in loader.to_torch("cuda")]
        assert flat(batches) == list(range(LENGTH))
    fake.cuda.check_paired(1)


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("contender", ["ringfeed, pinned", "ringfeed, pageable"])
def test_the_bench_measures_slots_that_are_registered_and_others(
    fake: Fake, contender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are registered ahead of the first copy, or never; what is measured are the pictures."""
    monkeypatch.syspath_prepend(BENCH)
    common, by_torch = map(importlib.import_module, ("devices.common", "devices.by_torch"))
    few = {"rows": 4, "samples": 8, "copies": 3, "steps": 4, "warm_up": 2, "step_s": 1e-3}
    scale = common.Scale(shape=(8, 8, 3), width=8, **few)
    slots = common.SLOTS if contender.endswith("pinned") else 0
    with by_torch.feed(contender, scale, "cuda") as feed:
        assert len(fake.cuda.registered) == slots
        first = next(iter(feed.device)).numpy()
        np.testing.assert_array_equal(first, common.Pictures(scale).pictures[:4])
        found = common.figures(by_torch.Gpu("cpu", scale), feed, scale)
        assert min(found[name] for name in ("copy_s", "step_alone_s", "step_s", "input_s")) > 0
    fake.cuda.check_paired(slots)


# ---- what is refused ----


def test_says_that_torch_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of torch and what it was built for are named."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for version, built in ((None, "without CUDA"), ("12.8", "for CUDA 12.8")):
        monkeypatch.setattr(torch.version, "cuda", version)
        with oracle(workers=0) as loader:
            with pytest.raises(ValueError, match="GPU") as caught:
                loader.to_torch(device="cuda:0")
            assert str(caught.value) == (
                f"to_torch(device='cuda:0') needs a GPU, and torch {torch.__version__}, which is "
                f"built {built}, sees none; see that nvidia-smi shows one and install a torch for "
                "it, or leave device out"
            )


@pytest.mark.usefixtures("fake")
def test_says_that_there_is_no_such_gpu() -> None:
    """A number too high is refused at once."""
    with oracle(workers=0) as loader:
        with pytest.raises(ValueError, match="cuda:2") as caught:
            loader.to_torch(device="cuda:2")
        assert (
            str(caught.value)
            == "to_torch(device='cuda:2'), expected a number below 2: torch sees 2 GPUs"
        )


# ---- a GPU ----


@on_gpu
@pytest.mark.parametrize("slots", [2, 4, "auto"])
def test_a_gpu_gets_every_batch(slots: Any) -> None:
    """Batches that are all kept are right, in order, and on the GPU."""
    with oracle(slots=slots) as loader:
        for _ in range(3):
            kept = list(loader.to_torch("cuda"))
            assert all(tensor.is_cuda for batch in kept for tensor in batch)
            assert flat([told(batch) for batch in kept]) == list(range(LENGTH))
            assert loader.slot_states().count("held") == 0


@on_gpu
def test_torch_takes_registered_slots_for_pinned() -> None:
    """Once a GPU was asked for, a tensor over a slot is_pinned(): copies are asynchronous."""
    with oracle() as loader:
        for pins in (False, True):
            for batch in loader.to_torch():
                assert all(tensor.is_pinned() == pins for tensor in batch)
                del batch
            list(loader.to_torch("cuda"))


ENDING = """
import torch, ringfeed
from datasets import Oracle

if __name__ == "__main__":
    batches = iter(ringfeed.Loader(Oracle(60), batch_size=8, workers=1).to_torch("cuda"))
    batch = next(batches)
"""


@on_gpu
def test_the_program_may_end_in_an_epoch(tmp_path: Path) -> None:
    """With a live iterator and a live batch, the interpreter ends well and prints nothing."""
    script = tmp_path / "script.py"
    script.write_text(ENDING)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def _spans(profile: Any, *, copies: bool) -> list[tuple[float, float]]:
    """Return when the GPU copied from the host, or when it computed, in microseconds."""
    return [
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and event.name.startswith("Memcpy HtoD") == copies
    ]


@on_gpu
def test_the_gpu_copies_while_it_computes() -> None:
    """The timeline shows copies from pinned slots within the computation of the step before."""
    pictures = np.zeros((64, 4096, 1024), np.uint8)
    numbers = torch.ones((4096, 4096), device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    loader = ringfeed.Loader((pictures,), batch_size=8, workers=2, timeout_s=120)
    with loader, torch.profiler.profile(activities=activities) as profile:
        for (batch,) in loader.to_torch("cuda"):
            for _ in range(20):
                numbers = torch.mm(numbers, numbers).clamp(0, 1)
            numbers[0, 0] = batch[0, 0, 0]
        torch.cuda.synchronize()
    copies, kernels = _spans(profile, copies=True), _spans(profile, copies=False)
    assert any("Pinned" in event.name for event in profile.events())
    overlapping = [
        copy
        for copy in copies
        if any(copy[0] < kernel[1] and kernel[0] < copy[1] for kernel in kernels)
    ]
    assert len(overlapping) >= 4, (copies, kernels)
