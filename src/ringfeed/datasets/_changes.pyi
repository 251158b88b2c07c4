from collections.abc import Callable
from typing import Any, TypeAlias, final

from typing_extensions import Self

from ringfeed.spec._rows import RowChange, RowWriter

_OnError: TypeAlias = Callable[[int, int, BaseException], None]

@final
class RowTransform(RowChange):
    def __new__(cls, transform: Callable[[int, Any], Any]) -> Self: ...

@final
class BatchWriter:
    def __new__(cls, rows: RowWriter) -> Self: ...
    def change(
        self,
        claim_address: int,
        fill: Callable[[], bool],
        transform: Callable[[tuple[int, ...], Any], Any],
        whole: bool,
        skips: bool,
        on_error: _OnError,
    ) -> bool: ...
    def collate(
        self,
        claim_address: int,
        fill: Callable[[], bool],
        make: Callable[[tuple[int, ...]], Any],
        change: Callable[[tuple[int, ...], Any], Any] | None,
        most: int,
        skips: bool,
        on_error: _OnError,
    ) -> bool: ...

def fill_draws(
    claim_address: int, index_at: int, weight_at: int, fill: Callable[[], bool]
) -> bool: ...
