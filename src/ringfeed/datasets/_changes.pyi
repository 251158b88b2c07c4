from collections.abc import Callable
from typing import Any, Self, TypeAlias, final

from ringfeed.datasets.base import Source
from ringfeed.spec._rows import RowChange, RowWriter

_OnError: TypeAlias = Callable[[int, int, BaseException], None]

@final
class RowTransform(RowChange):
    def __new__(cls, transform: Callable[[int, Any], Any]) -> Self: ...

@final
class SampleKeeper: ...

def keeper_of(rows: RowWriter, copies: bool) -> SampleKeeper: ...

@final
class BatchWriter:
    def __new__(cls, rows: RowWriter, keeper: SampleKeeper | None) -> Self: ...
    def fill(
        self,
        claim_address: int,
        fill: Callable[[], bool],
        make: Callable[[tuple[int, ...], list[Any]], Any] | None,
        change: Callable[[tuple[int, ...], Any], Any] | None,
        source: Source,
        on_error: _OnError,
    ) -> bool: ...

def fill_draws(
    claim_address: int, index_at: int, weight_at: int, fill: Callable[[], bool]
) -> bool: ...
