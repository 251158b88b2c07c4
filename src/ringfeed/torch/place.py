"""Where a program is in the epochs of a DataLoader, and the states that say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringfeed.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    is_over: bool = False
    ring: Ring | None = None  # that it comes over
    taken: int = 0  # of the batches that the ring has given since it began
    stream: Any = None  # the IterableDataset that this process reads


def checked(state: Mapping[str, Any], loader: Any) -> dict[str, Any]:
    """Return a state that a DataLoader can go on from; StateError for what is none."""
    missing = [name for name in _NAMES if name not in state]
    if missing or state["version"] != VERSION:
        what = f"without {missing[0]!r}" if missing else f"of version {state['version']!r}"
        message = (
            f"the state is a {type(state).__name__} {what}, expected what state_dict() of a "
            "DataLoader returned"
        )
        raise StateError(message)
    num_workers = loader.num_workers
    workers = state.get("num_workers", num_workers)
    if workers != num_workers:
        message = (
            f"the state was taken amid an epoch of an IterableDataset with num_workers={workers}, "
            f"and this DataLoader has {num_workers}, with other elements in each batch; give it "
            f"num_workers={workers}"
        )
        raise StateError(message)
    # States of ringfeed 0.2 have no base seed. Workers that persist keep one, so an epoch of theirs
    # draws none anew.
    kept = 0 if loader.persistent_workers and state["epoch"] else None
    return {"base_seed": kept, **state}
