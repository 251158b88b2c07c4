"""Which of several processes this one is: as the user gives it, or as frameworks and launchers have it.

    torch.distributed    once initialized                        by its module, where the program has imported it
    jax.distributed      once initialized                        likewise
    mpi4py               once MPI is initialized                 likewise
    TF_CONFIG            chief and workers of the cluster        the environment
    torchrun             RANK, WORLD_SIZE                        the environment
    Open MPI             OMPI_COMM_WORLD_RANK, ..._SIZE          the environment; so too MPICH, Intel MPI, MVAPICH

Nothing is imported here: what the program has not imported cannot have been initialized.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ringfeed._checks import AUTO, MOST, check_count
from ringfeed._classes import class_names
from ringfeed.orders.sampler import SeededSampler

if TYPE_CHECKING:
    from collections.abc import Callable

_GIVE = "give rank= and world_size="
_NOTHING = (
    "shard='auto' found nothing that knows the rank of this process: torch.distributed, jax.distributed, mpi4py are "
    "not initialized (or not imported), and the environment has neither TF_CONFIG nor RANK and WORLD_SIZE, "
    "OMPI_COMM_WORLD_RANK and _SIZE, PMI_RANK and _SIZE, MV2_COMM_WORLD_RANK and _SIZE; make the loader after the "
    "framework is initialized, or " + _GIVE
)


class Rank(NamedTuple):
    """Which of how many processes one is. ``found``: what says so, with ``shard="auto"``."""

    rank: int
    world_size: int
    found: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        return f"rank {self.rank} of {self.world_size}" + (f" ({self.found})" if self.found else "")

    @classmethod
    def of(cls, rank: object, world_size: object, shard: object) -> Rank:
        """Understand the loader's parameters of these names; TypeError or ValueError for what does not fit."""
        count = check_count("world_size", world_size, 1, MOST, none=False) or 1
        number = check_count("rank", rank, 0, MOST, none=False) or 0
        if number >= count:
            message = f"rank={number} with world_size={count}; ranks go from 0 to {count - 1}"
            raise ValueError(message)
        if shard is None:
            return cls(number, count)
        if shard != AUTO:
            message = f"shard={shard!r}; give {AUTO!r}, or leave it out and {_GIVE}"
            raise ValueError(message)
        if (number, count) != (0, 1):
            message = (
                f"shard='auto' finds the rank, and rank={number}, world_size={count} give it; leave one of them out"
            )
            raise ValueError(message)
        return cls.find()

    @classmethod
    def find(cls) -> Rank:
        """Return what all that knows the rank says; ValueError where nothing knows it, or where they differ."""
        found = {name: cls(*said) for name, look in _KNOWN_BY.items() if (said := look()) is not None}
        for name, one in found.items():
            if not 0 <= one.rank < one.world_size:
                message = f"shard='auto' found {one} in {name}, expected a rank from 0 to world size - 1; {_GIVE}"
                raise ValueError(message)
        if not found:
            raise ValueError(_NOTHING)
        if len(set(found.values())) > 1:
            each = ", ".join(f"{one} in {name}" for name, one in found.items())
            message = f"shard='auto' found {each}, which contradict each other; {_GIVE}"
            raise ValueError(message)
        return next(iter(found.values()))._replace(found=", ".join(found))

    def check(self, sampler: object, seed: object) -> None:
        """Refuse what has no global batches, or others on each rank, by ValueError; the loader's own parameters."""
        if self.world_size == 1:
            return
        if seed is None:
            message = f"seed=None draws a seed, and each rank of {self.world_size} another; give all of them one number"
            raise ValueError(message)
        if isinstance(sampler, SeededSampler):
            sampler.check_ranks(self.world_size)
        if "torch.DistributedSampler" in class_names(sampler):
            message = (
                f"sampler is a {type(sampler).__name__}, which gives the samples of one process, and {self} would get "
                f"a part of these; leave it out and give shuffle=True, or leave rank=, world_size= and shard= out"
            )
            raise ValueError(message)


def _torch() -> tuple[int, int] | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _jax() -> tuple[int, int] | None:
    """Read what `jax.distributed.initialize` was given: ``jax.process_index()`` would start JAX's backend, too."""
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is None or state.client is None:
        return None
    return state.process_id, state.num_processes


def _mpi() -> tuple[int, int] | None:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()


def _variables(rank: str, world_size: str) -> tuple[int, int] | None:
    values = os.environ.get(rank), os.environ.get(world_size)
    if None in values:
        return None
    try:
        return int(values[0] or ""), int(values[1] or "")
    except ValueError:
        message = f"shard='auto' found {rank}={values[0]!r} and {world_size}={values[1]!r}, expected two ints; {_GIVE}"
        raise ValueError(message) from None


def _tf_config() -> tuple[int, int] | None:
    """Read TensorFlow's cluster as its MultiWorkerMirroredStrategy does: the chief is the first, if there is one."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text or "{}")
        if "cluster" not in config:
            return None
        cluster, kind, index = config["cluster"], config["task"]["type"], int(config["task"]["index"])
        chiefs, workers = len(cluster.get("chief", ())), len(cluster.get("worker", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        message = (
            f"shard='auto' found TF_CONFIG={text!r}, expected JSON as in "
            f'{{"cluster": {{"worker": ["host:port"]}}, "task": {{"type": "worker", "index": 0}}}}; {_GIVE}'
        )
        raise ValueError(message) from None
    if kind not in {"chief", "worker"} or "ps" in cluster:
        message = (
            f"shard='auto' found task type {kind!r} in a cluster of {', '.join(cluster)} in TF_CONFIG, expected a "
            f"chief or worker, and no parameter servers; {_GIVE}"
        )
        raise ValueError(message)
    return (0 if kind == "chief" else chiefs + index), chiefs + workers


_KNOWN_BY: dict[str, Callable[[], tuple[int, int] | None]] = {
    "torch.distributed": _torch,
    "jax.distributed": _jax,
    "mpi4py": _mpi,
    "TF_CONFIG": _tf_config,
    "torchrun": partial(_variables, "RANK", "WORLD_SIZE"),
    "Open MPI": partial(_variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": partial(_variables, "PMI_RANK", "PMI_SIZE"),
    "MVAPICH": partial(_variables, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
}
