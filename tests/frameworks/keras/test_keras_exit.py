"""How a process that trains ends: at its end, by an error, by Ctrl-C, with batches in hand.

On each backend.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import textwrap
import time
from typing import NamedTuple

import pytest

import warm
from leftovers import runs

pytest.importorskip("tensorflow")
pytest.importorskip("keras", minversion="3.7")

PATIENCE_S = 240  # to import a framework, train two steps and end

TRAINING = """
    import faulthandler, os, signal, sys, threading

    faulthandler.dump_traceback_later(200, exit=True)
    import keras, numpy as np, ringfeed
    import leftovers

    X, Y = np.zeros((4096, 6), np.float32), np.zeros(4096, np.int64)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    loader = ringfeed.Loader((X, X[:, :3].copy()), workers=2, slots=3)

    class Does(keras.callbacks.Callback):
        def __init__(self, deed):
            super().__init__()
            self.deed = deed

        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                say()
                self.deed()

    def say():
        print("in fit beside", *leftovers.below(os.getpid()), flush=True)

    def fit(deed):
        model.fit(loader.to_keras(), epochs=50, verbose=0, callbacks=[Does(deed)])
"""

HOLDING = """
    fed = loader.to_keras()
    if keras.backend.backend() == "tensorflow":
        batches = iter(fed.get_tf_dataset())
    else:
        is_jax = keras.backend.backend() == "jax"
        batches = iter(fed.get_jax_iterator() if is_jax else fed.get_torch_dataloader())
    held = [next(batches), next(batches), next(batches)]
    say()
"""

RAISING = """
    def deed():
        raise LookupError("of a callback")

    fit(deed)
"""

INTERRUPTED = """
    fit(lambda: os.kill(os.getpid(), signal.SIGINT))
"""

INTERRUPTED_WHILE_WAITING = """
    class Stuck:
        def __len__(self):
            return 4096

        def __getitem__(self, index):
            if index >= 200:
                threading.Event().wait(60)
            return X[index], X[index, :3]

    loader = ringfeed.Loader(Stuck(), workers=1, backend="thread", slots=3)
    fit(threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start)
"""

LEAVING = """
    fit(sys.exit)
"""


class End(NamedTuple):
    """A script's last part, how it ends, and the last line it leaves on stderr."""

    script: str
    status: int
    last_line: str
    workers: int = 2


ENDS = {
    "live iterator and batches": End(HOLDING, 0, ""),
    "uncaught exception": End(RAISING, 1, "LookupError: of a callback"),
    "Ctrl-C": End(INTERRUPTED, -2, "KeyboardInterrupt"),
    "Ctrl-C while waiting": End(INTERRUPTED_WHILE_WAITING, -2, "KeyboardInterrupt", workers=0),
    "sys.exit": End(LEAVING, 0, ""),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_end(backend: str, end: str) -> None:
    """The process ends as Python does, in its time, and its workers with it."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    expected = ENDS[end]
    ended = warm.run_keras(
        ["-c", textwrap.dedent(TRAINING) + textwrap.dedent(expected.script)],
        backend,
        env={"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=PATIENCE_S,
    )
    assert ended.returncode == expected.status, ended.stderr
    assert ended.stdout.startswith("in fit beside")
    if expected.last_line:
        assert ended.stderr.splitlines()[-1] == expected.last_line
    else:
        assert "Traceback" not in ended.stderr
    workers = [int(worker) for worker in ended.stdout.split()[3:]]
    assert len(workers) >= expected.workers
    deadline_s = time.monotonic() + PATIENCE_S
    while any(map(runs, workers)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not any(map(runs, workers))
