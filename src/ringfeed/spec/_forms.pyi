from typing import final

import numpy as np

from ringfeed.ring._ring import Lease
from ringfeed.spec._fields import Field
from ringfeed.spec._writer import LeafWriter

@final
class FormField(Field):
    def finish(
        self, lease: Lease, rows: int, good: np.ndarray[tuple[int], np.dtype[np.int64]] | None
    ) -> None: ...
    def needed(self, lease: Lease, rows: int) -> int: ...

@final
class FormWriter(LeafWriter): ...
