"""What one leaf of a sample is, and whether a value fits it.

Every refusal is a SpecError that says where, what came, what was expected and what to do.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from ringfeed.errors import SpecError
from ringfeed.spec.conversion import STEPS, Cast, may_cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    import numpy.typing as npt

    from ringfeed.spec.form import Form

MAX_BYTES = 2**62  # of one leaf, so that a signed 64-bit integer counts them with room to spare
MAX_AXES = 32  # as many as the writer of slots describes
MAX_SHOWN = 220  # characters of each part of an error, so that it is whole when it comes from a worker
CONTAINERS = (tuple, list, dict)
TEXT = "SU"  # kinds of dtypes
CHW_AXES = 3
UINT8, FLOAT32 = np.dtype("uint8"), np.dtype("float32")

AnyDtype: TypeAlias = "np.dtype[Any]"
AnyArray: TypeAlias = "np.ndarray[Any, AnyDtype]"


class Leaf(NamedTuple):
    """One leaf of a spec: where it stands, its shape and dtype, and the bytes of ONE sample of it.

    ``variable``: the axes of ``shape`` along which a whole batch may be smaller. ``cast``: how uint8 becomes what the
    other fields say; None where the dataset gives just that. ``casts``: whether other dtypes are converted to this one.
    ``form``: of samples that differ in length, of which ``shape`` is what a slot has room for.
    """

    path: str
    shape: tuple[int, ...]
    dtype: AnyDtype
    nbytes: int
    variable: tuple[int, ...] = ()
    cast: Cast | None = None
    casts: bool = False
    form: Form | None = None

    @property
    def given_shape(self) -> tuple[int, ...]:
        """The shape of what the dataset gives."""
        turned = self.cast is not None and self.cast.layout is not None
        return (*self.shape[1:], self.shape[0]) if turned else self.shape

    @property
    def given_dtype(self) -> AnyDtype:
        """The dtype of what the dataset gives."""
        return self.dtype if self.cast is None else UINT8


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Array:
    """Shape and dtype of one array of a sample, as in ``Array((224, 224, 3), "uint8")``.

    ``dtype`` is anything that ``np.dtype`` takes, byte order included, except None. Refused with SpecError:
    dtypes that hold Python objects or have no width, negative axes, more than 32 axes or 2**62 bytes.

    ``variable`` is for samples that may be smaller than ``shape`` along all axes (True), or along these, as in
    ``Array((512, 512, 3), "uint8", variable=(0, 1))``: a slot reserves the whole shape, and each batch is handed out in
    its own. It is ``Array((None, None, 3), "uint8", max_shape=(512, 512, 3), form="pad")`` in short, with zeros behind
    what is smaller than the largest sample of a batch; the whole batches of a dataset, or of ``collate_fn``, have one
    shape in all rows as they come.

    Any of ``scale``, ``offset``, ``mean``, ``std`` and ``layout`` makes a float32 array of the uint8 that the dataset
    gives, while it is written into the slot; see `Cast`. ``shape`` is that in the slot: with ``layout="CHW"`` the
    sample of ``Array((3, 224, 224), "float32", layout="CHW")`` has shape (224, 224, 3).

    ``cast=True`` converts numbers of other dtypes while they are written, as in ``Array((4,), "float32", cast=True)``
    for float64 samples: whole numbers into any dtype of numbers, floats into floats and complex numbers. Fractions are
    rounded as NumPy does it; SpecError for whole numbers that the dtype does not hold, and for finite ones that would
    become infinite. It is never done unless it is asked for.

    ``form`` is for samples that differ in length along axes that are None in ``shape``, up to ``max_shape``:

    - ``form="ragged"``, of axis 0: a batch holds a `Ragged`, all samples one after another. A slot has room for
      ``total`` elements along that axis, by default for rows times the longest.
    - ``form="pad"``, of any axes: a batch holds an array as long as its longest sample, or the first of the lengths
      ``pad_to`` that is long enough; the rest is ``padding_value``. With ``lengths=True`` it holds a `Padded`, which
      has the lengths besides, with ``mask=True`` a `Masked`.
    """

    shape: tuple[int, ...]
    dtype: AnyDtype
    variable: tuple[int, ...]
    cast: Cast | None
    casts: bool
    form: Form | None

    def __init__(  # noqa: PLR0913 - and those of its Cast
        self,
        shape: Sequence[SupportsIndex | None],
        dtype: npt.DTypeLike,
        *,
        form: Literal["ragged", "pad"] | None = None,
        max_shape: Sequence[SupportsIndex] | None = None,
        total: int | None = None,
        padding_value: float = 0,
        pad_to: int | Sequence[int] | None = None,
        lengths: bool = False,
        mask: bool = False,
        variable: bool | Sequence[SupportsIndex] = False,
        scale: float | None = None,
        offset: float | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        layout: str | None = None,
        cast: bool = False,
    ) -> None:
        try:
            axes = tuple(None if axis is None else operator.index(axis) for axis in shape)
            found = np.dtype(dtype or object)  # np.dtype(None) would be float64
        except (TypeError, ValueError, SyntaxError):
            got, remedy = f"has shape {shape!r} and dtype {dtype!r}", "write it as ((224, 224, 3), 'uint8')"
            raise error_of("Array", got, "a tuple of ints and what np.dtype takes", remedy) from None
        room: Any = axes
        found_form = None
        if None in axes or (form, max_shape, total, pad_to) != (None,) * 4 or padding_value or lengths or mask:
            from ringfeed.forms.checks import form_of  # noqa: PLC0415 - their room

            casts = any(step is not None for step in (scale, offset, mean, std, layout))
            besides = {"variable=": variable, "scale=, offset=, mean=, std= or layout=": casts}
            says = {"total": total, "padding_value": padding_value, "pad_to": pad_to, "lengths": lengths, "mask": mask}
            found_form = form_of(axes, found, max_shape, form, besides, **says)
            room = found_form.room
        check_array(room, found, "Array")
        object.__setattr__(self, "shape", room)
        object.__setattr__(self, "dtype", found)
        object.__setattr__(self, "form", found_form)
        object.__setattr__(self, "variable", _checked_axes(variable, room))
        steps = Cast(scale=scale, offset=offset, mean=mean, std=std, layout=layout)  # type: ignore[arg-type]
        object.__setattr__(self, "cast", None if steps == Cast() else _checked_cast(steps, self))
        object.__setattr__(self, "casts", _checked_casts(cast, self))

    def __repr__(self) -> str:
        name = str(self.dtype)
        all_vary = len(self.variable) == len(self.shape)
        more = f", variable={True if all_vary else self.variable}" if self.variable else ""
        for step in (*STEPS, "layout"):
            if (value := getattr(self.cast, step, None)) is not None:
                more += f", {step}={value!r}"
        more += ", cast=True" if self.casts else ""
        shape: tuple[int | None, ...] = self.shape
        if self.form is not None:
            shape, more = self.form.shape, self.form.said(self.dtype) + more
        return f"Array({shape}, {name if self.dtype.names else repr(name)}{more})"


def fields_of(value: object) -> tuple[str, ...] | None:
    """Return the field names of a NamedTuple, None for anything else."""
    fields = getattr(value, "_fields", None) if isinstance(value, tuple) and hasattr(value, "_make") else None
    return fields if isinstance(fields, tuple) and len(fields) == len(value) else None  # type: ignore[arg-type]


def shown(value: object) -> str:
    """Say what a value is; containers are shown alike exactly if they match, but for the keys of dicts."""
    if (fields := fields_of(value)) is not None:
        return f"the NamedTuple {type(value).__name__}({', '.join(map(str, fields))})"
    if isinstance(value, (tuple, list)):
        return f"a {'tuple' if isinstance(value, tuple) else 'list'} of {len(value)}"
    if isinstance(value, dict):
        return "a dict"
    return "None" if value is None else f"of type {type(value).__name__}"


def error_of(where: str, got: str, expected: object, remedy: str) -> SpecError:
    """Return the refusal of what stands at ``where``."""
    parts = where, got, str(expected)
    where, got, expected = [part if len(part) <= MAX_SHOWN else f"{part[:90]} ... {part[-90:]}" for part in parts]
    return SpecError(f"{where} {got}, expected {expected}; {remedy}")


def check_array(shape: tuple[int, ...], dtype: AnyDtype, where: str) -> None:
    """Refuse what no slot can hold."""
    if dtype.hasobject or dtype.subdtype is not None or not dtype.itemsize:
        expected = "one of fixed width, without Python objects and without a shape of its own"
        raise error_of(where, f"has dtype {dtype}", expected, "choose one such as 'uint8' or 'S16'")
    if len(shape) > MAX_AXES:
        raise error_of(where, f"has {len(shape)} axes", f"at most {MAX_AXES}", "merge some with reshape")
    # Of absolute values, and before a shape is printed: Python refuses to print ints of thousands of digits.
    if math.prod(abs(axis) or 1 for axis in shape) * dtype.itemsize > MAX_BYTES:
        raise error_of(where, "has more than 2**62 bytes", "a shape that fits in memory", "make it smaller")
    if any(axis < 0 for axis in shape):
        raise error_of(where, f"has shape {shape}", "axes of 0 or more", "write every axis out")


def copy_of(array: AnyArray) -> AnyArray:
    """Return a private copy, byte for byte: NumPy's own leaves the padding of structured dtypes undefined."""
    plain = array.dtype.names is None
    copied: AnyArray = array.copy() if plain else np.ndarray(array.shape, array.dtype, bytearray(array.tobytes()))
    return copied


def _checked_axes(variable: bool | Sequence[SupportsIndex], shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: FBT001
    """Return the numbers of the axes that ``variable`` names."""
    every = range(len(shape))
    if isinstance(variable, bool):
        return tuple(every) if variable else ()
    try:
        axes = {operator.index(axis) for axis in variable}
    except TypeError:
        axes = {-1}
    if not axes <= set(every):
        expected = f"True, or numbers of axes of {shape}, which count from 0"
        raise error_of("Array", f"has variable={variable!r}", expected, "write it as in variable=(0, 1)")
    return tuple(sorted(axes))


def _checked_cast(cast: Cast, array: Array) -> Cast:
    """Return the cast, or refuse one that its Array has no place for."""
    shape, varies = array.shape, f"variable={array.variable}"
    if array.dtype != FLOAT32:
        remedy = "make it 'float32', or leave scale=, offset=, mean=, std= and layout= out"
        raise error_of("Array", f"has dtype {array.dtype}", "float32, the one that uint8 is converted to", remedy)
    if cast.layout not in (None, "CHW"):
        remedy = "leave layout= out for what stays as it is"
        raise error_of("Array", f"has layout={cast.layout!r}", "'CHW' or None", remedy)
    if cast.layout is not None and len(shape) != CHW_AXES:
        expected = "the axes (channels, height, width)"
        raise error_of("Array", f"has layout='CHW' and shape {shape}", expected, "leave layout= out, or reshape it")
    if cast.layout is not None and array.variable:
        remedy = "give the one or the other, and turn the batch round in __getitem__"
        raise error_of("Array", f"has layout='CHW' and {varies}", "the same shape for all batches", remedy)
    axis = 0 if cast.layout is not None else len(shape) - 1
    channels = shape[axis] if shape else 1
    if cast.channels is not None and axis in array.variable:
        expected = "the same channels in all batches, as mean= and std= have a number for each"
        raise error_of("Array", f"has {varies}", expected, "leave that axis out of variable=")
    if cast.channels not in {None, channels}:
        got, expected = f"has {cast.channels} numbers in mean= or std=", f"{channels}, one a channel of {shape}"
        raise error_of("Array", got, expected, "give one for each, or one number for all")
    return cast


def _checked_casts(casts: object, array: Array) -> bool:
    """Return whether other dtypes are converted, or refuse what there is no such conversion for."""
    if not isinstance(casts, bool):
        raise error_of("Array", f"has cast={casts!r}", "True or False", "write it as in cast=True")
    if casts and array.cast is not None:
        remedy = "leave cast= out: uint8 is converted already"
        raise error_of("Array", "has cast=True beside scale=, offset=, mean=, std= or layout=", "one of them", remedy)
    if casts and not may_cast(np.dtype("bool"), array.dtype):
        remedy = "leave cast= out: shorter strings are taken anyway" if array.dtype.kind in "SU" else "leave cast= out"
        raise error_of("Array", f"has cast=True and dtype {array.dtype}", "a dtype of numbers", remedy)
    return casts
