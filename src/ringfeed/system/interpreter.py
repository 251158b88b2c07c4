"""A fresh interpreter with this one's path, flags and environment.

It never imports the user's main module. To multiprocessing it is a child of this process's: see
`family`.
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfeed._process import Worker
from ringfeed.errors import WorkerError
from ringfeed.system._system import Child, Descriptor
from ringfeed.system.machine import reason

if TYPE_CHECKING:
    from collections.abc import Iterator

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
# Until sys.path is the consumer's, only what is built into the interpreter is imported. Whatever
# that path has now, a module that the consumer has from the standard library comes from there.
# What else this process has open and would be inherited is closed.
_CODE = """
import sys, marshal, posix
from _frozen_importlib_external import PathFinder
with open(int(sys.argv.pop()), "rb") as file:
    order = marshal.load(file)
class Library:
    def find_spec(name, path=None, target=None):
        if path is None and name in order["names"]:
            return PathFinder.find_spec(name, order["library"])
sys.meta_path.insert(0, Library)
sys.path[:] = order["path"]
order["lost"] and posix.chdir("/")
try:
    opened = {*map(int, posix.listdir("/proc/self/fd"))}
except FileNotFoundError:
    opened = set()
for fd in opened - {0, 1, 2, *order["fds"]}:
    try:
        posix.get_inheritable(fd) and posix.close(fd)
    except OSError:
        pass
__import__(order["module"], fromlist=["main"]).main(*order["arguments"], *order["fds"])
"""


@contextmanager
def explained() -> Iterator[None]:
    """Turn the kernel's refusal of another process into a WorkerError with the reason."""
    try:
        yield
    except OSError as error:
        raise WorkerError(f"no worker can be started: {reason(error)}") from error


def surroundings() -> dict[str, Any]:
    """Return what a new interpreter takes over: environment, working directory, module path.

    The directory is "" where it is gone.
    """
    here = ""
    with suppress(OSError):
        here = str(Path.cwd())
    path = [str.__str__(entry) or here for entry in sys.path if isinstance(entry, str)]
    environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
    return {"environment": environment, "here": here, "path": [entry for entry in path if entry]}


def start_interpreter(module: str, fds: tuple[int, ...], *arguments: str) -> Child:
    """Start an interpreter that calls ``main(*arguments, *fds)`` of a module.

    Not by Popen, which can lose it to Ctrl-C and waits for copies of its pipe in others.
    """
    if not sys.executable:
        raise WorkerError(
            "sys.executable does not say which Python runs here, so no worker can be started; set "
            "it"
        )
    around = surroundings()
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - as it stands on sys.path
    folders = [library, os.path.join(library, "lib-dynload")]  # noqa: PTH118 - likewise
    order = {
        "module": module,
        "arguments": arguments,
        "fds": fds,
        "path": around["path"],
        "lost": not around["here"],
        "library": folders,
        "names": [
            name
            for name in sys.stdlib_module_names & sys.modules.keys()
            if _folder_of(name) in folders
        ],
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    # In a file, as an argument is at most 128 KiB.
    with Descriptor(os.memfd_create, "ringfeed-order", os.MFD_CLOEXEC) as file:
        os.fchmod(file.fileno(), 0o600)
        os.pwrite(file.fileno(), marshal.dumps(order), 0)
        return Child(
            os.posix_spawn,
            sys.executable,
            # -P: since 3.13 Python imports modules before it runs _CODE.
            [sys.executable, *flags, "-P", "-c", _CODE, str(file.fileno())],
            around["environment"],
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                # To the same number: it is inherited.
                *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in (*fds, file.fileno())),
            ],
            setsid=True,  # so that Ctrl-C does not reach it before it can say that it wants none
        )


def _folder_of(name: str) -> str:
    """Return the folder from which a module was imported; "" where it comes from none."""
    module = sys.modules.get(name)  # another thread may have removed it meanwhile
    file = getattr(module, "__file__", None) or ""
    package = os.path.dirname(file) if hasattr(module, "__path__") else file  # noqa: PTH120
    return os.path.dirname(package)  # noqa: PTH120


def family() -> tuple[dict[str, Any] | None, tuple[int, ...]]:
    """Return what multiprocessing tells its children, and the descriptor of its resource tracker.

    None where this program does not use multiprocessing.
    """
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None:
        return None, ()
    import multiprocessing  # noqa: PLC0415 - it is imported
    from multiprocessing import resource_tracker, util  # noqa: PLC0415 - next to nothing

    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001 - it may not run
    if "multiprocessing.shared_memory" in sys.modules:
        # A worker may attach to what has no owner here.
        tracker.ensure_running()
    logger: Any = util._logger  # type: ignore[attr-defined]  # noqa: SLF001
    own, start_method = process.current_process(), multiprocessing.get_start_method(allow_none=True)
    preparation = {
        "authkey": bytes(own.authkey),
        "log_to_stderr": util._log_to_stderr,  # type: ignore[attr-defined]  # noqa: SLF001
        "sys_argv": [*sys.argv],
        **({} if logger is None else {"log_level": logger.getEffectiveLevel()}),
        **({} if start_method is None else {"start_method": start_method}),
    }
    told = {
        "name": own.name,
        "pid": os.getpid(),
        "preparation": preparation,
        "has_tracker": tracker._fd is not None,  # noqa: SLF001 - as above
    }
    return told, () if tracker._fd is None else (tracker._fd,)  # noqa: SLF001 - as above


def join_family(told: dict[str, Any], name: str, fds: list[Descriptor]) -> None:
    """Be a child of the consumer's to multiprocessing, by what `family` says there.

    The descriptor that comes with it is the last of those of its message, and is taken from them.
    So proxies of its managers open here, and shared memory that is opened here is for the
    consumer's tracker to clean up: a tracker of this process would remove it as soon as this
    process ends.
    """
    from multiprocessing import process, resource_tracker, spawn  # noqa: PLC0415

    own: Any = process
    parent = own._ParentProcess(told["name"], told["pid"], Worker.consumer_fd)  # noqa: SLF001
    own._parent_process = parent  # noqa: SLF001
    spawn.prepare({"name": name, **told["preparation"]})
    tracker: Any = resource_tracker._resource_tracker  # noqa: SLF001 - as above
    has_tracker = told["has_tracker"]
    tracker._fd, tracker._pid = (fds.pop().detach() if has_tracker else None), None  # noqa: SLF001
