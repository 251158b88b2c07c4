"""What one process sees of a dataset: its samples, each twice, its length, states and memory.

    main      a fresh interpreter, which is sent the dataset as a worker is
    answer    a process that was forked, which has it
       └──▶ Look ──▶ Seen, to the process that checks

Where the process is, and its stack at its end, lie in a file that outlives it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import time
import tracemalloc
import warnings
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed._classes import is_iterable, keeps_state
from ringfeed._units import show_bytes, show_s
from ringfeed.datasets.base import MAX_ROWS
from ringfeed.datasets.first import raised_text, sample_context
from ringfeed.datasets.peekable import begin
from ringfeed.datasets.states import State, UnfitError, encoded
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from ringfeed.errors import FunctionError, SpecError, WorkerError
from ringfeed.spec.spec import Spec
from ringfeed.system import channel as channels
from ringfeed.testing.resume import CLOCK, GLOBAL, ITERABLE, hash_of, seed_globals
from ringfeed.transport.unpacking import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringfeed.system._system import Descriptor

READ = 8  # samples
READ_AGAIN = 16  # samples of a pass, of which three show whether memory grows
SLOW_S = 0.005  # for a length, which is a number that a dataset can keep
LEAK = 64  # bytes a sample
KEPT = 100_000_000  # bytes of all samples, from which it is told that a worker keeps them
PLACE = 80  # bytes of the file that say where the process is
START_S = 60.0  # for the imports of a fresh interpreter

FAILS = (
    "read it alone, where the traceback is whole; where a fresh process alone fails, __getstate__ "
    "leaves out what it needs, or the program has set a global that a worker does not have"
)
EMPTY = "look at the path that it reads"
LENGTH = "count once, in __init__, and keep the number"
INDICES = (
    "find a sample by the number that the index is, and raise IndexError where there is none: a "
    "sampler of your own may give such an index, and a wrong one is not noticed"
)
STATE = (
    "have state_dict() return all that the next samples depend on, as JSON, and load_state_dict() "
    "set it again"
)
NOTES = {
    "handle in a fork",
    "index past the end",
    "keeps samples",
    "long list",
    "negative index",
    "NumPy's index",
}
LEAKS = "append to nothing that lives as long as the dataset; give a cache a bound"


class Finding(NamedTuple):
    """A fault of a dataset, or a note: its name, what was seen, and what to do next."""

    fault: str
    seen: str
    remedy: str

    @property
    def is_note(self) -> bool:
        """Whether a plain loader has no trouble with it."""
        return self.fault in NOTES


class Seen(NamedTuple):
    """What a process has seen; ``hashes``: of the samples that were the same twice, by number."""

    findings: dict[str, Finding]
    hashes: dict[int, str]


def main(channel: Descriptor, _lifeline: object) -> None:
    """Look at the dataset that is sent, in a fresh interpreter."""
    order, (log, *files) = channels.receive(channel)
    warnings.simplefilter("ignore")
    dataset = unpack(order.pop("manifest"), [file.fileno() for file in files])
    answer(dataset, log.fileno(), order, channel)


def answer(dataset: Any, log: int, order: dict[str, Any], channel: Descriptor) -> None:
    """Send what is seen of a dataset that is here, in a process of its own."""
    faulthandler.enable(log)  # writes the stack where the process is ended by SIGABRT
    warnings.simplefilter("ignore")
    look = _Look(dataset, log, **order)
    with redirect_stdout(None):
        try:
            (look.stream if is_iterable(dataset) else look.samples)()
        except WorkerError as error:
            look.find("fails", str(error), FAILS)
    channels.send(channel, Seen(look.findings, look.hashes))


class _Look:
    """The steps, and what they have found."""

    def __init__(
        self, dataset: Any, log: int, *, batch_size: int | None, seconds: float, first_s: float
    ) -> None:
        self.dataset, self.source = dataset, open_source(dataset, Terms(batch_size))
        self.log, self.seconds, self.limit_s, self.steps = log, seconds, first_s, 0
        self.findings: dict[str, Finding] = {}
        self.hashes: dict[int, str] = {}
        self.length: int | None = None
        self.spec: Spec | None = None

    def find(self, fault: str, *seen: Any) -> None:
        """Note a finding; the first of each fault is enough."""
        self.findings.setdefault(fault, Finding(fault, *seen))

    def do(self, where: str, call: Callable[..., Any], *given: Any, number: int = 0) -> Any:
        """Call the user's code, with the random numbers of a sample; WorkerError if it raises."""
        self.steps += 1
        place = f"{self.limit_s} {self.steps} {where}"
        os.pwrite(self.log, place.encode()[:PLACE].ljust(PLACE), 0)
        with sample_context(self.source, number, where):
            try:
                return call(*given)
            except Exception as error:
                raise FunctionError(raised_text(where, error)) from error

    # ---- samples by number ----

    def _read(self, index: Any) -> Any:
        number = int(index) % (self.length or MAX_ROWS)
        sample = self.do(f"dataset[{index!r}]", self.source.element, index, number=number)
        self.limit_s = self.seconds
        return sample

    def samples(self) -> None:
        """Read some samples twice, and look at the indices, the states, the memory, the length."""
        self.length, first = self.do("len(dataset)", self.source.length), dict[int, str]()
        state, until_s = self._state(self.dataset), time.monotonic() + self.seconds
        count = READ if self.length is None else self.length
        if not count:
            self.find("no sample", "len(dataset) is 0", EMPTY)
            return
        for index in map(int, np.linspace(0, count - 1, min(count, READ))):
            if time.monotonic() < until_s:
                sample = self._read(index)
                first[index] = hash_of(sample)
                self._fit(sample, index)
        # In another order: what was read before may count.
        for index in reversed(first):
            if hash_of(self._read(index)) == first[index]:
                self.hashes[index] = first[index]
            else:
                self._impure(index)
        if self.hashes and hasattr(type(self.dataset), "__getitem__"):  # Mix and Pack have none
            self._indices()
        if time.monotonic() < until_s:
            self._growth(range(min(count, READ_AGAIN)))
        self._restore(state)
        began_s = time.thread_time()  # which a busy machine does not lengthen
        if (now := self.do("len(dataset)", self.source.length)) != self.length:
            self.find("changes its length", f"it is {self.length} first, and {now} later", LENGTH)
        if (took_s := time.thread_time() - began_s) > SLOW_S:
            seen = f"len(dataset) takes {show_s(took_s)}, and is asked for at each epoch"
            self.find("slow length", seen, LENGTH)

    def _fit(self, sample: Any, index: int) -> None:
        """Note a sample that no slot can hold, or none that holds the first."""
        try:
            if self.source.whole:
                spec, _ = Spec.infer_batch(sample, index)
            else:
                spec = Spec.infer(sample, index, strings=True)
            self.spec = first = self.spec or spec
            for number, leaf in enumerate(first.flatten(sample, index)) if spec != first else ():
                if self.source.whole:
                    first.batch_array(number, leaf, index, MAX_ROWS)
                elif first.leaves[number].form is None:  # a text is as long as it is
                    first.array(number, leaf, index)
        except SpecError as error:
            fault = "samples differ" if self.spec else "no sample"
            self.find(fault, *str(error).split("; ", 1))

    def _impure(self, index: int) -> None:
        """Note a sample that is another the second time, and say why by reading it seeded."""
        found = set()
        for _ in range(2):
            seed_globals()
            found.add(hash_of(self._read(index)))
        seen = f"dataset[{index}] is another sample when it is read again"
        self.find("not pure", seen, CLOCK if len(found) > 1 else GLOBAL)

    def _indices(self) -> None:
        """Read by indices that users' samplers give, and by one that there is not."""
        (first, expected), *_ = self.hashes.items()
        if self._tried(np.int64(first)) != expected:
            seen = f"dataset[np.int64({first})] is not dataset[{first}]"
            self.find("NumPy's index", seen, INDICES)
        if length := self.length:
            last = self.hashes.get(length - 1)
            if self._tried(-1) not in {last, None}:
                seen = f"dataset[-1] is a sample, and not dataset[{length - 1}]"
                self.find("negative index", seen, INDICES)
            if self._tried(length):
                seen = f"dataset[{length}] is a sample, and len(dataset) is {length}"
                self.find("index past the end", seen, INDICES)

    def _tried(self, index: Any) -> str | None:
        """Return the hash of a sample, None where it raises."""
        with suppress(WorkerError):
            return hash_of(self._read(index))
        return None

    # ---- states ----

    def _state(self, owner: Any) -> bytes | None:
        """Return the state of a dataset or an iterator; None: it has none that can be kept."""
        if not keeps_state(owner):
            return None
        try:
            return encoded(self.do("state_dict()", owner.state_dict))
        except UnfitError as error:
            self.find("does not resume", f"what state_dict() returns {error}", STATE)
            return None

    def _restore(self, state: bytes | None) -> None:
        """Load the state of before the samples were read, and the hooks run."""
        if state is not None:
            for hook in self.source.hooks:
                self.do(f"{hook}()", self.source.run_hook, hook)
            self.do("load_state_dict()", self.dataset.load_state_dict, json.loads(state))
            if (now := self._state(self.dataset)) != state:
                seen = (
                    f"after load_state_dict({state.decode()}) the state is {(now or b'').decode()}"
                )
                self.find("does not resume", seen, STATE)

    # ---- an iterable ----

    def stream(self) -> None:
        """Read the first elements twice, and go on from a state amid them."""
        first, state = self._elements(None)
        if first != self._elements(None)[0]:
            self.find("not pure", "the iterable gives others when it is read again", ITERABLE)
            return
        self.hashes = dict(enumerate(first))
        if state is not None and self._elements(state)[0] != first[state.read :]:
            seen = f"from the state after {state.read} elements on, others follow"
            self.find("does not resume", seen, ITERABLE)

    def _elements(self, state: State | None) -> tuple[list[str], State | None]:
        """Return the hashes of the first elements, and the state amid them; or of those after."""
        iterator, owner = self.do("iter(dataset)", begin, self.dataset, state)
        found, amid = list[str](), None
        for number in range(READ - (state.read if state else 0)):
            element = self.do(f"element {number}", next, iterator, self, number=number)
            if element is self:  # which stands for the end
                break
            found.append(hash_of(element))
            if len(found) == READ // 2 and (text := self._state(owner)) is not None:
                amid = State(len(found), text)
        return found, amid

    # ---- memory ----

    def _growth(self, indices: Sequence[int]) -> None:
        """Read samples three times: what still grows the third time is never given back."""
        tracemalloc.start()
        first, second, third = (self._left(indices) / len(indices) for _ in range(3))
        if min(second, third) > LEAK:
            before = tracemalloc.take_snapshot()
            self._left(indices)
            seen = f"each sample leaves {show_bytes(int(third))} behind{_line_of_growth(before)}"
            self.find("grows memory", seen, LEAKS)
        elif (size := int(first * (self.length or 0))) > KEPT:
            seen = f"a worker that keeps what it has read has {show_bytes(size)} after an epoch"
            self.find("keeps samples", seen, LEAKS)
        tracemalloc.stop()

    def _left(self, indices: Sequence[int]) -> int:
        """Return the bytes that are left of reading some samples."""
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for index in indices:
            self._read(index)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before


def _line_of_growth(before: tracemalloc.Snapshot) -> str:
    """Name the line that has allocated most since."""
    for found in tracemalloc.take_snapshot().compare_to(before, "lineno"):
        frame = found.traceback[0]
        if frame.filename not in {__file__, tracemalloc.__file__}:
            return f", at {Path(frame.filename).name}:{frame.lineno}"
    return ""
