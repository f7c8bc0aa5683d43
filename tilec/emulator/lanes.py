"""NumPy functions whose result type is lost on arrays of any dtype, with the type that they have here: lanes in, lanes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tilec.emulator.errors import Lanes

where: Final[Callable[[Any, Any, Any], Lanes]] = np.where
searchsorted: Final[Callable[[Any, Any], Lanes]] = np.searchsorted
