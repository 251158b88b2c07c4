"""What `test_jax_device` runs in a process of its own, where JAX has two CPUs: a copy from one to the other is real.

`python two_devices.py NAME` runs the function of that name.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"  # an Oracle's checksums need it

import jax
import numpy as np

import fakecuda
import ringfeed
from datasets import Oracle, check, flat
from ringfeed.frameworks import jax as adapter
from ringfeed.frameworks.jax import JaxDevice

LENGTH, ROWS = 60, 8
left: list[Any] = []


def oracle(**settings: Any) -> ringfeed.Loader:
    """Return a loader of an Oracle's batches."""
    return ringfeed.Loader(
        Oracle(LENGTH),
        **{"batch_size": ROWS, "workers": 2, "timeout_s": 120, "slots": 3} | settings,
    )


def told(batch: Any) -> list[int]:
    """Return the indices of a batch, checked."""
    return check(tuple(np.asarray(array) for array in batch))


def until_none_held(loader: ringfeed.Loader) -> None:
    """Wait until JAX has let go of every slot."""
    deadline_s = time.monotonic() + 120
    while loader.slot_states().count("held"):
        assert time.monotonic() < deadline_s, loader.slot_states()
        time.sleep(0.001)


def every_batch_is_kept_on_the_other_device() -> None:
    """Batches that are all kept are right, in order, and where they were asked for.

    No slot stays held.
    """
    there = jax.devices()[1]
    for slots in (2, 3, 5):
        with oracle(slots=slots) as loader:
            for _ in range(3):
                kept = list(loader.to_jax(there))
                assert all(array.devices() == {there} for batch in kept for array in batch)
                assert flat([told(batch) for batch in kept]) == list(range(LENGTH))
                until_none_held(loader)


def donated_copies_hold_no_slot() -> None:
    """A step that eats its batch neither stops the loader nor spoils what comes."""
    there = jax.devices()[1]
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    for slots in (2, 4):
        with oracle(slots=slots) as loader:
            for _ in range(3):
                found = []
                for content, index, checksum in loader.to_jax(there):
                    found.append((step(content), index, checksum))
                    assert content.is_deleted()
                indices = [
                    told((np.asarray(content) - np.uint8(1), *rest)) for content, *rest in found
                ]
                assert flat(indices) == list(range(LENGTH))
                until_none_held(loader)


def breaking_off_gives_the_slots_back() -> None:
    """Epochs that are broken off, and a loader that is closed, leave nothing held, and what was kept is right."""
    there = jax.devices()[1]
    loader = oracle()
    for _ in range(5):
        batch = next(iter(loader.to_jax(there)))
        until_none_held(loader)
    batches = iter(loader.to_jax(there))
    last = next(batches)
    loader.close()
    assert told(batch) == told(last) == list(range(ROWS))


def the_program_may_end_in_an_epoch() -> None:
    """With a live iterator, which has copied a batch ahead, and a live batch, the interpreter ends as it should."""
    global left  # noqa: PLW0603 - alive until the interpreter's end
    batches = iter(oracle().to_jax(jax.devices()[1]))
    left = [batches, next(batches)]


def only_a_gpu_of_jax_registers() -> None:
    """For copies to a CPU no driver is asked."""
    there = jax.devices()[1]
    assert JaxDevice(there).registrar is None
    with oracle() as loader:
        assert flat([told(batch) for batch in loader.to_jax(there)]) == list(range(LENGTH))


def a_gpu_of_jax_registers_by_its_client() -> None:
    """Its client maps each slot once, and unmaps it once; where it refuses, a warning says so."""

    class Client:
        def __init__(self) -> None:
            self.calls: list[tuple[str, int]] = []
            self.fails_at = 2

        def dma_map(self, address: int, size: int) -> None:
            self.fails_at -= 1
            if not self.fails_at:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")
            assert fakecuda.is_mapped(address, size)
            self.calls.append(("map", address))

        def dma_unmap(self, address: int) -> None:
            self.calls.append(("unmap", address))

    class Gpu:
        platform = "gpu"
        client = Client()

    device = JaxDevice(Gpu())
    device._device = jax.devices()[1]
    adapter.JaxDevice = lambda _: device  # type: ignore[assignment, misc]
    calls = Gpu.client.calls
    with oracle() as loader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # this process has each warning raised
        assert flat([told(batch) for batch in loader.to_jax(jax.devices()[1])]) == list(
            range(LENGTH)
        )
    assert [str(one.message) for one in caught] == [
        "copies of the slots to the GPU go through a buffer of the driver's: it does not "
        "register slot 1 of 3 (36.9 kB each): RESOURCE_EXHAUSTED: no room; use fewer or smaller "
        "slots, or allow this process to lock memory (ulimit -l, or the settings of its container)"
    ]
    assert [what for what, _ in calls] == ["map", "unmap"]
    del calls[:]
    with oracle() as loader:
        epochs = loader.to_jax(jax.devices()[1])
        for _ in range(2):
            assert flat([told(batch) for batch in epochs]) == list(range(LENGTH))
        assert [what for what, _ in calls] == ["map"] * 3
        mapped = {address for _, address in calls}
        del calls[:]
    assert [what for what, _ in calls] == ["unmap"] * 3
    assert {address for _, address in calls} == mapped


if __name__ == "__main__":
    globals()[sys.argv[1]]()
