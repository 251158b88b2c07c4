"""Who is measured: each contender is one short module with the same interface, in its best settings.

A module gives `settings(workload, workers, slots)`, what it was told, for the record, and
`batches(workload, workers, slots)`, a context manager around something that iterates over one epoch in order.
The ideal hands nothing over and so has no batches: it gives `fill` instead.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType


class Contender(NamedTuple):
    """A contender's name in tables, its module here, and the packages it needs (pip's name, module)."""

    title: str
    module: str
    requires: tuple[tuple[str, str], ...]

    def missing(self) -> list[str]:
        """The packages that are not installed, as pip calls them."""
        return [pip for pip, module in self.requires if importlib.util.find_spec(module) is None]

    def load(self) -> Any:
        """Import the module, and with it what it needs."""
        module: ModuleType = importlib.import_module(f"contenders.{self.module}")
        return module


KERAS = (("keras", "keras"), ("tensorflow", "tensorflow"))
TENSORFLOW = (("tensorflow", "tensorflow"),)
TORCH = (("torch", "torch"),)

CONTENDERS = {
    "ringfeed": Contender("ringfeed", "ringfeed_spawn", (("ringfeed", "ringfeed"),)),
    "ideal": Contender("the ideal: no hand-over", "ideal", ()),
    "keras-processes": Contender("Keras OrderedEnqueuer, processes", "keras_processes", KERAS),
    "keras-threads": Contender("Keras OrderedEnqueuer, threads", "keras_threads", KERAS),
    "torch": Contender("torch DataLoader, tensors", "torch_dataloader", TORCH),
    "torch-arrays": Contender("torch DataLoader, arrays", "torch_arrays", TORCH),
    "plain": Contender("a plain loop: no loader", "plain", ()),
    "pool": Contender("multiprocessing.Pool.imap", "pool", ()),
    "tf-generator": Contender("tf.data from_generator", "tf_generator", TENSORFLOW),
    "tf-function": Contender("tf.data map of numpy_function, batch", "tf_function", TENSORFLOW),
    "torch-ready": Contender("torch DataLoader, whole batches", "torch_ready", TORCH),
    "grain": Contender("Grain, worker processes", "grain_processes", (("grain", "grain"),)),
}
ASKED = ("pool", "tf-generator", "tf-function", "torch-ready", "grain")
"""Take part when a contender and a workload are named: with them the bench takes twice as long."""
