"""Each worker opens its own files, sockets and connections; a fork shares none."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import logging
import mmap
import multiprocessing
import socket
import sqlite3
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.orders._permute import walk
from ringfeed.transport.unpicklable import refuse_to_share

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.once

COUNT = 40
METHODS = ["spawn", "fork", "process"]
REMEDY = (
    "and forked workers would share it with this process, its position too; open it on first use "
    "in __getitem__, in the worker, and close it here, or use backend='process' with a "
    "__getstate__ that leaves it out"
)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A file of numbers."""
    np.arange(COUNT).tofile(tmp_path / "rows")
    return str(tmp_path / "rows")


def reading(path: str | os.PathLike[str]) -> Any:
    """The file, to be read."""
    return Path(path).open("rb")


class Lazy:
    """Opens its file on first use, as the documents of torch and h5py ask for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: Any = None
        self.opened = False

    def __len__(self) -> int:
        return COUNT

    def open(self) -> Any:
        if not self.opened:  # a flag beside the file
            self.file = reading(self.path)
            self.opened = True
        return self.file

    def __getitem__(self, index: int) -> Any:
        self.open().seek(index * 8)
        return np.frombuffer(self.file.read(8), np.int64)[0]


class LazyAttribute(Lazy):
    """Has no attribute before the first use."""

    def open(self) -> Any:
        if not hasattr(self, "handle"):
            self.handle = reading(self.path)
        self.file = self.handle
        return self.file


class Cached(Lazy):
    """Opens by a function that remembers."""

    def open(self) -> Any:
        self.file = None
        return opened(self.path)

    def __getitem__(self, index: int) -> Any:
        file = self.open()
        file.seek(index * 8)
        return np.frombuffer(file.read(8), np.int64)[0]


class InClass(Lazy):
    """Keeps its file in the class."""

    handle: Any = None

    def open(self) -> Any:
        if InClass.handle is None:
            InClass.handle = reading(self.path)
        return InClass.handle

    __getitem__ = Cached.__getitem__


class InTable(Lazy):
    """Keeps its files in a table and a list, both there before."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.files: dict[str, Any] = {}
        self.shards: list[Any] = [None]

    def open(self) -> Any:
        if self.path not in self.files:
            self.files[self.path] = self.shards[0] = reading(self.path)
        return self.shards[0]

    __getitem__ = Cached.__getitem__


class LongToMeasure(Lazy):
    """Opens its file to know its length, and has hooks that change it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.base = 0

    def __len__(self) -> int:
        self.open()
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + self.base

    def on_epoch_end(self) -> None:
        """Reach the workers."""
        self.base += 100


class Database(Lazy):
    """Rows of SQLite."""

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = sqlite3.connect(self.path)
        return self.file.execute("SELECT value FROM numbers WHERE id = ?", (index,)).fetchone()[0]


class Wrapping:
    """A dataset over another, as torch's Subset is."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


class Numbered:
    """As the class below pathlib's since Python 3.13: it has a slot."""

    __slots__ = ("number",)


class Where(Numbered):
    """A path with a property where its base has the slot."""

    __slots__ = ("path",)
    number = property(lambda _: object())

    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return self.path

    def __reduce__(self) -> Any:
        return Where, (self.path,)


class Slotted:
    """A dataset without a __dict__."""

    __slots__ = ("file", "path")

    def __init__(self, path: str) -> None:
        self.path = Where(path)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if not hasattr(self, "file"):
            self.file = reading(self.path)
        self.file.seek(index * 8)
        return np.frombuffer(self.file.read(8), np.int64)[0]


class Stream:
    """An iterable that keeps the file it reads."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.file = reading(self.path)
        while piece := self.file.read(8):
            yield np.frombuffer(piece, np.int64)[0]


class Environment:
    """As LMDB's, whose class says that it is one of Python's own."""

    __module__ = "builtins"

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'Environment' object")


def test_an_environment_of_lmdb_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known by its class in the package."""
    monkeypatch.setitem(sys.modules, "lmdb", ModuleType("lmdb"))
    monkeypatch.setattr(sys.modules["lmdb"], "Environment", Environment, raising=False)
    with pytest.raises(ringfeed.ShipError) as caught:
        refuse_to_share([Environment()])
    assert str(caught.value) == f"dataset[0] is a lmdb.Environment object, {REMEDY}"


@functools.lru_cache(maxsize=4)
def opened(path: str) -> Any:
    """A file that is opened once."""
    return reading(path)


def epoch(dataset: Any, method: str, epochs: int = 1, **settings: Any) -> list[int]:
    """All numbers that two workers give in some epochs."""
    with ringfeed.Loader(
        dataset, batch_size=4, workers=2, backend=method, copy=True, **settings
    ) as loader:
        return np.concatenate([batch for _ in range(epochs) for batch in loader]).tolist()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [Lazy, LazyAttribute, Cached, InClass, InTable, Slotted, Stream])
def test_each_worker_opens_its_own_file(kind: Callable[[str], Any], method: str, rows: str) -> None:
    """A file opened on first use is opened anew in each worker.

    Here, what reads sample 0 leaves the dataset alone.
    """
    dataset = kind(rows)
    before = {name: getattr(dataset, name, None) for name in ("file", "opened", "handle")}
    assert epoch(dataset, method) == list(range(COUNT))
    assert {name: getattr(dataset, name, None) for name in before} == before or kind is InClass
    if method == "fork" or kind not in {
        Cached,
        InClass,
    }:  # which keep the file in a module that is imported
        assert rows not in map(_target, Path("/proc/self/fd").iterdir())
    _close_kept(rows)


def _close_kept(path: str) -> None:
    """Close the files that sample 0 has opened in this module."""
    opened(path).close()
    opened.cache_clear()
    InClass.handle = InClass.handle and InClass.handle.close()


def _target(fd: Path) -> str:
    with contextlib.suppress(OSError):
        return str(fd.readlink())
    return ""


@pytest.mark.parametrize("method", METHODS)
def test_a_dataset_below_another_opens_anew(method: str, rows: str) -> None:
    """A wrapped dataset opens its file in each worker, however deep it lies."""
    assert epoch(Wrapping(Wrapping(Lazy(rows))), method) == list(range(COUNT))


@pytest.mark.parametrize("method", METHODS)
def test_a_closure_opens_anew(method: str, rows: str) -> None:
    """A file that a function keeps in a closure variable is opened anew."""

    def reader() -> Callable[[int], Any]:
        file: Any = None

        def read(index: int) -> Any:
            nonlocal file
            file = file or reading(rows)
            file.seek(index * 8)
            return np.frombuffer(file.read(8), np.int64)[0]

        return read

    class Read:
        def __init__(self) -> None:
            self.read = reader()

        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            return self.read(index)

    assert epoch(Read(), method) == list(range(COUNT))


@pytest.mark.parametrize("method", METHODS)
def test_a_database_is_connected_by_each_worker(method: str, tmp_path: Path) -> None:
    """SQLite forbids to use a connection in a forked process."""
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as database, database:
        database.execute("CREATE TABLE numbers (id INTEGER PRIMARY KEY, value INTEGER)")
        database.executemany(
            "INSERT INTO numbers VALUES (?, ?)", [(number, number) for number in range(COUNT)]
        )
    assert epoch(Database(str(tmp_path / "db")), method) == list(range(COUNT))


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # Python 3.13 says it
@pytest.mark.parametrize("method", ["spawn", "process"])  # a fork has no copy to count
def test_hooks_and_a_length_that_open_files(method: str, rows: str) -> None:
    """The dataset is sent anew after a hook, also where len() opens what cannot be sent."""
    expected = [number + base for base in (0, 100, 200) for number in range(COUNT)]
    assert epoch(LongToMeasure(rows), method, epochs=3) == expected


def test_whole_batches_and_a_spec(rows: str) -> None:
    """With a spec nothing is read here, and nothing opened; whole batches are probed alike."""
    dataset = Lazy(rows)
    assert epoch(dataset, "spawn", spec=ringfeed.Array((), "int64")) == list(range(COUNT))

    class Whole(Lazy):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[None]

    with ringfeed.Loader(Whole(rows), batch_size=None, workers=1, copy=True) as loader:
        assert [batch.tolist() for batch in loader] == [[number] for number in range(COUNT)]


def test_h5py_files_opened_on_first_use(tmp_path: Path) -> None:
    """The pattern of h5py's users works with each start method."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = np.arange(COUNT)

    class Rows(Lazy):
        def __getitem__(self, index: int) -> Any:
            if self.file is None:
                self.file = h5py.File(self.path, "r")["x"]
            return self.file[index]

    for method in METHODS:
        assert epoch(Rows(str(tmp_path / "rows.h5")), method) == list(range(COUNT))
    with h5py.File(tmp_path / "rows.h5") as file:
        with pytest.raises(ringfeed.ShipError) as caught:
            refuse_to_share({"x": file["x"]})
        assert str(caught.value) == f"dataset['x'] is an h5py object (Dataset), {REMEDY}"
    refuse_to_share({"x": file, "empty": h5py.Empty("f4")})


@pytest.mark.parametrize("method", METHODS)
def test_what_sample_0_changes_reaches_no_worker(method: Any) -> None:
    """A count of reads begins in the worker, and in this process nothing is read."""

    class Building(Wrapping):
        def __getitem__(self, index: int) -> Any:
            self.reads = getattr(self, "reads", 0) + 1
            return self.reads

    dataset = Building(range(3))
    with ringfeed.Loader(dataset, batch_size=1, workers=1, copy=True, backend=method) as loader:
        assert not hasattr(dataset, "reads")
        assert [int(batch[0]) for batch in loader] == [1, 2, 3]


def test_threads_keep_what_they_have_opened(rows: str) -> None:
    """Where this process reads, nothing is undone."""
    for settings in ({"workers": 0}, {"workers": 1, "backend": "thread"}):
        dataset = Lazy(rows)
        with ringfeed.Loader(dataset, batch_size=4, copy=True, **settings) as loader:
            assert dataset.opened
            assert np.concatenate(list(loader)).tolist() == list(range(COUNT))
        dataset.file.close()


# ---- what a fork may share, and what not ----


def _opened_lazy(path: Path) -> Any:
    lazy = Lazy(str(path))
    lazy.open()
    return Wrapping(lazy)


def _zipped(path: Path) -> Any:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"a")
    return [zipfile.ZipFile(path)]


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "file": (lambda path: {"f": path.open("rb")}, "dataset['f'] is an open file ({path!r})"),
    "text": (lambda path: [path.open()], "dataset[0] is an open file ({path!r})"),
    "unbuffered": (
        lambda path: (1, path.open("rb", buffering=0)),
        "dataset[1] is an open file ({path!r})",
    ),
    "updated": (lambda path: [path.open("r+b")], "dataset[0] is an open file ({path!r})"),
    "lazy": (_opened_lazy, "dataset.inner.file is an open file ({path!r})"),
    "partial": (
        lambda path: functools.partial(len, path.open("rb")),
        "dataset.args[0] is an open file ({path!r})",
    ),
    "zip": (_zipped, "dataset[0].fp is an open file ({path!r})"),
    "temporary": (lambda _: [tempfile.NamedTemporaryFile()], "dataset[0].file is an open file"),  # noqa: SIM115
    "socket": (lambda _: [socket.socket()], "dataset[0] is a socket"),
    "database": (lambda _: [sqlite3.connect(":memory:")], "dataset[0] is a database connection"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_files_sockets_and_connections_are_not_forked(case: str, tmp_path: Path) -> None:
    """What forked workers would read from together is refused with the way to it."""
    path = tmp_path / "rows"
    path.write_bytes(bytes(64))
    make, where = REFUSED[case]
    with pytest.raises(ringfeed.ShipError) as caught:
        refuse_to_share(make(path))
    text = str(caught.value)
    del caught
    gc.collect()  # here, where their warning is expected
    assert text.startswith(where.format(path=str(path)))
    assert text.endswith(f", {REMEDY}")


def test_a_loader_that_forks_refuses_an_open_file(rows: str) -> None:
    """At its start, and for what was opened since, at its first epoch."""
    dataset = Lazy(rows)
    with ringfeed.Loader(dataset, workers=1, backend="fork") as loader:
        dataset.open()
        for make in (
            lambda: iter(loader),
            lambda: ringfeed.Loader(dataset, workers=1, backend="fork"),
        ):
            with pytest.raises(ringfeed.ShipError) as caught:
                make()
            assert str(caught.value) == f"dataset.file is an open file ({rows!r}), {REMEDY}"
        dataset.file.close()
        dataset.opened = False
        assert sum(len(batch) for batch in loader) == COUNT


def test_a_global_with_the_name_of_an_attribute_is_not_the_datasets(
    rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may keep a file open under the name by which its dataset calls its own."""
    with reading(rows) as kept:
        monkeypatch.setitem(globals(), "handle", kept)
        refuse_to_share(LazyAttribute(rows))
        monkeypatch.setitem(globals(), "reading", kept)
        with pytest.raises(ringfeed.ShipError) as caught:
            refuse_to_share(LazyAttribute(rows))
    where = "dataset.open: global 'reading'"
    assert str(caught.value).startswith(f"{where} is an open file ({rows!r}), and forked workers")


HELPERS = """
import numpy as np

file = None

def row(path, index):
    global file
    if file is None:
        file = open(path, "rb")
    file.seek(index * 8)
    return np.frombuffer(file.read(8), np.int64)[0]
"""


@pytest.fixture
def helped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package of the user's, whose module ``helpers`` opens a file on first use."""
    (tmp_path / "rows_of_mine").mkdir()
    (tmp_path / "rows_of_mine" / "__init__.py").touch()
    (tmp_path / "rows_of_mine" / "helpers.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("rows_of_mine.helpers")
    package = importlib.import_module("rows_of_mine")
    yield package
    if package.helpers.file is not None:
        package.helpers.file.close()
    for name in ("rows_of_mine", "rows_of_mine.helpers"):
        sys.modules.pop(name)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["by the module", "by an import"])
def test_a_function_of_another_module_opens_anew(
    how: str, method: str, rows: str, helped: ModuleType
) -> None:
    """What `helpers.row(i)` opens, each worker opens for itself.

    What was open before a fork is refused.
    """

    class ByModule(Lazy):
        def __getitem__(self, index: int) -> Any:
            return helped.helpers.row(self.path, index)

    class ByImport(Lazy):
        def __getitem__(self, index: int) -> Any:
            from rows_of_mine.helpers import row  # type: ignore[import-not-found]  # noqa: PLC0415

            return row(self.path, index)

    dataset = ByModule(rows) if how == "by the module" else ByImport(rows)
    assert epoch(dataset, method) == list(range(COUNT))
    if method == "fork":
        assert helped.helpers.file is None
    helped.helpers.row(rows, 0)
    refuse_to_share(Lazy(rows))
    with pytest.raises(ringfeed.ShipError) as caught:
        refuse_to_share(dataset)
    label = "variable 'helped.helpers" if how == "by the module" else "import 'rows_of_mine.helpers"
    where = f"dataset.__getitem__: {label}.row': global 'file'"
    assert str(caught.value) == f"{where} is an open file ({rows!r}), {REMEDY}"


def test_what_may_be_shared_is_forked(tmp_path: Path) -> None:
    """What may be shared is not refused.

    Such are standard streams, logs, files only written, memory, maps and multiprocessing's own.
    """
    (tmp_path / "rows").write_bytes(bytes(mmap.PAGESIZE))
    handler = logging.FileHandler(tmp_path / "log", "w+")
    logger = logging.getLogger("test_opened")
    logger.addHandler(handler)
    with (tmp_path / "rows").open("r+b") as file:
        closed = mmap.mmap(file.fileno(), 0)
    with (tmp_path / "out").open("ab") as written:
        context = multiprocessing.get_context("fork")
        refuse_to_share(
            {
                "streams": [sys.stdout, sys.stderr, sys.stdin, sys.__stdout__, sys.__stderr__],
                "log": [logger, handler, logging.StreamHandler()],
                "memory": [io.BytesIO(b"a"), io.StringIO("a")],
                "written": written,
                "closed": file,
                "maps": [closed, np.memmap(tmp_path / "rows", mode="r")],
                "processes": [
                    context.Lock(),
                    context.Queue(),
                    context.Event(),
                    context.Value("i", 1),
                ],
            }
        )
    logger.removeHandler(handler)
    handler.close()


def test_a_dataset_with_compiled_functions_is_forked() -> None:
    """Cython's function types are no files either.

    Their metaclass has a ``__module__`` that is no text.
    """
    refuse_to_share(functools.partial(walk, [1]))


def test_large_containers_are_looked_into_only_so_far() -> None:
    """A list of a million entries costs no more than one of ten thousand."""
    refuse_to_share([[number] for number in range(100_000)])
