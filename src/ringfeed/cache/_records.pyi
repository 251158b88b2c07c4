from collections.abc import Callable
from typing import Any, Final, Self, final

from typing_extensions import Buffer

from ringfeed.spec._rows import RowWriter

ABSENT: Final[int]
BEYOND: Final[int]
BROKEN: Final[int]

@final
class Records:
    @property
    def memory(self) -> Any: ...
    def __new__(cls, memory: Buffer, seen: Buffer, first: int, run: int, identity: int) -> Self: ...
    def find(self, index: int) -> int: ...
    def entry_of(self, index: int, offset: int, record: Buffer) -> tuple[int, int]: ...
    def gather(
        self,
        claim_address: int,
        writer: RowWriter,
        head: bytes,
        columns: Any,
        context: Any,
        on_error: Callable[..., None],
    ) -> bool | None: ...

def first_of(claim_address: int) -> tuple[int, int] | None: ...
def fence() -> None: ...
def add(counts: Buffer, number: int, count: int) -> None: ...
