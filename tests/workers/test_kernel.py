"""A loader in the cells of a real kernel: interrupted, held by `Out`, restarted and shut down."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from leftovers import below, runs
from watching import wait_until

pytestmark = pytest.mark.once

manager = pytest.importorskip("jupyter_client.manager", reason="jupyter_client is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 120

MAKE = """
import time
import numpy as np, ringfeed

class Slowly:
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.01 if index >= 200 else 0)
        return np.full(5, index)

loader = ringfeed.Loader(Slowly(), batch_size=8, workers=2, slots=6, backend={method!r})
batches = iter(loader)
"""


class Kernel:
    """A kernel, and what its cells answer."""

    def __init__(self) -> None:
        self.manager, self._client = manager.start_new_kernel(
            kernel_name="python3", startup_timeout=PATIENCE_S
        )

    def run(self, cell: str) -> str:
        """Run a cell; return its value as text, or the name of its error."""
        found: list[Any] = []
        reply = self._client.execute_interactive(
            cell, timeout=PATIENCE_S, output_hook=found.append
        )["content"]
        if reply["status"] == "error":
            return str(reply["ename"])
        return "".join(
            message["content"].get("data", {}).get("text/plain", "") for message in found
        )

    def workers(self) -> list[int]:
        """Return the processes below the kernel."""
        return list(below(self.manager.provisioner.pid))

    def restart(self) -> None:
        """Restart it, as the button does."""
        self.manager.restart_kernel()
        self._client.wait_for_ready(timeout=PATIENCE_S)

    def end(self) -> None:
        """Shut it down."""
        self._client.stop_channels()
        self.manager.shutdown_kernel()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """Return a kernel that ends with the test."""
    kernel = Kernel()
    yield kernel
    if kernel.manager.has_kernel:
        kernel.end()


@pytest.mark.parametrize("method", ["spawn", "process", "fork"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_kernels_life(kernel: Kernel, method: str) -> None:
    """Views in `Out` stay, an interrupt ends a cell alone, and no worker outlives the kernel."""
    assert kernel.run(MAKE.format(method=method)) == ""
    assert kernel.run("next(batches)[:, 0]") == "array([0, 1, 2, 3, 4, 5, 6, 7])"
    threading.Timer(1, kernel.manager.interrupt_kernel).start()
    assert kernel.run("for _ in batches: pass") == "KeyboardInterrupt"
    assert kernel.run("[x[:, 0].tolist() for _, x in zip(range(30), loader)][29]") == str(
        [*range(232, 240)]
    )
    assert kernel.run("[*Out.values()][0]") == "array([0, 1, 2, 3, 4, 5, 6, 7])"
    before = kernel.workers()
    assert before
    kernel.restart()
    wait_until(lambda: not any(map(runs, before)))
    assert kernel.run(MAKE.format(method=method) + "next(batches)[:, 0].tolist()") == str(
        [*range(8)]
    )
    last = [*kernel.workers(), kernel.manager.provisioner.pid]
    assert len(last) > 1
    kernel.end()
    wait_until(lambda: not any(map(runs, last)))
