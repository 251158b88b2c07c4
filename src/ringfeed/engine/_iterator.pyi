from collections.abc import Callable
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, disjoint_base

from ringfeed.errors import RingfeedError
from ringfeed.monitor.faults import Loss
from ringfeed.monitor.stats import Stats
from ringfeed.ring._ring import Lease, Ring
from ringfeed.spec._fields import Fields
from ringfeed.spec.spec import Spec

@final
class Intake:
    own_wait_ns: int
    def __new__(cls, ring: Ring, fields: Fields, spec: Spec, rows: int) -> Self: ...
    @property
    def kept(self) -> Lease | None: ...
    @property
    def kept_rows(self) -> int | None: ...
    @property
    def settled(self) -> bool: ...
    def set_lets_go(self, lets_go: bool) -> None: ...
    def let_go(self) -> None: ...
    def take(self, epoch_id: int) -> bool: ...
    def keep_rows(self, batch: int, rows: int) -> None: ...
    error: RingfeedError | None
    error_epoch_id: int
    def close_gaps(
        self, batch: int, rows: int, good: npt.NDArray[np.int64], stats: Stats, loss: Loss
    ) -> None: ...
    def settle(self, batch: int, private: bool) -> None: ...
    def discard(self) -> None: ...

@final
class Progress:
    finished_batches: int
    planned_before: int
    is_over: bool

@disjoint_base
class Batches:
    progress: Progress
    def __init__(
        self,
        intake: Intake,
        epoch_id: int,
        build: Callable[[Lease, int], Any] | None,
        lock: object,
        progress: Progress,
        copy: bool = False,
    ) -> None: ...
    def raise_kept(self) -> None: ...
    def count_alone(self) -> Progress: ...
    @property
    def epoch_id(self) -> int: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
