"""The files of backups: JSON and arrays in one zip, which a kill at any moment leaves whole.

    latest.part ── written, synced ──> latest.zip ── where two are kept ──> previous.zip

Nothing in them is pickled, and nothing that is read is run. No framework is imported here.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import warnings
import weakref
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed.errors import StateError
from ringfeed.system._system import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringfeed.spec.array import AnyArray

VERSION = 1
LATEST, PREVIOUS, PART = "latest.zip", "previous.zip", "latest.part"
KERAS_FILES = "latest.weights.h5", "training_metadata.json"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Backup(NamedTuple):
    """What a file holds."""

    path: Path
    facts: dict[str, Any]
    arrays: list[AnyArray]


_locked: weakref.WeakSet[BackupDirectory] = weakref.WeakSet()
"""Those that fits of this process have locked."""


class BackupDirectory:
    """The directory of one `fit`: its newest backup, and the one before that if two are kept."""

    def __init__(self, path: str | os.PathLike[str], *, keeps_two: bool) -> None:
        """Refuse what can be no directory; none is made yet."""
        if not os.fspath(path):
            raise ValueError("backup_dir is empty, expected the path of a directory to make")
        self.path = Path(path)
        self._keeps_two = keeps_two
        self._lock: Descriptor | None = None
        self._is_in_use: Callable[[], bool] = lambda: False
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(
                f"backup_dir {str(self.path)!r} is a file, expected a directory; give another path"
            )

    # ---- one fit at a time ----

    def lock(self, is_in_use: Callable[[], bool]) -> None:
        """Make the directory, and keep it for one `fit`; StateError where another one has it.

        ``is_in_use`` says whether that `fit` still runs, of which no callback is told where it has
        raised: then another one of this process may have the directory.
        """
        self.unlock()
        for other in [*_locked]:
            if not other._is_in_use():  # noqa: SLF001 - of the same class
                other.unlock()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = Descriptor(os.open, self.path, DIRECTORY)
        self._is_in_use = is_in_use
        try:
            fcntl.flock(self._lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock = None
            raise StateError(
                f"backup_dir {str(self.path)!r} is in use by another fit, and each would overwrite "
                "the backups of the other; give each fit a directory of its own, or wait for that "
                "one to end"
            ) from None
        except OSError:
            pass  # a file system without locks
        _locked.add(self)

    def unlock(self) -> None:
        """Let others have the directory, which is deleted where nothing is in it."""
        _locked.discard(self)
        if self._lock is not None:
            with suppress(OSError):
                self.path.rmdir()
        self._lock = None

    # ---- out ----

    def write(self, facts: dict[str, Any], arrays: Iterable[AnyArray]) -> None:
        """Write a backup beside the newest, and then put it in its place."""
        self.path.mkdir(parents=True, exist_ok=True)
        part, latest = self.path / PART, self.path / LATEST
        # Of a run that was killed; if it is a link, what it points at stays.
        part.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(part, NEW_FILE, 0o666), "wb") as file:
                with zipfile.ZipFile(file, "w") as archive:
                    archive.writestr("backup.json", json.dumps(facts | {"version": VERSION}))
                    for number, array in enumerate(arrays):
                        with archive.open(f"{number}.npy", "w", force_zip64=True) as member:
                            np.lib.format.write_array(member, _plain(array), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:  # the disk is full, or Ctrl-C
            part.unlink(missing_ok=True)
            raise
        if self._keeps_two:
            with suppress(FileNotFoundError):
                # `read` takes that one, if this process ends here.
                latest.replace(self.path / PREVIOUS)
        part.replace(latest)
        with Descriptor(os.open, self.path, DIRECTORY) as directory:
            os.fsync(directory.fileno())  # the new name is to outlast a power failure, too

    # ---- and in ----

    def read(self, check: Callable[[Backup], None] = lambda _backup: None) -> Backup | None:
        """Return the newest backup that is whole; None where there is none.

        StateError where there are backups and none is whole.

        ``check`` raises StateError for one that is of something else, and any other error for a
        damaged one.
        """
        paths = [path for path in (self.path / LATEST, self.path / PREVIOUS) if path.exists()]
        if not paths:
            self._refuse_keras()
        for number, path in enumerate(paths):
            try:
                backup = _load(path)
                check(backup)
            except StateError:
                raise
            except Exception as error:
                message = f"the backup {str(path)!r} is damaged ({type(error).__name__}: {error})"
                if number + 1 == len(paths):
                    advice = (
                        f"delete {str(self.path)!r} to begin anew, and give double_checkpoint=True "
                        "to keep two"
                    )
                    raise StateError(f"{message}; {advice}") from error
                warnings.warn(f"{message}; going on from the one before it", stacklevel=2)
            else:
                return backup
        return None

    def _refuse_keras(self) -> None:
        for name in KERAS_FILES:
            if (self.path / name).exists():
                raise StateError(
                    f"backup_dir {str(self.path)!r} holds a backup of "
                    f"keras.callbacks.BackupAndRestore ({name}), which does not say where the "
                    "data, the metrics and the random numbers were; finish that run with Keras' "
                    "callback, or give another directory"
                )

    def delete(self) -> None:
        """Delete the backups."""
        for name in (PART, LATEST, PREVIOUS):
            (self.path / name).unlink(missing_ok=True)


def _plain(array: AnyArray) -> AnyArray:
    """Return an array of a dtype that NumPy's files know; bfloat16 becomes unsigned integers."""
    return array if array.dtype.kind in "biufc" else array.view(f"u{array.dtype.itemsize}")


def _load(path: Path) -> Backup:
    """Read all of a file; zip checks every byte of it."""
    with zipfile.ZipFile(path) as archive:
        facts = json.loads(archive.read("backup.json"))
        if facts["version"] != VERSION:
            raise StateError(
                f"the backup {str(path)!r} has version {facts['version']}, and this ringfeed reads "
                f"version {VERSION}; go on with the ringfeed that wrote it, or delete it"
            )
        members = (
            io.BytesIO(archive.read(f"{number}.npy")) for number in range(len(facts["variables"]))
        )
        arrays = [np.lib.format.read_array(member, allow_pickle=False) for member in members]
    return Backup(path, facts, arrays)
