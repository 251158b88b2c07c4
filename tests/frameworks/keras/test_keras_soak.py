"""A slice of the soak for every run of the tests, and proof that it would see a fault."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras", minversion="3.7")

import faults
import soak
import warm

SEED = 2886  # a short course, over spawned workers


@pytest.mark.long
def test_faults_do_not_change_what_is_learnt() -> None:
    """Under kills, stops and samples that end their worker `fit` gives the same bits."""
    command = [Path(soak.__file__), "--seed", SEED]
    # In a process of its own, since enable_op_determinism() is for good.
    found = warm.run(command)
    assert found.returncode == 0, found.stderr
    first, second = found.stdout.splitlines()
    assert first == f"from seed {SEED}"
    assert second.startswith("1 rounds, 4 fits under fire over ")
    assert not re.search(r" 0 (faults|replacements|samples)", second)
    assert second.endswith("every loss, every validation loss and all weights equal, bit for bit")


SMALL = soak.Course(SEED)
SMALL.length, SMALL.batches, SMALL.batch_size, SMALL.held_out = 40, 5, 8, 10
SMALL.epochs, SMALL.steps, SMALL.sleep_s, SMALL.bad = 1, 3, 0.0, frozenset({7})


def altered(monkeypatch: pytest.MonkeyPatch, course: soak.Course, epoch: int) -> soak.Outcome:
    """Return the outcome of a course if one number of one sample is off by its last bit."""
    right = faults.Examples.__getitem__
    sleep_s = course.sleep_s
    seen: list[int] = []

    def wrong(examples: faults.Examples, index: int) -> object:
        features, label = right(examples, index)
        if examples.length == course.length and index == 3:
            seen.append(index)
            if len(seen) == epoch + 1:
                features.view("uint32")[0] ^= 1
        return features, label

    assert sleep_s == 0.0
    with monkeypatch.context() as patched:
        patched.setattr(faults.Examples, "__getitem__", wrong)
        return soak.in_peace(course)


@pytest.mark.long
def test_it_sees_a_single_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one sample in the last epoch makes another outcome; without it all are equal."""
    expected = soak.in_peace(SMALL)
    assert expected.difference(soak.in_peace(SMALL)) == ""
    assert expected.difference(altered(monkeypatch, SMALL, epoch=1)) != ""


def test_it_tells_what_differs() -> None:
    """A loss of the least difference, another sample skipped and other weights are told apart."""
    one = soak.Outcome({"loss": [(0.5).hex(), (0.25).hex()]}, [b"weights"], [7])
    other = replace(one, curves={"loss": [(0.5).hex(), (0.2500000000000001).hex()]})
    assert one.difference(other) == "loss of epoch 1 is 0.2500000000000001, not 0.25"
    assert one.difference(replace(one, skipped=[8])) == "[8] were skipped, not [7]"
    assert (
        one.difference(replace(one, weights=[b"Weights"]))
        == "the losses are the same, the weights differ"
    )
    assert one.difference(one) == ""


def test_a_fault_strikes_once_until_it_is_armed_again(tmp_path: Path) -> None:
    """Only the first that comes to a sample does the deed, and each arming counts them."""
    found = faults.Faults(tmp_path, {3: "slow", 5: "slow"})
    found.strike(3)
    assert found.arm() == 2
    for _ in range(2):
        found.strike(3)
        found.strike(4)
    assert found.arm() == 1
    assert found.arm() == 0


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("leave", 0),
        ("exit", 3),
        ("kill", -signal.SIGKILL),
        ("segfault", -signal.SIGSEGV),
        ("abort", -signal.SIGABRT),
    ],
)
def test_each_fault_ends_its_process(name: str, status: int, tmp_path: Path) -> None:
    """A fault ends whoever makes the sample, as it says."""
    script = f"""if True:
        import pathlib, resource, faults
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        found = faults.Faults(pathlib.Path({str(tmp_path)!r}), {{3: {name!r}}})
        found.arm()
        found.strike(3)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=False, timeout=240
    )
    assert ended.returncode == status


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    """The same seed gives the same course and the same faults."""
    assert vars(soak.Course(SEED)) == vars(soak.Course(SEED))
    drawn = [
        faults.Faults.draw(
            tmp_path,
            Random(SEED),  # noqa: S311 - no secret
            100,
            faults.IN_PROCESSES,
            5,
        ).deeds
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 5
