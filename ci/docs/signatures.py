"""Signatures as pages show them: on one line where they fit, else one parameter a line."""

from __future__ import annotations

import re
from typing import Final

WIDTH: Final = 92
"""Characters of code that a page has room for."""


def laid_out(name: str, arguments: str, returned: str = "") -> str:
    """`name(arguments)returned` as a block of code."""
    shown = f"{name}({arguments}){returned}"
    if len(shown) > WIDTH:
        shown = f"{name}(\n" + "".join(f"    {part},\n" for part in _split(arguments)) + f"){returned}"
    return f"```python\n{shown}\n```\n"


def spaced(arguments: str) -> str:
    """What `ast.unparse` writes, with spaces around `=` behind annotations."""
    return re.sub(r"(: [^=,]+)=", r"\1 = ", arguments)


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
