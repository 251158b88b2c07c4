"""What tells a dataset of a `ringfeed.Cache` from others: its state and the user's code, not the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cached import Images
from ringfeed.cache.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = """
import numpy as np
SCALE = {scale}
def decode(index):
    return np.full(3, index {sign} SCALE)
class Base:
    size = {size}
    def __len__(self):
        return 3
class Pictures(Base):
    def __init__(self, root):
        self.root = root
    @staticmethod
    def name(index):
        return {name!r}
    def __getitem__(self, index):
        return decode(index), self.name(index)
"""
AS_IT_IS = {"scale": 2, "sign": "*", "size": 4, "name": "a"}


def made(root: Any = "here", **changed: Any) -> Any:
    """Return a dataset of a module of the user's own, of which something is changed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(MODULE.format(**{**AS_IT_IS, **changed}), names)  # noqa: S102
    return names["Pictures"](root)


CHANGES: dict[str, Callable[[], Any]] = {
    "a constant that a function names": lambda: made(scale=3),
    "a function that a method calls": lambda: made(sign="+"),
    "a constant of a base class": lambda: made(size=5),
    "a static method": lambda: made(name="b"),
    "the state": lambda: made("there"),
    "an array": lambda: made(np.arange(3)),
    "a longer array": lambda: made(np.arange(4)),
    "another dtype": lambda: made(np.arange(3, dtype=np.int32)),
    "a set": lambda: made({"x", "y"}),
    "a function": lambda: made(len),
    "another function": lambda: made(made),
}


def test_what_does_something_else_has_another_fingerprint() -> None:
    """Each of these is different from all others, and the same when it is made again."""
    found = [fingerprint(make()) for make in (made, *CHANGES.values())]
    assert None not in found
    assert len({*found}) == len(found)
    assert [fingerprint(make()) for make in (made, *CHANGES.values())] == found


def test_what_objects_share_makes_no_difference() -> None:
    """Equal parts of one object may be one object or two, which depends on the run."""
    text, others = str(10**9), [str(10**9), str(10**9)]
    assert fingerprint(made([text, text])) == fingerprint(made(others))


def test_a_large_array_is_looked_at_by_parts() -> None:
    """Its beginning and its length count, in any case."""
    array = np.zeros(2**25, np.uint8)
    before = fingerprint(made(array))
    array[0] = 1
    assert fingerprint(made(array)) != before
    assert fingerprint(made(array[:-4])) != fingerprint(made(array))


def test_a_dataset_may_say_its_fingerprint() -> None:
    """By its attribute, or as Hugging Face's do."""
    dataset = Images()
    dataset.fingerprint = "photographs 3"  # type: ignore[attr-defined]
    assert fingerprint(dataset) == "photographs 3"


@pytest.mark.parametrize("kind", ["itself", "a generator"])
def test_what_has_none(kind: str) -> None:
    """What contains itself, or what pickle refuses."""
    dataset = made()
    dataset.root = dataset if kind == "itself" else (number for number in range(3))
    assert fingerprint(dataset) is None
