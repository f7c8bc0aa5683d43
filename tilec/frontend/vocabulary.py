"""Registry of the builders of words: `@word("where")` decorates the function that takes the arguments of `where` and returns
its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.frontend.arguments import Call
from tilec.frontend.emitter import Term

WORDS: Final[dict[str, Callable[[Call], Term]]] = {}
"""Keyed by word; importing `words`, `composed`, `reductions`, `joins`, `scans`, `sorts`, `takes`, `memory`, `ranks` and
`printing` of `tilec.frontend` fills it."""
METHODS: Final = ("astype", "reshape", "permute", "broadcast_to")
"""Words that are also methods of tiles."""


def word(*names: str) -> Callable[[Callable[[Call], Term]], Callable[[Call], Term]]:
    """Registers a function as the builder of these words."""

    def enter(build: Callable[[Call], Term]) -> Callable[[Call], Term]:
        for name in names:
            assert name not in WORDS, name
            WORDS[name] = build
        return build

    return enter
