from typing import final

from typing_extensions import Self

from ringfeed.spec.spec import Spec

@final
class Structure:
    def __new__(cls, spec: Spec) -> Self: ...
