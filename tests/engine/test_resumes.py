"""Slices of resumes.py: one hash for each order, wherever it is cut and goes on."""

from __future__ import annotations

import re
from typing import Any

import pytest

import resumes

pytestmark = pytest.mark.once

SLICES = {
    "sequential": ["no workers", "1 by spawn"],
    "shuffled": ["no workers", "2 by fork"],
    "window": ["5 by thread"],
    "weighted": ["2 by thread"],
    "subset": ["1 by fork"],
    "stratified": ["5 by fork"],
    "mix": ["no workers", "1 by process"],
    "packed": ["no workers", "2 by fork"],
    "wrapped": ["2 by thread"],
    "formed": ["1 by fork"],
    "transformed": ["2 by thread"],
    "collated": ["1 by fork"],
    "sampler": ["2 by thread"],
    "batch_sampler": ["no workers", "5 by thread"],
    "buckets": ["no workers", "2 by fork"],
    "iterable": ["no workers", "1 by fork"],
    "interleave": ["2 by thread"],
}


@pytest.mark.parametrize("name", resumes.ORDERS)
def test_one_hash(name: str) -> None:
    """The rows are those of the run that was not cut, whatever workers go on, on whatever ranks."""
    (count,) = resumes.examine(resumes.ORDERS[name], SLICES[name], every=47).values()
    assert count > 5


class Forgetful(resumes.Augmented):
    """Differs with what was read before."""

    read = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read += 1
        return {**super().__getitem__(index), "index": index + 1000 * self.read}


def test_what_differs_is_named() -> None:
    """The run that gave a second hash, and with which workers."""
    with pytest.raises(resumes.DifferentError) as raised:
        resumes.examine(resumes.Order(dataset=Forgetful), ["no workers"], every=40)
    assert re.fullmatch(
        r"no workers, cut at batch 0: [0-9a-f]{16}, expected [0-9a-f]{16}", str(raised.value)
    )
