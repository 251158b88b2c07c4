"""The indices of each batch of an epoch, from torch's own samplers, drawn when torch draws them.

sampler, batch_sampler ──▶ IndexLists ──▶ the ring, as far as it reads ahead
                               │
                               └─ rest(): what was not handed out, for torch's own iterator
"""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset

from ringfeed._classes import copied
from ringfeed.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringfeed.spec.array import AnyArray

MOST = 2**62  # indices
SHOWN = 60  # characters of what a sampler gives
NOTHING: Any = object()
"""In the place of what a sampler gives, which may be None."""


class IndexLists:
    """The lists of indices of one epoch, one a batch; without batch_size, single indices.

    As torch does, it draws some of them at the start, and one more for each batch that is handed
    out: a generator that others draw from, too, is where torch has it at any moment. An
    IterableDataset has none.
    """

    numbers: Callable[[Any], AnyArray]
    """What makes of a list the numbers that the ring takes."""
    turn = 0
    """The number of the ring's first list in its epoch: workers take the batches in turn."""

    def __init__(self, loader: Any, base_seed: int | None, skipped: dict[str, Any]) -> None:
        """Draw what torch draws at the start of an epoch of a DataLoader.

        ``base_seed``: that of workers that go on from the epoch before, as ``persistent_workers``
        do; None: one is drawn.
        ``skipped``: the batches, and the samples in them, that this epoch goes on after; empty: it
        begins at its start.
        """
        self.of_stream = isinstance(loader.dataset, IterableDataset)
        source = () if self.of_stream else loader._index_sampler  # noqa: SLF001 - a subclass's
        self.before = (loader.generator or torch.default_generator).get_state()
        """Where the generator was of which the base seed was drawn."""
        if base_seed is None:
            if loader.num_workers:
                iter(source)  # torch's iterator begins it twice, and the user's own may draw
            drawn = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            base_seed = int(drawn.item())
        self.base_seed = base_seed
        self._lists: Iterator[Any] = (
            _after(loader, source, skipped) if skipped and not self.of_stream else iter(source)
        )
        self._drawn: deque[Any] = deque()  # and not given to the ring
        self.given: deque[Any] = deque()
        """To the ring; the first is taken out when its batch is handed out."""
        ahead = (loader.prefetch_factor or 0) * loader.num_workers
        self.most_ahead = max(ahead, 1)
        """How many lists the ring may ask for beyond those that were handed out."""
        self._draw(ahead)

    def _draw(self, count: int = 1) -> None:
        """Draw so many lists; each is copied, as a sampler may fill the same one again."""
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
            self._draw()
        if self._drawn and hasattr(self._drawn[0], "__next__"):
            self._drawn[0] = [*self._drawn[0]]  # of an iterator, which no other process can have
        return self._drawn[0] if self._drawn else NOTHING

    def go_on_after(self, batches: int) -> None:
        """Begin again, for a new ring, with the lists of batches that were not handed out."""
        self._drawn.extendleft(reversed(self.given))
        self.given.clear()
        self.turn = batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        given = self.peek()
        if not self._drawn:
            raise StopIteration
        found = self.numbers(given)
        # No call from here on: Ctrl-C comes in after calls, and a list is in the one place or in
        # the other.
        self.given += (given,)
        del self._drawn[0]
        return found

    def make_up(self) -> int:
        """Draw as torch does when a batch is handed out, or has failed; return its samples.

        It is the batch of the first list that was given. What Ctrl-C has kept a call from, the next
        one does.
        """
        if len(self.given) + len(self._drawn) <= self.most_ahead:
            self._draw()
        first = self.given[0]
        has_length = hasattr(first, "__len__") and getattr(first, "ndim", 1) != 0
        return len(first) if has_length else 1

    def rest(self) -> Iterator[Any]:
        """Give all that was not handed out."""
        drawn = [*self.given, *self._drawn]
        self.given, self._drawn = deque(), deque()
        return ([*one] if hasattr(one, "__next__") else one for one in chain(drawn, self._lists))


def _after(loader: Any, source: Any, skipped: dict[str, Any]) -> Iterator[Any]:
    """Return the lists after some that are not wanted.

    Torch's own batches are made anew of the sampler: those of the state may have had another size.
    """
    is_own = type(source) is BatchSampler and source.sampler is loader.sampler
    found = iter(loader.sampler if is_own else source)
    for _ in islice(found, skipped["samples" if is_own else "batches"]):
        pass
    return iter(BatchSampler(found, source.batch_size, source.drop_last)) if is_own else found


def ints_of(given: Any, most: int, *, of_columns: bool) -> AnyArray:
    """Return a list of indices as an array; SpecError unless it has 1 to ``most`` ints from 0 on.

    ``of_columns``: numbers of NumPy's are as good, since the dataset's code sees no index.
    """
    if of_columns or (type(given) in {list, tuple} and {*map(type, given)} == {int}):
        found = np.asarray(given)
        is_of_numbers = found.ndim == 1 and found.dtype.kind in "iu"
        if is_of_numbers and 0 < found.size <= most and 0 <= found.min() <= found.max() < MOST:
            return found.astype(np.int64)
    shown = text if len(text := repr(given)) <= SHOWN else f"{text[: SHOWN - 1]}…"
    raise SpecError(f"the sampler gives {shown}, and not a list of 1 to {most} ints of 0 or more")
