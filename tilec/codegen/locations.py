"""Locations for lowered text: comments `// line N` become MLIR locations, which become `.loc` lines in PTX.

In: MLIR text, one operation or brace per line. Out: the same with a location on each operation that names line N of the tile IR
text, under a constant file name, so that the bytes do not depend on any path. Text without such comments is unchanged. After
`// line N replicated` the column is `tilec.ir.text.lines.REPLICATED`, which tells the emulator that several threads store the
same value; a location changes no instruction, so this costs nothing. The debug information contains only line directives (LLVM,
`DebugDirectivesOnly`): no `.debug` sections, and the same optimisation as without it.
"""

from __future__ import annotations

import re
from typing import Final

from tilec.ir.text.lines import PLAIN, REPLICATED, TEXT_NAME

PASS: Final = "ensure-debug-info-scope-on-llvm-func{emission-kind=DebugDirectivesOnly}"
_MARK: Final = re.compile(r"// line (\d+)( replicated)?")
_KERNEL_LINE: Final = 1  # the line of the kernel's name, for code that comes from no operation
LineColumn = tuple[int, int]
"""Line and column."""


def has_lines(mlir: str) -> bool:
    """Whether the text contains line comments."""
    return "\n// line " in mlir


def located(mlir: str) -> str:
    """The text with locations; the location of an operation with regions follows its last brace."""
    out: list[str] = []
    location: LineColumn = (_KERNEL_LINE, PLAIN)
    used, open_regions = set[LineColumn]([location]), list[LineColumn]()
    for text in mlir.splitlines():
        mark = _MARK.fullmatch(text)
        if mark:
            location = int(mark[1]) or _KERNEL_LINE, REPLICATED if mark[2] else PLAIN
            used.add(location)
        elif text.startswith("}"):
            out.append(text if text.endswith("{") else f"{text} loc({_name(*open_regions.pop())})")
        elif text.endswith("{"):
            open_regions.append(location)
            out.append(text)
        elif text.startswith("^"):
            out.append(text)  # the arguments of a block
        else:
            out.append(f"{text} loc({_name(*location)})" if text else text)
    out += [f'{_name(line, column)} = loc("{TEXT_NAME}":{line}:{column})' for line, column in sorted(used)]
    return "\n".join(out) + "\n"


def _name(line: int, column: int) -> str:
    return f"#l{line}" if column == PLAIN else f"#l{line}_{column}"
