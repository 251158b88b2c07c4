"""`ringfeed.keras.BackupAndRestore`: a `fit` that was broken off goes on as if it had not been.

Here a fit ends by an exception, in this process; `test_keras_kills` has SIGKILL, and the other
backends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import zipfile
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras", minversion="3.7")

import keras
import numpy as np

import ringfeed
import ringfeed.keras
from backed_up import BATCH, Augmented, Batches, X, Y

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Keras' LearningRateScheduler asks TensorFlow for an array in a way that NumPy warns of.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword"
)

ROWS, EPOCHS = 34, 3
STEPS = 5  # four of 8 and one of 2


class Few(Batches):
    """Whole batches, few of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(ROWS, **settings)


class WithState(Few):
    """The same with a state of its own, and a hook that cannot be run again."""

    def on_epoch_end(self) -> None:
        self.rows = np.random.default_rng(int(self.rows[0])).permutation(self.rows)

    def state_dict(self) -> list[int]:
        return self.rows.tolist()

    def load_state_dict(self, state: list[int]) -> None:
        self.rows = np.asarray(state)


class WithBegin(WithState):
    """The same with a hook that Keras runs again when it goes on amid an epoch."""

    def on_epoch_begin(self) -> None:
        self.rows = np.roll(self.rows, 3)


class Draws(Few):
    """Both hooks shuffle the rows by global random numbers."""

    def on_epoch_begin(self) -> None:
        self.rows = np.array(random.sample(self.rows.tolist(), ROWS))

    def on_epoch_end(self) -> None:
        self.rows = np.random.permutation(self.rows)  # noqa: NPY002 - as users do


class Hooked(Few):
    """Keeps which of its hooks have run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []

    def on_epoch_begin(self) -> None:
        self.ran.append("begin")

    def on_epoch_end(self) -> None:
        self.ran.append("end")


class Gappy(Few):
    """Batches of which some are None."""

    def __getitem__(self, index: int) -> Any:
        return None if index in (1, 3) else super().__getitem__(index)


class Endless:
    """An iterable that does not say how long it is."""

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.int64]]:
        return iter(zip(X[:ROWS], Y[:ROWS], strict=True))


def over_loader(dataset: Any = None, **settings: Any) -> Any:
    """Return a loader for Keras, shuffled unless told otherwise."""
    settings = {"batch_size": BATCH, "shuffle": True, "workers": 0, **settings}
    return ringfeed.Loader(Augmented(ROWS) if dataset is None else dataset, **settings).to_keras()


def over_feed(dataset: Any = None, **settings: Any) -> Any:
    """Return a fed dataset."""
    settings = {"workers": 0, "shuffle": True, **settings}
    return ringfeed.keras.feed(Few() if dataset is None else dataset, **settings)


WAYS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "loader": (over_loader, {}),
    "whole batches only": (lambda: over_loader(drop_remainder=True), {}),
    "several at once": (over_loader, {"steps_per_execution": 3}),
    "part of an epoch": (over_loader, {"steps_per_epoch": 3, "epochs": 5}),
    "iterable": (lambda: over_loader(Endless(), shuffle=False, workers=1), {"shuffle": False}),
    "feed": (over_feed, {}),
    "feed with a state": (lambda: over_feed(WithState()), {}),
    "feed with a state ahead of an epoch": (lambda: over_feed(WithBegin()), {}),
    "part of a pass that hooks change": (
        lambda: over_feed(WithBegin(), shuffle=False, workers=1, backend="thread"),
        {"shuffle": False, "steps_per_epoch": 2, "epochs": 5},
    ),
    "batches of None": (lambda: over_feed(Gappy(), shuffle=False), {"shuffle": False}),
    "install": (Few, {}),
    "install, threads": (lambda: Few(workers=2), {}),
    "install, part of a pass": (Few, {"steps_per_epoch": 2, "epochs": 5}),
    "feed of hooks that draw": (lambda: over_feed(Draws()), {}),
    "part of a pass of hooks that draw": (
        lambda: over_feed(Draws()),
        {"steps_per_epoch": 2, "epochs": 5},
    ),
    "install, hooks that draw": (Draws, {}),
    "initial epoch": (over_loader, {"initial_epoch": 1, "epochs": 4}),
    "validation": (over_loader, {"validation": lambda: over_loader(batch_size=25)}),
}


class BrokenOffError(Exception):
    """Ends a fit."""


class Curve(keras.callbacks.Callback):
    """Keeps what came of each batch and each epoch, and ends the fit after one."""

    def __init__(self, stop: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.stop = stop
        self.found: dict[Any, dict[str, float]] = {}
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found[self.epoch, batch] = dict(logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if (self.epoch, batch) == self.stop:
            raise BrokenOffError

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found[epoch] = dict(logs)


def make_model(**settings: Any) -> Any:
    """Return a model whose steps draw random numbers."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential([keras.Input((6,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], run_eagerly=True, **settings
    )
    return model


def fit(
    data: Any,
    *callbacks: Any,
    stop: tuple[int, int] | None = None,
    model: Any = None,
    **settings: Any,
) -> Curve:
    """Train a fresh model, to the end or to the batch at which it is broken off."""
    at_once = settings.pop("steps_per_execution", 1)
    model = make_model(steps_per_execution=at_once) if model is None else model
    validation = settings.pop("validation", None)
    settings |= {"validation_data": validation()} if validation is not None else {}
    curve = Curve(stop)
    rate = keras.callbacks.LearningRateScheduler(lambda _epoch, rate: rate * 0.9)
    with ringfeed.keras.install(), contextlib.suppress(BrokenOffError):
        model.fit(
            data(),
            **{"epochs": EPOCHS, "verbose": 0, **settings},
            callbacks=[*callbacks, curve, rate],
        )
    return curve


def backup(path: Path, save_freq: Any = "epoch", **settings: Any) -> Any:
    """Return the callback."""
    return ringfeed.keras.BackupAndRestore(path / "backup", save_freq, **settings)


FREQUENCIES = dict.fromkeys(WAYS, 3) | {
    "iterable": 1,
    "batches of None": 1,
    "part of a pass that hooks change": 1,
    "feed of hooks that draw": 1,
    "part of a pass of hooks that draw": 1,
    "install, hooks that draw": 1,
    "install": 1,
    "install, part of a pass": 1,
    "validation": "epoch",
}
AT_ONCE = {
    "loader",
    "install, hooks that draw",
    "feed",
    "install",
    "iterable",
    "part of a pass that hooks change",
}
FREQUENCIES |= {"several at once": 1, "feed with a state": "epoch"}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("way", "save_freq"),
    [
        *(
            pytest.param(way, save_freq, marks=[] if way in AT_ONCE else [pytest.mark.long])
            for way, save_freq in FREQUENCIES.items()
        ),
        ("loader", 1),
        ("loader", "epoch"),
    ],
)
def test_goes_on(tmp_path: Path, way: str, save_freq: Any) -> None:
    """A fit that was broken off twice has each batch and each epoch of one that was not."""
    data, settings = WAYS[way]
    expected = fit(data, **settings).found
    batches = [key for key in expected if isinstance(key, tuple)]
    at_once = settings.get("steps_per_execution", 1)
    stops = [(epoch, end + 1 - at_once) for epoch, end in (batches[len(batches) // 2], batches[-2])]
    found: dict[Any, Any] = {}
    for stop in (*stops, None):
        now = fit(data, backup(tmp_path, save_freq), stop=stop, **settings).found
        assert all(found.get(key, now[key]) == now[key] for key in now)
        found |= now
    assert found == expected
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("stop", [(0, 1), (0, STEPS - 1), (1, 0), (1, 1)])
def test_begins_where_it_was(tmp_path: Path, stop: tuple[int, int]) -> None:
    """With every batch saved, a fit begins with the batch at which it was broken off.

    The end of an epoch is saved with its validation, after the last batch, so there its last batch
    is trained again.
    """
    fit(over_loader, backup(tmp_path, 1), stop=stop)
    found = fit(over_loader, backup(tmp_path, 1)).found
    assert next(iter(found)) == stop
    assert [batch for epoch, batch in filter(_is_batch, found) if epoch == stop[0]] == [
        *range(stop[1], STEPS)
    ]
    assert [key for key in found if not _is_batch(key)] == [*range(stop[0], EPOCHS)]


@pytest.mark.parametrize("over", [over_loader, over_feed])
def test_a_drawn_seed_is_that_of_the_backup(tmp_path: Path, over: Callable[..., Any]) -> None:
    """With ``seed=None`` each start draws another.

    The run has the order and the samples of its first one.
    """
    drawn: list[int] = []

    def data(**settings: Any) -> Any:
        made = over(**{"seed": None, **settings})
        drawn.append(made._stream.runner.source.seed)
        return made

    validations = [over_loader(batch_size=25, seed=None) for _ in range(2)]
    first = fit(data, backup(tmp_path, 2), stop=(1, 4), validation=lambda: validations[0]).found
    found = first | fit(data, backup(tmp_path, 2), validation=lambda: validations[1]).found
    validation = functools.partial(
        over_loader, batch_size=25, seed=validations[0]._stream.runner.source.seed
    )
    expected = fit(lambda: data(seed=drawn[0]), validation=validation).found
    assert found == expected
    assert validations[1]._stream.runner.source.seed == validations[0]._stream.runner.source.seed
    assert drawn[1] != drawn[0] == drawn[2]


def _is_batch(key: Any) -> bool:
    return isinstance(key, tuple)


def test_hooks_of_epochs_that_were_broken_off_run_again(tmp_path: Path) -> None:
    """Hooks run as often and in the order that they ran over the feed, in earlier fits too."""
    dataset = Hooked()
    fed = over_feed(dataset)
    fit(lambda: fed, stop=(1, 1))
    with contextlib.suppress(BrokenOffError):
        for _ in range(2):
            make_model().predict(fed, verbose=0, callbacks=[StopsPredicting()])
    fit(lambda: fed, backup(tmp_path, 1), stop=(1, 3))
    again = Hooked()
    fit(lambda: over_feed(again), backup(tmp_path, 1), stop=(1, 3))
    assert again.ran == dataset.ran
    assert len(again.ran) > 8


def installed(dataset: Any) -> Callable[[], Any]:
    """Return what `fit` reads under `install`."""
    return lambda: dataset


def test_hooks_are_counted_over_all_fits_of_a_dataset_under_install(tmp_path: Path) -> None:
    """A dataset made anew is brought to where it was, by the hooks of an earlier fit, too."""
    dataset = Hooked()
    fit(installed(dataset))
    fit(installed(dataset), backup(tmp_path, 1), stop=(1, 3))
    again = Hooked()
    fit(installed(again), backup(tmp_path, 1), stop=(1, 3))
    assert again.ran == dataset.ran
    assert len(again.ran) > 8


def test_a_dataset_past_its_backup_is_left_as_it_is_under_install(tmp_path: Path) -> None:
    """A fit begun again in the same program runs the hooks of Keras alone; a warning says why."""
    dataset = Hooked()
    fit(installed(dataset), backup(tmp_path, 1), stop=(1, 3))
    assert dataset.ran == (before := ["end", "begin", "end", "begin"])
    with pytest.warns(UserWarning, match="^training goes on with the dataset as it is") as caught:
        fit(installed(dataset), backup(tmp_path, 1))
    assert dataset.ran == [*before, "end", *["begin", "end"] * 2]
    assert str(caught[0].message) == (
        "training goes on with the dataset as it is, as in Keras: the hooks of this dataset have "
        "run 3 times, and the state is of 2; make the dataset and the loader anew, or give the "
        "dataset state_dict() and load_state_dict()"
    )


class StopsPredicting(keras.callbacks.Callback):  # type: ignore[misc]
    """Breaks an epoch off whose end Keras does not tell the dataset of."""

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        raise BrokenOffError


def test_hooks_that_take_long_are_told_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning after a second, and a StateError after the feed's timeout_s."""
    fit(lambda: over_feed(Hooked()), backup(tmp_path, 1), stop=(2, 1))
    for clock in ("ringfeed.engine.hooks.clock", "ringfeed.orders.replay.clock"):
        monkeypatch.setattr(clock, functools.partial(next, count(0.0)))
    with pytest.warns(UserWarning, match="^going on amid an epoch: ") as caught:
        assert _refusal(tmp_path, lambda: over_feed(Hooked(), timeout_s=3)) == (
            "the hooks of this dataset have run 2 times in 4.0 s, and the state is of 3; give the "
            "dataset state_dict() and load_state_dict(), or raise timeout_s=3"
        )
    assert str(caught[0].message) == (
        "going on amid an epoch: the hooks of the dataset run once more, 1 of 3 in the first 2.0 "
        "s; give the dataset state_dict() and load_state_dict()"
    )


def test_a_backup_without_hooks_is_as_ever(tmp_path: Path) -> None:
    """A backup of a release that did not count them says how many epochs are over."""
    dataset = Hooked()
    fit(lambda: over_feed(dataset), backup(tmp_path, 1), stop=(1, 3))
    with edited(tmp_path) as facts:
        assert facts.pop("hooks") == {"hooks": 2, "broken_off": [[0, -1]]}
        facts["dataset"] = None
    again = Hooked()
    fit(lambda: over_feed(again), backup(tmp_path, 1), stop=(1, 3))
    assert again.ran == dataset.ran


class Order(keras.callbacks.Callback):
    """Changes the weights after each batch, as averaging callbacks do."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        bias = self.model.layers[-1].bias
        bias.assign(bias + 0.125)


def test_comes_last(tmp_path: Path) -> None:
    """What callbacks behind it change is in the backup.

    One that is given without a list runs in its turn too.
    """
    expected = fit(over_loader, Order()).found
    fit(over_loader, backup(tmp_path, 1), Order(), stop=(1, 3))
    assert fit(over_loader, backup(tmp_path, 1), Order()).found.items() <= expected.items()
    alone = backup(tmp_path / "alone", 1)
    callbacks = keras.callbacks.CallbackList(alone, add_history=True, model=make_model())
    assert callbacks.callbacks[-1] is alone
    assert not callbacks._async_train


def test_next_fit_begins_at_its_own_epoch(tmp_path: Path) -> None:
    """After a fit that went on, the next one of the same model has all of its epochs."""
    fit(over_loader, backup(tmp_path), stop=(1, 3))
    model = make_model()
    fit(over_loader, backup(tmp_path), model=model)
    assert [key for key in fit(over_loader, model=model).found if not _is_batch(key)] == [0, 1, 2]


def test_stopped_early(tmp_path: Path) -> None:
    """A fit that a callback ended, and that was killed with its backup there, does not go on."""

    class Ender(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.model.stop_training = epoch == 1

        def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - see above
            raise BrokenOffError

    fit(over_loader, Ender(), backup(tmp_path))
    assert not fit(over_loader, backup(tmp_path)).found


def test_kept(tmp_path: Path) -> None:
    """With delete_checkpoint=False the last backup stays, and a longer fit goes on from it."""
    fit(over_loader, backup(tmp_path, delete_checkpoint=False))
    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["latest.zip"]
    found = fit(over_loader, backup(tmp_path), epochs=EPOCHS + 1).found
    assert [key for key in found if not _is_batch(key)] == [EPOCHS]


def test_other_files_stay(tmp_path: Path) -> None:
    """Of the directory only its own files are deleted."""
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "notes").touch()
    fit(over_loader, backup(tmp_path, double_checkpoint=True), epochs=2)
    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["notes"]


def test_half_floats(tmp_path: Path) -> None:
    """Variables of a dtype that NumPy does not know are restored bit for bit."""
    keras.config.set_dtype_policy("bfloat16")
    try:
        expected = fit(over_loader).found
        fit(over_loader, backup(tmp_path, 1), stop=(1, 3))
        assert fit(over_loader, backup(tmp_path, 1)).found.items() <= expected.items()
    finally:
        keras.config.set_dtype_policy("float32")


# ---- files ----


def test_killed_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup that was not written to its end leaves the one before it in force."""
    fit(over_loader, backup(tmp_path, 1), stop=(1, 3))
    before = (tmp_path / "backup" / "latest.zip").read_bytes()

    def killed(_file: object) -> None:
        raise BrokenOffError

    monkeypatch.setattr("os.fsync", killed)
    assert (1, 3) in fit(over_loader, backup(tmp_path, 1)).found
    monkeypatch.undo()
    assert not (tmp_path / "backup" / "latest.part").exists()
    assert (tmp_path / "backup" / "latest.zip").read_bytes() == before
    assert next(iter(fit(over_loader, backup(tmp_path, 1)).found)) == (1, 3)


@contextlib.contextmanager
def edited(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Write what becomes of a backup's facts to the backup."""
    path = tmp_path / "backup" / "latest.zip"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    facts = json.loads(members["backup.json"])
    yield facts
    members["backup.json"] = json.dumps(facts).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _refusal(tmp_path: Path, data: Any = over_loader, *, model: Any = None, **settings: Any) -> str:
    """Return what a fit with what is in the directory is refused with."""
    with pytest.raises((ringfeed.StateError, TypeError)) as caught:
        fit(data, backup(tmp_path), model=model, **settings)
    return str(caught.value).replace(str(tmp_path), "TMP")


def test_damaged(tmp_path: Path) -> None:
    """A damaged backup is an error, that says what to do.

    A second one is gone on from, with a warning.
    """
    fit(over_loader, backup(tmp_path, 1, double_checkpoint=True), stop=(1, 3))
    _damage(tmp_path / "backup" / "latest.zip")
    with pytest.warns(
        UserWarning, match=r"latest.zip' is damaged \(.*\); going on from the one before it"
    ):
        found = fit(over_loader, backup(tmp_path, 1, delete_checkpoint=False)).found
    assert next(iter(found)) == (1, 2)
    (tmp_path / "backup" / "previous.zip").unlink()
    (tmp_path / "backup" / "latest.zip").write_bytes(b"not a zip")
    assert _refusal(tmp_path) == (
        "the backup 'TMP/backup/latest.zip' is damaged (BadZipFile: File is not a zip file); "
        "delete 'TMP/backup' to begin anew, and give double_checkpoint=True to keep two"
    )


GONE = object()
EDITS: list[tuple[str, Any]] = [
    *(
        (name, GONE)
        for name in (
            "backend",
            "epoch",
            "first_epoch",
            "variables",
            "loader",
            "random",
            "random.now",
        )
    ),
    *(
        ("step", -7),
        ("batches", "x"),
        ("validation_epoch", []),
        ("validation_seed", {}),
        ("is_over", 2),
        ("loader", 3),
    ),
    *(
        ("hooks.hooks", -7),
        ("hooks", []),
        ("random.start", {}),
        ("random.now.python", "x"),
        ("variables", [[]]),
    ),
]


def test_a_backup_edited_by_hand_is_a_state_error(tmp_path: Path) -> None:
    """Whatever is missing or changed, an error says so, and no random number is drawn."""
    model = make_model()
    fit(lambda: over_feed(Hooked()), backup(tmp_path, 1), stop=(1, 3))
    path = tmp_path / "backup" / "latest.zip"
    whole = path.read_bytes()
    for names, value in EDITS:
        path.write_bytes(whole)
        with edited(tmp_path) as facts:
            *way, last = names.split(".")
            holder = functools.reduce(dict.__getitem__, way, facts)
            holder[last] = value
            if value is GONE:
                del holder[last]
        before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
        said = _refusal(tmp_path, lambda: over_feed(Hooked()), model=model)
        assert said.startswith("the backup 'TMP/backup/latest.zip' is damaged ("), names
        now = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
        assert now == before, names


def test_a_backup_edited_by_hand_is_fallen_back_from(tmp_path: Path) -> None:
    """Where two are kept, training goes on from the older one; a warning says what is wrong."""
    fit(over_loader, backup(tmp_path, 1, double_checkpoint=True), stop=(1, 3))
    with edited(tmp_path) as facts:
        del facts["step"]
    with pytest.warns(UserWarning, match="is damaged") as caught:
        found = fit(over_loader, backup(tmp_path, 1)).found
    assert str(caught[0].message).replace(str(tmp_path), "TMP") == (
        "the backup 'TMP/backup/latest.zip' is damaged (KeyError: 'step'); going on from the one "
        "before it"
    )
    assert next(iter(found)) == (1, 2)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """An array of objects, whose pickle could run anything, is a damaged file."""
    fit(over_loader, backup(tmp_path, 1), stop=(1, 3))
    path = tmp_path / "backup" / "latest.zip"
    with zipfile.ZipFile(path) as archive:
        facts = archive.read("backup.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("backup.json", facts)
        with archive.open("0.npy", "w") as member:
            np.lib.format.write_array(member, np.array([1], object))
    assert _refusal(tmp_path).startswith(
        "the backup 'TMP/backup/latest.zip' is damaged (ValueError: Object arrays cannot be loaded"
    )


def test_of_keras(tmp_path: Path) -> None:
    """A backup of Keras' own callback is refused: it does not say where the data was."""
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "training_metadata.json").touch()
    assert _refusal(tmp_path) == (
        "backup_dir 'TMP/backup' holds a backup of keras.callbacks.BackupAndRestore "
        "(training_metadata.json), which does not say where the data, the metrics and the random "
        "numbers were; finish that run with Keras' callback, or give another directory"
    )


# ---- what is refused ----


def test_of_others(tmp_path: Path) -> None:
    """A backup of another model, loader or epoch is refused, with both sides named."""
    fit(over_loader, backup(tmp_path, 1), stop=(1, 3))
    other = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
    other.compile("sgd", "sparse_categorical_crossentropy")
    assert _refusal(tmp_path, model=other) == (
        "the backup 'TMP/backup/latest.zip' is of another model: its variable 0 of 19 is 'kernel' "
        "of the model, (6, 8) float32, and that of the 6 of this model is 'kernel' of the model, "
        "(6, 4) float32; give the model, the optimizer and the metrics that it was made with, "
        "another backup_dir, or delete it"
    )
    assert _refusal(tmp_path, lambda: over_loader((X[:20], Y[:20]))).startswith(
        "the state was taken with length 34, and this loader has length 20"
    )
    assert _refusal(tmp_path, initial_epoch=2) == (
        "the backup 'TMP/backup/latest.zip' is of epoch 1, and fit(initial_epoch=2) begins after "
        "it; give the initial_epoch that it was made with, another backup_dir, or delete it"
    )


def test_other_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup of another backend is refused: its steps round otherwise."""
    with monkeypatch.context() as patched:
        patched.setattr(keras.backend, "backend", lambda: "jax")
        directory = ringfeed.keras.BackupAndRestore(tmp_path / "backup")._directory
        directory.write({"backend": "jax", "variables": []}, [])
    assert _refusal(tmp_path) == (
        "the backup 'TMP/backup/latest.zip' was made on the backend jax, and this is tensorflow; "
        "set KERAS_BACKEND=jax, or delete it"
    )


def test_two_fits_in_one_directory(tmp_path: Path) -> None:
    """A fit that begins while another one has the directory is refused.

    The first goes on, and gives it back.
    """
    refused: list[str] = []

    class Trains(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del logs
            if epoch == 0:
                with pytest.raises(ringfeed.StateError) as caught:
                    fit(over_loader, backup(tmp_path))
                refused.append(str(caught.value))

    found = fit(over_loader, backup(tmp_path), Trains()).found
    assert len(refused) == 1
    assert "is in use by another fit" in refused[0]
    assert fit(over_loader, backup(tmp_path)).found == found


def test_data_of_others(tmp_path: Path) -> None:
    """Data whose place only Keras knows is refused, with the ways out."""
    model, callbacks = make_model(), [backup(tmp_path)]
    with pytest.raises(TypeError) as arrays:
        model.fit(X[:ROWS], Y[:ROWS], callbacks=callbacks, verbose=0)
    assert str(arrays.value) == (
        "the data of fit() is read by a ArrayDataAdapter of Keras' own, and BackupAndRestore "
        "cannot tell where in an epoch it is; give it loader.to_keras(), or use "
        "keras.callbacks.BackupAndRestore, which goes on with a whole epoch"
    )
    with pytest.raises(TypeError) as dataset:
        model.fit(Batches(), callbacks=callbacks, verbose=0)
    assert str(dataset.value) == (
        "the data of fit() is a Batches of Keras' own, and BackupAndRestore cannot tell where in "
        "an epoch it is; train under ringfeed.keras.install(), or give it feed(dataset), or use "
        "keras.callbacks.BackupAndRestore, which goes on with a whole epoch"
    )
    with pytest.raises(TypeError) as loop:
        callbacks[0].on_train_begin()
    assert str(loop.value) == (
        "BackupAndRestore was called by no fit() of Keras, and cannot tell where training is; in "
        "a loop of your own, save loader.state_dict() beside the weights"
    )


def test_arguments(tmp_path: Path) -> None:
    """What is no directory and no frequency is refused at once."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as taken:
        ringfeed.keras.BackupAndRestore(tmp_path / "file")
    assert (
        str(taken.value)
        == f"backup_dir {str(tmp_path / 'file')!r} is a file, expected a directory; give another "
        "path"
    )
    with pytest.raises(
        ValueError, match=r"^backup_dir is empty, expected the path of a directory to make$"
    ):
        ringfeed.keras.BackupAndRestore("")
    for wrong in (0, True, "batch", 1.5):
        with pytest.raises(ValueError, match="save_freq is") as caught:
            ringfeed.keras.BackupAndRestore(tmp_path, wrong)
        assert str(caught.value) == (
            f"save_freq is {wrong!r}, expected 'epoch', or an int of 1 or more: after how many "
            "batches"
        )
