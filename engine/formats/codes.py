"""Values of 8- and 4-bit floating-point codes as tables: every code in, its f32 value out.

e4m3 is the variant without infinities (`e4m3fn`; Micikevicius et al., FP8 formats for deep learning, 2022), e2m1 that of the
OCP microscaling specification 1.0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

E4M3_MAX: Final = 448.0
E2M1_MAX: Final = 6.0


def _e4m3() -> NDArray[np.float32]:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    magnitude[codes & 0x7F == 0x7F] = np.nan
    return np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)


E4M3: Final = _e4m3()
"""(256,); NaN at 0x7f and 0xff"""

E2M1: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""(16,)"""


def pairs(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(256, 2): the values of the low and the high nibble of each byte, by a table of (16,)."""
    byte = np.arange(256)
    return np.stack([values[byte & 15], values[byte >> 4]], axis=1)
