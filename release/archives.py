"""The same bytes from the same sources: all files of one time, no traces of the builder."""

from __future__ import annotations

import calendar
import gzip
import hashlib
import io
import re
import tarfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NOTES = re.compile(r"^[^/]*/(setup\.cfg|src/\w+\.egg-info)(/|$)")
HEADING = re.compile(r"^## \S+ \((\d{4}-\d{2}-\d{2})\)$", re.MULTILINE)


def seconds_of(changelog: str) -> int:
    """Return the time of every file in an archive: when the day of the newest version begins."""
    found = HEADING.search(changelog)
    if found is None:
        raise ValueError(
            "CHANGELOG.md has no heading such as '## 0.2.0 (2026-11-25)': give the newest version "
            "its date"
        )
    return calendar.timegm(time.strptime(found[1], "%Y-%m-%d"))


def normalise(sdist: Path, seconds: int) -> None:
    """Write an sdist anew: sorted, of one time, without the owner and the umask of its builder.

    What setuptools notes for itself is left out: it differs between an sdist of a clone and one of
    an sdist.
    """
    with tarfile.open(sdist) as archive:
        members = sorted(
            (one for one in archive if not NOTES.search(one.name)), key=lambda one: one.name
        )
        contents = {
            member.name: archive.extractfile(member) for member in members if member.isfile()
        }
        whole = {name: file.read() for name, file in contents.items() if file is not None}
    with (
        sdist.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in members:
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, seconds
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(plain, io.BytesIO(whole.get(member.name, b"")))


def names(sdist: Path) -> set[str]:
    """Return the names of an sdist's files, below its one folder."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
