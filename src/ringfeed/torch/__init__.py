"""torch's own loading over a ring, drop-in.

    from ringfeed.torch import DataLoader     # and nothing else changes

    DataLoader ── iter ──▶ IndexLists: the indices of each batch, drawn from torch's samplers as torch draws them
                             │
                             ├─▶ Ring: a Loader whose workers collate in the slots ──▶ tensors over the slots,
                             │   leaf by leaf (collation), or in batches of any structure (pickled)
                             └─▶ torch's own iterator, for what the ring cannot serve, from that batch on

Names are imported on first use: worker processes import `samples` alone, which needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfeed.torch.loader import DataLoader

_HOMES = {"DataLoader": "loader"}

__all__ = ["DataLoader"]


def __getattr__(name: str) -> object:
    """Import a public name on its first use (PEP 562)."""
    if name not in _HOMES:
        message = f"module 'ringfeed.torch' has no attribute {name!r}"
        raise AttributeError(message)
    found = getattr(importlib.import_module(f"ringfeed.torch.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
