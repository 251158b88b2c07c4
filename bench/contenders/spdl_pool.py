"""SPDL's `iterate_in_subprocess` with its pool of segments in shared memory: batches are views of a segment."""

from __future__ import annotations

from functools import partial

from contenders import spdl_iteration

settings = partial(spdl_iteration.settings, arena=True)
batches = partial(spdl_iteration.batches, arena=True)
