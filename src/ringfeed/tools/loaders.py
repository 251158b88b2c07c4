"""A torch DataLoader or a Keras PyDataset as it is, beside ringfeed in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfeed._checks import check_count, check_seconds
from ringfeed._classes import class_names
from ringfeed.tools.reading import Limits
from ringfeed.tools.subject import profile_subject

if TYPE_CHECKING:
    from ringfeed.tools.profile_report import LoaderProfile
    from ringfeed.tools.subject import Subject

TORCH, KERAS = "torch.DataLoader", "keras.PyDataset"


def is_loader(obj: object) -> bool:
    """Whether it is a DataLoader or a PyDataset; no framework is imported for that."""
    return not class_names(obj).isdisjoint((TORCH, KERAS))


def profile_loader(loader: Any, *, samples: int = 300, seconds: float = 10.0, shuffle: bool = True) -> LoaderProfile:
    """Read some hundred samples of a torch DataLoader or a Keras PyDataset as it is, and by ringfeed in its place.

    Returns the figures, whose ``str()`` is the report: times of a batch, CPU time of this process and of the workers,
    their memory, the steps of a batch, and the line to change.

    samples, seconds: of each reading, of which there are three or four; it ends at the samples (and 16 batches, and a
        second), or at the seconds after the first batch, or at the end of the epoch. The first batch has a minute.
    shuffle: as of Keras' ``fit``, for a PyDataset.

    torch's, NumPy's and Python's random numbers are the same afterwards, and so is what the loader refers to, but for
    arrays that it changes in place, and iterators that can be read only once.

    TypeError for what is neither, ValueError for numbers below 1; RingfeedError where the loader raises, is empty, or
    gives no batch in time.
    """
    return profile_subject(subject_of(loader, shuffle=shuffle), limits_of(samples, seconds))


def limits_of(samples: int, seconds: float) -> Limits:
    """Check what a user has given."""
    check_count("samples", samples, 1, none=False)
    check_seconds("seconds", seconds, "the time of each reading")
    return Limits(samples, seconds)


def subject_of(loader: Any, *, shuffle: bool = True) -> Subject:
    """Return what profiles it; TypeError for another object."""
    names = class_names(loader)
    if TORCH in names:
        from ringfeed.tools.torch_subject import TorchSubject  # noqa: PLC0415 - imports torch, as the loader has

        return TorchSubject(loader)
    if KERAS in names:
        from ringfeed.tools.keras_subject import KerasSubject  # noqa: PLC0415 - imports keras, as the dataset has

        return KerasSubject(loader, shuffle=shuffle)
    message = (
        f"a {type(loader).__name__} is neither a torch DataLoader nor a Keras PyDataset; give a dataset of samples to "
        f"`ringfeed profile module:dataset`"
    )
    raise TypeError(message)
