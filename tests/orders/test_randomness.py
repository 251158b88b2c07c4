"""Random numbers by sample: the Generator of `rng`, and the legacy global states."""

from __future__ import annotations

import copy
import pickle
import random
import sys
import threading
from hashlib import shake_256
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfeed
from ringfeed.orders.rng import SampleContext, derive, installed, reseed, rng, scatter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MASK = 2**64 - 1


@pytest.fixture
def context() -> Iterator[SampleContext]:
    """A context installed for this thread, as a worker does it."""
    context = SampleContext(seed=11, epoch=2, index=5)
    before, installed.context = installed.context, context
    yield context
    installed.context = before


@pytest.fixture
def legacy_states() -> Iterator[None]:
    """The global states of this process, put back afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    yield
    np.random.set_state(numpy_state)  # noqa: NPY002
    random.setstate(python_state)


def raw(generator: np.random.Generator, size: int = 6) -> list[int]:
    """Return the next words of the stream beneath a Generator: no release of NumPy changes them."""
    words: list[int] = generator.bit_generator.random_raw(size).tolist()
    return words


def words_of(seed: int, epoch: int, index: int, size: int = 6) -> list[int]:
    """Return the first words of one sample."""
    before, installed.context = installed.context, SampleContext(seed, epoch, index)
    try:
        return raw(rng(), size)
    finally:
        installed.context = before


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Return one block of Philox4x64-10, in plain integers, from the paper."""
    for _ in range(10):
        one, other = counter[0] * 0xD2E7470EE14C6C93, counter[2] * 0xCA5A826395121157
        left = other >> 64 ^ counter[1] ^ key[0], other & MASK
        counter = (*left, one >> 64 ^ counter[3] ^ key[1], one & MASK)
        key = ((key[0] + 0x9E3779B97F4A7C15) & MASK, (key[1] + 0xBB67AE8584CAA73B) & MASK)
    return list(counter)


@given(st.integers(0, 2**200), st.integers(0, MASK), st.integers(0, MASK))
@settings(deadline=None)
def test_the_stream_is_the_documented_one(seed: int, epoch: int, index: int) -> None:
    """Philox4x64-10, its key from the seed, its counter up from (0, index, 0, epoch).

    Block 1 comes first.
    """
    key = shake_256(f"ringfeed rng {seed:x}".encode()).digest(16)
    words = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    blocks = [philox((count, index, 0, epoch), words) for count in (1, 2)]
    assert words_of(seed, epoch, index, 8) == blocks[0] + blocks[1]


@pytest.mark.parametrize(
    ("seed", "epoch", "index", "expected"),
    [
        (0, 0, 0, [10940910284106703969, 185766019075676090, 8981147287359589215]),
        (0, 0, 1, [4960478370157278297, 18059563527000176421, 11591160783333766253]),
        (0, 1, 0, [8791178168111416237, 13040220838780463552, 14922288273892737479]),
        (42, 7, 49_999, [6202739801696832033, 7528395566234099696, 15641186334815191162]),
        (2**100, MASK, 2**63, [5971706912606051043, 16654389760126477077, 14884749063657218230]),
    ],
)
def test_no_version_changes_anyones_numbers(
    seed: int, epoch: int, index: int, expected: list[int]
) -> None:
    """These first words were given by the first release, and so they stay."""
    assert words_of(seed, epoch, index, len(expected)) == expected


def test_one_sample_has_one_generator(context: SampleContext) -> None:
    """Within a sample every call gives the same object, and draws go on."""
    generator = rng()
    first = raw(generator, 3)
    assert rng() is generator
    assert first + raw(rng(), 3) == words_of(11, 2, 5)
    assert context.index == 5


@pytest.mark.parametrize("index", [5, 6, 1000, 2**63, np.int64(5)])
def test_storing_an_index_begins_its_stream(context: SampleContext, index: int) -> None:
    """Also where it is the index that was there: the same sample may come twice in a row."""
    generator = rng()
    raw(generator)
    context.index = index
    assert rng() is not generator
    assert raw(rng()) == words_of(11, 2, int(index))


@pytest.mark.parametrize(("name", "numbers"), [("epoch", (11, 3, 5)), ("seed", (12, 2, 5))])
def test_a_new_epoch_or_seed_begins_another_stream(
    context: SampleContext, name: str, numbers: tuple[int, int, int]
) -> None:
    """The index alone does not make the stream."""
    raw(rng())
    setattr(context, name, dict(zip(["seed", "epoch", "index"], numbers, strict=True))[name])
    assert raw(rng()) == words_of(*numbers)


def test_a_sample_does_not_depend_on_those_before_it(context: SampleContext) -> None:
    """Any order of samples, with any draws, gives each the same numbers."""
    found = {}
    for index in (9, 3, 9, 0):
        context.index = index
        found[index] = raw(rng(), 4 + index)[:4]
    for index in (0, 3, 9):
        assert found[index] == words_of(11, 2, index, 4)


def test_outside_a_sample_numbers_are_fresh() -> None:
    """No context, no promise: a new Generator in each call, seeded by the operating system."""
    one, other = rng(), rng()
    assert one is not other
    assert one.integers(2**62, size=4).tolist() != other.integers(2**62, size=4).tolist()


def test_contexts_nest() -> None:
    """A loader read inside a sample of another one puts back what it found.

    The draws there go on.
    """
    outer = SampleContext(1, 0, 3)
    assert installed.context is None
    installed.context = outer
    try:
        words = raw(rng(), 2)
        with ringfeed.Loader(Drawing(), batch_size=4, seed=2, workers=0) as loader:
            (batch,) = loader
        assert batch[3].tolist() == words_of(2, 0, 3)
        assert installed.context is outer
        assert words + raw(rng(), 4) == words_of(1, 0, 3)
    finally:
        installed.context = None


class Drawing:
    """Samples of six random words."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return np.array(raw(rng(), 6), np.uint64)


def in_thread(work: Callable[[], list[int]]) -> list[int]:
    """Return what ``work`` returns in a thread of its own."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(work()))
    thread.start()
    thread.join(timeout=120)
    return found


def test_threads_have_contexts_of_their_own(context: SampleContext) -> None:
    """A worker thread draws its sample's numbers while another thread makes another sample."""
    context.index = 6
    assert in_thread(lambda: words_of(11, 2, 5)) == words_of(11, 2, 5)
    assert raw(rng()) == words_of(11, 2, 6)
    bare = in_thread(lambda: [type(rng().bit_generator) is np.random.Philox])
    assert bare == [False]


def test_streams_are_unrelated() -> None:
    """First words of 4,000 neighbouring samples and epochs are even in their top and low four bits.

    Chi-square with 15 degrees of freedom; 37.7 is exceeded once in a thousand times.
    """
    firsts = [words_of(0, epoch, index, 1) for epoch in range(4) for index in range(1000)]
    words = np.array(firsts, dtype=np.uint64).ravel()
    assert np.unique(words).size == 4000
    for bits in (words >> 60, words & 15):
        observed = np.bincount(bits, minlength=16)
        assert ((observed - 250) ** 2 / 250).sum() < 37.7


def test_every_bit_of_the_numbers_counts() -> None:
    """Seeds beyond 64 bits, and numbers that trade places, give other streams."""
    samples = [
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (2**64, 0, 0),
        (2**64 + 1, 0, 0),
        (2**5000, 0, 0),
        (1, 16, 1),
    ]
    assert len({tuple(words_of(*sample)) for sample in samples}) == len(samples)


def test_jumps_stay_within_the_sample(context: SampleContext) -> None:
    """``jumped()`` streams are neither those of other samples nor those of other epochs."""
    philox_5 = rng().bit_generator
    assert isinstance(philox_5, np.random.Philox)
    jumped = raw(np.random.Generator(philox_5.jumped()))
    near = [words_of(11, epoch, index) for epoch in range(5) for index in range(9)]
    assert jumped not in near
    assert jumped == raw(np.random.Generator(philox_5.jumped()))
    assert context.index == 5


def test_spawned_generators_belong_to_the_sample(context: SampleContext) -> None:
    """``rng().spawn()`` gives a sample the same children each time, new ones on each call."""
    first = [raw(child) for child in [*rng().spawn(2), *rng().spawn(1)]]
    context.index = 5
    again = [raw(child) for child in rng().spawn(3)]
    context.index = 6
    other = [raw(child) for child in rng().spawn(3)]
    assert first == again
    assert len({tuple(words) for words in first + other}) == 6


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda generator: pickle.loads(pickle.dumps(generator))]
)
@pytest.mark.usefixtures("context")
def test_a_copy_goes_on_alone(copied: Callable[[np.random.Generator], np.random.Generator]) -> None:
    """Copies and pickles keep their place in the stream and among the children."""
    raw(rng(), 2)
    rng().spawn(1)
    twin = copied(rng())
    assert raw(twin, 4) == words_of(11, 2, 5)[2:]
    assert raw(rng(), 4) == words_of(11, 2, 5)[2:]
    assert raw(twin.spawn(1)[0]) == raw(rng().spawn(1)[0])


# The legacy states


def legacy() -> tuple[list[int], list[int]]:
    """Return the next numbers of ``numpy.random`` and of ``random``."""
    return np.random.randint(2**31, size=3).tolist(), [random.getrandbits(32) for _ in range(3)]  # noqa: NPY002


@pytest.mark.usefixtures("legacy_states")
def test_reseeding_is_a_function_of_the_sample() -> None:
    """The same sample draws the same legacy numbers after any others.

    Seed, epoch and index all matter.
    """
    found = []
    for numbers in [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3), (1, 2, 3)]:
        reseed(SampleContext(*numbers))
        found.append(legacy())
    assert found[0] == found[-1]
    for part in (0, 1):
        assert len({tuple(drawn[part]) for drawn in found}) == 4


@pytest.mark.usefixtures("legacy_states")
def test_no_version_changes_anyones_legacy_numbers() -> None:
    """These were given by the first release, and so they stay.

    Drawing from `rng` first does not matter.
    """
    context = SampleContext(1, 2, 3)
    before, installed.context = installed.context, context
    rng()
    installed.context = before
    reseed(context)
    assert legacy() == ([1181449986, 608856825, 869841621], [1603575605, 4162353502, 2936859208])


@pytest.mark.usefixtures("legacy_states")
def test_scattered_workers_differ() -> None:
    """Workers, their replacements and other seeds each begin elsewhere.

    A forked state does not survive.
    """
    found = []
    for numbers in [(0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 0, 0)]:
        scatter(*numbers)
        found.append(legacy())
    assert found[0] == found[-1]
    for part in (0, 1):
        assert len({tuple(drawn[part]) for drawn in found}) == 4


@pytest.mark.usefixtures("legacy_states")
def test_scattering_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that uses no legacy module does not pay for its import.

    The other one is still seeded.
    """
    scatter(5, 0, 0)
    numpy_numbers, python_numbers = legacy()
    scatter(5, 0, 0)
    monkeypatch.delitem(sys.modules, "numpy.random")
    monkeypatch.delitem(sys.modules, "random")
    scatter(6, 0, 0)
    assert "numpy.random" not in sys.modules
    assert "random" not in sys.modules
    assert legacy() == (numpy_numbers, python_numbers)


def test_derived_bytes_depend_on_purpose_and_numbers() -> None:
    """The text that is hashed tells all of them apart.

    A longer result begins with the shorter one.
    """
    texts = [("a", (1, 2)), ("a", (12,)), ("b", (1, 2)), ("a", (2, 1)), ("a", (1, 2, 0))]
    assert len({derive(*text, 16) for text in texts}) == len(texts)
    assert derive("a", (1, 255), 40) == shake_256(b"ringfeed a 1/ff").digest(40)
    assert derive("a", (1, 255), 40)[:8] == derive("a", (1, 255), 8)


def test_the_stream_of_a_batch(context: SampleContext) -> None:
    """A tuple of indices is a batch.

    Its stream is of seed, epoch and all of them, and ends with the next index.
    """
    context.index = (3, 1, 4)
    first = rng()
    assert rng() is first
    entropy = int.from_bytes(shake_256(b"ringfeed batch b/2/3/1/4").digest(16), "little")
    assert first.bytes(32) == np.random.Generator(
        np.random.Philox(np.random.SeedSequence(entropy))
    ).bytes(32)
    context.index = 5
    assert rng().bytes(8) != first.bytes(8)
    context.index = 5
    of_sample = rng().bytes(8)
    context.index = (5,)
    assert rng().bytes(8) != of_sample


@pytest.mark.usefixtures("legacy_states")
def test_the_legacy_states_of_a_batch() -> None:
    """With reseed=True a batch has states of its own, too."""
    found = []
    for index in ((3, 1), (1, 3), (3,), 3, (3, 1)):
        reseed(SampleContext(seed=11, epoch=2, index=index))
        found.append((random.random(), np.random.random()))  # noqa: NPY002, S311 - what is tested
    assert found[0] == found[-1]
    assert len({*found}) == 4
