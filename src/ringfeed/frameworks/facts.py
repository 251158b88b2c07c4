"""What training scripts ask a loader of torch's for, of all that stands for a loader in a framework."""

from __future__ import annotations

from typing import Any


class LoaderFacts:
    """Answers for the loader of its stream."""

    @property
    def _facts(self) -> Any:
        return self._stream.loader  # type: ignore[attr-defined]  # of each class that this is a part of

    @property
    def dataset(self) -> Any:
        """The loader's dataset, as it was given."""
        return self._facts.dataset

    @property
    def sampler(self) -> Any:
        """What the loader was given as ``sampler=`` or ``batch_sampler=``, or None."""
        return self._facts.sampler

    def set_epoch(self, epoch: int) -> None:
        """Make the next epoch the one of this number: see `Loader.set_epoch`."""
        self._facts.set_epoch(epoch)

    def __bool__(self) -> bool:
        """Whether it is there, which its length does not say: that may be unknown."""
        return True

    def __repr__(self) -> str:
        """Return whose it is, in a line."""
        return f"<{type(self).__name__} of {self._facts!r}>"
