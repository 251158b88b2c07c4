"""The random numbers that torch draws for an epoch, and where their generators are: to be kept, put back and written.

torch draws a base seed for each iterator, and its samplers their order, from the generator that the user gave, or else
from the global one.
"""

from __future__ import annotations

import base64
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def base_seed_of(generator: Any) -> int:
    """Draw the base seed of an iterator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def as_it_was(state: torch.Tensor) -> torch.Generator:
    """Return a generator of its own that is where another one was."""
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def state_of(generator: Any) -> torch.Tensor:
    """Return where a generator is; None: the global one."""
    return torch.get_rng_state() if generator is None else generator.get_state()


@contextmanager
def draws_kept() -> Iterator[None]:
    """Undo what reading a sample here does to the global random numbers: torch would read none."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - what datasets draw from
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


# ---- as JSON ----


def generators(loader: Any) -> dict[str, Any]:
    """Return the generators of the user's that an epoch may draw from, each once."""
    places = {"generator": loader, "sampler": loader.sampler, "batch_sampler": loader.batch_sampler}
    places["batch_sampler.sampler"] = getattr(loader.batch_sampler, "sampler", None)
    found: dict[str, Any] = {}
    for name, place in places.items():
        generator = getattr(place, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found.values()):
            found[name] = generator
    return found


def written(loader: Any) -> dict[str, str]:
    """Return where all generators are that the next epoch of a DataLoader may draw from."""
    states = {name: generator.get_state() for name, generator in generators(loader).items()}
    return {name: _text(state) for name, state in ({"global": torch.get_rng_state()} | states).items()}


def for_later(states: dict[str, str], *, is_amid: bool) -> dict[str, str]:
    """Add where the global generator is to be when a run goes on: here amid an epoch, else where the epoch began."""
    return states | {"now": _text(torch.get_rng_state()) if is_amid else states["global"]}


def put_now(states: dict[str, str]) -> None:
    """Have the global generator be where `for_later` says; states of ringfeed 0.2 do not."""
    if "now" in states:
        torch.set_rng_state(_state(states["now"]))


@contextmanager
def put_back(loader: Any, states: dict[str, str], *, is_amid: bool) -> Iterator[None]:
    """Have the generators be where `written` says; amid an epoch the global one is given back at the end.

    An epoch that begins goes on with what `put_now` has done.
    """
    for name, generator in generators(loader).items():
        if name in states:
            generator.set_state(_state(states[name]))
    if "now" in states and not is_amid:
        yield
        return
    before = torch.get_rng_state()
    try:
        torch.set_rng_state(_state(states["global"]))
        yield
    finally:
        torch.set_rng_state(before)


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
