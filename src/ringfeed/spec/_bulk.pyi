from collections.abc import Callable
from typing import Any

from ringfeed.spec._rows import RowWriter

def fill_many(
    writer: RowWriter,
    claim_address: int,
    getitems: Callable[[list[int]], Any],
    context: Any,
    on_error: Callable[[int, int, BaseException], None],
) -> bool: ...
