"""The leaves of a batch as DLPack capsules, as adapters make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed.frameworks._dlpack import capsule
from ringfeed.frameworks.dlpack import type_of
from ringfeed.spec._fields import Fields

if TYPE_CHECKING:
    import ringfeed
    from ringfeed.ring._ring import Lease


def capsules_of(loader: ringfeed.Loader, lease: Lease, rows: int) -> list[object]:
    """Return a capsule over each leaf of a batch of the loader."""
    views = Fields(loader.spec, loader.plan.layout.offsets).views(lease, rows)
    return [
        capsule(lease, view, *type_of(leaf))
        for leaf, view in zip(loader.spec.leaves, views, strict=True)
    ]
