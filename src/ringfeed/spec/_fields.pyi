from collections.abc import Sequence
from typing import Any, Self, TypeAlias, final

import numpy as np
from typing_extensions import disjoint_base

from ringfeed.ring._ring import Lease
from ringfeed.spec.array import Leaf
from ringfeed.spec.forms import Form
from ringfeed.spec.spec import Spec

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

@disjoint_base
class Field:
    def __new__(cls, leaf: Leaf, offset: int) -> Self: ...
    @property
    def form(self) -> Form | None: ...

@final
class Fields:
    def __new__(cls, spec: Spec, offsets: Sequence[int]) -> Self: ...
    @property
    def fields(self) -> list[Field]: ...
    @property
    def forms(self) -> tuple[tuple[int, Form], ...]: ...
    def besides(self, lease: Lease, rows: int) -> dict[int, _Array]: ...
    def needed(self, lease: Lease, rows: int) -> tuple[int, int] | None: ...
    def views(self, lease: Lease, rows: int) -> list[_Array]: ...
