"""Ctrl-C at each point of `next` at which CPython looks for signals: what comes after it must be what comes without."""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ringfeed
from ringfeed.orders.rng import installed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE = str(Path(ringfeed.__file__).parent)
CALLS = {
    code for name, code in dis.opmap.items() if name.startswith("CALL") and "INTRINSIC" not in name
}
LOOPS = {code for name, code in dis.opmap.items() if name in ("JUMP_BACKWARD", "JUMP_ABSOLUTE")}
ALL = 10**9


class Points:
    """Raises KeyboardInterrupt at the `number`-th point: at a function's start, after a call, or round a loop."""

    def __init__(self, number: int = ALL) -> None:
        self.left = number
        self.where = ""
        self._passed: list[Any] = []  # the place in the code of each point so far
        self._calling: set[int] = (
            set()
        )  # frames whose last step was a call, and that have called no traced function

    def __enter__(self) -> None:
        """Begin; nothing is finalized meanwhile, where Python ignores what is raised."""
        gc.disable()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        """Put an end to it."""
        sys.settrace(None)
        gc.enable()

    def moments(self) -> list[int]:
        """Return the numbers of the points that each place in the code is at for the first and for the last time.

        What is tried there says all: a pass in between finds neither the start nor the end of
        anything.
        """
        first: dict[Any, int] = {}
        last = {place: number for number, place in enumerate(self._passed, 1)}
        for number, place in enumerate(self._passed, 1):
            first.setdefault(place, number)
        return sorted({*first.values(), *last.values()})

    def _trace(self, frame: FrameType, *_: object) -> Any:
        self._calling.discard(id(frame.f_back))
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if (
            not frame.f_code.co_flags & inspect.CO_GENERATOR
        ):  # which begins, or goes on, or is closed
            self._pass(frame, "start of")
        return self._step

    def _step(self, frame: FrameType, event: str, _: object) -> Any:
        called = id(frame) in self._calling
        self._calling.discard(id(frame))
        if event == "opcode":
            if called:
                self._pass(frame, "after a call in")
            code = frame.f_code.co_code[frame.f_lasti]
            if code in CALLS:
                self._calling.add(id(frame))
            elif code in LOOPS:
                self._pass(frame, "round a loop of")
        return self._step

    def _pass(self, frame: FrameType, what: str) -> None:
        self.left -= 1
        self._passed.append((frame.f_code, frame.f_lasti, what))
        if not self.left and not _is_finalizing(frame):
            code = frame.f_code
            self.where = f"{Path(code.co_filename).name}:{frame.f_lineno}, {what} {code.co_name}"
            raise KeyboardInterrupt


def _is_finalizing(frame: FrameType | None) -> bool:
    """Whether Python would ignore what is raised here."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Life(NamedTuple):
    """One epoch, read to its end."""

    seen: list[Any]  # what was handed out or raised
    counted: tuple[Any, ...]
    places: list[Any]  # the state ahead of each step, and after the last, with what remains then
    before: int = 0  # how much was seen before Ctrl-C
    place: Any = None  # then


def live(make: Callable[[], ringfeed.Loader], read: Callable[[Any], Any], points: Points) -> Life:
    """Read an epoch, whatever Ctrl-C comes."""
    seen: list[Any] = []
    places: list[Any] = []
    interrupted: tuple[Any, ...] = ()
    with make() as loader:
        batches = iter(loader)
        while True:
            if not interrupted:
                places.append(place_of(loader))
            try:
                with points:
                    batch = next(batches)
                seen.append(read(batch))
                del batch
            except KeyboardInterrupt:
                assert installed.context is None, points.where  # nothing of a sample is left behind
                interrupted = len(seen), place_of(loader)
            except StopIteration:
                break
            except ringfeed.RingfeedError as error:
                seen.append(str(error))
                if isinstance(error, ringfeed.StallError):  # it would stall for ever
                    break
        places.append(place_of(loader))
        stats = loader.stats()
    return Life(
        seen,
        (stats.batches, stats.samples, sorted(stats.skipped), stats.none_batches),
        places,
        *interrupted,
    )


def place_of(loader: ringfeed.Loader) -> tuple[dict[str, Any], int | None]:
    """Return a loader's state, and the batches that it says remain."""
    try:
        return loader.state_dict(), loader.remaining
    except TypeError:
        return loader.state_dict(), None


def differing(
    make: Callable[[], ringfeed.Loader], read: Callable[[Any], Any], step: int = 1
) -> dict[str, Any]:
    """Return each place where one Ctrl-C changes what is read, counted or saved, and what it is then.

    ``step``: of so many points one is tried. With workers the points are not the same in each life.
    """
    counting = Points()
    expected = live(make, read, counting)
    found: dict[str, Any] = {}
    for number in counting.moments()[::step]:
        points = Points(number)
        got = live(make, read, points)
        if (got.seen, got.counted) != (expected.seen, expected.counted):
            found[points.where] = got.seen, got.counted
        if points.where and got.place is None:
            found[points.where] = "Ctrl-C did not come out"
        last = len(expected.seen)
        if (
            got.place is not None
            and got.place not in expected.places[got.before :][: 1 + (got.before == last)]
        ):
            found[points.where] = got.before, got.place, expected.places[got.before]
    return found


def rests(make: Callable[[], ringfeed.Loader], read: Callable[[Any], Any]) -> dict[int, Any]:
    """Return each number of batches after which a state does not have the rest of the epoch, and what it has.

    An iterable that an error has ended is ended by it once more.
    """

    def samples(seen: list[Any]) -> list[Any]:
        return [one for one in seen if "was ended by" not in one]

    whole = live(make, read, Points())
    found = {}
    for number, (state, _) in enumerate(whole.places):
        with make() as loader:
            loader.load_state_dict(state)
            is_over = loader.epoch > 0
            rest = [] if is_over else live(lambda loader=loader: loader, read, Points()).seen
        if samples(rest) != samples(whole.seen[number:]):
            found[number] = rest
    return found
