"""The elements of a stream by their numbers: see `reading.store`."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ringfeed._failure import Kind, pickled
from ringfeed.reading import store as stores
from ringfeed.reading.store import ELEMENT, GoneError, Run, Store, StoreSizes, TooLargeError
from ringfeed.system.memory import reserve
from watching import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once
SIZES = StoreSizes(slots=2, rows=4, workers=2)
RUN, NEXT_RUN = Run(1, 0, 6), Run(2, 0, 0)
HOUR_NS = 3600 * 10**9


@pytest.fixture
def store(nothing_left: None) -> Iterator[Store]:  # noqa: ARG001 - it looks after this
    """Return a store whose run begins at element 6, of blocks 0-3, 4-7 and so on."""
    with reserve("ringfeed-test", 4096 + SIZES.total, 4096 + SIZES.words) as memfd:
        made = Store(memfd, 4096, SIZES)
        made.tell(*RUN)
        made.begin(RUN)
        yield made
        del made.words  # unmaps it, and the fixture lives on


def content(store: Store, run: Run, number: int) -> bytes:
    """Return the bytes of an element."""
    return bytes(store.get(run.number, number))


def bytes_of(number: int) -> bytes:
    """Return bytes as those of an element, of another length for each."""
    return bytes([ELEMENT, number]) * number


ERROR, END = bytes([Kind.ERROR]), bytes([Kind.END])
ONE = bytes_of(1)


def test_elements_are_kept_until_no_worker_may_ask(store: Store) -> None:
    """Those of as many batches as there are slots, and of some blocks more."""
    assert SIZES.regions == 5
    assert store.limit(RUN) == (6 // 4 + 5) * 4
    for number in range(6, 24):
        store.put(RUN, number, bytes_of(number))
    assert [content(store, RUN, number) for number in range(6, 24)] == [
        bytes_of(n) for n in range(6, 24)
    ]
    store.want(0, RUN.number, 13)
    store.want(1, RUN.number, 9)
    assert store.limit(RUN) == (6 // 4 + 5) * 4
    store.want(1, RUN.number, 21)
    assert store.limit(RUN) == (14 // 4 + 5) * 4
    store.want(0, NEXT_RUN.number, 99)
    assert store.limit(RUN) == (14 // 4 + 5) * 4
    for number in range(24, 32):
        store.put(RUN, number, bytes_of(number))
    assert [content(store, RUN, number) for number in range(14, 32)] == [
        bytes_of(n) for n in range(14, 32)
    ]


def test_a_run_has_nothing_of_another(store: Store) -> None:
    """Neither elements nor the end."""
    store.put(RUN, 6, ONE)
    store.put(RUN, 7, END + b"e")
    assert store.has(RUN.number, 6)
    assert store.has(RUN.number, 12)
    assert store.get(RUN.number, 12) == END + b"e"
    store.tell(*NEXT_RUN)
    assert store.told() == NEXT_RUN
    assert store.begin(NEXT_RUN) == 0
    assert not store.is_over
    assert not store.has(NEXT_RUN.number, 6)
    assert not store.has(RUN.number, 12)
    with pytest.raises(GoneError):
        store.get(RUN.number, 6)


def test_another_reader_goes_on_behind_the_newest_element(store: Store) -> None:
    """Also where the last was written, and not yet told; and counts the deaths at an element."""
    for number in range(6, 10):
        assert store.note_reading(number) == 0
        store.put(RUN, number, ONE)
    store.words[4 + 1] = 9  # what is told lies behind
    assert store.begin(RUN) == 10
    assert [store.note_reading(10) for _ in range(3)] == [0, 1, 2]
    store.put(RUN, 10, ERROR + b"why")
    assert store.get(RUN.number, 10) == ERROR + b"why"
    assert store.note_reading(11) == 0


def test_what_has_no_room_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason why an element is not there has room always."""
    monkeypatch.setattr(stores, "REGION", 2**16)
    store.put(RUN, 8, ONE * 20_000)
    with pytest.raises(TooLargeError):
        store.put(RUN, 9, ONE * 10_000)
    store.put(RUN, 9, ERROR * 4096)


def test_a_worker_sleeps_until_its_element_is_there(store: Store) -> None:
    """Or until the end, wherever that is."""
    woken = list[int]()

    def wait(number: int) -> None:
        while not store.has(RUN.number, number):
            store.wait(RUN.number, number, HOUR_NS)
        woken.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in (6, 12)]
    for thread in threads:
        thread.start()
    store.put(RUN, 6, ONE)
    threads[0].join(PATIENCE_S)
    assert woken == [6]
    store.put(RUN, 7, END + b"e")
    threads[1].join(PATIENCE_S)
    assert woken == [6, 12]


@pytest.mark.parametrize("number", [6, 12])
@pytest.mark.parametrize("found", [ONE, END], ids=["element", "end"])
def test_what_comes_between_a_look_and_the_sleep_is_not_slept_through(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, found: bytes
) -> None:
    """The element that a worker waits for, or the end, which is told elsewhere."""
    for before in range(6, number if found == ONE else 6):
        store.put(RUN, before, ONE)
    has = store.has

    def look(run: int, wanted: int) -> bool:
        is_there = has(run, wanted)
        store.put(RUN, number if found == ONE else 6, found)
        return is_there

    monkeypatch.setattr(store, "has", look)
    sleeper = threading.Thread(target=store.wait, args=(RUN.number, number, HOUR_NS), daemon=True)
    sleeper.start()
    sleeper.join(PATIENCE_S)
    assert not sleeper.is_alive()


def test_room_that_is_made_before_the_reader_rests_is_not_slept_through(store: Store) -> None:
    """A claim that comes when the reader has found its store full, and does not sleep yet."""
    for number in range(6, store.limit(RUN)):
        store.put(RUN, number, ONE)
    asked = store.asked
    store.want(0, RUN.number, 15)
    reader = threading.Thread(target=store.rest, args=(asked, HOUR_NS), daemon=True)
    reader.start()
    reader.join(PATIENCE_S)
    assert not reader.is_alive()


def test_the_reader_sleeps_until_it_is_asked(store: Store) -> None:
    """By a worker that claims something new, or by the consumer."""
    limit = store.limit(RUN)
    for number in range(6, limit):
        store.put(RUN, number, ONE)
    for ask, is_heard in (
        (lambda: store.want(0, RUN.number, 15), True),
        (lambda: store.want(0, RUN.number, 15), False),
        (lambda: store.tell(*NEXT_RUN), True),
    ):
        asked = store.asked
        thread = threading.Thread(target=store.rest, args=(asked, HOUR_NS if is_heard else 1))
        thread.start()
        ask()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert (store.asked > asked) == is_heard
    assert store.limit(NEXT_RUN) == SIZES.regions * SIZES.rows


@pytest.mark.parametrize(
    "element",
    [
        b"",
        b"abc" * 1000,
        (np.arange(5), {"a": np.ones((3, 2), order="F"), "b": np.arange(10)[::2]}, "é", None, 1.5),
        [np.arange(number) for number in range(300)],
    ],
)
def test_an_element_comes_back_from_its_bytes(element: object) -> None:
    """Its arrays can be written."""
    found = pickle.loads(pickled(element))
    np.testing.assert_equal(found, element)
    arrays = (
        [one for one in found if isinstance(one, np.ndarray)]
        if isinstance(found, list | tuple)
        else []
    )
    assert all(array.flags.writeable for array in arrays)
