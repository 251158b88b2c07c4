from typing import final

from typing_extensions import Self

def reserve_huge(fd: int, size: int) -> None: ...

@final
class PrivateMapping:
    def __new__(cls, fd: int, least: int) -> Self: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
