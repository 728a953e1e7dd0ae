"""Types of NumPy arrays, by what they hold."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
