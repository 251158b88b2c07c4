"""Kinds of samples, files, disks and processes that a `ringfeed.Cache` may meet."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ringfeed
from cached import COUNT, Images, Pair, digest, run
from ringfeed.cache import file as files
from watching import run_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STRUCTURED = np.dtype([("x", "<f4"), ("name", "S3")])


@dataclass
class Point:
    """A sample with fields."""

    x: Any
    y: Any


class Colour(IntEnum):
    """A number of a kind."""

    RED = 7


class One:
    """A dataset of one sample."""

    fingerprint = "one"

    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.sample


SAMPLES: dict[str, Any] = {
    "no axes": np.array(3.5),
    "no rows": np.empty((0, 4), np.float32),
    "no columns": np.empty((4, 0), "S5"),
    "bytes of NumPy that end with zeros": np.bytes_(b"a\0\0"),
    "text of NumPy that ends with a zero": np.str_("ü\0"),
    "an array of text": np.array(["a", "", "äöü"]),
    "an array of bytes": np.array([b"a", b"", b"abc"]),
    "records": np.array([(1.5, b"a"), (2.5, b"bcd")], STRUCTURED),
    "a record": np.array([(1.5, b"a")], STRUCTURED)[0],
    "objects": np.array([None, "a", [1]], object),
    "a date": np.datetime64("2026-11-29"),
    "times": np.array([1, 2], "m8[s]"),
    "a record array": np.rec.fromarrays([[1, 2], [3.5, 4.5]], names="a,b"),
    "masked": np.ma.array([1, 2], mask=[False, True]),
    "backwards": np.arange(6)[::-2],
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "another byte order": np.arange(3, dtype=">i4"),
    "halves and complex": (np.float16(1.5), np.complex64(1j), np.array([1j])),
    "numbers": [True, 2, 3.5, 2**63, 2**70, 1j, float("inf")],
    "keys": {1: "int", "1": 2, (3, None): b"", True and 5.0: [()]},
    "an ordered dict": OrderedDict(b=np.arange(2), a=1),
    "fields": Point(np.arange(3), Colour.RED),
    "names": Pair(np.arange(3), Pair(None, "")),
    "nothing": None,
    "empty": [{}, (), [], "", b""],
}


def plain(value: Any) -> Any:
    """Return the types and the content of a value, all the way down, for a comparison."""
    parts: Any = value
    if isinstance(value, np.character):
        parts = value[:]
    elif isinstance(value, np.ndarray | np.generic):
        parts = value.dtype, value.shape, value.tolist()
    elif isinstance(value, Point):
        parts = plain(vars(value))
    elif isinstance(value, dict):
        parts = [(plain(key), plain(child)) for key, child in value.items()]
    elif isinstance(value, tuple | list):
        parts = [*map(plain, value)]
    return type(value), parts


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_sample_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    """With its types; the caller may write to its arrays. The next run has it, too."""
    for cache in (
        ringfeed.Cache(One(SAMPLES[kind]), memory="1MB"),
        ringfeed.Cache(One(SAMPLES[kind]), path=tmp_path / "cache.rf", key="1"),
        ringfeed.Cache(One(SAMPLES[kind]), path=tmp_path / "cache.rf", key="1"),
    ):
        for _ in range(2):
            found = cache[0]
            assert plain(found) == plain(SAMPLES[kind])
            if isinstance(found, np.ndarray):
                found[...] = found.copy()
        assert (cache.stats().hits >= 1, cache.stats().left_out) == (True, 0)


def test_tensors_come_back() -> None:
    """Of any dtype; with a gradient, they are pickled as a whole."""
    torch = pytest.importorskip("torch")
    tensors = torch.arange(6).reshape(2, 3).T, torch.ones(2, dtype=torch.bfloat16), torch.tensor(5)
    cache = ringfeed.Cache(One([*tensors, torch.ones(1, requires_grad=True)]), memory="1MB")
    cache[0]
    found = cache[0]
    assert cache.stats().hits == 1
    assert [one.dtype for one in found] == [torch.int64, torch.bfloat16, torch.int64, torch.float32]
    assert all(torch.equal(one, other) for one, other in zip(found, cache.dataset[0], strict=True))
    assert found[3].requires_grad
    found[0][...] = 0


NAMED = """
import sys
from typing import NamedTuple
import numpy as np
import ringfeed

class Sample(NamedTuple):
    image: np.ndarray
    number: int

class Script:
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return Sample(np.full(4, index), index)

if __name__ == "__main__":
    cache = ringfeed.Cache(Script(), path=sys.argv[1])
    with ringfeed.Loader(cache, batch_size=5, workers=2) as loader:
        for _ in range(2):
            sums = []
            for batch in loader:
                sums.append(batch.image.sum().item())
            print(sums, type(batch) is Sample, len(batch))
    print(cache.stats().misses > 0, cache.stats().left_out)
"""


def test_names_of_a_script(tmp_path: Path) -> None:
    """A class of the main file is another one in each process and run, and its samples are found."""
    (tmp_path / "train.py").write_text(NAMED)
    for misses in (True, False):
        out = subprocess.run(
            [sys.executable, "train.py", "cache.rf"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = "[40, 140, 240, 340] True 2\n" * 2
        assert out.stdout == f"{lines}{misses} 0\n", out.stderr


# ---- datasets that change ----


class Shuffled(Images):
    """Changes its order after each epoch, as many a Keras dataset does."""

    def __init__(self, count: int = COUNT) -> None:
        super().__init__(count)
        self.order = [*range(count)]

    def __getitem__(self, index: int) -> Any:
        return self.image(self.order[index]), self.order[index]

    def on_epoch_end(self) -> None:
        self.order.reverse()


CHANGED = (
    "the dataset has changed since its Cache was made, whose samples are those of before; make a "
    "new Cache, or do what changes in transform=, which comes after it"
)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"backend": "thread"}, {"workers": 1}])
def test_a_hook_that_changes_the_dataset_is_refused(settings: dict[str, Any]) -> None:
    """Also where this process has read samples, which may change what a dataset has."""
    cache = ringfeed.Cache(Shuffled(), memory="1MB")
    with ringfeed.Loader(cache, batch_size=6, **settings) as loader:
        with pytest.raises(ringfeed.StateError) as caught:
            digest(loader, 2)
        assert str(caught.value) == CHANGED


def test_a_dataset_that_counts_its_reading_may() -> None:
    """What reading changes is no change of the samples."""

    class Counts(Images):
        read = 0

        def __getitem__(self, index: int) -> Any:
            self.read += 1
            return super().__getitem__(index)

        def on_epoch_end(self) -> None:
            pass

    assert run(ringfeed.Cache(Counts(), memory="1MB"), workers=0) == run(Counts(), workers=0)


def test_what_is_named_fingerprint_may_be_something_else() -> None:
    """A method of the user's is no fingerprint, of a cache and of a state."""

    class Own(Images):
        fingerprint = 5

        def _fingerprint(self) -> str:
            return "mine"

    cache = ringfeed.Cache(Own(), memory="1MB")
    with ringfeed.Loader(cache, batch_size=6, workers=0) as loader:
        assert "fingerprint" not in json.loads(json.dumps(loader.state_dict()))


def test_a_number_that_the_cache_does_not_have() -> None:
    """Of a dataset that has grown, or from its end: it is read as before, and nothing is written."""
    cache = ringfeed.Cache(Images(), memory="1MB")
    for index in range(COUNT):
        cache[index]
    for index in (COUNT, COUNT + 70, -1, -COUNT - 9):
        if index >= 0:
            np.testing.assert_array_equal(cache[index][0], Images()[index][0])
        else:
            with pytest.raises(ValueError, match="expected non-negative integer"):
                cache[index]  # of the dataset's random numbers
    assert cache.stats()[:5] == (0, COUNT + 4, 2, 0, COUNT)
    for index in range(COUNT):
        np.testing.assert_array_equal(cache[index][0], Images()[index][0])


# ---- caches of caches ----


class Inverted:
    """Samples made of those of a cache."""

    def __init__(self, inner: ringfeed.Cache) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        image, number = self.inner[index]
        return 255 - image, number


def test_a_dataset_may_have_a_cache(tmp_path: Path) -> None:
    """It is its dataset for a fingerprint: of this process, of the next run, however much was read."""
    found = []
    for _ in range(2):
        inner = ringfeed.Cache(Images(), memory="1MB")
        outer = ringfeed.Cache(Inverted(inner), path=tmp_path / "cache.rf")
        inner[3]
        found.append(run(outer))
        assert outer.stats().samples == COUNT
    assert inner.stats().samples == 1
    assert found[0] == found[1] == run(Inverted(ringfeed.Cache(Images(), memory="1MB")))


def test_a_cache_of_a_cache_is_refused() -> None:
    """It has all samples already."""
    with pytest.raises(TypeError) as caught:
        ringfeed.Cache(ringfeed.Cache(Images(), memory="1MB"), memory="2MB")
    assert str(caught.value) == (
        "Cache() of a Cache, which keeps its samples already; give that to the loader"
    )


# ---- files ----


def test_two_datasets_that_make_one_file_at_once_share_no_sample(tmp_path: Path) -> None:
    """The head is that of one of them; neither takes the other's records for its own."""

    class Black(Images):
        def image(self, index: int) -> Any:
            return super().image(index) * 0

    path = tmp_path / "cache.rf"
    first, rank = (ringfeed.Cache(Images(), path=path) for _ in range(2))
    with path.open("r+b") as file:  # as the other has found it
        file.write(bytes(4096))
    second = ringfeed.Cache(Black(), path=path)
    for _ in range(2):
        for index in range(COUNT):
            for cache in (first, rank, second, rank):
                np.testing.assert_array_equal(cache[index][0], cache.dataset[index][0])
    assert second.stats().damaged >= COUNT
    with pytest.raises(ringfeed.StateError, match="has samples of another dataset: its dataset is"):
        ringfeed.Cache(Images(), path=path)


def test_words_of_any_length(tmp_path: Path) -> None:
    """A fingerprint and a key that are longer than the head, and differ at their end alone."""
    dataset = Images()
    dataset.fingerprint = "ü" * 9000  # type: ignore[attr-defined]
    path, key = tmp_path / "cache.rf", "x" * 9000
    ringfeed.Cache(dataset, path=path, key=key)[3]
    cache = ringfeed.Cache(dataset, path=path, key=key)
    cache[3]
    assert cache.stats()[:2] == (1, 0)
    with pytest.raises(ringfeed.StateError, match="its key is"):
        ringfeed.Cache(dataset, path=path, key=f"{key}y")


@pytest.mark.parametrize("key", [5, 0, b"may", ["may"]])
def test_a_key_is_text(key: Any, tmp_path: Path) -> None:
    """Anything else is refused, also without a file."""
    for place in ({"memory": "1MB"}, {"path": tmp_path / "cache.rf"}):
        with pytest.raises(TypeError) as caught:
            ringfeed.Cache(Images(), key=key, **place)
        assert str(caught.value) == f"key={key!r} is no text, as in key='jpegs of May'"
    assert not [*tmp_path.iterdir()]


def test_two_runs_with_different_specs(tmp_path: Path) -> None:
    """A record is a sample of the dataset, whatever a loader makes of it."""
    path = tmp_path / "cache.rf"
    spec = (
        ringfeed.Array((3, 8, 8), "float32", scale=1 / 255, layout="CHW"),
        ringfeed.Array((), "float32", cast=True),
    )
    given: list[dict[str, Any]] = [{}, {"spec": spec}, {"batch_size": 4, "transform": len}]
    with_cache = [run(ringfeed.Cache(Images(), path=path), **one) for one in given]
    assert with_cache == [run(Images(), **one) for one in given]
    assert ringfeed.Cache(Images(), path=path).stats().samples == COUNT


def test_a_file_that_was_removed_goes_on(tmp_path: Path) -> None:
    """For those that have it open; one that comes later makes another."""
    path = tmp_path / "cache.rf"
    cache = ringfeed.Cache(Images(), path=path)
    run(cache)
    path.unlink()
    assert run(cache) == run(Images())
    assert cache.stats().misses < 2 * COUNT
    assert ringfeed.Cache(Images(), path=path).stats().samples == 0


CUT = """
import os
import ringfeed
from cached import Images
cache = ringfeed.Cache(Images(), path={path!r})
for index in range(60):
    cache[index]
os.truncate({path!r}, {size})
print(cache.stats().samples, cache.room(400).of)
try:
    cache.file.map()
    print(cache[59][1])
except ringfeed.StateError as error:
    print(error)
"""
CUT_OFF = "another program has cut off the file of a Cache; remove it, and start again"


@pytest.mark.parametrize(("size", "said"), [(4000, f"0 60\n{CUT_OFF}"), (20_000, "60 60\n59")])
def test_a_file_that_was_cut_off_is_looked_at_without_a_mapping(
    size: int, said: str, tmp_path: Path
) -> None:
    """So the consumer, which says what there is, lives on."""
    out, errors, _ = run_script(CUT.format(path=str(tmp_path / "cache.rf"), size=size))
    assert (out, errors) == (f"{said}\n", "")


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have none: two may write one sample, and each is right."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    cache = ringfeed.Cache(Images(), path=tmp_path / "cache.rf")
    monkeypatch.setattr(files.fcntl, "fcntl", refuse)
    for _ in range(2):
        np.testing.assert_array_equal(cache[5][0], Images()[5][0])
    assert cache.stats()[:5] == (1, 1, 0, 0, 1)


def test_a_sample_too_large_for_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out alone."""

    class Uneven(Images):
        def __getitem__(self, index: int) -> Any:
            return np.zeros(5000 * (index == 3), np.uint8)

    monkeypatch.setattr(files, "MOST", 4000)
    cache = ringfeed.Cache(Uneven(), memory="1MB")
    for _ in range(2):
        assert [len(cache[index]) for index in range(2, 5)] == [0, 5000, 0]
    assert cache.stats()[:5] == (2, 4, 2, 0, 2)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Give what mounts a tmpfs with some options."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    made = []

    def mount(options: str) -> Path:
        words = ["/bin/mount", *(["-t", "tmpfs"] if not made else []), "-o", options, "none"]
        if subprocess.run([*words, tmp_path], check=False).returncode:
            pytest.skip("no mounts here")
        made.append(tmp_path)
        return tmp_path

    yield mount
    if made:
        subprocess.run(["/bin/umount", tmp_path], check=True)


FULL = """
import ringfeed
from cached import Images

try:
    cache = ringfeed.Cache(Images(9000), path={path!r})
except ringfeed.PlanError as error:
    print(error)
else:
    filler = open({path!r} + ".filler", "wb", buffering=0)
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
    for index in range(0, 9000, 50):
        assert cache[index][1] == index
    print(cache.stats().samples, cache.stats().left_out)
"""


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (
            "100k",
            "cannot reserve 295.0 kB of shared memory: No space left on device; give another "
            "path=, or free some of that disk",
        ),
        ("1m", "10 170"),
    ],
)
def test_a_full_disk_in_memory(size: str, said: str, mounted: Any) -> None:
    """The table has no hole: to look at one on a full tmpfs, as /dev/shm, would be a SIGBUS."""
    folder = mounted(f"size={size}")
    out, errors, _ = run_script(FULL.format(path=str(folder / "cache.rf")))
    assert (out, errors) == (f"{said}\n", "")


def test_a_disk_that_is_only_read(mounted: Any) -> None:
    """The kernel's error names the file."""
    folder = mounted("size=1m")
    cache = ringfeed.Cache(Images(), path=folder / "cache.rf")
    cache[3]
    del cache
    mounted("remount,ro")
    with pytest.raises(OSError, match=r"Read-only file system: '.*cache\.rf'"):
        ringfeed.Cache(Images(), path=folder / "cache.rf")


# ---- processes ----


def test_a_child_goes_on_without_its_parent() -> None:
    """Which has made the cache, forked, and ended, as a daemon's parent does."""
    read, write = os.pipe()
    parent = os.fork()
    if not parent:
        cache = ringfeed.Cache(Images(), memory="1MB")
        cache[3]
        me = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == me:
            pass
        cache[3], cache[4]
        with ringfeed.Loader(cache, batch_size=6, workers=1) as loader:
            digest(loader, 2)
        os.write(write, repr(cache.stats()[2:5]).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(parent, 0)
    with os.fdopen(read) as file:
        assert file.read() == f"(0, 0, {COUNT})"


def test_a_process_that_may_not_look_reads_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, or one that has the number of the cache's maker on another machine."""

    def refuse(_: Path) -> None:
        raise PermissionError

    cache = ringfeed.Cache(Images(), memory="1MB")
    cache[3]
    made, given = cache.file.__reduce__()
    monkeypatch.setattr(files.Path, "stat", refuse)
    cache._file = made(*given)
    assert cache[3][1] == 3
    assert cache.stats()[:5] == (0, 1, 1, 0, 0)
