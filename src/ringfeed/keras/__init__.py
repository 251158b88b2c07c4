"""Keras' own loading machinery over a ring, drop-in.

    model.fit(ringfeed.keras.feed(dataset, workers=4), epochs=10)     # one PyDataset

    with ringfeed.keras.install():                               # every PyDataset
        model.fit(dataset, validation_data=other, epochs=10)

Names are imported on first use: the enqueuers need no Keras, everything else imports it. Like
`torch`, `tools` and `sharing`, it makes Loaders of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfeed._exports import importing

if TYPE_CHECKING:
    from ringfeed.keras.backup import BackupAndRestore
    from ringfeed.keras.enqueuers import GeneratorEnqueuer, OrderedEnqueuer, SequenceEnqueuer
    from ringfeed.keras.feeding import feed, install, uninstall
    from ringfeed.keras.monitor import Monitor

_HOMES = {
    "BackupAndRestore": "backup",
    "GeneratorEnqueuer": "enqueuers",
    "Monitor": "monitor",
    "OrderedEnqueuer": "enqueuers",
    "SequenceEnqueuer": "enqueuers",
    "feed": "feeding",
    "install": "feeding",
    "uninstall": "feeding",
}

__all__ = [
    "BackupAndRestore",
    "GeneratorEnqueuer",
    "Monitor",
    "OrderedEnqueuer",
    "SequenceEnqueuer",
    "feed",
    "install",
    "uninstall",
]


__getattr__ = importing("ringfeed.keras", _HOMES)
