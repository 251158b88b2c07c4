"""`ringfeed profile --script`: runs a training script as it is, up to the loader that it reads first.

main ──▶ profile_script ── the script ──▶ torch's DataLoader.__iter__ or Keras' PyDatasetAdapter
                                                   │ patched when the script imports its framework
                        profile_subject ◀── Catcher ◀──┘
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import runpy
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ringfeed._callers import frame_above, frames_by_thread, users_frame
from ringfeed._progress import showing
from ringfeed.errors import RingfeedError
from ringfeed.tools.loaders import profile_subject, subject_of
from ringfeed.tools.place import look_first
from ringfeed.tools.reading import children

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.tools.loaders import Subject
    from ringfeed.tools.reading import Limits

FAILED = 2
KERAS = "keras.src.trainers.data_adapters.py_dataset_adapter"
CLASSES = {
    "torch.utils.data.dataloader": "DataLoader",
    "ringfeed.torch.loader": "DataLoader",
    KERAS: "PyDatasetAdapter",  # ringfeed's is derived from it, and calls its __init__
}
"""The classes, by their modules, that begin to read a loader."""


class ProfiledExit(SystemExit):
    """Ends the script after its loader was profiled."""


class Catcher:
    """Profiles the loaders that a script begins to read; as a finder of modules, patches what reads them."""

    def __init__(self, limits: Limits, number: int | None, *, goes_on: bool) -> None:
        """``number``: which one alone, from 1 on; None: the first, and where the script goes on, all."""
        self.limits = limits
        self.number = number
        self.goes_on = goes_on
        self.seen: list[str] = []
        self.profiled = 0
        self.error: Exception | None = None
        self._busy = (
            threading.Lock()
        )  # held while a loader is profiled, which begins to read loaders, too
        self._pid = os.getpid()  # worker processes that are forked from here may read loaders, too
        self._undo: list[Callable[[], object]] = []

    def take(self, loader: Any, **settings: Any) -> None:
        """Profile a loader that a line reads for the first time; raises ProfiledExit where the script is to end.

        Loaders of one line, dataset class and settings count as one: some scripts make a new one
        for each epoch.
        """
        if self._pid != os.getpid() or not self._busy.acquire(blocking=False):
            return
        try:
            subject, place = subject_of(loader, **settings), _place()
            if (name := f"{place}{subject.name}") not in self.seen:
                self.seen.append(name)
                if self.number in {None, len(self.seen)}:
                    self._profile(subject, place)
        except Exception as error:  # noqa: BLE001 - main() says it
            self.error = error
        finally:
            self._busy.release()
        if self.error is not None or (self.profiled and not self.goes_on):
            self._end()

    def _profile(self, subject: Subject, place: str) -> None:
        thread = threading.get_ident()

        def end(seconds: float) -> None:
            """End the process: C code may wait for ever, and no signal handler runs."""
            what = f"{place}{subject.name} does not come back within {seconds:g} s; it is at"
            sys.stderr.write(f"ringfeed profile: {what}\n")
            traceback.print_stack(frames_by_thread().get(thread))
            _end_process(FAILED)

        sys.stdout.flush()
        with showing():
            found = profile_subject(subject, self.limits._replace(stuck=end))
        sys.stdout.write(f"\n{place}{found}\n\n")
        sys.stdout.flush()
        self.profiled += 1

    def _end(self) -> None:
        if threading.current_thread() is threading.main_thread():
            raise ProfiledExit(0)
        if self.error is not None:
            sys.stderr.write(f"ringfeed profile: {self.error}\n")
        _end_process(
            FAILED if self.error is not None else 0
        )  # a thread cannot end the script by an exception

    # ---- in the frameworks' place ----

    def patch(self, module: types.ModuleType) -> None:
        """Have a framework's class tell when it begins to read a loader."""
        cls = getattr(module, CLASSES[module.__name__])
        method = "__init__" if module.__name__ == KERAS else "__iter__"
        own = getattr(cls, method)
        self._undo.append(functools.partial(setattr, cls, method, own))

        @functools.wraps(own)
        def begin(loader: Any) -> Any:
            self.take(loader)
            return own(loader)

        @functools.wraps(own)
        def make(adapter: Any, x: Any, class_weight: Any = None, shuffle: bool = False) -> None:  # noqa: FBT001, FBT002
            self.take(x, shuffle=shuffle)
            own(adapter, x, class_weight, shuffle)

        setattr(cls, method, make if method == "__init__" else begin)

    def find_spec(self, name: str, path: Sequence[str] | None, _target: object = None) -> Any:
        """Return what Python finds of these modules; each is patched as soon as it is there."""
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in CLASSES else None
        if spec is not None and spec.loader is not None:
            own = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                own(module)
                self.patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Patch what is imported in the body, or has been before."""
        for name in CLASSES:
            if name in sys.modules:
                self.patch(sys.modules[name])
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            for undo in reversed(self._undo):
                undo()


def profile_script(
    words: Sequence[str], limits: Limits, *, number: int | None = None, goes_on: bool = False
) -> None:
    """Run a script with its arguments, and profile the loader that it reads first, or that of a number; prints it.

    The script ends there, or ``goes_on``. RingfeedError where it ends before, or cannot be run.
    """
    script = Path(words[0])
    if not script.is_file():
        raise RingfeedError(
            f"there is no script {words[0]!r}; give a file, as in --script train.py --epochs 1"
        )
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
    return (
        "" if frame is None else f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}: "
    )


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
        f"{name} has ended, and read neither a torch DataLoader nor a Keras PyDataset in this "
        "process; loaders that are read in processes that it starts, and other kinds, are not seen"
    )


def _end_process(status: int) -> None:
    """End this process and all that it has started, at once.

    multiprocessing's resource tracker ends by itself, and removes named semaphores, which would
    else stay.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    for process in children():
        with suppress(psutil.Error):  # it has ended meanwhile
            if "resource_tracker" not in " ".join(process.cmdline()):
                process.kill()
    os._exit(status)
