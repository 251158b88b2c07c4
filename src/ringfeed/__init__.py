"""Feed a training loop from any indexable dataset, at memory speed, in exactly the memory it was given.

    loader = ringfeed.Loader(dataset, batch_size=128, shuffle=True, workers=4, slots=4)
    for x, y in loader:
        train_step(x, y)

See `Loader` for everything else. Names are imported on first use, so that a worker process, which imports this
package too, loads only what it needs.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfeed.datasets.frozen import Frozen
    from ringfeed.datasets.mix import Mix
    from ringfeed.datasets.pack import Pack
    from ringfeed.datasets.streams import Interleave
    from ringfeed.datasets.worker_info import worker_info
    from ringfeed.engine.plan import Plan
    from ringfeed.errors import (
        ClosedError,
        PlanError,
        RingfeedError,
        ShipError,
        SlotsHeldError,
        SlotsHeldWarning,
        SpecError,
        StallError,
        StateError,
        SupersededError,
        WorkerError,
    )
    from ringfeed.loader import Loader
    from ringfeed.monitor.lease_tracker import debug
    from ringfeed.orders.buckets import Buckets
    from ringfeed.orders.prioritized import PrioritizedSampler
    from ringfeed.orders.rng import rng
    from ringfeed.orders.subsets import StratifiedSampler, SubsetSampler
    from ringfeed.orders.weighted import WeightedSampler
    from ringfeed.orders.windows import WindowShuffle
    from ringfeed.ray.options import Ray
    from ringfeed.sharing.door import share
    from ringfeed.spec.conversion import Cast
    from ringfeed.spec.form_kinds import Masked, Padded, Ragged
    from ringfeed.spec.spec import Array, Spec
    from ringfeed.spec.strings import Bytes, Text
    from ringfeed.tools.plan_table import plan

if sys.platform != "linux":
    message = f"ringfeed needs Linux (memfd, futex, pidfd); this is {sys.platform}"
    raise ImportError(message)

archive = getattr(__spec__ and __spec__.loader, "archive", None)
if archive is not None:
    message = (
        f"ringfeed cannot run from the archive {archive}: no system loads extension modules from one; install ringfeed "
        f"in a folder (pip install --target FOLDER ringfeed), and put that on sys.path before the archive"
    )
    raise ImportError(message)
del archive

__version__ = "0.2.0"

_HOMES = {
    "Array": "spec.spec",
    "Buckets": "orders.buckets",
    "Bytes": "spec.strings",
    "Cast": "spec.conversion",
    "ClosedError": "errors",
    "Frozen": "datasets.frozen",
    "Interleave": "datasets.streams",
    "Loader": "loader",
    "Masked": "spec.form_kinds",
    "Mix": "datasets.mix",
    "Pack": "datasets.pack",
    "Padded": "spec.form_kinds",
    "Plan": "engine.plan",
    "PlanError": "errors",
    "PrioritizedSampler": "orders.prioritized",
    "Ragged": "spec.form_kinds",
    "Ray": "ray.options",
    "RingfeedError": "errors",
    "ShipError": "errors",
    "SlotsHeldError": "errors",
    "SlotsHeldWarning": "errors",
    "Spec": "spec.spec",
    "SpecError": "errors",
    "StallError": "errors",
    "StateError": "errors",
    "StratifiedSampler": "orders.subsets",
    "SubsetSampler": "orders.subsets",
    "SupersededError": "errors",
    "Text": "spec.strings",
    "WeightedSampler": "orders.weighted",
    "WindowShuffle": "orders.windows",
    "WorkerError": "errors",
    "debug": "monitor.lease_tracker",
    "plan": "tools.plan_table",
    "rng": "orders.rng",
    "share": "sharing.door",
    "worker_info": "datasets.worker_info",
}

_MODULES = ("keras", "testing", "torch")

__all__ = [
    "Array",
    "Buckets",
    "Bytes",
    "Cast",
    "ClosedError",
    "Frozen",
    "Interleave",
    "Loader",
    "Masked",
    "Mix",
    "Pack",
    "Padded",
    "Plan",
    "PlanError",
    "PrioritizedSampler",
    "Ragged",
    "Ray",
    "RingfeedError",
    "ShipError",
    "SlotsHeldError",
    "SlotsHeldWarning",
    "Spec",
    "SpecError",
    "StallError",
    "StateError",
    "StratifiedSampler",
    "SubsetSampler",
    "SupersededError",
    "Text",
    "WeightedSampler",
    "WindowShuffle",
    "WorkerError",
    "debug",
    "plan",
    "rng",
    "share",
    "worker_info",
]


def __getattr__(name: str) -> object:
    """Import a public name on its first use (PEP 562)."""
    if name in _MODULES:  # so that `import ringfeed` is enough for `ringfeed.keras.feed`
        return importlib.import_module(f"ringfeed.{name}")
    if name not in _HOMES:
        message = f"module 'ringfeed' has no attribute {name!r}"
        raise AttributeError(message)
    found = getattr(importlib.import_module(f"ringfeed.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__", *_MODULES])
