from typing import final

from ringfeed.spec._writer import OtherValues

@final
class Otherwise(OtherValues): ...
