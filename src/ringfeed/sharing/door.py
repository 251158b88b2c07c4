"""`share`: the first process of a name starts the host, the others join it.

A forked child has a copy of a training's connection, by which it must say nothing; the host process
takes the end of the process that joined for the end of the training, not that of its children.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from ringfeed._failure import decode
from ringfeed._process import Forks
from ringfeed.errors import StallError, WorkerError
from ringfeed.sharing.client import SharedLoader
from ringfeed.sharing.epoch import Joined
from ringfeed.sharing.names import bind, check_name, connect, hear, tell
from ringfeed.sharing.terms import Cut, Terms, rank_of
from ringfeed.spec.spec import Spec
from ringfeed.system.interpreter import explained, start_interpreter
from ringfeed.system.machine import check_shared
from ringfeed.system.memory import keep_standard_descriptors
from ringfeed.transport.shared_dataset import pack, to_shared_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringfeed.loader import Loader
    from ringfeed.sharing.host_loader import SharedInfo
    from ringfeed.system._system import Descriptor

HOST_S = 30.0  # beyond timeout_s, after which the host process itself counts as stuck
UNSENT_S = 0.05  # between two attempts to send what there was no room for

SOON_S = 0.02  # between two looks for a host that another process starts, or that is about to end


class Connection:
    """Small messages to and from the host process."""

    def __init__(self, channel: Descriptor, share: str, host: int, timeout_s: float) -> None:
        """Talk to the host process of this pid."""
        self._channel = channel
        self._unsent: deque[object] = deque()
        self._forks = Forks.count
        self.share = share
        """What messages begin with."""
        self.host = host
        self._timeout_s = timeout_s

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that has joined."""
        return self._forks == Forks.count

    def tell(self, *message: object) -> None:
        """Send a message; a host process that has gone is noticed where an answer is waited for."""
        if self.is_ours:
            self._unsent.append(message)
            self._send()

    def _send(self) -> None:
        """Send what waits to be sent, as far as there is room: a busy host reads it later."""
        with suppress(
            IndexError
        ):  # no more; the garbage collector may have come in, and have sent some
            while self._unsent:
                message = self._unsent.popleft()
                try:
                    tell(self._channel, message)
                except BlockingIOError:
                    self._unsent.appendleft(message)
                    return
                except OSError:
                    continue

    def hear(self, *, wait: bool) -> tuple[Any, list[Descriptor]] | None:
        """Return the next message and its descriptors; None without ``wait`` where none came."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            self._send()
            left_s = max(deadline - time.monotonic(), 0) if wait else 0
            try:
                return hear(self._channel, min(left_s, UNSENT_S) if self._unsent else left_s)
            except TimeoutError:
                if not wait:
                    return None
                if time.monotonic() >= deadline:
                    raise StallError(
                        f"{self.share}: its host process (pid {self.host}) has not answered for "
                        f"{self._timeout_s:.0f} s"
                    ) from None
            except (EOFError, ConnectionError) as error:
                raise WorkerError(
                    f"{self.share}: its host process (pid {self.host}) has ended; what it wrote on "
                    "standard error says why, if it was not killed. Join again, and go on from a "
                    "state_dict()"
                ) from error


def share(  # noqa: PLR0913 - the public parameters
    make_loader: Callable[[], Loader[Any]],
    *,
    name: str,
    ranks: int,
    mode: Literal["split", "broadcast"],
    rank: int | None = None,
    on_slow: Literal["wait", "drop", "raise"] = "wait",
    patience_s: float = 10.0,
    timeout_s: float = 300.0,
    spec: object = None,
) -> SharedLoader:
    """Join the trainings of this host that share one loader; the first one starts the host process.

        with ringfeed.share(make_loader, name="run1", ranks=4, mode="split") as loader:
            for images, labels in loader:
                train_step(images, labels)

    One loader, one dataset and one pool of workers serve all trainings. They are in the host
    process, which is no child of a training, and ends when the last training has left or died. A
    message of a few hundred bytes a batch goes over abstract sockets of this user; arrays lie over
    the loader's slots. So it works under torchrun, mpirun and from several shells, in one
    container: one network, pid, user and mount namespace.

    make_loader: a function without arguments that returns a `Loader` of at least 3 slots. It is
        sent to the host process as a dataset is sent to workers, and called there once.
    name: of letters, digits, ".", "_" and "-". Names belong to a user in a container; no file is
        made.
    ranks: how many trainings share it. No epoch begins before all of them have joined.
    mode: "broadcast": each training gets each batch whole, and may change its own copy. "split":
        each training gets the rows of its rank: the loader's ``batch_size`` is that of all ranks
        together. Rows are those of a `Loader` with ``shard=Shard(rank, ranks)``; that of the loader
        has the ``uneven`` for an incomplete last batch. On several hosts, give that loader the
        `Shard` of the host.
    rank: with "split", from 0 on; by default the launcher's (LOCAL_RANK and the like).
    on_slow: when others have waited ``patience_s`` for a training: "wait" waits on, with one
        UserWarning in the others; "drop" continues without it: it loses these batches, and a
        UserWarning tells it how many; "raise" disconnects it: it gets a StallError. A training that
        dies is not waited for.
    timeout_s: how long a training waits for a batch, for the host, or for the others to join,
        before StallError. The next ``next()`` waits again.
    spec: what this training expects of a sample; else SpecError. NamedTuples are then of its
        classes, and without ``spec`` of new classes with the same names and fields.

    An epoch begins when all trainings have asked for it by ``iter()``. One that joins during an
    epoch, in place of one that left, begins with the next (with "drop": at once). Batches come to
    all in one order; a slot is filled again when the last training has released it. Errors of
    samples are raised in each training, in place of their batch.

    ValueError for a join with other parameters than the first, and for one more than ``ranks``;
    PermissionError for another user's socket, or another container's; ShipError if make_loader
    cannot be sent; OSError if the host has no descriptor left. An error of make_loader is raised in
    each. WorkerError if the host process was killed: batches that are held stay valid.
    """
    from ringfeed import __version__  # noqa: PLC0415 - as the package may be half imported

    check_shared("share()", "give each training a Loader of its own")
    terms = Terms(__version__, check_name(name), ranks, mode, on_slow, patience_s, timeout_s)
    rank = rank_of(mode, rank, ranks)
    expected = None if spec is None else Spec(spec)
    connection, info = _join(make_loader, terms, rank, expected)
    info = (
        info if expected is None else info._replace(spec=expected)
    )  # with this training's own NamedTuples
    return SharedLoader(Joined(connection, info, Cut(rank, ranks, info.uneven)), terms)


def _join(
    make_loader: Callable[[], Any], terms: Terms, rank: int | None, spec: Spec | None
) -> tuple[Connection, SharedInfo]:
    """Return the connection and what the host has said; waits out a host that is about to end."""
    if not callable(make_loader):
        raise TypeError(
            f"make_loader={make_loader!r} must be a function without arguments that returns a "
            "Loader"
        )
    keep_standard_descriptors()
    deadline = time.monotonic() + terms.timeout_s
    join = "join", asdict(terms), rank, None if spec is None else repr(spec)
    while True:
        channel, has_made = _find_host(make_loader, terms)
        if channel and (joined := _greet(channel, join, terms, deadline, has_made=has_made)):
            return joined
        if time.monotonic() > deadline:
            raise StallError(
                f"share(name={terms.name!r}): no host process has answered within "
                f"{terms.timeout_s:.0f} s; if another program has the name, choose another"
            )
        time.sleep(SOON_S)


def _find_host(make_loader: Callable[[], Any], terms: Terms) -> tuple[Descriptor | None, bool]:
    """Return a connection, and whether this process has started the host."""
    listener = bind(terms.name)
    if listener is None:
        return connect(terms.name), False
    with listener:
        channel = connect(terms.name)
        assert channel is not None  # it listens here
        sent = to_shared_memory(pack(make_loader, "make_loader"))
        assert sent is not None  # there was none before it
        try:
            tell(channel, ("make", asdict(terms), sent.manifest()), sent.fds)
        finally:
            sent.close()
        _start(listener)
    return channel, True


@explained()
def _start(listener: Descriptor) -> None:
    """Start the host, whose parent ends at once."""
    start_interpreter("ringfeed.sharing.start", (listener.fileno(),)).wait()


def _greet(
    channel: Descriptor, join: object, terms: Terms, deadline: float, *, has_made: bool
) -> tuple[Connection, SharedInfo] | None:
    """Ask to join; returns None where the host, which another has started, has ended meanwhile."""
    try:
        tell(channel, join)
        (kind, content), _ = hear(channel, max(deadline - time.monotonic(), 0))
    except TimeoutError:
        channel.close()
        raise StallError(
            f"share(name={terms.name!r}): make_loader has not returned within "
            f"{terms.timeout_s:.0f} s"
        ) from None
    except (EOFError, OSError) as error:
        channel.close()
        if not has_made:
            return None
        message = f"share(name={terms.name!r}): its host process has ended before it had a loader"
        raise WorkerError(
            message + "; what it wrote on standard error says why, if it was not killed"
        ) from error
    if kind == "welcome":
        info: SharedInfo = pickle.loads(content)  # noqa: S301 - see `names.identify`
        share = f"share(name={terms.name!r})"
        return Connection(channel, share, info.host, terms.timeout_s + HOST_S), info
    channel.close()
    refusal = decode(content).error
    assert refusal is not None
    raise refusal
