"""What cannot travel is named with its path, and the message says what to do."""

from __future__ import annotations

import abc
import functools
import socket
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import ringfeed
from ringfeed import errors
from ringfeed.transport import shared_dataset, unpicklable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAYS_OUT = (
    "and cannot be sent to a worker process; "
    "create it on first use in __getitem__, in each worker, "
    "and leave it out in __getstate__ if this process reads the dataset too"
)
LOCK = threading.Lock()


def refusal(subject: object, name: str = "dataset") -> str:
    """The text of the ShipError for a subject."""
    with pytest.raises(errors.ShipError) as caught:
        shared_dataset.pack(subject, name)
    assert isinstance(caught.value.__cause__, Exception)
    return str(caught.value)


def test_a_lock_of_keras_own() -> None:
    """A lock that is not the user's to leave out is served by threads.

    One of a user's PyDataset is the user's.
    """
    way = 'and cannot be sent to a worker process; it is of Keras\' own, so give backend="thread", whose workers share it'
    base: Any = type("PyDataset", (), {"__module__": "keras.src.trainers"})
    flow: Any = type("Iterator", (base,), {"__module__": "keras.src.legacy"})()
    mine: Any = type("Mine", (base,), {})()
    flow.lock = mine.lock = LOCK
    assert refusal(flow) == f"dataset.lock is a lock {way}"
    assert refusal([flow]) == f"dataset[0].lock is a lock {way}"
    assert refusal(mine) == f"dataset.lock is a lock {WAYS_OUT}"


class Holder:
    """A dataset that holds what it is given."""

    def __init__(self, **parts: Any) -> None:
        self.numbers = np.arange(5)
        vars(self).update(parts)

    def size(self) -> int:
        """A method to be bound."""
        return len(self.numbers)


def numbers() -> Iterator[int]:
    """A generator."""
    yield 1


class Pair(NamedTuple):
    """A sample with names."""

    image: Any
    label: Any


class Slotted:
    """A dataset without a __dict__."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = LOCK


class Stated:
    """A dataset with a state of its own making."""

    def __getstate__(self) -> Any:
        return {"kept": [1, LOCK]}


class Refusing:
    """A part that says no itself."""

    def __reduce__(self) -> Any:
        raise ValueError("not me")


class Reduced:
    """A part that is made again by a call."""

    def __reduce__(self) -> Any:
        return len, ([1, LOCK],)


def closing_over(content: Any) -> Callable[[], Any]:
    """A function with a closure variable ``g``."""
    g = content
    return lambda: g


def with_default() -> Callable[..., Any]:
    """A function with a lock as the default of one parameter."""
    return lambda first, second=LOCK: (first, second)


def by_value(**members: Any) -> Any:
    """An instance of a class that has to travel by value."""
    return type("Made", (), members)()


def inheriting() -> Any:
    """A class on an abstract class that holds a lock."""

    class Base(abc.ABC):  # noqa: B024 - what matters is its metaclass
        lock = LOCK

    class Local(Base):
        pass

    return Local()


def using_a_global() -> Any:
    """A class whose method uses a lock of its module."""

    class Local:
        def __getitem__(self, index: int) -> Any:
            def inner() -> Any:
                return LOCK

            return inner, index

    return Local()


SUBJECTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a generator": (numbers, "dataset is a generator"),
    "an attribute": (lambda: Holder(lock=LOCK), "dataset.lock is a lock"),
    "a recursive lock": (lambda: Holder(lock=threading.RLock()), "dataset.lock is a lock"),
    "inside a condition": (
        lambda: Holder(ready=threading.Event()),
        "dataset.ready._cond._lock is a lock",
    ),
    "a thread local": (lambda: Holder(local=threading.local()), "dataset.local is a thread local"),
    "in a list": (lambda: Holder(parts=[1, [2, LOCK]]), "dataset.parts[1][1] is a lock"),
    "in a dict": (
        lambda: Holder(parts={"a": 1, ("b", 2): LOCK}),
        "dataset.parts[('b', 2)] is a lock",
    ),
    "in a tuple with names": (lambda: Pair(1, [LOCK]), "dataset.label[0] is a lock"),
    "in slots": (Slotted, "dataset.lock is a lock"),
    "in a state": (Stated, "dataset.kept[1] is a lock"),
    "a closure variable": (
        lambda: Holder(fn=closing_over(numbers())),
        "dataset.fn: variable 'g' is a generator",
    ),
    "below a closure variable": (
        lambda: Holder(fn=closing_over({"x": [numbers()]})),
        "dataset.fn: variable 'g['x'][0]' is a generator",
    ),
    "a closure of a closure": (
        lambda: Holder(fn=closing_over(closing_over(numbers()))),
        "dataset.fn: variable 'g': variable 'g' is a generator",
    ),
    "a default": (with_default, "dataset: default 'second' is a lock"),
    "a partial": (
        lambda: functools.partial(max, 1, key=numbers()),
        "dataset.keywords['key'] is a generator",
    ),
    "a global of a method": (using_a_global, "dataset.__getitem__: global 'LOCK' is a lock"),
    "an attribute of the class": (lambda: by_value(lock=LOCK), "dataset.lock is a lock"),
    "a base class": (inheriting, "dataset.lock is a lock"),
    "a static method": (
        lambda: by_value(load=staticmethod(closing_over(LOCK))),
        "dataset.load: variable 'g' is a lock",
    ),
    "a class method": (
        lambda: by_value(load=classmethod(closing_over(LOCK))),  # type: ignore[arg-type]
        "dataset.load: variable 'g' is a lock",
    ),
    "a property": (
        lambda: by_value(load=property(closing_over(LOCK))),  # type: ignore[arg-type]
        "dataset.load: variable 'g' is a lock",
    ),
    "a bound method": (
        lambda: Holder(fn=Holder(lock=LOCK).size),
        "dataset.fn.__self__.lock is a lock",
    ),
    "one that refuses": (
        lambda: Holder(part=[Refusing()]),
        "dataset.part[0] is a test_unpicklable.Refusing object (ValueError: not me)",
    ),
    "what a reduction refers to": (
        lambda: Holder(part=Reduced()),
        "dataset.part.__reduce__()[1][0][1] is a lock",
    ),
}


@pytest.mark.parametrize(("make", "expected"), SUBJECTS.values(), ids=SUBJECTS)
def test_the_path_to_what_cannot_travel_is_named(make: Callable[[], Any], expected: str) -> None:
    """The message leads from the dataset to the culprit, through whatever holds it."""
    assert refusal(make()) == f"{expected} {WAYS_OUT}"


def test_open_files_are_refused(tmp_path: Path) -> None:
    """An open file is refused, also where cloudpickle would silently send all of its text."""
    path = tmp_path / "text"
    path.write_text("content")
    for mode in ("r", "rb"):
        with path.open(mode) as file:
            assert (
                refusal(Holder(file=file))
                == f"dataset.file is an open file ({str(path)!r}) {WAYS_OUT}"
            )


def test_sockets_and_database_connections_are_refused() -> None:
    """Connections to elsewhere are named for what they are."""
    with socket.socket() as link:
        assert refusal(Holder(link=link)) == f"dataset.link is a socket {WAYS_OUT}"
    connection = sqlite3.connect(":memory:")
    assert refusal(Holder(db=connection)) == f"dataset.db is a database connection {WAYS_OUT}"
    connection.close()


def test_hdf5_files_are_refused(tmp_path: Path) -> None:
    """An h5py file or dataset is refused, not opened again behind the user's back."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(5)
        assert refusal(Holder(h=file["x"])) == f"dataset.h is an h5py object (Dataset) {WAYS_OUT}"


def test_the_name_at_the_root_is_the_callers() -> None:
    """What is packed under another name is called by it."""
    assert refusal(Holder(lock=LOCK), "sampler") == f"sampler.lock is a lock {WAYS_OUT}"


def test_cycles_do_not_hide_the_culprit() -> None:
    """A part that refers back to the whole is not blamed for what is elsewhere in it."""
    whole = Holder()
    whole.part = Holder(whole=whole, same=[whole])  # type: ignore[attr-defined]
    whole.lock = LOCK  # type: ignore[attr-defined]
    assert refusal(whole) == f"dataset.lock is a lock {WAYS_OUT}"


def test_a_long_list_is_searched() -> None:
    """One bad element of 100,000 is found; it is seen where pickling stops."""
    assert refusal([*range(99_999), LOCK]) == f"dataset[99999] is a lock {WAYS_OUT}"


def test_a_part_that_is_too_far_off_is_named_without_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message says what it is, and that it is somewhere in the dataset."""
    monkeypatch.setattr(unpicklable, "MAX_OBJECTS", 4)
    parts = [[1, 2, [LOCK]]]
    assert refusal(Holder(parts=parts)) == f"something in dataset is a lock {WAYS_OUT}"


def test_what_is_nested_too_deeply_is_said_to_be() -> None:
    """A chain of a hundred thousand links gets an error of its own."""
    chain: list[Any] = []
    for _ in range(100_000):
        chain = [chain]
    try:
        assert refusal(chain) == (
            "dataset is nested too deeply to be pickled for a worker process; "
            'keep its parts in a list or a dict, or use backend="thread" or "fork"'
        )
    finally:
        while chain:  # link by link: freeing it at once would recurse as deeply
            chain = chain.pop()


def test_a_sampler_that_hears_of_updates() -> None:
    """A replay buffer may hold its sampler; the text says what to do about that."""
    assert refusal(Holder(sampler=ringfeed.orders.PrioritizedSampler(5))) == (
        "dataset.sampler is a PrioritizedSampler and cannot be sent to a worker process; leave it "
        "out in __getstate__, and use it in this process"
    )
