"""The states of iterables' own: what is kept, for how long, how often, and which are refused."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ringfeed._classes import is_iterable
from ringfeed.datasets import peekable
from ringfeed.datasets import states as stream_states
from ringfeed.datasets.round_robin import RoundRobinEpoch
from ringfeed.datasets.states import (
    ENTRIES,
    HEAD,
    LARGEST,
    MOST_SIZE,
    State,
    StateRecorder,
    StreamStates,
    encoded,
    states_size,
)
from ringfeed.datasets.states import UnfitError as Unfit
from ringfeed.errors import StateError
from ringfeed.orders.custom import Custom
from ringfeed.system.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("nothing_left")]
ROWS = 10


def kept(streams: int = 2, *, shared: bool = False) -> StreamStates:
    """Return room for the states of some streams."""
    size = states_size(streams, keeps=True)
    return StreamStates(size, streams, reserve("ringfeed-test", size) if shared else None)


@pytest.mark.parametrize("shared", [False, True])
def test_the_newest_state_before_an_element_is_found(*, shared: bool) -> None:
    """Of each stream its own, of this epoch, and none that lies behind."""
    states = kept(shared=shared)
    for count in (20, 40, 60):
        states.save(0, 3, State(count, b'{"at":%d}' % count))
    states.save(1, 3, State(10, b"1"))
    states.save(1, 2, State(5, b"2"))
    assert [states.find(0, 3, count) for count in (19, 20, 59)] == [
        None,
        State(20, b'{"at":20}'),
        State(40, b'{"at":40}'),
    ]
    assert states.find(1, 3, 100) == State(10, b"1")
    assert states.newest(3, [70, 9]) == [{"read": 60, "of": {"at": 60}}, None]
    assert states.newest(3, [70, 9], [None, {"read": 8, "of": 0}]) == [
        {"read": 60, "of": {"at": 60}},
        {"read": 8, "of": 0},
    ]
    assert states.newest(4, [70, 9]) is None
    states.close()
    assert states.find(0, 3, 59) == State(40, b'{"at":40}')


def test_the_oldest_makes_room() -> None:
    """Also where an epoch was begun again at an earlier element: what was written last stays."""
    states = kept(1)
    for count in range(100, 100 + 10 * ENTRIES, 10):
        states.save(0, 0, State(count, b"1"))
    for count in (10, 20):
        states.save(0, 0, State(count, b"2"))
    assert [states.find(0, 0, count) for count in (15, 25, 119)] == [
        State(10, b"2"),
        State(20, b"2"),
        State(20, b"2"),
    ]
    assert states.find(0, 0, 120) == State(120, b"1")


def test_what_is_half_written_is_no_state() -> None:
    """Its checksum is another: an older one counts."""
    states = kept(1)
    states.save(0, 0, State(10, b"[1]"))
    states.save(0, 0, State(20, b"[22]"))
    texts = states._records["entries"]["text"]
    texts[texts == b"[22]"] = b"[32]"
    assert states.find(0, 0, 30) == State(10, b"[1]")


def test_other_threads_look_while_it_is_closed() -> None:
    """What they find is what was kept."""
    for _ in range(20):
        states = kept(1, shared=True)
        states.save(0, 0, State(10, b"[1]"))
        found: list[Any] = []
        looking = threading.Thread(
            target=lambda s=states, f=found: f.extend(s.find(0, 0, 10) for _ in range(2000))
        )
        looking.start()
        states.close()
        looking.join(60)
        assert set(found) == {State(10, b"[1]")}


@pytest.mark.parametrize(
    ("streams", "keeps", "size"),
    [
        (1, False, HEAD),
        (1, True, HEAD + ENTRIES * LARGEST),
        (3, False, 3 * HEAD),
        (64, True, MOST_SIZE),
        (4096, True, 4096 * HEAD),
        (4097, True, 0),
        (4097, False, 0),
    ],
)
def test_how_much_memory_they_take(streams: int, *, keeps: bool, size: int) -> None:
    """At most a megabyte, however many streams there are."""
    assert states_size(streams, keeps=keeps) == size


def test_without_memory_nothing_is_kept() -> None:
    """Streams are skipped then."""
    narrow = StreamStates(states_size(2, keeps=False), 2)
    with pytest.raises(Unfit, match=r"^has no room beside those of so many iterables$"):
        narrow.save(0, 0, State(1, b"1"))
    assert narrow.find(0, 0, 5) is None


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"draws": np.zeros(3)}, "is not JSON: Object of type ndarray is not JSON serializable"),
        ({"loss": float("nan")}, "is not JSON: Out of range float values are not JSON compliant"),
        ({"at": (1, 2)}, "is changed by JSON, which has lists for tuples, and no keys but strings"),
        ({3: 1}, "is changed by JSON, which has lists for tuples, and no keys but strings"),
    ],
)
def test_what_is_no_json_is_refused(state: Any, why: str) -> None:
    """The reason says what is in the way."""
    with pytest.raises(Unfit) as caught:
        encoded(state)
    assert str(caught.value).partition(": nan")[0] == why


class Counter:
    """An iterator with a state; ``clock`` runs on by ``cost_ns`` whenever that is asked for."""

    def __init__(self, *, cost_ns: int = 0) -> None:
        self.at = 0
        self.now_ns = 0
        self.cost_ns = cost_ns
        self.asked: list[int] = []

    def state_dict(self) -> dict[str, int]:
        self.now_ns += self.cost_ns
        self.asked.append(self.at)
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def read(counter: Counter, recorder: StateRecorder, elements: int, *, each_ns: int) -> None:
    """Read elements as a stream does."""
    while counter.at < elements:
        text = recorder.take(counter.at) if counter.at >= recorder.due else None
        counter.now_ns += each_ns
        if text is not None:
            recorder.keep(counter.at, text)
        counter.at += 1


@pytest.mark.parametrize(
    ("cost_ns", "slots", "batches"),
    [(0, 4, 2), (0, 32, 6), (1000, 4, 10), (10**9, 4, 64)],
    ids=["for nothing", "many slots", "at a hundredth of the time", "at any price"],
)
def test_how_often_a_state_is_taken(
    monkeypatch: pytest.MonkeyPatch, cost_ns: int, slots: int, batches: int
) -> None:
    """As often as it takes no more than a hundredth of the time, every 64 batches in any case."""
    counter, states = Counter(cost_ns=cost_ns), kept(1)
    monkeypatch.setattr(stream_states, "now_ns", lambda: counter.now_ns)
    recorder = StateRecorder(states, 0, 0, ROWS, slots)
    recorder.begin(counter)
    read(counter, recorder, 200 * ROWS, each_ns=1000)
    steps = set(np.diff(counter.asked[1:]).tolist())
    assert counter.asked[0] == 1
    assert steps == {batches * ROWS}
    last = counter.asked[-1]
    assert states.find(0, 0, 10**6) == State(last, b'{"at":%d}' % last)


def test_a_state_that_does_not_change_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is kept only when the second differs."""
    counter, states = Counter(), kept(1)
    monkeypatch.setattr(stream_states, "now_ns", lambda: counter.now_ns)
    counter.state_dict = lambda: {"at": 7}  # type: ignore[method-assign]
    recorder = StateRecorder(states, 0, 0, ROWS, 4)
    recorder.begin(counter)
    read(counter, recorder, 100 * ROWS, each_ns=1)
    assert states.find(0, 0, 10**6) is None
    why = "is the same after 1 and after 21 elements, so it does not say where it is"
    assert states.refusal() == (0, why)


def test_a_state_that_stays_after_a_load_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state is kept only when it changes, however it differs from the one that was loaded."""
    counter, states = Counter(), kept(1)
    monkeypatch.setattr(stream_states, "now_ns", lambda: counter.now_ns)
    counter.state_dict = lambda: {"at": 0}  # type: ignore[method-assign]
    states.seed(0, [{"read": 40, "of": {"at": 40}}])
    recorder = StateRecorder(states, 0, 0, ROWS, 4)
    counter.at = 40
    recorder.begin(counter, 40)
    read(counter, recorder, 100 * ROWS, each_ns=1)
    assert states.find(0, 0, 10**6) is None
    assert states.refusal() == (
        0,
        "is the same after 41 and after 61 elements, so it does not say where it is",
    )


def test_states_that_were_kept_go_with_their_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one does not say where the iterable is, those of before are not used either."""
    counter, states = Counter(), kept(1)
    monkeypatch.setattr(stream_states, "now_ns", lambda: counter.now_ns)
    counter.state_dict = lambda: {"at": min(counter.at, 50)}  # type: ignore[method-assign]
    recorder = StateRecorder(states, 0, 0, ROWS, 4)
    recorder.begin(counter)
    read(counter, recorder, 50, each_ns=1)
    assert states.newest(0, [50]) == [{"read": 41, "of": {"at": 41}}]
    read(counter, recorder, 100 * ROWS, each_ns=1)
    assert states.newest(0, [10**6], [{"read": 0, "of": {"at": 0}}]) is None


# ---- which iterables have states ----


class Whole:
    """An iterable with a state."""

    def __init__(self) -> None:
        self.at = 0
        self.array = np.zeros(4)

    def __iter__(self) -> Iterator[int]:
        while self.at < 5:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Asks(Whole):
    """As MosaicML's StreamingDataset does, its state asks for the samples that were read."""

    def state_dict(self, num_samples: int) -> dict[str, int]:  # type: ignore[override]
        return {"at": num_samples}


class BufferShuffledExamplesIterable:
    """Named as a part of Hugging Face's."""


class MappedExamplesIterable:
    """Another part."""

    ex_iterable = BufferShuffledExamplesIterable()


class Shuffled(Whole):
    """Built as an IterableDataset of Hugging Face's is after shuffle()."""

    _ex_iterable = MappedExamplesIterable()


class OfHuggingFace(Whole):
    """Newer releases give a column by its name."""

    def __getitem__(self, column: str) -> None:
        raise KeyError(column)


for named in (Shuffled, OfHuggingFace):
    named.__module__, named.__name__ = "datasets.iterable_dataset", "IterableDataset"


def test_which_iterables_have_states() -> None:
    """Those whose states come without a question, and say all."""
    assert [peekable.has_state(one) for one in (Whole(), Asks(), Shuffled(), [1], iter([1]))] == [
        True
    ] + [False] * 4
    assert is_iterable(OfHuggingFace())


def test_an_iterable_with_a_state_is_copied() -> None:
    """It is read from its start in each epoch, wherever the last one was left.

    Its arrays are shared.
    """
    whole = Whole()
    for _ in range(2):
        iterator, owner = peekable.begin(whole)
        assert [*iterator] == [1, 2, 3, 4, 5]
        assert owner.at == 5
        assert np.shares_memory(owner.array, whole.array)
    iterator, _ = peekable.begin(whole, State(3, b'{"at":3}'))
    assert [*iterator] == [4, 5]
    assert whole.at == 0


@pytest.mark.parametrize("held", [lambda: 0, threading.Lock()], ids=["a function", "a lock"])
def test_what_pickle_cannot_copy(held: Any) -> None:
    """Copied without pickle, or read itself."""
    whole = Whole()
    whole.held = held  # type: ignore[attr-defined]
    iterator, owner = peekable.begin(whole)
    assert [*iterator] == [1, 2, 3, 4, 5]
    assert (owner is whole) == (not callable(held))


def test_an_iterator_goes_on_without_what_was_read_ahead() -> None:
    """What was read of it to learn the spec belongs to its start."""
    inner = Whole()
    iterator = peekable.Peekable(iter(inner))
    assert not peekable.has_state(iterator)

    class Walk(Whole):
        def __next__(self) -> int:
            self.at += 1
            if self.at > 5:
                raise StopIteration
            return self.at

        def __iter__(self) -> Iterator[int]:
            return self

    walk = peekable.Peekable(Walk())
    assert walk.peek() == 1
    found, owner = peekable.begin(walk)
    assert next(found) == 1
    assert owner is walk
    found, _ = peekable.begin(walk, State(3, b'{"at":3}'))
    assert [*found] == [4, 5]


def test_a_state_of_another_run_is_none() -> None:
    """An epoch begun anew finds no older state, nor one that a worker keeps late."""
    states = kept(1, shared=True)
    run = states.run
    states.save(0, 0, State(10, b"1"))
    states.begin_run()
    assert states.run == run + 1
    assert states.find(0, 0, 10) is None
    states.save(0, 0, State(8, b"2"))
    states.save(0, 0, State(9, b"1"), run)
    assert states.find(0, 0, 10) == State(8, b"2")
    states.refuse(0, "x" * HEAD)
    assert (states.run, states.find(0, 0, 10)) == (run + 1, None)
    states.save(0, 0, State(9, b"3"))
    states.close()
    assert (states.run, states.find(0, 0, 10)) == (run + 1, State(9, b"3"))


class Endless:
    """A sampler without end, and with a state."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()

    def state_dict(self) -> dict[str, int]:
        """Return a state."""
        return {}

    def load_state_dict(self, state: object) -> None:
        """Take it."""


@pytest.mark.parametrize(
    "epoch", [RoundRobinEpoch(3, 1), Custom(Endless()).epoch(0)], ids=["iterables", "sampler"]
)
def test_where_an_epoch_is_can_be_asked_while_batches_are_planned(epoch: Any) -> None:
    """From another thread, at any moment."""
    raised, is_over = [], threading.Event()

    def look() -> None:
        try:
            while not is_over.is_set():
                with contextlib.suppress(StateError):
                    epoch.state(-1)
        except RuntimeError as error:
            raised.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        looking = threading.Thread(target=look)
        looking.start()
        for _ in range(20_000):
            epoch.take(1)
            if raised:
                break
    finally:
        sys.setswitchinterval(before)
        is_over.set()
        looking.join(60)
    assert not raised
