from collections.abc import Sequence
from typing import final

from typing_extensions import Self, disjoint_base

from ringfeed.ring._ring import Ring
from ringfeed.spec.spec import Spec

@disjoint_base
class OtherValues: ...

@disjoint_base
class FormWriter: ...

@final
class FieldWriter:
    def __new__(cls, spec: Spec, offsets: Sequence[int], owner: Ring) -> Self: ...
