from typing import Self

from typing_extensions import disjoint_base

from ringfeed.ring._ring import Ring
from ringfeed.spec.spec import Spec

@disjoint_base
class LeafWriter:
    def __new__(cls, spec: Spec, number: int, offset: int, owner: Ring) -> Self: ...
