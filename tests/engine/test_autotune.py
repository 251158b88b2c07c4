"""`ringfeed.engine.autotune`.

Settings chosen from what waits for what, against a simulated loader (queueing.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product, starmap
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueing import Job, Queue, throughput, tune
from ringfeed.engine import autotune as tuning
from ringfeed.engine.autotune import Setting, Step, Tuner, Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = pytest.mark.once

WORKERS, SLOTS = (1, 2, 3, 4, 6, 8, 10, 12), (2, 3, 4, 5, 6, 9, 13, 16)
LEAST, MOST = Setting(1, 2), Setting(12, 16)
MOST_IN_A_REGIME = 30  # moves, from all that was ever drawn and then some
JOBS = [
    Job("input-bound, CPU", cpu_s=0.004, step_s=0.002, cores=4),
    Job("input-bound, the step takes a core", cpu_s=0.004, step_s=0.002, cores=6, computes=True),
    Job("input-bound, waiting source", wait_s=0.004, cpu_s=0.0001, step_s=0.004),
    Job("sleeping source", wait_s=0.02, step_s=0.002),
    Job("workers that start slowly", wait_s=0.004, step_s=0.004, start_s=3.0),
    Job("enough workers are not all", cpu_s=0.004, step_s=0.006, cores=16),
    Job("compute-bound", cpu_s=0.002, step_s=0.02),
    Job("nearly compute-bound", cpu_s=0.0027, step_s=0.02, cores=4),
    Job("bursts", cpu_s=0.001, step_s=0.014, cores=8, one_in=50),
    Job("bursts of waiting", wait_s=0.001, step_s=0.012, one_in=50),
    Job("four batches held", cpu_s=0.001, step_s=0.012, cores=4, held=4),
    Job("four batches at once", cpu_s=0.001, step_s=0.006, cores=4, held=4, at_once=True),
    Job("whole batches", cpu_s=0.002, step_s=0.004, cores=8, whole=True),
    Job("whole batches that wait", wait_s=0.004, step_s=0.004, whole=True),
]
BY_NAME = {job.name: job for job in JOBS}
WHOLE = BY_NAME["whole batches"]
CHANGES: dict[str, tuple[Job, dict[str, Any]]] = {
    "light, then heavy": (Job("", cpu_s=0.0005, step_s=0.02, cores=8), {"cpu_s": 0.008}),
    "a little more": (Job("", cpu_s=0.002, step_s=0.018, cores=8), {"cpu_s": 0.0026}),
    "a source that becomes slow": (Job("", wait_s=0.002, step_s=0.006), {"wait_s": 0.006}),
    "a step that becomes short": (Job("", cpu_s=0.002, step_s=0.02, cores=8), {"step_s": 0.003}),
    "bursts that begin": (Job("", cpu_s=0.001, step_s=0.014, cores=8), {"one_in": 50}),
    "batches that are held": (Job("", cpu_s=0.001, step_s=0.012, cores=4), {"held": 4}),
}


def found(
    job: Job, most: Setting = MOST, seconds: float = 30.0, seed: int = 1
) -> tuple[Tuner, list[Step]]:
    """Return a tuner that has run the job for so long, and its moves."""
    tuner = Tuner(LEAST, most)
    return tuner, tune(Queue(job, tuner.setting, seed), tuner, seconds)


@cache
def sweep(job: Job) -> tuple[float, int]:
    """Return the best throughput of many settings, and the fewest slots that are nearly as good."""
    figures = {
        setting: throughput(job, setting, 150)
        for setting in starmap(Setting, product(WORKERS, SLOTS))
    }
    best = max(figures.values())
    return best, min(setting.slots for setting, figure in figures.items() if figure >= 0.97 * best)


@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["quiet", "noisy"])
@pytest.mark.parametrize("job", JOBS, ids=[job.name for job in JOBS])
def test_it_ends_near_the_best_fixed_setting(job: Job, noise: float) -> None:
    """The throughput is within 5 % of the best of a sweep, with at most twice its slots."""
    best, needed = sweep(job)
    tuner, moves = found(replace(job, noise=noise))
    assert throughput(job, tuner.setting, 150) >= 0.95 * best, tuner.history
    assert tuner.setting.slots <= max(needed + 1, 2 * needed), tuner.history
    assert len(moves) <= 10


@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["quiet", "noisy"])
@pytest.mark.parametrize("name", CHANGES)
def test_it_finds_the_best_anew_where_something_changes(name: str, noise: float) -> None:
    """Settled for half a minute, it comes near the best of another regime in the next."""
    first, change = CHANGES[name]
    tuner = Tuner(LEAST, MOST)
    queue = Queue(replace(first, noise=noise), tuner.setting)
    tune(queue, tuner, 30)
    queue.job = replace(queue.job, **change)
    moves = tune(queue, tuner, queue.now_s + 30)
    job = replace(first, **change)
    assert throughput(job, tuner.setting, 150) >= 0.95 * sweep(job)[0], tuner.history
    assert 1 <= len(moves) <= 10


@pytest.mark.parametrize("seed", range(6))
def test_bursts_are_outlasted(seed: int) -> None:
    """Where twice the slots gain nothing, four times as many are tried before it gives up."""
    tuner, _ = found(replace(BY_NAME["bursts"], noise=0.1), seed=seed)
    assert tuner.setting.slots >= 5, tuner.history


@pytest.mark.parametrize("seed", range(20))
def test_a_small_gain_is_seen_by_what_training_waits(seed: int) -> None:
    """Where training no longer waits, a step is kept though noise hides what it gained."""
    job = BY_NAME["nearly compute-bound"]
    tuner, moves = found(replace(job, noise=0.1), seconds=30, seed=seed)
    assert [move.setting for move in moves] == [Setting(2, 2)], tuner.history


def test_compute_bound_training_is_left_alone() -> None:
    """Where training does not wait, the least will do."""
    tuner, moves = found(BY_NAME["compute-bound"])
    assert (moves, tuner.setting) == ([], Setting(1, 2))
    assert tuner.why == "training waits 0.0% of the time"


def test_the_words_of_workers() -> None:
    """Each move says what was seen, what the one before has gained, and what is tried.

    The last one says what is kept.
    """
    tuner, moves = found(Job("two cores", cpu_s=0.004, step_s=0.002), Setting(12, 2), seconds=20)
    assert [(move.setting, move.why) for move in moves] == [
        (Setting(2, 2), "training waits 94% of the time and the workers are 100% busy: 2 workers"),
        (
            Setting(4, 2),
            (
                "2 workers gained 100%; training waits 88% of the time and the workers are 100% "
                "busy: 4 workers"
            ),
        ),
        (Setting(2, 2), "4 workers gained nothing (+0%): back to 2 workers and 2 slots"),
    ]
    assert (
        tuner.why
        == "4 workers gained nothing (+0%), there may be no more than 2 slots, training waits 88% of the time"
    )
    assert [(step.setting, step.why) for step in tuner.history] == [
        (move.setting, move.why) for move in moves
    ]
    first, second = tuner.history[:2]
    assert 64 <= first.batches < second.batches
    assert first.waited == pytest.approx(0.94, abs=0.01)
    assert second.samples_per_s == pytest.approx(
        500, rel=0.02
    )  # as was seen before the move, with two workers


def test_the_words_of_slots() -> None:
    """Workers that wait while training waits get slots, and then more workers pay."""
    tuner, moves = found(WHOLE, seconds=20)
    assert [(move.setting, move.why) for move in moves[:3]] == [
        (Setting(2, 2), "training waits 75% of the time and the workers are 100% busy: 2 workers"),
        (
            Setting(2, 4),
            "2 workers gained nothing (+0%); training waits 75% of the time and the workers are "
            "50% busy, so they wait for slots: 4 slots",
        ),
        (
            Setting(4, 4),
            (
                "4 slots gained 98%; training waits 50% of the time and the workers are 100% "
                "busy: 4 workers"
            ),
        ),
    ]
    assert tuner.setting == Setting(4, 8)
    assert tuner.why == "8 slots gained 34%, training waits 0.0% of the time"


def test_held_slots_get_others_at_once() -> None:
    """Where all slots are held, nothing can be filled: no window is waited for.

    Where there is no room for another, the tuner says so.
    """
    tuner = Tuner(LEAST, Setting(12, 3))
    step = tuner.look(Window(all_held=True))
    assert step is not None
    assert (step.setting, step.why) == (
        Setting(1, 3),
        "training holds all 2 slots, so none can be filled: 3 slots",
    )
    assert tuner.look(Window(all_held=True)) is None
    assert tuner.why == (
        "training holds all 3 slots, so none can be filled, and there may be no more than 3 slots"
    )
    tuner = Tuner(LEAST, MOST, ("workers",))
    assert tuner.look(Window(all_held=True)) is None
    assert tuner.why == "training holds all 2 slots, so none can be filled, and slots= is given"


@pytest.mark.parametrize(
    ("most", "setting", "why"),
    [
        (
            Setting(2, 3),
            Setting(2, 3),
            (
                "3 slots gained 98%, there may be no more than 2 workers, training waits 50% of "
                "the time"
            ),
        ),
        (
            Setting(5, 4),
            Setting(4, 4),
            (
                "5 workers gained nothing (+0%), there may be no more than 4 slots, training "
                "waits 25% of the time"
            ),
        ),
    ],
)
def test_the_most_is_kept_and_named(most: Setting, setting: Setting, why: str) -> None:
    """Growing stops where the plan does, and the words say so."""
    tuner, moves = found(WHOLE, most, 20)
    assert all(
        move.setting.workers <= most.workers and move.setting.slots <= most.slots for move in moves
    )
    assert (tuner.setting, tuner.why) == (setting, why)


@pytest.mark.parametrize("side", ["workers", "slots"])
def test_what_is_given_stays(side: Any) -> None:
    """Of two numbers only the one that is "auto" is moved."""
    tuner = Tuner(LEAST, MOST, (side,))
    moves = tune(Queue(WHOLE, tuner.setting), tuner, 20)
    other = {"workers": "slots", "slots": "workers"}[side]
    assert moves or side == "slots"
    assert {getattr(move.setting, other) for move in moves} <= {getattr(LEAST, other)}


def test_short_looks_are_put_together() -> None:
    """Looks after every batch and rare ones lead to the same moves.

    The first window after a move does not count.
    """
    busy = Window(0.1, 0.09, 0.1, 0.0, 2, 16)
    tuner = Tuner(LEAST, MOST)
    moves = [number for number in range(1, 41) if tuner.look(busy) is not None]
    assert moves == [20]  # windows of 5 looks: one in which all begins, three that are judged


@pytest.mark.parametrize(
    ("busy", "stall", "setting"),
    [
        (0.95, 0.1, Setting(2, 2)),  # workers wait for nothing
        (0.8, 0.9, Setting(2, 2)),  # slots gain a fourth at best, workers the double
        (0.5, 0.9, Setting(1, 4)),  # either gains the double
        (0.8, 0.1, Setting(1, 4)),  # workers gain a ninth at best
        (0.8, 0.03, Setting(1, 2)),  # neither gains enough
    ],
)
def test_what_can_gain_more_is_tried_first(busy: float, stall: float, setting: Setting) -> None:
    """Slots gain at best what the workers wait, workers what training waits.

    No more than the double.
    """
    tuner = Tuner(LEAST, MOST)
    for _ in range(4):
        tuner.look(Window(1.0, stall, busy, 1 - busy, 10, 100))
    assert tuner.setting == setting


def test_workers_that_start_do_not_count() -> None:
    """As long as some neither fill nor wait they are starting.

    What is seen says nothing of the setting.
    """
    tuner = Tuner(LEAST, MOST)
    alone, both = Window(1.0, 0.9, 1.0, 0.0, 10, 100), Window(1.0, 0.8, 2.0, 0.0, 10, 200)
    while tuner.look(alone) is None:
        pass
    assert tuner.setting == Setting(2, 2)
    assert [tuner.look(alone) for _ in range(4)] == [None] * 4
    while tuner.look(both) is None:
        pass
    assert tuner.why.startswith("2 workers gained 100%; ")


def test_a_move_that_cannot_be_made_is_taken_back() -> None:
    """The tuner goes back, says why, and never goes so far again."""
    tuner = Tuner(LEAST, MOST)
    queue = Queue(BY_NAME["input-bound, CPU"], tuner.setting)
    while not (move := tuner.look(queue.step())):
        pass
    assert move.setting == Setting(2, 2)
    tuner.refuse("no worker can be started: no memory")
    assert tuner.setting == Setting(1, 2)
    assert tuner.why == "no worker can be started: no memory"
    assert tuner.history[-1].why == tuner.why
    assert all(move.setting.workers == 1 for move in tune(queue, tuner, 30))
    assert tuner.why == "there may be no more than 1 worker, training waits 94% of the time"


def test_workers_that_could_not_be_had_are_done_without() -> None:
    """The tuner goes back to what it kept, says why, tries slots, but never more workers again."""
    tuner = Tuner(LEAST, MOST)
    queue = Queue(WHOLE, tuner.setting)
    while not (move := tuner.look(queue.step())):
        pass
    assert move.setting == Setting(2, 2)
    queue.move(move.setting)
    assert tuner.make_do(1, "no memory").setting == Setting(1, 2)
    assert (tuner.setting, tuner.why, tuner.history[-1].why) == (
        Setting(1, 2),
        "no memory",
        "no memory",
    )
    queue.move(tuner.setting)
    assert all(move.setting.workers == 1 for move in tune(queue, tuner, 60))
    assert tuner.why == "there may be no more than 1 worker, training waits 75% of the time"


def test_of_several_workers_one_could_not_be_had() -> None:
    """The trial is taken back as a whole: what was kept before it is what is known to do."""
    tuner = Tuner(LEAST, MOST)
    queue = Queue(BY_NAME["input-bound, CPU"], tuner.setting)
    while tuner.setting.workers < 4:
        move = tuner.look(queue.step())
        if move is not None:
            queue.move(move.setting)
    assert tuner.make_do(3, "no memory").setting == Setting(2, 2)
    queue.move(tuner.setting)
    assert max(move.setting.workers for move in tune(queue, tuner, 60)) == 3


def test_workers_that_could_not_be_had_in_the_end() -> None:
    """Also where they were kept, and others were moved since, no more are there than can be had."""
    tuner, _ = found(WHOLE, seconds=20)
    assert tuner.setting == Setting(4, 8)
    assert tuner.make_do(3, "no memory").setting == Setting(3, 8)
    queue = Queue(WHOLE, tuner.setting)
    assert all(move.setting.workers <= 3 for move in tune(queue, tuner, 60))


def test_slots_are_still_tried_where_workers_cannot_be_had() -> None:
    """A trial of workers that was refused has shown nothing of the setting that it began from."""
    tuner = Tuner(LEAST, MOST)
    queue = Queue(BY_NAME["input-bound, waiting source"], tuner.setting)
    while not (move := tuner.look(queue.step())):
        pass
    queue.move(move.setting)
    queue.move(tuner.make_do(1, "no memory").setting)
    queue.job = BY_NAME["bursts"]  # in bursts: one worker has time to spare
    assert tune(queue, tuner, 60)[0].setting == Setting(1, 4)


def test_refused_slots_stay_refused() -> None:
    """Where training holds all slots and no other can be had, there is an end of it."""
    tuner = Tuner(LEAST, MOST)
    for _ in range(2):
        tuner.look(Window(all_held=True))
    tuner.refuse("another slot needs 10 bytes")
    assert tuner.setting == Setting(1, 3)
    assert tuner.look(Window(all_held=True)) is None


def test_another_regime_is_noticed() -> None:
    """Settled, it looks again when training waits, not because time goes by."""
    job, change = CHANGES["light, then heavy"]
    tuner = Tuner(LEAST, MOST)
    queue = Queue(job, tuner.setting)
    assert not tune(queue, tuner, 60)
    queue.job = replace(job, **change)
    moves = tune(queue, tuner, 120)
    assert moves[0].why == (
        "training waited 0.0% of the time before; training waits 69% of the time and the workers "
        "are 100% busy: 2 workers"
    )


def test_it_does_not_look_again_for_ever() -> None:
    """Costs that go up and down all the time are given up after a number of moves."""
    job = replace(WHOLE, step_s=0.02)
    tuner = Tuner(LEAST, MOST)
    queue = Queue(job, tuner.setting)
    for number in range(60):
        queue.job = replace(job, cpu_s=0.004 * (1 + 3 * (number % 2)))
        tune(queue, tuner, queue.now_s + 20)
    moves = len(tuner.history)
    assert moves <= tuning.MOST_MOVES + 10
    queue.job = replace(job, cpu_s=0.002)
    tune(queue, tuner, queue.now_s + 60)
    assert len(tuner.history) == moves


SHARES = st.floats(0, 1)
WINDOWS = st.builds(
    lambda elapsed_s, stall, busy, pressure, samples, held: Window(
        elapsed_s, stall * elapsed_s, busy * elapsed_s, pressure * elapsed_s, 10, samples, held
    ),
    st.floats(0.5, 2.0),
    SHARES,
    st.floats(0, 12),
    st.floats(0, 12),
    st.integers(0, 10**6),
    st.integers(0, 19).map(lambda number: number == 0),
)
# Stretches of alike windows, so that there are regimes
STRETCHES = st.lists(st.tuples(WINDOWS, st.integers(1, 12)), min_size=1, max_size=60)


def check_moves(tuner: Tuner, windows: Iterable[Window]) -> list[Step]:
    """Feed the windows; no move may leave the bounds, or lead to where it comes from."""
    moves = []
    for window in windows:
        before = tuner.setting
        move = tuner.look(window)
        assert (move is not None) == (tuner.setting != before)
        if move is not None:
            moves.append(move)
            assert LEAST.workers <= move.setting.workers <= MOST.workers
            assert LEAST.slots <= move.setting.slots <= MOST.slots
    return moves


@settings(max_examples=60, deadline=None)
@given(STRETCHES)
def test_whatever_is_seen_moves_are_few_and_allowed(stretches: list[tuple[Window, int]]) -> None:
    """Moves end, and none is out of bounds."""
    tuner = Tuner(LEAST, MOST)
    moves = check_moves(tuner, (window for window, times in stretches for _ in range(times)))
    assert len(moves) <= tuning.MOST_MOVES + MOST_IN_A_REGIME


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32))
def test_moves_come_to_an_end(seed: int) -> None:
    """However long it goes on, and whatever regimes and refusals come, moves end."""
    tuner, random = Tuner(LEAST, MOST), Random(seed)  # noqa: S311 - no secrets
    for window in restless(random, tuner, 1500):
        check_moves(tuner, [window])
        if tuner.setting.workers > 3 and random.random() < 0.02:
            most = random.randint(1, tuner.setting.workers - 1)
            assert tuner.make_do(most, "no memory").setting.workers <= most
    check_moves(tuner, (one._replace(all_held=False) for one in restless(random, tuner, 500)))
    assert len(tuner.history) <= tuning.MOST_MOVES + MOST_IN_A_REGIME
    assert not check_moves(
        tuner, (one._replace(all_held=False) for one in restless(random, tuner, 500))
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_a_regime_is_few_moves(seed: int) -> None:
    """Without a change each step is kept, or taken back once and not tried again.

    That holds whatever the windows say.
    """
    tuner, random = Tuner(LEAST, MOST), Random(seed)  # noqa: S311 - no secrets
    moves: list[Step] = []
    while not tuner.is_settled:
        stall, busy, rate = (
            random.choice([0.03, 0.5, 0.9]),
            random.choice([0.3, 0.85, 1.0]),
            random.randint(800, 1200),
        )
        workers = tuner.setting.workers
        window = Window(1.0, stall, busy * workers, (1 - busy) * workers, 10, rate)
        while not (move := tuner.look(window)) and not tuner.is_settled:
            pass
        moves += [move] if move else []
    assert len(moves) <= MOST_IN_A_REGIME


def restless(random: Random, tuner: Tuner, count: int) -> Iterator[Window]:
    """Yield windows of which a few at a time are alike."""
    left, stall, busy, rate = 0, 0.0, 0.0, 0
    for _ in range(count):
        if not left:
            left = random.randint(1, 15)
            stall, busy = (
                random.choice([0, 0.01, 0.03, 0.1, 0.5, 0.9]),
                random.choice([0.3, 0.6, 0.85, 1.0]),
            )
            rate = random.choice([800, 1000, 1030, 1100, 2000])
        left -= 1
        workers, samples = tuner.setting.workers, int(rate * random.uniform(0.97, 1.03))
        yield Window(
            1.0, stall, busy * workers, (1 - busy) * workers, 10, samples, random.random() < 0.005
        )
