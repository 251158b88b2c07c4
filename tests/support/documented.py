"""What the examples of docs/resume.md take for granted, and a program of each: killed amid its run, and run again.

A program's steps each add a line to steps.log: a number that depends on all batches since the first
one, by way of the weights, and the samples of the batch. At the step that the variable DIE_AT
numbers, the program ends by SIGKILL.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ringfeed
import warm
from watching import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs" / "resume.md"
SAMPLES = 400
IN_TENSORFLOW = {"Keras", "tf.data", "Several batches a step"}
_steps = itertools.count(1)
_weights = [0]


class Dataset:
    """Samples with random numbers of their own; the label is the index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.float32]:
        return ringfeed.rng().random(3, dtype=np.float32), np.float32(index)


def blocks() -> dict[str, str]:
    """Return the code of each section of the page.

    AssertionError where one has several examples.
    """
    found = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        codes = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        assert len(codes) <= 1, section
        if codes:
            found[section.partition("\n")[0]] = codes[0]
    return found


# ---- in the program ----


def end(signal_number: int = signal.SIGKILL) -> None:
    """End this program, if this is the step to end at."""
    if next(_steps) == int(os.environ.get("DIE_AT", "0")):
        signal.raise_signal(signal_number)


def note(number: Any, labels: Any) -> None:
    """Add a line to the log."""
    with Path("steps.log").open("a") as file:
        file.write(json.dumps([number, np.asarray(labels).astype(int).ravel().tolist()]) + "\n")


def train_step(x: Any, y: Any) -> None:
    """Change the weights by a batch."""
    end()
    batch = np.asarray(x).tobytes() + np.asarray(y).tobytes()
    _weights[0] = zlib.crc32(batch, _weights[0])
    note(_weights[0], y)


def weights() -> list[int]:
    """Return the weights."""
    return [*_weights]


def set_weights(saved: list[int]) -> None:
    """Restore them."""
    _weights[:] = saved


def save(state: dict[str, Any]) -> None:
    """Save a state and the weights."""
    Path("run.part").write_text(json.dumps([state, weights()]))
    Path("run.part").replace("run.json")


def load(loader: ringfeed.Loader) -> None:
    """Load both, if they were saved."""
    if Path("run.json").exists():
        state, saved = json.loads(Path("run.json").read_text())
        loader.load_state_dict(state)
        set_weights(saved)


def of_loops() -> dict[str, Any]:
    """Return what any loop over arrays needs."""
    names = {
        "train_step": train_step,
        "weights": weights,
        "set_weights": set_weights,
        "save": save,
        "load": load,
    }
    return {"dataset": Dataset(), **names}


def of_signals() -> dict[str, Any]:
    """Return the same for a program that ends by SIGTERM after a step."""

    def step(x: Any, y: Any) -> None:
        os.environ["DIE_AT"], number = "0", os.environ.get("DIE_AT", "0")
        train_step(x, y)
        os.environ["DIE_AT"] = number
        if len(Path("steps.log").read_text().splitlines()) == int(number):
            signal.raise_signal(signal.SIGTERM)

    return {**of_loops(), "train_step": step}


def of_tensorflow() -> dict[str, Any]:
    """Return a step that a function of TensorFlow's may call."""
    import tensorflow as tf  # noqa: PLC0415 - for one section

    return {**of_loops(), "train_step": lambda x, y: tf.py_function(train_step, [x, y], [])}


def of_torch() -> dict[str, Any]:
    """Return a model, and a step of it."""
    import torch  # noqa: PLC0415 - for its sections

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def step(x: Any, y: Any, ddp: Any = None) -> None:
        end()
        optimizer.zero_grad()
        loss = ((ddp or model)(x)[:, 0] - y).square().mean()
        loss.backward()
        optimizer.step()
        note(loss.item(), y)

    return {**of_loops(), "model": model, "optimizer": optimizer, "train_step": step}


def of_ddp() -> dict[str, Any]:
    """Return the same without dropout, whose random numbers that section does not save.

    A process that is killed ends the connection in which the other one may still wait for its part
    of the step before. So neither ends before both are through with that step.
    """
    import torch  # noqa: PLC0415 - as above

    names = of_torch()
    model, step = names["model"], names["train_step"]
    model[1] = torch.nn.Identity()
    names["optimizer"].param_groups[:] = [
        {**names["optimizer"].param_groups[0], "betas": (0.0, 0.0)}
    ]
    logs = [Path("steps.log"), Path("..", "steps.log")]
    if os.environ["RANK"] == "0":
        logs[1] = Path("other", "steps.log")

    def together(*given: Any) -> None:
        last = int(os.environ.get("DIE_AT", "0")) - 1
        if last > 0 and _lines(logs[0]) == last:
            deadline_s = time.monotonic() + PATIENCE_S
            while _lines(logs[1]) < last and time.monotonic() < deadline_s:
                time.sleep(0.01)
        step(*given)

    return {**names, "train_step": together}


def _lines(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def of_jax() -> dict[str, Any]:
    """Return weights, and a step from these to others."""
    import jax  # noqa: PLC0415 - for its section

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return ((x @ weights["w"] + weights["b"]) - y / SAMPLES) ** 2

    @jax.jit
    def change(weights: Any, x: Any, y: Any) -> Any:
        mean, gradient = jax.value_and_grad(lambda *given: loss(*given).mean())(weights, x, y)
        return mean, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)

    def step(weights: Any, x: Any, y: Any) -> Any:
        end()
        mean, weights = change(weights, x, y)
        note(float(mean), y)
        return weights

    return {
        **of_loops(),
        "weights": {"w": jax.numpy.zeros(3), "b": jax.numpy.zeros(())},
        "train_step": step,
    }


def of_keras() -> dict[str, Any]:
    """Return a model whose steps are noted."""
    import keras  # noqa: PLC0415 - for its section

    class Noted(keras.Sequential):  # type: ignore[misc]
        def train_step(self, *given: Any) -> Any:
            end()
            found = super().train_step(*given)
            logs = found[0] if isinstance(found, tuple) else found
            note(float(logs["loss"]), given[-1][1])
            return found

    keras.utils.set_random_seed(0)
    model = Noted([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", run_eagerly=True)
    return {**of_loops(), "model": model}


NAMES: dict[str, Callable[[], dict[str, Any]]] = {
    "SIGTERM: Slurm, Ray and spot machines": of_signals,
    "Several batches a step": of_tensorflow,
    "torch": of_torch,
    "torch on several processes": of_ddp,
    "JAX": of_jax,
    "Keras": of_keras,
}


def names(section: str) -> dict[str, Any]:
    """Return what a section's example takes for granted."""
    return NAMES.get(section, of_loops)()


# ---- in the test ----


def begin(
    section: str, folder: Path, *, die_at: int = 0, **environment: str
) -> subprocess.Popen[str] | warm.Program:
    """Begin a section's program, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    program = folder / "program.py"
    program.write_text(
        f"import documented\nglobals().update(documented.names({section!r}))\n{blocks()[section]}"
    )
    path = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = ["-W", "ignore", program.name]
    env = {**os.environ, "PYTHONPATH": path, "DIE_AT": str(die_at), **environment}
    if section in IN_TENSORFLOW:
        return warm.start(command, cwd=folder, env=env)
    return subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=env, stderr=subprocess.PIPE, text=True
    )


def finish(
    program: subprocess.Popen[str] | warm.Program, folder: Path, *, status: int = 0
) -> list[Any]:
    """Wait for a program; return what its steps were, and forget them there."""
    _, error = program.communicate(timeout=240)
    assert program.returncode == status, error
    log = folder / "steps.log"
    found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    log.unlink(missing_ok=True)
    return found
