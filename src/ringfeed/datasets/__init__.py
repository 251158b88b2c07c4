"""What a dataset is, kind by kind; what the user's functions make of its samples; the kinds that ringfeed brings.

    dataset ──▶ Source (base): its length, its spec, its order, and the Reader that a worker reads it with
                  arrays, indexed                  of an index
                  streams, stream_reader, ...      of an iterator: read in order, begun again where it was
                  mix, pack, frozen, passes        ringfeed's own: `Mix`, `Pack`, `Frozen`, passes of Keras'

    transform, batch_transform, collate_fn ──▶ functions ──▶ trial, transformed: first samples; in workers

`engine.open_source` decides which it is. Imports `orders`, `spec` and what lies below.
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
