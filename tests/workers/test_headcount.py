"""`ringfeed.workers.restart_policy`: how many workers are wanted and how many deaths are borne, in numbers alone."""

from __future__ import annotations

import pytest

from ringfeed.errors import WorkerError
from ringfeed.workers.restart_policy import Headcount

FAILED = "exited with status 3"
KILLED = "was killed by SIGKILL"
THREE = (
    "3 workers in a row ended before they filled anything; the last exited with status 3; look at its output above, or "
    "try workers=0"
)
SCARCE = "a worker was killed by SIGKILL while another was to start, as it happens when memory is short"
USED_UP = "a worker {}, and max_restarts={} are used up; raise it or look at the dataset"


def grown(workers: int = 2, max_restarts: int | None = None) -> Headcount:
    """Return one that began with a worker, which has filled something, and then wanted more."""
    headcount = Headcount(1, max_restarts)
    headcount.note_at_work(1)
    headcount.resize(workers)
    return headcount


def dies(headcount: Headcount, epitaph: str = FAILED, *, at: str = "start", **more: bool) -> None:
    """Have a worker die at its start, in its first sample, or later."""
    whole = {"asked": False, "progress": False, **more}
    headcount.count_death(epitaph, starting=at == "start", fresh=at != "later", **whole)


def test_who_was_there_from_the_start_is_not_spare() -> None:
    """Of the first workers three early deaths in a row are an error, and none can be declined."""
    headcount = Headcount(4, None)
    assert not headcount.decline("no memory")
    dies(headcount)
    dies(headcount)
    with pytest.raises(WorkerError) as caught:
        dies(headcount)
    assert str(caught.value) == THREE
    assert (headcount.wanted, headcount.restarts, headcount.declined) == (4, 3, None)


def test_three_early_deaths_of_spare_workers_make_fewer_wanted() -> None:
    """Two are replaced; after the third one fewer is wanted, and the count begins anew."""
    headcount = grown(3)
    for _ in range(2):
        dies(headcount)
        dies(headcount)
        assert headcount.early_deaths == 2
        dies(headcount)
        assert headcount.early_deaths == 0
        assert headcount.declined == (headcount.wanted, THREE)
    assert (headcount.wanted, headcount.restarts) == (1, 4)


def test_progress_breaks_the_row() -> None:
    """Early deaths are an error only where no other worker fills anything in between."""
    headcount = Headcount(2, None)
    for _ in range(5):
        dies(headcount, progress=True)
    dies(headcount)
    with pytest.raises(WorkerError) as caught:
        dies(headcount)
    assert str(caught.value) == THREE


def test_progress_makes_no_spare_worker_wanted() -> None:
    """One that ends three times before it fills anything is done without, while another works."""
    headcount = grown()
    for _ in range(3):
        dies(headcount, progress=True)
    assert headcount.declined == (1, THREE)


def test_a_later_death_breaks_the_row() -> None:
    """Deaths of those who have filled something, or were ended for being stuck, are no early ones."""
    headcount = grown()
    for _ in range(3):
        dies(headcount)
        dies(headcount)
        dies(headcount, at="later")
        dies(headcount)
        dies(headcount, asked=True)
    assert (headcount.wanted, headcount.restarts) == (2, 15)


@pytest.mark.parametrize(("at", "restarts"), [("start", 0), ("first sample", 0), ("later", 1)])
def test_sigkill_while_one_is_spare_is_want_of_memory(at: str, restarts: int) -> None:
    """The kernel ends the largest, which may be one that has worked for long: one fewer is wanted at once."""
    headcount = grown()
    dies(headcount, KILLED, at=at)
    assert (headcount.wanted, headcount.declined, headcount.restarts) == (1, (1, SCARCE), restarts)


def test_sigkill_of_our_own_is_not_want_of_memory() -> None:
    """Who was stuck, and ended for it, is replaced."""
    headcount = grown()
    dies(headcount, KILLED, asked=True)
    assert (headcount.wanted, headcount.restarts) == (2, 1)


def test_sigkill_where_nobody_is_spare_is_a_death_like_any() -> None:
    """Two that have worked at the same time are both replaced."""
    headcount = grown()
    headcount.note_at_work(2)
    dies(headcount, KILLED, at="later")
    assert (headcount.wanted, headcount.restarts) == (2, 1)


def test_used_up_restarts_make_spare_workers_unwanted() -> None:
    """One that has filled nothing is not replaced, which is no error; one that has is an error as ever."""
    headcount = grown(max_restarts=0)
    dies(headcount)
    assert headcount.declined == (1, USED_UP.format(FAILED, 0))
    assert headcount.restarts == 0
    with pytest.raises(WorkerError) as caught:
        dies(headcount)
    assert str(caught.value) == USED_UP.format(FAILED, 0)
    headcount = grown(max_restarts=0)
    with pytest.raises(WorkerError) as caught:
        dies(headcount, at="later")
    assert str(caught.value) == USED_UP.format(FAILED, 0)


def test_workers_that_sigkill_could_not_end_are_restarts() -> None:
    """They count towards max_restarts."""
    headcount = grown(max_restarts=2)
    headcount.count_fenced(2)
    assert headcount.restarts == 2
    with pytest.raises(WorkerError) as caught:
        headcount.count_fenced(1)
    assert str(caught.value) == USED_UP.format("could not be ended by SIGKILL", 2)


def test_what_could_not_be_had_is_not_wanted_again() -> None:
    """Whoever asks for more gets as many as there may be; fewer can still be asked for."""
    headcount = grown(4)
    assert headcount.decline("no memory")
    found = []
    for workers in (4, 2, 8, 1):
        headcount.resize(workers)
        found.append(headcount.wanted)
    assert found == [3, 2, 3, 1]


def test_who_was_sent_away_has_to_prove_himself_again() -> None:
    """After fewer were wanted, those who come again are spare."""
    headcount = grown(3)
    headcount.note_at_work(3)
    assert not headcount.decline("no memory")
    headcount.resize(1)
    headcount.resize(3)
    assert headcount.decline("no memory")
    assert headcount.decline("no memory")
    assert not headcount.decline("no memory")
    assert headcount.wanted == 1


def test_whoever_is_left_over_proves_nothing() -> None:
    """Those that are on their way out do not make others wanted."""
    headcount = grown(1)
    headcount.note_at_work(5)
    headcount.resize(2)
    assert headcount.decline("no memory")
