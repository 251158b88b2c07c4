"""The rank of this process, as frameworks and launchers know it.

    torch.distributed    once initialized                        its module, if it is imported
    jax.distributed      once initialized                        its module, too
    mpi4py               once MPI is initialized                 its module, too
    TF_CONFIG            chief and workers of the cluster        the environment
    torchrun             RANK, WORLD_SIZE                        the environment
    Open MPI             OMPI_COMM_WORLD_RANK, ..._SIZE          the environment; also MPICH

Nothing is imported here: a module that the program has not imported is not initialized.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
}
"""The environment variables of launchers: the rank, and the world size."""

_GIVE = "give shard=ringfeed.Shard(rank, world_size)"
_NOTHING = (
    "shard='auto' found nothing that knows the rank of this process: torch.distributed, "
    "jax.distributed, mpi4py are not initialized (or not imported), and the environment has "
    "neither TF_CONFIG nor RANK and WORLD_SIZE, OMPI_COMM_WORLD_RANK and _SIZE, PMI_RANK and "
    "_SIZE, MV2_COMM_WORLD_RANK and _SIZE; make the loader after the "
    "framework is initialized, or " + _GIVE
)


def find() -> tuple[int, int, str]:
    """Return rank, world size, and the names of all sources that know them.

    Raises ValueError if the sources differ, or none knows.
    """
    found = {name: said for name, look in _KNOWN_BY.items() if (said := look()) is not None}
    for name, (rank, world_size) in found.items():
        if not 0 <= rank < world_size:
            raise ValueError(
                f"shard='auto' found rank {rank} of {world_size} in {name}, expected a rank from 0 "
                f"to world size - 1; {_GIVE}"
            )
    if not found:
        raise ValueError(_NOTHING)
    if len(set(found.values())) > 1:
        each = ", ".join(
            f"rank {rank} of {world_size} in {name}" for name, (rank, world_size) in found.items()
        )
        raise ValueError(f"shard='auto' found {each}, which contradict each other; {_GIVE}")
    return *next(iter(found.values())), ", ".join(found)


def _torch() -> tuple[int, int] | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _jax() -> tuple[int, int] | None:
    """Read the arguments of `jax.distributed.initialize`.

    ``jax.process_index()`` would start JAX's backend, too.
    """
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
        raise ValueError(
            f"shard='auto' found {rank}={values[0]!r} and {world_size}={values[1]!r}, expected two "
            f"ints; {_GIVE}"
        ) from None


def _tf_config() -> tuple[int, int] | None:
    """Read TensorFlow's cluster as its MultiWorkerMirroredStrategy does.

    The chief is the first, if there is one.
    """
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text or "{}")
        if "cluster" not in config:
            return None
        cluster, kind, index = (
            config["cluster"],
            config["task"]["type"],
            int(config["task"]["index"]),
        )
        chiefs, workers = len(cluster.get("chief", ())), len(cluster.get("worker", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"shard='auto' found TF_CONFIG={text!r}, expected JSON as in "
            f'{{"cluster": {{"worker": ["host:port"]}}, "task": {{"type": "worker", '
            f'"index": 0}}}}; {_GIVE}'
        ) from None
    if kind not in {"chief", "worker"} or "ps" in cluster:
        raise ValueError(
            f"shard='auto' found task type {kind!r} in a cluster of {', '.join(cluster)} in "
            f"TF_CONFIG, expected a chief or worker, and no parameter servers; {_GIVE}"
        )
    return (0 if kind == "chief" else chiefs + index), chiefs + workers


_KNOWN_BY: dict[str, Callable[[], tuple[int, int] | None]] = {
    "torch.distributed": _torch,
    "jax.distributed": _jax,
    "mpi4py": _mpi,
    "TF_CONFIG": _tf_config,
    **{name: partial(_variables, *names) for name, names in VARIABLES.items()},
}
