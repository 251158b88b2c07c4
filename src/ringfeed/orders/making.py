"""Which sampler the arguments of a loader ask for: one of ringfeed's, or the user's own (see `custom`)."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from ringfeed.orders.sampler import SeededSampler, Sequential, Shuffled, check_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringfeed.orders.sampler import Sampler


def _window_of(shuffle: object) -> int | None:
    """Return how many samples ``shuffle`` mixes, where it is a number; TypeError or ValueError for no such."""
    if isinstance(shuffle, bool | np.bool_):
        return None
    try:
        window = operator.index(shuffle)  # type: ignore[arg-type]
    except TypeError:
        window = None
    if window is None or window < 2:  # noqa: PLR2004  (a window of one sample would leave its order as it is)
        message = f"shuffle is {shuffle!r}, expected True, False, or the samples of a window, an integer of 2 or more"
        raise TypeError(message) if window is None else ValueError(message)
    return window


def make_sampler(
    length: int | None,
    *,
    shuffle: bool | int,
    seed: int,
    sampler: SeededSampler | Iterable[int] | Callable[[int], Iterable[int]] | None,
) -> Sampler:
    """Return the order that a loader's arguments ask for; ``length`` is the dataset's, None where unknown."""
    seed, window = check_seed(seed), _window_of(shuffle)
    if sampler is not None and shuffle:
        raise ValueError(f"shuffle={shuffle!r} and sampler= exclude each other: give the one or the other")
    if isinstance(sampler, SeededSampler):
        return sampler.bind(length, seed)
    if sampler is not None:
        from ringfeed.orders.custom import Custom  # noqa: PLC0415 - where it is wanted

        return Custom(sampler, length)
    if not shuffle:
        return Sequential(length)
    if length is None:
        raise ValueError(f"shuffle={shuffle!r} needs a dataset with a length; shuffle inside the dataset instead")
    if window is not None:
        from ringfeed.orders.windows import WindowShuffle  # noqa: PLC0415 - as above

        return WindowShuffle(window).bind(length, seed)
    return Shuffled(length, seed)
