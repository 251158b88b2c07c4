"""Arrays as a dataset of samples, for what is done to samples one by one."""

from __future__ import annotations

from typing import Any

import numpy as np


class Rows:
    """A dataset of arrays, row by row; ``copied``: for what may change a row in place."""

    def __init__(self, columns: Any, *, copied: bool = False) -> None:
        self.columns = columns
        self.copied = copied

    def __getitem__(self, index: int) -> Any:
        return self._row(self.columns, index)

    def _row(self, columns: Any, index: int) -> Any:
        if isinstance(columns, dict):
            return {key: self._row(child, index) for key, child in columns.items()}
        if isinstance(columns, tuple):
            parts = [self._row(child, index) for child in columns]
            return columns._make(parts) if hasattr(columns, "_make") else tuple(parts)
        row = np.asarray(columns)[index, ...]
        return row.copy() if self.copied else row
