"""What all kinds of dataset share: a source describes the dataset, a reader fills slots from it.

Source                   in the consumer: spec, length, order, hooks, words for errors
  │ pickled, without the dataset and all that only the consumer needs
  ▼
Source.reader(dataset)   in a worker: a Reader, which fills one ticket after another
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Any, Self

from ringfeed._classes import root_of
from ringfeed._failure import Kind, kind_of
from ringfeed.datasets.terms import Delivery, Kept, Terms
from ringfeed.errors import SpecError
from ringfeed.spec.spec import Array, Spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringfeed.datasets.functions import Functions
    from ringfeed.datasets.reader import Fill, Port, Reader
    from ringfeed.orders.permutation import Indices
    from ringfeed.orders.sampler import Sampler
    from ringfeed.ring._ring import Lease

NAMED = 8  # samples of a batch, in words
MAX_ROWS = 2**32 - 1  # of a batch: the shared memory counts them in 32 bits

Bars = list[tuple[int, int]]  # epoch and index of each element that ended all workers that read it
HOOKS = ("on_epoch_begin", "on_epoch_end")
_EMPTY = ("PyDataset", "Sequence")  # Keras' classes whose hooks do nothing
_CONSUMERS_OWN = {
    *("given", "dataset", "functions", "terms", "hooks", "order", "members", "iterables"),
}


class Composed:
    """A dataset and the user's functions, as they are sent to the workers."""

    holds_dataset = True  # see `unpicklable.users_path`

    def __init__(self, dataset: Any, functions: Functions) -> None:
        self.dataset = dataset
        self.functions = functions


class Source(ABC):
    """What a dataset is: `open_source` makes it, and each worker gets it without the dataset."""

    spec: Spec
    rows: int  # the most of a batch: what a slot holds
    streams = 0  # read in order, each by one worker; 0: the dataset has an index
    states_size = 0  # bytes for what is kept of the streams
    element_size = (
        0  # of the largest element that was read, where these are sent from process to process
    )
    samples_size = 0  # bytes of a loader of its own, which reads the samples of a `Pack`
    local_only = False  # whether the dataset cannot leave this process
    runs_code = True  # whether reading a sample runs code of the dataset
    has_gaps = False  # whether a batch was found to be None
    packages: frozenset[str] | None = (
        None  # the packages whose objects a sample holds; None: no sample was read
    )
    is_sized = False  # whether its length gives the order
    collates = False  # whether collate_fn makes a batch of its samples, of any number of rows
    is_async = False  # whether dataset[i] is awaited
    has_passes = False  # whether it is read pass by pass, each of the dataset as it is then
    changes = (
        True  # whether the workers are sent, ahead of each epoch, what has changed in the dataset
    )
    has_hooks = False  # whether the dataset has hooks, by whichever door they are run
    has_weights = False  # whether each sample comes with its number and weight: see `fill`
    members: Sequence[
        Any
    ] = ()  # the sources of the datasets that this one is made of, in the consumer
    functions: Functions | None = None  # the user's, which are sent to the workers with the dataset
    has_functions = has_batch_transform = False
    in_place: bool | None = None  # whether transform changes samples in place; None: unknown
    copies = False  # whether transform returns what it was given, and so must have a copy
    open_reader: Any = None  # makes the reader of (source, dataset, port); None: `Reader`

    def __init__(self, given: Any, dataset: Any, terms: Terms) -> None:
        """Read nothing yet.

        ``given``: the dataset as the user gave it; ``dataset``: as it is read.
        """
        self.given = given
        self.dataset = dataset
        self.terms = terms
        self.seed, self.reseed = terms.seed, terms.reseed
        self.whole = terms.batch_size is None  # one index is a whole batch
        self.skips = terms.on_error == "skip"
        if terms.functions is not None:
            self.functions, self.has_functions = terms.functions, True
            self.has_batch_transform = terms.functions.batch_transform is not None
            self.collates = terms.functions.collate_fn is not None and not self.whole
        # One worker fills all of a batch.
        self.at_once = self.whole or self.has_batch_transform or self.collates
        self.indices = terms.batch_size or 1  # of a batch
        self.hooks = frozenset(name for name in HOOKS if _does_something(type(given), name))
        self.has_hooks = bool(self.hooks)

    def consist_of(self, members: Sequence[Source]) -> None:
        """Be made of the datasets of these sources: their hooks are run."""
        self.members = members
        self.hooks = frozenset[str]().union(*(member.hooks for member in members))
        self.has_hooks = bool(self.hooks)
        self.is_async = any(
            member.is_async for member in members
        )  # which is refused: see `concurrency_of`

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs; a copy has no more."""
        return {name: value for name, value in self.__dict__.items() if name not in _CONSUMERS_OWN}

    def without_dataset(self) -> Self:
        """Return a copy for the engine, which must not keep a dataset that refers to the loader."""
        return copy(self)

    # ---- what the dataset is ----

    @property
    def reads(self) -> bool:
        """Whether `learn` reads elements, by code of the user's."""
        return self.function is not None or (
            self.terms.spec is None and (self.runs_code or self.collates)
        )

    @property
    def function(self) -> Any:
        """The user's function of each sample, or of each whole batch; None: there is none."""
        return None if self.functions is None else self.functions.of_each(whole=self.whole)

    def reads_first(self) -> bool:
        """Whether element 0 must be read, for the spec or for what the user's function does."""
        return self.terms.spec is None or (self.function is not None and self.length() != 0)

    @property
    def sent(self) -> Any:
        """What the workers are sent: the dataset, with the user's functions where there are any."""
        return self.dataset if self.functions is None else Composed(self.dataset, self.functions)

    def hold_sent(self, sent: Any) -> None:
        """Use the dataset and the functions that were sent: the user's own, or a copy."""
        if self.functions is not None:
            sent, self.functions = sent.dataset, sent.functions
        self.hold(sent)

    def hold(self, dataset: Any) -> None:
        """Read this dataset from now on."""
        self.dataset = dataset

    def end_reading(self) -> None:
        """End what reads elements of the dataset in this process."""
        if self.is_async:
            from ringfeed.datasets.event_loop import end_loop  # noqa: PLC0415 - only where needed

            end_loop(self.dataset)

    @abstractmethod
    def learn(self) -> None:
        """Set the spec and the rows of a batch, from the first sample unless the spec is given.

        What the first sample raises comes out as it is or, with ``on_error="skip"`` and where the
        samples after it raise, too, as a SpecError that asks for a spec.
        """

    def current(self) -> Any:
        """Return what the workers are sent for an epoch that begins; errors as of `check`."""
        self.check()
        return self.sent

    def check(self) -> None:
        """Raise SpecError where the dataset visibly is no longer what the loader was made for."""
        for member in self.members:
            member.check()

    def length(self) -> int | None:
        """Return the number of indices now; None where it has no end, or only reading shows it."""
        return None

    def sampler(self, order: Sampler) -> Sampler:
        """Return the loader's order over the dataset's length now; ValueError if it has another."""
        length = self.length()
        self.is_sized = length is not None
        return order.bind(length, self.seed)

    def run_hook(self, name: str) -> bool:
        """Call a hook the dataset has; returns whether `sampler` may now give another order."""
        if name not in self.hooks:
            return False
        if not self.members:
            getattr(self.given, name)()
        for member in self.members:
            member.run_hook(name)
        return self.is_sized

    def check_sendable(self) -> None:
        """Raise TypeError for a kind of dataset that no worker process can be sent."""
        for member in self.members:
            member.check_sendable()

    def accept(self, spec: Spec, rows: int) -> None:
        """Set the spec and the most rows of a batch.

        Raises ValueError where 32 bits of rows, or 64 of elements, overflow; SpecError for what
        transform cannot change in a slot.
        """
        if rows > MAX_ROWS:
            raise ValueError(
                f"a batch of {rows} rows, expected at most {MAX_ROWS}; make it smaller"
            )
        for leaf in spec.leaves:
            beside = math.prod(axis or 1 for axis in leaf.shape) * leaf.dtype.itemsize
            if not leaf.nbytes and max(rows, 1) * beside >= 2**63:
                raise SpecError(
                    f"{leaf.path} has shape {leaf.shape}, which holds nothing, but with {rows} "
                    "rows NumPy counts more than 63 bits of bytes along its other axes; make them "
                    "smaller"
                )
            if self.in_place and not self.collates and leaf.cast is not None:
                raise SpecError(
                    f"{leaf.path} is converted by its Array, but transform changes it in the slot, "
                    "where it is float32 already; return a new sample, or leave scale=, offset=, "
                    "mean=, std= and layout= out"
                )
        if (ragged := getattr(self.function, "ragged", None)) is not None:
            spec = ragged(spec)  # of a `Pack` that learns lengths
        self.spec, self.rows = spec, rows
        if self.has_weights:
            self.spec = Spec((spec.tree, Array((), "int64"), Array((), "float32")))

    def note_packages(self, sample: object) -> None:
        """Note whose objects a sample holds, which workers may import."""
        from ringfeed.datasets.first import packages_in  # noqa: PLC0415 - not for workers

        self.packages = packages_in(sample) | (self.packages or frozenset())

    def element(self, index: int) -> Any:
        """Return an element of the dataset; an async one is awaited in the dataset's event loop."""
        if not self.is_async:
            return self.dataset[index]
        from ringfeed.datasets.event_loop import completed  # noqa: PLC0415 - only where needed

        return completed(self, index)

    def planned(self, plan: Any) -> Any:
        """Return a plan that says what the datasets take by themselves, as caches do."""
        for member in self.members:
            plan = member.planned(plan)
        return plan

    # ---- its batches ----

    def keep(self, store: Any, *, shared: bool) -> Kept:  # noqa: ARG002 - see streams
        """Reserve what is kept beside the slots.

        ``shared``: with worker processes; ``store``: as in the `Plan`.
        """
        return Kept()

    def cut(self, indices: Indices, workers: int) -> Iterable[tuple[Indices, int]]:  # noqa: ARG002
        """Cut indices into parts that are planned together.

        With each part comes the stream whose worker fills it; 0: any worker.
        """
        return [(indices, 0)] if len(indices) else []

    def delivery(self, lease: Lease, rows: int, epoch: Any) -> Delivery:  # noqa: ARG002 - streams
        """Say what is delivered of a batch of ``rows`` rows where something is missing."""
        kinds = {kind_of(record) for _, record in lease.failures()}
        if self.collates:  # of whose samples any rows may be made
            rows = self.indices
            if Kind.END in kinds:
                rows = lease.failed_rows(rows)[-1][0]
        is_none = Kind.NOTHING in kinds
        failed = lease.failed_rows(1 if self.whole else rows)
        if is_none or (self.whole and Kind.END in kinds):
            failed = []
        return Delivery(
            [(row, self.number_of(index), mark) for row, index, mark in failed],
            is_none=is_none,
            keeps_others=not (self.whole or is_none),
            is_short=self.streams > 0 and rows < self.indices,
            is_whole=self.collates,
        )

    def barred(self, bars: Bars, epoch: int, row: int, index: int) -> Bars:  # noqa: ARG002
        """Add a given-up element to ``bars``, where no later one can be read without it."""
        return bars

    # ---- in words ----

    def number_of(self, index: int) -> int:
        """Return the number of the sample that an index means, which may be a draw."""
        if not self.has_weights:
            return index
        from ringfeed.orders.prioritized import index_of  # noqa: PLC0415 - only where needed

        return int(index_of(index))

    def describe(self, index: int, epoch: int | None = None) -> str:  # noqa: ARG002 - see pack
        """Say which sample an index means; ``epoch``: of a batch that was delivered."""
        return f"dataset[{self.number_of(index)}]"

    def describe_read(self, row: int, index: int, epoch: int | None = None) -> str:  # noqa: ARG002
        """Say which samples may be read while a worker is at a row of its batch."""
        return self.describe(index, epoch)

    def describe_stream(self, index: int) -> str:
        """Say which iterable an index means, where the dataset has some."""
        return self.describe(index)

    def describe_all(self, indices: list[int]) -> str:
        """Say which samples some workers are at."""
        return f"dataset[i] (i = {', '.join(map(str, indices))})" if indices else "dataset[i]"

    def describe_batch(self, indices: Sequence[int]) -> str:
        """Say which samples a batch is made of."""
        more = f" and {len(indices) - NAMED} more" if len(indices) > NAMED else ""
        return f"the batch of {self.describe_all([*indices[:NAMED]])}{more}"

    # ---- in a worker ----

    def users_own(self, dataset: Any) -> Any:
        """Return the user's dataset in what was sent to a worker."""
        return dataset

    def reader(self, dataset: Any, port: Port) -> Reader:
        """Return what fills claims from one version of the dataset; one for each worker thread."""
        from ringfeed.datasets.reader import Reader  # noqa: PLC0415 - workers only

        made: Reader = (self.open_reader or Reader)(self, dataset, port)
        return made

    def fill(self, dataset: Any, reader: Reader) -> Fill:
        """Return what fills the reader's claim from the dataset, by way of the user's functions."""
        if not (self.has_functions or self.has_weights):
            return self.open(dataset, reader)
        from ringfeed.datasets.transformed import open_changed  # noqa: PLC0415 - if needed

        return open_changed(dataset, reader)

    @abstractmethod
    def open(self, dataset: Any, reader: Reader) -> Fill:
        """Return what fills the reader's claim with the dataset's own samples."""


def _does_something(kind: type, hook: str) -> bool:
    """Whether a class of datasets has a hook; those of Keras' base classes do nothing."""
    owner = next((base for base in kind.__mro__ if hook in vars(base)), None)
    if owner is None or not callable(getattr(kind, hook)):
        return False
    return owner.__name__ not in _EMPTY or root_of(owner) not in {"keras", "tf_keras"}
