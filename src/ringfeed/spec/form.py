"""What is asked of a leaf's form, where its samples differ in length: the room `forms` has what answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringfeed.ring._ring import Ring
    from ringfeed.spec._fields import Fields, FormFields
    from ringfeed.spec._writer import FormWriter
    from ringfeed.spec.array import AnyArray, AnyDtype, Leaf
    from ringfeed.spec.spec import Spec


class Form(Protocol):
    """How the samples of a leaf, which differ in length, lie in a batch: see `forms.forms.Form`."""

    @property
    def name(self) -> str:
        """One of "ragged", "pad", "bytes" and "text"."""

    @property
    def most(self) -> tuple[int, ...]:
        """The shape of the largest sample."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that vary."""

    @property
    def total(self) -> int | None:
        """Elements of a whole batch along the varying axis; None: so many as its rows may have."""

    @property
    def padding(self) -> bytes:
        """One element of what shorter samples are filled up with."""

    @property
    def pad_to(self) -> tuple[int, ...]:
        """Lengths to choose from; empty: the longest of the batch."""

    @property
    def beside(self) -> str | None:
        """What comes beside the values, if anything does."""

    @property
    def is_padded(self) -> bool:
        """Whether all rows of a batch have one shape."""

    @property
    def unit(self) -> str:
        """What lengths and totals count."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of a sample, None where it varies."""

    @property
    def room(self) -> tuple[int, ...]:
        """The shape that a slot has room for."""

    def said(self, dtype: AnyDtype) -> str:
        """Return the arguments that make it of an Array, as they are written there."""

    def record_size(self) -> int:
        """Return the bytes of what is written down of a row, before the field."""

    def field_size(self, leaf: Leaf, rows: int) -> int:
        """Return the bytes of the field of a leaf."""

    def open_fields(self, spec: Spec, offsets: Sequence[int]) -> FormFields:
        """Return what knows the fields of all leaves with a form."""

    def open_writer(self, spec: Spec, fields: Fields, owner: Ring) -> FormWriter:
        """Return what writes into them."""

    def given(self, array: AnyArray) -> Any:
        """Return what the elements of one sample are given as."""

    def join(self, values: Any, beside: Any) -> Any:
        """Return what a batch holds: values, with what is beside them."""

    def joined(self, leaf: Leaf, samples: Sequence[AnyArray]) -> Any:
        """Return what a batch of these samples holds, as a copy."""

    def values_of(self, batch: Any) -> Any:
        """Return the values of what a batch holds, with a row a sample where it is padded."""
