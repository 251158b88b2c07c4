"""When the worker that reads a stream takes its state: often enough to go on soon, and seldom enough to cost little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.datasets.states import ENTRIES, State, UnfitError, encoded
from ringfeed.ring._ring import now_ns

if TYPE_CHECKING:
    from ringfeed.datasets.states import StreamStates

MOST_BATCHES = 64  # from one state to the next
SHARE = 100  # a state takes at most one part of so many of the time since the last
NOTED_EACH = 16  # elements
BEHIND = 8  # batches that frameworks may have taken, and the user's loop not


class StateRecorder:
    """Takes the states of one stream in one epoch, as it is read: as often as they cost little, no batch waits long."""

    def __init__(self, states: StreamStates | None, stream: int, epoch: int, rows: int, slots: int) -> None:
        """Take none yet; ``rows``: elements of a batch."""
        self._states = states
        self._run = 0 if states is None else states.run
        self._stream, self._epoch, self._rows = stream, epoch, rows
        self._least = -(-(slots + BEHIND) // (ENTRIES - 1)) * rows  # so that the oldest lies behind all that is ahead
        self._cost_ns = 0
        self.begin(None, None)

    def begin(self, owner: Any, state: State | None) -> None:
        """Take the states of ``owner``, if it has any, which was just begun, or brought to a state."""
        self._owner = owner
        self._last: bytes | None = None
        self.go_on(0 if state is None else state.read)

    def pause(self) -> None:
        """Take none."""
        self.due: float = float("inf")
        """The next state is taken ahead of the element of this number."""

    def go_on(self, count: int) -> None:
        """Take states from an element on."""
        self.pause()
        if self._states is not None and self._owner is not None:
            self._at, self._since_ns = count, now_ns()
            self.due = count + (1 if self._last is None else self._least)

    def find(self, count: int) -> State | None:
        """Return the newest state at or before a count."""
        return None if self._states is None else self._states.find(self._stream, self._epoch, count)

    def take(self, count: int) -> bytes | None:
        """Return the state ahead of the element of this number, unless it is not worth its time.

        The first is only compared with the next: what does not change between two batches does not say where it is. So
        it is, too, after a state was loaded: some iterables say for ever where they were begun.
        """
        began_ns = now_ns()
        if count - self._at < MOST_BATCHES * self._rows and began_ns - self._since_ns < SHARE * self._cost_ns:
            self.due = count + self._rows
            return None
        try:
            text = self._look(count)
        except UnfitError as error:
            self._refuse(error)
            return None
        is_first, self._last, self._at = self._last is None, text, count
        self._since_ns = now_ns()
        self._cost_ns = self._since_ns - began_ns
        self.due = count + self._least
        return None if is_first else text

    def _look(self, count: int) -> bytes:
        try:
            state = self._owner.state_dict()
        except Exception as error:  # noqa: BLE001 - of the user's; the stream itself goes on
            raise UnfitError(f"raised {type(error).__name__}: {error}") from None
        text = encoded(state)
        if text == self._last:
            raise UnfitError(f"is the same after {self._at} and after {count} elements, so it does not say where it is")
        return text

    def keep(self, count: int, text: bytes) -> None:
        """Keep a state, since the element that follows it is there: not every source can go on at its end."""
        assert self._states is not None
        try:
            self._states.save(self._stream, self._epoch, State(count, text), self._run)
        except UnfitError as error:
            self._refuse(error)

    def _refuse(self, error: UnfitError) -> None:
        assert self._states is not None
        self._states.refuse(self._stream, str(error))
        self.begin(None, None)

    def note_skipped(self, since_ns: int, done: int, total: int) -> None:
        """Note how far elements are left out."""
        if self._states is not None and not done % NOTED_EACH:
            self._states.note_skipped(self._stream, since_ns, done, total)
