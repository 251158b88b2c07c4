"""The file of a `ringfeed.Cache`: the next run, other datasets, damage, full disks, deaths."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from cache_kills import Large, kill_some
from cached import COUNT, Bulk, Images, Lengths, Structured, digest, run
from ringfeed.cache import cached as cached_module
from ringfeed.cache import file as files
from watching import run_script

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = 4096 + 32 * COUNT


def filled(path: Path, dataset: Any = None) -> Any:
    """Have a run fill a file, and return its batches."""
    return run(ringfeed.Cache(dataset or Images(), path=path), workers=1, epochs=2)


def entries(path: Path) -> Any:
    """Return the table of a file: mark, checksum, place and size of each sample."""
    return np.memmap(path, np.uint64, "r+", 4096, (COUNT, 4))


# ---- the next run ----


@pytest.mark.parametrize("kind", [Images, Structured, Bulk])
def test_the_next_run_reads_no_sample(kind: type[Images], tmp_path: Path) -> None:
    """All of its rows come from the file of the first."""
    first = filled(tmp_path / "cache.rf", kind())
    cache = ringfeed.Cache(kind(), path=tmp_path / "cache.rf")
    assert run(cache, workers=2, epochs=2) == first
    assert cache.stats().misses == 0
    assert cache.stats().samples == COUNT


def test_the_next_run_has_lengths(tmp_path: Path) -> None:
    """Also where samples differ in length, and are text and bytes."""
    settings: dict[str, Any] = {"spec": Lengths.SPEC}
    first = run(ringfeed.Cache(Lengths(), path=tmp_path / "cache.rf"), **settings)
    cache = ringfeed.Cache(Lengths(), path=tmp_path / "cache.rf")
    assert run(cache, **settings) == first
    assert cache.stats().misses == 0


SCRIPT = """
import sys
from typing import NamedTuple
import numpy as np
import ringfeed

class Sample(NamedTuple):
    image: np.ndarray
    name: str

NAMES = {"a", "b", "c"}

def name_of(index):
    return f"{index}" if str(index) not in NAMES else "none"

class Script:
    def __init__(self):
        self.paths = [f"picture {i}" for i in range(20)]
        self.seen = {"x", "y", "z"}
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return Sample(np.full(4, index), name_of(index))

def seen(sample):
    return sample.image * 2, len(sample.name)

if __name__ == "__main__":
    cache = ringfeed.Cache(Script(), path=sys.argv[1])
    with ringfeed.Loader(cache, batch_size=5, workers=2, transform=seen) as loader:
        print([batch[0].sum().item() for batch in loader], cache.stats().misses > 0)
"""


def test_a_script_run_again_has_the_same_fingerprint(tmp_path: Path) -> None:
    """Of classes, functions and sets of the main file, which pickle numbers and orders anew each time."""
    (tmp_path / "train.py").write_text(SCRIPT)
    outs = []
    for _ in range(2):
        out = subprocess.run(
            [sys.executable, "train.py", "cache.rf"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert out.returncode == 0, out.stderr
        outs.append(out.stdout)
    assert outs == ["[80, 280, 480, 680] True\n", "[80, 280, 480, 680] False\n"]


# ---- another dataset ----


def test_another_dataset_is_refused(tmp_path: Path) -> None:
    """With what differs; the file stays as it is."""
    path = tmp_path / "cache.rf"
    filled(path)
    before = path.read_bytes()
    others: list[tuple[Callable[[], Any], str]] = [
        (lambda: ringfeed.Cache(Images(61), path=path), "samples is 60, expected 61"),
        (lambda: ringfeed.Cache(Bulk(), path=path), "dataset is 'Images', expected 'Bulk'"),
        (lambda: ringfeed.Cache(Images(), path=path, key="2"), "key is None, expected '2'"),
        (
            lambda: ringfeed.Cache(Images(log=tmp_path), path=path),
            r"fingerprint is '[0-9a-f]{32}', expected '[0-9a-f]{32}'",
        ),
    ]
    for make, difference in others:
        with pytest.raises(ringfeed.StateError) as caught:
            make()
        expected = (
            f"{re.escape(str(path))} has samples of another dataset: its {difference}; give another "
            "path=, or remove the file if no run needs it"
        )
        assert re.fullmatch(expected, str(caught.value))
    assert path.read_bytes() == before


def test_a_file_of_another_kind_is_never_written(tmp_path: Path) -> None:
    """Whatever lies at the path stays."""
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    with pytest.raises(ringfeed.StateError) as caught:
        ringfeed.Cache(Images(), path=path)
    assert str(caught.value) == (
        f"{path} is no cache of ringfeed, and stays as it is; give another path="
    )
    assert path.read_text() == "my notes"


def test_a_dataset_without_a_fingerprint(tmp_path: Path) -> None:
    """What pickle does not take gets one by its attribute."""
    dataset = Images()
    dataset.self = dataset  # type: ignore[attr-defined]
    with pytest.raises(ringfeed.StateError) as caught:
        ringfeed.Cache(dataset, path=tmp_path / "cache.rf")
    assert str(caught.value) == (
        "a Images has no fingerprint, which a file needs: pickle does not take it, or it contains "
        "itself; give it one, as in dataset.fingerprint = 'photographs 1'"
    )
    dataset.fingerprint = "1"  # type: ignore[attr-defined]
    assert ringfeed.Cache(dataset, path=tmp_path / "cache.rf").stats().samples == 0
    head = json.loads((tmp_path / "cache.rf").read_bytes()[:4096].rstrip(b"\0"))
    assert (head["dataset"], head["fingerprint"], head["samples"]) == ("Images", "1", COUNT)


# ---- damage ----


def test_damaged_records_are_read_again(tmp_path: Path) -> None:
    """Each of one flipped bit; the next run finds them mended."""
    path = tmp_path / "cache.rf"
    first = filled(path)
    places = entries(path)[:, 2].copy()
    with path.open("r+b") as file:
        for index in range(0, COUNT, 7):
            file.seek(int(places[index]) + 100 + index)
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 16]))
    cache = ringfeed.Cache(Images(), path=path)
    assert run(cache, workers=1, epochs=2) == first
    assert cache.stats().damaged >= len(range(0, COUNT, 7))
    again = ringfeed.Cache(Images(), path=path)
    assert run(again, workers=2, epochs=2) == first
    assert (again.stats().damaged, again.stats().misses) == (0, 0)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a place beyond the end": lambda path: entries(path)[3].__setitem__(2, 2**40),
    "a place in the table": lambda path: entries(path)[3].__setitem__(2, 4096),
    "a size beyond all": lambda path: entries(path)[3].__setitem__(3, 2**64 - 1),
    "no size": lambda path: entries(path)[3].__setitem__(3, 0),
    "another sample's entry": lambda path: entries(path).__setitem__(3, entries(path)[4]),
    "another checksum": lambda path: entries(path)[3].__setitem__(1, 1),
    "another mark": lambda path: entries(path)[3].__setitem__(0, 1),
    "no records": lambda path: os.truncate(path, 8256),
    "half a record": lambda path: os.truncate(path, path.stat().st_size - 100),
    "an end of no word": lambda path: os.truncate(path, path.stat().st_size - 3),
    "noise": lambda path: path.write_bytes(path.read_bytes() + os.urandom(1001)),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_no_damage_gives_a_wrong_row(how: str, tmp_path: Path) -> None:
    """Whatever an entry says, or where the file was cut off, the batches are right."""
    path = tmp_path / "cache.rf"
    first = filled(path)
    DAMAGES[how](path)
    for _ in range(2):
        cache = ringfeed.Cache(Images(), path=path)
        assert run(cache, workers=1, epochs=2) == first
        assert cache.stats().samples == COUNT


def test_a_damaged_head_is_said(tmp_path: Path) -> None:
    """It may be another dataset's, so the user decides."""
    path = tmp_path / "cache.rf"
    filled(path)
    whole = path.read_bytes()
    for damaged in (whole[:30] + b"?" + whole[31:], whole[:4096]):
        path.write_bytes(damaged)
        with pytest.raises(ringfeed.StateError) as caught:
            ringfeed.Cache(Images(), path=path)
        assert str(caught.value) == (
            f"{path} is damaged at its beginning; remove it, and the cache begins anew"
        )


def test_a_maker_that_was_killed_leaves_a_new_file(tmp_path: Path) -> None:
    """Its file is empty, or has an empty table."""
    for size in (0, 8256):
        path = tmp_path / f"{size}.rf"
        path.touch()
        os.truncate(path, size)
        assert filled(path) == run(Images(), workers=1, epochs=2)


# ---- several processes ----


def test_deaths_and_damage_leave_no_wrong_sample() -> None:
    """A slice of what `python tests/support/cache_kills.py` does a thousand times."""
    found = kill_some(25, seed=1)
    assert found == {"kills": 25, "wrong": 0, "failed": 0, "kept": 400}


@pytest.mark.parametrize("step", ["record", "entry", "mark"])
def test_a_death_at_each_step(step: str, tmp_path: Path) -> None:
    """A process that is killed behind any write leaves the sample absent; the next one keeps it."""
    path = tmp_path / "cache.rf"
    child = os.fork()
    if not child:
        cache = ringfeed.Cache(Images(), path=path)
        pwrite, write = os.pwrite, os.write
        steps = iter(["entry", "mark"])

        def write_and_die(*given: Any) -> int:
            done = pwrite(*given)
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        def write_half(fd: int, record: bytes) -> int:
            if step != "record":
                return write(fd, record)
            write(fd, record[:100])
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        files.os.pwrite, files.os.write = write_and_die, write_half  # type: ignore[attr-defined]
        try:
            cache[5]
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    cache = ringfeed.Cache(Images(), path=path)
    assert cache.stats().samples == (step == "mark")
    for _ in range(2):
        np.testing.assert_array_equal(cache[5][0], Images()[5][0])
    assert cache.stats()[:4] == ((2, 0, 0, 0) if step == "mark" else (1, 1, 0, 0))


def test_a_sample_that_another_process_writes_is_not_waited_for(tmp_path: Path) -> None:
    """A stopped writer holds up nobody: the sample is read as before."""
    path = tmp_path / "cache.rf"
    cache, other = (ringfeed.Cache(Images(), path=path) for _ in range(2))
    assert cache.file._lock(5, fcntl.F_WRLCK)
    other[5]
    cache.file._lock(5, fcntl.F_UNLCK)
    assert other.stats()[:5] == (0, 1, 0, 0, 0)
    other[5]
    assert cache.stats().samples == 1


def test_two_runs_fill_one_file_at_once(tmp_path: Path) -> None:
    """Each finds what the other has written, and both have the right batches."""
    path = tmp_path / "cache.rf"
    caches = [ringfeed.Cache(Images(), path=path) for _ in range(2)]
    make = partial(ringfeed.Loader, batch_size=6, workers=2, shuffle=True)
    with make(caches[0]) as first, make(caches[1]) as second, make(Images()) as plain:
        for _ in range(2):
            rows = [
                [batch[0].sum().item() for batch in batches]
                for batches in zip(first, second, plain, strict=True)
            ]
            assert all(len({*row}) == 1 for row in rows)
    assert caches[0].stats().samples == COUNT
    size = entries(path)[:, 3].sum() + 8256
    assert size <= path.stat().st_size <= size + 4 * 400


def test_a_file_that_grows_leaves_no_old_mappings(tmp_path: Path) -> None:
    """Another run keeps a sample ahead of each batch; arrays over an older mapping are dropped with it."""
    path = tmp_path / "cache.rf"
    cache, other = (ringfeed.Cache(Images(), path=path) for _ in range(2))
    twice = np.repeat(np.arange(COUNT), 2)
    with ringfeed.Loader(cache, batch_size=1, sampler=twice, workers=0) as loader:
        batches = iter(loader)
        for index in twice.tolist():
            other[index]
            assert next(batches)[1].tolist() == [index]
        mapped = Path("/proc/self/maps").read_text().count(str(path))
    assert mapped <= 4
    assert cache.stats().hits >= COUNT


# ---- no room ----

FULL = """
import resource
import ringfeed
from cached import Images

def fill(cache):
    for _ in range(2):
        for index in range(60):
            image, label = cache[index]
            assert (image == Images().image(index)).all() and label == index
    stats = cache.stats()
    print(0 < stats.samples < 60 and stats.left_out >= 2 * (60 - stats.samples))
"""


def test_a_limit_of_files_is_a_full_disk() -> None:
    """RLIMIT_FSIZE, in memory: what fits is kept, the rest is read."""
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))"
    out, errors, _ = run_script(f"{FULL}\n{limit}\nfill(ringfeed.Cache(Images(), memory=10**9))")
    assert (out, errors) == ("True\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_full_disk(tmp_path: Path) -> None:
    """A tmpfs of some pages: no SIGBUS, no wrong sample."""
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=16k", "none", tmp_path], check=False
    )
    if mounted.returncode:
        pytest.skip("no mounts here")
    try:
        place = f"path={str(tmp_path / 'cache.rf')!r}"
        out, errors, _ = run_script(f"{FULL}\nfill(ringfeed.Cache(Images(), {place}))")
    finally:
        subprocess.run(["/bin/umount", tmp_path], check=True)
    assert (out, errors) == ("True\n", "")


def test_memory_is_sealed() -> None:
    """No process can cut it off, nor write to its mapping."""
    cache = ringfeed.Cache(Images(), memory="1MB")
    cache[0]
    with pytest.raises(PermissionError):
        os.ftruncate(cache.file._fd, 0)
    assert memoryview(cache.file.records.memory).readonly


def test_a_worker_that_cannot_reach_the_memory_reads_as_before() -> None:
    """As on another machine, where no process has it open."""
    cache = ringfeed.Cache(Images(), memory="1MB")
    cache[3]
    make, ((place, counts), terms) = cache.file.__reduce__()
    cache._file = make((place._replace(file=(0, 0)), counts), terms)
    assert cache[3][1] == 3
    assert cache.stats()[:5] == (0, 1, 1, 0, 0)


# ---- memory that is planned ----


def test_what_is_planned_is_used() -> None:
    """The kernel gives what the plan says, to 1 %, with several workers."""
    cache = ringfeed.Cache(Large(400), memory="50MB")
    sizes = np.array([5000 + 997 * (index % 31) for index in range(400)])
    with ringfeed.Loader(
        cache,
        batch_size=16,
        workers=4,
        spec=(
            ringfeed.Array((None,), "uint8", max_shape=(40_000,), form="ragged"),
            ringfeed.Array((), "int64"),
            ringfeed.Text(500),
        ),
    ) as loader:
        for _ in loader:
            pass
        room = cache.room(0)
    assert room.samples == 400
    assert abs(room.size - cache.stats().size) < room.size / 100
    assert room.size > sizes.sum()


def test_the_plan_has_the_cache(tmp_path: Path) -> None:
    """Beside its total, as it belongs to the cache and not to the loader."""
    with ringfeed.Loader(Images(), workers=1) as plain:
        total = plain.plan.total
    cache = ringfeed.Cache(Images(), memory="1MB")
    with ringfeed.Loader(cache, workers=1) as loader:
        (room,) = loader.plan.caches
        assert (room.samples, room.of, room.is_file) == (COUNT, COUNT, False)
        assert loader.plan.total - total < 8192  # the pickle of the dataset
        assert str(loader.plan).endswith(f"of indices in this process, {room}")
    with ringfeed.Loader(ringfeed.Cache(Images(), path=tmp_path / "a"), workers=1) as loader:
        (room,) = loader.plan.caches
        assert room.is_file
        assert loader.plan.total - total < 8192
        assert str(room) == f"{room.size / 1000:.1f} kB on disk for a cache of all 60 samples"


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would kill in the middle of an epoch, so the loader is refused before."""
    monkeypatch.setattr(cached_module, "free_memory", lambda: [(10_000, "the machine has")])
    cache = ringfeed.Cache(Images(), memory="1MB")
    with pytest.raises(ringfeed.PlanError) as caught:
        ringfeed.Loader(cache, workers=1)
    assert re.fullmatch(
        r"the cache needs \d+\.\d kB, and 10\.0 kB are free; give it less memory=, or path=",
        str(caught.value),
    )


def test_planning_says_it_too() -> None:
    """`ringfeed.plan`, with a line for the cache."""
    cache = ringfeed.Cache(Images(), memory="1MB")
    shown = str(ringfeed.plan(cache, batch_size=8, workers=1))
    assert f"Besides, {cache.room(0)}." in " ".join(shown.split())


def test_a_file_with_a_limit(tmp_path: Path) -> None:
    """Both path= and memory=: the file takes no more."""
    path = tmp_path / "cache.rf"
    cache = ringfeed.Cache(Images(), path=path, memory=20_000)
    with ringfeed.Loader(cache, batch_size=6, workers=2) as loader:
        (room,) = loader.plan.caches
        digest(loader)
    assert cache.stats().samples == room.samples
    assert room.size - room.size / room.samples < path.stat().st_size <= 20_000
