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

from ringfeed._exports import importing

if TYPE_CHECKING:
    from ringfeed.torch.loader import DataLoader

__all__ = ["DataLoader"]


__getattr__ = importing("ringfeed.torch", {"DataLoader": "loader"})
