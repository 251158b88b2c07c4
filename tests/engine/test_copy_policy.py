"""`ringfeed.engine.settling`: the caller keeps batches, and the workers keep a slot to fill."""

from __future__ import annotations

import gc
import inspect
import itertools
import re
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import ringfeed
from datasets import Misbehaving, Oracle, check, flat
from ringfeed.ring._ring import Lease

pytestmark = pytest.mark.once

HOW: list[dict[str, Any]] = [{"workers": 0}, {"workers": 2}, {"workers": 2, "backend": "thread"}]
Warned = ringfeed.SlotsHeldWarning
WAYS_OUT = "copy what you keep, raise slots=, or give copy=True"


def told(message: object) -> str:
    """Return the text of a warning or an error without its times."""
    return re.sub(r"\d+\.\d", "T", str(message))


def is_view(batch: Any) -> bool:
    """Whether the first leaf lies in its slot."""
    return isinstance(batch[0].base, Lease)


def expected_text(
    held: int, slots: int, where: str = "; ringfeed.debug() says where", more: str = ""
) -> str:
    """Return the warning's text but for its times."""
    ages = ", ".join(["T"] * held)
    return (
        f"{held} of {slots} slots are held by arrays that are still referenced (taken {ages} s "
        f"ago{where}), so batches are handed out as private copies until a slot comes back; "
        f"{WAYS_OUT}{more}"
    )


@pytest.mark.parametrize("slots", [2, 3, 4, 7])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_a_whole_epoch_can_be_kept(how: dict[str, Any], slots: int) -> None:
    """`list(loader)` gives every batch, with one warning at the caller's line, twice over."""
    with ringfeed.Loader(Oracle(43), batch_size=3, slots=slots, **how) as loader:
        with pytest.warns(ringfeed.SlotsHeldWarning) as seen:
            kept = list(loader)  # the next line is none of it
        assert [told(warning.message) for warning in seen] == [expected_text(slots - 1, slots)]
        assert seen[0].filename == __file__
        assert (
            "kept = list(loader)"
            in inspect.getsource(sys.modules[__name__]).splitlines()[seen[0].lineno - 1]
        )
        kept += list(loader)
        assert flat(check(batch) for batch in kept) == [*range(43), *range(43)]
        del kept
        assert [is_view(batch) for batch in itertools.islice(loader, 1)] == [True]


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_a_plain_loop_is_handed_views(how: dict[str, Any], slots: int) -> None:
    """A loop that has one batch at a time gets no copy.

    With two slots the second batch of an epoch is one.
    """
    copies = 0
    with ringfeed.Loader(Oracle(200), batch_size=2, slots=slots, **how) as loader:
        for _ in range(2):
            for batch in loader:
                copies += not is_view(batch)
                check(batch)
            del batch
    assert copies == (2 if slots == 2 else 0)


def test_a_batch_that_is_dropped_before_the_next_is_never_a_copy() -> None:
    """Two slots are enough for views alone, where the caller lets go by itself."""
    with ringfeed.Loader(Oracle(60), batch_size=2, slots=2, workers=1) as loader:
        batches = iter(loader)
        for _ in range(30):
            batch = next(batches)
            assert is_view(batch)
            del batch


def gathered(batches: Any, count: int) -> list[list[int]]:
    """Take so many batches at a time while those of the step before still live."""
    found = []
    while some := list(itertools.islice(batches, count)):
        found += [check(batch) for batch in some]
    return found


@pytest.mark.parametrize("slots", [2, 4])
def test_batches_can_be_gathered(slots: int) -> None:
    """Steps over several batches, as in gradient accumulation, get the right ones; one warning."""
    with ringfeed.Loader(Oracle(96), batch_size=2, slots=slots, workers=2) as loader:
        with pytest.warns(ringfeed.SlotsHeldWarning) as seen:
            found = gathered(iter(loader), 6)
        assert len(seen) == 1
        assert flat(found) == list(range(96))


def test_one_batch_kept_leaves_the_others() -> None:
    """A single batch that is kept for ever costs no copy with four slots."""
    with ringfeed.Loader(Oracle(80), batch_size=2, slots=4, workers=1) as loader:
        batches = iter(loader)
        first = next(batches)
        assert all(is_view(batch) for batch in batches)
        assert check(first) == [0, 1]


def test_the_warning_can_be_an_error_that_loses_no_batch() -> None:
    """Under Python's own filter `next()` raises once, the error holds no slot.

    The batch is the next to come.
    """
    with (
        ringfeed.Loader(Oracle(40), batch_size=2, slots=3, workers=1) as loader,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", ringfeed.SlotsHeldWarning)
        batches = iter(loader)
        kept = [next(batches), next(batches)]
        with pytest.raises(ringfeed.SlotsHeldWarning) as caught:
            next(batches)
        assert told(caught.value) == expected_text(2, 3)
        assert loader.stats().batches == 2
        assert check(next(batches)) == [4, 5]
        assert loader.slot_states().count("held") == 2
        assert flat(check(batch) for batch in [*kept, *batches]) == [*range(4), *range(6, 40)]
        assert loader.stats().batches == 20


def test_an_epoch_broken_off_at_the_warning_leaves_nothing() -> None:
    """The batch that an error of the warning has kept back belongs to its epoch alone."""
    with ringfeed.Loader(Oracle(40), batch_size=2, slots=3, workers=1) as loader:
        batches = iter(loader)
        kept = [next(batches), next(batches)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ringfeed.SlotsHeldWarning):
                next(batches)
        del kept
        assert flat(check(batch) for batch in loader) == list(range(40))
        with pytest.raises(ringfeed.SupersededError):
            next(batches)


def test_a_gap_and_a_short_batch_are_copied_as_they_are() -> None:
    """With on_error="skip" a copy has the rows that are left, as a view has."""
    with (
        ringfeed.Loader(
            Misbehaving("raises"), batch_size=3, slots=3, workers=1, on_error="skip"
        ) as loader,
        pytest.warns(ringfeed.SlotsHeldWarning),
    ):
        kept = list(loader)
    assert flat(check(batch) for batch in kept) == [*range(17), *range(18, 40)]
    assert [len(batch[0]) for batch in kept] == [3, 3, 3, 3, 3, 2, *[3] * 7, 1]


def test_a_copy_is_the_callers_own() -> None:
    """It is writable, owns its memory, and no later batch changes it."""
    with ringfeed.Loader(Oracle(60), batch_size=2, slots=3, workers=1) as loader:
        batches = iter(loader)
        kept = [next(batches), next(batches)]
        with pytest.warns(ringfeed.SlotsHeldWarning):
            copy = next(batches)
        assert all(array.flags.owndata and array.flags.writeable for array in copy)
        del kept
        for _ in batches:
            assert check(copy) == [4, 5]


def test_two_slots_held_too_late_are_an_error_after_a_second() -> None:
    """A loop that let go of each batch and then keeps two of two leaves nothing to copy from.

    The loop goes on afterwards.
    """
    with ringfeed.Loader(Oracle(80), batch_size=2, slots=2, workers=1) as loader:
        batches = iter(loader)
        for _ in range(8):
            batch = next(batches)
        kept = [batch, next(batches)]
        del batch
        with pytest.raises(ringfeed.SlotsHeldError) as caught:
            next(batches)
        assert told(caught.value) == (
            "all 2 slots are held by arrays that are still referenced (taken T, T s ago; "
            f"ringfeed.debug() says where), so no batch can be filled; {WAYS_OUT}"
        )
        assert flat(map(check, kept)) == [14, 15, 16, 17]
        del kept[0]
        with pytest.warns(ringfeed.SlotsHeldWarning):
            kept += batches
        assert flat(map(check, kept)) == list(range(16, 80))


def test_garbage_is_collected_before_a_copy() -> None:
    """What only a cycle of garbage holds is no reason to warn."""
    with ringfeed.Loader(Oracle(40), batch_size=2, slots=3, workers=1) as loader:
        batches = iter(loader)
        gc.disable()
        try:
            for _ in range(2):
                cycle: list[Any] = [next(batches)]
                cycle.append(cycle)
            del cycle
            assert is_view(next(batches))
        finally:
            gc.enable()


def test_another_thread_that_lets_go_soon_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is in another thread's hands for a moment is no reason to warn."""
    monkeypatch.setattr("ringfeed.engine.settling.SOON_NS", 20 * 10**9)
    with ringfeed.Loader(Oracle(40), batch_size=2, slots=3, workers=1) as loader:
        batches = iter(loader)
        kept = [next(batches), next(batches)]
        timer = threading.Timer(0.3, kept.clear)
        timer.start()
        assert is_view(next(batches))
        timer.join()


def test_more_slots_come_before_copies() -> None:
    """With slots="auto" views hold as many as the tuner may open; then come copies."""
    data = (np.repeat(np.arange(4 * 40), 4096).reshape(160, 4096),)
    memory = ringfeed.Loader(data, batch_size=4, slots=5, workers=1).memory
    with (
        ringfeed.Loader(data, batch_size=4, slots="auto", memory=memory, workers=1) as loader,
        pytest.warns(ringfeed.SlotsHeldWarning) as seen,
    ):
        kept = list(loader)
    slots = loader.plan.slots
    assert slots == 5
    assert len(seen) == 1
    assert told(seen[0].message) == expected_text(slots - 1, slots)
    assert sum(is_view(batch) for batch in kept) == slots - 1
    assert np.concatenate([batch[:, 7] for (batch,) in kept]).tolist() == list(range(160))


def test_an_interactive_session_is_told_what_else_holds() -> None:
    """Where Python or IPython prompts, `Out` and the last traceback are named."""
    sys.ps1 = ">>> "
    try:
        with (
            ringfeed.Loader(Oracle(20), batch_size=2, workers=0) as loader,
            pytest.warns(Warned) as seen,
        ):
            kept = list(loader)
    finally:
        del sys.ps1
    assert told(seen[0].message) == expected_text(
        3, 4, more="; Out and sys.last_traceback refer to arrays, too"
    )
    assert flat(map(check, kept)) == list(range(20))
