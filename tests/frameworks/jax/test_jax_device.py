"""jax arrays on another device than the first CPU, copied ahead of the step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfeed
from datasets import Oracle

jax = pytest.importorskip("jax", reason="JAX is not installed")

HERE = Path(__file__).parents[2] / "support"
CHECKS = [
    "every_batch_is_kept_on_the_other_device",
    "donated_copies_hold_no_slot",
    "breaking_off_gives_the_slots_back",
    "the_program_may_end_in_an_epoch",
    "only_a_gpu_of_jax_registers",
    "a_gpu_of_jax_registers_by_its_client",
]


@pytest.fixture
def gpu() -> Any:
    """The first GPU that JAX sees; skips without one."""
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("JAX sees no GPU on this machine")


@pytest.mark.parametrize("name", CHECKS)
def test_two_devices(name: str) -> None:
    """Each function of `two_devices` ends, where JAX has two CPUs, and prints nothing."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "two_devices.py"), name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_says_which_platforms_jax_sees() -> None:
    """A platform that JAX does not have is refused at once, in its own words."""
    with ringfeed.Loader(Oracle(8), batch_size=8, workers=0) as loader:
        with pytest.raises(ValueError, match="no_tpu") as caught:
            loader.to_jax(device="no_tpu")
        try:
            jax.devices("no_tpu")
        except RuntimeError as error:
            answer = str(error)
        assert str(caught.value) == (
            "to_jax(device='no_tpu') takes the slots as arrays on the CPU, and JAX "
            f"answers: {answer}; install the jax that is made for the device, name both platforms "
            "in JAX_PLATFORMS (as in 'cuda,cpu'), or leave device out"
        )


def test_a_gpu_gets_every_batch(gpu: Any) -> None:
    """Batches that are all kept are right, in order, and on the GPU; its client registers slots."""
    given = np.random.default_rng(0).normal(size=(60, 50, 70)).astype(np.float32)
    with ringfeed.Loader((given,), batch_size=8, slots=3, workers=2, timeout_s=120) as loader:
        for _ in range(3):
            kept = [array for (array,) in loader.to_jax("gpu")]
            assert all(array.devices() == {gpu} for array in kept)
            np.testing.assert_array_equal(np.concatenate(kept), given)
