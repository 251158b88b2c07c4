"""backend="fork": the forkserver is forked from this process, and has the dataset from it.

Other threads may be in a call of `subprocess.Popen` at that moment. Popen waits until the last copy
of its error pipe is closed, and closes its own copies of the child's ends of pipes only then; a
forked process that never execs would keep all of them open for as long as it lives. So both sides
look for such pipes, and the forked process closes them.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ringfeed._callers import callers_depth, frames_from
from ringfeed.monitor.stacks import stacks_by_thread
from ringfeed.system import channel as channels
from ringfeed.system.guard import Lifeline, become_worker, fork
from ringfeed.system.interpreter import explained, surroundings
from ringfeed.workers.forkserver import ForkserverMain
from ringfeed.workers.launchers import Forker
from ringfeed.workers.process import WorkerProcess
from ringfeed.workers.start import live

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ringfeed.system._system import Descriptor
    from ringfeed.transport.shared_dataset import SharedDataset

OPENING_S = 1.0  # what another thread may take to make its pipes, which is microseconds
_INIT: Any = subprocess.Popen.__init__
_EXECUTE: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # noqa: SLF001


class Fork(Forker):
    """Has workers forked by a forkserver that is forked from this process."""

    sends_dataset = False

    def hold(self, dataset: Any, sent: SharedDataset | None) -> None:  # noqa: ARG002
        # A fork needs none.
        """Refuse what a fork must not share; also what was opened since the loader was made."""
        from ringfeed.transport.unpicklable import refuse_to_share  # noqa: PLC0415

        refuse_to_share(dataset)
        _warn_of_threads()
        self._dataset = dataset

    def _open(self) -> WorkerProcess:
        lifeline, dataset = self.lifeline.fds, self._dataset
        return forked(
            self.lifeline, lambda channel: ForkserverMain(channel, lifeline, dataset).run()
        )


@explained()
def forked(lifeline: Lifeline, body: Callable[[Descriptor], object]) -> WorkerProcess:
    """Fork a process that ends with this one, and does ``body(channel)``."""

    def pipes_of_others() -> set[int]:
        # A number that Popen has closed meanwhile may be one of our lifeline now.
        return pipes_of_launches() - {_inode_of_pipe(fd) for fd in lifeline.fds}

    ours, theirs = channels.pair()
    with theirs:
        separate = partial(_separate, lifeline, theirs, pipes_of_others(), body)
        child = fork(partial(live, theirs, separate))
    process = WorkerProcess.of_child(child, ours)
    # A call of Popen may have begun before the fork, and is held up by it now.
    if pipes := pipes_of_others():
        process.send({"do": "close_pipes", "pipes": pipes}, ())
    return process


def _separate(
    lifeline: Lifeline,
    channel: Descriptor,
    pipes: set[int],
    body: Callable[[Descriptor], object],
) -> None:
    """In the forked child: have nothing that a spawned process would not have, then live."""
    lifeline.close_others(channel)
    close_pipes(pipes)
    os.environ.update(surroundings()["environment"])
    _forget_the_consumer()
    become_worker(*lifeline.fds)
    # Torch would wait for the threads of its pool, which are not here. None: still being imported.
    set_num_threads = getattr(sys.modules.get("torch"), "set_num_threads", None)
    if set_num_threads is not None:
        set_num_threads(1)
    body(channel)


def _forget_the_consumer() -> None:
    """Leave its event loop, the handlers of its signals, and its standard input alone."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    if null:
        os.dup2(null, 0)
        os.close(null)
    # The old one may hold lines that are the consumer's.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115


def _warn_of_threads() -> None:
    live = [*computing()]
    if live:
        warnings.warn(
            f"backend='fork' after {' and '.join(live)} has computed: its threads do not survive "
            "the fork, and a worker that uses it hangs; use backend='process', or with "
            "ringfeed.torch multiprocessing_context='forkserver'",
            RuntimeWarning,
            stacklevel=callers_depth(),
        )


def computing() -> Iterator[str]:
    """Name the frameworks that have begun to compute.

    Threads that only an import starts hold up nothing.

    Torch is none of them: it computes in one thread in a worker.
    """
    if getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None):
        yield "jax"
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if getattr(context, "_context_handle", None) is not None:
        yield "tensorflow"


def pipes_of_launches() -> set[int]:
    """Return the inodes of the pipes that calls of Popen in other threads have made."""
    deadline = time.monotonic() + OPENING_S
    while True:
        pipes: set[int] = set()
        stacks = stacks_by_thread()
        # Without the GIL, frames that run are looked at in such a call alone, and no others: it may
        # end Python. No variable keeps the frames, since one of them would keep itself.
        are_made = [
            _add_pipes(frame, pipes)
            for thread, frame in sys._current_frames().items()  # noqa: SLF001
            if "subprocess" in stacks.get(thread, "subprocess")
        ]
        if all(are_made) or time.monotonic() > deadline:
            return pipes
        time.sleep(0.0005)


def _add_pipes(frame: FrameType, pipes: set[int]) -> bool:
    """Add what the Popen call in this stack has made; False where it is about to make more."""
    for above in frames_from(frame):
        if above.f_code is _EXECUTE.__code__:
            names = above.f_locals
            fds = [names[name] for name in ("errpipe_read", "errpipe_write") if name in names]
            for pipe in ("p2c", "c2p", "err"):
                ends = names[f"{pipe}read"], names[f"{pipe}write"]
                if min(ends) >= 0:  # both: subprocess.PIPE
                    fds += ends
            pipes.update(filter(None, map(_inode_of_pipe, fds)))
            return "errpipe_write" in names
        if above.f_code is _INIT.__code__:
            return False
    return True


def _inode_of_pipe(fd: int) -> int | None:
    with suppress(OSError):  # closed meanwhile
        found = os.fstat(fd)
        if stat.S_ISFIFO(found.st_mode):
            return found.st_ino
    return None


def close_pipes(inodes: set[int]) -> None:
    """Close all descriptors of these pipes."""
    with suppress(FileNotFoundError):  # no /proc
        for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if _inode_of_pipe(fd) in inodes:
                os.close(fd)
