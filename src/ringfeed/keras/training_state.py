"""What a step of training changes: the variables of a model, and random numbers."""

from __future__ import annotations

import json
import random
import sys
import warnings
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR, global_seed_generator

from ringfeed.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringfeed.spec.array import AnyArray

GLOBAL_SEED = "the seed of Keras"

# ---- variables ----


def variables_of(model: Any) -> list[tuple[str, Any]]:
    """All variables that training changes, each with its owner, in the same order in each process.

    Those of the model include the states of its layers' seed generators.
    """
    seed = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    found = [("the model", variable) for variable in model.variables]
    for name, optimizer in _optimizers(model):
        found += [
            (f"{name} ({type(optimizer).__name__})", variable) for variable in optimizer.variables
        ]
    found += [("the metrics", variable) for variable in model.metrics_variables]
    return found + ([] if seed is None else [(GLOBAL_SEED, seed.state)])


def _optimizers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the optimizer, and those that a model with a step of its own has as attributes."""
    if model.optimizer is not None:
        yield "the optimizer", model.optimizer
    for name, value in sorted(vars(model).items()):
        if isinstance(value, keras.optimizers.Optimizer) and value is not model.optimizer:
            yield f"the optimizer {name}", value


def describe(model: Any) -> list[list[Any]]:
    """Return what each variable is: whose, its name, shape and dtype. As JSON."""
    return [
        [whose, each.name, list(each.shape), str(each.dtype)] for whose, each in variables_of(model)
    ]


def arrays_of(model: Any) -> Iterator[AnyArray]:
    """Yield the values of the variables."""
    for _, variable in variables_of(model):
        yield _array_of(variable)


def _array_of(variable: Any) -> AnyArray:
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "__array__ implementation", DeprecationWarning
        )  # of TensorFlow's, by NumPy 2
        found: AnyArray = np.asarray(keras.ops.convert_to_numpy(variable.value))
    return found


def check_variables(model: Any, saved: list[list[Any]], path: Path) -> None:
    """Raise StateError unless the variables have the owners, shapes and dtypes of a backup.

    Names may differ.
    """
    if any(whose == GLOBAL_SEED for whose, *_ in saved):
        global_seed_generator()  # is made where there is none
    own = describe(model)
    nothing = ["nothing", "", [], ""]
    for number in range(max(len(own), len(saved))):
        here, there = (all_[number] if number < len(all_) else nothing for all_ in (own, saved))
        if (here[0], here[2:]) != (there[0], there[2:]):
            raise StateError(
                f"the backup {str(path)!r} is of another model: its variable {number} of "
                f"{len(saved)} is {_shown(there)}, and that of the {len(own)} of this model is "
                f"{_shown(here)}; give the model, the optimizer and the metrics that it was made "
                "with, another backup_dir, or delete it"
            )


def _shown(variable: list[Any]) -> str:
    whose, name, shape, dtype = variable
    return f"{name!r} of {whose}, {tuple(shape)} {dtype}" if dtype else "not there"


def assign(model: Any, arrays: list[AnyArray]) -> None:
    """Give the variables the values of a backup."""
    for (_, variable), array in zip(variables_of(model), arrays, strict=True):
        own = _array_of(variable).dtype
        variable.assign(
            array if array.dtype == own else array.view(own)
        )  # bfloat16 and the like: see `backup_file`


def build(model: Any, iterator: Any) -> None:
    """Make all variables now.

    On TensorFlow Keras makes them in the first step; on other backends `fit` has made them.
    """
    if keras.backend.backend() == "tensorflow":
        # No other place has the form of a batch, and `fit` of the other backends builds so.
        dataset = iterator._distributed_dataset  # noqa: SLF001
        model._symbolic_build(data_batch=dataset.element_spec)  # noqa: SLF001


# ---- random numbers ----


def random_states() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's own random numbers, as JSON."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002 - what others draw from
    numpy = json.loads(json.dumps(numpy, default=lambda array: array.tolist()))
    states = {"python": random.getstate(), "numpy": numpy}
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        states["torch"] = torch.get_rng_state().numpy().tobytes().hex()
        if torch.cuda.is_available():
            states["cuda"] = [
                state.numpy().tobytes().hex() for state in torch.cuda.get_rng_state_all()
            ]
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Go on with these."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(states["numpy"])  # noqa: NPY002 - see above
    if "torch" in states and "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.set_rng_state(_as_tensor(torch, states["torch"]))
        if "cuda" in states and torch.cuda.device_count() == len(states["cuda"]):
            torch.cuda.set_rng_state_all([_as_tensor(torch, state) for state in states["cuda"]])


def check_random_states(states: dict[str, Any]) -> None:
    """Raise some error for what no random numbers can go on from; nothing is changed."""
    before = random_states()
    try:
        for name in {*states, "start", "epoch", "now"}:
            set_random_states(states[name])
    finally:
        set_random_states(before)


class Drawing:
    """Gives its body random states, which go on in the next body, and puts others back."""

    def __init__(self, inside: dict[str, Any], outside: dict[str, Any] | None = None) -> None:
        """Draw nothing yet; ``outside``: what is to be put back, None: what is before the body."""
        self._inside, self._outside = inside, outside

    def __enter__(self) -> None:
        """Begin, or go on."""
        self._back = self._outside or random_states()
        set_random_states(self._inside)

    def __exit__(self, *unused: object) -> None:
        """Keep where it ended."""
        self._inside = random_states()
        set_random_states(self._back)


def _as_tensor(torch: Any, state: str) -> Any:
    return torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
