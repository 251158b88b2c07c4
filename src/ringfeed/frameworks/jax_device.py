"""Copies to a GPU or another device by JAX."""

from __future__ import annotations

from typing import Any

import jax

from ringfeed.frameworks.cuda import Refusal


class JaxDevice:
    """One device, and its client.

    JAX has no streams to choose: it copies beside what it computes. Memory that the CUDA driver has registered it
    copies by way of a buffer of its own all the same; only what its client has registered goes straight to the GPU.
    """

    def __init__(self, device: jax.Device) -> None:
        self._device = device
        client = device.client
        on_gpu = device.platform == "gpu" and hasattr(client, "dma_map") and hasattr(client, "dma_unmap")
        self.registrar = JaxRegistrar(client) if on_gpu else None

    def copy(self, tensors: list[jax.Array]) -> tuple[list[jax.Array], JaxEvent]:
        """Begin to copy."""
        copies = jax.device_put(tensors, self._device)
        return copies, JaxEvent(copies)

    def hand_over(self, _copies: list[jax.Array], event: JaxEvent) -> None:
        """Wait for the copy, which was begun a step ago: an array that a step was given may be donated and gone.

        To ask a deleted array whether it is ready ends the process (JAX 0.10), and so nobody does afterwards.
        """
        event.wait()


class JaxEvent:
    """The end of a copy: its arrays are there."""

    def __init__(self, arrays: list[jax.Array]) -> None:
        self._arrays = arrays

    def passed(self) -> bool:
        """Answer at once."""
        return all(array.is_ready() for array in self._arrays)

    def wait(self) -> None:
        """Return when it has passed."""
        jax.block_until_ready(self._arrays)
        self._arrays = []


class JaxRegistrar:
    """Registers slots with the client of a GPU."""

    name = "JAX"

    def __init__(self, client: Any) -> None:
        self._client = client

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def register(self, address: int, size: int) -> None:
        """Register memory; Refusal where it cannot be."""
        self._asked("dma_map", address, size)

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._asked("dma_unmap", address)

    def _asked(self, name: str, *arguments: int) -> None:
        try:
            getattr(self._client, name)(*arguments)
        except jax.errors.JaxRuntimeError as error:
            raise Refusal(f"{name}: {error}") from error


def find_device(device: jax.Device | str | None) -> jax.Device | None:
    """The device, or the first of the platform of this name; None for the first CPU, which reads the slots themselves.

    Raises ValueError where JAX does not see it.
    """
    try:
        here = jax.devices("cpu")[0]
        found = jax.devices(device)[0] if isinstance(device, str) else device
    except RuntimeError as error:
        raise ValueError(
            f"to_jax(device={str(device)!r}) takes the slots as arrays on the CPU, and JAX answers: {error}; install "
            "the jax that is made for the device, name both platforms in JAX_PLATFORMS (as in 'cuda,cpu'), or leave "
            "device out"
        ) from None
    return None if found == here else found
