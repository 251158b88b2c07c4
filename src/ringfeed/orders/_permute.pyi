from typing import Final

import numpy as np
import numpy.typing as npt

ROUNDS: Final[int]
MAX_LENGTH: Final[int]

def walk(numbers: npt.NDArray[np.uint64], length: int, keys: npt.NDArray[np.uint32]) -> None: ...
