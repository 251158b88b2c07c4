"""Programs that need TensorFlow, without its import, which costs more than most of them do.

One process imports TensorFlow and Keras and nothing else, starts no thread of theirs and runs no
op. It forks for each program, which then has modules loaded that it was to import, and else its own
environment, folder, arguments, streams, ``__main__`` and end of the interpreter. What looks at the
order of imports needs a process that is new.

With ``forks`` the Python programs that such a program starts are forked from it, too, and have the
modules that it has.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

MOST_BYTES = 1 << 17  # of an order
BACKEND = "tensorflow"


class Order(NamedTuple):
    """A program as Python's command line has it, after the name of the interpreter."""

    arguments: list[str]  # -W ACTION, then -c CODE or a script, then its own
    environment: dict[str, str]
    folder: str
    forks: bool = False  # what it starts, too


# ---- in the test ----


@cache
def _server() -> socket.socket:
    """Start the process that forks; it ends when this one does."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "KERAS_BACKEND": BACKEND}
    with its:
        command = [sys.executable, __file__, str(its.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[its.fileno()], env=environment, stdin=subprocess.DEVNULL
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # first
    return ours


class Program:
    """One that was started, as ``subprocess.Popen`` has it."""

    def __init__(self, order: Order) -> None:
        self.returncode: int | None = None
        self._output: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - until it is read
        self._news, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        message = pickle.dumps(order)
        assert len(message) < MOST_BYTES
        with its:
            socket.send_fds(
                _server(), [message], [*(file.fileno() for file in self._output), its.fileno()]
            )
        self.pid = int(self._news.recv(100))

    def poll(self, timeout_s: float = 0.0) -> int | None:
        """Return its status, or None while it runs."""
        if self.returncode is None:
            self._news.settimeout(timeout_s)
            try:
                self.returncode = int(self._news.recv(100))
            except (BlockingIOError, TimeoutError):
                return None
            self._news.close()
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end; return its output and its errors."""
        if self.poll(timeout) is None:
            self.kill()
            raise subprocess.TimeoutExpired(f"program {self.pid}", timeout)
        texts = []
        for file in self._output:
            file.seek(0)
            texts.append(file.read().decode())
            file.close()
        return texts[0], texts[1]


def start(
    arguments: list[Any],
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    forks: bool = False,
) -> Program:
    """Start a program; ``arguments`` are those of ``python``."""
    environment = dict(os.environ if env is None else env)
    assert environment.get("KERAS_BACKEND", BACKEND) == BACKEND
    return Program(Order([*map(str, arguments)], environment, str(cwd or Path.cwd()), forks))


def run(
    arguments: list[Any],
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 240,
    forks: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    program = start(arguments, env=env, cwd=cwd, forks=forks)
    out, error = program.communicate(timeout)
    assert program.returncode is not None
    return subprocess.CompletedProcess(arguments, program.returncode, out, error)


def run_keras(
    arguments: list[Any], backend: str, *, env: dict[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run a program in this environment and ``env``.

    One of another backend of Keras has a process that is new.
    """
    environment = os.environ | (env or {}) | {"KERAS_BACKEND": backend}
    if backend == BACKEND:
        return run(arguments, env=environment, timeout=timeout)
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        timeout=timeout,
        check=False,
        capture_output=True,
        text=True,
    )


# ---- in the process that forks ----


def _fork() -> int:
    with warnings.catch_warnings():  # of the threads of NumPy's library, which know forks
        warnings.simplefilter("ignore")
        return os.fork()


def _next_program(orders: socket.socket) -> Order | None:
    """Return in each program with its order, and in the process that forks at its end, with none."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what it forks is gone as soon as it has ended
    while True:
        message, fds, _, _ = socket.recv_fds(orders, MOST_BYTES, 3)
        if not message:
            return None
        if _fork() == 0:
            orders.close()
            return _program_of(message, fds)
        for fd in fds:
            os.close(fd)


def _program_of(message: bytes, fds: list[int]) -> Order:
    """Fork once more, to tell of the program's end; returns in the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out, error, news = fds
    pid = _fork()
    with socket.socket(fileno=news) as told:
        if pid:
            told.send(b"%d" % pid)
            told.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os._exit(0)
    for number, fd in enumerate([out, error], 1):
        os.dup2(fd, number)
        os.close(fd)
    order: Order = pickle.loads(message)
    return order


def _become(order: Order) -> None:
    """Be as Python is after the start of a program, and run it."""
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    arguments = order.arguments
    while arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    is_code = arguments[0] == "-c"
    main = types.ModuleType("__main__")
    if not is_code:
        main.__file__ = str(Path(arguments[0]))
    sys.argv = arguments[is_code:] if not is_code else ["-c", *arguments[2:]]
    first = "" if is_code else str(Path(arguments[0]).resolve().parent)
    sys.path[0:1] = [
        first,
        *filter(None, order.environment.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    text = arguments[1] if is_code else Path(arguments[0]).read_text()
    sys.modules["__main__"] = main
    if order.forks:
        subprocess.Popen = _Forked  # type: ignore[misc]
    exec(compile(text, "<string>" if is_code else arguments[0], "exec"), main.__dict__)  # noqa: S102 - what it is for


class _Forked(subprocess.Popen[Any]):
    """What a program starts: forked from it where it is a Python program of the same backend, else as ever."""

    def _execute_child(self, args: Any, *how: Any) -> None:
        _, _, _, pass_fds, folder, environment, _, _, _, *pipes = how
        streams = pipes[0], pipes[3], pipes[5]
        environment = dict(os.environ if environment is None else environment)
        is_script = len(args) > 1 and (str(args[1]) == "-c" or str(args[1]).endswith(".py"))
        if (
            args[0] != sys.executable
            or not is_script
            or environment.get("KERAS_BACKEND", BACKEND) != BACKEND
        ):
            super()._execute_child(args, *how)  # type: ignore[misc]
            return
        order = Order([*map(str, args[1:])], environment, str(folder or Path.cwd()), forks=True)
        sys.stdout.flush()  # else both write what is left of it
        sys.stderr.flush()
        self.pid = _fork()
        if self.pid == 0:
            if pipes[11]:
                os.setsid()
            _run_forked(order, streams, pass_fds)
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])  # type: ignore[attr-defined]


def _run_forked(order: Order, streams: tuple[int, ...], kept: tuple[int, ...]) -> NoReturn:
    """Run a program to the end of its process.

    The stack is that of the one that has started it, and never goes on.
    """
    status: Any = 0
    for number, fd in enumerate(streams):
        if fd != -1:
            os.dup2(fd, number)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are numbers
        if int(name) > 2 and int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
    weakref.finalize._registry.clear()  # type: ignore[attr-defined] # what it is to do at its end, as remove its folders
    try:
        _become(order)
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - as Python's own end
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        sys.stderr.write(status + "\n")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def _serve() -> None:
    import keras  # noqa: F401, PLC0415 - here alone
    import tensorflow as tf  # noqa: F401, PLC0415 - as above

    gc.collect()
    gc.freeze()  # pages that nothing writes stay shared
    order = _next_program(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        _become(order)


if __name__ == "__main__":
    _serve()
