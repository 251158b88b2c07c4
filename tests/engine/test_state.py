"""`Loader.state_dict` and `load_state_dict`.

The rest of an epoch, and all after it, as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import threading
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.once

LENGTH = 103
ROWS = 10


class Augmented:
    """Samples that differ in each epoch, by their own random numbers."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(ringfeed.rng().random())


def stream() -> Iterator[tuple[int, float]]:
    """Give the same samples in order."""
    for index in range(LENGTH):
        yield index, float(ringfeed.rng().random())


ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "shuffled": {"shuffle": True, "seed": 5},
    "array": {"sampler": np.arange(LENGTH)[::-1].copy()},
    "function": {"sampler": lambda epoch: [(7 * i + epoch) % LENGTH for i in range(LENGTH)]},
    "dropped": {"shuffle": True, "drop_remainder": True},
}
SETTINGS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 1},
    {"workers": 2, "backend": "fork"},
    {"workers": 5, "backend": "thread", "slots": 3},
]


def loader_of(order: str, **settings: Any) -> ringfeed.Loader:
    """Return a loader of augmented samples in some order."""
    dataset: Any = stream if order == "stream" else Augmented()
    return ringfeed.Loader(
        dataset, **{"batch_size": ROWS, "workers": 0, **ORDERS.get(order, {}), **settings}
    )


def digest(batches: Any) -> str:
    """Return a hash over all rows of some batches."""
    return hashlib.sha256(
        b"".join(leaf.tobytes() for batch in batches for leaf in batch)
    ).hexdigest()


def copies(batches: Iterator[Any]) -> list[Any]:
    """Return what comes."""
    return [tuple(np.array(leaf) for leaf in batch) for batch in batches]


@pytest.mark.parametrize("order", [*ORDERS, "stream"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_one_hash_wherever_it_is_cut(order: str, settings: dict[str, Any]) -> None:
    """Two epochs that are cut, and go on in new loaders, are those that were not cut."""
    with loader_of(order) as loader:
        whole = digest(copies(iter(loader)) + copies(iter(loader)))
    seen: list[Any] = []
    state: dict[str, Any] = {}
    for batches in (3, 0, 1, 5, 6, 2, 99):
        with loader_of(order, **settings) as loader:
            if state:
                loader.load_state_dict(json.loads(json.dumps(state)))
                assert loader.state_dict() == state
            while loader.epoch < 2 and batches > 0:
                some = copies(islice(loader, batches))
                batches -= len(some)  # noqa: PLW2901 - what is left of them
                seen += some
            state = loader.state_dict()
    assert digest(seen) == whole
    assert (state["epoch"], state["samples"]) == (2, 0)


@pytest.mark.parametrize("rows", [1, 7, 64, 200])
def test_another_batch_size_has_each_sample_once(rows: int) -> None:
    """The state counts samples."""
    with loader_of("shuffled") as loader:
        iterator = iter(loader)
        first = [index for _ in range(3) for index in next(iterator)[0].tolist()]
        state = loader.state_dict()
    with loader_of("shuffled", batch_size=rows) as loader:
        loader.load_state_dict(state)
        rest = [index for batch in loader for index in batch[0].tolist()]
    assert sorted(first + rest) == list(range(LENGTH))


def test_the_state_in_full() -> None:
    """It is flat, short, and says what it counts."""
    with loader_of("shuffled") as loader:
        expected = {
            "version": 1,
            "epoch": 0,
            "samples": 0,
            "batch_size": 10,
            "length": 103,
            "seed": 5,
            "order": "shuffled",
            "spec": "Spec((Array((), 'int64'), Array((), 'float32')))",
            "world_size": 1,
        }
        assert loader.state_dict() == expected
        iterator = iter(loader)
        assert loader.state_dict() == expected
        next(iterator)
        assert loader.state_dict() == {**expected, "samples": 10}
        assert len(json.dumps(loader.state_dict())) < 400
        for _ in iterator:
            pass
        assert loader.state_dict() == {**expected, "epoch": 1}


def test_the_last_batch_ends_the_epoch() -> None:
    """Once it is handed out, the next epoch comes next, though nothing has asked for the end."""
    with loader_of("sequential") as loader:
        iterator = iter(loader)
        for _ in range(11):
            next(iterator)
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (1, 0)


class Failing(Augmented):
    """Samples 4 to 11 cannot be read."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        if 4 <= index < 12:
            raise OSError
        return index, 0.0


@pytest.mark.parametrize("workers", [0, 1])
def test_what_was_left_out_is_not_read_again(workers: int) -> None:
    """Batches whose rows all failed count as done once a later one is handed out."""
    with ringfeed.Loader(Failing(), batch_size=4, workers=workers, on_error="skip") as loader:
        iterator = iter(loader)
        next(iterator)
        assert loader.state_dict()["samples"] == 4
        next(iterator)
        assert loader.state_dict()["samples"] == 16


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failure_is_behind_it(workers: int) -> None:
    """After the error of a batch, the state is that of the next."""
    with ringfeed.Loader(Failing(), batch_size=4, workers=workers) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ringfeed.WorkerError):
            next(iterator)
        assert loader.state_dict()["samples"] == 8


def test_skip_and_remaining() -> None:
    """skip() leaves out so many batches more; remaining counts what is left of the epoch."""
    with loader_of("sequential") as loader:
        assert (len(loader), loader.remaining) == (11, 11)
        loader.skip(batches=3)
        loader.skip(batches=2)
        assert (len(loader), loader.remaining) == (11, 6)
        message = "skip(batches=7), but only 6 batches of epoch 0 are left"
        with pytest.raises(ValueError, match=re.escape(message)):
            loader.skip(batches=7)
        iterator = iter(loader)
        assert next(iterator)[0].tolist() == [*range(50, 60)]
        assert loader.remaining == 5


def test_set_epoch_keeps_the_place_of_its_epoch() -> None:
    """A loop that sets the epoch each time goes on where the state was."""
    with loader_of("sequential") as loader:
        loader.skip(batches=3)
        state = loader.state_dict()
        loader.set_epoch(0)
        assert loader.state_dict() == state
        loader.set_epoch(4)
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (4, 0)


def test_from_a_signal_handler_and_another_thread() -> None:
    """The state is there at any moment."""
    states: list[dict[str, Any]] = []
    with loader_of("shuffled", workers=1) as loader:
        before = signal.signal(signal.SIGUSR1, lambda *_: states.append(loader.state_dict()))
        try:
            for count, _ in enumerate(loader, 1):
                signal.raise_signal(signal.SIGUSR1)
                thread = threading.Thread(target=lambda: states.append(loader.state_dict()))
                thread.start()
                thread.join()
                assert [state["samples"] for state in states] == [count % 11 * 10] * 2
                states.clear()
        finally:
            signal.signal(signal.SIGUSR1, before)


def changed(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    """Return what changes a state."""
    return lambda state: {**state, **changes}


STATE = "expected what state_dict() returned"
OR = "; or load it with strict=False, which begins epoch 0 anew"
SAME = "give the dataset that the state was taken with"
REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no dict": (lambda _: [1, 2], f"the state is a list, {STATE}"),
    "empty": (lambda _: {}, f"the state is a dict without 'version', {STATE}"),
    "version": (
        changed(version=2),
        "the state has version 2, expected 1; load it with the release of ringfeed that made it",
    ),
    "samples": (
        changed(samples=-1),
        "the state's samples is -1, expected an int of 0 or more; it was changed since",
    ),
    "length": (
        changed(length=50),
        f"the state was taken with length 50, and this loader has length 103; {SAME}{OR}",
    ),
    "spec": (
        changed(spec="Array((3,), uint8)"),
        "the state was taken with spec 'Array((3,), uint8)', and this loader has spec "
        f"\"Spec((Array((), 'int64'), Array((), 'float32')))\"; {SAME}{OR}",
    ),
    "fingerprint": (
        changed(fingerprint="abc"),
        (
            "the state was taken with fingerprint 'abc', and this loader has fingerprint None; "
            f"{SAME}{OR}"
        ),
    ),
    "seed": (
        changed(seed=6),
        f"the state was taken with seed 6, and this loader has seed 5; give the loader seed=6{OR}",
    ),
    "order": (
        changed(order="sequential"),
        "the state was taken with order 'sequential', and this loader has order 'shuffled'; give "
        f"the loader the same shuffle=, sampler= and weights{OR}",
    ),
    "past the end": (
        changed(samples=104),
        f"the state is at sample 104 of an epoch of 103; it was changed since{OR}",
    ),
}


@pytest.mark.parametrize("change", REFUSED)
def test_states_that_do_not_fit(change: str) -> None:
    """The error names both sides; nothing has changed."""
    make, message = REFUSED[change]
    with loader_of("shuffled") as loader:
        before = loader.state_dict()
        with pytest.raises(ringfeed.StateError) as raised:
            loader.load_state_dict(make(before))
        assert str(raised.value) == message
        assert loader.state_dict() == before


def test_a_state_of_another_dataset_when_that_is_allowed() -> None:
    """With strict=False its epoch begins anew, with a warning."""
    with loader_of("shuffled") as loader:
        state = {**loader.state_dict(), "length": 50, "samples": 20, "epoch": 3}
        message = (
            "the state was taken with length 50, and this loader has length 103; give the dataset "
            "that the state was taken with; epoch 3 begins anew"
        )
        with pytest.warns(UserWarning, match=re.escape(message)) as warned:
            loader.load_state_dict(state, strict=False)
        assert warned[0].filename == __file__
        assert (loader.state_dict()["epoch"], loader.state_dict()["samples"]) == (3, 0)


@pytest.mark.parametrize("how", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("strict", [True, False])
def test_a_drawn_seed_is_that_of_the_state(how: dict[str, Any], strict: bool) -> None:  # noqa: FBT001 - by name
    """A run that is started anew draws another.

    Its order and its samples are the first one's all the same.
    """
    with loader_of("shuffled", seed=None) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        rest = digest(copies(iterator) + copies(iter(loader)))
    with loader_of("shuffled", seed=None, **how) as loader:
        copies(islice(loader, 2))  # of the other seed
        assert loader.state_dict()["seed"] != state["seed"]
        loader.load_state_dict(state, strict=strict)
        assert loader.state_dict() == state
        assert f"seed: {state['seed']}, " in repr(loader)
        assert digest(copies(iter(loader)) + copies(iter(loader))) == rest


def test_a_state_of_another_seed_amid_an_epoch() -> None:
    """The next epoch has the seed of the state that was loaded last."""
    with loader_of("shuffled") as loader:
        first, second = (copies(iter(loader)) for _ in range(2))
    with loader_of("shuffled", seed=None, workers=2, backend="fork") as loader:
        loader.load_state_dict({**loader.state_dict(), "seed": 5})
        assert digest(copies(islice(loader, 2))) == digest(first[:2])
        loader.load_state_dict({**loader.state_dict(), "seed": 6, "epoch": 1, "samples": 0})
        loader.load_state_dict({**loader.state_dict(), "seed": 5, "epoch": 1, "samples": 0})
        assert digest(copies(iter(loader))) == digest(second)


@pytest.mark.parametrize("seed", [None, "5", -1, True])
def test_a_state_whose_seed_is_none(seed: Any) -> None:
    """Is refused."""
    with loader_of("shuffled", seed=None) as loader:
        before = loader.state_dict()
        with pytest.raises(ringfeed.StateError) as raised:
            loader.load_state_dict({**before, "seed": seed})
        assert (
            str(raised.value)
            == f"the state's seed is {seed!r}, expected an int of 0 or more; it was changed since"
        )
        assert loader.state_dict() == before


def test_fingerprints() -> None:
    """A dataset's own, as Hugging Face has it, or what the loader is given."""

    class Named(Augmented):
        _fingerprint = "0123456789abcdef"

    with ringfeed.Loader(Named(), workers=0) as loader:
        assert loader.state_dict()["fingerprint"] == "0123456789abcdef"
    Named.fingerprint = "mine"  # type: ignore[attr-defined]
    with ringfeed.Loader(Named(), workers=0) as loader:
        assert loader.state_dict()["fingerprint"] == "mine"


def test_several_streams() -> None:
    """Interleaved iterables go on each at its own element."""
    parts = [
        partial(range, number * 100, number * 100 + length)
        for number, length in enumerate((25, 5, 12))
    ]
    settings: dict[str, Any] = {"batch_size": 4, "workers": 0}
    with ringfeed.Loader(ringfeed.datasets.Interleave(parts), **settings) as loader:
        whole = [batch.tolist() for batch in loader]
    for stop in range(1, len(whole) + 1):
        with ringfeed.Loader(ringfeed.datasets.Interleave(parts), **settings) as loader:
            iterator = iter(loader)
            seen = [next(iterator).tolist() for _ in range(stop)]
            state = json.loads(json.dumps(loader.state_dict()))
        with ringfeed.Loader(ringfeed.datasets.Interleave(parts), **settings) as loader:
            loader.load_state_dict(state)
            seen += [batch.tolist() for batch in loader]
        assert seen == whole


class Reshuffled(Augmented):
    """Reshuffles itself at the end of each epoch, as many a Keras dataset does."""

    def __init__(self) -> None:
        super().__init__(40)
        self.draws = np.random.default_rng(3)
        self.order = self.draws.permutation(40)

    def __getitem__(self, index: int) -> tuple[int, float]:
        return int(self.order[index]), 0.0

    def on_epoch_end(self) -> None:
        self.order = self.draws.permutation(40)


class Stateful(Reshuffled):
    """The same, and it knows its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws.bit_generator.state, "order": self.order.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws.bit_generator.state = state["draws"]
        self.order = np.array(state["order"])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Reshuffled, Stateful])
@pytest.mark.parametrize("stop", [0, 1, 9, 10, 11, 25, 30])
def test_hooks_that_reshuffle(kind: type[Reshuffled], stop: int, workers: int) -> None:
    """What they did is done again: by the dataset's own state, or by running them as often."""
    settings: dict[str, Any] = {"batch_size": 4, "workers": workers, "backend": "thread"}
    with ringfeed.Loader(kind(), **settings) as loader:
        whole = [batch[0].tolist() for _ in range(4) for batch in loader]
    seen: list[Any] = []
    with ringfeed.Loader(kind(), **settings) as loader:
        while len(seen) < stop:
            seen += [batch[0].tolist() for batch in islice(loader, stop - len(seen))]
        state = json.loads(json.dumps(loader.state_dict()))
    with ringfeed.Loader(kind(), **settings) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        while loader.epoch < 4:
            seen += [batch[0].tolist() for batch in loader]
    assert seen == whole


def test_hooks_that_have_run_too_often() -> None:
    """What they did cannot be undone."""
    with ringfeed.Loader(Reshuffled(), batch_size=4, workers=0) as loader:
        state = loader.state_dict()
        for _ in loader:
            pass
        loader.load_state_dict(state)
        message = (
            "the hooks of this dataset have run 1 times, and the state is of 0; make the dataset "
            "and the loader anew, or give the dataset state_dict() and load_state_dict()"
        )
        with pytest.raises(ringfeed.StateError, match=re.escape(message)):
            iter(loader)


class Begun(Augmented):
    """Samples that show how often its hooks have run, and in which order."""

    def __init__(self) -> None:
        super().__init__(12)
        self.log = 1

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(self.log)

    def on_epoch_begin(self) -> None:
        self.log = (self.log * 3 + 1) % 1_000_003

    def on_epoch_end(self) -> None:
        self.log = (self.log * 5 + 2) % 1_000_003


@pytest.mark.parametrize("broken_off", [(1, 9), (9, 1, 9), (1, 1, 9), (9, 1, 9, 1), (1, 1), (2,)])
def test_the_hooks_of_epochs_that_were_broken_off_run_again(broken_off: tuple[int, ...]) -> None:
    """``on_epoch_begin`` alone, where it ran alone."""
    with ringfeed.Loader(Begun(), batch_size=4, workers=0) as loader:
        for batches in broken_off:
            copies(islice(loader, batches))
        assert copies(islice(loader, 1))
        iterator = iter(loader)
        first = copies(islice(iterator, 1))
        state = json.loads(json.dumps(loader.state_dict()))
        whole = digest(first + copies(iterator) + copies(loader))
    with ringfeed.Loader(Begun(), batch_size=4, workers=0) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert digest(first + copies(loader) + copies(loader)) == whole


def test_epochs_that_were_not_broken_off_here() -> None:
    """Hooks that ran in another order cannot be undone."""
    with ringfeed.Loader(Begun(), batch_size=4, workers=0) as loader:
        for batches in (1, 1, 9):
            copies(islice(loader, batches))
        state = loader.state_dict()
    assert state["broken_off"] == [[0, 2]]
    with ringfeed.Loader(Begun(), batch_size=4, workers=0) as loader:
        for batches in (1, 9):
            copies(islice(loader, batches))
        loader.load_state_dict(state)
        with pytest.raises(ringfeed.StateError) as caught:
            iter(loader)
    assert str(caught.value) == (
        "after 0 epochs 1 were broken off of this dataset's, and the state is of 2; make the "
        "dataset and the loader anew, or give the dataset state_dict() and load_state_dict()"
    )


def test_a_state_without_epochs_that_were_broken_off_is_as_ever() -> None:
    """As of releases that did not count them."""
    with ringfeed.Loader(Begun(), batch_size=4, workers=0) as loader:
        copies(loader)
        next(iter(loader))
        state = loader.state_dict()
    assert {
        name: value for name, value in state.items() if name not in {"spec", "seed", "order"}
    } == {
        "version": 1,
        "epoch": 1,
        "samples": 4,
        "batch_size": 4,
        "length": 12,
        "world_size": 1,
        "hooks": 1,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hooks": "1"},
            "the state's hooks is '1', expected an int of 0 or more; it was changed since",
        ),
        (
            {"broken_off": [[1]]},
            (
                "the state's broken_off is [[1]], expected a list of lists of two ints of 0 or "
                "more; it was changed since"
            ),
        ),
    ],
    ids=["hooks", "broken off"],
)
def test_hooks_that_no_state_has(change: dict[str, Any], message: str) -> None:
    """What is no count is refused where it is loaded."""
    with (
        ringfeed.Loader(Begun(), batch_size=4, workers=0) as loader,
        pytest.raises(ringfeed.StateError) as caught,
    ):
        loader.load_state_dict({**loader.state_dict(), **change})
    assert str(caught.value) == message


def test_hooks_that_run_again_for_long_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``timeout_s`` an error says how far they are; the next iterator goes on from there."""
    now_s = [0.0]
    monkeypatch.setattr("ringfeed.engine.hooks.clock", lambda: now_s[0])

    class Slow(Begun):
        def on_epoch_end(self) -> None:
            now_s[0] += 1.0

    with ringfeed.Loader(Slow(), batch_size=4, workers=0, timeout_s=20) as loader:
        loader.load_state_dict({**loader.state_dict(), "hooks": 30, "epoch": 30})
        with pytest.raises(ringfeed.StateError) as caught:
            iter(loader)
        assert str(caught.value) == (
            "the hooks of this dataset have run 21 times in 21.0 s, and the state is of 30; give "
            "the dataset state_dict() and load_state_dict(), or raise timeout_s=20"
        )
        assert len(copies(loader)) == 3


class Shrinking(Augmented):
    """Has fewer samples after each epoch."""

    def __init__(self, length: int = 20) -> None:
        super().__init__(length)

    def on_epoch_end(self) -> None:
        self.length -= 3


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "settings", [{}, {"shuffle": True}, {"shuffle": True, "workers": 1, "backend": "thread"}]
)
@pytest.mark.parametrize("stop", [4, 5, 6, 8, 9, 11])
def test_a_hook_may_change_the_length(stop: int, settings: dict[str, Any], *, strict: bool) -> None:
    """The state is of the dataset after its hooks, and is compared when they have run again."""
    settings = {"batch_size": 4, "workers": 0, **settings}
    with ringfeed.Loader(Shrinking(), **settings) as loader:
        whole = [batch[0].tolist() for _ in range(4) for batch in loader]
    seen: list[Any] = []
    with ringfeed.Loader(Shrinking(), **settings) as loader:
        while len(seen) < stop:
            seen += [batch[0].tolist() for batch in islice(loader, stop - len(seen))]
        state = json.loads(json.dumps(loader.state_dict()))
    with ringfeed.Loader(Shrinking(), **settings) as loader:
        loader.load_state_dict(state, strict=strict)
        while loader.epoch < 4:
            seen += [batch[0].tolist() for batch in loader]
    assert seen == whole


def test_another_length_is_found_when_the_hooks_have_run() -> None:
    """It is an error in place of the first batch or, if allowed, a warning and a new start."""
    with ringfeed.Loader(Shrinking(), batch_size=4, workers=0) as loader:
        copies(loader)
        next(iter(loader))
        state = loader.state_dict()
    with ringfeed.Loader(Shrinking(30), batch_size=4, workers=0) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ringfeed.StateError) as caught:
            iter(loader)
        assert str(caught.value) == (
            "the state was taken with length 17, and this loader has length 27; give the dataset "
            "that the state was taken with; or load it with strict=False, which begins epoch 1 "
            "anew"
        )
    with ringfeed.Loader(Shrinking(30), batch_size=4, workers=0) as loader:
        loader.load_state_dict(state, strict=False)
        with pytest.warns(UserWarning, match="this loader has length 27; .*; epoch 1 begins anew"):
            batches = [batch[0].tolist() for batch in loader]
        assert [number for batch in batches for number in batch] == [*range(27)]


class Nominal:
    """Says how many numbers it has, and has others."""

    def __init__(self, says: int, has: int) -> None:
        self.says, self.has = says, has

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.has))


class NominalLists(Nominal):
    """The same, in lists of four."""

    def __len__(self) -> int:
        return (self.says + 3) // 4

    def __iter__(self) -> Iterator[Any]:
        return (list(range(at, min(at + 4, self.has))) for at in range(0, self.has, 4))


KINDS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "iterable": lambda says, has: {"dataset": Nominal(says, has), "batch_size": 4},
    "sampler": lambda says, has: {
        "dataset": np.arange(99),
        "sampler": Nominal(says, has),
        "batch_size": 4,
    },
    "batch_sampler": lambda says, has: {
        "dataset": np.arange(99),
        "batch_sampler": NominalLists(says, has),
    },
    "ranks": lambda says, has: {
        "dataset": np.arange(99),
        "sampler": Nominal(says, has),
        "batch_size": 2,
        "shard": ringfeed.Shard(0, 2, "drop"),
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("says", "has"), [(10, 40), (12, 40), (40, 40), (39, 39), (12, 13), (50, 40), (0, 8)]
)
def test_what_len_says_ends_no_epoch(kind: str, says: int, has: int) -> None:
    """A run that goes on from any batch has all that comes, though ``len()`` says more or less."""
    settings = KINDS[kind](says, has)
    with ringfeed.Loader(**settings, workers=0) as loader:
        whole = [batch.tolist() for _ in range(2) for batch in loader]
    for stop in range(1, len(whole) // 2 + 1):
        with ringfeed.Loader(**settings, workers=0) as loader:
            iterator = iter(loader)
            seen = [next(iterator).tolist() for _ in range(stop)]
            state = json.loads(json.dumps(loader.state_dict()))
        with ringfeed.Loader(**settings, workers=0) as loader:
            loader.load_state_dict(state)
            while loader.epoch < 2:
                seen += [batch.tolist() for batch in loader]
        assert seen == whole


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("taken", [0, 2])
def test_an_iterator_made_before_a_state_was_loaded_is_superseded(workers: int, taken: int) -> None:
    """It does not go on from where it was made; the next one goes on from the state."""
    with loader_of("sequential", workers=workers) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
    with loader_of("sequential", workers=workers) as loader:
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(ringfeed.SupersededError) as caught:
                next(iterator)
        assert str(caught.value) == (
            "load_state_dict() has moved this loader since this iterator was made; make a new "
            "one, by iter()"
        )
        assert loader.state_dict() == state
        assert [index for batch in loader for index in batch[0].tolist()] == [*range(30, LENGTH)]
