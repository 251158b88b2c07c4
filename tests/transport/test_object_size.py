"""`ringfeed.transport.object_size`: what a dataset takes in a worker once it is unpickled."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import ringfeed
from ringfeed.transport import object_size
from ringfeed.transport.shared_dataset import pack
from watching import wait_until

pytestmark = pytest.mark.once

COUNT = 100_000


class Holding:
    """Numbers, from a dataset that holds something besides."""

    def __init__(self, held: object) -> None:
        self.held = held

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index


class Record:
    """What many datasets keep one of for each sample."""

    def __init__(self, index: int) -> None:
        self.path = f"/pictures/{index}.jpg"
        self.label = index


KINDS: dict[str, Any] = {
    "numbers": lambda: list(range(1000, 1000 + 4 * COUNT)),
    "paths": lambda: [f"/pictures/train/class_{n % 100:03d}/{n:08d}.jpg" for n in range(COUNT)],
    "pairs": lambda: [(f"/pictures/{n}.jpg", n + 1000) for n in range(COUNT)],
    "table": lambda: {f"/pictures/{n}.jpg": n + 1000 for n in range(COUNT)},
    "encoded": lambda: [n.to_bytes(4, "little") * 5000 for n in range(1500)],
    "records": lambda: [Record(n) for n in range(COUNT // 4)],
    "small arrays": lambda: [np.full(10, n, np.float32) for n in range(COUNT // 4)],
}


def private(held: object) -> int:
    """Return the private bytes of a worker whose dataset holds something."""
    with ringfeed.Loader(
        Holding(held), batch_size=8, workers=1, slots=2, backend="spawn"
    ) as loader:
        next(iter(loader))
        wait_until(lambda: "filling" not in loader.slot_states())
        (worker,) = loader.stats().memory.workers
        assert worker.private is not None
        return worker.private


@pytest.fixture(scope="module")
def bare() -> int:
    """What a worker has whose dataset holds nothing."""
    return private(None)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_what_a_worker_has(kind: str, bare: int) -> None:
    """Within a fifth and a megabyte, where the pickle alone is up to fifteen times too small."""
    held = KINDS[kind]()
    planned = ringfeed.Loader(
        Holding(held), batch_size=8, workers=1, slots=2
    ).plan.dataset_per_worker
    assert private(held) - bare == pytest.approx(planned, rel=0.2, abs=1_000_000)


def test_numbers_count_by_the_mention() -> None:
    """Pickle makes a new one each time, but for those that the interpreter has once."""
    number, big = 1000, 2.5
    assert weight([number] * 50) - weight([]) == 50 * 32 + 50 * 8
    assert weight([big] * 50) - weight([]) == 50 * 32 + 50 * 8
    assert weight([7] * 50) - weight([]) == weight([None] * 50) - weight([]) == 50 * 8


def test_everything_else_counts_once() -> None:
    """However often it is mentioned."""
    text = "x" * 1000
    # A list grows by whole steps of 16 bytes.
    assert weight([text] * 50) - weight([text]) == 49 * 8 + 8


def test_a_table_counts_with_the_one_it_grew_out_of() -> None:
    """The heap of a worker keeps what it gave back while it was made."""
    table = dict.fromkeys(range(-5, 200)), {None: "x"}
    assert weight(table[0]) > 1.5 * sys.getsizeof(table[0])
    assert weight(table[1]) < 1.5 * sys.getsizeof(table[1]) + sys.getsizeof("x")


def weight(obj: object) -> int:
    """Return what an object alone takes."""
    return pack(obj, weigh=True).unpickled


def test_what_workers_share_is_not_theirs() -> None:
    """A large array lies in shared memory, a small one in each worker.

    And so does what an array of objects holds.
    """
    large = np.ones(100_000)
    assert weight(large) < 2000
    assert weight([np.ones(100) for _ in range(10)]) > 10 * 800
    assert weight(np.array([None] * 1000, object)) > 1000 * 8 + weight([None] * 1000)
    assert weight(large) < weight([large, large]) < weight(large) + 200


def test_classes_and_modules_are_there_anyway() -> None:
    """They travel by name."""
    assert weight([ringfeed, np.ndarray, Record]) < 1500


def test_weighing_changes_nothing() -> None:
    """The stream and its buffers are the same, and what nobody asked for is 0."""
    dataset = Holding([Record(n) for n in range(20)] + [np.ones(5000), np.ones(5)])
    plain, weighed = pack(dataset), pack(dataset, weigh=True)
    assert bytes(plain.stream) == bytes(weighed.stream)
    assert [bytes(buffer) for buffer in plain.buffers] == [
        bytes(buffer) for buffer in weighed.buffers
    ]
    assert plain.unpickled == 0 < weighed.unpickled


@pytest.mark.parametrize(("method", "copies"), [("spawn", 2), ("process", 3), ("fork", 0)])
def test_who_has_a_copy_of_its_own(method: Any, copies: int) -> None:
    """Workers, and what forks them, have a copy each of what they use.

    They write to it, if only a count of references.
    """
    held = [f"/pictures/{n}.jpg" for n in range(1000)]
    with ringfeed.Loader(Holding(held), batch_size=8, workers=2, backend=method) as loader:
        plan = loader.plan
        assert (plan.dataset_per_worker > sum(map(sys.getsizeof, held))) == bool(copies)
        rest = plan.slots * plan.slot_size + plan.control_size + plan.dataset_shared
        assert plan.total == rest + copies * plan.dataset_per_worker
        assert ("2 workers and the forkserver;" in str(plan)) == (method == "process")


def test_stand_ins_are_not_imported() -> None:
    """What stands for a framework is weighed by its own type, and asked nothing."""

    class Touchy:
        """Fails whoever asks for anything."""

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    assert 0 < object_size.weigh([Touchy()]) < 1000
