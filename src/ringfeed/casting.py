"""From whole numbers to floating point: what a `Cast` means, wherever it is carried out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cast:
    """What becomes of uint8 on its way to the model: ``((x * scale + offset) - mean) / std``, in ``dtype``.

    What is None is left out, and no step is merged with another. ``mean`` and ``std``: one number, or one for each
    channel, which is the last axis of the sample. ``layout="CHW"``: a sample of shape (height, width, channels)
    comes out as (channels, height, width).
    """

    dtype: str = "float32"
    scale: float | None = None
    offset: float | None = None
    mean: float | tuple[float, ...] | None = None
    std: float | tuple[float, ...] | None = None
    layout: str | None = None
