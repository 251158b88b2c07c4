"""`ringfeed profile --script`: runs a training script as it is, up to the loader that it reads first.

main ──▶ profile_script ── the script, as __main__ ──▶ torch's DataLoader.__iter__ or Keras' PyDatasetAdapter
                                                              │ patched when the script imports its framework
                              profile_subject ◀── Catcher ◀───┘
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import runpy
import signal
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfeed._callers import frame_above, frames_by_thread, users_frame
from ringfeed._progress import showing
from ringfeed.errors import RingfeedError
from ringfeed.tools.deadline import Backstop
from ringfeed.tools.loaders import is_loader, subject_of
from ringfeed.tools.place import look_first
from ringfeed.tools.subject import profile_subject
from ringfeed.tools.usage import descendants

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.tools.reading import Limits
    from ringfeed.tools.subject import Subject

FAILED = 2
PLACES = {
    "torch.utils.data.dataloader": ("DataLoader", "__iter__"),
    "ringfeed.torch.loader": ("DataLoader", "__iter__"),
    "keras.src.trainers.data_adapters.py_dataset_adapter": ("PyDatasetAdapter", "__init__"),
    "ringfeed.keras.fallback": ("RingAdapter", "__init__"),
}
"""The methods, by their modules, that begin to read a loader."""


class ProfiledExit(SystemExit):
    """Ends the script after its loader was profiled."""


class Catcher:
    """Profiles the loaders that a script begins to read."""

    def __init__(self, limits: Limits, number: int | None, *, goes_on: bool) -> None:
        """``number``: which one alone, from 1 on; None: the first, and where the script goes on, all."""
        self.limits = limits
        self.number = number
        self.goes_on = goes_on
        self.seen: list[str] = []
        self.profiled = 0
        self.error: Exception | None = None
        self._lock = threading.Lock()
        self._is_busy = False
        self._pid = os.getpid()  # worker processes that are forked from here may read loaders, too
        self._undo: list[Callable[[], object]] = []

    def take(self, loader: Any, **settings: Any) -> None:
        """Profile a loader that a line reads for the first time; raises ProfiledExit where the script is to end.

        Loaders of one line, dataset class and settings count as one: some scripts make a new one for each epoch.
        """
        with self._lock:
            if self._is_busy or self._pid != os.getpid() or not is_loader(loader):
                return
            self._is_busy = True
        try:
            subject, place = subject_of(loader, **settings), _place()
            if self._wants(f"{place}{subject.name}"):
                self._profile(subject, place)
        except Exception as error:  # noqa: BLE001 - main() says it
            self.error = error
        finally:
            self._is_busy = False
        if self.error is not None or (self.profiled and not self.goes_on):
            self._end()

    def _wants(self, name: str) -> bool:
        if name in self.seen:
            return False
        self.seen.append(name)
        return self.number in {None, len(self.seen)}

    def _profile(self, subject: Subject, place: str) -> None:
        sys.stdout.flush()
        with _bounded(f"{place}{subject.name}"), showing():
            found = profile_subject(subject, self.limits)
        sys.stdout.write(f"\n{place}{found}\n\n")
        sys.stdout.flush()
        self.profiled += 1

    def _end(self) -> None:
        if threading.current_thread() is threading.main_thread():
            raise ProfiledExit(0)
        if self.error is not None:
            sys.stderr.write(f"ringfeed profile: {self.error}\n")
        _end_process(FAILED if self.error is not None else 0)  # a thread cannot end the script by an exception

    # ---- in the frameworks' place ----

    def patch(self, module: types.ModuleType) -> None:
        """Have a framework's class tell when it begins to read a loader."""
        class_name, method = PLACES[module.__name__]
        cls = getattr(module, class_name)
        own = getattr(cls, method)
        self._undo.append(functools.partial(setattr, cls, method, own))
        setattr(cls, method, self._iter_told(own) if method == "__iter__" else self._init_told(own))

    def _iter_told(self, own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(own)
        def begin(loader: Any) -> Any:
            self.take(loader)
            return own(loader)

        return begin

    def _init_told(self, own: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(own)
        def make(adapter: Any, x: Any, *given: Any, **settings: Any) -> None:
            self.take(x, shuffle=settings.get("shuffle", False))
            own(adapter, x, *given, **settings)

        return make

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Patch what is imported in the body, or has been before."""
        finder = _Finder(self.patch)
        for name in PLACES:
            if name in sys.modules:
                self.patch(sys.modules[name])
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            for undo in reversed(self._undo):
                undo()


class _Finder:
    """Finds the modules of PLACES as Python does, and has them patched as soon as they are there."""

    def __init__(self, patch: Callable[[types.ModuleType], None]) -> None:
        self._patch = patch

    def find_spec(self, name: str, path: Sequence[str] | None, _target: object = None) -> Any:
        """Return what Python finds."""
        if name not in PLACES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            own, patch = spec.loader.exec_module, self._patch

            def exec_module(module: types.ModuleType) -> None:
                own(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def profile_script(words: Sequence[str], limits: Limits, *, number: int | None = None, goes_on: bool = False) -> None:
    """Run a script with its arguments, and profile the loader that it reads first, or that of a number; prints it.

    The script ends there, or ``goes_on``. RingfeedError where it ends before, or cannot be run.
    """
    script = Path(words[0])
    if not script.is_file():
        raise RingfeedError(f"there is no script {words[0]!r}; give a file, as in --script train.py --epochs 1")
    catcher = Catcher(limits, number, goes_on=goes_on)
    with catcher.watching():
        ending = _run(script, words)
    if catcher.error is not None:
        raise catcher.error
    if not catcher.profiled:
        raise RingfeedError(_missing(script.name, catcher, ending))
    if ending:
        raise RingfeedError(f"{script.name} went on after the profile, and {ending}")


def _place() -> str:
    """Return the line of the user's code that reads."""
    frame, _ = users_frame(frame_above(1))
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}: "


def _run(script: Path, words: Sequence[str]) -> str:
    """Run a script as ``python`` does; returns how it ended, if not by its last line or after the profile."""
    argv, path = sys.argv, [*sys.path]
    sys.argv = [*words]
    look_first(str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except ProfiledExit:
        return ""
    except SystemExit as end:
        return "" if end.code in {0, None} else f"exited with {end.code!r}"
    except Exception as error:  # noqa: BLE001 - of the script
        traceback.print_exception(type(error), error, _without_ours(error.__traceback__))
        return f"raised {type(error).__name__}"
    finally:
        sys.argv, sys.path[:] = argv, path
    return ""


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Leave out the frames of this module and of runpy, which come first."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in {__name__, "runpy"}:
        trace = trace.tb_next
    return trace


def _missing(name: str, catcher: Catcher, ending: str) -> str:
    if ending:
        return f"{name} {ending} before a loader was read"
    if catcher.seen:
        count = len(catcher.seen)
        loaders = "1 loader" if count == 1 else f"{count} loaders"
        return f"{name} reads {loaders}, and --loader {catcher.number} was asked for"
    return (
        f"{name} has ended, and read neither a torch DataLoader nor a Keras PyDataset in this process; loaders "
        f"that are read in processes that it starts, and other kinds, are not seen"
    )


# ---- a loader that does not come back ----


@contextmanager
def _bounded(what: str) -> Iterator[None]:
    """End the process where a step of the body does not end: C code may wait for ever, and no signal handler runs."""

    def end(seconds: float) -> None:
        sys.stderr.write(f"ringfeed profile: {what} does not come back within {seconds:g} s; it is at\n")
        traceback.print_stack(frames_by_thread().get(thread))
        _end_process(FAILED)

    thread = threading.get_ident()
    Backstop.call = end
    try:
        yield
    finally:
        Backstop.call = None


def _end_process(status: int) -> None:
    """End this process and all that it has started, at once.

    multiprocessing's resource tracker ends by itself, and removes named semaphores, which would else stay.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    for pid in descendants():
        with suppress(OSError):  # it has ended meanwhile
            if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    os._exit(status)
