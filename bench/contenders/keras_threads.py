"""Keras' OrderedEnqueuer as `fit` drives it for a PyDataset with workers that are threads, its default."""

from __future__ import annotations

from functools import partial

from contenders import keras_processes

settings = partial(keras_processes.settings, processes=False)
batches = partial(keras_processes.batches, processes=False)
