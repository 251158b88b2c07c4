"""The host process: one thread talks to the trainings, another takes batches from the loader.

It ends when the last training has left. A training's end is noticed by its connection or by its
pidfd, whichever comes first: a process that it has forked may hold a copy of the connection.
"""

from __future__ import annotations

import errno
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringfeed._failure import encode
from ringfeed.errors import ClosedError, SlotsHeldWarning, SpecError
from ringfeed.loader import runner_of
from ringfeed.sharing.flow import Entry, Flow, Training
from ringfeed.sharing.host_loader import HostLoader
from ringfeed.sharing.names import (
    BACKLOG,
    accept,
    hear,
    identify,
    peer_of,
    tell,
)
from ringfeed.sharing.terms import Terms
from ringfeed.system._system import Descriptor
from ringfeed.system.channel import readable
from ringfeed.transport.unpacking import unpack

if TYPE_CHECKING:
    from collections.abc import Mapping


TICK_S = 0.1
AT_ONCE = 64  # connections that are accepted before trainings are heard: others may never end
_FULL = {errno.EMFILE, errno.ENFILE}
_VERBS = ("want", "took", "free", "ask", "break_off")  # of `Flow`, that a training says
FIRST_S = 30.0  # for the training that has started this process to say what to do
END_S = 10.0  # for the loader to close; its workers end with this process anyway


class Guest(Training):
    """A training as this process sees it: a connection, and the process behind it."""

    def __init__(self, connection: socket.socket) -> None:
        """Know the process by its pidfd; errors as of `identify`."""
        peer = peer_of(connection)
        super().__init__(peer.pid)
        self.pidfd = identify(connection, peer)
        self.channel = Descriptor(connection.detach)
        self.asks: Terms | None = None  # to be let in, with these
        self.expects: str | None = None  # of samples: what a spec of theirs shows
        self.has_joined = False
        self.has_left = False  # and holds arrays yet, which need no host
        self.is_broken = False

    def send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        """Send at once; a process that leaves so many messages unread counts as gone."""
        try:
            tell(self.channel, message, fds)
        except OSError:
            self.is_broken = True

    def send_entry(self, entry: Entry) -> None:
        """Send what `Flow` says, or send it again."""
        batch, content = entry.batch, entry.content
        if entry.kind in {"batch", "end"} and "lost" not in content:
            content = entry.content = {**content, "lost": self.lost}
            self.lost = 0
        if batch is not None:
            content = {**content, "private": entry.private, "number": batch.number}
        # A batch that was given back is sent again without its slots: the training asked for it,
        # and drops it.
        fds = () if batch is None or batch.lease is None else (batch.lease[1].fileno(),)
        self.send((entry.serial, entry.kind, entry.epoch_id, content), fds)


class Host:
    """Runs one loader for several trainings."""

    def __init__(self, listener: int) -> None:
        """Take the socket over."""
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # the trainings' Ctrl-C ends them, and they end this
        warnings.simplefilter("ignore", SlotsHeldWarning)  # the trainings give their own
        self._listener = socket.socket(fileno=listener)
        self._listener.settimeout(0)
        self._listener.listen(BACKLOG)  # those that connect find this process at the other end
        self._spare = Descriptor(
            os.dup, listener
        )  # given up for a moment, to refuse one where there is no other
        self._guests: list[Guest] = []
        self._changed = threading.Condition()
        self._terms: Terms | None = None
        self._host_loader: HostLoader | None = None
        self._failed: bytes | None = None  # why there is no loader
        self._flow: Flow | None = None
        self._has_begun = False  # a training was let in
        self._is_over = False
        self._pump: threading.Thread | None = None

    # ---- the main thread ----

    def run(self) -> None:
        """Serve until the last training has gone; then end this process."""
        try:
            began_s = time.monotonic()
            while not self._is_deserted and (
                self._guests or (self._pump is None and time.monotonic() - began_s < FIRST_S)
            ):
                self._serve()
            self._listener.close()  # what still waits there finds the end, and makes a share anew
            self._stop()
        except BaseException:  # noqa: BLE001 - a defect of ours; trainings see that this ends
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    @property
    def _is_deserted(self) -> bool:
        """Whether all trainings have left that were let in: the next one makes a share anew."""
        return self._has_begun and all(guest.has_left for guest in self._guests if guest.has_joined)

    def _serve(self) -> None:
        ends = [end for guest in self._guests for end in (guest.channel, guest.pidfd)]
        ready = readable([self._listener, *ends], TICK_S)
        with self._changed:
            if self._listener.fileno() in ready:
                self._accept()
            for guest in [*self._guests]:
                if guest.channel.fileno() in ready:
                    self._listen(guest)
                if guest.pidfd.fileno() in ready or guest.is_broken:
                    self._drop(guest)
            if self._flow is not None:
                self._flow.tick()
            self._changed.notify_all()

    def _accept(self) -> None:
        """Accept connections; those of other users and containers are refused unheard."""
        for _ in range(AT_ONCE):
            try:
                connection = accept(self._listener)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._refuse_one()
                return
            if connection is None:
                return
            try:
                self._guests.append(Guest(connection))
            except ProcessLookupError:
                connection.close()
            except PermissionError as error:
                text = f"this share belongs to uid {os.getuid()}, and this is {error}"
                _refuse(connection, PermissionError(text))
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                _refuse(connection, OSError(_NO_ROOM))

    def _refuse_one(self) -> None:
        """Refuse the next connection where this process has no descriptor left for it."""
        self._spare.close()
        with suppress(OSError):
            if (connection := accept(self._listener)) is not None:
                _refuse(connection, OSError(_NO_ROOM))
        self._spare = Descriptor(os.dup, self._listener.fileno())

    def _listen(self, guest: Guest) -> None:
        """Handle what a training has sent."""
        try:
            while True:
                (verb, *content), fds = hear(guest.channel, 0)
                self._handle(guest, verb, content, fds)
        except TimeoutError:
            return
        except (EOFError, OSError):
            self._drop(guest)
        except Exception as error:  # noqa: BLE001 - of another release, perhaps
            guest.send(("failed", encode(error)))
            self._drop(guest)

    def _handle(self, guest: Guest, verb: str, content: list[Any], fds: list[Descriptor]) -> None:
        flow = self._flow
        if verb == "make" and self._terms is None:
            self._terms = Terms(**content[0])
            self._welcome()
            self._pump = threading.Thread(
                target=self._run_loader, args=(content[1], fds), daemon=True
            )
            self._pump.start()
        elif verb == "join":
            terms, guest.rank, guest.expects = content
            guest.asks = Terms(**terms)
            self._welcome()
        elif verb == "retire" and flow is not None:
            guest.has_left = True
            flow.retire(guest)
        elif flow is not None and guest.has_joined and verb in _VERBS:
            getattr(flow, verb)(guest, *content)

    def _welcome(self) -> None:
        """Let in what has come, once there is a loader; or say why it cannot be."""
        for guest in self._guests:
            answer = (
                None
                if guest.asks is None or self._terms is None
                else self._answer(guest, guest.asks)
            )
            if answer is not None:
                guest.asks = None
                guest.has_joined = answer[0] == "welcome"
                self._has_begun = self._has_begun or guest.has_joined
                guest.send(answer)

    def _answer(self, guest: Guest, asks: Terms) -> tuple[str, Any] | None:
        assert self._terms is not None
        if (difference := self._terms.differs(asks)) is not None:
            return "failed", encode(ValueError(difference))
        if self._failed is not None:
            return "failed", self._failed
        if self._flow is None or self._is_deserted:
            return None
        if guest.expects not in {None, repr(self._info.spec)}:
            text = (
                f"share(name={asks.name!r}) hands out samples of {self._info.spec!r}, and this "
                f"training expects {guest.expects}; give the others' make_loader, or another name"
            )
            return "failed", encode(SpecError(text))
        if (refusal := self._flow.join(guest)) is not None:
            return "failed", encode(ValueError(refusal))
        return "welcome", pickle.dumps(self._info)

    def _drop(self, guest: Guest) -> None:
        """Forget a connection."""
        if guest in self._guests:
            self._guests.remove(guest)
            if self._flow is not None:
                self._flow.leave(guest)
            guest.channel.close()

    def _stop(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._host_loader is None:
            return
        runner_of(self._host_loader.loader).request_stop()
        if self._pump is not None:
            self._pump.join(END_S)
        closing = threading.Thread(target=self._host_loader.loader.close, daemon=True)
        closing.start()
        closing.join(END_S)

    # ---- the thread that takes batches ----

    def _run_loader(self, manifest: bytes, fds: list[Descriptor]) -> None:
        try:
            flow, host_loader = self._make(manifest, fds)
            while self._run_epoch(flow, host_loader):
                pass
        except ClosedError:
            pass  # the last training has gone
        except BaseException:  # noqa: BLE001 - a defect of ours
            traceback.print_exc()
            os._exit(1)

    def _make(self, manifest: bytes, fds: list[Descriptor]) -> tuple[Flow, HostLoader]:
        terms = self._terms
        assert terms is not None
        try:
            make_loader = unpack(manifest, [fd.fileno() for fd in fds])
            self._host_loader = host_loader = HostLoader(make_loader, terms)
            self._info = host_loader.info(os.getpid())
        except Exception as error:  # noqa: BLE001 - the user's, for the trainings
            with self._changed:
                self._failed = encode(error)
                self._welcome()
            raise ClosedError from None
        with self._changed:
            self._flow = flow = Flow(terms, self._info.slots, Guest.send_entry)
            self._welcome()
        return flow, host_loader

    def _run_epoch(self, flow: Flow, host_loader: HostLoader) -> bool:
        """Run the next epoch when it is asked for; False at the end of all."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or flow.due())
            if self._is_over:
                return False
            asked = {training: training.asked for training in flow.due()}
            wish = _wish_of(asked, flow, host_loader)
        try:
            batches = host_loader.begin(wish)
        except Exception as error:  # noqa: BLE001 - of a hook or a state: for the trainings
            with self._changed:
                flow.refuse(_still(asked), encode(error))
            return True
        with self._changed:
            flow.begin(_still(asked))
        return self._take(batches, flow, host_loader)

    def _take(self, batches: Any, flow: Flow, host_loader: HostLoader) -> bool:
        """Take an epoch's batches as the trainings have room for them; False at the end of all."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or not flow.is_on or flow.may_take)
                if self._is_over or not flow.is_on:
                    return not self._is_over
            try:
                lease, rows = next(batches)
            except StopIteration:
                with self._changed:
                    flow.end(pickle.dumps(host_loader.loader.state_dict()))
                return True
            except ClosedError:
                raise
            except Exception as error:  # noqa: BLE001 - the loader's, for the trainings
                with self._changed:
                    flow.fail(encode(error), pickle.dumps(host_loader.loader.state_dict()))
                continue
            with self._changed:
                flow.add((lease, host_loader.slots), host_loader.content(lease, rows))
            del lease


def _still(asked: Mapping[Training, object]) -> list[Training]:
    """Return the trainings that still ask for what they did; others have asked anew meanwhile."""
    return [training for training, ask in asked.items() if training.asked is ask]


def _wish_of(
    asked: Mapping[Training, tuple[int, Any] | None], flow: Flow, host_loader: HostLoader
) -> Any:
    """Return where the epoch is to begin; trainings that ask for another place get an error."""
    wishes = {
        training: ask and ask[1] and pickle.loads(ask[1])  # noqa: S301 - see `names.identify`
        for training, ask in asked.items()
    }
    # One that has come in the place of another, and begins anew, does not decide for those that go
    # on.
    decide = [wish for training, wish in wishes.items() if training.epoch] or wishes.values()
    first = next((wish for wish in decide if not host_loader.is_next(wish)), None)
    agree = [
        training
        for training, wish in wishes.items()
        if (None if host_loader.is_next(wish) else wish) == first
    ]
    for training in wishes.keys() - agree:
        text = (
            f"this training asks for {_shown(wishes[training])}, and {agree[0]} for {_shown(first)}"
        )
        flow.refuse([training], encode(ValueError(f"{text}; have all trainings ask for the same")))
    return first


_NO_ROOM = (
    "the host process of this share has no descriptor left for one more; raise RLIMIT_NOFILE "
    "(ulimit -n)"
)


def _refuse(connection: socket.socket, error: Exception) -> None:
    """Say why a process is not let in, and close its connection."""
    with connection, suppress(OSError):
        tell(connection, ("failed", encode(error)))


def _shown(wish: Any) -> str:
    if wish is None:
        return "the next epoch"
    kind, value = wish
    return (
        f"epoch {value}"
        if kind == "epoch"
        else f"a state of epoch {value.get('epoch')}, sample {value.get('samples')}"
    )
