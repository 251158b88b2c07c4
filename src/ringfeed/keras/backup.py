"""Keras' `BackupAndRestore` with the place of the data: training goes on as if never stopped.

fit ── every save_freq ──> variables, random numbers, place ──> BackupDirectory
fit, started again <────── all of them, before its first step ──────────┘
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal

import keras
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from ringfeed._callers import callers_depth, frame_above, frames_from
from ringfeed.errors import StateError
from ringfeed.frameworks.keras.call import Call, begins_epoch, go_on
from ringfeed.keras.backup_file import Backup, BackupDirectory
from ringfeed.keras.monitor import move
from ringfeed.keras.training_state import (
    Drawing,
    arrays_of,
    assign,
    build,
    check_random_states,
    check_variables,
    describe,
    random_states,
    set_random_states,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from ringfeed.keras.pydataset import DatasetFeed


class BackupAndRestore(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Saves where training is: a `fit` that was killed continues when the program is started again.

        backup = ringfeed.keras.BackupAndRestore("backup", save_freq=100)
        model.fit(loader.to_keras(), epochs=10, callbacks=[backup])

    It replaces `keras.callbacks.BackupAndRestore` and has its arguments. Keras' restores the
    weights and the number of the epoch; this one also restores all that the losses depend on, so
    that a `fit` that was killed has the losses of one that was not, to the last bit:

    - the variables of the model, of its optimizer and of the metrics;
    - the seeds of Keras (those of layers such as Dropout, and the global one), and the random
      numbers of ``random``, ``numpy.random`` and torch;
    - the loader's position, counted in the batches that were trained on, and the number of the next
      epoch of the validation data.

    The data is ``loader.to_keras()``, `ringfeed.keras.feed`, or any PyDataset under
    `ringfeed.keras.install`. Hooks of a PyDataset run again, as often as they have run, for at most
    the ``timeout_s`` of the feed, unless it has its own ``state_dict()`` and
    ``load_state_dict(state)``, whose state is JSON.

    backup_dir: a directory of the local file system, one for each `fit`: a second `fit` is refused
        as long as the first runs.
    save_freq: "epoch": at the end of each; or a number of batches. What falls on the last batch of
        an epoch is saved at the end of the epoch, with its validation.
    double_checkpoint: also keep the previous backup, in case a disk damages the newest one. A kill
        damages none: each is written to a new file, synced, and then renamed.
    delete_checkpoint: delete the backups when `fit` has come to its end.

    Not restored, as in Keras: the attributes of other callbacks (such as those of `EarlyStopping`
    and `ReduceLROnPlateau`, and the `History` of earlier runs); TensorFlow's own stateful random
    operations. Callbacks see the batches since the last backup once more. Steps must have the same
    bits in each run: TensorFlow's have with ``tf.config.experimental.enable_op_determinism()``, and
    on a GPU see what JAX and torch say.

    ``fit(initial_epoch=)`` is where a training without a backup begins. Raises StateError for a
    backup of another model, data or backend, or that is damaged, and for a directory in use;
    TypeError for data whose position it cannot save.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: int | Literal["epoch"] = "epoch",
        double_checkpoint: bool = False,  # noqa: FBT001, FBT002 - Keras' own
        delete_checkpoint: bool = True,  # noqa: FBT001, FBT002 - Keras' own
    ) -> None:
        """Keep the arguments; nothing is read or made before `fit`."""
        super().__init__()
        self.backup_dir = backup_dir
        self.save_freq = save_freq
        self.double_checkpoint = double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        self._batches = None if save_freq == "epoch" else _checked(save_freq)
        self._directory = BackupDirectory(backup_dir, keeps_two=double_checkpoint)
        self._fit: FitRun
        # The states at the start of the first `fit`, and at that of the loader's epoch and Keras'.
        self._random: dict[str, Any] = {}
        self._unsaved = 0  # batches
        self._resumed: Backup | None = None  # until the epoch begins that it is amid
        self._validation_epoch: int | None = None  # until the validation begins
        self._validation_seed: int | None = None

    def set_model(self, model: Any) -> None:
        """Go to the end of the callbacks: a backup has what the others change."""
        super().set_model(model)
        callbacks = move(self, frame_above(1), is_first=False)
        if callbacks is not None:
            # Else Keras runs a callback that is not in the list beside the steps.
            callbacks._async_train = False  # noqa: SLF001

    # ---- where Keras calls it ----

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Restore, if there is something to restore."""
        self._fit = FitRun(frame_above(1))
        self._unsaved, self._resumed, self._validation_epoch = 0, None, None
        self._random = dict.fromkeys(("start", "epoch"), random_states())
        self._directory.lock(self._fit.is_running)
        backup = self._directory.read(self._check)
        if backup is not None:
            self._restore(backup)

    def on_epoch_begin(
        self,
        epoch: int,
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Go on amid an epoch, or note how a whole one begins."""
        fit, backup, states = self._fit, self._resumed, self._random
        # `fit` has read it, and the next `fit` begins at an epoch of its own.
        self.model._initial_epoch = None  # noqa: SLF001
        fit.begin(epoch, 0 if backup is None else backup.facts["step"])
        if backup is not None:
            self._resumed = None
            # Other callbacks, and Keras, have begun this epoch a second time.
            assign(self.model, backup.arrays)
            # An older backup has none of Keras' epoch.
            set_random_states(states.get("keras", states["epoch"]))
            return
        states["keras"] = random_states()
        if fit.begins_order:
            states["epoch"] = states["keras"]

    def on_train_batch_end(
        self,
        batch: int,
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Save, if enough batches have come since the last backup."""
        self._unsaved += self._fit.count(batch + 1)
        # A backup that is due at the end of an epoch is left to `on_epoch_end`: Keras cannot begin
        # with an end.
        if self._is_due() and not self._fit.is_at_end():
            self._save(self._fit.epoch, self._fit.step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Save, if each epoch is to be saved, or a backup was due at the last batch."""
        if self._batches is None or self._is_due():
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - see above
        """Delete the backup of a training that is over."""
        self.model._initial_epoch = None  # noqa: SLF001 - as above, where no epoch was left
        if self.delete_checkpoint:
            self._directory.delete()
        self._directory.unlock()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - see above
        """Have the validation of `fit` go on with its own next epoch."""
        call, number = self._validation, self._validation_epoch
        if call is not None and number is not None:
            call.stream.set_epoch(number, self._validation_seed)
            self._validation_epoch = None

    def _is_due(self) -> bool:
        return self._batches is not None and self._unsaved >= self._batches

    @property
    def _validation(self) -> Call | None:
        """Where the validation of `fit` is; None before its first."""
        iterator = getattr(self.model, "_eval_epoch_iterator", None)
        return None if iterator is None else getattr(iterator.data_adapter, "call", None)

    # ---- out ----

    def _save(self, epoch: int, step: int) -> None:
        # JAX puts variables in their place when it is asked for the model.
        model, validation = self.model, self._validation
        coming, seed = self._validation_epoch, self._validation_seed
        if validation is not None:
            runner = validation.stream.runner
            seed = runner.source.seed
            coming = runner.position.next.epoch if coming is None else coming
        facts = {
            "backend": keras.backend.backend(),
            "epoch": epoch,
            "step": step,
            "first_epoch": self._fit.first_epoch,
            "is_over": self.delete_checkpoint and bool(model.stop_training),
            "validation_epoch": coming,
            "validation_seed": seed,
            "random": {
                **self._random,
                "epoch": self._random["epoch"] | self._fit.drawn,
                "now": random_states(),
            },
            "variables": describe(model),
            **self._fit.loader_facts(step),
        }
        self._directory.write(facts, arrays_of(model))
        self._unsaved = 0

    # ---- and in ----

    def _check(self, backup: Backup) -> None:
        """Refuse a backup that this `fit` cannot go on from.

        Facts that no backup holds raise KeyError and the like.
        """
        facts, path, fit = backup.facts, str(backup.path), self._fit
        if facts["backend"] != keras.backend.backend():
            raise StateError(
                f"the backup {path!r} was made on the backend {facts['backend']}, and this is "
                f"{keras.backend.backend()}; set KERAS_BACKEND={facts['backend']}, or delete it"
            )
        check_facts(facts)
        if facts["epoch"] < fit.initial_epoch:
            raise StateError(
                f"the backup {path!r} is of epoch {facts['epoch']}, and "
                f"fit(initial_epoch={fit.initial_epoch}) begins after it; give the initial_epoch "
                "that it was made with, another backup_dir, or delete it"
            )
        if facts["loader"] is not None and fit.call is None:
            raise StateError(
                f"the backup {path!r} is of a dataset that ran over ringfeed, and now it is left "
                "to Keras; the logger ringfeed.keras says why"
            )
        check_random_states(facts["random"])
        build(self.model, fit.iterator)
        check_variables(self.model, facts["variables"], backup.path)

    def _restore(self, backup: Backup) -> None:
        facts, model, fit = backup.facts, self.model, self._fit
        self._random = states = facts["random"]
        set_random_states(states["start"])  # what hooks draw from while they are run again
        # Amid an epoch of Keras its hooks have drawn, too, before the loader's epoch begins.
        now = states["now"] if facts["step"] else None
        fit.restore(facts, Drawing(states["epoch"], now))
        assign(model, backup.arrays)
        set_random_states(states["now"])
        self._validation_epoch = facts["validation_epoch"]
        self._validation_seed = facts["validation_seed"]
        self._resumed = backup if facts["step"] else None
        # The way of Keras' own callback.
        model._initial_epoch = fit.epochs if facts["is_over"] else facts["epoch"]  # noqa: SLF001


def _checked(save_freq: object) -> int:
    if not isinstance(save_freq, int) or isinstance(save_freq, bool) or save_freq < 1:
        raise ValueError(
            f"save_freq is {save_freq!r}, expected 'epoch', or an int of 1 or more: after how many "
            "batches"
        )
    return save_freq


class FitRun:
    """One call of `fit`, found in the frames: Keras does not tell callbacks of the data."""

    def __init__(self, frame: FrameType | None) -> None:
        """Find the call; TypeError where there is none, or where its data has no place."""
        given = next(_calls(frame), None)
        if given is None:
            raise TypeError(
                "BackupAndRestore was called by no fit() of Keras, and cannot tell where training "
                "is; in a loop of your own, save loader.state_dict() beside the weights"
            )
        self._thread = threading.current_thread()
        self.iterator: EpochIterator = given["epoch_iterator"]
        self._adapter = self.iterator.data_adapter
        _check(self._adapter)
        self.initial_epoch: int = given["initial_epoch"]
        self.first_epoch = self.initial_epoch
        """The first epoch of the first `fit`, where several go on from one another's backups."""
        self.epochs: int = given["epochs"]
        self.epoch = self.step = 0
        """Keras' epoch, and its batches that were trained on."""
        # The hooks' work on the dataset before this epoch's own hook.
        self._ahead: dict[str, Any] | None = None

    def is_running(self) -> bool:
        """Whether the call still runs, or may: no callback hears of a call that raises."""
        if self._thread is not threading.current_thread():
            # Only its own thread may look at the variables of a frame that runs.
            return self._thread.is_alive()
        return any(given["epoch_iterator"] is self.iterator for given in _calls(frame_above(0)))

    @property
    def call(self) -> Call | None:
        """Where it is in the loader's epoch; None for a dataset that is left to Keras."""
        found: Call | None = self._adapter.call
        return found

    @property
    def feed(self) -> DatasetFeed | None:
        """The feed of a Keras dataset, whose hooks Keras runs."""
        found: DatasetFeed | None = getattr(self._adapter, "dataset_feed", None)
        return found

    def begin(self, epoch: int, step: int) -> None:
        """Note that an epoch of Keras begins, with this step; the hooks of the dataset run next."""
        self.epoch, self.step = epoch, step
        feed = self.feed
        self._ahead = feed.state() if feed is not None and feed.hooks.has_begin else None

    @property
    def begins_order(self) -> bool:
        """Whether Keras' epoch begins one of the data that no earlier run has begun."""
        return begins_epoch(self.iterator) and not (self.call and self.call.restored)

    @property
    def drawn(self) -> dict[str, Any]:
        """What Keras' order was drawn from; a hook may have drawn before it."""
        return getattr(self._adapter, "drawn", {})

    def count(self, step: int) -> int:
        """Count what was trained on up to a step; return how many batches that is."""
        batches, self.step = step - self.step, step
        if self.call is not None:
            self.call.train(batches)
        return batches

    def is_at_end(self) -> bool:
        """Whether Keras' epoch ends here, or cannot be said to go on."""
        call, steps = self.call, self.iterator.steps_per_epoch
        return call is None or bool(steps and self.step >= steps) or not call.has_more

    def loader_facts(self, step: int) -> dict[str, Any]:
        """Return what `restore` needs to go on with a step of an epoch; 0: with the next epoch."""
        call, feed = self.call, self.feed
        facts: dict[str, Any] = {"loader": None, "batches": 0, "hooks": None}
        if feed is not None:
            facts["hooks"] = self._ahead if step and self._ahead is not None else feed.state()
        facts["epoch_numbers"] = getattr(self._adapter, "epoch_numbers", None)
        if call is None:
            return facts
        is_over = not step and (self.iterator.steps_per_epoch is None or not call.has_more)
        batches = 0 if is_over else call.trained
        return facts | {"loader": call.state(is_over=is_over), "batches": batches}

    def restore(self, facts: dict[str, Any], drawing: AbstractContextManager[None]) -> None:
        """Go on where the facts say; ``drawing`` is entered where an epoch begins amid it."""
        call, feed = self.call, self.feed
        self.first_epoch = facts["first_epoch"]
        if feed is not None:
            hooks = facts["hooks"] if "hooks" in facts else _older_hooks(facts, feed)
            try:
                feed.hooks.restore(hooks)
            except StateError as error:
                # Under `install` nothing fails that does not fail in Keras, and Keras runs no hook
                # again.
                if not isinstance(self._adapter, PyDatasetAdapter):
                    raise
                warnings.warn(
                    f"training goes on with the dataset as it is, as in Keras: {error}",
                    UserWarning,
                    stacklevel=callers_depth(),
                )
        batches = facts["batches"]
        numbers = facts.get("epoch_numbers")  # older backups have none
        if numbers is not None:
            self._adapter.restore_epochs(numbers, is_amid=batches > 0)
        if call is None or facts["loader"] is None:
            return
        call.stream.loader.load_state_dict(facts["loader"])
        call.restored = batches
        if batches:
            call.around = drawing
            go_on(self.iterator, facts["step"], batches)


def check_facts(facts: dict[str, Any]) -> None:
    """Raise an error for facts that no backup has: of where the training and its data were."""
    hooks = facts["hooks"] if "hooks" in facts else {"dataset": facts["dataset"]}
    counts = [facts[name] for name in ("epoch", "step", "first_epoch", "batches")]
    counts += facts.get("epoch_numbers") or ()
    counts += [] if facts["validation_epoch"] is None else [facts["validation_epoch"]]
    if hooks is not None and "dataset" not in hooks:
        # One less than none is where on_epoch_end has run alone.
        more = (count for at, extra in hooks.get("broken_off", ()) for count in (at, extra + 1))
        counts += [hooks["hooks"], *more]
    others = {"is_over": bool, "loader": dict | None, "validation_seed": int | None}
    wrong = [name for name, kind in others.items() if not isinstance(facts[name], kind)]
    if wrong or not all(type(count) is int and count >= 0 for count in counts):
        message = f"{wrong[0]} is {facts[wrong[0]]!r}" if wrong else f"counts of {counts}"
        raise ValueError(message)


def _older_hooks(facts: dict[str, Any], feed: DatasetFeed) -> dict[str, Any]:
    """Return what hooks had done, of a backup that says how many epochs are over, and no more."""
    if facts["dataset"] is not None:
        return {"dataset": facts["dataset"]}
    return {"hooks": feed.hooks.counts.ended + facts["epoch"] - facts["first_epoch"]}


def _calls(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """Yield the variables of each `fit` that a frame belongs to, the innermost first."""
    for above in frames_from(frame):
        found = above.f_locals if above.f_code.co_name == "fit" else {}
        if isinstance(found.get("epoch_iterator"), EpochIterator):
            yield found


def _check(adapter: Any) -> None:
    if hasattr(adapter, "call"):
        return
    dataset = getattr(adapter, "py_dataset", None)
    if dataset is None:
        what, way = f"read by a {type(adapter).__name__}", "give it loader.to_keras()"
    else:
        what, way = (
            f"a {type(dataset).__name__}",
            "train under ringfeed.keras.install(), or give it feed(dataset)",
        )
    raise TypeError(
        f"the data of fit() is {what} of Keras' own, and BackupAndRestore cannot tell where in an "
        f"epoch it is; {way}, or use keras.callbacks.BackupAndRestore, which goes on with a whole "
        "epoch"
    )
