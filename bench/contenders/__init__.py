"""What is measured: each contender is one short module with the same interface, in its best settings.

A module gives `settings(workload, workers, slots)`, what it was told, for the record, and
`batches(workload, workers, slots)`, a context manager around something that iterates over an epoch
in order, and over another each time it is asked again. The ideal hands nothing over and so has no
batches: it gives `fill` instead.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


class Epochs:
    """What begins an epoch each time it is iterated over."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def missing_of(requires: tuple[tuple[str, str], ...]) -> list[str]:
    """Which of these packages (pip's name, module) are not installed, as pip calls them."""
    return [pip for pip, module in requires if importlib.util.find_spec(module) is None]


class Contender(NamedTuple):
    """A contender's name in tables, its module here, and the packages it needs (pip's name, module)."""

    title: str
    module: str
    requires: tuple[tuple[str, str], ...]

    def missing(self) -> list[str]:
        """The packages that are not installed, as pip calls them."""
        return missing_of(self.requires)

    def load(self) -> Any:
        """Import the module, and with it what it needs."""
        module: ModuleType = importlib.import_module(f"contenders.{self.module}")
        return module


KERAS = (("keras", "keras"), ("tensorflow", "tensorflow"))
TENSORFLOW = (("tensorflow", "tensorflow"),)
TORCH = (("torch", "torch"),)
SPDL = (("spdl", "spdl"),)

CONTENDERS = {
    "ringfeed": Contender("ringfeed", "ringfeed_loader", (("ringfeed", "ringfeed"),)),
    "ringfeed-fork": Contender(
        "ringfeed, forked workers", "ringfeed_fork", (("ringfeed", "ringfeed"),)
    ),
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
    "spdl": Contender("SPDL pipeline, processes", "spdl_processes", SPDL),
    "spdl-iteration": Contender("SPDL iterate_in_subprocess", "spdl_iteration", SPDL),
    "spdl-pool": Contender("SPDL segment pool", "spdl_pool", SPDL),
    "spdl-pools": Contender("SPDL segment pools, one a worker", "spdl_pools", SPDL),
    "faster-fifo": Contender(
        "faster-fifo", "faster_fifo_queues", (("faster-fifo", "faster_fifo"),)
    ),
    "ray": Contender("Ray Data", "ray_data", (("ray[data]", "ray"), ("pandas", "pandas"))),
}
# It takes part in `fit` alone and gives what fitting.py has in memory: no loader, and so in no file
# here.
MODEL = "model"
EVERYBODY = CONTENDERS | {MODEL: Contender("the model alone", "", (("keras", "keras"),))}
