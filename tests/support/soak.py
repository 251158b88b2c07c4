"""A Keras `fit` under random faults: its losses and weights are those of the same fit without any, bit for bit.

    python tests/support/soak.py --seconds 600
    python tests/support/soak.py --seed 1234

A round is one course of training: two calls of `fit` over several epochs, with validation. It is
run in peace by a loader without workers, then over processes that are killed, stopped and struck by
their own samples, then over threads, which only slow down and fail. In all three the same samples
fail for good and are skipped. A failure names the seed of its round: the same seed takes the same
decisions again. (How they meet the workers in time is up to the machine.)
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import resource
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import leftovers
import ringfeed
from faults import CLASSES, FEATURES, IN_PROCESSES, IN_THREADS, STUCK, Examples, Faults
from killer import Killer
from orders import Orders, Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

ROUND_S = 240.0
TIMEOUT_S = 3.0  # after which a stuck worker is ended
FAULTS = 3  # samples of each loader that strike once in each epoch of a fit
METHODS = ("spawn", "process", "fork")
IGNORED = (
    "backend='fork' after .* has computed",  # here no worker uses TensorFlow
    "\\s*Your input ran out of data",  # all of a batch was skipped
)


class Course:
    """What is trained on, and for how long, drawn from a seed alone."""

    def __init__(self, seed: int) -> None:
        draw = Random(f"{seed} course")  # noqa: S311 - no secret
        self.seed = seed
        self.batch_size = draw.choice([8, 16, 24])
        self.batches = draw.randint(12, 24)
        self.length = self.batches * self.batch_size - draw.randrange(self.batch_size)
        self.held_out = draw.randint(20, 100)
        self.shuffle = draw.random() < 0.7
        self.epochs = draw.randint(2, 4)
        self.steps = (
            draw.randint(3, self.batches // self.epochs) if draw.random() < 0.6 else None
        )  # of the first fit
        self.bad = frozenset(draw.sample(range(self.length), draw.randint(1, 5)))
        self.sleep_s = draw.choice([0.0, 0.0005, 0.001])

    def training(self, faults: Faults | None = None, **settings: Any) -> ringfeed.Loader:
        """The loader of the rows to train on."""
        examples = Examples(self.length, self.bad, self.sleep_s, faults)
        return self._loader(examples, shuffle=self.shuffle, **settings)

    def validation(self, faults: Faults | None = None, **settings: Any) -> ringfeed.Loader:
        """The loader of the rows held out."""
        return self._loader(Examples(self.held_out, frozenset(), self.sleep_s, faults), **settings)

    def _loader(self, examples: Examples, **settings: Any) -> ringfeed.Loader:
        return ringfeed.Loader(
            examples,
            batch_size=self.batch_size,
            seed=self.seed,
            spec=Examples.SPEC,
            on_error="skip",
            max_attempts=1000,  # random deaths are no sample's fault
            **settings,
        )

    def model(self) -> Any:
        """A classifier whose weights depend on every batch, and on their order."""
        keras.utils.set_random_seed(self.seed % 2**32)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((FEATURES,)),
                layers.Dense(16, activation="relu"),
                layers.Dropout(0.2),
                layers.Dense(CLASSES),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], jit_compile=False)
        return model


@dataclass(frozen=True)
class Outcome:
    """What came of a course, bit for bit."""

    curves: dict[str, list[str]]  # hexadecimal, of all epochs
    weights: list[bytes]
    skipped: list[int]

    @classmethod
    def of(cls, model: Any, histories: list[dict[str, list[float]]], skipped: list[int]) -> Outcome:
        """What came of two calls of `fit`."""
        curves = {
            name: [float(value).hex() for found in histories for value in found[name]]
            for name in histories[0]
        }
        weights: list[np.ndarray[Any, Any]] = model.get_weights()
        return cls(curves, [array.tobytes() for array in weights], list(skipped))

    def difference(self, other: Outcome) -> str:
        """The first place where another outcome differs; empty where it is the same."""
        for name, curve in self.curves.items():
            for epoch, (ours, theirs) in enumerate(zip(curve, other.curves[name], strict=True)):
                if ours != theirs:
                    return (
                        f"{name} of epoch {epoch} is {float.fromhex(theirs)!r}, not "
                        f"{float.fromhex(ours)!r}"
                    )
        if self.skipped != other.skipped:
            return f"{other.skipped} were skipped, not {self.skipped}"
        return (
            "" if self.weights == other.weights else "the losses are the same, the weights differ"
        )


class Siege(keras.callbacks.Callback):  # type: ignore[misc]
    """What goes on around a `fit`: it tells the killers of progress, and arms the faults in each epoch."""

    def __init__(self, faults: list[Faults], killers: list[Killer]) -> None:
        super().__init__()
        self.struck = 0
        self._faults = faults
        self._killers = killers
        for each in faults:
            each.arm()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Arm."""
        del epoch, logs
        self.look()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The training loader has made progress."""
        del batch, logs
        if self._killers:
            self._killers[0].progress()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """The validation loader has made progress."""
        del batch, logs
        if self._killers:
            self._killers[1].progress()

    def look(self) -> None:
        """Count what has struck, and arm it again."""
        self.struck += sum(each.arm() for each in self._faults)


@dataclass
class Record:
    """What has happened in all rounds."""

    rounds: int = 0
    fits: int = 0
    epochs: int = 0
    struck: int = 0
    skipped: int = 0
    tally: Tally = field(default_factory=Tally)

    def __str__(self) -> str:
        """All of it; a record of rounds that passed has no difference in it."""
        tally = self.tally
        return (
            f"{self.rounds} rounds, {self.fits} fits under fire over {self.epochs} epochs: "
            f"{tally.kills} kills of workers, {tally.forkservers} of forkservers, {tally.stops} "
            f"stops, {tally.timed_out} for good, {self.struck} faults inside samples, "
            f"{tally.restarts} replacements, {self.skipped} samples skipped: every loss, every "
            "validation loss and all weights equal, bit for bit"
        )


def train(
    course: Course, training: ringfeed.Loader, validation: ringfeed.Loader, siege: Siege | None
) -> Outcome:
    """Run a course to its end."""
    model = course.model()
    settings: dict[str, Any] = {
        "validation_data": validation.to_keras(),
        "verbose": 0,
        "callbacks": siege and [siege],
    }
    fed = training.to_keras()
    histories = [
        model.fit(fed, epochs=course.epochs, steps_per_epoch=course.steps, **settings).history,
        model.fit(fed, epochs=2, **settings).history,
    ]
    return Outcome.of(model, histories, training.stats().skipped)


def in_peace(course: Course) -> Outcome:
    """What comes of a course without workers and without faults."""
    with course.training(workers=0) as training, course.validation(workers=0) as validation:
        return train(course, training, validation, None)


@contextlib.contextmanager
def _killers(
    course: Course, method: str, loaders: list[ringfeed.Loader], record: Record
) -> Iterator[list[Killer]]:
    """A killer for each loader, whose workers have just been started."""
    with contextlib.ExitStack() as stack:
        found = []
        for number, loader in enumerate(loaders):
            iter(loader)
            loader.set_epoch(0)
            orders = Orders(course.seed + number, method, 2)
            orders.suspicious = orders.stops = True
            orders.most_kills, orders.most_suspects, orders.mean_delay_s = 100, 1, 0.1
            found.append(stack.enter_context(Killer(orders, loader, record.tally)))
        yield found


def under_fire(course: Course, method: str | None, record: Record) -> Outcome:
    """What comes of a course over processes started by ``method``, or threads where it is None."""
    draw = Random(f"{course.seed} {method}")  # noqa: S311 - no secret
    names = IN_PROCESSES if method else IN_THREADS
    with contextlib.ExitStack() as stack:
        faults = [
            Faults.draw(
                Path(stack.enter_context(tempfile.TemporaryDirectory())),
                draw,
                length,
                names,
                FAULTS,
            )
            for length in (course.length, course.held_out)
        ]
        if method and draw.random() < 0.3:
            faults[0].deeds[draw.randrange(course.length)] = STUCK
        settings: dict[str, Any] = {"workers": 2, "slots": draw.randint(2, 5), "backend": "thread"}
        if method:
            settings |= {"backend": method, "timeout_s": TIMEOUT_S, "on_stall": "restart"}
        training = stack.enter_context(course.training(faults[0], **settings))
        validation = stack.enter_context(course.validation(faults[1], **settings))
        loaders = [training, validation]
        killers = stack.enter_context(_killers(course, method, loaders, record)) if method else []
        siege = Siege(faults, killers)
        outcome = train(course, training, validation, siege)
        siege.look()
        restarts = sum(loader.stats().restarts for loader in loaders)
    assert siege.struck, "no fault has struck"
    assert restarts or not method, "no worker was replaced"
    record.struck += siege.struck
    record.tally.restarts += restarts
    record.skipped += len(outcome.skipped)
    record.fits += 2
    record.epochs += len(outcome.curves["loss"])
    return outcome


def run_round(seed: int, record: Record) -> None:
    """Run one course in peace, over processes and over threads.

    An AssertionError names its seed.
    """
    course = Course(seed)
    method = METHODS[seed % len(METHODS)]
    before = leftovers.present()
    try:
        expected = in_peace(course)
        for backend in (method, None):
            difference = expected.difference(under_fire(course, backend, record))
            assert not difference, f"{backend or 'threads'}: {difference}"
        left = leftovers.since(before)
        assert not left, f"left behind: {left}"
    except Exception as error:
        raise AssertionError(
            f"python tests/support/soak.py --seed {seed} ({method}): {error}"
        ) from error
    record.rounds += 1


def run(seed: int, seconds: float) -> Record:
    """Run rounds from a seed onward until the time is over; a round that hangs ends the process."""
    tf.config.experimental.enable_op_determinism()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # for the workers that crash
    record = Record()
    deadline_s = time.monotonic() + seconds
    with warnings.catch_warnings():
        for text in IGNORED:
            warnings.filterwarnings("ignore", text)
        while not record.rounds or time.monotonic() < deadline_s:
            faulthandler.dump_traceback_later(ROUND_S, exit=True)
            run_round(seed, record)
            seed += 1
    faulthandler.cancel_dump_traceback_later()
    return record


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="of the first round; alone: that round only")
    parser.add_argument("--seconds", type=float, help="begin rounds for so long")
    chosen = parser.parse_args()
    seed = time.time_ns() % 10**9 if chosen.seed is None else chosen.seed
    seconds = (
        chosen.seconds if chosen.seconds is not None else 0.0 if chosen.seed is not None else 60.0
    )
    sys.stdout.write(f"from seed {seed}\n")
    sys.stdout.flush()
    sys.stdout.write(f"{run(seed, seconds)}\n")


if __name__ == "__main__":
    main()
