"""NumPy functions with the result type that they have on lanes, which NumPy's own annotations lose for arrays of any dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tilec.emulator.errors import Lanes

where: Final[Callable[[Any, Any, Any], Lanes]] = np.where
searchsorted: Final[Callable[[Any, Any], Lanes]] = np.searchsorted
