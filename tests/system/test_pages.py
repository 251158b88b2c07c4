"""`_pages`: huge pages set aside, and private mappings that live as long as their views."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ringfeed.system import _system

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("nothing_left")

HUGE = 2 << 20
SIZES = [1, mmap.PAGESIZE, HUGE - 1, HUGE, HUGE + 1, 2 * HUGE + 5000]


def mapped(fd: int, least: int = 1) -> memoryview:
    """All of a file, as what is unpacked sees it."""
    return memoryview(_system.PrivateMapping(fd, least))


def address_of(view: memoryview) -> int:
    """Where a view begins."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


@contextmanager
def file_of(size: int) -> Iterator[int]:
    """A memfd of so many bytes that count up, in huge pages where the kernel has them."""
    fd = os.memfd_create("ringfeed-test")
    try:
        os.ftruncate(fd, size)
        _system.reserve_huge(fd, size)
        os.pwrite(fd, counted(size), 0)
        yield fd
    finally:
        os.close(fd)


def counted(size: int) -> bytes:
    """The content of such a file."""
    return (np.arange(size, dtype=np.uint32) % 251).astype(np.uint8).tobytes()


def mappings() -> list[dict[str, int]]:
    """What the kernel says of each mapping of such a file, in bytes by name.

    One name is ``address``.
    """
    found = []
    for area in re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text()):
        if "/memfd:ringfeed-test" in area:
            fields = {
                name: 1024 * int(kb)
                for name, kb in re.findall(r"^(\w+): +(\d+) kB$", area, re.MULTILINE)
            }
            found.append({"address": int(area.partition("-")[0], 16), **fields})
    return found


# ---- private mappings ----


@pytest.mark.parametrize("size", SIZES)
def test_a_mapping_is_the_file(size: int) -> None:
    """Its bytes are those of the file, as many, writable.

    One of 2 MiB or more begins where a huge page can.
    """
    with file_of(size) as fd:
        view = mapped(fd, size)
        assert (view.nbytes, view.readonly, view.format) == (size, False, "B")
        assert view.tobytes() == counted(size)
        assert size < HUGE or address_of(view) % HUGE == 0


@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_no_other_process_sees(size: int) -> None:
    """Neither the file nor another mapping of it, made before or after."""
    with file_of(size) as fd:
        before, view = mapped(fd), mapped(fd)
        view[-1] = 255
        view[0] = 254
        assert view[0] == 254
        for other in (bytes(before), bytes(mapped(fd)), os.pread(fd, size, 0)):
            assert other == counted(size)


def test_a_byte_written_costs_a_page() -> None:
    """Of a huge page too a small one is copied: a worker that writes little takes little."""
    with file_of(3 * HUGE) as fd:
        view = mapped(fd)
        assert sum(view[:: mmap.PAGESIZE]) > 0
        (read,) = mappings()
        assert (read["Rss"], read["Anonymous"]) == (3 * HUGE, 0)
        view[HUGE + 7] = 255
        assert sum(view[:: mmap.PAGESIZE]) > 0
        (written,) = mappings()
        assert (written["Rss"], written["Anonymous"]) == (3 * HUGE, mmap.PAGESIZE)


def test_the_last_view_unmaps() -> None:
    """The file may be closed before.

    A part of a view, or an array over one, keeps all of the mapping.
    """
    with file_of(HUGE + 5000) as fd:
        view = mapped(fd)
    array = np.frombuffer(view[4096:], np.uint8)
    del view
    gc.collect()
    (one,) = mappings()
    assert one["Size"] == HUGE + 8192 or mmap.PAGESIZE != 4096
    assert array.tobytes() == counted(HUGE + 5000)[4096:]
    del array
    gc.collect()
    assert mappings() == []


def test_a_mapping_keeps_no_descriptor() -> None:
    """Only the number that the caller has is open."""
    with file_of(HUGE) as fd:
        before = sorted(Path("/proc/self/fd").iterdir())
        view = mapped(fd)
        assert sorted(Path("/proc/self/fd").iterdir()) == before
        assert view[3] == 3


@pytest.mark.parametrize(
    ("size", "least", "told"), [(0, 0, 1), (0, 1, 1), (4096, 4097, 4097), (0, HUGE, HUGE)]
)
def test_a_file_that_is_too_short_is_refused(size: int, least: int, told: int) -> None:
    """Empty ones as well, as nothing can be mapped of them.

    Reading past the end would be a SIGBUS.
    """
    with file_of(size) as fd, pytest.raises(ValueError, match="shared memory") as caught:
        mapped(fd, least)
    assert str(caught.value) == (
        f"a file of shared memory has {size} bytes, expected at least {told}: it is none that this "
        "version of ringfeed has made; do the workers import the same one?"
    )


def test_a_closed_file_is_an_error() -> None:
    """The errno is the kernel's, and nothing is mapped."""
    with file_of(1) as fd:
        pass
    with pytest.raises(OSError, match="descriptor") as caught:
        mapped(fd)
    assert (caught.value.errno, caught.value.strerror) == (errno.EBADF, os.strerror(errno.EBADF))
    assert mappings() == []


def test_a_mapping_is_asked_for_by_a_descriptor_and_a_size() -> None:
    """What cannot be a size is refused as such."""
    with file_of(1) as fd:
        with pytest.raises(OverflowError):
            mapped(fd, -1)
        with pytest.raises(TypeError):
            _system.PrivateMapping(fd)  # type: ignore[call-arg]


# ---- pages set aside ----


@pytest.mark.parametrize("size", SIZES)
def test_what_is_set_aside_is_empty_and_within_the_file(size: int) -> None:
    """Whatever the kernel grants, the size stays, and all bytes are zero."""
    fd = os.memfd_create("ringfeed-test")
    try:
        os.ftruncate(fd, size)
        _system.reserve_huge(fd, size)
        taken = os.fstat(fd).st_blocks * 512
        assert taken <= size // HUGE * HUGE
        assert os.fstat(fd).st_size == size
        assert not any(os.pread(fd, size, 0))
        os.posix_fallocate(fd, 0, size)  # what is left
        assert os.fstat(fd).st_blocks * 512 == -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    finally:
        os.close(fd)


def test_nothing_stays_mapped_of_what_is_set_aside() -> None:
    """The mapping that it needs goes, so that the file can be sealed against writing."""
    with file_of(2 * HUGE):
        assert mappings() == []


def test_what_cannot_be_set_aside_is_left() -> None:
    """No memfd, or a closed one: nothing is raised, as the reservation of the rest will see."""
    read, write = os.pipe()
    _system.reserve_huge(read, HUGE)
    os.close(read)
    os.close(write)
    _system.reserve_huge(read, HUGE)
