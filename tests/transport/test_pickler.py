"""Datasets that no module holds arrive whole: their classes and functions travel with them."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import pickle
import sys
import types
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import cloudpickle
import numpy as np
import pytest

import travel
from ringfeed.transport.shared_dataset import pack

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("nothing_left")

T = TypeVar("T")

# Made in functions, these have no name to be imported by.


def plain() -> object:
    """An array and a class attribute."""

    class Plain:
        scale = 2

        def __init__(self) -> None:
            self.x = np.arange(3000)

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, index: int) -> int:
            return int(self.x[index]) * self.scale

    return Plain()


def abstract() -> object:
    """A subclass of an abstract class."""

    class Base(abc.ABC):
        @abc.abstractmethod
        def __getitem__(self, index: int) -> int: ...

    class Concrete(Base):
        def __getitem__(self, index: int) -> int:
            return index + int(isinstance(self, Base))

    return Concrete()


def dataclass() -> object:
    """A dataclass with a default made by a function."""

    @dataclasses.dataclass
    class Point:
        x: int
        y: list[int] = dataclasses.field(default_factory=list)

        def __getitem__(self, index: int) -> int:
            return self.x + self.y[index] + dataclasses.replace(self, x=100).x

    return Point(1, [2, 3])


def named_tuple() -> object:
    """Samples that are named tuples."""

    class Sample(NamedTuple):
        image: int
        label: int = 7

    class Samples:
        def __getitem__(self, index: int) -> Any:
            return tuple(Sample(index)), Sample(1)._replace(label=2).label, Sample._fields

    return Samples()


def enumeration() -> object:
    """An enumeration as an attribute."""

    class Split(enum.Enum):
        TRAIN = 1
        TEST = 2

    class Samples:
        split = Split.TEST

        def __getitem__(self, index: int) -> Any:
            return self.split is Split.TEST, Split(1).name, self.split.value + index

    return Samples()


def generic() -> object:
    """A subclass of a generic class of its own."""

    class Typed(Generic[T]):
        def __init__(self, first: T) -> None:
            self.first = first

    class Numbers(Typed[int]):
        def __getitem__(self, index: int) -> int:
            return self.first + index

    return Numbers(4)


def slots() -> object:
    """A class without a __dict__."""

    class Slotted:
        __slots__ = ("first",)

        def __init__(self) -> None:
            self.first = 3

        def __getitem__(self, index: int) -> int:
            return self.first + index

    return Slotted()


def closure() -> object:
    """A lambda over a table and a function that calls itself."""
    table = {0: 5}
    # A lambda is meant.
    scaled: Callable[[int], int] = lambda index: table[index] * factorial(3)  # noqa: E731

    def factorial(n: int, *, one: int = 1) -> int:
        return one if n == 0 else n * factorial(n - 1)

    class Calls:
        def __getitem__(self, index: int) -> int:
            return scaled(index)

    return Calls()


def cached() -> object:
    """A cached function that calls itself."""

    @functools.lru_cache(maxsize=50)
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    class Cached:
        def __getitem__(self, index: int) -> Any:
            return fibonacci(40 + index), fibonacci.cache_info().maxsize

    return Cached()


def methods() -> object:
    """Methods of every kind."""

    class Methods:
        size = 3

        def __init__(self) -> None:
            self.bound = self.add
            self.partial = functools.partial(self.add, 10)

        def add(self, number: int, more: int = 0) -> int:
            return number + more + self.size

        @staticmethod
        def double(number: int) -> int:
            return 2 * number

        @classmethod
        def made(cls) -> int:
            return cls.size

        @property
        def length(self) -> int:
            return self.size

        def __getitem__(self, index: int) -> Any:
            return self.bound(index), self.partial(1), self.double(4), self.made(), self.length

    return Methods()


MAKERS = [
    plain,
    abstract,
    dataclass,
    named_tuple,
    enumeration,
    generic,
    slots,
    closure,
    cached,
    methods,
]


@pytest.mark.parametrize("make", MAKERS)
def test_datasets_that_no_module_holds_work_in_a_fresh_interpreter(make: Callable[[], Any]) -> None:
    """A dataset sent by value gives the same sample in a worker as here."""
    assert travel.ask(make(), lambda dataset: dataset[0]) == make()[0]


def test_a_main_module_under_its_other_name_travels_by_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a process that multiprocessing spawned, no worker can import the main module."""
    main: Any = types.ModuleType("__mp_main__")
    script = "class Local:\n    def __getitem__(self, index): return index + OFFSET\nOFFSET = 3"
    exec(script, vars(main))  # noqa: S102 - as the user's script
    monkeypatch.setitem(sys.modules, "__mp_main__", main)
    assert travel.ask(main.Local(), lambda dataset: dataset[4]) == 7
    assert "__mp_main__" not in cloudpickle.list_registry_pickle_by_value()


LAZY = """
from functools import wraps
def named(function):
    @wraps(function)
    def call(self, index: ForCheckers = 1, *, more: ForCheckers = OFFSET) -> ForCheckers:
        return function(self, index) + more
    return call
class Annotated:
    field: ForCheckers
    @named
    def __getitem__(self, index: ForCheckers) -> ForCheckers:
        "Known."
        return index
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are made with the function")
def test_annotations_that_cannot_be_made_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may name what only a type checker imports; all else of a function travels."""
    main: Any = types.ModuleType("__mp_main__")
    main.OFFSET = 3
    exec(LAZY, vars(main))  # noqa: S102 - as the user's script
    monkeypatch.setitem(sys.modules, "__mp_main__", main)
    assert travel.ask(main.Annotated(), lambda dataset: dataset[4]) == 7
    look = "lambda dataset: (type(dataset).__getitem__.__doc__, type(dataset).__getitem__.__name__)"
    assert travel.ask(main.Annotated(), eval(look)) == ("Known.", "__getitem__")  # noqa: S307


def test_the_classes_of_a_new_version_are_those_of_the_last() -> None:
    """A worker that unpickles two versions of one dataset sees instances of one class."""
    dataset: Any = plain()
    first = pickle.loads(pack(dataset).stream, buffers=[bytes(24_000)])
    dataset.scale = 3
    second = pickle.loads(pack(dataset).stream, buffers=[bytes(24_000)])
    assert type(first) is type(second)
    assert (first.scale, second.scale) == (2, 3)


@pytest.mark.parametrize("make", MAKERS)
def test_an_unchanged_dataset_gives_the_same_bytes(make: Callable[[], Any]) -> None:
    """Pickling again gives the same stream, so that nothing is sent where nothing changed."""
    dataset = make()
    assert pack(dataset).stream == pack(dataset).stream
