"""torch's own loading over a ring, drop-in.

    from ringfeed.torch import DataLoader     # and nothing else changes

    DataLoader ── iter ──▶ IndexLists: the indices of each batch, drawn as torch draws them
                             │
                             ├─▶ Ring: a Loader whose workers fill the slots ──▶ tensors over them,
                             │   leaf by leaf (collation), or in any structure (pickled)
                             └─▶ torch's own iterator, from the first batch that no ring can make

Names are imported on first use: worker processes import `samples` alone, which needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfeed.torch.loader import DataLoader

__all__ = ["DataLoader"]


def __getattr__(name: str) -> object:
    """Import a public name on its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'ringfeed.torch' has no attribute {name!r}")
    from ringfeed.torch import loader  # noqa: PLC0415 - see above

    return loader.DataLoader


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
