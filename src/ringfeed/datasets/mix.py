"""Several datasets as one. A source of each says what it is, and what is wrong with it.

Mix           what users give a loader
Members       the datasets as workers have them: an index finds its dataset, and the sample there
MixSource     its source
orders.mix    in which order: which dataset comes next, and which of its samples

    index = pass * samples of all + samples of the datasets ahead + the sample's own number

So no two datasets share an index, or the random numbers that go with it, and neither do two passes
over one dataset.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from ringfeed._checks import error_of
from ringfeed._classes import fingerprint_of, is_iterable
from ringfeed._failure import is_raised_here
from ringfeed.datasets.arrays import Rows
from ringfeed.datasets.base import Source
from ringfeed.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ringfeed.datasets.reader import Fill, Reader
    from ringfeed.datasets.terms import Terms
    from ringfeed.orders.sampler import Sampler

STOPS = ("first", "all", "never")
_ALIKE = (
    "a Mix needs samples of one structure, shape and dtype: convert those of one dataset in its "
    "__getitem__"
)


class Mix:
    """Several datasets as one, whose samples come by weight: ``Mix([a, b], weights=[0.9, 0.1])``.

    The order depends only on the loader's seed, the epoch and the position. At every point of an
    epoch, the numbers of samples from each dataset follow the weights to within a few samples. With
    ``shuffle=True`` the samples of each dataset come in a random order, a new one in each epoch and
    in each pass over the dataset; otherwise in their own order. `mix` and `proportions` of
    ``ringfeed.orders`` define the order.

    datasets: what `Loader` takes, except iterables (see `Interleave`) and other mixes, each with a
        length. Their samples must have one structure, shape and dtype. With the loader's
        ``batch_size=None`` each gives whole batches.
    weights: a number for each dataset; only their proportions count. None: the lengths, so that
        each sample comes once. Or a function of the number of the epoch and that of the batch in it
        (of the element, with ``batch_size=None``), called when a batch is planned, at most
        ``slots`` batches ahead. Its result may change at any time; the loader's state has the
        draws, so no sample comes twice. With several ranks it counts the batches of all, and must
        depend only on its arguments.
    stop: "first": the epoch ends as soon as a dataset is used up, and no sample comes twice. "all":
        it ends when each dataset was used up at least once, except those of weight 0; the others
        begin again. "never": without end. With a function as weights there is no ``len()``.
    per_batch: each batch of each rank follows the weights, rounded so that they are exact over many
        batches: every batch of 32 has 16 rows of one dataset and 16 of the other. An epoch's last
        batch may be shorter.

    Errors name samples as ``dataset 1[17]``, sample 17 of ``datasets[1]``. Its index, as in
    ``stats().skipped``, is the number of samples of the earlier datasets, plus 17, plus the samples
    of all for each pass. `rng` belongs to that index: no two datasets share random numbers, and a
    sample that comes again in one epoch has others.

    ``read_into`` and ``__getitems__`` are used if all datasets have them. Hooks of all datasets
    run.

    Raises TypeError for what cannot be mixed, ValueError for invalid weights and settings; the
    loader raises SpecError if the samples differ.
    """

    def __init__(
        self,
        datasets: Iterable[Any],
        weights: Iterable[float] | Callable[[int, int], Iterable[float]] | None = None,
        *,
        stop: Literal["first", "all", "never"] = "first",
        per_batch: bool = False,
    ) -> None:
        from ringfeed.orders.proportions import shares_of  # noqa: PLC0415 - not for workers

        if isinstance(datasets, dict | str) or not hasattr(type(datasets), "__iter__"):
            raise TypeError(
                f"datasets is of type {type(datasets).__name__}, expected several datasets, as in "
                "Mix([a, b])"
            )
        self.datasets = (*datasets,)
        if not self.datasets:
            raise ValueError("Mix() got no datasets; give at least one")
        for number, dataset in enumerate(self.datasets):
            _refuse(dataset, number)
        self._shares = (
            weights
            if weights is None or callable(weights)
            else shares_of(weights, len(self.datasets))
        )
        if stop not in STOPS:
            raise ValueError(f"stop={stop!r}; choose one of {', '.join(map(repr, STOPS))}")
        self.stop = stop
        self.per_batch = per_batch

    def __ringfeed_source__(
        self, terms: Terms, open_source: Callable[[Any, Terms], Source]
    ) -> Source:
        """Return the source of all datasets."""
        return MixSource(self, terms, open_source)

    @property
    def _fingerprint(self) -> str | None:
        """Those of the datasets, together, where each has one: see `Loader.state_dict`."""
        found = [*map(fingerprint_of, self.datasets)]
        return None if None in found else " ".join(map(str, found))

    @property
    def weights(self) -> tuple[int, ...] | Callable[[int, int], Any] | None:
        """The weights as integers in the same proportions; or the function; None: the lengths."""
        return self._shares

    @weights.setter
    def weights(self, _: object) -> None:
        raise AttributeError(
            "the weights of a Mix are fixed, since batches are planned far ahead by them; give "
            "weights= a function, as in lambda epoch, batch: now, and change what it returns"
        )


def _refuse(dataset: Any, number: int) -> None:
    """Refuse a dataset that has no samples by number."""
    if isinstance(dataset, Mix):
        raise TypeError(
            f"dataset {number} of Mix() is a Mix; give its datasets to the outer one, each with "
            "its share of the weight that the inner one would have"
        )
    if is_iterable(dataset):
        raise TypeError(
            f"dataset {number} of Mix() is an iterable (a {type(dataset).__name__}), whose "
            "elements have no numbers; give an object with __len__ and __getitem__, or iterables "
            "to Interleave()"
        )


# ---- in workers ----


def _find(starts: Sequence[int], index: int) -> tuple[int, int]:
    """Return the numbers of a dataset and of its sample.

    ``starts``: how many samples lie ahead of each dataset.
    """
    index %= starts[-1]
    member = bisect_right(starts, index) - 1
    return member, index - starts[member]


class Members:
    """The datasets of a mix, as workers have them."""

    def __init__(self, datasets: Iterable[Any], starts: list[int]) -> None:
        self.datasets = (*datasets,)
        self.starts = starts

    def __getitem__(self, index: int) -> Any:
        """Return the sample of an index."""
        member, number = _find(self.starts, index)
        return self.datasets[member][number]

    def reader(self, method: str) -> Callable[..., Any]:
        """Return what reads indices by one method of all datasets."""
        find, reads = (
            partial(_find, self.starts),
            [getattr(dataset, method) for dataset in self.datasets],
        )

        def read(index: int, *out: Any) -> Any:
            member, number = find(index)
            return reads[member](number, *out)

        return partial(_read_many, find, reads) if method == "__getitems__" else read


def _read_many(
    find: Callable[[int], tuple[int, int]], reads: Sequence[Any], indices: Sequence[int]
) -> Iterator[Any]:
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
            raise ValueError(
                f"__getitems__ returned fewer samples than {len(asked[member])} indices"
            ) from None
        yield sample
    for member, numbers in asked.items():
        if [*zip(given[member], (None,), strict=False)]:
            raise ValueError(
                f"__getitems__ returned more than {len(numbers)} samples for as many indices"
            )


# ---- the source ----


class MixSource(Source):
    """A dataset of several; in the consumer each of them has a source of its own."""

    is_sized = True

    def __init__(self, mix: Mix, terms: Terms, open_source: Callable[[Any, Terms], Source]) -> None:
        """Open all datasets; ValueError or TypeError for what does not fit."""
        members: list[Source] = []
        for number, dataset in enumerate(mix.datasets):
            with _named(number, TypeError, ValueError):
                members.append(open_source(dataset, terms))
        self.starts = [0, 1]  # changed in place: the engine has it, too
        copied = members[0].function is not None
        read = (
            one.dataset if one.runs_code else Rows(one.dataset, copied=copied) for one in members
        )
        super().__init__(mix, Members(read, self.starts), terms)
        if self.whole and mix.per_batch:
            raise ValueError(
                "per_batch=True shares batches among datasets; with batch_size=None leave it out"
            )
        self.consist_of(members)
        self.runs_code = any(member.runs_code for member in self.members)
        self._choose_method()

    def _choose_method(self) -> None:
        """Read by the quickest method that all have."""
        methods = {getattr(member, "method", "__getitem__") for member in self.members}
        self.method = methods.pop() if len(methods) == 1 else "__getitem__"
        for member in self.members:
            member.method = self.method  # or it would refuse what its own does not allow

    def hold(self, dataset: Members) -> None:
        """Read these datasets from now on."""
        self.dataset, dataset.starts = dataset, self.starts
        for member, one in zip(self.members, self.users_own(dataset), strict=True):
            member.functions = self.functions
            member.hold(one)

    def learn(self) -> None:
        """Set the spec, from the first sample of each dataset unless it is given."""
        for number, member in enumerate(self.members):
            with _named(number, SpecError):
                member.learn()
            where = f"dataset {number}[0]: sample"
            _check_alike(self.members[0].spec.tree, member.spec.tree, where)
        self.in_place, self.copies = self.members[0].in_place, self.members[0].copies
        self._choose_method()  # again: some methods are not for all specs
        self.has_gaps = any(member.has_gaps for member in self.members)
        found = [member.packages for member in self.members if member.packages is not None]
        self.packages = frozenset[str]().union(*found) if found else None
        self.accept(self.members[0].spec, max(member.rows for member in self.members))

    def check(self) -> None:
        """Raise SpecError where one of the datasets is no longer what the loader was made for."""
        for number, member in enumerate(self.members):
            with _named(number, SpecError):
                member.check()

    def length(self) -> int:
        """Return the number of all samples."""
        return sum(self._lengths())

    def _lengths(self) -> list[int]:
        """Return how many samples each dataset has now."""
        found = []
        for number, member in enumerate(self.members):
            length = member.length()
            if length is None:
                raise TypeError(
                    f"dataset {number} of the Mix (a {type(member.given).__name__}) has no length, "
                    "so its share is unknown; give it a __len__"
                )
            if length == 0:
                raise ValueError(f"dataset {number} of the Mix is empty; leave it out")
            found.append(length)
        self.starts[:] = accumulate(found, initial=0)
        return found

    def sampler(self, order: Sampler) -> Sampler:
        """Return the order of the mix; ValueError for any other."""
        from ringfeed.orders.mix import MixSampler  # noqa: PLC0415 - not for workers
        from ringfeed.orders.permutation import Shuffled  # noqa: PLC0415 - not for workers
        from ringfeed.orders.sampler import Sequential  # noqa: PLC0415 - not for workers

        if type(order) not in {Sequential, Shuffled}:
            raise ValueError(
                f"{order.given_as} is for one dataset, and a Mix has an order of its own; give "
                "Mix() weights=, and the loader shuffle=True or False"
            )
        mix, lengths = self.given, self._lengths()
        weights = tuple(lengths) if mix.weights is None else mix.weights
        seed = self.seed if isinstance(order, Shuffled) else None
        return MixSampler(
            lengths, weights, mix.stop, self.indices, per_batch=mix.per_batch, seed=seed
        )

    def users_own(self, dataset: Members) -> Any:
        """Return the user's datasets in what was sent to a worker."""
        return tuple(one.columns if isinstance(one, Rows) else one for one in dataset.datasets)

    def describe(self, index: int, epoch: int | None = None) -> str:  # noqa: ARG002 - see pack
        """Say which sample of which dataset an index means."""
        member, number = _find(self.starts, index)
        return f"dataset {member}[{number}]"

    def describe_all(self, indices: list[int]) -> str:
        """Say at which samples some workers are."""
        return ", ".join(map(self.describe, indices)) or "a dataset of the Mix"

    def open(self, dataset: Members, reader: Reader) -> Fill:
        """Read each index from its dataset."""
        self.starts = dataset.starts
        return reader.by_method(self.method, dataset.reader(self.method))


@contextmanager
def _named(number: int, *kinds: type[Exception]) -> Iterator[None]:
    """Prefix errors with the number of their dataset."""
    try:
        yield
    except kinds as error:
        text, own = str(error), f"dataset {number}"
        is_of_sample = text.startswith("dataset[") and is_raised_here(
            error
        )  # and no text of the user's
        error.args = (f"{own}{text[len('dataset') :]}" if is_of_sample else f"{own}: {text}",)
        raise


def _check_alike(first: Any, other: Any, where: str) -> None:
    """Refuse samples that differ from those of dataset 0, but for the order of keys."""
    are_branches = type(first) is type(other) and isinstance(first, tuple | list | dict)
    if are_branches and _keys(first) == _keys(other):
        for key in _keys(first):
            _check_alike(first[key], other[key], f"{where}[{key!r}]")
    elif first != other:
        raise error_of(where, f"is {other!r}", f"{first!r} as in dataset 0", _ALIKE)


def _keys(branch: Any) -> Any:
    return branch.keys() if isinstance(branch, dict) else range(len(branch))
