"""A process and a pool of segments of SPDL for each worker, whose batches are taken in turn."""

from __future__ import annotations

from functools import partial

from contenders import spdl_iteration

settings = partial(spdl_iteration.settings, arena=True, producers=None)
batches = partial(spdl_iteration.batches, arena=True, producers=None)
