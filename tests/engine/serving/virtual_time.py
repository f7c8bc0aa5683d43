"""An event loop on which time passes at once: to sleep is to move the clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Jumps(selectors.SelectSelector):
    """To wait is to move the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return super().select(0)


def virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine on a loop whose clock is moved by sleeping alone."""
    selector = Jumps()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
