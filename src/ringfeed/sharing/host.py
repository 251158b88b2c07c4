"""The host process: the main thread talks to the trainings, another one takes batches from the loader.

It ends when the last training has left. A training's end is noticed by its connection or by its pidfd, whichever comes
first: a process that it has forked may hold a copy of the connection.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ringfeed._failure import encode
from ringfeed.errors import ClosedError, SlotsHeldWarning
from ringfeed.loader import runner_of
from ringfeed.sharing.flow import Flow
from ringfeed.sharing.guest import Guest
from ringfeed.sharing.host_loader import HostLoader
from ringfeed.sharing.names import accept, hear, listen, packed_state, tell, unpacked_state
from ringfeed.sharing.terms import Terms
from ringfeed.system._system import Descriptor
from ringfeed.transport.shared_dataset import unpack

if TYPE_CHECKING:
    from ringfeed.sharing.trainings import Sent, Training

TICK_MS = 100
AT_ONCE = 64  # connections that are accepted before trainings are heard: other users may connect without end
_FULL = {errno.EMFILE, errno.ENFILE}
_VERBS = ("want", "took", "free", "ask", "break_off")  # of `Flow`, that a training says
FIRST_S = 30.0  # for the training that has started this process to say what to do
END_S = 10.0  # for the loader to close; its workers end with this process anyway


class Host:
    """Runs one loader for several trainings."""

    def __init__(self, listener: int) -> None:
        """Take the socket over."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainings' Ctrl-C ends them, and they end this
        warnings.simplefilter("ignore", SlotsHeldWarning)  # the trainings give their own
        self._listener = Descriptor(lambda: listener)
        self._spare = Descriptor(os.dup, listener)  # given up for a moment, to refuse one where there is no other
        listen(self._listener)
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
        except BaseException:  # noqa: BLE001 - a defect of ours: the trainings are told by the end of this process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    @property
    def _is_deserted(self) -> bool:
        """Whether all trainings that were let in have left: one that comes now makes a share anew."""
        return self._has_begun and all(guest.has_left for guest in self._guests if guest.has_joined)

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._listener.fileno(), select.POLLIN)
        for guest in self._guests:
            poller.register(guest.channel.fileno(), select.POLLIN)
            poller.register(guest.pidfd.fileno(), select.POLLIN)
        ready = {fd for fd, _ in poller.poll(TICK_MS)}
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
        """Take in what has connected; processes of other users and containers are refused before they are heard."""
        for _ in range(AT_ONCE):
            try:
                channel = accept(self._listener)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._refuse_one()
                return
            if channel is None:
                return
            with suppress(ProcessLookupError):
                self._take_in(channel)

    def _take_in(self, channel: Descriptor) -> None:
        try:
            self._guests.append(Guest(channel))
        except PermissionError as error:
            _refuse(channel, "PermissionError", f"this share belongs to uid {os.getuid()}, and this is {error}")
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _refuse(channel, "OSError", _NO_ROOM)

    def _refuse_one(self) -> None:
        """Refuse the next connection where this process has no descriptor left for it."""
        self._spare.close()
        with suppress(OSError):
            if (channel := accept(self._listener)) is not None:
                _refuse(channel, "OSError", _NO_ROOM)
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
        except Exception as error:  # noqa: BLE001 - of another release, perhaps: it ends this training alone
            guest.send(("failed", encode(error)))
            self._drop(guest)

    def _handle(self, guest: Guest, verb: str, content: list[Any], fds: list[Descriptor]) -> None:
        flow, training = self._flow, guest.training
        if verb == "make" and self._terms is None:
            self._terms = Terms(**content[0])
            self._welcome()
            self._pump = threading.Thread(target=self._run_loader, args=(content[1], fds), daemon=True)
            self._pump.start()
        elif verb == "join":
            self._join(guest, *content)
        elif verb == "retire" and flow is not None:
            guest.has_left = True
            flow.retire(training)
        elif flow is not None and guest.has_joined and verb in _VERBS:
            getattr(flow, verb)(training, *content)

    def _join(self, guest: Guest, terms: dict[str, Any], rank: int | None, spec: str | None) -> None:
        guest.training.rank, guest.asks, guest.expects = rank, Terms(**terms), spec
        self._welcome()

    def _welcome(self) -> None:
        """Let in what has come, once there is a loader; or say why it cannot be."""
        for guest in self._guests:
            answer = None if guest.asks is None or self._terms is None else self._answer(guest, guest.asks)
            if answer is not None:
                guest.asks = None
                guest.has_joined = answer[0] == "welcome"
                self._has_begun = self._has_begun or guest.has_joined
                guest.send(answer)

    def _answer(self, guest: Guest, asks: Terms) -> tuple[str, Any] | None:
        assert self._terms is not None
        if (difference := self._terms.differs(asks)) is not None:
            return "refused", ["ValueError", difference]
        if self._failed is not None:
            return "failed", self._failed
        if self._flow is None or self._is_deserted:
            return None
        if guest.expects not in {None, repr(self._info.spec)}:
            text = (
                f"share(name={asks.name!r}) hands out samples of {self._info.spec!r}, and this training expects "
                f"{guest.expects}; give the others' make_loader, or another name"
            )
            return "refused", ["SpecError", text]
        refusal = self._flow.join(guest.training)
        return ("welcome", self._info.packed()) if refusal is None else ("refused", ["ValueError", refusal])

    def _drop(self, guest: Guest) -> None:
        """Forget a connection."""
        if guest in self._guests:
            self._guests.remove(guest)
            if self._flow is not None:
                self._flow.leave(guest.training)
            guest.channel.close()

    def _send(self, training: Training, sent: Sent) -> None:
        for guest in self._guests:
            if guest.training is training:
                guest.send_entry(sent)

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
            self._make(manifest, fds)
            while self._run_epoch():
                pass
        except ClosedError:
            pass  # the last training has gone
        except BaseException as error:  # noqa: BLE001 - a defect of ours
            traceback.print_exc()
            with self._changed:
                self._failed = encode(error)
            os._exit(1)

    def _make(self, manifest: bytes, fds: list[Descriptor]) -> None:
        terms = self._terms
        assert terms is not None
        try:
            make_loader = unpack(manifest, [fd.fileno() for fd in fds])
            self._host_loader = HostLoader(make_loader, terms)
            self._info = self._host_loader.info(os.getpid())
        except Exception as error:  # noqa: BLE001 - the user's, for the trainings
            with self._changed:
                self._failed = encode(error)
                self._welcome()
            raise ClosedError from None
        with self._changed:
            self._flow = Flow(terms, self._info.slots, self._send)
            self._welcome()

    def _run_epoch(self) -> bool:
        """Run the next epoch when it is asked for; False at the end of all."""
        flow, host_loader = self._flow, self._host_loader
        assert flow is not None
        assert host_loader is not None
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or flow.due())
            if self._is_over:
                return False
            asked = flow.due()
            asks = [training.asked for training in asked]
            wish = self._wish_of(asked)
        try:
            batches = host_loader.begin(wish)
        except Exception as error:  # noqa: BLE001 - a hook's, or a state that does not fit: for the trainings
            with self._changed:
                flow.refuse(_still(asked, asks), encode(error))
            return True
        with self._changed:
            flow.begin(_still(asked, asks))
        self._take(batches)
        return True

    def _wish_of(self, asked: list[Training]) -> Any:
        """Return where the epoch is to begin; trainings that ask for another place get an error."""
        assert self._host_loader is not None
        given = [None if training.asked is None else training.asked.wish for training in asked]
        wishes = [wish and (wish[0], unpacked_state(wish[1]) if wish[0] == "state" else wish[1]) for wish in given]
        # One that has come in the place of another, and begins anew, does not decide for those that go on.
        decide = [wish for training, wish in zip(asked, wishes, strict=True) if training.epoch] or wishes
        first = next((wish for wish in decide if not self._host_loader.is_next(wish)), None)
        for training, wish in zip(asked, wishes, strict=True):
            if wish != first and not (first is None and self._host_loader.is_next(wish)):
                assert self._flow is not None
                text = f"this training asks for {_shown(wish)}, and {asked[wishes.index(first)]} for {_shown(first)}"
                self._flow.refuse([training], encode(ValueError(f"{text}; have all trainings ask for the same")))
        return first

    def _take(self, batches: Any) -> None:
        """Take the batches of an epoch, as the trainings have room for them."""
        flow, host_loader = self._flow, self._host_loader
        assert flow is not None
        assert host_loader is not None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or not flow.is_on or flow.may_take)
                if self._is_over or not flow.is_on:
                    return
            try:
                lease, rows = next(batches)
            except StopIteration:
                with self._changed:
                    flow.end(packed_state(host_loader.loader.state_dict()))
                return
            except ClosedError:
                raise
            except Exception as error:  # noqa: BLE001 - the loader's, for the trainings, in its place
                with self._changed:
                    flow.fail(encode(error), packed_state(host_loader.loader.state_dict()))
                continue
            with self._changed:
                flow.add(host_loader.hold(lease), host_loader.content(lease, rows))
            del lease


def _still(trainings: list[Training], asks: list[Any]) -> list[Training]:
    """Return the trainings that ask for the same as before; the others have broken it off meanwhile, and asked anew."""
    return [training for training, ask in zip(trainings, asks, strict=True) if training.asked is ask]


_NO_ROOM = "the host process of this share has no descriptor left for one more; raise RLIMIT_NOFILE (ulimit -n)"


def _refuse(channel: Descriptor, error: str, text: str) -> None:
    """Say why a process is not let in, and close its connection."""
    with channel, suppress(OSError):
        tell(channel, ("refused", [error, text]))


def _shown(wish: Any) -> str:
    if wish is None:
        return "the next epoch"
    kind, value = wish
    return (
        f"epoch {value}" if kind == "epoch" else f"a state of epoch {value.get('epoch')}, sample {value.get('samples')}"
    )
