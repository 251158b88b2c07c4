"""Keras' own loading machinery over a ring, drop-in.

    model.fit(ringfeed.keras.feed(dataset, workers=4), epochs=10)     # one PyDataset

    with ringfeed.keras.install():                                    # every PyDataset, with no other change
        model.fit(dataset, validation_data=other, epochs=10)

This module imports Keras; ``import ringfeed`` does not.
"""

from __future__ import annotations

from ringfeed.adapters.enqueuers import GeneratorEnqueuer, OrderedEnqueuer, SequenceEnqueuer
from ringfeed.adapters.keras_dataset import feed
from ringfeed.adapters.keras_install import install, uninstall
from ringfeed.adapters.keras_monitor import Monitor

__all__ = ["GeneratorEnqueuer", "Monitor", "OrderedEnqueuer", "SequenceEnqueuer", "feed", "install", "uninstall"]
