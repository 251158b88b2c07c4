"""How an iterable is begun: at its start, or where a state of its own says.

An iterable has states of its own where it has ``state_dict()`` and ``load_state_dict()``, as the
iterable datasets of Hugging Face and torchdata's loaders do, or else where the iterator does that
it returns.
"""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import threading
import warnings
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ringfeed._callers import callers_depth
from ringfeed._classes import class_names, copied, keeps_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringfeed.datasets.base import Source
    from ringfeed.datasets.states import State


class Peekable:
    """An iterable of which elements are read ahead; its first epoch has them nevertheless.

    It may keep its place in itself, as an iterator or a queue does, so that they would not come
    again.
    """

    def __init__(self, iterable: Any, iterator: Iterator[Any] | None = None) -> None:
        """``iterator``: of the iterable, where that has begun, in this thread."""
        self.iterable = iterable
        self._iterator = iterator
        self._first: list[Any] = []
        self._is_spent = False
        self._thread = threading.get_ident()

    def __len__(self) -> int:
        return len(self.iterable)

    def _begun(self) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = iter(self.iterable)
        return self._iterator

    def peek(self) -> Any:
        """Return one more element ahead of the first epoch."""
        element = next(self._begun())
        self._first.append(copied(element))
        return element

    def __iter__(self) -> Iterator[Any]:
        """Go on, once; then begin anew, which an iterator that was interrupted cannot."""
        first, self._first = self._first, []
        is_own = is_iterator(self.iterable)
        if self._is_spent:
            if is_own:
                raise ValueError(
                    f"an iterator ({type(self.iterable).__name__}) was interrupted, and cannot be "
                    "read again"
                )
            return iter(opened(self.iterable))
        self._is_spent, rest, self._iterator = True, self._begun(), None
        if threading.get_ident() != self._thread and not is_own:
            rest = self._in_another_thread(rest, len(first))
        return chain(first, rest)

    def _in_another_thread(self, rest: Iterator[Any], count: int) -> Iterator[Any]:
        """Yield what follows the first elements.

        Some iterators, such as SQLite's, can be read by the thread alone that has begun them. Where
        the next element raises an error, the iterable is begun anew here, which raises the user's
        own errors once more.
        """
        try:
            yield next(rest)
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - of any package
            rest = islice(opened(self.iterable), count, None)
        yield from rest

    # ---- the states of an iterator ----

    @property
    def has_state(self) -> bool:
        """Whether the iterator has states; not while several elements are read ahead."""
        return len(self._first) <= 1 and is_iterator(self.iterable) and has_state(self.iterable)

    def state_dict(self) -> Any:
        """Return the iterator's state."""
        return self.iterable.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Load a state into the iterator, and drop what was read ahead."""
        self.iterable.load_state_dict(state)
        self._first, self._iterator, self._is_spent = [], None, False


def is_iterator(iterable: Any) -> bool:
    """Whether it can be read but once, as generators, files, zip() and map() can."""
    return callable(getattr(type(iterable), "__next__", None)) and callable(
        getattr(type(iterable), "__iter__", None)
    )


def has_state(found: Any) -> bool:
    """Whether it has states of its own: ``state_dict`` is callable without arguments."""
    if isinstance(found, Peekable):
        return found.has_state
    if not keeps_state(found):
        return False
    try:
        inspect.signature(found.state_dict).bind()
    except TypeError:  # MosaicML's and Lightning's ask for the number of samples
        return False
    except ValueError:  # C code does not say what it takes
        pass
    return not _has_shuffle_buffer(found)


def _has_shuffle_buffer(dataset: Any) -> bool:
    """Whether a buffer of Hugging Face's shuffles the elements: its states leave the buffer out."""
    if "datasets.IterableDataset" not in class_names(dataset):
        return False
    waiting = [getattr(dataset, "_ex_iterable", None)]
    while waiting:
        part = waiting.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        if part is not None:
            waiting += [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())]
    return False


def opened(iterable: Any) -> Any:
    """Return an iterable, or what it returns where it is a function; TypeError for what is none."""
    found = iterable if hasattr(type(iterable), "__iter__") else iterable()
    if not hasattr(type(found), "__iter__") and not hasattr(type(found), "__getitem__"):
        raise TypeError(
            f"the dataset is a function that returned a {type(found).__name__}, expected an "
            "iterable"
        )
    return found


def fresh(iterable: Any) -> Any:
    """Return a copy of an iterable that has states, to be read in its place.

    Some begin at the last state they were loaded with for ever, others where they were left. The
    copy shares the memory of arrays where pickle lets it; an iterable that cannot be copied is read
    itself.
    """
    if isinstance(iterable, Peekable) or getattr(iterable, "ringfeed_goes_on", False):
        return iterable
    buffers: list[pickle.PickleBuffer] = []
    try:
        return pickle.loads(  # noqa: S301
            pickle.dumps(iterable, 5, buffer_callback=buffers.append), buffers=buffers
        )
    except Exception:  # noqa: BLE001, S110 - of any class
        pass
    try:
        return copy.deepcopy(iterable)
    except Exception:  # noqa: BLE001 - a file, a lock
        return iterable


def begin(iterable: Any, state: State | None = None) -> tuple[Iterator[Any], Any]:
    """Begin an iterable; returns its iterator, and what has its states, if anything has.

    ``state`` is loaded, unless nothing has states.
    """
    found = opened(iterable)
    owner = found if has_state(found) else None
    # A function may return again what it returned before.
    if owner is not None and (found is iterable or state is not None):
        found = owner = fresh(found)
    if owner is not None and state is not None:
        owner.load_state_dict(json.loads(state.text))
    iterator = iter(found)
    if owner is None and has_state(iterator):
        owner = iterator
        if state is not None:
            owner.load_state_dict(json.loads(state.text))
    return iterator, owner


def tell_idle(source: Source, workers: int) -> None:
    """Warn that workers have nothing to do, where other loaders let each read a part."""
    names = class_names(source.given) & {"torch.IterableDataset", "datasets.IterableDataset"}
    if source.streams == 1 and names:
        warnings.warn(
            f"workers={workers}, but one worker reads an iterable, and no other is started; have "
            "several side by side by ringfeed.datasets.Interleave of its parts, or a copy in each "
            "worker by ringfeed.torch.DataLoader",
            UserWarning,
            stacklevel=callers_depth(),
        )
