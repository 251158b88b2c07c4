from typing import final

from typing_extensions import Self

from ringfeed.spec._rows import Containers
from ringfeed.spec.spec import Spec

@final
class Structure(Containers):
    def __new__(cls, spec: Spec) -> Self: ...
