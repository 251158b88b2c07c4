"""One training of the demo, in a separate process, with ringfeed or with Keras' own enqueuer.

It waits for a byte on its standard input before each epoch, so that two runs can take turns on one
machine, and reports on its standard output, one JSON object per line.
"""

# ruff: noqa: ARG002 - Keras names the arguments of its callbacks, used or not

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import demo_picture
import ringfeed
from demo_photos import CROP_SIDE, PHOTOGRAPHS, Crops, encoded_photographs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

HELD_OUT_SEED = 1_000_003
QUEUED_BATCHES = 10


def tell(event: str, **facts: object) -> None:
    """Print one event for the process that shows them."""
    print(json.dumps({"event": event, **facts}), flush=True)


def build_model(batches: int) -> keras.Model:
    """Return a small convolutional network to be trained on so many batches, the same every time."""
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((CROP_SIDE, CROP_SIDE, 3), dtype="uint8"),
        keras.layers.Rescaling(1 / 127.5, -1),
    ]
    for filters in (24, 48, 96, 128):
        layers.append(keras.layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False))
        layers.append(keras.layers.BatchNormalization(momentum=0.9))
        layers.append(keras.layers.ReLU())
    layers.append(keras.layers.GlobalAveragePooling2D())
    layers.append(keras.layers.Dense(len(PHOTOGRAPHS)))
    model = keras.Sequential(layers)
    pace = keras.optimizers.schedules.CosineDecay(4e-3, batches)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(pace), loss, metrics=["accuracy"], jit_compile=False)
    return model


class CropBatches(keras.utils.PyDataset):
    """The same crops as whole batches, for Keras' own worker processes."""

    def __init__(self, crops: Crops, batch_size: int, **options: Any) -> None:
        super().__init__(**options)
        self.crops = crops
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.crops) / self.batch_size)

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        first = number * self.batch_size
        last = min(first + self.batch_size, len(self.crops))
        crops, labels = zip(*[self.crops[index] for index in range(first, last)], strict=True)
        return np.stack(crops), np.array(labels)


class Stopwatch(keras.callbacks.Callback):
    """Takes turns, and times epochs and waiting the same way for every kind of input."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = threading.Semaphore(0)
        threading.Thread(target=self.listen, daemon=True).start()
        self.waits: list[tuple[float, float]] = []
        self.began = 0.0

    def listen(self) -> None:
        """Count the turns given.

        When none is left to give them, end all that this run has started.
        """
        while os.read(0, 1):  # not sys.stdin, whose lock would be held for ever in a forked worker
            self.turns.release()
        with contextlib.suppress(
            ProcessLookupError
        ):  # a group of its own, when demo.py has started it
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    def on_train_begin(self, logs: object = None) -> None:
        """Time the training's waits for its next batch."""
        self.model.train_function = self.timed(self.model.train_function)

    def on_test_begin(self, logs: object = None) -> None:
        """Time the validation's waits too, once."""
        if not hasattr(self.model.test_function, "timed"):
            self.model.test_function = self.timed(self.model.test_function)

    def timed(self, step: Callable[[Iterator[Any]], Any]) -> Callable[[Iterator[Any]], Any]:
        """Return `step` with each wait for its batch noted."""

        def timed_step(batches: Iterator[Any]) -> Any:
            asked = time.perf_counter()
            batch = next(batches)
            self.waits.append((asked, time.perf_counter()))
            return step(iter([batch]))

        timed_step.timed = True  # type: ignore[attr-defined]
        return timed_step

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Wait for this run's turn, then start the clock."""
        self.turns.acquire()
        self.waits.clear()
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Tell that one more batch is done."""
        tell("batch")

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Tell what this epoch took."""
        seconds = time.perf_counter() - self.began
        waited_s = sum(got - asked for asked, got in self.waits)
        tell("epoch", seconds=seconds, waited_s=waited_s, accuracy=(logs or {}).get("val_accuracy"))


class SlotWatch(keras.callbacks.Callback):
    """Looks at the slots every few milliseconds while the last epoch trains."""

    def __init__(self, loader: ringfeed.Loader, epochs: int) -> None:
        super().__init__()
        self.loader = loader
        self.last_epoch = epochs - 1
        self.sightings: list[tuple[float, list[str]]] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self) -> None:
        """Note the state of every slot until told to stop."""
        while not self.stopped.wait(0.005):
            self.sightings.append((time.perf_counter(), self.loader.slot_states()))

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Start with the last epoch."""
        if epoch == self.last_epoch:
            self.thread.start()

    def on_test_begin(self, logs: object = None) -> None:
        """Stop where validation, which has slots of its own, begins."""
        if self.thread.is_alive():
            self.stopped.set()
            self.thread.join()


def bytes_in_use() -> int:
    """Return how many bytes of ringfeed's shared memory have pages behind them, as the kernel counts them.

    Each segment counts once, whichever processes have it mapped.
    """
    blocks = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing
            if "memfd:ringfeed" in str(descriptor.readlink()):
                blocks += descriptor.stat().st_blocks
    return blocks * 512


def train_with_ringfeed(
    options: argparse.Namespace, training: Crops, held_out: Crops
) -> dict[str, int]:
    """Train through two rings, leave the picture behind, and return the bytes planned and used."""
    ring = {"batch_size": options.batch_size, "workers": options.workers, "slots": options.slots}
    model = build_model(options.epochs * math.ceil(len(training) / options.batch_size))
    with ringfeed.Loader(training, **ring) as loader, ringfeed.Loader(held_out, **ring) as held:
        stopwatch, watch = Stopwatch(), SlotWatch(loader, options.epochs)
        model.fit(
            loader.to_keras(),
            validation_data=held.to_keras(),
            epochs=options.epochs,
            callbacks=[stopwatch, watch],
            shuffle=False,  # the crops are random, and the photographs take turns
            verbose=0,
        )
        bytes_taken = {"planned": loader.memory + held.memory, "used": bytes_in_use()}
        crops, labels = next(iter(held))
        answers = model.predict_on_batch(crops).argmax(axis=1)
        batch = demo_picture.Batch(crops, labels, answers)
        demo_picture.draw(options.output, batch, watch.sightings, stopwatch.waits)
    return bytes_taken


def train_with_keras(
    options: argparse.Namespace, training: Crops, held_out: Crops
) -> dict[str, int]:
    """Train with two pools of Keras' own worker processes, which plan no memory."""
    pool = {
        "workers": options.workers,
        "use_multiprocessing": True,
        "max_queue_size": QUEUED_BATCHES,
    }
    batches = CropBatches(training, options.batch_size, **pool)
    build_model(options.epochs * len(batches)).fit(
        batches,
        validation_data=CropBatches(held_out, options.batch_size, **pool),
        epochs=options.epochs,
        callbacks=[Stopwatch()],
        shuffle=False,  # the photographs in the same order as with ringfeed
        verbose=0,
    )
    return {}


def main() -> None:
    """Train as the command line, written by demo.py, says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--feed", choices=["ringfeed", "keras"], required=True)
    parser.add_argument("--output", required=True)
    for name in ("epochs", "workers", "slots", "samples", "batch-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    photographs = encoded_photographs()
    train = train_with_ringfeed if options.feed == "ringfeed" else train_with_keras
    held_out = Crops(photographs, options.samples // 4, HELD_OUT_SEED)
    try:
        tell("done", **train(options, Crops(photographs, options.samples), held_out))
    except Exception:  # noqa: BLE001 - it is shown, and TensorFlow may hang in an orderly exit
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
