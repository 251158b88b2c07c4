"""Samples that differ in length, in three looks: `python bench/studies/forms.py`, or `--quick` for a short one.

    detection    16 samples a batch, each of a picture and six small arrays (boxes, labels, masks, ...): 112 arrays.
                 They are loaded by ringfeed, ragged, and by torch's DataLoader, both with one worker process; once
                 whole and once without the small arrays. The difference is the time outside the pictures. torch has
                 two ways: "torch" is a collate_fn that makes lists of tensors, as detection models take them, each of
                 which crosses by a file of its own; "joined" is what is quickest there: one tensor of all pictures
                 and one of each kind of small array, with the lengths, shared by torch's strategy "file_system"
    encoded      32 encoded pictures a batch as `Bytes`, without workers, against one copy of the same bytes
    memory       rows of up to 1000 vectors, 100 in the mean: ragged by the longest, ragged with a total, padded in the
                 slot, and padded to the longest by the dataset: bytes planned, bytes touched, time

All in one process, taking turns; ratios are taken within a repetition. Each repetition leaves one
JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the packages of the bench, for a script

import ringfeed
from harness.machine import conditions, versions
from harness.resting import resting
from ringfeed import Array, Bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BENCH = Path(__file__).parents[1]
REPETITIONS = 9
SIDE, PICTURES, MOST_BOXES = 224, 16, 20
ENCODED, LARGEST = 32, 400_000  # bytes
VECTORS, LONGEST, WIDTH = 32, 1000, 16
SMALL = {
    "boxes": ((4,), "float32"),
    "labels": ((), "int64"),
    "masks": ((8, 8), "uint8"),
    "area": ((), "float32"),
    "crowd": ((), "uint8"),
    "keypoints": ((3,), "float32"),
}


class Given:
    """A dataset of samples that are there already."""

    def __init__(self, samples: list[Any], length: int) -> None:
        self.samples = samples
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


def time_of(read: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began_s = time.perf_counter()
    read()
    return time.perf_counter() - began_s


def drain(batches: Iterable[Any]) -> None:
    """Take all batches, one at a time."""
    for batch in batches:
        del batch


# ---- detection ----


def annotated(random: np.random.Generator) -> dict[str, Any]:
    """Return a picture with a few boxes."""
    count = int(random.integers(1, 6))
    picture = {"image": random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)}
    return picture | {
        name: np.ones((count, *shape), dtype) for name, (shape, dtype) in SMALL.items()
    }


def detection_spec() -> dict[str, Array]:
    """Return the spec of such samples."""
    spec = {"image": Array((SIDE, SIDE, 3), "uint8")}
    for name, (shape, dtype) in SMALL.items():
        spec[name] = Array((None, *shape), dtype, max_shape=(MOST_BOXES, *shape), form="ragged")
    return spec


def listed(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch as detection models take it: a list of tensors for each name."""
    import torch  # noqa: PLC0415 - the bench runs without

    return {name: [torch.from_numpy(sample[name]) for sample in samples] for name in samples[0]}


def joined(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch of one tensor for each name, in shared memory, and how long each sample is."""
    import torch  # noqa: PLC0415 - as above
    from torch.utils.data import default_collate  # noqa: PLC0415 - as above

    found = {"image": default_collate([sample["image"] for sample in samples])}
    for name in samples[0].keys() - found.keys():
        found[name] = torch.from_numpy(np.concatenate([sample[name] for sample in samples]))
        found["lengths"] = [len(sample[name]) for sample in samples]
    return found


def share_by_name(_worker: int) -> None:
    """Have a worker's tensors cross by the names of files, of which the consumer opens fewer."""
    import torch  # noqa: PLC0415 - as above

    torch.multiprocessing.set_sharing_strategy("file_system")


def detection(batches: int) -> dict[str, Callable[[], Any]]:
    """Return what loads whole samples, and pictures alone, by ringfeed and by torch where it is there."""
    random = np.random.default_rng(0)
    samples, length = [annotated(random) for _ in range(4 * PICTURES)], batches * PICTURES
    whole = Given(samples, length)
    alone = Given([{"image": sample["image"]} for sample in samples], length)
    spec = detection_spec()
    found: dict[str, Callable[[], Any]] = {}
    for name, dataset, of in (
        ("whole", whole, spec),
        ("pictures", alone, {"image": spec["image"]}),
    ):
        loader = resting(ringfeed.Loader(dataset, batch_size=PICTURES, spec=of, workers=1))
        found[f"ringfeed, {name}"] = lambda loader=loader: drain(loader)  # type: ignore[misc]
    try:
        from torch.utils.data import DataLoader  # noqa: PLC0415 - as above
    except ImportError:
        return found
    for way, collate, init in (("torch", listed, None), ("joined", joined, share_by_name)):
        for name, dataset in (("whole", whole), ("pictures", alone)):
            torch_loader = DataLoader(
                dataset,  # type: ignore[arg-type]
                PICTURES,
                num_workers=1,
                collate_fn=collate,
                persistent_workers=True,
                worker_init_fn=init,
            )
            found[f"{way}, {name}"] = lambda loader=torch_loader: drain(loader)  # type: ignore[misc]
    return found


# ---- encoded ----


def sizes_of(count: int) -> list[int]:
    """Return sizes as those of JPEG files: many of 50 kB, some of many times that."""
    drawn = np.random.default_rng(1).lognormal(np.log(50_000), 0.6, count)
    return [int(size) for size in np.clip(drawn, 1000, LARGEST)]


def encoded(batches: int) -> dict[str, Callable[[], Any]]:
    """Return what loads bytes, and what copies them once."""
    samples = [np.random.default_rng(size).bytes(size) for size in sizes_of(4 * ENCODED)]
    dataset = Given(samples, batches * ENCODED)
    total = max(
        sum(map(len, samples[first : first + ENCODED])) for first in range(0, len(samples), ENCODED)
    )
    loader = ringfeed.Loader(
        dataset, batch_size=ENCODED, spec=Bytes(LARGEST, total=total), workers=0
    )
    slots = [np.zeros(total, np.uint8) for _ in range(loader.plan.slots)]
    views = [np.frombuffer(sample, np.uint8) for sample in samples]

    def copy() -> None:
        for number in range(batches):
            target, end = slots[number % len(slots)], 0
            for sample in range(ENCODED):
                view = views[(number * ENCODED + sample) % len(views)]
                target[end : end + len(view)] = view
                end += len(view)

    return {"Bytes": lambda: drain(loader), "copy": copy}


# ---- memory ----


def vectors() -> list[np.ndarray]:
    """Return samples of which few are long."""
    lengths = np.clip(
        np.random.default_rng(2).exponential(100, 8 * VECTORS).astype(int), 1, LONGEST
    )
    return [np.ones((length, WIDTH), np.float32) for length in lengths]


class Padded(Given):
    """The same, padded by the dataset as where all samples must have one shape."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        found = np.zeros((LONGEST, WIDTH), np.float32)
        found[: len(sample)] = sample
        return found


def memory_loaders(batches: int) -> dict[str, ringfeed.Loader]:
    """Return loaders of the same samples in each form."""
    samples, length = vectors(), batches * VECTORS
    form: dict[str, Any] = {
        "shape": (None, WIDTH),
        "dtype": "float32",
        "max_shape": (LONGEST, WIDTH),
    }
    needed = max(
        sum(map(len, samples[first : first + VECTORS])) for first in range(0, len(samples), VECTORS)
    )
    specs = {
        "ragged": Array(**form, form="ragged"),
        "ragged, total": Array(**form, form="ragged", total=max(needed, LONGEST)),
        "pad": Array(**form, form="pad"),
        "padded by the dataset": Array((LONGEST, WIDTH), "float32"),
    }
    return {
        name: ringfeed.Loader(
            (Given if spec.form else Padded)(samples, length),
            batch_size=VECTORS,
            spec=spec,
            workers=1,
        )
        for name, spec in specs.items()
    }


# ---- all ----


def measure(*, quick: bool, detection_only: bool = False) -> list[dict[str, Any]]:
    """Return a line for each repetition and look: seconds a batch by what loads, and bytes where they are looked at."""
    batches = 4 if quick else 60
    looks = {"detection": detection(batches)}
    loaders = {} if detection_only else memory_loaders(batches)
    if loaders:
        looks["encoded"] = encoded(batches)
        looks["memory"] = {
            name: lambda loader=loader: drain(loader) for name, loader in loaders.items()
        }  # type: ignore[misc]
    found = []
    for repetition in range(2 if quick else REPETITIONS):
        for look, reads in looks.items():
            turns = list(reads.items())
            turns = turns[repetition % len(turns) :] + turns[: repetition % len(turns)]
            for _, read in turns if repetition == 0 else ():
                read()  # workers start
            line = {
                "look": look,
                "repetition": repetition,
                "s": {name: time_of(read) / batches for name, read in turns},
            }
            if look == "memory":
                line["planned"] = {
                    name: loader.plan.slots * loader.plan.slot_size
                    for name, loader in loaders.items()
                }
                line["touched"] = {name: touched(loader) for name, loader in loaders.items()}
            found.append(line)
    return found


def touched(loader: ringfeed.Loader) -> int:
    """Return the bytes of what a loader has reserved that some process has in its page tables."""
    memory = loader.stats().memory
    return 0 if memory is None else memory.resident or 0


def show(records: list[dict[str, Any]]) -> str:
    """Return a line for each figure."""

    def of(look: str, figure: Callable[[dict[str, Any]], float]) -> float:
        return median(figure(record["s"]) for record in records if record["look"] == look)

    lines = []
    outside = of("detection", lambda s: s["ringfeed, whole"] - s["ringfeed, pictures"])
    lines.append(f"detection: {1e3 * outside:.3f} ms a batch outside the pictures with ringfeed")
    ways = [
        way
        for way in ("torch", "joined")
        if any(f"{way}, whole" in record["s"] for record in records)
    ]
    for way in ways:
        theirs = of("detection", lambda s, way=way: s[f"{way}, whole"] - s[f"{way}, pictures"])  # type: ignore[misc]
        ratio = of("detection", lambda s, way=way: s[f"{way}, whole"] / s["ringfeed, whole"])  # type: ignore[misc]
        name = {"torch": "torch, lists of tensors", "joined": "torch, joined"}[way]
        lines[-1] += (
            f"; {name}: {1e3 * theirs:.3f}, and whole batches take {ratio:.1f} times as long"
        )
    if {record["look"] for record in records} == {"detection"}:
        return lines[0]
    lines.append(f"encoded: {of('encoded', lambda s: s['Bytes'] / s['copy']):.2f} of one copy")
    last = [record for record in records if record["look"] == "memory"][-1]
    base = "padded by the dataset"
    for name in last["planned"]:
        shares = [last[what][name] / last[what][base] for what in ("planned", "touched")]
        times = of("memory", lambda s, name=name: s[name] / s[base])  # type: ignore[misc]
        lines.append(
            f"memory: {name:22} planned {shares[0]:.2f}  touched {shares[1]:.2f}  time {times:.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, append to the results and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two repetitions of four batches")
    parser.add_argument(
        "--out", type=Path, default=BENCH / "results" / f"forms-{time.strftime('%Y-%m-%d')}.jsonl"
    )
    parser.add_argument("--detection", action="store_true", help="that look alone")
    options = parser.parse_args()
    facts = {**conditions(quick=options.quick), "versions": versions((("torch", ""),))}
    records = [
        {**facts, **found}
        for found in measure(quick=options.quick, detection_only=options.detection)
    ]
    with options.out.open("a") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    print(show(records))


if __name__ == "__main__":
    main()
