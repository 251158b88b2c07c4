"""Which of several processes a loader is in.

As given, or found in imported modules and the environment.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ringfeed.orders.sampler import Sequential
from ringfeed.orders.shard import Shard
from watching import run_script

pytestmark = pytest.mark.once

WORLDS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
}
MODULES = ["torch.distributed", "jax._src.distributed", "mpi4py.MPI"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing say a rank."""
    for name in ["TF_CONFIG", *(name for names in WORLDS.values() for name in names)]:
        monkeypatch.delenv(name, raising=False)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def torch_distributed(rank: int, world_size: int, **changed: Any) -> SimpleNamespace:
    """Return what stands for the module."""
    given = {
        "is_available": True,
        "is_initialized": True,
        "get_rank": rank,
        "get_world_size": world_size,
        **changed,
    }
    return SimpleNamespace(**{name: lambda value=value: value for name, value in given.items()})


def jax_distributed(rank: int, world_size: int, client: object = "client") -> SimpleNamespace:
    """Return what stands for the module."""
    state = SimpleNamespace(client=client, process_id=rank, num_processes=world_size)
    return SimpleNamespace(global_state=state)


def mpi(
    rank: int, world_size: int, *, initialized: bool = True, finalized: bool = False
) -> SimpleNamespace:
    """Return what stands for mpi4py's module."""
    world = SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: world_size)
    return SimpleNamespace(
        Is_initialized=lambda: initialized, Is_finalized=lambda: finalized, COMM_WORLD=world
    )


def config(kind: str, index: int, **cluster: int) -> str:
    """Return a TF_CONFIG with so many tasks of each kind."""
    hosts = {
        name: [f"{name}{number}:1" for number in range(count)] for name, count in cluster.items()
    }
    return json.dumps({"cluster": hosts, "task": {"type": kind, "index": index}})


# ---- as given ----


def test_a_rank_as_given() -> None:
    """Nothing is looked for; in words it is rank and world size."""
    assert Shard.of(None) == (0, 1, "pad", "")
    assert Shard.of(Shard(3, 4, "keep")) == (3, 4, "keep", "")
    assert str(Shard(3, 4)) == "rank 3 of 4"


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (Shard(4, 4), ValueError, "rank=4 with world_size=4; ranks go from 0 to 3"),
        (Shard(1, 1), ValueError, "rank=1 with world_size=1; ranks go from 0 to 0"),
        (Shard(-1, 4), ValueError, "rank=-1 must be at least 0"),
        (Shard(rank=True, world_size=4), TypeError, "rank=True must be an int"),
        (Shard(1.0, 4), TypeError, "rank=1.0 must be an int"),  # type: ignore[arg-type]
        (Shard(None, 4), TypeError, "rank=None must be an int"),  # type: ignore[arg-type]
        (Shard(0, 0), ValueError, "world_size=0 must be at least 1"),
        (Shard(0, -2), ValueError, "world_size=-2 must be at least 1"),
        (Shard(0, world_size=True), TypeError, "world_size=True must be an int"),
        (Shard(0, "2"), TypeError, "world_size='2' must be an int"),  # type: ignore[arg-type]
        (Shard(0, 2**63), ValueError, f"world_size={2**63} must be at most {2**63 - 1}"),
        (Shard(0, 2, "wrap"), ValueError, "uneven='wrap'; choose one of 'pad', 'drop', 'keep'"),  # type: ignore[arg-type]
        ("torch", ValueError, "shard='torch'; give ringfeed.Shard(rank, world_size), or 'auto'"),
        (True, ValueError, "shard=True; give ringfeed.Shard(rank, world_size), or 'auto'"),
        ((0, 2), ValueError, "shard=(0, 2); give ringfeed.Shard(rank, world_size), or 'auto'"),
    ],
)
def test_what_is_no_rank_is_refused(given: Any, kind: type[Exception], text: str) -> None:
    """The parameter is named, with what it takes."""
    with pytest.raises(kind) as raised:
        Shard.of(given)
    assert str(raised.value) == text


def test_a_seed_that_is_drawn_is_refused_for_several_ranks() -> None:
    """Each rank would draw another."""
    Shard(0, 1).check(Sequential(), None, None)
    Shard(0, 2).check(Sequential(), None, 0)
    with pytest.raises(ValueError, match="seed") as raised:
        Shard(0, 2).check(Sequential(), None, None)
    assert (
        str(raised.value)
        == "seed=None draws a seed, and each rank of 2 another; give all of them one number"
    )


# ---- found ----


@pytest.mark.parametrize(
    ("module", "stand_in", "name"),
    [
        ("torch.distributed", torch_distributed(1, 2), "torch.distributed"),
        ("jax._src.distributed", jax_distributed(1, 2), "jax.distributed"),
        ("mpi4py.MPI", mpi(1, 2), "mpi4py"),
    ],
)
def test_what_is_initialized_knows_the_rank(
    monkeypatch: pytest.MonkeyPatch, module: str, stand_in: object, name: str
) -> None:
    """A module that the program has imported is asked."""
    monkeypatch.setitem(sys.modules, module, stand_in)
    assert Shard.of("auto") == (1, 2, "pad", name)
    assert str(Shard.find()) == f"rank 1 of 2 ({name})"


@pytest.mark.parametrize(("name", "variables"), WORLDS.items())
def test_the_environment_knows_the_rank(
    monkeypatch: pytest.MonkeyPatch, name: str, variables: tuple[str, str]
) -> None:
    """So do the variables of each launcher."""
    monkeypatch.setenv(variables[0], "1")
    monkeypatch.setenv(variables[1], "2")
    assert Shard.find() == (1, 2, "pad", name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (config("worker", 1, worker=2), (1, 2)),
        (config("chief", 0, chief=1, worker=2), (0, 3)),
        (config("worker", 1, chief=1, worker=2), (2, 3)),
        (config("worker", 0, worker=2, evaluator=1), (0, 2)),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": "1"}}',
            (1, 2),
        ),
    ],
)
def test_the_cluster_of_tensorflow_knows_the_rank(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[int, int]
) -> None:
    """The chief is the first, as for TensorFlow's own strategies."""
    monkeypatch.setenv("TF_CONFIG", text)
    assert Shard.find() == (*expected, "pad", "TF_CONFIG")


def test_all_that_agree_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of torchrun whose group is initialized says it twice."""
    monkeypatch.setitem(sys.modules, "torch.distributed", torch_distributed(1, 2))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Shard.find() == (1, 2, "pad", "torch.distributed, torchrun")


NOTHING = (
    "shard='auto' found nothing that knows the rank of this process: torch.distributed, "
    "jax.distributed, mpi4py are not initialized (or not imported), and the environment has "
    "neither TF_CONFIG nor RANK and WORLD_SIZE, OMPI_COMM_WORLD_RANK and _SIZE, PMI_RANK and "
    "_SIZE, MV2_COMM_WORLD_RANK and _SIZE; make the loader after the framework is initialized, or "
    "give shard=ringfeed.Shard(rank, world_size)"
)


@pytest.mark.parametrize(
    ("module", "stand_in"),
    [
        ("torch.distributed", torch_distributed(1, 2, is_initialized=False)),
        ("torch.distributed", torch_distributed(1, 2, is_available=False)),
        ("jax._src.distributed", jax_distributed(1, 2, None)),
        ("jax._src.distributed", SimpleNamespace()),
        ("mpi4py.MPI", mpi(1, 2, initialized=False)),
        ("mpi4py.MPI", mpi(1, 2, finalized=True)),
        ("nothing", None),
    ],
)
def test_where_nothing_is_found_all_that_was_looked_for_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, stand_in: object
) -> None:
    """What is not initialized, or is half of a pair, says nothing."""
    monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("TF_CONFIG", '{"rpc_layer": "grpc"}')
    with pytest.raises(ValueError, match="found nothing") as raised:
        Shard.find()
    assert str(raised.value) == NOTHING


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (
            {
                "RANK": "1",
                "WORLD_SIZE": "2",
                "PMI_RANK": "0",
                "PMI_SIZE": "2",
                "TF_CONFIG": config("worker", 1, worker=2),
            },
            "shard='auto' found rank 1 of 2 in TF_CONFIG, rank 1 of 2 in torchrun, rank 0 of 2 in "
            "MPICH, which contradict each other; give shard=ringfeed.Shard(rank, world_size)",
        ),
        (
            {"RANK": "2", "WORLD_SIZE": "2"},
            "shard='auto' found rank 2 of 2 in torchrun, expected a rank from 0 to world size - "
            "1; give shard=ringfeed.Shard(rank, world_size)",
        ),
        (
            {"RANK": "one", "WORLD_SIZE": ""},
            "shard='auto' found RANK='one' and WORLD_SIZE='', expected two ints; give "
            "shard=ringfeed.Shard(rank, world_size)",
        ),
        (
            {"TF_CONFIG": "{'cluster'"},
            "shard='auto' found TF_CONFIG=\"{'cluster'\", expected JSON as in "
            '{"cluster": {"worker": ["host:port"]}, "task": {"type": "worker", "index": 0}}; give '
            "shard=ringfeed.Shard(rank, world_size)",
        ),
        (
            {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'},
            'shard=\'auto\' found TF_CONFIG=\'{"cluster": {"worker": ["a:1"]}}\', expected JSON as in '
            '{"cluster": {"worker": ["host:port"]}, "task": {"type": "worker", "index": 0}}; give '
            "shard=ringfeed.Shard(rank, world_size)",
        ),
        (
            {"TF_CONFIG": config("evaluator", 0, chief=1, worker=1, evaluator=1)},
            "shard='auto' found task type 'evaluator' in a cluster of chief, worker, evaluator in "
            "TF_CONFIG, expected a chief or worker, and no parameter servers; give "
            "shard=ringfeed.Shard(rank, world_size)",
        ),
        (
            {"TF_CONFIG": config("worker", 0, chief=1, worker=1, ps=1)},
            "shard='auto' found task type 'worker' in a cluster of chief, worker, ps in "
            "TF_CONFIG, expected a chief or worker, and no parameter servers; give "
            "shard=ringfeed.Shard(rank, world_size)",
        ),
    ],
)
def test_what_is_contradicting_or_broken_is_said(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], text: str
) -> None:
    """Nothing is guessed."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="shard='auto' found") as raised:
        Shard.find()
    assert str(raised.value) == text


def test_no_framework_is_imported() -> None:
    """What the program has not imported is left alone."""
    script = """
import os, sys
os.environ["RANK"], os.environ["WORLD_SIZE"] = "1", "2"
from ringfeed.orders.shard import Shard
assert Shard.find() == (1, 2, "pad", "torchrun")
assert not {"torch", "jax", "tensorflow", "keras", "mpi4py"} & set(sys.modules)
"""
    assert run_script(script) == ("", "", 0)
