"""`ringfeed.workers.roster`: how many workers are wanted, and how many deaths are borne."""

from __future__ import annotations

import pytest

from ringfeed.errors import WorkerError
from ringfeed.workers.roster import RestartPolicy

FAILED = "exited with status 3"
KILLED = "was killed by SIGKILL"
THREE = (
    "3 workers in a row ended before they filled anything; the last exited with status 3; look at "
    "its output above, or try workers=0"
)
SCARCE = (
    "a worker was killed by SIGKILL while another was to start, as it happens when memory is short"
)


def grown(workers: int = 2) -> RestartPolicy:
    """Return one that began with a worker, which has filled something, and then wanted more."""
    policy = RestartPolicy(1)
    policy.note_at_work(1)
    policy.resize(workers)
    return policy


def dies(
    policy: RestartPolicy, exit_reason: str = FAILED, *, at: str = "start", **more: bool
) -> None:
    """Have a worker die at its start, in its first sample, or later."""
    whole = {"asked": False, "progress": False, **more}
    policy.count_death(exit_reason, starting=at == "start", fresh=at != "later", **whole)


def test_a_worker_of_the_start_is_not_spare() -> None:
    """Of the first workers three early deaths in a row are an error, and no target is lowered."""
    policy = RestartPolicy(4)
    assert not policy.scale_down("no memory")
    dies(policy)
    dies(policy)
    with pytest.raises(WorkerError) as caught:
        dies(policy)
    assert str(caught.value) == THREE
    assert (policy.wanted, policy.restarts, policy.scaled_down) == (4, 3, None)


def test_three_early_deaths_of_spare_workers_make_fewer_wanted() -> None:
    """Two are replaced; after the third one fewer is wanted, and the count begins anew."""
    policy = grown(3)
    for _ in range(2):
        dies(policy)
        dies(policy)
        assert policy.early_deaths == 2
        dies(policy)
        assert policy.early_deaths == 0
        assert policy.scaled_down == (policy.wanted, THREE)
    assert (policy.wanted, policy.restarts) == (1, 4)


def test_progress_breaks_the_row() -> None:
    """Early deaths are an error only where no other worker fills anything in between."""
    policy = RestartPolicy(2)
    for _ in range(5):
        dies(policy, progress=True)
    dies(policy)
    with pytest.raises(WorkerError) as caught:
        dies(policy)
    assert str(caught.value) == THREE


def test_progress_makes_no_spare_worker_wanted() -> None:
    """One that ends three times before it fills anything is done without, while another works."""
    policy = grown()
    for _ in range(3):
        dies(policy, progress=True)
    assert policy.scaled_down == (1, THREE)


def test_a_later_death_breaks_the_row() -> None:
    """Deaths of workers that have filled something, or were stuck, are no early ones."""
    policy = grown()
    for _ in range(3):
        dies(policy)
        dies(policy)
        dies(policy, at="later")
        dies(policy)
        dies(policy, asked=True)
    assert (policy.wanted, policy.restarts) == (2, 15)


@pytest.mark.parametrize(("at", "restarts"), [("start", 0), ("first sample", 0), ("later", 1)])
def test_sigkill_while_one_is_spare_is_want_of_memory(at: str, restarts: int) -> None:
    """The kernel ends the largest, perhaps an old one, and one fewer is wanted at once."""
    policy = grown()
    dies(policy, KILLED, at=at)
    assert (policy.wanted, policy.scaled_down, policy.restarts) == (1, (1, SCARCE), restarts)


def test_sigkill_of_our_own_is_not_want_of_memory() -> None:
    """A worker that was stuck, and ended for it, is replaced."""
    policy = grown()
    dies(policy, KILLED, asked=True)
    assert (policy.wanted, policy.restarts) == (2, 1)


def test_sigkill_where_no_worker_is_spare_is_a_death_like_any() -> None:
    """Two that have worked at the same time are both replaced."""
    policy = grown()
    policy.note_at_work(2)
    dies(policy, KILLED, at="later")
    assert (policy.wanted, policy.restarts) == (2, 1)


def test_what_could_not_be_had_is_not_wanted_again() -> None:
    """Where more are asked for there are as many as there may be; fewer can still be asked for."""
    policy = grown(4)
    assert policy.scale_down("no memory")
    found = []
    for workers in (4, 2, 8, 1):
        policy.resize(workers)
        found.append(policy.wanted)
    assert found == [3, 2, 3, 1]


def test_workers_that_were_sent_away_are_spare_when_they_come_again() -> None:
    """After fewer were wanted, those that come again are spare."""
    policy = grown(3)
    policy.note_at_work(3)
    assert not policy.scale_down("no memory")
    policy.resize(1)
    policy.resize(3)
    assert policy.scale_down("no memory")
    assert policy.scale_down("no memory")
    assert not policy.scale_down("no memory")
    assert policy.wanted == 1


def test_a_worker_that_leaves_proves_nothing() -> None:
    """Those that are on their way out do not make others wanted."""
    policy = grown(1)
    policy.note_at_work(5)
    policy.resize(2)
    assert policy.scale_down("no memory")
