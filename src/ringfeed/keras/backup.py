"""Keras' `BackupAndRestore` with the place of the data: training goes on as if never stopped.

fit ── every save_freq ──> variables, random numbers, place ──> BackupDirectory
fit, started again <────── all of them, before its first step ──────────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import keras

from ringfeed._callers import frame_above
from ringfeed.errors import StateError
from ringfeed.frameworks.keras.fit_position import begins_loader
from ringfeed.keras.backup_file import Backup, BackupDirectory
from ringfeed.keras.fit_run import FitRun, check_facts, place_in
from ringfeed.keras.training_state import (
    DrawingFrom,
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

    from ringfeed.frameworks.keras.fit_position import Place


class BackupAndRestore(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Saves where training is: a `fit` that was killed goes on when the program is started again.

        backup = ringfeed.keras.BackupAndRestore("backup", save_freq=100)
        model.fit(loader.to_keras(), epochs=10, callbacks=[backup])

    It takes the place of `keras.callbacks.BackupAndRestore` and has its arguments. Keras' restores
    the weights and the number of the epoch; this one what the losses depend on, so that those of a
    `fit` that was killed are those of one that was not, to the last bit:

    - the variables of the model, of its optimizer and of the metrics, which an epoch's mean losses
      go on from;
    - the seeds of Keras (those of layers such as Dropout, and the global one), and the random
      numbers of ``random``, ``numpy.random`` and torch;
    - the loader's place, counted in the batches that were trained on: Keras begins amid the epoch,
      numbers its steps as in a whole one, and all later epochs are whole; and the number of the
      next epoch of the validation data.

    The data is ``loader.to_keras()``, `ringfeed.keras.feed`, or any PyDataset under
    `ringfeed.keras.install`. Hooks of a PyDataset are run again, as often as they have run, for
    ``timeout_s`` of the feed at most, unless it has ``state_dict()`` and ``load_state_dict(state)``
    of its own, whose state is JSON.

    backup_dir: a directory of the local file system, one for each `fit`, which has it for itself: a
        second one is refused as long as the first runs.
    save_freq: "epoch": at the end of each; or every so many batches. What falls on the last batch
        of an epoch is saved at the end of the epoch, with its validation.
    double_checkpoint: keep the backup before the newest, too, for where a disk damages one. A kill
        damages none: each is written beside the newest, synced, and then put in its place.
    delete_checkpoint: delete the backups when `fit` has come to its end.

    What is not restored, as in Keras: the attributes of other callbacks (what `EarlyStopping` and
    `ReduceLROnPlateau` have seen, the `History` of earlier runs); TensorFlow's own stateful random
    operations. `LearningRateScheduler` needs no more than the epoch and the rate, which are
    restored. Callbacks see the batches since the last backup once more. Steps must have the same
    bits in each run: TensorFlow's have with ``tf.config.experimental.enable_op_determinism()``, and
    on a GPU see what JAX and torch say.

    ``fit(initial_epoch=)`` is where a training begins that has no backup. Raises StateError for a
    backup of another model, data or backend, or that is damaged, and for a directory in use;
    TypeError for data of which it cannot save the place.
    """

    _fit: FitRun
    _random: dict[
        str, Any
    ]  # the states at the start of the first `fit`, and at that of the loader's epoch

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
        self._unsaved = 0  # batches
        self._resumed: Backup | None = None  # until the epoch begins that it is amid
        self._validation_epoch: int | None = None  # until the validation begins
        self._validation_seed: int | None = None

    def set_model(self, model: Any) -> None:
        """Go to the end of the callbacks: a backup has what the others change."""
        super().set_model(model)
        telling = frame_above(1).f_locals.get("self")
        if isinstance(telling, keras.callbacks.CallbackList) and self in telling.callbacks:
            # A new list: Keras is amid the old one.
            telling.callbacks = [*(other for other in telling.callbacks if other is not self), self]
            # Else Keras runs a callback that is not in the list beside the steps.
            telling._async_train = False  # noqa: SLF001

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
        fit, backup = self._fit, self._resumed
        # `fit` has read it, and the next `fit` begins at an epoch of its own.
        self.model._initial_epoch = None  # noqa: SLF001
        fit.begin(epoch, 0 if backup is None else backup.facts["step"])
        if backup is not None:
            self._resumed = None
            assign(
                self.model, backup.arrays
            )  # other callbacks, and Keras, have begun this epoch a second time
            set_random_states(self._random["epoch"])
        elif begins_loader(fit.iterator):
            self._random["epoch"] = random_states()

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
        place, number = self._validation_place(), self._validation_epoch
        if place is not None and number is not None:
            place.stream.set_epoch(number, self._validation_seed)
            self._validation_epoch = None

    def _is_due(self) -> bool:
        return self._batches is not None and self._unsaved >= self._batches

    def _validation_place(self) -> Place | None:
        """Return where the validation of `fit` is; None before its first."""
        iterator = getattr(self.model, "_eval_epoch_iterator", None)
        return None if iterator is None else place_in(iterator)

    # ---- out ----

    def _save(self, epoch: int, step: int) -> None:
        model, validation = (
            self.model,
            self._validation_place(),
        )  # JAX puts variables in their place when asked for it
        pending = self._validation_epoch
        coming = (
            pending
            if validation is None or pending is not None
            else validation.stream.runner.position.next.epoch
        )
        facts = {
            "backend": keras.backend.backend(),
            "epoch": epoch,
            "step": step,
            "first_epoch": self._fit.first_epoch,
            "is_over": self.delete_checkpoint and bool(model.stop_training),
            "validation_epoch": coming,
            "validation_seed": self._validation_seed
            if validation is None
            else validation.stream.runner.source.seed,
            "random": self._random | {"now": random_states()},
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
        if facts["loader"] is not None and fit.place is None:
            raise StateError(
                f"the backup {path!r} is of a dataset that ran over ringfeed, and now it is left "
                "to Keras; the logger ringfeed.keras says why"
            )
        check_random_states(facts["random"])
        build(self.model, fit.iterator)
        check_variables(self.model, facts["variables"], backup.path)

    def _restore(self, backup: Backup) -> None:
        facts, model, fit = backup.facts, self.model, self._fit
        states = facts["random"]
        self._random = {name: states[name] for name in self._random}
        set_random_states(states["start"])  # what hooks draw from while they are run again

        def ready() -> None:
            if facts[
                "step"
            ]:  # the hooks that begin the epoch have drawn, as they had before the backup
                set_random_states(states["now"])

        fit.restore(facts, DrawingFrom(states["epoch"]), ready)
        assign(model, backup.arrays)
        set_random_states(states["now"])
        self._validation_epoch, self._validation_seed = (
            facts["validation_epoch"],
            facts["validation_seed"],
        )
        self._resumed = backup if facts["step"] else None
        # The way of Keras' own callback.
        model._initial_epoch = fit.epochs if facts["is_over"] else facts["epoch"]  # noqa: SLF001


def _checked(save_freq: object) -> int:
    if not isinstance(save_freq, int) or isinstance(save_freq, bool) or save_freq < 1:
        message = (
            f"save_freq is {save_freq!r}, expected 'epoch', or an int of 1 or more: after how many "
            "batches"
        )
        raise ValueError(message)
    return save_freq
