import numpy as np
import numpy.typing as npt

def schedule(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
