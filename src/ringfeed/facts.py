"""What is known of a loader before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed.data.sampler import Sequential, batch_count

if TYPE_CHECKING:
    from ringfeed.data.base import Source
    from ringfeed.data.sampler import Sampler
    from ringfeed.engine.options import Settings
    from ringfeed.engine.plan import Plan
    from ringfeed.monitor.stats import Stats
    from ringfeed.spec.spec import Spec


class Facts:
    """The loader's parameters as they were understood, and what follows from them."""

    _dataset: Any
    _batch_size: int | None
    _shuffle: bool
    _settings: Settings
    _source: Source
    _sampler: Sampler
    _plan: Plan
    _stats: Stats

    @property
    def dataset(self) -> Any:
        """The dataset, as it was given."""
        return self._dataset

    @property
    def spec(self) -> Spec:
        """The spec of one sample."""
        return self._source.spec

    @property
    def plan(self) -> Plan:
        """Where the memory goes, in bytes."""
        return self._plan

    @property
    def memory(self) -> int:
        """Bytes of shared memory that the plan takes, the dataset's copies for the workers included."""
        return self._plan.total

    @property
    def batch_size(self) -> int | None:
        """Samples a batch; None for a dataset of whole batches."""
        return self._batch_size

    @property
    def max_rows(self) -> int:
        """The most rows a batch has."""
        return self._source.rows

    @property
    def iterated(self) -> bool:
        """Whether the dataset is an iterable, whose end only reading shows."""
        return self._source.streams > 0

    @property
    def drop_remainder(self) -> bool:
        """Whether a shorter last batch is left out."""
        return self._settings.drop_remainder

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has an order of its own."""
        return self._shuffle

    @property
    def is_in_order(self) -> bool:
        """Whether every epoch is 0, 1, 2, ..., though the dataset could be read in another order."""
        return isinstance(self._sampler, Sequential) and self._sampler.length is not None

    @property
    def on_error(self) -> str:
        """What becomes of a failed sample: "raise" or "skip"."""
        return self._settings.on_error

    @property
    def timeout_s(self) -> float | None:
        """How long a batch is waited for."""
        return self._settings.timeout_s

    @property
    def copy(self) -> bool:
        """Whether what is handed out is a copy."""
        return self._settings.copy

    @property
    def has_gaps(self) -> bool:
        """Whether the dataset has given None in the place of whole batches, so that an epoch has fewer than `len`."""
        return self._source.has_gaps or self._stats.none_batches > 0

    def __len__(self) -> int:
        """Return the batches of an epoch; TypeError where the sampler does not know."""
        length = self._sampler.length
        if length is None:
            endless = isinstance(self._sampler, Sequential)
            whose = "dataset has no len(), and goes on without end" if endless else "sampler has no len()"
            whose = "dataset is an iterable" if self.iterated else whose
            message = f"the length of this loader is unknown: its {whose}"
            raise TypeError(message)
        return batch_count(length, self._batch_size or 1, self._settings.drop_remainder)
