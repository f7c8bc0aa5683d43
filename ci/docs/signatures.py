"""Formats signatures for pages: on one line if they fit, otherwise one parameter per line."""

from __future__ import annotations

import re
from typing import Final

WIDTH: Final = 92
"""Maximum width of code on a page, in characters."""


def laid_out(name: str, arguments: str, returned: str = "") -> str:
    """`name(arguments)returned` as a code block."""
    shown = f"{name}({arguments}){returned}"
    if len(shown) > WIDTH:
        shown = f"{name}(\n" + "".join(f"    {part},\n" for part in _split(arguments)) + f"){returned}"
    return f"```python\n{shown}\n```\n"


def spaced(arguments: str) -> str:
    """The output of `ast.unparse`, with spaces around `=` after annotations."""
    return re.sub(r"(: [^=,]+)=", r"\1 = ", arguments)


def _split(text: str) -> list[str]:
    """The parts between commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
