"""The datasets of a mix as workers have them: each index finds its dataset, and the sample's number there.

    index = pass * samples of all + samples of the datasets ahead + the sample's own number

So no two datasets share an index, or the random numbers that go with it, and neither do two passes over one dataset.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class Places:
    """Where each dataset's samples are among all."""

    def __init__(self) -> None:
        self._starts: tuple[int, ...] = (0, 1)

    def set(self, lengths: Sequence[int]) -> None:
        """Know how many samples each has now."""
        self._starts = (*accumulate(lengths, initial=0),)

    def find(self, index: int) -> tuple[int, int]:
        """Return the number of a dataset, and that of its sample."""
        starts = self._starts
        index %= starts[-1]
        member = bisect_right(starts, index) - 1
        return member, index - starts[member]


class Members:
    """The datasets of a mix, as workers have them."""

    def __init__(self, datasets: Iterable[Any], places: Places) -> None:
        self.datasets = (*datasets,)
        self.places = places

    def __getitem__(self, index: int) -> Any:
        """Return the sample of an index."""
        member, number = self.places.find(index)
        return self.datasets[member][number]

    def reader(self, method: str) -> Callable[..., Any]:
        """Return what reads indices by one method of all datasets."""
        find, reads = self.places.find, [getattr(dataset, method) for dataset in self.datasets]

        def read(index: int, *out: Any) -> Any:
            member, number = find(index)
            return reads[member](number, *out)

        return partial(_read_many, find, reads) if method == "__getitems__" else read


def _read_many(find: Callable[[int], tuple[int, int]], reads: Sequence[Any], indices: Sequence[int]) -> Iterator[Any]:
    """Give the samples of indices, which each dataset is asked for together."""
    places = [find(index) for index in indices]
    asked: dict[int, list[int]] = {}
    for member, number in places:
        asked.setdefault(member, []).append(number)
    given = {member: iter(reads[member]([*numbers])) for member, numbers in asked.items()}
    for member, _ in places:
        try:
            sample = next(given[member])
        except StopIteration:
            raise ValueError(f"__getitems__ returned fewer samples than {len(asked[member])} indices") from None
        yield sample
    for member, numbers in asked.items():
        if [*zip(given[member], (None,), strict=False)]:
            raise ValueError(f"__getitems__ returned more than {len(numbers)} samples for as many indices")
