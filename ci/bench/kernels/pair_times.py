"""What the times of two alternatives say that ran next to each other in many rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def longer(samples: Sequence[tuple[float, float]]) -> float:
    """By how much the first of a pair takes longer than the second: the median over neighbouring rounds, an even number, which
    ran them in both orders, because what is second finds a warmer chip."""
    neighbours = zip(samples[::2], samples[1::2], strict=True)
    return statistics.median((a[0] * b[0] / (a[1] * b[1])) ** 0.5 for a, b in neighbours) - 1
