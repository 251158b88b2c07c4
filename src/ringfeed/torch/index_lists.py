"""The indices of each batch of an epoch, from torch's own samplers, drawn when torch draws them.

sampler, batch_sampler ──▶ IndexLists ──▶ the ring, as far as it reads ahead
                               │
                               └─ rest(): what was not handed out, for torch's own iterator
"""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset

from ringfeed._classes import copied
from ringfeed.errors import RingfeedError, SpecError
from ringfeed.torch.pickled import Aparts, as_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from ringfeed.spec.array import AnyArray

MOST = 2**62  # indices
SHOWN = 60  # characters of what a sampler gives
NOTHING: Any = object()
"""In the place of what a sampler gives, which may be None."""


class UnfitError(RingfeedError, TypeError):
    """A sampler gives what the ring has no place for."""


class IndexLists:
    """The lists of one epoch, each of which is a batch; single indices where the loader has no batch_size.

    As torch does, it draws ``ahead`` of them at the start, and one more for each batch that is
    handed out: a generator that others draw from, too, is where torch has it at any moment. An
    IterableDataset has none.
    """

    def __init__(
        self, lists: Iterator[Any], base_seed: int, before: Any, ahead: int, *, of_stream: bool
    ) -> None:
        """``before``: where the generator was of which the base seed was drawn.

        ``of_stream``: whether the dataset is an IterableDataset.
        """
        self._lists = lists
        self.of_stream = of_stream
        self._drawn: deque[Any] = deque()  # and not given to the ring
        self.given: deque[Any] = deque()
        """To the ring; the first is taken out when its batch is handed out."""
        self.base_seed = base_seed
        self.before = before
        self.is_pickled = self.of_columns = False
        """Whether the ring takes numbers that say what the sampler has given, of whatever kind (see `as_numbers`); or
        rows of columns, to which numbers of NumPy's are as good as ints."""
        self.room = MOST
        """The most numbers that the ring takes for a list."""
        self.turn = 0
        """The number of the next list in its epoch: the batches of an epoch go to the workers in turn."""
        self.most_ahead = max(ahead, 1)
        """How many lists the ring may ask for beyond those that were handed out."""
        self._apart = Aparts(self.most_ahead + 1)

    def draw(self, count: int = 1) -> None:
        """Draw so many lists; each is a copy before the next is drawn, which may be the same one, filled again."""
        for _ in range(count):
            self._own_last()
            before = len(self._drawn)
            self._drawn.extend(islice(self._lists, 1))  # one step, for Ctrl-C
            if len(self._drawn) == before:
                break
        self._own_last()

    def _own_last(self) -> None:
        last = self._drawn[-1] if self._drawn else 0
        if not isinstance(last, int | tuple):
            self._drawn[-1] = [*last] if type(last) is list else copied(last)

    def peek(self) -> Any:
        """Return the first list, which comes nevertheless; `NOTHING` where there is none."""
        if not self._drawn:
            self.draw()
        if self._drawn and hasattr(self._drawn[0], "__next__"):
            self._drawn[0] = [*self._drawn[0]]  # of an iterator, which no other process can have
        return self._drawn[0] if self._drawn else NOTHING

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        given = self.peek()
        if not self._drawn:
            raise StopIteration
        found = self._numbers(given)
        # No call from here on: Ctrl-C comes in after calls, and a list is in the one place or in
        # the other.
        self.given += (given,)
        del self._drawn[0]
        return found

    def _numbers(self, given: Any) -> AnyArray:
        """Return the numbers that the ring takes for a list: its indices, or those that say what it is."""
        if self.is_pickled:
            return as_numbers(given, self.room, self._apart)
        if (type(given) in {list, tuple} and {*map(type, given)} == {int}) or self.of_columns:
            found = np.asarray(given)
            is_of_numbers = found.ndim == 1 and found.dtype.kind in "iu"
            if (
                is_of_numbers
                and 0 < found.size <= self.room
                and 0 <= found.min() <= found.max() < MOST
            ):
                return found.astype(np.int64)
        message = f"the sampler gives {_shown(given)}, and not a list of 1 to {self.room} ints of 0 or more"
        raise SpecError(message)

    def make_up(self) -> int:
        """Draw as torch does when a batch is handed out, or has failed: the first that was given. Returns its samples.

        What Ctrl-C has kept a call from, the next one does.
        """
        if len(self.given) + len(self._drawn) <= self.most_ahead:
            self.draw()
        return _length(self.given[0])

    def go_on(self, batches: int) -> None:
        """Give the lists of all batches but so many that were handed out, to a ring that begins with them."""
        self._drawn.extendleft(reversed(self.given))
        self.given.clear()
        self.turn = batches

    def rest(self) -> Iterator[Any]:
        """Give all that was not handed out."""
        drawn = [*self.given, *self._drawn]
        self.given, self._drawn = deque(), deque()
        return ([*one] if hasattr(one, "__next__") else one for one in chain(drawn, self._lists))


def _length(given: Any) -> int:
    return len(given) if hasattr(given, "__len__") and getattr(given, "ndim", 1) != 0 else 1


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def begin(
    loader: Any, base_seed: int | None = None, skipped: dict[str, Any] | None = None
) -> IndexLists:
    """Draw what torch draws at the start of an epoch of a DataLoader.

    base_seed: that of workers that go on from the epoch before, as ``persistent_workers`` do; None:
        one is drawn.
    skipped: the batches, and the samples in them, that this epoch goes on after.
    """
    of_stream = isinstance(loader.dataset, IterableDataset)
    source = () if of_stream else loader._index_sampler  # noqa: SLF001 - a subclass's
    before = (loader.generator or torch.default_generator).get_state()
    if base_seed is None:
        if loader.num_workers:
            iter(source)  # torch's iterator begins it twice, and the user's own __iter__ may draw
        base_seed = int(
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
        )
    lists, left_out = (
        (iter(source), 0) if skipped is None or of_stream else _after(loader, source, skipped)
    )
    ahead = (loader.prefetch_factor or 0) * loader.num_workers
    found = IndexLists(lists, base_seed, before, ahead, of_stream=of_stream)
    for _ in islice(lists, left_out):
        pass
    found.draw(ahead)
    return found


def _after(loader: Any, source: Any, skipped: dict[str, Any]) -> tuple[Iterator[Any], int]:
    """Return the lists after some that are not wanted, and how many of these are still ahead of them."""
    if type(source) is not BatchSampler or source.sampler is not loader.sampler:
        return iter(source), skipped["batches"]
    numbers = iter(
        loader.sampler
    )  # torch's own batches: those of the state may have had another size
    for _ in islice(numbers, skipped["samples"]):
        pass
    return iter(BatchSampler(numbers, source.batch_size, source.drop_last)), 0
