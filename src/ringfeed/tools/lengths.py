"""What a slot reserves for samples that differ in length, beside what they need: notes under the table of `plan`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfeed._progress import tell
from ringfeed._units import show_bytes
from ringfeed.datasets.terms import Terms
from ringfeed.engine.open_source import open_source
from ringfeed.spec.form_checks import padded
from ringfeed.spec.form_values import fitting
from ringfeed.spec.layout import field_size

if TYPE_CHECKING:
    from ringfeed.spec.array import AnyArray, Leaf
    from ringfeed.spec.spec import Spec

READ = 32  # samples, spread over the dataset
SPREAD = (
    6  # standard deviations of a batch's size: what it needs once in a thousand million batches, if sizes are normal
)


def usage(dataset: Any, spec: Spec, rows: int) -> list[str]:
    """Return a note for each leaf with a form, from some samples; none for a dataset whose samples have no numbers.

    A sample that fails ends no plan: it is told of.
    """
    spec = padded(spec) if rows > 1 else spec
    leaves = {number: leaf for number, leaf in enumerate(spec.leaves) if leaf.form is not None}
    source = open_source(dataset, Terms(1, spec)) if leaves else None
    length = None if source is None or source.streams else source.length()
    if source is None or not length:
        return []
    indices = sorted({*np.linspace(0, length - 1, min(length, READ)).astype(int).tolist()})
    sizes: list[list[int]] = []  # bytes of each leaf, by the sample
    failed: list[str] = []
    for number, index in enumerate(indices):
        tell(f"reading sample {index}", number / len(indices))
        try:
            sample = spec.flatten(source.read(index), index)
            where = f"dataset[{index}]: "
            sizes.append([fitting(leaf, sample[number], where + leaf.path).nbytes for number, leaf in leaves.items()])
        except Exception as error:  # noqa: BLE001 - of the user's dataset
            failed.append(f"dataset[{index}] raised {type(error).__name__}: {error}".removesuffix(": "))
    notes = (
        [_note(leaf, rows, np.array(own)) for leaf, *own in zip(leaves.values(), *sizes, strict=True)] if sizes else []
    )
    return [*notes, f"{len(failed)} of {len(indices)} samples failed: {failed[0]}."] if failed else notes


def _note(leaf: Leaf, rows: int, sizes: AnyArray) -> str:
    """Say what a slot reserves for a leaf, what a batch needs, and which total would hold it."""
    assert leaf.form is not None
    said = (
        f"{leaf.path} is {leaf.form.name}: a slot reserves {show_bytes(field_size(leaf, rows))} for {rows:,} samples, "
        f"and {len(sizes)} that were read have {show_bytes(round(sizes.mean()))} on average, {show_bytes(sizes.max())} "
        f"at most, so a batch needs about {show_bytes(round(rows * sizes.mean()))}"
    )
    unit = leaf.nbytes // leaf.shape[0] or 1
    needed = rows * sizes.mean() + SPREAD * math.sqrt(rows) * sizes.std()
    total = max(leaf.shape[0], math.ceil(needed / unit))
    if leaf.form.is_padded or leaf.form.total is not None or 2 * total > rows * leaf.shape[0]:
        return f"{said}."
    return f"{said}; total={total} would reserve {show_bytes(unit * (total + leaf.shape[0]))}."
