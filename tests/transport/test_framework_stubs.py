"""Frameworks stay out of workers: what refers to them travels without them.

Two made-up packages bear names of frameworks, so that no test here needs one; the real ones are
tested apart.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import textwrap
from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pytest

import travel
from ringfeed.transport import framework_stubs, imports, shared_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")

_PACKAGES = {
    "tf_keras/__init__.py": "from tf_keras import utils",
    "tf_keras/utils/__init__.py": "from tf_keras.src.utils.data_utils import Sequence",
    "tf_keras/src/__init__.py": "",
    "tf_keras/src/utils/__init__.py": "",
    "tf_keras/src/utils/data_utils.py": """
        class Sequence:
            def __init__(self, workers=1, use_multiprocessing=False, max_queue_size=10):
                self._workers, self._use_multiprocessing = workers, use_multiprocessing
                self._max_queue_size = max_queue_size
        """,
    "flax/__init__.py": "from flax import tools\nVERSION = '1'",
    "flax/tools.py": """
        class Box:
            def __init__(self, content): self.content = content
            @classmethod
            def of(cls, content): return cls(content)
            def __class_getitem__(cls, kind): return (cls.__name__, kind)
        class Wrong(Exception): pass
        def double(number): return 2 * number
        def name_of(self): return type(self).__name__
        """,
}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Two packages named as frameworks are, importable here and in workers: tf_keras and flax."""
    for name, text in _PACKAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("tf_keras"), importlib.import_module("flax")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tf_keras", "flax")]:
        del sys.modules[name]


def test_a_dataset_on_a_keras_base_works_without_keras(packages: Any) -> None:
    """The base is replaced.

    Settings, super(), and isinstance by any name of the base still work.
    """
    keras, _ = packages
    sequence = keras.utils.Sequence

    class Squares(keras.utils.Sequence):  # type: ignore[misc,name-defined]
        def __init__(self, size: int, **settings: Any) -> None:
            super().__init__(**settings)
            self.size = size

        def __len__(self) -> int:
            return self.size

        def __getitem__(self, index: int) -> Any:
            again = type(self)(self.size, workers=5)
            return (
                index * index,
                isinstance(self, sequence) and isinstance(self, keras.utils.Sequence),
                (
                    again.workers,
                    self.workers,
                    self.use_multiprocessing,
                    self.max_queue_size,
                    self.num_batches,
                ),
            )

    answer = travel.ask_loaded(Squares(9, workers=3, max_queue_size=7), lambda dataset: dataset[4])
    assert answer == ((16, True, (5, 3, False, 7, 9)), [], [])


def test_the_keras_stand_in_behaves_as_the_original() -> None:
    """Defaults hold without __init__, settings can be set, and hooks do nothing."""

    class Careless(framework_stubs.PyDataset):
        def __init__(self) -> None:
            pass

    dataset = Careless()
    assert (dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size) == (1, False, 10)
    dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size = 2, True, 3
    assert (dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size) == (2, True, 3)
    dataset.on_epoch_begin()
    dataset.on_epoch_end()
    with pytest.raises(NotImplementedError) as caught:
        dataset[0]
    assert str(caught.value) == "Careless has no __getitem__; define it"
    with pytest.raises(NotImplementedError) as caught:
        _ = dataset.num_batches
    assert str(caught.value) == "Careless has neither __len__ nor num_batches; define one"


def test_instances_of_the_real_base_are_instances_of_the_stand_in(packages: Any) -> None:
    """A dataset whose module does import the framework passes for a PyDataset all the same."""
    keras, _ = packages
    real = type("Real", (keras.utils.Sequence,), {})()
    assert isinstance(real, framework_stubs.PyDataset)
    assert not isinstance(real, framework_stubs.Dataset)
    assert not isinstance(real, type("Own", (framework_stubs.PyDataset,), {}))
    assert not isinstance(3, framework_stubs.PyDataset)


def test_bases_combine_with_abc_generic_dataclass_and_other_metaclasses(packages: Any) -> None:
    """A stand-in fits beside other bases.

    Where the user's own metaclass forbids it, the original stays.
    """
    keras, _ = packages

    class Meta(type):
        pass

    class WithABC(keras.utils.Sequence, ABC):  # type: ignore[misc,name-defined]
        pass

    class WithGeneric(keras.utils.Sequence, Generic[T]):  # type: ignore[misc,name-defined]
        pass

    @dataclass
    class WithFields(keras.utils.Sequence):  # type: ignore[misc,name-defined]
        size: int = 3

    class WithMeta(keras.utils.Sequence, metaclass=Meta):  # type: ignore[misc,name-defined]
        pass

    for kind in (WithABC, WithGeneric, WithFields):
        question = lambda dataset: type(dataset).__mro__[1].__module__  # noqa: E731
        assert travel.ask_loaded(kind(), question) == ("ringfeed.transport.framework_stubs", [], [])
    assert travel.ask_loaded(WithMeta(), lambda dataset: type(dataset).__mro__[1].__module__) == (
        "tf_keras.src.utils.data_utils",
        ["tf_keras"],
        [],
    )


def test_references_to_a_framework_cost_nothing_until_used(packages: Any) -> None:
    """Unused globals, closure variables, defaults, attributes and partials import nothing."""
    _, flax = packages
    box, double = flax.tools.Box, flax.tools.double

    class Uses:
        kind = flax.tools.Box
        static = staticmethod(flax.tools.double)

        def __init__(self) -> None:
            self.double = double
            self.kinds = flax.tools.Box
            self.partial = functools.partial(double, 4)

        def __getitem__(self, index: int, way: Any = double, *, other: Any = double) -> Any:
            if index == 0:
                return isinstance(index, box), issubclass(int, box), self.double == double, box == 0
            return (
                flax.VERSION,
                flax.tools.double(1),
                box(3).content,
                box.of(4).content,
                isinstance(self.kinds(3), box),
                self.double(5),
                self.partial(),
                self.static(6),
                self.kind(7).content,
                way(8),
                other(9),
                box[int][0],
                {box: 10}[flax.tools.Box],
                "Box" in dir(flax.tools),
                repr(box),
            )

    assert travel.ask_loaded(Uses(), lambda dataset: dataset[0]) == (
        (False, False, True, False),
        [],
        [],
    )
    values = ("1", 2, 3, 4, True, 10, 8, 12, 7, 16, 18, "Box", 10, True, "<lazy flax.tools:Box>")
    warning = travel.warning_of("test_framework_stubs.py line N (flax.VERSION,)", "flax")
    assert travel.ask_loaded(Uses(), lambda dataset: dataset[2]) == (values, ["flax"], [warning])


_ANNOTATED = """
from dataclasses import dataclass, field
from typing import Callable, NamedTuple, Optional
import flax

@dataclass
class Settings:
    size: int
    box: flax.tools.Box
    boxes: list[flax.tools.Box] = field(default_factory=list)

class Sample(NamedTuple):
    box: Optional[flax.tools.Box]
    label: int = 3

class Annotated:
    box: flax.tools.Box
    size: int
    def __init__(self): self.settings = Settings(1, None)
    def make(self, a: flax.tools.Box, b: Callable[[flax.tools.Box], int] = len) -> set[flax.tools.Box]: ...
    def __getitem__(self, index: int):
        return self.settings.size, Settings(2, None).boxes, Sample(None).label
"""


@pytest.mark.usefixtures("packages")
def test_annotations_of_a_framework_are_dropped_and_others_kept() -> None:
    """Annotations of methods, classes, dataclasses and named tuples import nothing."""
    space: dict[str, Any] = {"__name__": "__main__"}
    # Compiled apart, as the annotations of this module are strings.
    exec(compile(_ANNOTATED, "<script>", "exec", dont_inherit=True), space)  # noqa: S102

    def look(dataset: Any) -> Any:
        kind = type(dataset)
        return (
            dataset[0],
            list(kind.__annotations__),
            list(kind.make.__annotations__),
            dataset.settings.boxes,
        )

    expected: Any = ((1, [], 3), ["size"], [], [])
    assert travel.ask_loaded(space["Annotated"](), look) == (expected, [], [])


def test_a_framework_function_as_a_method_is_bound(packages: Any) -> None:
    """A method that is a framework's function gets the instance, as here."""
    _, flax = packages
    borrower = type("Borrower", (), {"name": flax.tools.name_of})()
    assert travel.ask(borrower, lambda dataset: dataset.name()) == "Borrower"


def test_a_class_made_in_the_worker_may_derive_from_a_lazy_one(packages: Any) -> None:
    """A class statement inside a method takes a lazy reference as its base."""
    _, flax = packages
    box = flax.tools.Box

    def derived(_: Any) -> Any:
        class Own(box):  # type: ignore[misc,valid-type]
            pass

        return Own(9).content, Own.__mro__[1].__module__

    assert travel.ask(None, derived) == (9, "flax.tools")


def test_what_is_set_on_a_lazy_module_is_set_on_the_real_one(packages: Any) -> None:
    """An assignment to a module's attribute reaches the module."""
    _, flax = packages

    def assign(_: Any) -> Any:
        flax.VERSION = "2"
        return sys.modules["flax"].VERSION

    assert travel.ask(None, assign) == "2"


def test_framework_instances_exceptions_and_bases_arrive_as_themselves(packages: Any) -> None:
    """Instances, exceptions to be caught, bases and classes in a list are the real ones."""
    _, flax = packages
    wrong = flax.tools.Wrong

    class Own(flax.tools.Box):  # type: ignore[misc,name-defined]
        def check(self) -> str:
            try:
                self.fail()
            except wrong as error:
                return str(error)
            return ""

        def fail(self) -> None:
            raise wrong("so")

    subject = (Own(flax.tools.Box(5)), [flax.tools.Box])

    def look(subject: Any) -> Any:
        own, kinds = subject
        return (
            own.content.content,
            own.check(),
            type(own).__mro__[1].__module__,
            kinds[0](6).content,
        )

    assert travel.ask(subject, look) == (5, "so", "flax.tools", 6)


def test_one_of_many_instances_may_have_a_lazy_attribute(packages: Any) -> None:
    """A class's first instances say nothing of one that has a framework's function or class."""
    _, flax = packages

    class Step:
        def __init__(self, function: Any) -> None:
            self.function = function

    steps = [Step(1), Step(len), Step(flax.tools.double), Step(2), Step(flax.tools.Box), Step(None)]
    answer = travel.ask_loaded(steps, lambda steps: [repr(step.function) for step in steps])
    lazy = "<lazy flax.tools:double>", "<lazy flax.tools:Box>"
    assert answer == (["1", "<built-in function len>", lazy[0], "2", lazy[1], "None"], [], [])


@pytest.mark.usefixtures("packages")
def test_lazy_references_can_travel_again() -> None:
    """What arrived lazy is still lazy when it is pickled once more."""
    module, lazy = (
        framework_stubs.LazyObject("flax.tools"),
        framework_stubs.LazyObject("flax.tools:double"),
    )
    answer = travel.ask_loaded([module, lazy], lambda pair: (repr(pair[0]), repr(pair[1])))
    assert answer == (("<lazy flax.tools>", "<lazy flax.tools:double>"), [], [])
    assert {lazy: 1}[framework_stubs.LazyObject("flax.tools:double")] == 1


@pytest.mark.usefixtures("packages")
def test_frameworks_loaded_names_their_roots() -> None:
    """The frameworks imported in this process are named by their root packages."""
    before = set(imports.frameworks_loaded())
    assert {"tf_keras", "flax"} <= before
    assert before <= set(framework_stubs.FRAMEWORKS)


def test_the_cheap_half_stays_cheap() -> None:
    """Importing what a worker needs to unpack imports neither NumPy nor cloudpickle."""
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}; from ringfeed.transport import unpacking; "
        "sys.exit(bool({'numpy', 'cloudpickle', 'dataclasses'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], timeout=travel.TIMEOUT_S, check=False)
    assert run.returncode == 0


def test_arrays_alone_need_no_cloudpickle() -> None:
    """A dataset that pickle can name needs no cloudpickle in the worker."""
    sent = shared_dataset.to_shared_memory(shared_dataset.pack(np.arange(5000)))
    assert sent
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}; from ringfeed.transport import unpacking; "
        f"assert unpacking.unpack({sent.manifest()!r}, {sent.fds})[7] == 7; "
        "sys.exit('cloudpickle' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, pass_fds=sent.fds, timeout=travel.TIMEOUT_S, check=False)
    assert run.returncode == 0
    sent.close()
