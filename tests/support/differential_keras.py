"""The face of Keras' datasets, with Keras' own `fit` as the plain loop: `differential --face keras`.

A round draws a dataset, what its hooks and a callback change, and the calls of a model that records
what it is given. Keras reads the dataset itself; then it runs under `install()`, or is fed.
Batches, and the hooks between them, must be the same. KERAS_BACKEND says which backend.
"""

from __future__ import annotations

import random
import sys
import warnings
from random import Random
from typing import TYPE_CHECKING, Any

import cloudpickle
import keras
import numpy as np

import ringfeed
import ringfeed.keras

if TYPE_CHECKING:
    from collections.abc import Callable

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # or each worker would import Keras
IS_JAX = keras.backend.backend() == "jax"
ROWS = 3

FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "pair": lambda x, y: (x, y),
    "triple": lambda x, y: (x, y, y[:, 0]),
    "inputs alone": lambda x, y: x,  # noqa: ARG005
    "a tuple of one": lambda x, y: (x,),  # noqa: ARG005
    "by name": lambda x, y: ({"a": x, "b": y}, y),
    "two inputs": lambda x, y: ((x, y), y),
    "bytes": lambda x, y: (x.astype(np.uint8), y.astype(np.int32)),
}


class Steered(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no types
    """A batch is a function of its number, and of what a callback has set."""

    begun = ended = level = 0

    def __init__(self, length: int, form: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.length = length
        self.form = form
        self.record: list[str] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        rows = ROWS - (index == self.length - 1)
        x = np.full((rows, 2), index, np.float32)
        y = np.array([[self.begun, self.ended, self.level]] * rows, np.float32)
        return FORMS[self.form](x, y)


class Batches(Steered):
    """A batch is a function of the hooks that have run, too."""

    def on_epoch_begin(self) -> None:
        self.begun += 1
        self.record.append("begin")

    def on_epoch_end(self) -> None:
        self.ended += 1
        self.record.append("end")


class Growing(Batches):
    """Has another length in each epoch."""

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self.length = self.length % 5 + 2


class Failing(Batches):
    """Raises once, amid its second epoch."""

    def __getitem__(self, index: int) -> Any:
        if self.ended == 1 and index == self.length // 2:
            raise ValueError(index)
        return super().__getitem__(index)


KINDS = {"batches": Batches, "steered": Steered, "growing": Growing, "failing": Failing}


class Recorder(keras.Model):  # type: ignore[misc]  # as above
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.compile("sgd", "mse", run_eagerly=True)
        self.built = True

    def _kept(self, given: Any) -> None:
        self.seen.append(
            keras.tree.map_structure(lambda one: (str(one.dtype), np.array(one).tolist()), given)
        )

    def train_step(self, *given: Any) -> Any:
        self._kept(given[-1])
        return ({"loss": 0.0}, given[0]) if IS_JAX else {"loss": 0.0}

    test_step = train_step


class Program:
    """What a script does: drawn from a seed alone."""

    def __init__(self, seed: int) -> None:
        draw = Random(f"{seed} keras")  # noqa: S311 - no secret
        self.seed = seed
        self.way = draw.choice(["install", "feed", "feed"])
        # Keras asks for a length but once a call, and feed() tells it another.
        self.kind = draw.choice(
            [kind for kind in KINDS if kind != "growing" or self.way == "install"]
        )
        self.form = draw.choice([*FORMS])
        self.length = draw.randint(2, 7)
        self.shuffle = self.way == "install" and draw.random() < 0.5
        self.workers = draw.randint(1, 3)
        self.by_processes = draw.random() < 0.5
        self.backend = draw.choice(["process", "process", "thread"])
        self.epochs = draw.randint(1, 4)
        self.initial_epoch = min(draw.choice([0, 0, 0, 1]), self.epochs - 1)
        self.steered = draw.random() < 0.5
        self.validates = draw.random() < 0.3
        self.calls = draw.randint(1, 2)
        # Keras reads ahead of the hooks between two epochs of one pass.
        has_passes = self.kind == "steered" and not self.steered and self.calls == 1
        self.steps = 2 if has_passes and draw.random() < 0.5 else None

    def __str__(self) -> str:
        """All that was drawn."""
        return ", ".join(f"{name}={value!r}" for name, value in vars(self).items())

    def dataset(self, **settings: Any) -> Steered:
        """Make a dataset."""
        return KINDS[self.kind](self.length, self.form, **settings)

    def run(self, dataset: Steered, data: Any, held_out: Any) -> list[Any]:
        """Run the script; return what the model was given, and what was raised."""
        random.seed(self.seed)
        model = Recorder()
        callbacks = [
            keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, _: self._steer(dataset, epoch)
            )
        ]
        for _ in range(self.calls):
            try:
                model.fit(
                    data,
                    epochs=self.epochs,
                    initial_epoch=self.initial_epoch,
                    shuffle=self.shuffle,
                    steps_per_epoch=self.steps,
                    validation_data=held_out,
                    callbacks=callbacks,
                    verbose=0,
                )
            except Exception as error:  # noqa: BLE001 - compared
                is_own = "ValueError" in f"{type(error).__name__}: {error}"
                model.seen.append("ValueError" if is_own else repr(error)[:200])
            model.seen.append("a call is over")
        return [*model.seen, dataset.record]

    def _steer(self, dataset: Steered, epoch: int) -> None:
        if self.steered:
            dataset.level = epoch + 1


def run_round(seed: int, outlets: list[str]) -> None:  # noqa: ARG001 - as all faces
    """Run one round; an AssertionError says what differs."""
    program = Program(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = program.dataset()
        plain = program.run(
            dataset, dataset, Batches(2, program.form) if program.validates else None
        )
        fed = _fed(program)
        for place, (got, expected) in enumerate(zip(fed, plain, strict=False)):
            assert got == expected, (
                f"{program}: {place}: has\n  {got}\nand with Keras\n  {expected}"
            )
        assert len(fed) == len(plain), f"{program}: {fed} and {plain}"


def _fed(program: Program) -> list[Any]:
    if program.way == "install":
        given = {
            "workers": program.workers,
            "use_multiprocessing": program.by_processes,
            "max_queue_size": 3,
        }
        dataset, held_out = program.dataset(**given), Batches(2, program.form, **given)
        with ringfeed.keras.install():
            return program.run(dataset, dataset, held_out if program.validates else None)
    dataset = program.dataset()
    given = {"workers": program.workers, "backend": program.backend, "timeout_s": 60}
    with ringfeed.keras.feed(dataset, **given) as data:
        if not program.validates:
            return program.run(dataset, data, None)
        with ringfeed.keras.feed(Batches(2, program.form), **given) as held_out:
            return program.run(dataset, data, held_out)
