"""The face of `ringfeed.share`, with a plain loop beside each training: `differential --face share`.

A round draws a program of `differential` and some trainings that share its loader, in step, in one
process. Now and then one leaves, breaks an epoch off, or is a forked process that is killed; the
others must have every batch, which nothing changes while it is held.
"""

from __future__ import annotations

import os
import signal
import warnings
from functools import partial
from random import Random
from typing import Any

import numpy as np

import ringfeed
import shared
from differential import BATCHES, FAILED, STREAM, STREAMS, Program, _is_same, _show, _shown

TIMEOUT_S = 60.0


class Sharing(Program):
    """A program whose loader is shared."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = Random(f"{seed} share")  # noqa: S311 - no secret
        self.ranks = draw.choice([2, 2, 3])
        can_split = self.family not in (BATCHES, STREAM, STREAMS) and self.order != "one list"
        can_split = can_split and not (
            self.collates or self.whole_function or self.mixed["per_batch"]
        )
        self.mode = draw.choice(["broadcast", "split"]) if can_split else "broadcast"
        self.breaks, self.stops, self.steered = {}, False, False
        self.given = {
            "workers": draw.randint(0, 2),
            "slots": draw.randint(3, 6),
            "timeout_s": TIMEOUT_S,
        }
        self.leaves = draw.choice([None, None, "closes", "is killed"])
        self.leaves_after = draw.randint(0, 6)
        self.world_size, self.rank = (self.ranks, 0) if self.mode == "split" else (1, 0)

    def make_loader(self) -> ringfeed.Loader[Any]:
        """Make the loader, in the host process."""
        settings = self.settings(self.make(self)) | self.given
        if self.mode == "split":
            settings["shard"] = ringfeed.Shard(0, 1, settings["shard"].uneven)
            settings["batch_size"] *= self.ranks
        return ringfeed.Loader(**settings)

    def of_rank(self, rank: int) -> list[list[Any]]:
        """Return the batches of a training, as a plain loop has them."""
        self.rank = rank if self.mode == "split" else 0
        return self.run()


def _killed(join: Any, epochs: int, after: int) -> int:
    """Fork a training that ends by SIGKILL after some batches; return its process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        training, count = join(), 0
        for _ in range(epochs):
            for _ in training:
                count += 1
                if count > after:
                    os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def _batch(found: Any) -> Any:
    return {key: np.array(value) for key, value in found.items()}


class Trainings:
    """Those of a round that live to its end."""

    def __init__(self, program: Sharing, name: str) -> None:
        self.program = program
        self.name = name
        self.forked = 0

    def join(self, rank: int) -> Any:
        """Join as a rank."""
        program = self.program
        given: dict[str, Any] = {"rank": rank} if program.mode == "split" else {}
        given |= {
            "name": self.name,
            "ranks": program.ranks,
            "mode": program.mode,
            "timeout_s": TIMEOUT_S,
        }
        return ringfeed.share(program.make_loader, **given)

    def run(self) -> list[list[list[Any]]]:
        """Return the batches of each training that lives on, epoch by epoch."""
        program, last = self.program, self.program.ranks - 1
        if program.leaves == "is killed":
            self.forked = _killed(partial(self.join, last), program.epochs, program.leaves_after)
        count = program.ranks - (program.leaves == "is killed")
        joined = [self.join(rank) for rank in range(count)]
        hosts = shared.group_of(joined[0].host_pid)
        try:
            return self._epochs(joined)
        finally:
            for training in joined:
                training.close()
            if self.forked:
                os.waitpid(self.forked, 0)
            shared.gone(hosts)

    def _epochs(self, joined: list[Any]) -> list[list[list[Any]]]:
        program, seen, count = self.program, [[] for _ in joined], 0
        held: list[tuple[Any, Any]] = []
        for _ in range(program.epochs):
            iterators, batches = [iter(one) for one in joined], [[] for _ in joined]
            live = [*range(len(joined))]
            while live:
                for number in [*live]:
                    found = self._next(iterators[number])
                    if found is None:
                        live.remove(number)
                        continue
                    batches[number].append(FAILED if found is FAILED else _batch(found))
                    if found is not FAILED and not held:
                        held.append((found, batches[number][-1]))
                    found = None
                count += 1
                if (
                    program.leaves == "closes"
                    and count == program.leaves_after
                    and len(joined) == program.ranks
                ):
                    iterators.pop()
                    joined.pop().close()
                    live = [number for number in live if number < len(joined)]
                    batches.pop()
                    seen.pop()
            for own, found in zip(seen, batches, strict=True):
                own.append(found)
        for views, copies in held:
            assert _is_same(_batch(views), copies), (
                f"a batch that was held has changed: {_shown(copies)}"
            )
        return seen

    def _next(self, iterator: Any) -> Any:
        try:
            return next(iterator, None)
        except ringfeed.WorkerError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            return FAILED


def run_round(seed: int, outlets: list[str]) -> None:  # noqa: ARG001 - as all faces
    """Run one round; an AssertionError says what differs."""
    program = Sharing(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            seen = Trainings(program, shared.unique("differential")).run()
        except Exception as error:
            message = f"{program}: {type(error).__name__}: {error}"
            raise AssertionError(message) from error
        for rank, fed in enumerate(seen):
            for epoch, (got, expected) in enumerate(zip(fed, program.of_rank(rank), strict=True)):
                same = len(got) == len(expected) and all(map(_is_same, got, expected))
                assert same, (
                    f"{program}: rank {rank}, epoch {epoch} has\n  {_show(got)}\nand a plain "
                    f"loop\n  {_show(expected)}"
                )
