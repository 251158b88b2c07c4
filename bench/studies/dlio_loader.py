"""ringfeed as a data loader of DLIO, for `data_loader_classname`: `dlio.py` runs it beside DLIO's own.

DLIO makes the loader once, calls `read` before the first epoch, walks `next` in each epoch and
calls `finalize` after each. The workers read by the reader that DLIO has for the format, as the
workers of its torch loader do, and the loop gets tensors, as from torch. One rank alone: DLIO gives
each rank a run of samples, which is another share than `ringfeed.Shard` has.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.reader.reader_factory import ReaderFactory

import ringfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


# DLIO's `multiprocessing_context` is "fork" unless it is given. DLIO's reader imports torch, which a
# forked worker has.
BACKENDS = {"fork": "fork", "forkserver": "process", "spawn": "spawn"}


class Samples:
    """The samples of DLIO's reader by number; each worker has a reader of its own."""

    def __init__(self, loader: RingfeedLoader) -> None:
        self.count = loader.num_samples
        self.format_type, self.epoch = loader.format_type, loader.epoch_number
        self.validation = loader.dataset_type is DatasetType.VALID
        # As bytes: DLIO's settings replace those of the process in which they are unpickled.
        self.settings = pickle.dumps(loader._args)  # noqa: SLF001 - what DLIO's own loaders use
        self.reader: Any = None

    def __len__(self) -> int:
        return self.count

    def open_reader(self, worker: int) -> None:
        """Make the reader of this worker, under the settings of the process that trains."""
        pickle.loads(self.settings)  # noqa: S301 - our own bytes
        kind = DatasetType.VALID if self.validation else DatasetType.TRAIN
        self.reader = ReaderFactory.get_reader(self.format_type, kind, worker, self.epoch)

    def __getitem__(self, index: int) -> np.ndarray:
        if self.reader is None:
            self.open_reader(ringfeed.worker_info().id)
        return self.reader.read_index(index, 1)


class RingfeedLoader(BaseDataLoader):  # type: ignore[misc]
    """A `ringfeed.Loader` with as many workers as DLIO has `read_threads`.

    The slots are `prefetch_size` and one, since the batch that the loop holds has a slot too.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.PYTORCH)
        self.loader: Any = None

    def read(self) -> None:
        """Make the loader; DLIO calls this once."""
        if self._args.comm_size != 1:
            raise NotImplementedError(f"one rank, not {self._args.comm_size}")
        one = self._args.resized_image  # what each of DLIO's readers returns for every sample
        self.loader = ringfeed.Loader(
            Samples(self),
            batch_size=self.batch_size,
            drop_remainder=True,
            workers=self._args.read_threads,
            slots=self._args.prefetch_size + 1,
            spec=ringfeed.Array(one.shape, one.dtype),
            backend=BACKENDS[self._args.multiprocessing_context],
        )

    def next(self) -> Iterator[Any]:
        """Return the batches of one epoch."""
        return iter(self.loader.to_torch())

    def finalize(self) -> None:
        """Keep the loader: DLIO calls this after each epoch, and the next epoch uses it again."""
