"""A batch of any structure in one array of bytes, for what has no place in a slot leaf by leaf.

    head │ pickle │ tensor 0 │ array 1 │ ...       each from a multiple of 64 bytes on

A worker writes it (`Batches`), the consumer reads it where it lies (`read`): tensors and arrays are
parts of the slot, and all else comes out of the pickle. Imports no torch.
"""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import sys
from collections import deque
from contextlib import contextmanager
from hashlib import blake2b
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringfeed.system._system import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ringfeed.spec.array import AnyArray
    from ringfeed.torch.samples import Samples

NOTE = "in a worker process of ringfeed's DataLoader: "
ALIGNMENT = 64
WORD = 8  # bytes of a number in the head
SPARE = 8  # times the memory of a tensor's elements that its storage may have, to go as a whole


class Apart(NamedTuple):
    """In the place of a batch, or of a list of indices: the name of the memory that has it."""

    path: str


class Aparts:
    """Makes memory for what the ring has no room for, and keeps what was made last."""

    def __init__(self, most: int) -> None:
        """``most``: how many may wait until another process opens them; older ones are closed."""
        self._kept: deque[Descriptor] = deque(maxlen=most)

    def put(self, parts: Sequence[AnyArray]) -> Apart:
        """Write the parts of something into memory of its own."""
        memory, size = Descriptor(os.memfd_create, "ringfeed-batch", os.MFD_CLOEXEC), size_of(parts)
        os.ftruncate(memory.fileno(), size)
        write(parts, np.frombuffer(mmap.mmap(memory.fileno(), size), np.uint8))
        self._kept.append(memory)
        return Apart(f"/proc/{os.getpid()}/fd/{memory.fileno()}")


class UnsendableError(Exception):
    """A batch cannot be pickled, by torch neither; says why."""


class DeviceError(UnsendableError):
    """A batch has a tensor in the memory of a device, which torch can share."""


# ---- in a worker ----


class Batches:
    """Has ``collate_fn`` make batches, and makes bytes of them."""

    # Elements of an iterable that fills the same memory again, too, as torch does.
    takes_as_given = True

    def __init__(
        self,
        collate_fn: Callable[[Any], Any] | None,
        rows: int,
        room: int,
        slots: int,
        *,
        alone: bool,
    ) -> None:
        """A batch is an array of ``rows`` rows of ``room`` bytes at most; the ring has ``slots``.

        ``alone``: what the dataset gives is no part of a batch.
        """
        self.collate_fn = collate_fn
        self.rows, self.room = rows, room
        self.alone = alone
        self._memory = np.empty(0, np.uint8)
        self._apart = Aparts(slots)

    def __call__(self, samples: list[Any]) -> AnyArray:
        """Return the bytes of a batch."""
        found = samples[0] if self.alone else samples
        if self.collate_fn is not None:
            found = self.collate_fn(found)
        return self._in_rows(parts_of(found))

    def _in_rows(self, parts: Sequence[AnyArray]) -> AnyArray:
        size = size_of(parts)
        if size > self.room * self.rows:
            parts = parts_of(self._apart.put(parts))
            size = size_of(parts)
        each = -(-size // self.rows)
        if len(self._memory) < each * self.rows:
            # It stays, since fresh pages cost more than the copy.
            self._memory = np.empty(each * self.rows, np.uint8)
        write(parts, self._memory)
        return self._memory[: each * self.rows].reshape(self.rows, each)


class Fetch(Batches):
    """Reads what the sampler has given, as torch's workers do, and makes bytes of the batch.

    A sample of the ring is a number of `as_numbers`: see `samples.Numbers`.
    """

    def __init__(self, samples: Samples, *given: Any, alone: bool) -> None:
        """``alone``: the dataset is asked for what the sampler has given as a whole."""
        super().__init__(*given, alone=alone)
        self.samples = samples

    def __call__(self, samples: list[int]) -> AnyArray:
        """Return the bytes of a batch."""
        given = of_numbers(samples)
        self.samples.begin()
        found = self._read(given)
        if self.collate_fn is not None:
            with self._at(given, "collate_fn of dataset[{!r}]"):
                found = self.samples.seeded(self.collate_fn, found)
        return self._in_rows(parts_of(found))

    def _read(self, given: Any) -> Any:
        if self.alone:
            return self._sample(given)
        getitems = getattr(self.samples.dataset, "__getitems__", None)
        if not getitems:
            return [self._sample(index) for index in given]
        with self._at(given, "dataset.__getitems__({!r})"):
            return self.samples.seeded(getitems, given)

    def _sample(self, index: Any) -> Any:
        with self._at(index, "dataset[{!r}]"):
            return self.samples[index]

    @contextmanager
    def _at(self, given: Any, words: str) -> Iterator[None]:
        """Make random numbers belong to these indices; an error says by ``words`` where it rose."""
        self.samples.begin().index = _index_of(given)
        try:
            yield
        except Exception as error:
            error.add_note(f"{NOTE}{words.format(given)}")
            raise


def _index_of(given: Any) -> int | tuple[int, ...]:
    """Return the numbers that random numbers depend on, for an index or a list of these."""
    indices = given if type(given) in {list, tuple} else (given,)
    if all(type(index) is int and 0 <= index < 2**64 for index in indices):
        return given if type(given) is int else tuple(given)
    return int.from_bytes(blake2b(pickle.dumps(given), digest_size=8).digest(), "little")


# An index of the ring is one of 64 bits, and none below 0, so it takes four bytes of a pickle.
NUMBER = np.dtype("<u4")


def as_numbers(given: Any, most: int, apart: Aparts) -> AnyArray:
    """Return up to ``most`` numbers that say what a sampler has given, or where it lies apart."""
    stream = pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
    # What follows the end of a pickle is not read.
    numbers = np.frombuffer(stream + bytes(-len(stream) % NUMBER.itemsize), NUMBER)
    if len(numbers) > most:
        return as_numbers(apart.put([numbers.view(np.uint8)]), most, apart)
    return numbers.astype(np.int64)


def of_numbers(numbers: list[int]) -> Any:
    """Return what a sampler has given."""
    # The training process has pickled it.
    given = pickle.loads(np.array(numbers, NUMBER).tobytes())  # noqa: S301
    return read(memory_of(given)) if type(given) is Apart else given


def parts_of(batch: Any) -> list[AnyArray]:
    """Return the pickle of a batch, and the bytes of each tensor and array in it.

    UnsendableError says why a batch cannot be pickled.
    """
    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    try:
        _Pickler(stream, buffers.append).dump(batch)
    except DeviceError:
        raise
    except Exception as error:
        raise UnsendableError(f"a batch cannot be sent to the training process: {error}") from error
    return [np.asarray(part) for part in (stream.getbuffer(), *(each.raw() for each in buffers))]


def size_of(parts: Sequence[AnyArray]) -> int:
    """Return how many bytes `write` needs."""
    return _places([part.nbytes for part in parts])[-1]


def write(parts: Sequence[AnyArray], memory: AnyArray) -> None:
    """Write the parts, and ahead of them how many they are and how long each is."""
    sizes = [part.nbytes for part in parts]
    head = np.array([len(sizes), *sizes], np.int64).view(np.uint8)
    for part, place in zip((head, *parts), [0, *_places(sizes)], strict=False):
        memory[place : place + part.nbytes] = part


def _places(sizes: Sequence[int]) -> list[int]:
    """Return where each part of these sizes begins behind the head, and where the last one ends."""
    lengths = [WORD * (len(sizes) + 1), *sizes]
    return [*accumulate(-(-length // ALIGNMENT) * ALIGNMENT for length in lengths)]


class _Pickler(pickle.Pickler):
    """Takes tensors and arrays out of the pickle, and names classes of the user's script."""

    def __init__(self, stream: io.BytesIO, take_out: Callable[[pickle.PickleBuffer], None]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=take_out)
        self._storages: dict[int, AnyArray] = {}  # by their addresses

    def reducer_override(self, obj: Any) -> Any:
        kind, torch = type(obj), sys.modules.get("torch")
        if kind is np.ndarray and not (obj.flags.forc and obj.flags.writeable):
            # NumPy takes only memory without gaps out of a pickle, and keeps arrays read-only.
            return obj.copy("A").__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if torch is not None and kind is torch.Tensor:
            return self._tensor(torch, obj)
        return _named(obj) if isinstance(obj, type) else NotImplemented

    def _tensor(self, torch: Any, tensor: Any) -> Any:
        if tensor.device.type != "cpu":
            raise DeviceError(f"a batch has a tensor on {tensor.device}")
        if not tensor.is_leaf:
            raise UnsendableError(
                "it has a tensor that was computed of one with requires_grad; detach() it"
            )
        if tensor.is_nested:
            # torch reads it from the start of the storage, which in a slot is another's.
            return pickle.loads, (pickle.dumps(tensor, pickle.HIGHEST_PROTOCOL),)
        plain = tensor.layout is torch.strided and not (tensor.requires_grad or tensor.is_quantized)
        if not plain or tensor.is_conj() or tensor.is_neg():
            return NotImplemented
        # Its whole storage goes, and once for all tensors that share it, since pickle writes an
        # object once. A small part of a large one goes as a copy.
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages and storage.nbytes() > SPARE * tensor.nbytes:
            tensor = tensor.clone()
            storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._storages[storage.data_ptr()] = flat.numpy()
        layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        return _as_tensor, (self._storages[storage.data_ptr()], tensor.dtype, *layout)


def _named(kind: type) -> Any:
    """Return a class by its name alone where the name means another one in this process.

    A worker has made its own of the user's script; the training process finds its own by the name.
    """
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is kind or kind.__module__ == "builtins":
        return NotImplemented
    if "<locals>" in kind.__qualname__:
        raise UnsendableError(
            f"it has an object of {kind.__qualname__}, a class that no other process can find"
        )
    return _class_of, (kind.__module__, kind.__qualname__)


# ---- in the consumer ----


def memory_of(apart: Apart) -> AnyArray:
    """Return memory that lies apart from the slots; OSError where its process has ended."""
    with open(apart.path, "r+b") as file:  # noqa: PTH123 - it is no file of the user's
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


def read(flat: AnyArray) -> Any:
    """Return the batch that an array of bytes holds; its tensors and arrays are parts of it."""
    words = flat[: len(flat) // WORD * WORD].view(np.int64)
    sizes = words[1 : int(words[0]) + 1].tolist()
    places = zip(_places(sizes), sizes, strict=False)
    first, *buffers = (flat[place : place + size] for place, size in places)
    return pickle.loads(first.tobytes(), buffers=buffers)  # noqa: S301 - of its own worker


def _as_tensor(flat: AnyArray, dtype: Any, *layout: Any) -> Any:
    import torch  # noqa: PLC0415 - it is here, and in no worker

    size = torch.empty(0, dtype=dtype).element_size()
    return torch.from_numpy(flat[: len(flat) // size * size]).view(dtype).as_strided(*layout)


def _class_of(module: str, name: str) -> Any:
    return attrgetter(name)(importlib.import_module(module))
