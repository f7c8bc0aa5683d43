"""What a call of a word of the language builds: one function each, entered where it is written.

`@word("where")` stands above the function that takes the arguments of `where` and returns its value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.frontend.arguments import Call
from tilec.frontend.emitter import Term

WORDS: Final[dict[str, Callable[[Call], Term]]] = {}
"""By word; importing `tilec.frontend.words` and `tilec.frontend.memory` fills it."""
METHODS: Final = ("astype", "reshape", "permute", "broadcast_to")
"""Words that are methods of tiles too."""


def word(*names: str) -> Callable[[Callable[[Call], Term]], Callable[[Call], Term]]:
    """Enter a function in the table."""

    def enter(build: Callable[[Call], Term]) -> Callable[[Call], Term]:
        for name in names:
            assert name not in WORDS, name
            WORDS[name] = build
        return build

    return enter
