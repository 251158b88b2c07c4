"""`ringfeed profile --script`: runs a script as it is, up to the loader that it reads first.

main ──▶ profile_script ── the script ──▶ torch's DataLoader.__iter__ or Keras' PyDatasetAdapter
                                                   │ patched when the script imports its framework
                        profile_subject ◀── Catcher ◀──┘
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.machinery
import os
import runpy
import signal
import sys
import threading
import traceback
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ringfeed._callers import frame_above, users_frame
from ringfeed._progress import showing
from ringfeed.errors import RingfeedError
from ringfeed.tools.loaders import profile_subject, subject_of
from ringfeed.tools.place import look_first

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator, Sequence

    from ringfeed.tools.reading import Limits

READINGS = 5  # at most, the steps of a batch included
START_S = 60.0  # of a reading, for workers to start and to end
BEGINNINGS = {
    "torch.utils.data.dataloader": ("DataLoader", "__iter__"),
    "ringfeed.torch.loader": ("DataLoader", "__iter__"),
    # ringfeed's adapter is derived from it, and calls its __init__.
    "keras.src.trainers.data_adapters.py_dataset_adapter": ("PyDatasetAdapter", "__init__"),
}
"""The methods that begin to read a loader, by the module of their class."""


class Catcher(ExitStack):
    """Profiles the loader that a script begins to read first, and ends the script.

    Between enter and exit the methods that begin to read are patched: those that are imported
    already at once, and the others, as a finder of modules, when the script imports them.
    """

    def __init__(self, limits: Limits) -> None:
        """Nothing is patched yet."""
        super().__init__()
        self.limits = limits
        self.has_profiled = False
        self.error: Exception | None = None
        # A profile begins to read loaders, too, and so may worker processes that are forked here.
        self._busy = threading.Lock()
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        """Patch what begins to read loaders."""
        for name in BEGINNINGS.keys() & sys.modules.keys():
            self._patch(sys.modules[name])
        sys.meta_path.insert(0, self)
        self.callback(sys.meta_path.remove, self)
        return self

    def find_spec(self, name: str, path: Sequence[str] | None, _target: object = None) -> Any:
        """Return what Python finds of these modules; each is patched as soon as it is there."""
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in BEGINNINGS else None
        if spec is not None and spec.loader is not None:
            own = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                own(module)
                self._patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _patch(self, module: types.ModuleType) -> None:
        class_name, method = BEGINNINGS[module.__name__]
        cls = getattr(module, class_name)
        own = getattr(cls, method)

        @functools.wraps(own)
        def begin(loader: Any, *given: Any, **settings: Any) -> Any:
            if method == "__init__":
                own(loader, *given, **settings)
                return self.take(loader.py_dataset, shuffle=loader.shuffle)
            self.take(loader)
            return own(loader, *given, **settings)

        setattr(cls, method, begin)
        self.callback(setattr, cls, method, own)

    def take(self, loader: Any, **settings: Any) -> None:
        """Profile a loader, print the report, and end the script; main() says an error."""
        if self._pid != os.getpid() or not self._busy.acquire(blocking=False):
            return
        try:
            subject, place = subject_of(loader, **settings), _place()
            sys.stdout.flush()
            with showing(), in_time(self.limits):
                found = profile_subject(subject, self.limits)
            sys.stdout.write(f"\n{place}{found}\n\n")
            self.has_profiled = True
        except Exception as error:  # noqa: BLE001 - main() says it
            self.error = error
        if threading.current_thread() is not (main := threading.main_thread()) and main.ident:
            signal.pthread_kill(main.ident, signal.SIGINT)  # SystemExit ends this thread alone
        raise SystemExit(0)


def profile_script(words: Sequence[str], limits: Limits) -> None:
    """Run a script with its arguments, up to the loader that it reads first, and profile that.

    RingfeedError where it ends before, or cannot be run.
    """
    script = Path(words[0])
    if not script.is_file():
        raise RingfeedError(
            f"there is no script {words[0]!r}; give a file, as in --script train.py --epochs 1"
        )
    ending = ""
    with Catcher(limits) as catcher:
        try:
            ending = _run(script, words)
        except KeyboardInterrupt:
            if not (catcher.has_profiled or catcher.error):
                raise
    if catcher.error is not None:
        raise catcher.error
    if not catcher.has_profiled:
        raise RingfeedError(f"{script.name} {ending}")


@contextmanager
def in_time(limits: Limits) -> Iterator[None]:
    """End this process, and show where it is, if the body takes too long.

    The user's code may wait for ever, also in C.
    """
    faulthandler.dump_traceback_later(READINGS * (START_S + limits.seconds), exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _place() -> str:
    """Return the line of the user's code that reads."""
    frame, _ = users_frame(frame_above(1))
    return (
        "" if frame is None else f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}: "
    )


def _run(script: Path, words: Sequence[str]) -> str:
    """Run a script as ``python`` does; returns how it ended, if it has read no loader."""
    argv, path = sys.argv, [*sys.path]
    sys.argv = [*words]
    look_first(str(script.resolve().parent))
    how = ""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        how = f"exited with {end.code!r}" if end.code not in {0, None} else ""
    except Exception as error:  # noqa: BLE001 - of the script
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals["__name__"] in {__name__, "runpy"}:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        how = f"raised {type(error).__name__}"
    finally:
        sys.argv, sys.path[:] = argv, path
    if how:
        return f"{how} before a loader was read"
    return (
        "has ended, and read neither a torch DataLoader nor a Keras PyDataset in this process; "
        "loaders that are read in processes that it starts, and other kinds, are not seen"
    )
