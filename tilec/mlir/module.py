"""The MLIR module around a kernel's operations: dynamic shared memory and the function's signature and attributes.

In: the kernel's arguments and launch bounds, and the lines of its operations. Out: the text of the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.mlir.builder import DYNAMIC_SHARED
from tilec.mlir.types import GLOBAL, PARAMETER, SsaValue


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
) -> str:
    """`threads` per block. Registers are limited so that `min_blocks` blocks fit a multiprocessor (PTX ISA, `.minnctapersm`).
    `alignment` of the dynamic shared memory is in bytes. `cluster`: blocks of a cluster, consecutive on the first axis of the
    grid (PTX ISA, `.reqnctapercluster`)."""
    occupancy = f", nvvm.minctasm = {min_blocks} : i32" if min_blocks else ""
    if cluster > 1:
        occupancy += f", nvvm.cluster_dim = array<i32: {cluster}, 1, 1>"
    text_lines = [
        "module {",
        f"llvm.mlir.global external @{DYNAMIC_SHARED}() "
        f"{{addr_space = 3 : i32, alignment = {alignment} : i64}} : !llvm.array<0 x i8>",
        f"llvm.func @{symbol}({', '.join(map(_argument, arguments))}) attributes "
        f"{{nvvm.kernel, nvvm.reqntid = array<i32: {threads}>{occupancy}}} {{",
        *lines,
        "llvm.return",
        "}",
        "}",
    ]
    return "\n".join(text_lines) + "\n"


def _argument(argument: Argument) -> str:
    text = f"{argument.value.name}: {argument.value.type}"
    if argument.value.type is PARAMETER:
        bytes_ = f"!llvm.array<{argument.size} x i8>"
        return f"{text} {{llvm.byval = {bytes_}, llvm.align = {argument.alignment} : i64, nvvm.grid_constant}}"
    if argument.value.type is not GLOBAL:
        return text
    return f"{text} {{{'llvm.noalias, llvm.readonly' if argument.read_only else 'llvm.noalias'}}}"
