"""What takes a framework's place in a worker.

No worker imports a framework unless its dataset uses it.

    class DS(keras.utils.PyDataset)      ->  class DS(framework_stubs.PyDataset)
    class DS(torch.utils.data.Dataset)   ->  class DS(framework_stubs.Dataset)
    the global ``tf`` of a method        ->  LazyObject("tensorflow")
    the global ``load_img`` of a method  ->  LazyObject("keras.src.utils.image_utils:load_img")

Where Keras' helpers are called, `keras_helpers` answers, if it can.

A worker imports this module for nearly every dataset: it stays light, and so does all that it
imports.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from types import ModuleType
from typing import Any, Generic, TypeVar

from ringfeed._callers import FRAMEWORKS
from ringfeed.transport.imports import watched

_KERAS_MODULES = ("py_dataset_adapter", "data_utils")

T_co = TypeVar("T_co", covariant=True)


def of_framework(name: object) -> bool:
    """Whether a dotted module name lies in one of the frameworks."""
    return isinstance(name, str) and name.partition(".")[0] in FRAMEWORKS


def resolve(path: str) -> object:
    """Return the real object behind ``package.module`` or ``package.module:name``, imported now.

    Where that imports a framework, one warning in the process names the cost.
    """
    # pkgutil costs a worker a millisecond that only frameworks should pay.
    import pkgutil  # noqa: PLC0415

    with watched():
        found: object = pkgutil.resolve_name(path)
    return found


def _setting(place: str) -> property:
    """Return a setting that lies where Keras keeps it, so that the state of an instance fits."""
    return property(
        lambda dataset: getattr(dataset, place),
        lambda dataset, value: setattr(dataset, place, value),
    )


class _Standin(metaclass=ABCMeta):  # noqa: B024 - for its isinstance
    """A framework-free base of a worker's copy of a dataset."""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        """Count classes on the real base too.

        They arrive where a user's own module imports the framework.
        """
        return any(standin_for(base) is cls for base in other.__mro__) or NotImplemented

    def __getitem__(self, index: int) -> Any:
        """To be defined by the dataset."""
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__; define it")


class PyDataset(_Standin):
    """The framework-free base of a worker's copy of a Keras ``PyDataset`` or ``Sequence``."""

    def __init__(
        self,
        workers: int = 1,
        use_multiprocessing: bool = False,  # noqa: FBT001, FBT002 - as Keras has it
        max_queue_size: int = 10,
    ) -> None:
        self.workers = workers
        self.use_multiprocessing = use_multiprocessing
        self.max_queue_size = max_queue_size

    # For a dataset whose __init__ does not call this one.
    _workers = 1
    _use_multiprocessing = False
    _max_queue_size = 10
    workers = _setting("_workers")
    use_multiprocessing = _setting("_use_multiprocessing")
    max_queue_size = _setting("_max_queue_size")

    @property
    def num_batches(self) -> int | None:
        """The length, where the dataset has one."""
        if hasattr(self, "__len__"):
            return len(self)
        raise NotImplementedError(
            f"{type(self).__name__} has neither __len__ nor num_batches; define one"
        )

    def on_epoch_begin(self) -> None:
        """Do nothing: the place for a dataset's own hook."""

    def on_epoch_end(self) -> None:
        """Do nothing: the place for a dataset's own hook."""


class Dataset(_Standin, Generic[T_co]):
    """The framework-free base of a worker's copy of a torch ``Dataset``."""


def standin_for(original: type) -> type | None:
    """Return the stand-in for one of the frameworks' dataset bases, None for any other class."""
    module = original.__module__
    if not of_framework(module):
        return None
    if (
        original.__name__ in ("PyDataset", "Sequence")
        and module.rpartition(".")[2] in _KERAS_MODULES
    ):
        return PyDataset
    return (
        Dataset if (module, original.__name__) == ("torch.utils.data.dataset", "Dataset") else None
    )


def standin(name: str) -> type:
    """Return the stand-in of that name; a pickle calls this where it would name the original."""
    return {"PyDataset": PyDataset, "Dataset": Dataset}[name]


class ModulePart(ModuleType):
    """A module of the user, partly sent; any other attribute imports the real module."""

    def __getattr__(self, name: str) -> object:
        """Look in the real module."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(resolve(self.__name__), name)

    def __reduce__(self) -> Any:
        held = {name: value for name, value in vars(self).items() if name != "__builtins__"}
        return ModulePart, (self.__name__,), held


def with_members(module: ModuleType, members: dict[str, Any]) -> ModuleType:
    """Return the part of a module, to which these members belong as well."""
    vars(module).update(members)
    return module


# What a framework has under these names is a module, wherever it is.
_MODULES = frozenset(
    ("keras", "_tf_keras", "utils", "preprocessing", "image", "sequence", "data", "numpy")
)
_HELPERS = frozenset(("load_img", "img_to_array", "to_categorical", "pad_sequences"))
_OF_KERAS = ("keras", "tensorflow")
_DTYPES = frozenset(  # what NumPy takes for a dtype, as it has a ``dtype``
    (
        *("bool_", "float16", "float32", "float64"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    )
)


def _without_import(module: str, name: str) -> object:
    """Return what a framework's module answers with where it is not imported; None: it must be."""
    root = module.partition(".")[0]
    if module == "torch.utils.data" and name == "Dataset":
        return Dataset
    if module.endswith(".utils") and name in ("PyDataset", "Sequence"):
        return PyDataset
    is_helper = name in _HELPERS and root in _OF_KERAS
    is_dtype = name in _DTYPES and module == "jax.numpy"
    if is_helper or is_dtype or name in _MODULES:
        return LazyObject(f"{module}.{name}")
    return None


class LazyObject:
    """A framework's module, function or class, imported when it is first used.

    On the way to a dataset base (``keras.utils.PyDataset``) a module answers with the stand-in and
    imports nothing; so it does for Keras' helpers and JAX's dtypes. ``isinstance`` against a class
    needs no import: before the framework is here, nothing is an instance of it.
    """

    __slots__ = ("_path",)
    _path: str

    def __init__(self, path: str) -> None:
        """Stand for ``package.module`` or ``package.module:qualified.name``."""
        object.__setattr__(self, "_path", path)

    def __getattribute__(self, name: str) -> Any:
        """Return what the real one has, but for what pickle and class statements ask."""
        if name in ("_path", "__class__", "__reduce__", "__reduce_ex__", "__mro_entries__"):
            return object.__getattribute__(self, name)
        if name == "__isabstractmethod__":
            return False
        module, own = _parted(self._path)
        if name in ("dtype", "__numpy_dtype__") and module == "jax.numpy" and own in _DTYPES:
            import numpy as np  # noqa: PLC0415 - which the caller has

            return np.dtype(own.rstrip("_"))
        known = None if ":" in self._path else _without_import(self._path, name)
        return getattr(resolve(self._path), name) if known is None else known

    def __setattr__(self, name: str, value: object) -> None:
        """Set on the real one."""
        setattr(resolve(self._path), name, value)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the real one, unless it is a helper whose answer is known."""
        module, name = _parted(self._path)
        is_helper = name in _HELPERS and module.partition(".")[0] in _OF_KERAS
        if is_helper and "keras" not in sys.modules:
            from ringfeed.transport import keras_helpers as _helpers  # noqa: PLC0415

            answer: object = _helpers.answer(name, args, kwargs)
            if answer is not NotImplemented:
                return answer
        return resolve(self._path)(*args, **kwargs)  # type: ignore[operator]

    def __getitem__(self, parameters: object) -> object:
        return resolve(self._path)[parameters]  # type: ignore[index]

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, _if_here(self._path))

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, _if_here(self._path))

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[object, ...]:
        """Let a class that is made in the worker derive from the real one."""
        return (resolve(self._path),)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyObject):
            return self._path == other._path
        real = _if_here(self._path)
        return bool(real) and bool(real == other)

    def __hash__(self) -> int:
        return hash(resolve(self._path))  # as the real one compares equal

    def __reduce__(self) -> tuple[type[LazyObject], tuple[str]]:
        return LazyObject, (self._path,)

    def __repr__(self) -> str:
        return f"<lazy {self._path}>"


def named_lazily(cls: type) -> LazyObject:
    """Return what imports a class by its name.

    As a base, it does so when the derived class is made.
    """
    return LazyObject(f"{cls.__module__}:{cls.__qualname__}")


def _parted(path: str) -> tuple[str, str]:
    """Return the module of a path, and the name in it."""
    module, _, name = path.replace(":", ".").rpartition(".")
    return module, name


def _if_here(path: str) -> Any:
    """Return what is behind a path, or an empty tuple where its module is not imported."""
    return resolve(path) if path.partition(":")[0] in sys.modules else ()
