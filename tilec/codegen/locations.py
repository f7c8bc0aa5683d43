"""Locations for lowered text: from comments `// line N` to MLIR locations, which become `.loc` lines in PTX.

In: MLIR text, one operation or brace a line. Out: the same with a location on each operation that names line N of the tile IR's
text, under a constant file name: the same tile IR gives the same bytes on any path. Text without such comments stays as it is.
The debug information is of the kind that makes line directives and nothing else (LLVM, `DebugDirectivesOnly`): no `.debug`
sections, and optimisation as without it.
"""

from __future__ import annotations

import re
from typing import Final

from tilec.ir.lines import TEXT_NAME

PASS: Final = "ensure-debug-info-scope-on-llvm-func{emission-kind=DebugDirectivesOnly}"
_MARK: Final = re.compile(r"// line (\d+)")
_HEAD: Final = 1  # the line of the kernel's name, for what comes from no operation


def has_lines(mlir: str) -> bool:
    """Whether the text says which lines it came from."""
    return "\n// line " in mlir


def located(mlir: str) -> str:
    """The text with locations; an operation with regions has its own behind its last brace."""
    out: list[str] = []
    used, line, opened = {_HEAD}, _HEAD, list[int]()
    for text in mlir.splitlines():
        mark = _MARK.fullmatch(text)
        if mark:
            line = int(mark[1]) or _HEAD
            used.add(line)
        elif text.startswith("}"):
            out.append(text if text.endswith("{") else f"{text} loc(#l{opened.pop()})")
        elif text.endswith("{"):
            opened.append(line)
            out.append(text)
        else:
            out.append(f"{text} loc(#l{line})" if text else text)
    out += [f'#l{number} = loc("{TEXT_NAME}":{number}:1)' for number in sorted(used)]
    return "\n".join(out) + "\n"
