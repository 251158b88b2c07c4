"""What one leaf of a sample is, and whether a value fits it.

Every refusal is a SpecError that says where, what came, what was expected and what to do.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from ringfeed._checks import error_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ringfeed.spec.conversion import Cast
    from ringfeed.spec.forms import Form

MAX_BYTES = 2**62  # of one leaf, so that a signed 64-bit integer counts them with room to spare
MAX_AXES = 32  # as many as the writer of slots describes
CONTAINERS = (tuple, list, dict)
TEXT = "SU"  # kinds of dtypes
UINT8, FLOAT32 = np.dtype("uint8"), np.dtype("float32")
USER_DTYPE = 2  # what dtype.isbuiltin is for dtypes that others registered, such as bfloat16

AnyDtype: TypeAlias = "np.dtype[Any]"
AnyArray: TypeAlias = "np.ndarray[Any, AnyDtype]"


class Leaf(NamedTuple):
    """One leaf of a spec: where it stands, its shape and dtype, and the bytes of ONE sample of it.

    ``variable``: the axes of ``shape`` along which a whole batch may be smaller. ``cast``: how
    uint8 becomes what the other fields say; None where the dataset gives just that. ``casts``:
    whether other dtypes are converted to this one. ``form``: of samples that differ in length, of
    which ``shape`` is what a slot has room for.
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

    ``dtype`` is anything that ``np.dtype`` takes, byte order included, except None. SpecError for
    dtypes that hold Python objects or have no width, negative axes, more than 32 axes or 2**62
    bytes.

    ``variable`` is for samples that may be smaller than ``shape`` along all axes (True), or along
    these, as in ``Array((512, 512, 3), "uint8", variable=(0, 1))``: a slot reserves the whole
    shape, and each batch is as large as its largest sample, with zeros after smaller ones. It is
    short for ``Array((None, None, 3), "uint8", max_shape=(512, 512, 3), form="pad")``. Whole
    batches, of a dataset or of ``collate_fn``, keep their shape.

    Any of ``scale``, ``offset``, ``mean``, ``std`` and ``layout`` converts uint8 samples to float32
    while they are written into the slot; see `Cast`. ``shape`` is that in the slot: with
    ``layout="CHW"`` the sample of ``Array((3, 224, 224), "float32", layout="CHW")`` has shape (224,
    224, 3).

    ``cast=True`` converts numbers of other dtypes while they are written, as in ``Array((4,),
    "float32", cast=True)`` for float64 samples: whole numbers into any dtype of numbers, floats
    into floats and complex numbers. Fractions are rounded as NumPy does it; SpecError for whole
    numbers that the dtype does not hold, and for finite ones that would become infinite.

    ``form`` is for samples that differ in length along axes that are None in ``shape``, up to
    ``max_shape``:

    - ``form="ragged"``, of axis 0: a batch holds a `Ragged`, all samples one after another. A slot
      has room for ``total`` elements along that axis, by default for rows times the longest.
    - ``form="pad"``, of any axes: a batch holds an array as long as its longest sample, or the
      first of the lengths ``pad_to`` that is long enough; the rest is ``padding_value``. With
      ``lengths=True`` it holds a `Padded` with the lengths, with ``mask=True`` a `Masked`.
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
            got = f"has shape {shape!r} and dtype {dtype!r}"
            expected, remedy = (
                "a tuple of ints and what np.dtype takes",
                "write it as ((224, 224, 3), 'uint8')",
            )
            raise error_of("Array", got, expected, remedy) from None
        room: Any = axes
        put = partial(object.__setattr__, self)  # it is frozen
        put("form", None)
        steps = {"scale": scale, "offset": offset, "mean": mean, "std": std, "layout": layout}
        converts = any(step is not None for step in steps.values())
        says = {
            "max_shape": max_shape,
            "total": total,
            "padding_value": padding_value or None,
            "pad_to": pad_to,
            "lengths": lengths or None,
            "mask": mask or None,
        }
        if None in axes or any(one is not None for one in (form, *says.values())):
            from ringfeed.spec.form_arrays import form_of  # noqa: PLC0415 - only where it is needed

            others = {"variable=": variable, "scale=, offset=, mean=, std= or layout=": converts}
            put("form", form_of(axes, found, form, others, says))
            room = self.form.room  # type: ignore[union-attr]
        check_array(room, found, "Array")
        put("shape", room)
        put("dtype", found)
        put("variable", ())
        put("cast", None)
        put("casts", cast)
        if variable is not False:
            put("variable", _variable_axes(variable, room))
        if converts or cast is not False:
            from ringfeed.spec.conversion import cast_of  # noqa: PLC0415 - only where it is needed

            put("cast", cast_of(self, steps if converts else {}))

    def __repr__(self) -> str:
        name = str(self.dtype)
        all_vary = len(self.variable) == len(self.shape)
        more = f", variable={True if all_vary else self.variable}" if self.variable else ""
        more += "" if self.cast is None else self.cast.said()
        more += ", cast=True" if self.casts else ""
        shape: tuple[int | None, ...] = self.shape
        if self.form is not None:
            shape, more = self.form.shape, self.form.said(self.dtype) + more
        return f"Array({shape}, {name if self.dtype.names else repr(name)}{more})"


def has_array(value: object) -> bool:
    """Whether a value says that it is an array."""
    # Asked of the type, because a PIL image converts its picture when it is asked itself.
    names = "__array__", "__array_interface__", "__array_struct__"
    return any(hasattr(type(value), name) for name in names)


def fields_of(value: object) -> tuple[str, ...] | None:
    """Return the field names of a NamedTuple, None for anything else."""
    fields = (
        getattr(value, "_fields", None)
        if isinstance(value, tuple) and hasattr(value, "_make")
        else None
    )
    is_named = isinstance(fields, tuple) and len(fields) == len(value)  # type: ignore[arg-type]
    return fields if is_named else None


def shown(value: object) -> str:
    """Say what a value is; containers are shown alike if they match, but for keys of dicts."""
    if (fields := fields_of(value)) is not None:
        return f"the NamedTuple {type(value).__name__}({', '.join(map(str, fields))})"
    if isinstance(value, (tuple, list)):
        return f"a {'tuple' if isinstance(value, tuple) else 'list'} of {len(value)}"
    if isinstance(value, dict):
        return "a dict"
    return "None" if value is None else f"of type {type(value).__name__}"


def _variable_axes(
    variable: bool | Sequence[SupportsIndex],  # noqa: FBT001
    shape: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the numbers of the axes that ``variable`` names."""
    every = range(len(shape))
    if variable is True:
        return tuple(every)
    try:
        axes = {operator.index(axis) for axis in variable}  # type: ignore[union-attr]
    except TypeError:
        axes = {-1}
    if not axes <= set(every):
        raise error_of(
            "Array",
            f"has variable={variable!r}",
            f"True, or numbers of axes of {shape}, which count from 0",
            "write it as in variable=(0, 1)",
        )
    return tuple(sorted(axes))


def check_array(shape: tuple[int, ...], dtype: AnyDtype, where: str) -> None:
    """Refuse what no slot can hold."""
    if dtype.hasobject or dtype.subdtype is not None or not dtype.itemsize:
        raise error_of(
            where,
            f"has dtype {dtype}",
            "one of fixed width, without Python objects and without a shape of its own",
            "choose one such as 'uint8' or 'S16'",
        )
    if len(shape) > MAX_AXES:
        raise error_of(
            where, f"has {len(shape)} axes", f"at most {MAX_AXES}", "merge some with reshape"
        )
    # Of absolute values, and before a shape is printed: Python refuses to print ints of thousands
    # of digits.
    if math.prod(abs(axis) or 1 for axis in shape) * dtype.itemsize > MAX_BYTES:
        raise error_of(
            where, "has more than 2**62 bytes", "a shape that fits in memory", "make it smaller"
        )
    if any(axis < 0 for axis in shape):
        raise error_of(where, f"has shape {shape}", "axes of 0 or more", "write every axis out")


def copy_of(array: AnyArray) -> AnyArray:
    """Return a private copy byte for byte: NumPy's own leaves padding undefined."""
    plain = array.dtype.names is None
    copied: AnyArray = (
        array.copy() if plain else np.ndarray(array.shape, array.dtype, bytearray(array.tobytes()))
    )
    return copied
