"""Reads the first sample in a process forked from this one, where nothing changes.

    answer_of(function)    what a function returns in such a process
    learn(source)          has a source know what it learns there

NamedTuples are pickled by their place in memory, which is the same in both processes: so those of a
spec are the user's own, local ones too.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import stat
import sys
import warnings
from contextlib import suppress
from fcntl import F_GETFL, fcntl
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._failure import decode, encode
from ringfeed.errors import StallError, WorkerError
from ringfeed.spec.spec import Spec
from ringfeed.system import channel as channels
from ringfeed.system.guard import Lifeline
from ringfeed.system.machine import check_futex, check_processes
from ringfeed.system.memory import keep_standard_descriptors
from ringfeed.workers.fork import forked
from ringfeed.workers.process import END_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ringfeed.datasets.base import Source
    from ringfeed.system._system import Descriptor

_NOTHING = object()


def answer_of(
    function: Callable[[], Any], timeout_s: float | None = None, *, apart: bool = False
) -> Any:
    """Return what a function returns in a forked process.

    What it raises there is raised here, and what it warns of is said here.
    WorkerError where the process dies, StallError where it does not answer in time.

    ``apart``: there it has nothing that is open here and can be written, or read but once.
    """
    check_futex()
    check_processes(1)
    keep_standard_descriptors()
    lifeline, classes = Lifeline(), _named_tuples()
    child = forked(lifeline, partial(_answer, function, lifeline.fds, classes, apart))
    try:
        answer, _ = channels.receive(child.channel, timeout_s)
    except TimeoutError:
        raise StallError(
            f"the first sample was not read in {timeout_s:g} s, in a process forked for it; raise "
            "timeout_s, give spec=, or use backend='process'"
        ) from None
    except EOFError:
        child.is_dead(END_S)
        raise WorkerError(
            f"the process that was to read the first sample {child.exit_reason()}; give spec= to "
            "have none read"
        ) from None
    finally:
        child.end(END_S)
        lifeline.close()
    for text, category, file, line in answer.get("warnings", ()):
        warnings.warn_explicit(text, category, file, line)
    if "broken" in answer:
        raise _error_of(answer["broken"])
    unpickler = _Unpickler(io.BytesIO(answer["pickled"]))
    unpickler.persistent_load = classes.__getitem__  # type: ignore[method-assign]
    return unpickler.load()


def _error_of(broken: bytes) -> BaseException:
    """Return the error.

    The caller raises it at once, so no frame of its traceback keeps it: no cycle.
    """
    failure = decode(broken)
    return failure.error or WorkerError(failure.summary)


def learn(source: Source, timeout_s: float | None) -> None:
    """Have a source learn in a forked process."""
    tree = [*_tree_of(source)]
    learnt = answer_of(partial(_learnt, tree), timeout_s)
    for one, found in zip(tree, learnt, strict=True):
        vars(one).update(found)


def _tree_of(source: Source) -> list[Source]:
    return [source, *(each for inner in source.members for each in _tree_of(inner))]


def _learnt(tree: list[Source]) -> list[dict[str, Any]]:
    """Return what sources have learnt, but for the dataset, which is where it was."""
    before = [dict(vars(one)) for one in tree]
    tree[0].learn()
    return [
        {
            name: value
            for name, value in vars(one).items()
            if name != "dataset" and old.get(name, _NOTHING) is not value
        }
        for one, old in zip(tree, before, strict=True)
    ]


def _answer(
    function: Callable[[], Any],
    lifeline: tuple[int, int],
    classes: dict[int, type],
    apart: bool,  # noqa: FBT001 - see above
    channel: Descriptor,
) -> None:
    """Answer, in the forked process."""
    answer: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as said:
        try:
            _open_anew({channel.fileno(), *lifeline}, apart=apart)
            answer["pickled"] = _pickled(function(), classes)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
            answer["broken"] = encode(error)
    answer["warnings"] = [
        (str(one.message), _found_here(one.category), one.filename, one.lineno) for one in said
    ]
    channels.send(channel, answer)


def _found_here(category: type[Warning]) -> type[Warning]:
    """Return a class of warnings that can be pickled."""
    is_found = (
        getattr(sys.modules.get(category.__module__), category.__qualname__, None) is category
    )
    return category if is_found else UserWarning


def _open_anew(kept: Collection[int], *, apart: bool) -> None:
    """Open anew the files that are read, since a fork shares positions with its parent.

    ``apart``: see `answer_of`. Without /proc there is no other way to open a file anew.
    """
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are enough
    except FileNotFoundError:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd in {*map(int, names)} - {*kept}:
        with suppress(OSError):  # closed meanwhile, or may not be opened again
            flags, kind, own = fcntl(fd, F_GETFL), os.fstat(fd).st_mode, null
            if stat.S_ISREG(kind) and flags & os.O_ACCMODE != os.O_WRONLY:
                flags = os.O_RDONLY if apart else flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
                own = os.open(f"/proc/self/fd/{fd}", flags)
                os.lseek(own, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
            elif not apart or not (
                fd in {0, 1, 2} or stat.S_IFMT(kind) in {stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK}
            ):
                continue
            os.dup2(own, fd, inheritable=False)
            if own != null:
                os.close(own)


def _named_tuples() -> dict[int, type]:
    """Return the classes of tuples of this process by their places in memory."""
    found: dict[int, type] = {}
    bases: list[type] = [tuple]
    for base in bases:  # which grows
        below: list[type] = type.__subclasses__(base)
        bases += below
        found.update((id(cls), cls) for cls in below)
    return found


class _Pickler(pickle.Pickler):
    """One that can be told of persistent ids: Python 3.13.0 refuses that for pickle's own."""


class _Unpickler(pickle.Unpickler):
    """See `_Pickler`; it reads what comes from our own fork."""


def _pickled(answer: object, classes: dict[int, type]) -> bytes:
    """Pickle specs as their trees, with NamedTuples by their places in memory."""
    stream = io.BytesIO()
    pickler = _Pickler(stream, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, Spec: lambda spec: (Spec, (spec.tree,))}
    pickler.persistent_id = (  # type: ignore[method-assign]
        lambda obj: id(obj) if id(obj) in classes else None
    )
    pickler.dump(answer)
    return stream.getvalue()
