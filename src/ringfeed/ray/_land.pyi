from collections.abc import Sequence
from typing import final

from typing_extensions import Self

from ringfeed.ray.filled import Filled, Packed, Part
from ringfeed.ring._ring import Ring
from ringfeed.spec.array import AnyArray
from ringfeed.spec.spec import Spec

def delivered(address: int) -> int: ...
def failures(address: int) -> tuple[tuple[int, bytes], ...]: ...

@final
class Collector:
    def __new__(cls, spec: Spec, offsets: Sequence[int], owner: Ring) -> Self: ...
    def collect(self, address: int) -> tuple[AnyArray | Packed, ...]: ...

@final
class Lander:
    def __new__(
        cls, spec: Spec, offsets: Sequence[int], owner: Ring, beyond: int, most: int, whole: bool
    ) -> Self: ...
    def check(self, address: int, rows: Sequence[int], filled: Filled) -> None: ...
    def land(
        self, address: int, parts: Sequence[Part]
    ) -> list[tuple[int, bytes | BaseException]]: ...
