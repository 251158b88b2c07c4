"""Feed a training loop from any indexable dataset, at memory speed, within a fixed memory budget.

    loader = ringfeed.Loader(dataset, batch_size=128, shuffle=True, workers=4, slots=4)
    for x, y in loader:
        train_step(x, y)

`Loader` explains all parameters. `ringfeed.orders` has the samplers, `ringfeed.datasets` joins
several datasets into one, `ringfeed.ray` runs workers on a cluster, and `ringfeed.keras` and
`ringfeed.torch` are the drop-ins.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from ringfeed._exports import importing

if TYPE_CHECKING:
    from ringfeed import datasets as datasets
    from ringfeed import orders as orders
    from ringfeed import ray as ray
    from ringfeed.cache.cached import Cache
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
    from ringfeed.orders.rng import rng
    from ringfeed.orders.shard import Shard
    from ringfeed.sharing.door import share
    from ringfeed.spec.conversion import Cast
    from ringfeed.spec.form_arrays import Bytes, Text
    from ringfeed.spec.forms import Masked, Padded, Ragged
    from ringfeed.spec.spec import Array, Spec
    from ringfeed.tools.plan_table import plan

if sys.platform == "win32":
    raise ImportError(
        "ringfeed needs Linux or macOS; this is Windows: install it in WSL, which is a Linux"
    )

archive = getattr(__spec__ and __spec__.loader, "archive", None)
if archive is not None:
    raise ImportError(
        f"ringfeed cannot run from the archive {archive}: no system loads extension modules from "
        "one; install ringfeed in a folder (pip install --target FOLDER ringfeed), and put that "
        "on sys.path before the archive"
    )
del archive

__version__ = "0.2.0"

_HOMES = {
    "Array": "spec.spec",
    "Bytes": "spec.form_arrays",
    "Cache": "cache.cached",
    "Cast": "spec.conversion",
    "ClosedError": "errors",
    "Loader": "loader",
    "Masked": "spec.forms",
    "Padded": "spec.forms",
    "Plan": "engine.plan",
    "PlanError": "errors",
    "Ragged": "spec.forms",
    "RingfeedError": "errors",
    "Shard": "orders.shard",
    "ShipError": "errors",
    "SlotsHeldError": "errors",
    "SlotsHeldWarning": "errors",
    "Spec": "spec.spec",
    "SpecError": "errors",
    "StallError": "errors",
    "StateError": "errors",
    "SupersededError": "errors",
    "Text": "spec.form_arrays",
    "WorkerError": "errors",
    "debug": "monitor.lease_tracker",
    "plan": "tools.plan_table",
    "rng": "orders.rng",
    "share": "sharing.door",
    "worker_info": "datasets.worker_info",
}

_MODULES = ("datasets", "keras", "orders", "ray", "testing", "torch")
_MOVED = {
    **dict.fromkeys(("Frozen", "Interleave", "Mix", "Pack"), "datasets"),
    **dict.fromkeys(("Buckets", "PrioritizedSampler", "StratifiedSampler"), "orders"),
    **dict.fromkeys(("SubsetSampler", "WeightedSampler", "WindowShuffle"), "orders"),
    "Ray": "ray",
}
"""Names that were here up to 0.2, and where they are."""

__all__ = [
    "Array",
    "Bytes",
    "Cache",
    "Cast",
    "ClosedError",
    "Loader",
    "Masked",
    "Padded",
    "Plan",
    "PlanError",
    "Ragged",
    "RingfeedError",
    "Shard",
    "ShipError",
    "SlotsHeldError",
    "SlotsHeldWarning",
    "Spec",
    "SpecError",
    "StallError",
    "StateError",
    "SupersededError",
    "Text",
    "WorkerError",
    "debug",
    "plan",
    "rng",
    "share",
    "worker_info",
]


_import = importing("ringfeed", _HOMES)


def __getattr__(name: str) -> object:
    """Import a public name on its first use (PEP 562)."""
    if name in _MODULES:  # so that `import ringfeed` is enough for `ringfeed.keras.feed`
        return importlib.import_module(f"ringfeed.{name}")
    if name in _MOVED:
        raise AttributeError(
            f"module 'ringfeed' has no attribute {name!r}: it is ringfeed.{_MOVED[name]}.{name} "
            "since 0.3"
        )
    return _import(name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__", *_MODULES])
