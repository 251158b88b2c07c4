"""Arrays and CPU tensors, taken apart in the consumer (``reduce_…``) and made again in a worker.

A worker imports this module when its dataset holds an array.
"""

from __future__ import annotations

import mmap
import os
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ringfeed.transport.framework_stubs import resolve

PROTOCOL = 5
LARGE = 4096  # bytes; a smaller buffer costs a worker less inside the stream than beside it


def map_array(
    stretch: dict[str, Any],
    layout: dict[str, Any],
    writeable: bool,  # noqa: FBT001
    attributes: Any,
) -> object:
    """Return an array over a stretch of a file.

    ``stretch`` is what np.memmap takes, ``layout`` what np.ndarray does.

    It is a np.memmap where there are attributes for one, else a plain ndarray.
    """
    base: Any = np.memmap(**stretch)
    kind: type[Any] = np.ndarray if attributes is None else np.memmap
    made: Any = np.ndarray.__new__(kind, buffer=base, **layout)
    made.setflags(write=writeable)
    if attributes is not None:
        vars(made).update(vars(base), **attributes)
    return made


def make_tensor(
    flat: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...], strides: Any = None
) -> object:
    """Return a CPU tensor over the bytes of ``flat``; imports torch."""
    torch: Any = resolve("torch")
    tensor = torch.from_numpy(flat).view(getattr(torch, dtype))
    return tensor.reshape(shape) if strides is None else tensor.as_strided(shape, strides)


def reduce_tensor(tensor: Any) -> Any:
    """Take a plain CPU tensor apart as its bytes, so that any dtype goes; others go torch's way."""
    torch = sys.modules["torch"]
    plain = tensor.layout is torch.strided and not (tensor.requires_grad or tensor.is_quantized)
    if tensor.device.type != "cpu" or not plain or tensor.is_conj() or tensor.is_neg():
        return tensor.__reduce_ex__(PROTOCOL)
    shape, strides = tuple(tensor.shape), tensor.stride()
    reach = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if tensor.is_contiguous() or reach >= tensor.numel():
        flat, strides = tensor.contiguous().reshape(-1), None
    else:  # it has elements in several places, such as windows of a series: once is enough
        flat = tensor.as_strided((reach,), (1,))
    return make_tensor, (
        flat.view(torch.uint8).numpy(),
        str(tensor.dtype).partition(".")[2],
        shape,
        strides,
    )


def reduce_array(array: np.ndarray[Any, Any]) -> Any:
    """Take an array apart as a place in a file, or as one contiguous buffer.

    Objects go NumPy's way.
    """
    in_file = _in_file(array)
    if in_file is not None:
        return in_file
    plain = np.asarray(array)
    if plain.dtype.hasobject or plain.dtype.itemsize == 0:
        return array.__reduce_ex__(PROTOCOL)
    flat: Any
    if not plain.flags.forc:
        low, high = _bounds(plain) if plain.size else (0, 0)
        if high - low < plain.nbytes:
            # Elements that are in several places, such as windows of a series, travel once.
            flat = _memory(plain, low, high - low)
            return _over(flat, plain, _address(plain) - low, plain.strides)
        plain = plain.copy(order="C")
        plain.flags.writeable = array.flags.writeable
    order = "F" if plain.flags.fnc else "C"
    # Bytes, as NumPy exports no buffer of dates or of dtypes that are not its own.
    flat = (plain.T if order == "F" else plain).reshape(-1).view(np.uint8)
    return _over(flat, plain, *(() if order == "C" else (0, None, order)))


def _over(flat: Any, array: np.ndarray[Any, Any], *place: Any) -> Any:
    """Return the reduce value of an array over these bytes; ``place``: as np.ndarray has it."""
    return np.ndarray, (array.shape, array.dtype, pickle.PickleBuffer(flat), *place)


def _memory(array: np.ndarray[Any, Any], address: int, size: int) -> np.ndarray[Any, Any]:
    """Return the bytes that an array lies among, as an array."""
    interface = {
        "version": 3,
        "data": (address, not array.flags.writeable),
        "shape": (size,),
        "typestr": "|u1",
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface, array=array))


def _in_file(array: np.ndarray[Any, Any]) -> Any:
    """Return the reduce value of an array that lies in a mapped file, None for any other."""
    root = _memmap_under(array)
    if root is None or array.size == 0 or not root.filename or not Path(root.filename).exists():
        return None
    low, high = _bounds(array)
    if root.mode == "c" and _may_be_written(low, high):
        return None
    start = root.offset + low - _address(root)
    mode = "r+" if root.mode == "w+" else root.mode  # w+ would empty the file
    layout = {
        "shape": array.shape,
        "dtype": array.dtype,
        "offset": _address(array) - low,
        "strides": array.strides,
    }
    stretch = {
        "filename": os.fspath(root.filename),
        "dtype": np.uint8,
        "mode": mode,
        "offset": start,
        "shape": (high - low,),
    }
    attributes = {"offset": array.offset} if isinstance(array, np.memmap) else None
    return map_array, (stretch, layout, array.flags.writeable, attributes)


def _memmap_under(array: Any) -> Any:
    """Return the np.memmap that mapped the file an array lies in."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap):
            return array
        array = array.base
    return None


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the addresses of an array's first byte, and past its last; it is not empty."""
    reach = [
        (length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)
    ]
    low = _address(array) + sum(min(0, step) for step in reach)
    return low, _address(array) + sum(max(0, step) for step in reach) + array.itemsize


def _may_be_written(low: int, high: int) -> bool:
    """Whether this process has written to a private mapping between two addresses, or may have.

    Its file lacks what was written.
    """
    inside = False
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:  # no /proc
        return True
    for line in lines:
        area = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if area:
            inside = int(area[1], 16) < high and int(area[2], 16) > low
        elif inside and re.match(r"(Anonymous|Swap): +[1-9]", line):
            return True
    return False
