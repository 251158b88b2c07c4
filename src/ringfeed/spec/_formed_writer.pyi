from typing import final

from typing_extensions import Self

from ringfeed.ring._ring import Ring
from ringfeed.spec._fields import Fields
from ringfeed.spec._writer import FormWriter
from ringfeed.spec.spec import Spec

@final
class DifferingWriter(FormWriter):
    def __new__(cls, spec: Spec, fields: Fields, owner: Ring) -> Self: ...
