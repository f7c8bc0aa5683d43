"""The MLIR module around a kernel's operations: dynamic shared memory and the function's signature and attributes.

In: the kernel's arguments and launch bounds, and the lines of its operations. Out: the text of the module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tilec.mlir.builder import DYNAMIC_SHARED, VPRINTF
from tilec.mlir.types import GLOBAL, PARAMETER, SsaValue

_PLAIN: Final = frozenset(b" " + bytes(range(48, 58)) + bytes(range(65, 91)) + bytes(range(97, 123)))
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel. A pointer to global memory is `noalias`: memory that the kernel writes through it is accessed
    through no other pointer; with `read_only`, nothing is written through it. An argument passed by value as bytes has `size`
    bytes, aligned to `alignment`, and is a `grid_constant`: it stays in parameter space."""

    value: SsaValue
    read_only: bool = False
    size: int = 0
    alignment: int = 0


def kernel_module(
    symbol: str,
    arguments: Sequence[Argument],
    lines: Sequence[str],
    *,
    threads: int,
    min_blocks: int | None,
    alignment: int,
    cluster: int = 1,
    printed: Mapping[str, str] = _NOTHING,
) -> str:
    """`threads` per block. Registers are limited so that `min_blocks` blocks fit a multiprocessor (PTX ISA, `.minnctapersm`).
    `alignment` of the dynamic shared memory is in bytes. `cluster`: blocks of a cluster, consecutive on the first axis of the
    grid (PTX ISA, `.reqnctapercluster`). `printed`: the symbols of the texts that it prints, by text."""
    occupancy = f", nvvm.minctasm = {min_blocks} : i32" if min_blocks else ""
    if cluster > 1:
        occupancy += f", nvvm.cluster_dim = array<i32: {cluster}, 1, 1>"
    text_lines = [
        "module {",
        f"llvm.mlir.global external @{DYNAMIC_SHARED}() "
        f"{{addr_space = 3 : i32, alignment = {alignment} : i64}} : !llvm.array<0 x i8>",
        *([f"llvm.func @{VPRINTF}(!llvm.ptr, !llvm.ptr) -> i32"] if printed else []),
        *(_text(text, name) for text, name in printed.items()),
        f"llvm.func @{symbol}({', '.join(map(_argument, arguments))}) attributes "
        f"{{nvvm.kernel, nvvm.reqntid = array<i32: {threads}>{occupancy}}} {{",
        *lines,
        "llvm.return",
        "}",
        "}",
    ]
    return "\n".join(text_lines) + "\n"


def _text(text: str, symbol: str) -> str:
    """A constant in global memory, with every byte in hexadecimal that is no letter, digit or space."""
    data = [*text.encode(), 0]
    shown = "".join(chr(byte) if byte in _PLAIN else f"\\{byte:02X}" for byte in data)
    return (
        f'llvm.mlir.global internal constant @{symbol}("{shown}") '
        f"{{addr_space = 1 : i32, alignment = 1 : i64}} : !llvm.array<{len(data)} x i8>"
    )


def _argument(argument: Argument) -> str:
    text = f"{argument.value.name}: {argument.value.type}"
    if argument.value.type is PARAMETER:
        bytes_ = f"!llvm.array<{argument.size} x i8>"
        return f"{text} {{llvm.byval = {bytes_}, llvm.align = {argument.alignment} : i64, nvvm.grid_constant}}"
    if argument.value.type is not GLOBAL:
        return text
    return f"{text} {{{'llvm.noalias, llvm.readonly' if argument.read_only else 'llvm.noalias'}}}"
