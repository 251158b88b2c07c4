"""Random numbers that depend on the sample, not on the worker that makes it.

    rng          the Generator of the sample being made: a function of (seed, epoch, sample index)
    installed    the SampleContext of this thread, kept up to date by the worker; making: of a task
    reseed       the legacy global states, set anew for one sample
    scatter      the legacy global states, made to differ between workers
                 (both seed torch, too, where it is imported: its own seed is the same everywhere)
    derive       bytes from a purpose and a few integers, from which every seed here comes
    words_at     the random bits of some positions of an order

The streams are part of the interface, and no later version may change them:

- ``derive(purpose, numbers, size)`` is the first ``size`` bytes of SHAKE-256 (FIPS 202) over the
  ASCII text ``ringfeed <purpose> <numbers>``, the numbers in lower-case hexadecimal, joined by
  slashes. Every bit of a seed counts, however long it is.
- ``rng()`` draws from ``numpy.random.Philox``, that is Philox4x64-10 (J. Salmon, M. Moraes, R.
  Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
  doi:10.1145/2063384.2063405). Its key is the two little-endian 64-bit words of ``derive("rng",
  (seed,), 16)``, its counter starts at (0, index, 0, epoch), the least significant word first.
  Draws count in word 0, ``jumped()`` in word 2: no sample runs into another. (What the methods of a
  Generator make of the stream is up to the NumPy release.)
- in ``batch_transform`` Philox is seeded by ``SeedSequence(entropy)``, entropy the little-endian
  integer of ``derive("batch", (seed, epoch, *indices of the batch's samples), 16)``.

numpy.random and hashlib are loaded by the first call that needs them: workers that draw nothing do
not pay.
"""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from numpy.typing import DTypeLike, NDArray


class SampleContext:
    """The sample that a thread is making; one context per worker thread, changed in place.

    Storing ``index`` begins the stream of that sample, also when the same index is stored again;
    another ``epoch`` or ``seed`` does so too. All are integers of 0 or more, index and epoch below
    2**64; an index of None means that many samples are made at once, and none may draw. A tuple of
    indices is a batch.
    """

    __slots__ = ("epoch", "index", "seed")

    def __init__(self, seed: int, epoch: int = 0, index: int | tuple[int, ...] | None = 0) -> None:
        self.seed = seed
        self.epoch = epoch
        self.index = index


class _Drawn(int):
    """A sample's index that carries its Generator.

    ``rng()`` stores it in place of the worker's plain index; the next plain index ends the stream,
    so that the worker only stores an index.
    """

    seed: int
    epoch: int
    generator: np.random.Generator


class _Installed(threading.local):
    context: SampleContext | None = None


installed = _Installed()
"""What this thread is making.

Stored without a call, so that Ctrl-C leaves nothing of a sample behind.
"""
making: ContextVar[SampleContext | None] = ContextVar("making", default=None)
"""What a task is making, or a thread that reads one sample of many at a time.

Its own tasks inherit it.
"""


def has_drawn() -> bool:
    """Whether this thread's sample or batch has used its Generator."""
    return installed.context is not None and isinstance(installed.context.index, _Drawn)


def rng() -> np.random.Generator:
    """Return the random Generator of the sample being made.

    Inside ``dataset[i]``, called by a loader, its numbers depend only on the loader's seed, the
    epoch and ``i``, never on the worker or on draws of other samples. All calls for one sample
    return the same object, so that draws continue. Call it for each sample instead of keeping the
    Generator. Inside ``batch_transform`` the numbers depend on the seed, the epoch and the indices
    of the batch's samples in their order.

    Tasks that an ``async def __getitem__`` starts, and ``asyncio.to_thread``, get the sample's
    Generator, too. Elsewhere, and in threads that ``dataset[i]`` itself starts, every call returns
    a new ``numpy.random.default_rng()``, seeded by the operating system.
    """
    context = installed.context or making.get()
    if context is None:
        return np.random.default_rng()
    index = context.index
    if index is None:
        raise RuntimeError(
            "ringfeed.rng() belongs to one sample, and __getitems__ makes many; draw in "
            "__getitem__, and leave __getitems__ out"
        )
    if type(index) is _Drawn and index.epoch == context.epoch and index.seed == context.seed:
        return index.generator
    drawn = _Drawn(0 if isinstance(index, tuple) else index)
    drawn.seed, drawn.epoch = context.seed, context.epoch
    sample = drawn.seed, drawn.epoch, *(index if isinstance(index, tuple) else (int(index),))
    if isinstance(index, tuple):
        bits = np.random.Philox(np.random.SeedSequence(seed_of("batch", sample)))
    else:
        stream: Any = _Stream(sample)  # NumPy's stubs know no seed sequence but their own
        counter = np.array([0, index, 0, drawn.epoch], dtype=np.uint64)
        bits = np.random.Philox(stream, counter=counter)
    drawn.generator = np.random.Generator(bits)
    context.index = drawn
    return drawn.generator


def reseed(context: SampleContext) -> None:
    """Seed this process's legacy states, ``numpy.random`` and ``random``, for a sample."""
    import random  # noqa: F401, PLC0415 - what is imported is seeded

    import numpy.random  # noqa: F401, PLC0415 - what is imported is seeded

    index = context.index
    assert index is not None  # reseed=True reads one by one
    numbers = (
        context.seed,
        context.epoch,
        *map(int, index if isinstance(index, tuple) else (index,)),
    )
    _seed_legacy("legacy batch" if isinstance(index, tuple) else "legacy", numbers)


def scatter(seed: int, worker: int, start: int) -> None:
    """Make the legacy states of this process differ from those of every other worker.

    ``start`` counts the processes started as ``worker``, so that a replacement does not repeat the
    numbers of the dead one. A module that is not imported is left alone: the operating system seeds
    it at its import.
    """
    _seed_legacy("worker", (seed, worker, start))


def _seed_legacy(purpose: str, numbers: tuple[int, ...]) -> None:
    state, modules = derive(purpose, numbers, 32), sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed(modules["numpy"].frombuffer(state[:16], "<u4"))
    if "random" in modules:
        modules["random"].seed(int.from_bytes(state[16:], "little"))
    _Torch.seed_with(int.from_bytes(derive("torch", numbers, 7), "little"))


class _Torch:
    """Seeds torch's generator for the CPU; unlike ``torch.manual_seed()``, no GPU's.

    Nothing is imported for this.

    If torch is not imported yet, it is seeded at its import, even in the middle of a sample.
    """

    seed = 0  # the newest to seed with
    # What torch.initial_seed() returns, whatever the generator is seeded with for a sample.
    said: int | None = None
    waiting: Mapping[Callable[[], object], None] = {}  # called when it is here, in this order

    @classmethod
    def seed_with(cls, seed: int) -> None:
        """Seed torch with this number, now or at its import."""
        cls.seed = seed
        cls.when_here(cls._seed)

    @classmethod
    def when_here(cls, call: Callable[[], object]) -> None:
        """Call the function now if torch is imported, or else once, at its import."""
        if "torch" in sys.modules:
            call()
            return
        cls.waiting = {**cls.waiting, call: None}
        if cls not in sys.meta_path:
            sys.meta_path.insert(0, cls)

    @classmethod
    def _seed(cls) -> None:
        generator = getattr(sys.modules.get("torch"), "default_generator", None)
        if generator is None:
            return
        generator.manual_seed(cls.seed)
        if cls.said not in {None, cls.seed}:
            state = generator.get_state()
            state[:8].numpy().view("u8")[0] = cls.said % 2**64
            generator.set_state(state)

    @classmethod
    def find_spec(cls, name: str, *_: Any) -> ModuleSpec | None:
        """Find only torch, as it is found without this finder."""
        if name != "torch" or cls not in sys.meta_path:
            return None
        from importlib.util import find_spec  # noqa: PLC0415 - only for torch

        sys.meta_path.remove(cls)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_seed(module: ModuleType) -> None:
                execute(module)
                calls, cls.waiting = cls.waiting, {}
                for call in calls:
                    call()

            spec.loader.exec_module = execute_and_seed  # type: ignore[method-assign]
        return spec


def seed_torch(seed: int) -> None:
    """Seed torch's generator for the CPU with this number, now or when torch is imported.

    ``torch.initial_seed()`` returns it from now on, also where `reseed` has seeded torch for a
    sample.
    """
    _Torch.said = seed
    _Torch.seed_with(seed)


when_torch_is_here = _Torch.when_here


def derive(purpose: str, numbers: tuple[int, ...], size: int) -> bytes:
    """Return bytes that are independent for each purpose and each tuple of integers."""
    from hashlib import shake_256  # noqa: PLC0415  (loads OpenSSL)

    text = f"ringfeed {purpose} {'/'.join(f'{number:x}' for number in numbers)}"
    return shake_256(text.encode("ascii"), usedforsecurity=False).digest(size)


@lru_cache(maxsize=1024)
def seed_of(purpose: str, numbers: tuple[int, ...]) -> int:
    """Return a seed: the little-endian number in 16 bytes of `derive`."""
    return int.from_bytes(derive(purpose, numbers, 16), "little")


def key_of(purpose: str, numbers: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return a key of Philox: the two little-endian words in 16 bytes of `derive`."""
    return np.frombuffer(derive(purpose, numbers, 16), "<u8").astype(np.uint64)


def fractions_at(key: NDArray[np.uint64], start: int, stop: int) -> NDArray[np.float64]:
    """Return the upper 53 bits of some words as fractions, from 0 to below 1."""
    return (words_at(key, start, stop) >> np.uint64(11)) * 2.0**-53  # type: ignore[return-value]


def words_at(key: NDArray[np.uint64], start: int, stop: int) -> NDArray[np.uint64]:
    """Return some words of Philox4x64-10 with this key.

    Word p is word p mod 4 of the block of counter p // 4 + 1.
    """
    stream = np.random.Philox(key=key, counter=start // 4)  # counts on before the first block
    return stream.random_raw(stop - start + start % 4)[start % 4 :]


class _Stream:
    """Seeds Philox instead of a SeedSequence: holds the key, and children for ``spawn()``.

    ``Philox(key=...)`` reads entropy from the operating system, takes four times as long and
    refuses spawn().
    """

    def __init__(
        self, sample: tuple[int, ...], parent: np.random.SeedSequence | None = None
    ) -> None:
        np.random.bit_generator.ISpawnableSeedSequence.register(_Stream)
        self._sample = sample  # seed, epoch, index
        self._parent = parent  # of the children; made for the first of them

    def generate_state(self, n_words: int, dtype: DTypeLike) -> NDArray[np.uint64]:
        """Return the key; NumPy's Philox asks for just these two words."""
        key = _key("rng", self._sample[:1])
        assert (n_words, dtype) == (key.size, key.dtype)
        return key

    def spawn(self, n_children: int) -> list[np.random.SeedSequence]:
        """Return the next seeds for ``rng().spawn()``, also a function of the sample."""
        if self._parent is None:
            self._parent = np.random.SeedSequence(seed_of("spawn", self._sample))
        return self._parent.spawn(n_children)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Stream, (self._sample, self._parent)


_key = lru_cache(maxsize=16)(key_of)
