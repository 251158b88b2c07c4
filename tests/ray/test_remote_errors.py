"""Whole texts for bad input and for events in a cluster, with actors that are threads."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfeed
from fake_fleet import FakeRay
from remote_sets import KINDS, Fails, Samples, content
from ringfeed import Loader, StallError, WorkerError
from ringfeed.ray import board
from watching import lose_patience, pool_of, wait_until

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]


def remote(workers: Any = 2, **script: Any) -> FakeRay:
    """Return actors of a script."""
    return FakeRay(workers=workers, runtime_env=script)


def numbers(**given: Any) -> list[int]:
    """Return the numbers of all samples that a loader gives."""
    with Loader(Samples(), **{"batch_size": 16, "workers": 0, "timeout_s": 60, **given}) as loader:
        return [number for _, batch in loader for number in batch.tolist()]


def refusal(kind: type[Exception], **given: Any) -> str:
    """Return what an epoch is refused with."""
    with pytest.raises(kind) as caught:
        numbers(**given)
    return str(caught.value)


# ---- parameters ----


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"workers": 0}, ValueError, "Ray(workers)=0 must be at least 1"),
        ({"workers": 2.5}, TypeError, "Ray(workers)=2.5 must be an int"),
        ({"workers": "many"}, ValueError, "Ray(workers)='many'; give a number, or 'auto'"),
        ({"bridges": 17}, ValueError, "Ray(bridges)=17 must be at most 16"),
        ({"num_cpus": -1}, ValueError, "Ray(num_cpus)=-1 must be at least 0"),
        ({"num_cpus": "2"}, TypeError, "Ray(num_cpus)='2' must be a number"),
        ({"resources": {"gpuu": None}}, TypeError, "Ray(resources)['gpuu']=None must be a number"),
        ({"address": 6379}, TypeError, "Ray(address)=6379 must be a str"),
        ({"private": 1}, TypeError, "Ray(private)=1 must be a bool"),
        (
            {"workers": 2, "bridges": 3},
            ValueError,
            "Ray(bridges)=3 for 2 actors; give no more bridges than actors",
        ),
        (
            {"address": "local", "bridges": 2},
            ValueError,
            "Ray(bridges)=2 with address='local': each bridge would start a cluster of its own; "
            "start one (`ray start --head`) and leave address= out, or have one bridge",
        ),
        (
            {"address": "ray://head:10001"},
            ValueError,
            "Ray(address)='ray://head:10001' is that of a Ray Client server, through which no "
            "bridge can connect; give the address of the head itself, as in 'head:6379'",
        ),
    ],
)
def test_parameters_are_checked(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    """The text names the parameter, and what it takes."""
    with pytest.raises(kind) as caught:
        ringfeed.ray.Ray(**given)
    assert str(caught.value) == text


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the loader is made."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError) as caught:
        Loader(Samples(), backend=ringfeed.ray.Ray())
    assert str(caught.value) == 'backend=Ray(...) needs ray; pip install "ringfeed[ray]"'


def test_without_a_cluster_it_says_the_ways_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No cluster is started behind the user's back."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(ValueError, match="backend=") as caught:
        Loader(Samples(), backend=ringfeed.ray.Ray())
    assert str(caught.value) == (
        "backend=Ray(...) without address=, and no Ray cluster runs on this machine, nor does "
        "RAY_ADDRESS name one; give the address= of a cluster's head, or address='local', which "
        "starts a cluster with the loader and ends it with the loader"
    )
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert ringfeed.ray.Ray().found_address() == "head:6379"


def test_what_cannot_be_remote_is_refused() -> None:
    """An iterator, and what is no backend."""
    with pytest.raises(ValueError, match="iterator") as caught:
        Loader((number for number in range(9)), backend=remote())
    assert str(caught.value) == (
        "backend=Ray(...) with a generator, an iterator that a thread of this process reads; give "
        "an iterable that makes a new iterator each time, or leave backend= out"
    )
    with pytest.raises(TypeError, match="backend") as wrong:
        Loader(Samples(), backend=7)  # type: ignore[arg-type]
    assert (
        str(wrong.value)
        == "backend=7; choose one of 'process', 'thread', 'spawn', 'fork', or a ringfeed.ray.Ray"
    )


# ---- the cluster ----


def test_fewer_actors_than_asked_for_are_enough() -> None:
    """It goes on with as many as have room, and says so."""
    with Loader(
        Samples(), batch_size=16, workers=0, backend=remote(9, nodes={"a": 2, "b": 1})
    ) as loader:
        assert sum(1 for _ in loader) == 7
        wait_until(lambda: loader.stats().remote.there == 3)
        stats = loader.stats()
    assert stats.remote.declined == (
        "the cluster has room for 3: an actor asks for CPU=1, and of that 10.0.0.0 has CPU=2; "
        "10.0.0.1 has CPU=1"
    )
    assert stats.verdict.endswith(f"; there are 3 of 3 actors: {stats.remote.declined}")


def test_no_room_at_all_is_an_error_that_names_what_was_asked() -> None:
    """And what each node has."""
    ray = FakeRay(workers=2, num_cpus=1, resources={"gpuu": 1}, runtime_env={"nodes": {"a": 2}})
    assert refusal(WorkerError, backend=ray) == (
        "no actor has room in the cluster: an actor asks for CPU=1, gpuu=1, and of that 10.0.0.0 "
        "has CPU=2, gpuu=0; ask for less by num_cpus= and resources= of ringfeed.ray.Ray, or add "
        "nodes"
    )


def test_a_node_that_starts_no_actor_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    """With a warning that has the error from there."""
    warning = (
        "UserWarning: no actor of ringfeed starts on node 10.0.0.0, and none is tried there any "
        "more: ModuleNotFoundError: No module named 'pictures'"
    )
    printed: list[str] = []

    def is_printed() -> bool:
        printed.append(capfd.readouterr().err)
        return warning in "".join(printed)

    with Loader(
        Samples(),
        batch_size=16,
        workers=0,
        timeout_s=60,
        backend=remote(nodes={"a": 1, "b": 4}, refuses=["a"]),
    ) as loader:
        assert [number for _, batch in loader for number in batch.tolist()] == [*range(100)]
        wait_until(
            is_printed
        )  # node b may have read everything before a is tried for the third time


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_cluster_that_another_user_names_is_not_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str | None
) -> None:
    """The file in which Ray keeps the machine's newest cluster must be this user's, or root's."""
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    file = tmp_path / "ray" / "ray_current_cluster"
    file.parent.mkdir()
    file.write_text("head:6379\n")
    asked = ringfeed.ray.Ray(address=address)
    assert asked.found_address() == "head:6379"
    file.chmod(0o666)
    with pytest.raises(PermissionError) as caught:
        asked.found_address()
    assert str(caught.value) == (
        "backend=Ray(...) without address=, and a file which all users may write names the Ray "
        f"cluster of this machine: {file}; give the address= of the cluster's head"
    )
    file.chmod(0o644)
    if not os.getuid():
        os.chown(file, 65534, 65534)
        with pytest.raises(PermissionError) as caught:
            ringfeed.Loader(Samples(), batch_size=16, backend=asked)
        assert str(caught.value) == (
            "backend=Ray(...) without address=, and a file of another user (uid 65534) names the "
            f"Ray cluster of this machine: {file}; give the address= of the cluster's head"
        )
        monkeypatch.setenv("RAY_ADDRESS", "other:6379")
        assert asked.found_address() == "other:6379"
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        with pytest.raises(PermissionError):
            asked.found_address()
        monkeypatch.delenv("RAY_ADDRESS")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert asked.found_address() == ""


def test_where_no_node_starts_an_actor_the_error_from_there_is_the_cause() -> None:
    """It says what to do."""
    with pytest.raises(WorkerError) as caught:
        numbers(backend=remote(refuses=["a", "b"]))
    assert str(caught.value) == (
        "no actor starts on any node; on 10.0.0.0: ModuleNotFoundError: No module named "
        "'pictures'; install what is missing there, or give runtime_env= of ringfeed.ray.Ray"
    )


def test_a_node_with_another_numpy_is_left_out() -> None:
    """Its rows might be others."""
    assert refusal(WorkerError, backend=remote(1, nodes={"a": 8}, differs=["a"])) == (
        "no actor starts on any node; on 10.0.0.0: WorkerError: has numpy 0.9, expected numpy "
        f"{np.__version__.rpartition('.')[0]} as here; install what is missing there, or give "
        "runtime_env= of ringfeed.ray.Ray"
    )


def test_without_a_cluster_workers_here_go_on_alone() -> None:
    """With one warning."""

    def train(caught: pytest.WarningsRecorder) -> None:
        with Loader(
            Samples(), batch_size=16, workers=1, backend=remote(refuses=["a", "b"])
        ) as loader:
            assert sum(1 for _ in loader) == 7
            wait_until(lambda: len(caught) > 0)

    with pytest.warns(
        UserWarning, match="training goes on with the workers here alone: no actor starts"
    ) as caught:
        train(caught)
    assert len(caught) == 1


def test_bridges_that_die_before_anything_came_through_them_are_not_started_for_ever() -> None:
    """Three in a row."""
    assert refusal(WorkerError, backend=remote(bridge_dies=1)) == (
        "3 bridges to the cluster in a row ended before any row came through them; the last was "
        "killed by SIGKILL; look at its output above, and at `ray status`"
    )


def test_calls_that_are_not_carried_out_are_an_error_in_their_place() -> None:
    """After so many attempts; it names the sample, the node and why."""
    ray = remote(1, nodes={"a": 1}, broken=[*range(1000)])
    assert refusal(WorkerError, backend=ray, batch_size=1) == (
        "dataset[0] could not be made remotely, on node 10.0.0.0: no such thing"
    )


# ---- samples ----


class Writes(Samples):
    """A dataset that writes to its own arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.small = np.zeros(4)

    def __getitem__(self, index: int) -> Any:
        self.small[0] += 1
        self.large[index] = 7
        return super().__getitem__(index)


def test_a_sample_that_raises_has_its_traceback_and_its_node() -> None:
    """The error is that of workers here."""
    with pytest.raises(WorkerError) as caught:
        content(Fails(), batch_size=16, workers=0, backend=remote())
    assert str(caught.value) == "dataset[17] raised OSError: the file is torn"
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["__getitem__"]
    notes = cause.__notes__  # type: ignore[attr-defined]
    assert notes in (["on node 10.0.0.0"], ["on node 10.0.0.1"])


def test_a_dataset_that_writes_to_what_its_actors_share_is_told_so() -> None:
    """And private=True gives each actor a copy."""
    with pytest.raises(WorkerError) as caught:
        content(Writes(), batch_size=16, workers=0, backend=remote())
    assert str(caught.value) == (
        "dataset[0] raised ValueError: assignment destination is read-only; in actors, arrays of "
        "the dataset of 1 MB or more are read-only, as they share them: copy what you change, or "
        "give ringfeed.ray.Ray(private=True) (15 more of this batch failed)"
    )
    ray = FakeRay(workers=2, private=True)
    assert len(content(Writes(), batch_size=16, workers=0, backend=ray)[0]) == 7


def test_a_sample_that_ends_its_actors_is_an_error_in_its_place() -> None:
    """It names the index and the node; with on_error="skip" it is left out."""
    script = {"poison": [42], "nodes": {"a": 8}}
    assert refusal(WorkerError, backend=remote(**script), max_attempts=2) == (
        "dataset[42] ended 2 actors; the last one, on node 10.0.0.0, was killed; try it with "
        "workers=0 and no backend="
    )
    skipped = numbers(backend=remote(**script), max_attempts=2, on_error="skip")
    assert skipped == [number for number in range(100) if number != 42]


def stall_in(ray: FakeRay, call: int, **given: Any) -> str:
    """Return what a StallError says once an actor is at a call that is never answered."""
    with Loader(Samples(), **{"batch_size": 16, "workers": 0, "backend": ray, **given}) as loader:
        batches = iter(loader)
        (page,) = pool_of(loader)._boards.values()
        wait_until(lambda: page.read().get("calls") == call - 1 and bool(page.read().get("actors")))
        lose_patience(loader, 0.1)
        with pytest.raises(StallError) as caught:
            next(batches)
    return str(caught.value)


def test_a_sample_that_hangs_is_named_with_its_actor_its_node_and_its_stack() -> None:
    """In the StallError; with on_stall="restart" its actor is ended, and the row made again."""
    ray = remote(1, hangs=[2], nodes={"a": 1})
    assert re.fullmatch(
        r"no batch for 0\.1 s: 1 of 1 workers inside dataset\[i\] \(i = \d\); raise timeout_s or "
        r"look there\n"
        r"worker 0 \(the bridge, pid \d+\): inside dataset\[\d\], has been at it for \d+\.\d s\n"
        r"actor 1 \(node 10\.0\.0\.0\): inside dataset\[\d\] or the \d rows after it, has been "
        r"at it for \d+\.\d s\n"
        r"    Thread \(most recent call first\):\n"
        r'      File ".*fake_fleet\.py", line \d+ in _fill\n'
        r'      File ".*fake_fleet\.py", line \d+ in _run'
        r'(\n      File ".*threading\.py", line \d+ in \w+)+',
        stall_in(ray, call=2),
    )
    assert numbers(backend=ray, timeout_s=2, on_stall="restart") == [*range(100)]


def test_a_stack_that_does_not_come_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a node that has died; its actor is named all the same, by the row that it is at."""
    monkeypatch.setattr(board, "STACKS_S", 0.1)
    ray = remote(1, hangs=[1], nodes={"a": 1}, mute=["a"])
    last = stall_in(ray, call=1, batch_size=1).partition("\nactor ")[2]
    assert re.fullmatch(
        r"1 \(node 10\.0\.0\.0\): inside dataset\[0\], has been at it for \d+\.\d s\n"
        r"    no stack came from there within 0\.1 s",
        last,
    )


def test_an_epoch_that_is_broken_off_frees_its_slots_whatever_actors_are_at() -> None:
    """The next one begins at once."""
    dataset, given = KINDS["samples"]
    script = {"late": dict.fromkeys(range(4, 9), 1.0)}
    with Loader(dataset, **given, workers=0, seed=1, backend=remote(**script)) as loader:
        for _ in loader:
            break
        found = [number for _, batch in loader for number in batch.tolist()]
        assert sorted(found) == [*range(100)]


TRAINING = """
import signal, sys
from fake_fleet import FakeRay
from remote_sets import Samples
from ringfeed import Loader
loader = Loader(Samples(), batch_size=16, workers=0, backend=FakeRay(workers=2))
for _ in loader:
    print(*loader._runner.engine.pool.pids(), flush=True)
    signal.pause()
"""


def test_a_killed_trainer_takes_its_bridge_along() -> None:
    """As any worker."""
    around = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING], stdout=subprocess.PIPE, text=True, env=around
    )
    with training:
        assert training.stdout is not None
        bridge = Path("/proc", training.stdout.readline().strip())
        assert bridge.exists()
        training.kill()
    wait_until(lambda: not bridge.exists())
