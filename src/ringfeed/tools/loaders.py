"""A torch DataLoader or a Keras PyDataset as it is, beside ringfeed in its place."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

from ringfeed._checks import check_integer, check_seconds
from ringfeed._classes import class_names
from ringfeed._progress import tell
from ringfeed.errors import RingfeedError
from ringfeed.tools.profile_report import LoaderProfile, Stages
from ringfeed.tools.reading import Limits, in_a_line

if TYPE_CHECKING:
    from typing import TypeAlias

    from ringfeed.tools.keras_subject import KerasSubject
    from ringfeed.tools.reading import Reading
    from ringfeed.tools.torch_subject import TorchSubject

    Subject: TypeAlias = "KerasSubject | TorchSubject"
    """A loader of a framework: what it is, how it is read, and what the steps of a batch take."""

STAGED = 8  # batches that are made step by step


def profile_loader(
    loader: Any, *, samples: int = 300, seconds: float = 10.0, shuffle: bool = True
) -> LoaderProfile:
    """Read some hundred samples of a DataLoader or a PyDataset as it is, and by ringfeed.

    Returns the figures, whose ``str()`` is the report: times of a batch, CPU time of this process
    and of the workers, their memory, the steps of a batch, and the line to change.

    samples, seconds: of each reading, of which there are three or four; it ends at the samples (and
        16 batches, and a second), or at the seconds after the first batch, or at the end of the
        epoch.
    shuffle: as of Keras' ``fit``, for a PyDataset.

    torch's, NumPy's and Python's random numbers are the same afterwards, and so is what the loader
    refers to, but for arrays that it changes in place, and iterators that can be read only once.

    TypeError for what is neither, ValueError for numbers below 1; RingfeedError where the loader
    raises or is empty. A loader that waits for ever is waited for.
    """
    return profile_subject(subject_of(loader, shuffle=shuffle), limits_of(samples, seconds))


def limits_of(samples: int, seconds: float) -> Limits:
    """Check what a user has given."""
    check_integer("samples", samples, 1)
    check_seconds("seconds", seconds, "the time of each reading")
    return Limits(samples, seconds)


def subject_of(loader: Any, *, shuffle: bool = True) -> Subject:
    """Return what profiles it; TypeError for another object."""
    names = class_names(loader)
    if "torch.DataLoader" in names:
        # Imports torch, which the loader has imported already.
        from ringfeed.tools.torch_subject import TorchSubject  # noqa: PLC0415

        return TorchSubject(loader)
    if "keras.PyDataset" in names:
        # Imports keras, which the dataset has imported already.
        from ringfeed.tools.keras_subject import KerasSubject  # noqa: PLC0415

        return KerasSubject(loader, shuffle=shuffle)
    raise TypeError(
        f"a {type(loader).__name__} is neither a torch DataLoader nor a Keras PyDataset; give a "
        "dataset of samples to `ringfeed profile module:dataset`"
    )


def profile_subject(subject: Subject, limits: Limits) -> LoaderProfile:
    """Read a loader, and what may stand in its place, for some hundred samples each.

    The loader itself is read twice: the first time fills the caches of the system, from which all
    others read.

    RingfeedError where the loader gives no batch: it raises, or is empty.
    """
    logger, nowhere = logging.getLogger("ringfeed"), logging.NullHandler()
    with ExitStack() as stack:
        # The report says what ringfeed logs; only handlers of the program's own have the lines as
        # well.
        logger.addHandler(nowhere)
        stack.callback(logger.removeHandler, nowhere)
        cold, readings = subject.readings()[0], subject.readings()
        for number, reading in enumerate([cold, *readings]):
            note = "" if number else " for the caches"
            tell(f"reading {number + 1} of {len(readings) + 1}: {reading.label}{note}")
            with subject.untouched():
                error = reading.read(limits)
            if number <= 1:  # the loader as it is
                _check(subject, reading, error)
        tell("the steps of a batch")
        stages, why = _staged(subject, limits)
    return LoaderProfile(subject.name, subject.reader, tuple(readings), cold, stages, why)


def _check(subject: Subject, reading: Reading, error: Exception | None) -> None:
    """Raise RingfeedError unless the loader as it is was read."""
    if not reading.batches and not reading.failure:
        raise RingfeedError(f"the {subject.name} is empty: there is no batch to read")
    if error is not None or not reading.batches:
        after = f" after {reading.batches} batches" if reading.batches else ""
        raise RingfeedError(
            f"the {subject.name} fails as it is{after}, so there is nothing to compare with: "
            f"{reading.failure}"
        ) from error


def _staged(subject: Subject, limits: Limits) -> tuple[Stages | None, str]:
    """Return what the steps of a batch took, and why that is not known."""
    found: list[Stages] = []
    until_s = time.monotonic() + limits.seconds
    try:
        with subject.untouched():
            for stages in islice(subject.stages(), STAGED):
                found.append(stages)
                if time.monotonic() > until_s:
                    break
    except Exception as error:  # noqa: BLE001 - of the user's code, in this process
        return None, in_a_line(error)
    # The first batch imports and warms: it counts only where there is no other.
    counted = found[1:] or found
    return (Stages(*map(sum, zip(*counted, strict=True))) if counted else None), ""
