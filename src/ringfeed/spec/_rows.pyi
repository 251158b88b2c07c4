from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeAlias, final

from typing_extensions import disjoint_base

from ringfeed.ring._ring import Ring
from ringfeed.spec.spec import Node, Spec

_OnError: TypeAlias = Callable[[int, int, BaseException], None]

class _Context(Protocol):
    index: int | None

@disjoint_base
class RowChange: ...

@final
class Structure:
    def __new__(cls, node: Node, tree: object) -> Self: ...

@final
class RowWriter:
    change: RowChange | None
    def __new__(cls, spec: Spec, offsets: Sequence[int], owner: Ring, beyond: int) -> Self: ...
    def samples(
        self,
        claim_address: int,
        getitem: Callable[[int], Any],
        context: _Context,
        on_error: _OnError,
    ) -> bool: ...
    def rows(
        self,
        claim_address: int,
        read_into: Callable[[int, Any], Any],
        context: _Context,
        on_error: _OnError,
    ) -> bool: ...
    def bulk(
        self,
        claim_address: int,
        getitems: Callable[[list[int]], Any],
        context: _Context,
        on_error: _OnError,
    ) -> bool: ...
    def gather(
        self, claim_address: int, columns: object, context: _Context, on_error: _OnError
    ) -> bool: ...
    def batch(
        self,
        claim_address: int,
        getitem: Callable[[int], Any],
        most: int,
        context: _Context,
        on_error: _OnError,
    ) -> bool: ...

def row_of(spec: Spec, arrays: tuple[Any, ...], length: int, index: int) -> Any: ...
