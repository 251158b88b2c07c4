"""Names of the classes of objects whose package need not be imported, and copies of objects."""

from __future__ import annotations

import copy
import sys
from typing import Any

_AS_BUILTINS = ("lmdb",)  # packages whose classes, written in C, say that they are of builtins
_ITERABLES = {"ringfeed.Interleave", "torch.IterableDataset", "datasets.IterableDataset"}


def module_of(cls: type) -> str:
    """Name the module of a class; "" where Cython's own metaclass has something else there."""
    module: object = cls.__module__
    if module == "builtins":
        return next(
            (
                one
                for one in _AS_BUILTINS
                if getattr(sys.modules.get(one), cls.__name__, None) is cls
            ),
            module,
        )
    return module if isinstance(module, str) else ""


def root_of(cls: type) -> str:
    """Name the root package of a class."""
    return module_of(cls).partition(".")[0]


def class_names(obj: Any) -> set[str]:
    """Name the classes of an object, each with its root package: "torch.Tensor"."""
    return {f"{root_of(base)}.{base.__name__}" for base in type(obj).__mro__}


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset has elements in order alone, without numbers; or is a function of such."""
    # Torch's inherits a __getitem__ that only raises; that of Hugging Face's gives a column.
    if class_names(dataset) & _ITERABLES:
        return True
    if callable(getattr(type(dataset), "__getitem__", None)):
        return False
    return callable(getattr(type(dataset), "__iter__", None)) or callable(dataset)


def fingerprint_of(dataset: Any) -> str | None:
    """Return what tells a dataset from others of its length and spec, as Hugging Face's have it."""
    for name in ("fingerprint", "_fingerprint"):
        if isinstance(found := getattr(dataset, name, None), str):
            return found
    return None


def keeps_state(found: Any) -> bool:
    """Whether an object says its state, and takes it again, as torch's and Hugging Face's do."""
    return all(callable(getattr(found, name, None)) for name in ("state_dict", "load_state_dict"))


def length_of(found: Any) -> int | None:
    """Return what ``len`` says of an object at this moment; None where it says nothing."""
    try:
        return len(found)
    except (TypeError, NotImplementedError):  # what Python and Keras raise where there is none
        return None


def copied(value: Any) -> Any:
    """Return a copy of a value that the user's code may change; parts without a copy are shared."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001, S110 - of objects of any package
        pass
    if type(value) is dict:
        return {key: copied(child) for key, child in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(copied, value))
    return value
