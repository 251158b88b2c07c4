"""`ringfeed.datasets.Frozen`.

A list without its objects, and the plan's word about a list that has them.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringfeed
from ringfeed.datasets import Frozen
from ringfeed.transport.object_size import advice

if TYPE_CHECKING:
    from collections.abc import Sequence

ITEMS: dict[str, list[Any]] = {
    "nothing": [],
    "ints": [1, -(2**63), 2**63 - 1],
    "ints beyond 64 bits": [2**80, 1],
    "bools": [True, False],
    "floats": [1.5, float("inf"), -0.0],
    "NumPy's": [np.float32(1.5), np.float32(-2)],
    "strings": ["a", "", "Grüße", "\udcff", "\0"],
    "empty strings": ["", ""],
    "bytes": [b"", b"\x00xy"],
    "of several types": [1, "a", None, True, 1.0],
    "pairs": [(1, "a"), (2, "b")],
    "lists of any length": [[1, 2], [], [3]],
    "alike lists": [[1, "a"], [2, "b"]],
    "unlike lists": [[1, "a"], [2]],
    "dicts": [{"path": "a", "box": (1, 2)}, {"path": "b", "box": (3, 4)}],
    "dicts of other keys": [{"a": 1}, {"b": 1}],
    "dicts in another order": [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    "dicts of keys that are equal": [{True: 1}, {1: 1}, {1.0: 1}],
    "dicts of other keys that are equal": [{(1, "a"): 1}, {(True, "a"): 1}, {0.0: 1}, {-0.0: 1}],
    "dicts of numbers": [{0: 1, True: 2}, {0: 3, True: 4}],
    "empty structures": [(), ()],
    "empty dicts": [{}, {}],
    "sets": [{1, 2}, {3}],
    "paths": [Path("a"), Path("b/c")],
    "times": [np.timedelta64(1, "D"), np.timedelta64(1, "h")],
}


@pytest.mark.parametrize("name", ITEMS)
def test_items_come_back(name: str) -> None:
    """Equal, of the same type, also after a journey; dicts in the order that they had."""
    items = ITEMS[name]
    frozen = Frozen(items)
    for found in (frozen, pickle.loads(pickle.dumps(frozen)), Frozen(iter(items)), Frozen(frozen)):
        assert len(found) == len(items)
        assert repr(list(found)) == repr(items)
        assert list(map(type, found)) == list(map(type, items))


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)
NESTED = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(NESTED, max_size=8)
    | st.lists(st.tuples(st.text(), st.integers(), st.lists(st.floats(allow_nan=False))))
)
def test_any_items_come_back(items: list[Any]) -> None:
    """Whatever they hold."""
    assert repr(list(pickle.loads(pickle.dumps(Frozen(items))))) == repr(items)


def test_pickles_own_classes_are_told_of_no_persistent_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13.0 refuses that, of items and of a first sample in a fork."""

    class Refusing:
        def __setattr__(self, name: str, value: object) -> None:
            assert type(self).__name__ not in names or not name.startswith("persistent_")
            super().__setattr__(name, value)

    names = ("Pickler", "Unpickler")
    for name in names:
        monkeypatch.setattr(pickle, name, type(name, (Refusing, getattr(pickle, name)), {}))
    items = Frozen([{"x": 1}, {"x": 2}])
    with ringfeed.Loader(items, batch_size=2, workers=1, backend="fork") as loader:
        assert [batch["x"].tolist() for batch in loader] == [[1, 2]]


def test_arrays_come_back_read_only() -> None:
    """Of any length; unlike ones too."""
    alike = [np.arange(n, dtype=np.int32).reshape(-1, 1) for n in (3, 0, 5)]
    for items in (alike, [*alike, np.zeros(2)], [np.float32(1), np.zeros(())]):
        frozen = Frozen(items)
        assert all(
            a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(frozen, items, strict=True)
        )
    with pytest.raises(ValueError, match="read-only"):
        Frozen(alike)[0][0] = 1


PADDED = np.dtype(
    {"names": ["a", "b"], "formats": ["i1", ">f8"], "offsets": [0, 16], "itemsize": 32}
)


@pytest.mark.parametrize("dtype", [">i4", ">U3", PADDED])
def test_the_dtype_is_the_one_that_was_given(dtype: Any) -> None:
    """With its byte order and its padding."""
    frozen = Frozen([np.zeros(2, dtype), np.ones(1, dtype)])
    for found in (frozen, pickle.loads(pickle.dumps(frozen, 5))):
        assert [(item.dtype, item.dtype.itemsize) for item in found] == [
            (np.dtype(dtype), np.dtype(dtype).itemsize)
        ] * 2
        assert found[1][0] == np.ones(1, dtype)[0]


class Refusing:
    """Is pickled, and raises when it is made again."""

    def __reduce__(self) -> Any:
        return [].pop, ()


def test_an_items_own_index_error_is_no_end() -> None:
    """It comes out of the loop."""
    with pytest.raises(IndexError, match="pop from empty list"):
        list(Frozen([1, Refusing(), 2]))


def test_it_is_a_sequence() -> None:
    """Negative indices, NumPy's, slices, `in`, `index`."""
    frozen = Frozen(["a", "b", "c"])
    assert (frozen[-1], frozen[np.int64(1)], frozen[1:], frozen[::-2]) == (
        "c",
        "b",
        ["b", "c"],
        ["c", "a"],
    )
    assert "b" in frozen
    assert (frozen.index("c"), [*reversed(frozen)]) == (2, ["c", "b", "a"])
    assert repr(frozen) == "<Frozen of 3 items: 35 bytes>"


class Unpicklable:
    """Cannot travel."""

    def __reduce__(self) -> Any:
        raise RuntimeError("no way")


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ("abc", "items is of type str, expected a list or another iterable of items"),
        ({"a": 1}, "items is of type dict, expected a list or another iterable of items"),
        (7, "items is of type int, expected a list or another iterable of items"),
        (np.arange(3), "items is an array, which workers share as it is; leave it so"),
        (
            [1, Unpicklable()],
            "items[1] is of type Unpicklable, which cannot be pickled (no way); expected str, "
            "bytes, numbers, arrays, structures of them, or what pickle takes",
        ),
    ],
)
def test_what_is_refused(items: Any, text: str) -> None:
    """What is no list, or cannot be packed."""
    with pytest.raises(TypeError) as caught:
        Frozen(items)
    assert str(caught.value) == text


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_out_of_range(index: int) -> None:
    """As of a list, but that it says which."""
    with pytest.raises(IndexError) as caught:
        Frozen(["a", "b", "c"])[index]
    assert str(caught.value) == f"index {index} of a Frozen of 3 items"


# ---- in workers ----

PROGRAM = """
import dataclasses, enum, sys
import numpy as np
import ringfeed

class Kind(enum.Enum):
    ODD = 1
    EVEN = 0

@dataclasses.dataclass
class Item:
    number: int
    kind: Kind

class Items:
    def __init__(self):
        self.items = ringfeed.datasets.Frozen([Item(number, Kind(number % 2)) for number in range(50)])

    def __len__(self):
        return 50

    def __getitem__(self, index):
        item = self.items[index]
        assert type(item) is Item
        assert (item.kind is Kind.ODD) == item.number % 2
        return np.int64(item.number)

if __name__ == "__main__":
    assert Items().items[7] == Item(7, Kind.ODD)
    with ringfeed.Loader(Items(), batch_size=10, workers=1, backend=sys.argv[1]) as loader:
        print(sum(int(batch.sum()) for batch in loader))
"""


@pytest.mark.parametrize("backend", ["spawn", "process", "fork"])
def test_items_of_the_programs_own_classes_are_read_in_workers(
    backend: str, tmp_path: Path
) -> None:
    """No worker can import the main file, where most of them are."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), backend],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("1225\n", "")


MANY = 100_000


class Paths:
    """Reads every path of its stretch, and says what this process has to itself: bytes."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[int, int]:
        read = sum(len(path) for path in self.paths)
        mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
        own = [text for text in mappings if "memfd:" not in text.partition("\n")[0]]
        return read, 1024 * sum(
            int(kb) for kb in re.findall(r"Private_Dirty: +(\d+) kB", "\n".join(own))
        )


def private_in_worker(paths: Sequence[str], backend: Any) -> int:
    """Return what one worker has to itself after an epoch."""
    with ringfeed.Loader(Paths(paths), batch_size=1, workers=1, backend=backend) as loader:
        read, private = np.concatenate([np.stack(batch, -1) for batch in loader]).T
    assert (read == sum(map(len, paths))).all()
    return int(private[-1])


@pytest.mark.once
@pytest.mark.parametrize("backend", ["spawn", "process", "fork"])
def test_workers_have_no_copy(backend: Any) -> None:
    """A worker that has read all paths has hardly more private memory than one that read none."""
    script = [
        sys.executable,
        __file__,
        backend,
    ]  # by itself: pytest's pages become private where it goes on
    found = subprocess.run(script, capture_output=True, text=True, timeout=120, check=True)
    few, frozen, listed = map(int, found.stdout.split())
    assert frozen - few < 2_000_000
    assert listed - few > 6_000_000  # what it is about


def look(backend: str) -> None:
    """Print what a worker has to itself: without paths, with frozen ones, with a list of them."""
    paths = [
        f"/data/train/class_{number % 1000:04}/picture_{number:08}.jpg" for number in range(MANY)
    ]
    for held in (paths[:10], Frozen(paths), paths):
        print(private_in_worker(held, backend))  # noqa: T201 - to the test


# ---- the plan's word ----


class Holder:
    """Holds a dataset, and what else it is given."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


STRINGS = [f"picture_{number:012}" for number in range(100_000)]


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (
            Holder(paths=STRINGS, labels=[1] * 20_000),
            "dataset.paths, a list of 100,000 items, is some 10.4 MB in each worker that reads "
            "it: as ringfeed.datasets.Frozen(paths) it is one copy for all",
        ),
        (
            Holder(
                inner=Holder(
                    pairs=tuple((name, 1000 + number) for number, name in enumerate(STRINGS))
                )
            ),
            "dataset.inner.pairs, a tuple of 100,000 items, is some 20.8 MB in each worker that "
            "reads it: as ringfeed.datasets.Frozen(inner.pairs) it is one copy for all",
        ),
        (
            Holder(table={"path": STRINGS, "label": [1] * 100_000}),
            "dataset.table['path'], a list of 100,000 items, is some 10.4 MB in each worker that "
            "reads it: as ringfeed.datasets.Frozen(table['path']) it is one copy for all",
        ),
        (
            STRINGS,
            "dataset, a list of 100,000 items, is some 10.4 MB in each worker that reads it: as "
            "ringfeed.datasets.Frozen(dataset) "
            "it is one copy for all",
        ),
        (
            Holder(column=np.array(STRINGS, object)),
            "dataset.column, an object array of 100,000 items, is some 10.4 MB in each worker "
            "that reads it: as ringfeed.datasets.Frozen(column) it is one copy for all",
        ),
        (
            Holder(
                paths=STRINGS[:9999],
                text=np.array(STRINGS),
                square=np.full((300, 300), "a", object),
            ),
            "",
        ),
        (Holder(numbers=[1] * 100_000), ""),
        (Holder(paths=Frozen(STRINGS), array=np.zeros(10**6)), ""),
    ],
)
def test_a_large_list_is_named(dataset: Any, text: str) -> None:
    """The largest one, by what it takes in each worker, and the line to write."""
    assert re.sub(r"some [\d.]+ MB", "some N MB", advice(dataset)) == re.sub(
        r"some [\d.]+ MB", "some N MB", text
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_the_plan_says_it(workers: int) -> None:
    """Where other processes read it."""
    loader = ringfeed.Loader(Paths(STRINGS), workers=workers, backend="fork")
    assert ("ringfeed.datasets.Frozen(paths)" in str(loader.plan)) == bool(workers)
    assert (
        "Dataset.paths, a list of 100,000 items" in str(ringfeed.plan(Paths(STRINGS), workers=1))
    ) or not workers


if __name__ == "__main__":
    look(sys.argv[1])
