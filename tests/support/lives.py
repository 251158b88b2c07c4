"""How a loader of many.py is made, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter, deque
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import ringfeed
from datasets import Misbehaving, Oracle, check, drain
from watching import pids, pool_of

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {"in process": 2, "thread": 3, "spawn": 2, "fork": 4, "process": 2}
KEPT_VIEWS = 3


class BodyError(Exception):
    """What the body of a loop raises."""


@dataclass(frozen=True)
class Life:
    """How one loader is made and how it ends."""

    number: int
    kind: str
    ending: str
    workers: int
    slots: int
    batch_size: int
    length: int
    taken: int  # batches before it ends, where it does not go on to the end of its epoch

    def loader(self, dataset: Any = None) -> ringfeed.Loader:
        """The loader."""
        return ringfeed.Loader(
            Oracle(self.length) if dataset is None else dataset,
            batch_size=self.batch_size,
            workers=self.workers,
            slots=self.slots,
            shuffle=True,
            seed=self.number,
            spec=Oracle.SPEC,
            backend="spawn" if self.kind == "in process" else self.kind,  # type: ignore[arg-type]
        )

    def begin(self, loader: ringfeed.Loader) -> tuple[Any, list[int]]:
        """An epoch from which some batches were taken, and what was in them."""
        iterator = iter(loader)
        return iterator, drain(next(iterator) for _ in range(self.taken))

    def check_whole(self, found: list[int]) -> None:
        """Fail unless an epoch had each sample once."""
        assert sorted(found) == list(range(self.length)), (
            f"{len(found)} samples of {self.length} came"
        )


# ---- how a loader ends ----


def closed(life: Life) -> None:
    """Two epochs, then close()."""
    loader = life.loader()
    for _ in range(2):
        life.check_whole(drain(loader))
    loader.close()


def left_by_context(life: Life) -> None:
    """An epoch in a with block."""
    with life.loader() as loader:
        life.check_whole(drain(loader))


def dropped(life: Life) -> None:
    """Nobody closes it."""
    loader = life.loader()
    life.check_whole(drain(loader))


def dropped_in_a_cycle(life: Life) -> None:
    """Nobody closes it, and only the garbage collector finds it, in the middle of an epoch."""
    loader = life.loader()
    cycle: list[Any] = [loader, life.begin(loader)[0]]
    cycle.append(cycle)


def broken_off(life: Life) -> None:
    """An epoch is broken off, another begun and broken off by the end."""
    with life.loader() as loader:
        for _ in range(2):
            iterator, _ = life.begin(loader)
        loader.close()
        del iterator


def never_iterated(life: Life) -> None:
    """It is made, and that is all."""
    assert len(life.loader()) == -(-life.length // life.batch_size)


def begun_only(life: Life) -> None:
    """Its epoch is begun, and no batch is taken."""
    with life.loader() as loader:
        iter(loader)


def raised_in_the_body(life: Life) -> None:
    """The body of the loop raises, out of a with block."""
    with contextlib.suppress(BodyError), life.loader() as loader:
        for batch in loader:
            _raise_over(batch)


def raised_and_dropped(life: Life) -> None:
    """The body of the loop raises, and the loader goes with the traceback."""
    with contextlib.suppress(BodyError):
        for batch in life.loader():
            _raise_over(batch)


def _raise_over(batch: Any) -> None:
    check(batch)
    raise BodyError


def failed_sample(life: Life) -> None:
    """A sample raises, and the loader's error ends the loop."""
    loader = life.loader(Misbehaving("raises", life.length, at=life.length // 2))
    try:
        drain(loader)
    except ringfeed.WorkerError as error:
        assert "bad seventeen" in str(error)  # noqa: PT017 - no test function
    else:
        raise AssertionError("a sample that raises went by")


def killed_worker(life: Life) -> None:
    """A worker is killed, and the epoch goes on to its end."""
    with life.loader() as loader:
        iterator, found = life.begin(loader)
        os.kill(pids(loader)[0], signal.SIGKILL)
        life.check_whole(found + drain(iterator))


def killed_all(life: Life) -> None:
    """Every process is killed, the forkserver too, and the loader closed."""
    loader = life.loader()
    iterator, _ = life.begin(loader)
    _kill_all(loader)
    loader.close()
    del iterator


def killed_and_dropped(life: Life) -> None:
    """Every process is killed, and the loader dropped."""
    loader = life.loader()
    life.begin(loader)
    _kill_all(loader)


def _kill_all(loader: ringfeed.Loader) -> None:
    forkserver = getattr(pool_of(loader)._launcher, "_forkserver", None)
    for pid in pids(loader) + ([forkserver.pid] if forkserver else []):
        os.kill(pid, signal.SIGKILL)


ENDINGS: dict[str, dict[Callable[[Life], None], int]] = {
    "peace": {
        closed: 2,
        left_by_context: 2,
        dropped: 2,
        dropped_in_a_cycle: 1,
        broken_off: 2,
        never_iterated: 1,
        begun_only: 1,
    },
    "exception": {raised_in_the_body: 2, raised_and_dropped: 2, failed_sample: 2},
    "kill": {killed_worker: 3, killed_all: 2, killed_and_dropped: 2},
}
BY_NAME = {ending.__name__: ending for group in ENDINGS.values() for ending in group}


class Rotation:
    """The loaders of a run, drawn from its seed, and the views that outlive them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.ended: Counter[str] = Counter()
        self._draw = Random(f"{seed} many")  # noqa: S311 - no secret
        self._kept: deque[tuple[Any, Any]] = deque()  # views, and what they must say

    def life(self, number: int) -> Life:
        """The next loader."""
        draw = self._draw
        kind = draw.choices(list(KINDS), list(KINDS.values()))[0]
        killable = kind not in ("in process", "thread")
        group = draw.choices(list(ENDINGS), [50, 20, 30] if killable else [60, 40, 0])[0]
        ending = draw.choices(list(ENDINGS[group]), list(ENDINGS[group].values()))[0]
        workers = 0 if kind == "in process" else draw.randint(1, 3)
        batch_size = draw.choice([1, 3, 8])
        length = draw.randint(12, 40) * batch_size - draw.randrange(batch_size)
        return Life(
            number,
            kind,
            ending.__name__,
            workers,
            draw.randint(3, 5),
            batch_size,
            length,
            draw.randint(1, 8),
        )

    def run(self, number: int) -> None:
        """Open, use and end a loader; sometimes another one's views are kept beyond its end."""
        life = self.life(number)
        try:
            BY_NAME[life.ending](life)
            if self._draw.random() < 0.3:
                self._keep(life)
            while len(self._kept) > KEPT_VIEWS:
                self._let_go()
        except Exception as error:
            raise AssertionError(
                f"python tests/support/many.py --seed {self.seed}: {life}: {error}"
            ) from error
        self.ended[life.kind] += 1
        self.ended[life.ending] += 1

    def _keep(self, life: Life) -> None:
        """Keep views of a loader that is closed, killed or dropped."""
        loader = life.loader()
        batch = next(iter(loader))
        self._kept.append((batch, [view.copy() for view in batch]))
        if life.workers and life.kind != "thread" and self._draw.random() < 0.5:
            _kill_all(loader)
        if self._draw.random() < 0.5:
            loader.close()
        self.ended["outlived by its views"] += 1

    def _let_go(self) -> None:
        for view, copy in zip(*self._kept.popleft(), strict=True):
            assert (view == copy).all(), "a view that was kept has changed"

    def let_all_go(self) -> None:
        """Let go of all views that are kept, which must be as they were."""
        while self._kept:
            self._let_go()
