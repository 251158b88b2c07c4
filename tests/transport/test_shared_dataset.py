"""A dataset travels shared, in versions; only what changed is sent.

No descriptor stays open.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import itertools
import os
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import travel
from ringfeed import errors
from ringfeed.transport import shared_dataset, unpacking

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("nothing_left")

MB = 1 << 20


class Counting:
    """A dataset that changes between epochs."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.x = x
        self.epoch = 0


def shipped(
    subject: object, previous: shared_dataset.SharedDataset | None = None
) -> shared_dataset.SharedDataset:
    """Return ``subject`` in shared memory, as ``previous`` does not have it."""
    made = shared_dataset.to_shared_memory(shared_dataset.pack(subject), previous)
    assert made is not None
    return made


def received(sent: shared_dataset.SharedDataset) -> Any:
    """What a worker gets, without one."""
    return unpacking.unpack(sent.manifest(), sent.fds)


def test_parts_in_band_and_out_of_band_are_counted_apart() -> None:
    """Large buffers count as shared by all workers, everything else as unpickled by each."""
    packed = shared_dataset.pack(
        [np.zeros(100_000, np.uint8), np.zeros(4095, np.uint8), b"x" * 50_000]
    )
    assert packed.out_of_band == 100_000
    assert 54_095 < packed.in_band < 55_000


def test_a_dataset_of_one_array_costs_a_worker_no_private_memory_until_it_writes() -> None:
    """Two workers that have read 64 MB hold none of it privately.

    One that writes to half holds half.
    """

    def private_mb() -> int:
        text = Path("/proc/self/smaps").read_text()
        kb = 0
        for area in re.split(r"\n(?=[0-9a-f]+-)", text):
            if "memfd:ringfeed-dataset" in area:
                kb += sum(map(int, re.findall(r"Private_\w+: +(\d+) kB", area)))
        return round(kb / 1024)

    def in_step(word: str) -> None:
        print(word, flush=True)  # noqa: T201 - to the test
        sys.stdin.readline()

    def read_then_write(dataset: Any) -> tuple[int, int]:
        dataset.sum()
        in_step("read")
        before = private_mb()
        in_step("measured")
        dataset[: len(dataset) // 2] = 1
        in_step("written")
        after = private_mb()
        in_step("measured again")  # pages of one process alone would count as its own
        return before, after

    sent = shipped((np.zeros(64 * MB, np.uint8), read_then_write))
    with travel.start(sent) as one, travel.start(sent) as two:
        for word in ("read", "measured", "written", "measured again"):
            for worker in (one, two):
                assert worker.stdout
                assert worker.stdout.readline().strip() == word
            for worker in (one, two):
                assert worker.stdin
                worker.stdin.write("\n")
                worker.stdin.flush()
        assert one.communicate(timeout=travel.TIMEOUT_S)[0] == "(0, 32)\n"
        assert two.communicate(timeout=travel.TIMEOUT_S)[0] == "(0, 32)\n"
    sent.close()


def test_what_one_worker_writes_no_other_sees() -> None:
    """Writes go to private copies: not to what is shared, hence to no other worker."""
    sent = shipped(np.zeros(5000))
    first, second = received(sent), received(sent)
    first += 1
    assert (first.sum(), second.sum(), received(sent).sum()) == (5000, 0, 0)
    sent.close()


def test_nothing_can_change_what_was_sent() -> None:
    """The memfd is sealed against writing, growing, shrinking, and unsealing."""
    sent = shipped(np.zeros(5000))
    (fd,) = sent.fds
    size = os.fstat(fd).st_size
    refused: list[Callable[[], object]] = [
        lambda: os.pwrite(fd, b"x", 0),
        lambda: os.ftruncate(fd, size + 1),
        lambda: os.ftruncate(fd, size - 1),
        lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    ]
    for change in refused:
        with pytest.raises(PermissionError):
            change()
    assert not os.get_inheritable(fd)
    sent.close()


def test_unpacking_reads_no_page_of_what_is_shared() -> None:
    """A forkserver has none of a large array in its page tables.

    It only unpickles, and its workers share all of the array.
    """
    sent = shipped((np.ones(8 * MB, np.uint8), b"x" * 50_000))
    dataset = received(sent)
    area = next(
        area
        for area in re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())
        if "memfd:ringfeed-dataset" in area
    )
    assert re.findall(r"^Rss: +(\d+) kB$", area, re.MULTILINE) == ["0"]
    assert (dataset[0].sum(), len(dataset[1])) == (8 * MB, 50_000)
    sent.close()


def test_huge_pages_are_set_aside_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of a new memfd is offered to the kernel while it is empty.

    A later version offers only what it adds.
    """
    offered: list[int] = []

    def reserve_huge(fd: int, size: int) -> None:
        assert (os.fstat(fd).st_size, os.fstat(fd).st_blocks) == (size, 0)
        offered.append(size)

    monkeypatch.setattr("ringfeed.system._system.reserve_huge", reserve_huge)
    large, small = np.zeros(5 * MB, np.uint8), np.zeros(5000, np.uint8)
    first = shipped((large, small))
    small += 1
    second = shipped((large, small), first)
    assert offered == [first.size, second.size]
    first.close()
    second.close()


def test_a_shared_dataset_of_another_size_is_refused() -> None:
    """A manifest that says more than its memfd has is an error, not a SIGBUS."""
    sent = shipped(np.zeros(5000))
    size = os.fstat(sent.fds[0]).st_size
    sent.pieces = [*sent.pieces[:-1], sent.pieces[-1]._replace(offset=size)]
    with pytest.raises(ValueError, match="shared memory") as caught:
        received(sent)
    assert str(caught.value) == (
        f"a file of shared memory has {size} bytes, expected at least {size + 40_000}: it is none "
        "that this version of ringfeed has made; do the workers import the same one?"
    )
    sent.close()


def test_buffers_start_at_multiples_of_64_bytes() -> None:
    """Every array of a worker's dataset is aligned as frameworks want it."""
    sent = shipped([np.zeros(4096 + odd, np.uint8) for odd in range(5)])
    assert [array.__array_interface__["data"][0] % 64 for array in received(sent)] == [0] * 5
    sent.close()


def test_size_is_what_the_memfds_take() -> None:
    """The size of a shared dataset is that of its new memfds, in whole pages."""
    packed = shared_dataset.pack(np.zeros(5000))
    sent = shared_dataset.to_shared_memory(packed)
    assert sent
    assert sent.size == os.fstat(sent.fds[0]).st_size
    assert (
        packed.in_band + packed.out_of_band
        <= sent.size
        < packed.in_band + packed.out_of_band + 8192
    )
    sent.close()


def descriptors() -> list[str]:
    """The open file descriptors of this process, and what they are open on."""
    return sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists())


# Versions.


def test_an_unchanged_dataset_is_not_sent_again() -> None:
    """Pickled again without a change, a dataset has nothing to send."""
    datasets: list[object] = [
        Counting(np.arange(5000)),
        np.zeros((2000, 9))[:, ::2],
        [],
        {"a": {"b"}},
    ]
    for dataset in datasets:
        first = shipped(dataset)
        assert shared_dataset.to_shared_memory(shared_dataset.pack(dataset), first) is None
        first.close()


def test_a_comparison_leaves_nothing_mapped() -> None:
    """What workers have is none of this process's memory between two comparisons."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:ringfeed-dataset")

    before = mapped()
    dataset = np.arange(MB)
    first = shipped(dataset)
    assert shared_dataset.to_shared_memory(shared_dataset.pack(dataset), first) is None
    assert mapped() == before
    first.close()


def test_only_what_changed_is_sent_again() -> None:
    """Of two arrays the one that changed in place travels; the other is the one sent before."""
    big, small = np.arange(MB, dtype=np.uint64), np.arange(1000, dtype=np.uint64)
    first = shipped((big, small))
    small[3] = 0
    second = shipped((big, small), first)
    assert first.size > 8 * MB
    assert second.size <= 12_288  # 8000 bytes and the stream, in pages
    assert os.path.sameopenfile(second.fds[0], first.fds[0])
    first.close()
    for got, sent in zip(received(second), (big, small), strict=True):
        np.testing.assert_array_equal(got, sent)
    second.close()


def test_a_change_in_band_sends_the_stream_alone() -> None:
    """A counter that goes up costs a page or two, not the arrays."""
    dataset = Counting(np.arange(MB))
    first = shipped(dataset)
    dataset.epoch = 1
    second = shipped(dataset, first)
    assert second.size <= 8192
    assert (received(second).epoch, received(second).x[7]) == (1, 7)
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("AB", "BA"),
        ("ABC", "BC"),
        ("ABC", "AB"),
        ("AB", "CAB"),
        ("AB", "ACB"),
        ("ABC", "CA"),
        ("ABCDEFGHIJKL", "XABCDEFGHIJKL"),
        ("ABCDEFGHIJKL", "BCDEFGHIJKL"),
        ("ABCDEFGHIJKLMNOPQRST", "abcdefIJKLMNOPQRSTgh"),
        ("ABCDEFGHIJKLMNOPQRST", "xabcdefgIJKLMNOPQRSTA"),
        ("AA", "AA"),
        ("A", "AA"),
        ("AAA", "ABA"),
    ],
)
def test_arrays_are_found_again_wherever_they_stand(old: str, new: str) -> None:
    """Where arrays move, only new content is sent, and every array is its own."""
    arrays = {letter: np.full(100_000, ord(letter), np.uint8) for letter in old + new}
    first = shipped([arrays[letter].copy() for letter in old])
    second = shared_dataset.to_shared_memory(
        shared_dataset.pack([arrays[letter].copy() for letter in new]), first
    )
    added = sum(max(0, new.count(letter) - old.count(letter)) for letter in set(new))
    if second is None:
        assert old == new
    else:
        assert added * 100_000 <= second.size < added * 100_000 + 12_288
        got = received(second)
        for array in got:
            np.add(array, 1, out=array)  # were two arrays one piece, this would go to both
        assert "".join(chr(array[0] - 1) for array in got) == new
        second.close()
    first.close()


def test_memory_of_what_changed_is_let_go() -> None:
    """A small array that never changes keeps no memory of a large one that always does."""
    small, large = np.ones(1000), np.zeros(MB, np.uint8)
    current = shipped((small, large))
    for epoch in range(1, 6):
        large[:] = epoch
        following = shipped((small, large), current)
        current.close()
        current = following
        assert sum(os.fstat(fd).st_size for fd in current.fds) < 1.1 * MB
    got = received(current)
    assert (got[0].sum(), got[1][0]) == (1000, 5)
    current.close()


def test_memfds_do_not_add_up_over_versions() -> None:
    """Of many arrays a different one changes in each epoch: the number of memfds stays bounded."""
    arrays = [np.zeros(5000, np.uint8) for _ in range(80)]
    current = shipped(arrays)
    for epoch, array in enumerate(arrays):
        array[:] = epoch + 1
        following = shipped(arrays, current)
        current.close()
        current = following
        assert len(current.fds) <= shared_dataset.MAX_FILES
    assert [int(array[0]) for array in received(current)] == list(range(1, 81))
    current.close()


def test_differences_are_found_anywhere_in_a_buffer() -> None:
    """A change of one byte anywhere in a large buffer is a change."""
    step = 4 * MB  # bytes that are compared between two looks at signals
    array = np.zeros(3 * step + 5, np.uint8)
    current = shipped(array)
    for at in (0, step, 2 * step - 1, len(array) - 1):
        array[at] = 1
        following = shipped(array, current)
        current.close()
        current = following
        np.testing.assert_array_equal(received(current), array)
    current.close()


def test_a_dataset_may_have_thousands_of_buffers() -> None:
    """Each worker gets all of them, many with the same content."""
    sent = shipped([np.full(4096, number % 256, np.uint8) for number in range(3000)])
    assert [int(array[-1]) for array in received(sent)] == [number % 256 for number in range(3000)]
    sent.close()


# Errors.


def test_no_room_is_an_error_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that cannot be reserved is a PlanError, and no descriptor stays open."""

    def no_space(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    packed = shared_dataset.pack(np.zeros(5000))
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(errors.PlanError) as caught:
        shared_dataset.to_shared_memory(packed)
    assert str(caught.value) == (
        "cannot reserve 41.0 kB of shared memory: No space left on device; the dataset has "
        f"{packed.in_band} bytes in band and 40.0 kB of buffers: keep less in the dataset, read "
        "files on demand (a np.memmap travels as a file name), or give the machine or its cgroup "
        "more memory"
    )


@pytest.mark.parametrize(
    ("changed", "name", "calls_before"),
    [
        # The large array stays in its memfd, which is referred to again.
        ("small", "dup", 0),
        ("small", "posix_fallocate", 0),
        ("small", "pwrite", 0),
        # The small array is copied to the memfd of the large one.
        ("large", "posix_fallocate", 0),
        ("large", "pwrite", 2),
    ],
)
def test_an_interrupted_share_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, changed: str, name: str, calls_before: int
) -> None:
    """Whichever system call is interrupted, all descriptors made so far are closed."""
    arrays: dict[str, Any] = {"small": np.ones(1000), "large": np.zeros(MB, np.uint8)}
    first = shipped(arrays)
    arrays[changed] += 1
    packed = shared_dataset.pack(arrays)
    real, calls = getattr(os, name), itertools.count()

    def interrupted(*arguments: Any) -> Any:
        if next(calls) == calls_before:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(os, name, interrupted)
    open_before = descriptors()
    with pytest.raises(KeyboardInterrupt):
        shared_dataset.to_shared_memory(packed, first)
    assert descriptors() == open_before
    first.close()


def test_writes_of_the_kernel_may_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer larger than the kernel takes at once arrives whole."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, source, offset: real(fd, source[:1000], offset))
    array = np.arange(5000)
    sent = shipped(array)
    np.testing.assert_array_equal(received(sent), array)
    sent.close()


def test_close_may_be_called_twice_and_leaves_mappings() -> None:
    """A shared dataset closed twice is closed; datasets unpacked from it live on."""
    sent = shipped(np.arange(5000))
    dataset = received(sent)
    sent.close()
    sent.close()
    assert sent.fds == ()
    assert dataset[4999] == 4999


def test_a_pickled_dataset_that_ends_in_a_cycle_is_collected_quietly() -> None:
    """The collector takes a pickled dataset apart in silence; a complaint would be an error."""
    cycle: list[object] = [shared_dataset.pack(np.arange(5000))]
    cycle.append(cycle)
    del cycle
    gc.collect()


def test_a_large_array_is_compared_in_part() -> None:
    """A change of all of it is seen, and so is another array in its place."""
    large, other = (np.zeros(20_000_000, np.uint8) for _ in range(2))
    other[5000] = 1
    first = shared_dataset.to_shared_memory(shared_dataset.pack([large]))
    assert first is not None
    with closing(first):
        large[5000] = 1  # between the parts that are compared: the documented price
        assert shared_dataset.to_shared_memory(shared_dataset.pack([large]), first) is None
        for change in (lambda: [other], lambda: [np.add(large, 1, out=large)]):
            second = shared_dataset.to_shared_memory(shared_dataset.pack(change()), first)
            assert second is not None
            second.close()
