"""Names of loop variables that mean something to the tools of the prover: a kernel's text goes in, the same kernel comes out.

A name changes no verdict. isl reads `nan`, `Max` or `INFTY` as words of its own, in any case.
"""

from __future__ import annotations

import random
import re

RESERVED_NAMES = ("nan", "NAN", "Max", "infinity", "exists", "Or", "INFTY", "rat", "mod", "true", "floord", "e")
SHARE = 0.4
"""Share of loop variables with such a name."""
_LOOP = re.compile(r"^\s*for (\w+) in range", re.MULTILINE)


def renamed(text: str) -> str:
    """The text with other names for some of its loop variables; the same text gives the same names."""
    draw = random.Random(text)
    for name in dict.fromkeys(_LOOP.findall(text)):
        free = [word for word in RESERVED_NAMES if not re.search(rf"\b{word}\b", text)]
        if free and draw.random() < SHARE:
            text = re.sub(rf"\b{name}\b", draw.choice(free), text)
    return text
