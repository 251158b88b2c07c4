"""The contenders of `photographs.py`: each gives epochs of batches of augmented photographs, at its documented best.

A contender is a function of the folder with the files and of the batch size, in a process of its own. It returns a
function of the epoch's number that gives the batches: float32 of the shape (batch size, 3, 224, 224), and
the numbers of their files. All augment alike: a random part of 8 to 100 % of the area with a
proportion of 3/4 to 4/3, resized to 224 x 224, flipped in one half, less the mean over the
deviation.

`WHOLE` decodes each file whole, as what users write in Python does. `PART` decodes little more than
the part that is kept, which is less work.
"""

from __future__ import annotations

import math
import os
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SIDE, WORKERS, SLOTS, SEED = 224, 2, 8, 7
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
# What each of the 256 values of a channel becomes: one look-up in place of three operations.
TABLE = (np.arange(256, dtype=np.float32) / 255 - MEAN[:, None]) / DEVIATION[:, None]


def random_box(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a random part, as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = rng.integers(0, width - wide + 1), rng.integers(0, height - high + 1)
            return int(left), int(top), wide, high
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def decode_whole(file: bytes, rng: np.random.Generator) -> np.ndarray:
    """Return a random part of the picture, which simplejpeg decodes whole."""
    import simplejpeg  # noqa: PLC0415 - the contenders that need it import it in their workers

    picture = simplejpeg.decode_jpeg(file)
    left, top, wide, high = random_box(rng, picture.shape[1], picture.shape[0])
    part: np.ndarray = picture[top : top + high, left : left + wide]
    return part


def decode_part(file: bytes, rng: np.random.Generator) -> np.ndarray:
    """Return a random part of the picture; TurboLoader's decoder reads the rows and columns around it alone."""
    import _turboloader  # noqa: PLC0415 - the package around it imports torch
    import simplejpeg  # noqa: PLC0415

    height, width, *_ = simplejpeg.decode_jpeg_header(file)
    left, top, wide, high = random_box(rng, width, height)
    strip, start, *_ = _turboloader.decode_jpeg_region(file, width, height, left, top, wide, high)
    part: np.ndarray = strip[:, left - start : left - start + wide]
    return part


def write_part(file: bytes, rng: np.random.Generator, out: np.ndarray, decode: Any) -> None:
    """Decode a part of the picture, resize, flip and normalise it by OpenCV, and write it to `out`."""
    import cv2  # noqa: PLC0415

    cv2.setNumThreads(1)
    square = cv2.resize(decode(file, rng), (SIDE, SIDE))
    if rng.random() < 0.5:  # noqa: PLR2004
        square = cv2.flip(square, 1)
    for channel, plane in enumerate(cv2.split(square)):
        cv2.LUT(plane, TABLE[channel], out[channel])


def write_by_pillow(file: bytes, rng: np.random.Generator, out: np.ndarray) -> None:
    """The same by Pillow and NumPy."""
    import io  # noqa: PLC0415

    from PIL import Image  # noqa: PLC0415

    picture = Image.open(io.BytesIO(file)).convert("RGB")
    left, top, wide, high = random_box(rng, picture.width, picture.height)
    box = (left, top, left + wide, top + high)
    square = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
    if rng.random() < 0.5:  # noqa: PLR2004
        square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.asarray(square)
    for channel in range(3):
        np.take(TABLE[channel], pixels[:, :, channel], out=out[channel], mode="clip")


by_simplejpeg = partial(write_part, decode=decode_whole)
by_turboloader = partial(write_part, decode=decode_part)


class Photographs:
    """The files of a folder as a dataset: `dataset[i]` is an augmented photograph and the number of its file.

    The random numbers of a sample are a function of its number alone, so that each loader gets the
    same pictures from it.
    """

    def __init__(self, folder: Path, write: Any = by_simplejpeg) -> None:
        self.paths = [str(path) for path in sorted(folder.glob("*.jpg"))]
        self.write = write

    def __len__(self) -> int:
        """Count the files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        """Return the sample in memory of its own."""
        out = np.empty((3, SIDE, SIDE), np.float32)
        self.write_to(index, out)
        return out, index

    def write_to(self, index: int, out: np.ndarray) -> None:
        """Write the picture to memory."""
        rng = np.random.default_rng((SEED, index))
        self.write(Path(self.paths[index]).read_bytes(), rng, out)


class PhotographsIntoSlots(Photographs):
    """The same; each sample is written where its batch lies."""

    def read_into(self, index: int, out: Any) -> None:
        """Write the sample into its row of the slot."""
        self.write_to(index, out[0])
        out[1][...] = index


def ringfeed_loader(
    folder: Path, batch_size: int, *, write: Any = by_simplejpeg, into: bool = True, **settings: Any
) -> Any:
    """Return ringfeed's epochs; samples are written into slots, or copied there."""
    import ringfeed  # noqa: PLC0415

    dataset = (PhotographsIntoSlots if into else Photographs)(folder, write)
    loader = ringfeed.Loader(
        dataset,
        **{
            "batch_size": batch_size,
            "shuffle": True,
            "seed": SEED,
            "workers": WORKERS,
            "slots": SLOTS,
        }
        | settings,
    )

    def epoch(_number: int) -> Iterator[tuple[Any, Any]]:
        yield from loader

    return epoch


def bare_processes(folder: Path, batch_size: int) -> Any:
    """Return epochs of as many processes as there are workers, which decode and hand nothing over.

    This is the bound for a loader whose samples are decoded by this code in so many processes.
    """
    files = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
    out = np.empty((batch_size, 3, SIDE, SIDE), np.float32)

    def work(worker: int) -> None:
        for place, index in enumerate(range(worker, len(files), WORKERS)):
            rng = np.random.default_rng((SEED, index))
            by_simplejpeg(files[index], rng, out[place % batch_size])

    def epoch(_number: int) -> Iterator[tuple[Any, Any]]:
        children = []
        for worker in range(WORKERS):
            child = os.fork()
            if not child:
                work(worker)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        yield out, range(len(files))

    return epoch


def torch_loader(folder: Path, batch_size: int, write: Any = by_simplejpeg) -> Any:
    """Return epochs of torch's DataLoader with persistent workers, four batches ahead each."""
    import torch  # noqa: PLC0415

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        Photographs(folder, write),  # type: ignore[arg-type] # a dataset by its methods
        batch_size=batch_size,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        prefetch_factor=4,
        generator=torch.Generator().manual_seed(SEED),
    )
    return lambda _number: ((images, labels) for images, labels in loader)


def keras_threads(folder: Path, batch_size: int) -> Any:
    """Return epochs of the enqueuer behind Keras' `fit`, with threads, its default."""
    import keras  # noqa: PLC0415
    from keras.src.trainers.data_adapters.py_dataset_adapter import (  # noqa: PLC0415
        OrderedEnqueuer,
    )

    photographs = Photographs(folder)
    order = np.random.default_rng(SEED).permutation(len(photographs))

    class Batches(keras.utils.PyDataset):  # type: ignore[misc] # keras has no types
        def __len__(self) -> int:
            return len(photographs) // batch_size

        def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
            chosen = order[number * batch_size : (number + 1) * batch_size]
            return np.stack([photographs[int(index)][0] for index in chosen]), chosen

    settings = {"workers": WORKERS, "use_multiprocessing": False, "max_queue_size": 10}
    batches = Batches(**settings)
    enqueuer = OrderedEnqueuer(batches, **settings)

    def epoch(_number: int) -> Iterator[Any]:
        enqueuer.start()
        yield from islice(enqueuer.get(), len(batches))
        enqueuer.stop()

    return epoch


def grain_loader(folder: Path, batch_size: int) -> Any:
    """Return epochs of Grain's MapDataset with worker processes, without threads in them."""
    import grain  # noqa: PLC0415
    from absl import flags  # noqa: PLC0415

    flags.FLAGS.mark_as_parsed()
    photographs = Photographs(folder)
    reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    sharing = grain.MultiprocessingOptions(WORKERS, SLOTS // WORKERS)
    dataset = (
        grain.MapDataset.source(photographs).seed(SEED).shuffle().repeat().batch(batch_size)
    ).to_iter_dataset(reading)
    walk = iter(dataset.mp_prefetch(sharing))
    count = len(photographs) // batch_size
    return lambda _number: (next(walk) for _ in range(count))


def turboloader_loader(folder: Path, batch_size: int) -> Any:
    """Return epochs of TurboLoader's fused path, over the same files in a tar."""
    import turboloader  # noqa: PLC0415

    loader = turboloader.DataLoader(
        str(folder / "photographs.tar"),
        batch_size=batch_size,
        num_workers=WORKERS,
        image_size=SIDE,
        output_format="pytorch",
        shuffle=True,
        train_aug=True,
        transform=turboloader.ImageNetNormalize(),
    )

    def epoch(number: int) -> Iterator[Any]:
        loader.set_epoch(number)
        for images, facts in loader:
            yield images, facts["indices"]

    return epoch


def tf_data(folder: Path, batch_size: int) -> Any:
    """Return epochs of tf.data: decode the part alone, a map in parallel, a private pool of two threads."""
    import tensorflow as tf  # noqa: PLC0415

    tf.random.set_seed(SEED)
    paths = [str(path) for path in sorted(folder.glob("*.jpg"))]

    def augmented(path: Any, index: Any) -> Any:
        content = tf.io.read_file(path)
        start, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(content),
            bounding_boxes=tf.zeros([1, 0, 4]),
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([start[:2], size[:2]], 0)
        picture = tf.image.decode_and_crop_jpeg(content, window, channels=3)
        square = tf.image.random_flip_left_right(tf.image.resize(picture, [SIDE, SIDE]))
        normal = (square / 255.0 - MEAN) / DEVIATION
        return tf.transpose(normal, [2, 0, 1]), index

    options = tf.data.Options()
    options.threading.private_threadpool_size = WORKERS
    options.deterministic = True
    dataset = (
        tf.data.Dataset.from_tensor_slices((paths, range(len(paths))))
        .shuffle(len(paths), seed=SEED)
        .map(augmented, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )
    return lambda _number: dataset.as_numpy_iterator()


def dali_pipeline(folder: Path, batch_size: int) -> Any:
    """Return epochs of DALI on the CPU: decode the part alone, two threads."""
    from nvidia.dali import fn, pipeline_def, types  # noqa: PLC0415

    @pipeline_def(batch_size=batch_size, num_threads=WORKERS, device_id=None, seed=SEED)  # type: ignore[untyped-decorator]
    def photographs() -> Any:
        files, labels = fn.readers.file(
            files=[str(path) for path in sorted(folder.glob("*.jpg"))],
            random_shuffle=True,
            name="files",
        )
        part = fn.decoders.image_random_crop(
            files, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        square = fn.resize(part, size=[SIDE, SIDE], antialias=False)
        normal = fn.crop_mirror_normalize(
            square,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[*(MEAN * 255)],
            std=[*(DEVIATION * 255)],
            mirror=fn.random.coin_flip(),
        )
        return normal, labels

    pipeline = photographs()
    pipeline.build()
    count = len([*folder.glob("*.jpg")]) // batch_size

    def epoch(_number: int) -> Iterator[Any]:
        for _ in range(count):
            images, labels = pipeline.run()
            yield images.as_array(), labels.as_array()[:, 0]

    return epoch


def spdl_epochs(folder: Path, batch_size: int, kind: str) -> Any:
    """Return epochs of SPDL: a pipeline of threads, or processes that write batches into a pool of segments."""
    from spdl.pipeline import (  # noqa: PLC0415
        PipelineBuilder,
        SharedMemorySegmentPool,
        iterate_in_subprocess,
    )

    count = len([*folder.glob("*.jpg")])
    if kind == "threads":
        photographs = Photographs(folder)
        order = np.random.default_rng(SEED).permutation(count)

        def batch_of(chosen: list[int]) -> tuple[np.ndarray, list[int]]:
            return np.stack([photographs[int(index)][0] for index in chosen]), chosen

        def epoch(_number: int) -> Iterator[Any]:
            pipeline = (
                PipelineBuilder()
                .add_source(order.tolist())
                .aggregate(batch_size, drop_last=True)
                .pipe(batch_of, concurrency=WORKERS, output_order="input")
                .add_sink(4)
                .build(num_threads=WORKERS)
            )
            with pipeline.auto_stop():
                yield from pipeline.get_iterator()

        return epoch
    producers = WORKERS if kind == "pools" else 1
    size = batch_size * 3 * SIDE * SIDE * 4 + batch_size * 8 + 4096
    walks = [
        iterate_in_subprocess(
            partial(Share, folder, batch_size, number, producers),
            buffer_size=max(1, SLOTS // producers - 2),
            mp_context="fork",
            arena=SharedMemorySegmentPool(size, max(3, SLOTS // producers)),
        )
        for number in range(producers)
    ]

    def in_turn(_number: int) -> Iterator[Any]:
        running = [iter(walk) for walk in walks]
        for place in range(count // batch_size):
            yield next(running[place % producers])
        for walk in running:
            next(walk, None)  # its epoch ends here

    return in_turn


class Share:
    """Each n-th batch of an epoch, as a process of SPDL makes them."""

    def __init__(self, folder: Path, batch_size: int, first: int, step: int) -> None:
        self.folder, self.batch_size, self.first, self.step = folder, batch_size, first, step

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        photographs = Photographs(self.folder)
        order = np.random.default_rng(SEED).permutation(len(photographs))
        for number in range(self.first, len(order) // self.batch_size, self.step):
            chosen = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield np.stack([photographs[int(index)][0] for index in chosen]), chosen


WHOLE: dict[str, Callable[[Path, int], Callable[[int], Iterable[Any]]]] = {
    "ringfeed": ringfeed_loader,
    "ringfeed, Pillow": partial(ringfeed_loader, write=write_by_pillow),
    "ringfeed, samples copied": partial(ringfeed_loader, into=False),
    "ringfeed, threads": partial(ringfeed_loader, backend="thread"),
    "ringfeed, one process of 2 threads": partial(ringfeed_loader, workers=1, concurrency=2),
    "two bare processes": bare_processes,
    "SPDL, a process and a pool for each worker": partial(spdl_epochs, kind="pools"),
    "SPDL, one process with a pool": partial(spdl_epochs, kind="pool"),
    "SPDL, threads": partial(spdl_epochs, kind="threads"),
    "Keras, threads": keras_threads,
    "torch": torch_loader,
    "torch, Pillow": partial(torch_loader, write=write_by_pillow),
    "Grain": grain_loader,
}
PART: dict[str, Callable[[Path, int], Callable[[int], Iterable[Any]]]] = {
    "ringfeed, the part alone": partial(ringfeed_loader, write=by_turboloader),
    "TurboLoader": turboloader_loader,
    "DALI, CPU": dali_pipeline,
    "tf.data": tf_data,
}
ALL = WHOLE | PART
# What a contender imports before it is timed, and needs.
PACKAGES = {
    "ringfeed": ("ringfeed", "simplejpeg", "cv2"),
    "two bare": ("simplejpeg", "cv2"),
    "SPDL": ("spdl.pipeline", "simplejpeg", "cv2"),
    "Keras": ("keras", "simplejpeg", "cv2"),
    "torch": ("torch", "simplejpeg", "cv2"),
    "Grain": ("grain", "simplejpeg", "cv2"),
    "TurboLoader": ("turboloader",),
    "DALI": ("nvidia.dali",),
    "tf.data": ("tensorflow",),
    "ringfeed, Pillow": ("ringfeed", "PIL"),
    "torch, Pillow": ("torch", "PIL"),
    "ringfeed, the part alone": ("ringfeed", "simplejpeg", "cv2", "_turboloader"),
}


def packages_of(name: str) -> tuple[str, ...]:
    """Return the packages of a contender: those of its longest prefix in the table."""
    return PACKAGES[max((start for start in PACKAGES if name.startswith(start)), key=len)]
