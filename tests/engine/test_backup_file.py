"""The files of `ringfeed.keras.BackupAndRestore`.

Damaged, on a full disk, linked, and wanted by two; no Keras here.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from ringfeed.keras.backup_file import LATEST, PART, BackupDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringfeed.spec.array import AnyArray

FACTS = {
    "epoch": 1,
    "step": 3,
    "variables": [["m", "w", [4], "float32"], ["m", "b", [2], "float32"]],
}
ARRAYS = [np.arange(4, dtype="f4"), np.ones(2, "f4")]


def written(path: Path) -> BackupDirectory:
    """Return a directory with two backups: that of epoch 0 and, newer, that of epoch 1."""
    directory = BackupDirectory(path, keeps_two=True)
    for epoch in (0, 1):
        directory.write(FACTS | {"epoch": epoch}, ARRAYS)
    return directory


def damages(whole: bytes) -> Iterator[bytes]:
    """Yield the content of a file with a bit flipped, with a byte of ones, and cut short."""
    for place in range(len(whole)):
        yield whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
    for place in range(0, len(whole), 5):
        yield whole[:place] + b"\xff" + whole[place + 1 :]
        yield whole[:place]


@pytest.mark.filterwarnings("ignore:the backup .* is damaged")
def test_damage_of_every_kind_is_fallen_back_from(tmp_path: Path) -> None:
    """Whatever a damaged file raises, the one before it is taken.

    Damage to bytes that are not read changes nothing.
    """
    directory = written(tmp_path)
    whole = (tmp_path / LATEST).read_bytes()
    for damaged in damages(whole):
        (tmp_path / LATEST).write_bytes(damaged)
        backup = directory.read()
        assert backup is not None
        assert backup.facts["epoch"] == int(backup.path.name == LATEST)
        assert [array.tolist() for array in backup.arrays] == [array.tolist() for array in ARRAYS]


def refusal(directory: BackupDirectory) -> ringfeed.StateError | None:
    """Return why there is no backup; None where nothing was hit that is read."""
    try:
        directory.read()
    except ringfeed.StateError as error:
        return error
    return None


def test_damage_of_every_kind_is_a_state_error(tmp_path: Path) -> None:
    """Whatever a damaged file raises is the cause of a StateError, where no other backup is."""
    directory = BackupDirectory(tmp_path, keeps_two=False)
    directory.write(FACTS, ARRAYS)
    whole = (tmp_path / LATEST).read_bytes()
    kinds = set()
    for damaged in damages(whole):
        (tmp_path / LATEST).write_bytes(damaged)
        error = refusal(directory)
        if error is not None:
            cause = error.__cause__
            kinds.add(type(cause))
            assert str(error) == (
                f"the backup {str(tmp_path / LATEST)!r} is damaged ({type(cause).__name__}: "
                f"{cause}); delete {str(tmp_path)!r} to begin anew, and give "
                "double_checkpoint=True to keep two"
            )
    assert len(kinds) > 3


def test_a_full_disk_leaves_no_part_of_a_backup(tmp_path: Path) -> None:
    """Where a backup cannot be written to its end, the one before it stays.

    Nothing beside it.
    """
    directory = written(tmp_path)
    before = sorted(file.name for file in tmp_path.iterdir())

    def arrays() -> Iterator[AnyArray]:
        yield ARRAYS[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        directory.write(FACTS | {"epoch": 2}, arrays())
    assert sorted(file.name for file in tmp_path.iterdir()) == before
    backup = directory.read()
    assert backup is not None
    assert backup.facts["epoch"] == 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """What a link in the place of a backup in the making points at is left alone."""
    target = tmp_path / "precious"
    target.write_text("mine")
    directory = BackupDirectory(tmp_path / "backup", keeps_two=False)
    directory.path.mkdir()
    (directory.path / PART).symlink_to(target)
    directory.write(FACTS, ARRAYS)
    assert target.read_text() == "mine"
    assert not (directory.path / LATEST).is_symlink()
    assert directory.read() is not None


def refused(directory: BackupDirectory) -> str:
    """Return why a directory cannot be had."""
    with pytest.raises(ringfeed.StateError) as caught:
        directory.lock(lambda: True)
    return str(caught.value)


def words(path: Path) -> str:
    """Return what is said of a directory in use."""
    return (
        f"backup_dir {str(path)!r} is in use by another fit, and each would overwrite the backups "
        "of the other; give each fit a directory of its own, or wait for that one to end"
    )


def test_two_fits_of_one_process(tmp_path: Path) -> None:
    """A second fit is refused while the first runs; afterwards it has the directory."""
    runs = [True]
    first, second = (BackupDirectory(tmp_path / "backup", keeps_two=False) for _ in range(2))
    first.lock(lambda: runs[0])
    first.lock(lambda: runs[0])  # the next fit with the same callback
    assert refused(second) == words(tmp_path / "backup")
    runs.clear()
    runs.append(False)
    second.lock(lambda: True)
    assert refused(first) == words(tmp_path / "backup")
    second.unlock()
    assert not (tmp_path / "backup").exists()  # it was made for nothing
    first.lock(lambda: True)


HOLDER = """
import sys
from ringfeed.keras.backup_file import BackupDirectory
directory = BackupDirectory(sys.argv[1], keeps_two=False)
directory.lock(lambda: True)
print("locked", flush=True)
sys.stdin.read()
"""


def test_two_fits_of_two_processes(tmp_path: Path) -> None:
    """A second process is refused as long as the first lives, and no longer after it was killed."""
    directory = BackupDirectory(tmp_path, keeps_two=False)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert refused(directory) == words(tmp_path)
        holder.kill()
        holder.wait(60)
    directory.lock(lambda: True)
    directory.unlock()
