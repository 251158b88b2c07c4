"""Where a program is in the epochs of a DataLoader, and where the generators of its draws are.

torch draws a base seed for each iterator, and its samplers their order, from the generator that the
user gave, or else from the global one.
"""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ringfeed.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ringfeed.torch.ring import Ring

VERSION = 1  # of a state
_NAMES = ("version", "epoch", "batches", "samples", "draws")


@dataclass
class Place:
    """How far the program is in an epoch."""

    epoch: int
    batches: int = 0
    samples: int = 0
    draws: dict[str, str] = field(default_factory=dict)  # where the generators were at its start
    base_seed: int | None = None  # that its workers kept from the epoch before; None: one was drawn
    drawn_seed: int | None = None  # the one that it has, however it came by it
    is_over: bool = False
    ring: Ring | None = None  # that it comes over
    taken: int = 0  # of the batches that the ring has given since it began
    stream: Any = None  # the IterableDataset that this process reads


def checked(state: Mapping[str, Any], loader: Any) -> dict[str, Any]:
    """Return a state that a DataLoader can go on from; StateError for what is none."""
    missing = [name for name in _NAMES if name not in state]
    if missing or state["version"] != VERSION:
        what = f"without {missing[0]!r}" if missing else f"of version {state['version']!r}"
        raise StateError(
            f"the state is a {type(state).__name__} {what}, expected what state_dict() of a "
            "DataLoader returned"
        )
    num_workers = loader.num_workers
    workers = state.get("num_workers", num_workers)
    if workers != num_workers:
        raise StateError(
            f"the state was taken amid an epoch of an IterableDataset with num_workers={workers}, "
            f"and this DataLoader has {num_workers}, with other elements in each batch; give it "
            f"num_workers={workers}"
        )
    # States of ringfeed 0.2 have no base seed. Workers that persist keep one, so an epoch of theirs
    # draws none anew.
    kept = 0 if loader.persistent_workers and state["epoch"] else None
    return {"base_seed": kept, **state}


# ---- generators ----


def as_it_was(state: torch.Tensor) -> torch.Generator:
    """Return a generator of its own that is where another one was."""
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def generators(loader: Any) -> dict[str, torch.Generator]:
    """Return the generators that an epoch may draw from, each once: the global and the user's."""
    places = {"generator": loader, "sampler": loader.sampler, "batch_sampler": loader.batch_sampler}
    places["batch_sampler.sampler"] = getattr(loader.batch_sampler, "sampler", None)
    found = {"global": torch.default_generator}
    for name, place in places.items():
        generator = getattr(place, "generator", None)
        if isinstance(generator, torch.Generator) and all(
            generator is not other for other in found.values()
        ):
            found[name] = generator
    return found


def written(loader: Any) -> dict[str, str]:
    """Return where all generators are that the next epoch of a DataLoader may draw from."""
    return {name: _text(generator.get_state()) for name, generator in generators(loader).items()}


def for_later(states: dict[str, str], *, is_amid: bool) -> dict[str, str]:
    """Add where the global generator is to be when a run goes on.

    Amid an epoch that is where it is now, else where it was when the epoch began.
    """
    return states | {"now": _text(torch.get_rng_state()) if is_amid else states["global"]}


def put_now(states: dict[str, str]) -> None:
    """Have the global generator be where `for_later` says; states of ringfeed 0.2 do not."""
    if "now" in states:
        torch.set_rng_state(_state(states["now"]))


@contextmanager
def put_back(loader: Any, states: dict[str, str], *, is_amid: bool) -> Iterator[None]:
    """Put the generators where `written` says; amid an epoch, put the global one back at the end.

    An epoch that begins goes on with what `put_now` has done.
    """
    before, puts_global = torch.get_rng_state(), is_amid or "now" not in states
    try:
        for name, generator in generators(loader).items():
            if name in states and (puts_global or name != "global"):
                generator.set_state(_state(states[name]))
        yield
    finally:
        if puts_global:
            torch.set_rng_state(before)


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
