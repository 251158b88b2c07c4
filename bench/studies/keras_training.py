"""One Keras training, by Keras' own loading and by ringfeed's: `python bench/studies/keras_training.py`.

A `PyDataset` of 1,024 photographs (JPEG files of 500 x 375, decoded and resized to 224 x 224 by Pillow,
32 a batch of 19.3 MB) trains a small network for three epochs. Keras reads it with two threads or two
processes; ringfeed under `install()`, or by `feed(dataset, memory="100MB")`. Each run is a fresh
process; contenders take turns.

    memory      the most that all processes have at once, above a training on one batch that lies in memory;
                steps take longer than pictures here, so that what is read ahead is all there
    epoch       the median time of the second and third epoch
    killed      a worker process is killed amid the second epoch: the longest time between two batches
    resumed     the run is killed amid the second epoch, and begun again with the backup that it left
                every 10 batches: seconds from `fit` to its first batch, and batches trained twice

Losses and weights have the same bits in each run of this machine: `same` tells whether the weights of
a run that was disturbed are those of one that was not. A run without a batch for 30 seconds hangs.
Each run leaves one JSON line; a table comes last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.proctree import workers
from harness.turns import parser_of, said_by, take_turns
from report import report
from report.report import BYTES, TIME, quantity
from report.results import Results
from studies.photographs import write_files

FILES, QUICK_FILES, BATCH, SIDE, CLASSES, EPOCHS = 1024, 256, 32, 224, 4, 3
REPETITIONS, HANGS_S, MOST_S = 5, 30.0, 180.0
SAVE_FREQ, WORKERS, BACKUP, SLOW_STEP_S = 10, 2, "backup", 0.2
MODEL, THREADS, PROCESSES = "one batch in memory", "Keras, threads", "Keras, processes"
INSTALL, FEED = "install()", 'feed(memory="100MB")'
CONTENDERS = MODEL, THREADS, PROCESSES, INSTALL, FEED
CASES = {
    "memory": CONTENDERS,
    "epoch": CONTENDERS,
    "killed": (PROCESSES, INSTALL, FEED),
    "resumed": (THREADS, PROCESSES, INSTALL, FEED),
}
TITLES = {
    "memory": "peak memory of the input",
    "epoch": "one epoch",
    "killed": "a worker is killed: longest wait for the next batch",
    "resumed": "the run is killed and started again",
}

# ---- in the fresh process ----


def dataset_of(contender: str, folder: Path) -> Any:
    """The PyDataset, with the workers that its contender asks for."""
    import keras  # noqa: PLC0415 - the runner does without
    from PIL import Image  # noqa: PLC0415

    files = [str(path) for path in sorted(folder.glob("*.jpg"))]

    class Photographs(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no types
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.epoch, self.order = 0, np.arange(len(files))

        def __len__(self) -> int:
            return len(files) // BATCH

        def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
            numbers = self.order[BATCH * number : BATCH * number + BATCH]
            pictures = [Image.open(files[one]).resize((SIDE, SIDE)) for one in numbers]
            images = np.stack([np.asarray(picture, np.float32) for picture in pictures])
            return images / np.float32(255), numbers % CLASSES

        def on_epoch_end(self) -> None:
            self.epoch += 1
            self.order = np.random.default_rng(self.epoch).permutation(len(files))

    if contender == MODEL:
        batch = Photographs()[0]

        class OneBatch(Photographs):
            def __getitem__(self, _number: int) -> tuple[np.ndarray, np.ndarray]:
                return batch

        return OneBatch()
    return Photographs(workers=WORKERS, use_multiprocessing=contender != THREADS)


def model_of() -> Any:
    """A network that takes less time than its pictures."""
    import keras  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    layers = [
        keras.layers.Conv2D(8, 5, strides=4, activation="relu"),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(CLASSES),
    ]
    model = keras.Sequential([keras.Input((SIDE, SIDE, 3)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss)
    return model


def watch_of(case: str) -> Any:
    """A callback that notes when each batch ends, and kills what its case says amid the second epoch."""
    import keras  # noqa: PLC0415

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.ended_s: list[float] = []
            self.epochs_s: list[float] = []
            self.began_s = time.perf_counter()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del logs
            self.epoch = epoch
            self.epoch_began_s = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del epoch, logs
            self.epochs_s.append(time.perf_counter() - self.epoch_began_s)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del logs
            self.ended_s.append(time.perf_counter())
            amid = (self.epoch, batch) == (1, killed_at(self.params["steps"]))
            if case == "memory":
                time.sleep(SLOW_STEP_S)
            elif case in {"killed", "stopped"} and amid:
                victim = workers(os.getpid())[0] if case == "killed" else os.getpid()
                os.kill(victim, signal.SIGKILL)

        def end_where_it_hangs(self) -> None:
            """Print that, and end the process, when no batch ends for long."""
            while time.perf_counter() - max([self.began_s, *self.ended_s[-1:]]) < HANGS_S:
                time.sleep(1)
            print(json.dumps({"error": f"hangs: no batch for {HANGS_S:.0f} s"}), flush=True)
            os._exit(0)

    watch = Watch()
    threading.Thread(target=watch.end_where_it_hangs, daemon=True).start()
    return watch


def train(case: str, contender: str, folder: Path) -> dict[str, Any]:
    """Train once in this process."""
    import keras  # noqa: PLC0415

    model, data, callbacks = model_of(), dataset_of(contender, folder), []
    with contextlib.ExitStack() as stack:
        backup = keras.callbacks.BackupAndRestore
        if contender in {INSTALL, FEED}:
            import ringfeed.keras  # noqa: PLC0415 - Keras' own runs do without

            backup = ringfeed.keras.BackupAndRestore
            if contender == FEED:
                data = ringfeed.keras.feed(data, workers=WORKERS, memory="100MB")
            else:
                stack.enter_context(ringfeed.keras.install())
        if case in {"stopped", "resumed"}:
            callbacks.append(backup(str(folder / BACKUP), save_freq=SAVE_FREQ))
        watch = watch_of(case)
        epochs = 1 if case == "memory" else EPOCHS
        model.fit(data, epochs=epochs, shuffle=False, callbacks=[*callbacks, watch], verbose=0)
    digest = hashlib.sha256(b"".join(one.tobytes() for one in model.get_weights()))
    ended_s = watch.ended_s
    return {
        "first_s": round(ended_s[0] - watch.began_s, 3),
        "epoch_s": round(median(watch.epochs_s[1:] or watch.epochs_s), 3),
        "longest_s": round(float(max(np.diff(ended_s))), 3),
        "batches": len(ended_s),
        "weights": digest.hexdigest()[:16],
    }


# ---- the runner ----


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each case: its title, and what each contender with a loader had."""
    results = Results(records)
    return [
        [title, *(cell(results, case, contender) for contender in CONTENDERS[1:])]
        for case, title in TITLES.items()
    ]


def cell(results: Results, case: str, contender: str) -> str:
    """What a contender had in a case."""
    errors = [
        one["error"]
        for one in results.errors()
        if (one["case"], one["contender"]) == (case, contender)
    ]
    if errors or not results.contenders(case) or contender not in results.contenders(case):
        return min(errors, default="-" if case != "killed" else "no process to kill")
    if case == "memory":
        peak, bare = (results.median(case, one, "peak_bytes") for one in (contender, MODEL))
        return quantity((peak or 0.0) - (bare or 0.0), BYTES)
    figure = {"epoch": "epoch_s", "killed": "longest_s", "resumed": "first_s"}[case]
    took = quantity(results.median(case, contender, figure), TIME)
    if case == "epoch":
        return took
    undisturbed = results.values("epoch", contender, "weights").values()
    same = {*results.values(case, contender, "weights").values()} == {*undisturbed}
    again = _trained_twice(results, contender) if case == "resumed" else 0
    return (
        (f"{took}; " if case == "killed" else "")
        + (f"trains {again:.0f} batches twice; " if again else "")
        + ("the same final weights as undisturbed" if same else "other final weights")
    )


def _trained_twice(results: Results, contender: str) -> float:
    """Count the batches after the backup that a resumed run trained beyond those that were left."""
    whole = results.median("epoch", contender, "batches") or 0
    killed = killed_at(round(whole / EPOCHS)) + whole / EPOCHS + 1
    left = whole - killed // SAVE_FREQ * SAVE_FREQ
    return (results.median("resumed", contender, "batches") or 0) - left


def killed_at(steps: int) -> int:
    """Return the batch of the second epoch at whose end something is killed: amid two backups."""
    return SAVE_FREQ * (steps // 2 // SAVE_FREQ) + SAVE_FREQ // 2


def table(records: list[dict[str, Any]]) -> str:
    """A row for each case, a column for each contender."""
    return report.table(["", *CONTENDERS[1:]], rows(records))


def main() -> None:
    """Let all contenders take turns."""
    asked = parser_of(__doc__, CONTENDERS, CASES).parse_args()
    if asked.one:
        print(json.dumps(train(*asked.one, asked.folder)), flush=True)
        os._exit(0)  # a pool of Keras' may not end
    cases = {case: [one for one in CASES[case] if one in asked.contender] for case in asked.case}
    with tempfile.TemporaryDirectory() as made:
        write_files(Path(made), QUICK_FILES if asked.quick else FILES)
        records = take_turns(
            asked, cases, REPETITIONS, ("tensorflow", "keras"), partial(run, Path(made))
        )
    print(table(records))


def run(folder: Path, case: str, contender: str) -> dict[str, Any]:
    """One run; of one that is to go on, the part before it as well."""
    words = ["--folder", str(folder), "--one"]
    if case == "resumed":
        said_by(__file__, [*words, "stopped", contender], MOST_S)
    had = said_by(__file__, [*words, case, contender], MOST_S, watch=case == "memory")
    shutil.rmtree(folder / BACKUP, ignore_errors=True)
    return had


if __name__ == "__main__":
    main()
