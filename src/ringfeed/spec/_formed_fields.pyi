from collections.abc import Sequence
from typing import final

from typing_extensions import Self

from ringfeed.spec._fields import FormFields
from ringfeed.spec.spec import Spec

@final
class Differing(FormFields):
    def __new__(cls, spec: Spec, offsets: Sequence[int]) -> Self: ...
