from typing import final

from ringfeed.spec._writer import OtherValues

@final
class CoercedValues(OtherValues): ...
