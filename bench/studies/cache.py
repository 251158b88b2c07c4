"""Photographs that are decoded once: `python bench/studies/cache.py`, or `--quick` for a short look.

2,048 JPEG files of 500 x 375, as of photographs.py, become 224 x 224 uint8 with a label. Each
contender gives one epoch that fills its cache, and then twenty (without a cache one), in a fresh process with two
workers; contenders take turns, and each repetition begins with another one. The consumer looks at a
part of each picture.

    whole_s        the first epoch, from making the loader on
    first_s        the same from its first batch on
    second_s       the one after it
    later_s        the median of the epochs after that
    memory_mb      proportional set size of all processes, at the end
    cache_mb       what the cache takes, and planned_mb what the plan said before
    digest         of the sums of all batches of an epoch in order; in all epochs of all loaders one

"an array" is the decoded photographs in memory, as the dataset. "a file, next run" finds the file
of another process. Grain keeps samples in the consumer's own process and gives them in the order of
its first epoch for ever. TurboLoader's own threads decode all files of a tar into a .tbl file before
the first epoch, which gives float32 in batches of four times as many bytes.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from itertools import chain, count, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

from harness.proctree import descendants, memory_of_tree
from harness.turns import installed, parser_of, said_by
from report import report
from report.results import Results
from studies.photographs import take_turns_over_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SIDE, BATCH, WORKERS, SLOTS = 224, 64, 2, 8
EPOCHS, QUICK_EPOCHS, MOST_S = 21, 3, 600
CASE = "photographs, once decoded"
RIVALS = ("tensorflow", "grain", "turboloader")


class Photographs:
    """The files of a folder, decoded and resized by Pillow."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.jpg")))

    def __len__(self) -> int:
        """Files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """Read, decode and resize a file."""
        from PIL import Image  # noqa: PLC0415 - the workers need it

        picture = Image.open(self.paths[index])
        return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)), index


def loader_of(dataset: Any, **settings: Any) -> Iterator[Iterable[Any]]:
    """Give the epochs of a loader."""
    import ringfeed  # noqa: PLC0415 - the rivals' processes do not need it

    given = {"batch_size": BATCH, "shuffle": True, "workers": WORKERS, "slots": SLOTS, **settings}
    with ringfeed.Loader(dataset, **given) as loader:
        while True:
            yield loader


def cached(folder: Path, facts: dict[str, Any], **where: Any) -> Iterator[Iterable[Any]]:
    """Give the epochs of a loader of a cache, and note what it takes."""
    import ringfeed  # noqa: PLC0415 - as above

    cache = ringfeed.Cache(Photographs(folder), **where)
    room = cache.room(SIDE * SIDE * 3)
    for number, epoch in enumerate(loader_of(cache)):
        if number == 1:
            room = room if room.samples < len(cache) else cache.room(0)
        stats = cache.stats()
        facts |= {"planned_mb": room.size / 1e6, "cache_mb": stats.size / 1e6}
        facts |= {"misses": stats.misses, "held": stats.samples}
        yield epoch


def without(folder: Path, _: dict[str, Any]) -> Iterator[Iterable[Any]]:
    """Decode in every epoch."""
    return loader_of(Photographs(folder))


def in_memory(folder: Path, facts: dict[str, Any]) -> Iterator[Iterable[Any]]:
    """Keep the samples in memory."""
    return cached(folder, facts, memory="4GB")


def in_file(folder: Path, facts: dict[str, Any]) -> Iterator[Iterable[Any]]:
    """Keep the samples in a new file."""
    path = folder / "cache.rf"
    path.unlink(missing_ok=True)
    return cached(folder, facts, path=path)


def next_run(folder: Path, facts: dict[str, Any]) -> Iterator[Iterable[Any]]:
    """Find the samples of the file that another process has filled."""
    _fill("a file", folder)
    return cached(folder, facts, path=folder / "cache.rf")


def _fill(name: str, folder: Path) -> None:
    said_by(__file__, ["--folder", str(folder), "--epochs", "2", "--one", name], MOST_S)


def array(folder: Path, _: dict[str, Any]) -> Iterator[Iterable[Any]]:
    """Decode all before the loader is made."""
    dataset = Photographs(folder)
    images = np.stack([dataset[index][0] for index in range(len(dataset))])
    return loader_of((images, np.arange(len(dataset))))


def tf_data(folder: Path, _: dict[str, Any], *, kept: str = "") -> Iterator[Iterable[Any]]:
    """Let tf.data keep what its own ops have decoded, and shuffle it anew."""
    import tensorflow as tf  # noqa: PLC0415 - the contenders that need it import it

    def decoded(path: Any, index: Any) -> Any:
        picture = tf.io.decode_jpeg(tf.io.read_file(path), dct_method="INTEGER_ACCURATE")
        return tf.cast(tf.image.resize(picture, (SIDE, SIDE)), tf.uint8), index

    paths = Photographs(folder).paths
    dataset = tf.data.Dataset.from_tensor_slices((paths, np.arange(len(paths))))
    dataset = dataset.map(decoded, num_parallel_calls=WORKERS)
    dataset = dataset.cache(str(folder / kept) if kept else "")
    dataset = dataset.shuffle(len(paths), reshuffle_each_iteration=True).batch(BATCH)
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    while True:
        yield dataset.as_numpy_iterator()


def tf_data_file(folder: Path, facts: dict[str, Any]) -> Iterator[Iterable[Any]]:
    """Let tf.data write a new file."""
    for path in folder.glob("tf.*"):
        path.unlink()
    return tf_data(folder, facts, kept="tf")


def tf_data_next_run(folder: Path, facts: dict[str, Any]) -> Iterator[Iterable[Any]]:
    """Let tf.data find the file that another process has written."""
    _fill("tf.data, a file", folder)
    return tf_data(folder, facts, kept="tf")


def grain_data(folder: Path, _: dict[str, Any]) -> Iterator[Iterable[Any]]:
    """Let Grain keep what its threads have decoded: in this process, and in one order for ever."""
    from absl import flags  # noqa: PLC0415 - as above
    from grain import MapDataset, ReadOptions  # noqa: PLC0415 - as above
    from grain.experimental import CacheIterDataset  # noqa: PLC0415 - as above

    flags.FLAGS.mark_as_parsed()
    samples = MapDataset.source(Photographs(folder)).shuffle(seed=0)
    kept = iter(CacheIterDataset(samples.to_iter_dataset(ReadOptions(num_threads=WORKERS))))
    while True:
        yield grain_batches(kept)
        # Its own state begins it again, and its elements stay.
        kept.set_state({**kept.get_state(), "position": 0})


def grain_batches(kept: Iterator[Any]) -> Iterator[Any]:
    """Make batches of the samples of one epoch."""
    while samples := [*islice(kept, BATCH)]:
        yield np.stack([image for image, _ in samples]), [label for _, label in samples]


def turboloader(folder: Path, _: dict[str, Any]) -> Iterator[Iterable[Any]]:
    """Decode all into a .tbl file, and have TurboLoader map that."""
    from turboloader import TblRawImageLoader, preprocess_to_tbl  # noqa: PLC0415 - as above

    path = folder / "photographs.tbl"
    path.unlink(missing_ok=True)
    preprocess_to_tbl(str(folder / "photographs.tar"), path, SIDE, num_workers=WORKERS)
    loader = TblRawImageLoader(path, BATCH, mean=None, std=None, channels_last=True)
    for epoch in count():
        loader.set_epoch(epoch)
        yield ((images, facts["indices"]) for images, facts in loader)


ALL: dict[str, Callable[[Path, dict[str, Any]], Iterator[Iterable[Any]]]] = {
    "no cache": without,
    "in memory": in_memory,
    "a file": in_file,
    "a file, next run": next_run,
    "an array": array,
    "tf.data, in memory": tf_data,
    "tf.data, a file": tf_data_file,
    "tf.data, a file, next run": tf_data_next_run,
    "Grain": grain_data,
    "TurboLoader": turboloader,
}
PACKAGES = {"tf.data": "tensorflow", "Grain": "grain.experimental", "TurboLoader": "turboloader"}


def seen_of(images: Any) -> float:
    """Return the sum of one value in a thousand of a batch, of each picture some."""
    return float(np.asarray(images)[:, ::32, ::32].sum(dtype=np.float64))


def run_contender(name: str, folder: Path, epochs: int) -> dict[str, Any]:
    """Measure one contender in this process."""
    facts: dict[str, Any] = {}
    importlib.import_module(PACKAGES.get(name.partition(",")[0], "ringfeed"))
    made, times = ALL[name](folder, facts), []
    digests = []
    whole_s, made_at = 0.0, time.perf_counter()
    for _ in range(2 if name == "no cache" else epochs):
        walk = iter(next(made))
        first = next(walk)
        began = time.perf_counter()
        labels, total = [], 0.0
        for images, numbers in chain([first], walk):
            total += seen_of(images)
            labels += np.asarray(numbers).tolist()
        times.append(time.perf_counter() - began)
        whole_s = whole_s or time.perf_counter() - made_at
        del first
        digests.append(hashlib.sha256(f"{total} {sorted(labels)}".encode()).hexdigest()[:8])
    memory = sum(memory_of_tree([os.getpid(), *descendants(os.getpid())]))
    next(made)
    return facts | {
        "whole_s": whole_s,
        "first_s": times[0],
        "second_s": times[1],
        "later_s": median(times[2:]) if times[2:] else times[1],
        "memory_mb": memory / 1e6,
        "digest": " ".join(sorted({*digests})),
    }


SHOWN: dict[str, tuple[str, float, str]] = {
    "whole_s": ("first epoch, whole", 1, "{:.2f} s"),
    "first_s": ("from its first batch", 1, "{:.2f} s"),
    "second_s": ("second epoch", 1e3, "{:.0f} ms"),
    "later_s": ("later epochs", 1e3, "{:.0f} ms"),
    "memory_mb": ("memory", 1, "{:,.0f} MB"),
    "cache_mb": ("the cache", 1, "{:,.1f} MB"),
    "planned_mb": ("planned", 1, "{:,.1f} MB"),
}


def table(records: list[dict[str, Any]]) -> str:
    """Return the medians, and whether all epochs of a contender had one content."""
    results = Results(records)
    rows = []
    for name in results.contenders(CASE):
        row = [name]
        for key, (_, factor, shown) in SHOWN.items():
            found = results.median(CASE, name, key)
            row.append("-" if found is None else shown.format(found * factor))
        digests = {*results.values(CASE, name, "digest").values()}
        rows.append([*row, "yes" if len(digests) == 1 and " " not in min(digests) else "no"])
    heads = [head for head, *_ in SHOWN.values()]
    return report.table(["", *heads, "the same in all epochs"], rows)


def main() -> None:
    """Let all contenders take turns."""
    parser = parser_of(__doc__, ALL)
    parser.add_argument("--epochs", type=int)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run_contender(*asked.one, asked.folder, asked.epochs)), flush=True)
        os._exit(0)  # some rivals' threads do not end
    asked.epochs = asked.epochs or (QUICK_EPOCHS if asked.quick else EPOCHS)
    names = [
        name
        for name in asked.contender
        if installed([PACKAGES.get(name.partition(",")[0], "ringfeed")])
    ]
    print(table(take_turns_over_files(__file__, asked, {CASE: names}, RIVALS, MOST_S)))


if __name__ == "__main__":
    main()
