"""Modules of the user whose import would import a framework travel by value, in parts.

All others by their names.

A made-up package bears the name of a framework, so that no test here needs one.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import zipfile
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest

import ringfeed
import travel
from ringfeed.errors import ShipError
from ringfeed.transport import modules as _modules
from ringfeed.transport import shared_dataset, unpacking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]

_FLAX = """
class Layer: pass
def act(number): return number
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Write files of the user, importable here and in workers, and import the first.

    Flax is there as a framework.
    """
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    names = {"flax"}

    def written(files: dict[str, str]) -> Any:
        for name, text in {"flax": _FLAX, **files}.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(text))
            names.add(path.relative_to(tmp_path).parts[0].removesuffix(".py"))
        importlib.invalidate_caches()
        first = next(iter(files))
        return importlib.import_module(first.replace("/", "."))

    yield written
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in names:
            del sys.modules[name]
    for name in names & set(sys.modules):
        del sys.modules[name]


def loaded(_: Any) -> Any:
    """Return which modules of these tests a worker has imported."""
    import sys  # noqa: PLC0415 - of the worker

    roots = ("flax", "mine", "tools", "pkg")
    return sorted(name for name in sys.modules if name.partition(".")[0] in roots)


def ask(subject: Any) -> Any:
    """Return sample 3 of a dataset in a worker, and what has been imported there."""
    return travel.ask(subject, lambda dataset: (dataset[3], loaded(None)))


ANY = """
import flax
class Numbers:
    def __len__(self): return 8
    def __getitem__(self, index): return index
    def layer(self): return flax.Layer()
"""


def test_a_class_of_a_module_with_a_framework_brings_neither_in(write: Any) -> None:
    """A dataset of train.py works in a worker that imports neither train.py nor the framework."""
    assert ask(write({"mine": ANY}).Numbers()) == (3, [])


def test_other_modules_are_imported_by_name(write: Any) -> None:
    """A module of the user without a framework is imported as ever."""
    assert ask(write({"mine": ANY.replace("import flax", "")}).Numbers()) == (3, ["mine"])


def test_a_module_that_leads_to_a_framework_through_others_travels_by_value(write: Any) -> None:
    """What counts is what an import would bring in, at whatever distance.

    A helper without one is imported.
    """
    mine = write(
        {
            "mine": """
        from pkg.data import Base
        import tools
        class Mine(Base):
            def __getitem__(self, index): return tools.double(super().__getitem__(index))
        """,
            "tools": "def double(number): return 2 * number",
            "pkg/__init__": "from pkg.model import Model",
            "pkg/model": "import flax\nclass Model(flax.Layer): pass",
            "pkg/data": "class Base:\n    def __getitem__(self, index): return index + 1",
        }
    )
    assert ask(mine.Mine()) == (8, ["tools"])


def test_a_package_is_not_charged_with_submodules_that_others_import(write: Any) -> None:
    """A module beside one with a framework is imported by name.

    The package itself needs no framework.
    """
    data = write(
        {
            "pkg/data": "class Base:\n    def __getitem__(self, index): return index + 1",
            "pkg/__init__": "",
            "pkg/model": "import flax",
        }
    )
    importlib.import_module("pkg.model")
    assert ask(data.Base()) == (4, ["pkg", "pkg.data"])


RICH = """
import dataclasses, enum, functools, logging, typing
import flax
import pkg.sub
import tools as helpers
from flax import act

MISSING = object()
SCALE = 3
COUNT = 0
T = typing.TypeVar("T")
log = logging.getLogger(__name__)
FILE = __file__
REGISTRY = {}

def register(cls):
    REGISTRY[cls.__name__] = cls
    return cls

def counted():
    global COUNT
    COUNT += 1
    return COUNT

@functools.lru_cache
def squared(number): return number * number

class Split(enum.Enum):
    TRAIN = 1
    TEST = 2

class Base(typing.Generic[T]):
    seen = 0
    def __init__(self): self.split, self.missing = Split.TEST, MISSING
    def name(self): return "base"
    @staticmethod
    def doubled(number): return 2 * number

@dataclasses.dataclass
class Point:
    x: int
    layer: "flax.Layer" = None

class WrongError(ValueError): pass
class Network(flax.Layer): pass

@register
class Rich(Base[int]):
    __slots__ = ("extra",)
    point = Point(4)
    def __getitem__(self, index, other=MISSING):
        return {ANSWER}
    def name(self): return "rich " + super().name()
    def factory(self): return Other(self)
    def network(self): return Network()

class Other:
    def __init__(self, owner): self.ok = isinstance(owner, Rich) and type(owner) is REGISTRY["Rich"]
"""
# The package and its module refer to each other.
PACKAGE = {
    "pkg/__init__": "",
    "pkg/sub": "import flax, pkg.sub\ndef tripled(number): return 3 * number",
}
TOOLS = """
import flax
SIZE = 5
class Tool:
    size = SIZE
def resize(number): return number * SIZE
def set_size(size):
    global SIZE
    SIZE = size
"""
RAISES = """
def raise_it(index):
    import sys
    raise WrongError(f"row {index}", [name for name in ("flax", "mine", "tools") if name in sys.modules])
"""
HOOKED = """
import flax
class Hooked:
    epoch = 0
    def __init__(self): self.epoch = 0
    def __len__(self): return 4
    def __getitem__(self, index): return SCALE * self.epoch + index
    def on_epoch_end(self): self.epoch += 1
SCALE = 10
"""
ANSWERS = {
    "super": ("self.name()", "rich base"),
    "enumeration": ("(self.split is Split.TEST, Split(2) is self.split)", (True, True)),
    "a class that refers to another, and back": ("self.factory().ok", True),
    "a registry": ("sorted(REGISTRY)", ["Rich"]),
    "a dataclass": ("(self.point.x, dataclasses.replace(self.point, x=5) == Point(5))", (4, True)),
    "a default that is a mark": ("other is MISSING", True),
    "a cache": ("(squared(index), squared(index), squared.cache_info().hits)", (9, 9, 1)),
    "a global that a function changes": ("(counted(), counted(), COUNT)", (1, 2, 2)),
    "a class attribute that is changed": ("(setattr(Base, 'seen', 7), self.seen)[1]", 7),
    "the names of the module": ("(__name__, FILE == __file__, log.name)", ("mine", True, "mine")),
    "an error": ("issubclass(WrongError, ValueError)", True),
    "a model that is not used": ("isinstance(index, Network)", False),
    "another module": ("(helpers.resize(2), helpers.Tool().size)", (10, 5)),
    "another module's global": (
        "(helpers.set_size(7), helpers.SIZE, helpers.resize(1))[1:]",
        (7, 7),
    ),
    "a static method": ("Base.doubled(index)", 6),
    "an attribute of a module in a package": ("pkg.sub.tripled(index)", 9),
    "a type variable": ("(T.__name__, Base[int] is not None)", ("T", True)),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_module_by_value_behaves_as_one_that_was_imported(case: str, write: Any) -> None:
    """What a method sees of its module is what it sees here, and nothing is imported for it."""
    expression, expected = ANSWERS[case]
    mine = write({"mine": RICH.replace("{ANSWER}", expression), "tools": TOOLS, **PACKAGE})
    assert ask(mine.Rich()) == (expected, [])


def test_what_is_used_of_a_framework_is_imported_then(write: Any) -> None:
    """A method that makes a model has the real one: the module is imported for it."""
    mine = write(
        {
            "mine": RICH.replace("{ANSWER}", "type(self.network()).__mro__[1].__module__"),
            "tools": TOOLS,
            **PACKAGE,
        }
    )
    assert ask(mine.Rich()) == ("flax", ["flax", "mine", "pkg", "pkg.sub", "tools"])


BY_REFERENCE = {
    "a lock": "import threading\nLOCK = threading.Lock()\ndef hidden():\n    with LOCK: return 1",
    "a metaclass": (
        "class Meta(type): pass\nclass Kind(metaclass=Meta): number = 1\ndef hidden(): return "
        "Kind.number"
    ),
    "a hook": """
class Kind:
    kinds = []
    def __init_subclass__(cls, number): cls.kinds.append(number)
class Other(Kind, number=1): pass
def hidden(): return Other.kinds[0]""",
    "an import of itself": (
        "def hidden():\n    from mine import Numbers\n    return int(isinstance(ONE, Numbers))"
    ),
}


@pytest.mark.parametrize("case", BY_REFERENCE)
def test_what_cannot_travel_by_value_is_imported_as_ever(case: str, write: Any) -> None:
    """A module with something unpicklable, or with code that would run again, goes by name."""
    text = (
        ANY.replace("return index", "return index + hidden()")
        + BY_REFERENCE[case]
        + "\nONE = Numbers()\n"
    )
    dataset = write({"mine": text}).Numbers()
    before = set(cloudpickle.list_registry_pickle_by_value())
    for _ in range(2):
        assert ask(dataset) == (4, ["flax", "mine"])
    assert set(cloudpickle.list_registry_pickle_by_value()) == before


def test_a_dataset_that_cannot_travel_says_what_it_said(write: Any) -> None:
    """The message about an unpicklable attribute is as ever, and the module stays by value."""
    dataset = write({"mine": ANY}).Numbers()
    dataset.file = (i for i in range(3))
    before = set(cloudpickle.list_registry_pickle_by_value())
    with pytest.raises(ShipError) as caught:
        shared_dataset.pack(dataset)
    assert str(caught.value).startswith(
        "dataset.file is a generator and cannot be sent to a worker process; "
    )
    del dataset.file
    assert ask(dataset) == (3, [])
    assert set(cloudpickle.list_registry_pickle_by_value()) == before


def test_a_relative_import_inside_a_function_finds_its_package(write: Any) -> None:
    """A module by value knows its package."""
    data = write(
        {
            "pkg/data": """
        import flax
        class Numbers:
            def __getitem__(self, index):
                from . import plain
                from .plain import one
                return plain.one + one + index
        """,
            "pkg/__init__": "",
            "pkg/plain": "one = 1",
        }
    )
    assert ask(data.Numbers()) == (5, ["pkg", "pkg.plain"])


def test_a_module_in_a_zip_file_travels_by_value(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zipped project is the user's own as well."""
    write({"tools": "import flax"})
    with zipfile.ZipFile(tmp_path / "project.zip", "w") as file:
        file.writestr("zipped_of_mine.py", ANY)
    monkeypatch.syspath_prepend(tmp_path / "project.zip")
    zipped = importlib.import_module("zipped_of_mine")
    try:
        assert ask(zipped.Numbers()) == (3, [])
    finally:
        del sys.modules["zipped_of_mine"]


def test_installed_modules_are_never_by_value() -> None:
    """The standard library, site-packages and ringfeed itself are imported by name."""
    names = (
        "json",
        "logging",
        "os",
        "numpy",
        "cloudpickle",
        "ringfeed",
        "ringfeed.transport.shared_dataset",
        "__main__",
        "no_such_module",
    )
    assert not any(map(_modules.by_value, names))


def test_a_global_of_a_module_by_value_is_sent_with_each_version(write: Any) -> None:
    """A version is the same where nothing of it has changed, as with a script's globals."""
    mine = write({"mine": RICH.replace("{ANSWER}", "SCALE"), "tools": TOOLS, **PACKAGE})
    dataset = mine.Rich()
    first = shared_dataset.to_shared_memory(shared_dataset.pack(dataset))
    assert first is not None
    try:
        assert shared_dataset.to_shared_memory(shared_dataset.pack(dataset), first) is None
    finally:
        first.close()
    assert ask(dataset) == (3, [])
    mine.SCALE = 4
    assert ask(dataset) == (4, [])


def test_the_classes_of_two_versions_are_the_same(write: Any) -> None:
    """A worker that has two versions sees one class."""
    mine = write({"mine": RICH.replace("{ANSWER}", "other is MISSING"), "tools": TOOLS, **PACKAGE})
    dataset = mine.Rich()

    def both(versions: Any) -> Any:

        first = unpacking.unpack(*versions[0])
        second = unpacking.unpack(*versions[1])
        return type(second) is type(first), second[0], second.number

    first = shared_dataset.to_shared_memory(shared_dataset.pack(dataset))
    assert first is not None
    dataset.number = 1
    second = shared_dataset.to_shared_memory(shared_dataset.pack(dataset), first)
    assert second is not None
    question = cloudpickle.dumps(both)
    script = (
        f"import sys, pickle; sys.path[:] = {sys.path!r}\n"
        f"print(pickle.loads({question!r})({[(each.manifest(), each.fds) for each in (first, second)]}))"
    )
    fds = first.fds + second.fds
    try:
        command = [sys.executable, "-c", script]
        found = subprocess.run(
            command, pass_fds=fds, capture_output=True, text=True, timeout=240, check=False
        )
    finally:
        first.close()
        second.close()
    assert (found.stdout, found.stderr) == ("(True, True, 1)\n", "")


def test_an_error_of_a_module_by_value_is_the_users_own(write: Any) -> None:
    """The cause is of the consumer's class, and no worker has imported the module for it."""
    mine = write(
        {"mine": RICH.replace("{ANSWER}", "raise_it(index)") + RAISES, "tools": TOOLS, **PACKAGE}
    )
    spec = ringfeed.Array((), "int64")
    loader = ringfeed.Loader(mine.Rich(), sampler=range(4), batch_size=4, workers=1, spec=spec)
    with loader, pytest.raises(ringfeed.WorkerError) as caught:
        list(loader)
    cause = caught.value.__cause__
    assert type(cause) is mine.WrongError
    assert cause.args == ("row 0", [])
    del caught, cause


def test_an_error_that_travels_by_value_is_the_users_own_untouched() -> None:
    """So is one of a script: a worker sends no copy of what the class has."""

    class OwnError(ValueError):
        def words(self) -> str:
            return "own"

    class Failing:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            raise OwnError(index)

    words = OwnError.words
    spec = ringfeed.Array((), "int64")
    loader = ringfeed.Loader(Failing(), sampler=range(4), batch_size=4, workers=1, spec=spec)
    with loader, pytest.raises(ringfeed.WorkerError) as caught:
        list(loader)
    cause = caught.value.__cause__
    assert type(cause) is OwnError
    assert OwnError.words is words
    assert cause.args == (0,)
    del caught, cause


def test_a_run_over_a_module_by_value_ships_what_its_hook_changes(write: Any) -> None:
    """Batches of several epochs are right, where a hook changes the dataset."""
    mine = write({"mine": HOOKED})
    for backend in ("spawn", "process"):
        with ringfeed.Loader(mine.Hooked(), batch_size=4, workers=2, backend=backend) as loader:
            epochs = [[batch.tolist() for batch in loader] for _ in range(3)]
        assert epochs == [[[10 * epoch + row for row in range(4)]] for epoch in range(3)]
