"""What Python asks of a leaf's form, where its samples differ in length: `form_kinds` answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ringfeed.spec.array import AnyDtype, Leaf


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

    def join(self, values: Any, beside: Any) -> Any:
        """Return what a batch holds: values, with what is beside them."""
