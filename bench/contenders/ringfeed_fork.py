"""ringfeed with forked workers, for datasets that are to be shared and programs in which a fork is safe."""

from __future__ import annotations

from functools import partial

from contenders import ringfeed_loader

settings = partial(ringfeed_loader.settings, backend="fork")
batches = partial(ringfeed_loader.batches, backend="fork")
