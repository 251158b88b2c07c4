"""The kinds of dataset, and the user's functions on their samples.

    dataset ──▶ Source (base): its length, its spec, its order, and a worker's Reader
                  arrays, indexed                  of an index
                  streams, stream_reader, ...      of an iterator, which is read in order
                  mix, pack, frozen, passes        ringfeed's own: `Mix`, `Pack`, `Frozen`

    the user's functions ──▶ functions ──▶ trial (the first sample), transformed (in workers)

`engine.open_source` chooses the kind of a dataset. Imports `orders`, `spec` and what lies below.
"""

from typing import TYPE_CHECKING

from ringfeed._exports import importing

if TYPE_CHECKING:
    from ringfeed.datasets.frozen import Frozen
    from ringfeed.datasets.mix import Mix
    from ringfeed.datasets.pack import Pack
    from ringfeed.datasets.streams import Interleave

__all__ = ["Frozen", "Interleave", "Mix", "Pack"]

__getattr__ = importing(
    "ringfeed.datasets", {"Frozen": "frozen", "Interleave": "streams", "Mix": "mix", "Pack": "pack"}
)
