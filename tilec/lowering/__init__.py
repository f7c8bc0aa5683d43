"""Tile IR with layouts -> MLIR text (`llvm`, `nvvm` and `scf` dialects), one `llvm.func` per kernel.

In: a function from `tilec.passes.prepare`. Out: a module that code generation takes to PTX, and how to launch it. The text is
deterministic and names no source location: where the operations have lines of the tile IR's text, a comment `// line N` says
which one what follows came from (`tilec.codegen.locations` makes locations of them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tilec.artifact import AbiSlot
from tilec.diagnostics import CompileError, Diagnostic, Label
from tilec.ir import ops, ops_launch, ops_staging
from tilec.ir.core import Access, Function, Op
from tilec.ir.exchange import shared_bytes
from tilec.ir.lines import text_line
from tilec.ir.shared_plan import taken_bytes
from tilec.ir.types import TensorType
from tilec.lowering import arithmetic, control, launch, memory, mma, tensor_core, total
from tilec.lowering.context import Context, storage
from tilec.lowering.launch_terms import argument, symbol
from tilec.lowering.reduce import lower_reduce
from tilec.target import Target

__all__ = ["Lowered", "lower"]

RULES: Final[dict[type[Op], Callable[[Context, Any], None]]] = {
    ops.Constant: arithmetic.lower_constant,
    ops.Iota: arithmetic.lower_iota,
    ops.BlockId: arithmetic.lower_block_id,
    ops.NumBlocks: arithmetic.lower_num_blocks,
    ops.DimValue: arithmetic.lower_dim,
    ops.Unary: arithmetic.lower_unary,
    ops.Binary: arithmetic.lower_binary,
    ops.BinaryInRange: arithmetic.lower_binary,
    ops.Compare: arithmetic.lower_compare,
    ops.Select: arithmetic.lower_select,
    ops.Cast: arithmetic.lower_cast,
    ops.Broadcast: arithmetic.lower_broadcast,
    ops.Reshape: arithmetic.lower_reshape,
    ops.Permute: arithmetic.lower_permute,
    ops.Reduce: lower_reduce,
    ops.Load: memory.lower_load,
    ops.Store: memory.lower_store,
    ops.Gather: memory.lower_gather,
    ops.Scatter: memory.lower_scatter,
    ops.AtomicUpdate: memory.lower_atomic,
    ops.Mma: mma.lower_mma,
    ops_launch.WaitPrior: launch.lower_wait_prior,
    ops_staging.SharedAlloc: mma.lower_shared_alloc,
    ops_staging.AsyncCopy: mma.lower_async_copy,
    ops_staging.CommitCopies: lambda context, _: tensor_core.commit_copies(context),
    ops_staging.WaitCopies: mma.lower_wait_copies,
    ops_staging.BlockBarrier: lambda context, _: context.barrier(),
    ops_staging.SharedLoad: mma.lower_shared_load,
    ops_staging.GroupMma: mma.lower_group_mma,
    ops_staging.WaitMma: mma.lower_wait_mma,
    ops_staging.Relayout: arithmetic.lower_relayout,
    ops_staging.Part: arithmetic.lower_part,
}


@dataclass(frozen=True, slots=True)
class Lowered:
    """MLIR text and the launch it needs: entry symbol, arguments in order, threads and dynamic shared bytes per block, and
    whether the kernel waits by itself for the kernels before it."""

    mlir: str
    entry: str
    abi: tuple[AbiSlot, ...]
    num_threads: int
    dynamic_shared_bytes: int
    dependent_launch: bool


def lower(function: Function, target: Target, *, min_blocks: int | None = None) -> Lowered:
    """`min_blocks` bounds the registers so that so many blocks fit a multiprocessor (PTX ISA, `.minnctapersm`).

    CompileError E0506 where an operation has no form on tensors of this shape, E0507 where shared memory runs out."""
    context = Context(function, taken_bytes(function))
    context.shared_bytes = shared_bytes(function)
    context.begin()

    def run(sequence: Sequence[Op]) -> None:
        around = context.line
        for op in sequence:
            context.current = op
            context.at_line(text_line(op) or around)
            if isinstance(op, ops.For):
                control.lower_for(context, op, run)
            elif isinstance(op, ops.If):
                control.lower_if(context, op, run)
            else:
                RULES[type(op)](context, op)
        context.at_line(around)

    run(function.body.ops)
    if context.shared_bytes > target.max_shared_bytes:
        message = (
            f"`{function.name}` needs {context.shared_bytes} bytes of shared memory; {target} has {target.max_shared_bytes}"
        )
        raise CompileError(
            Diagnostic("E0507", message, Label(function.loc) if function.loc else None, hint="use smaller tiles")
        )
    abi = _abi(function)
    waits = any(isinstance(op, ops_launch.WaitPrior) for op in function.body.ops)
    mlir = _module(function, context, min_blocks)
    total.check(mlir)
    return Lowered(mlir, symbol(function.name), abi, context.threads, context.shared_bytes, waits)


def _abi(function: Function) -> tuple[AbiSlot, ...]:
    pointers = [AbiSlot("pointer", p.name) for p in function.parameters if p.access is not None]
    sizes = [AbiSlot("stride" if name in function.strides else "dim", name) for name in function.dims]
    scalars = [AbiSlot("scalar", p.name) for p in function.parameters if p.access is None]
    return (*pointers, *sizes, *scalars)


def _module(function: Function, context: Context, min_blocks: int | None) -> str:
    occupancy = f", nvvm.minctasm = {min_blocks} : i32" if min_blocks else ""
    arguments: list[str] = []
    for parameter in function.parameters:
        if parameter.access is not None:
            assert isinstance(parameter.value.type, TensorType)
            attributes = "llvm.noalias, llvm.readonly" if parameter.access is Access.IN else "llvm.noalias"
            arguments.append(f"{argument(parameter.name)}: !llvm.ptr<1> {{{attributes}}}")
    arguments += [f"{argument(name)}: {'i64' if name in function.strides else 'i32'}" for name in function.dims]
    arguments += [f"{argument(p.name)}: {storage(p.value.tile.dtype)}" for p in function.parameters if p.access is None]
    alignment = max((op.alignment for op in function.body.walk() if isinstance(op, ops_staging.SharedAlloc)), default=128)
    lines = [
        "module {",
        "llvm.mlir.global external @dynamic_shared() "
        f"{{addr_space = 3 : i32, alignment = {alignment} : i64}} : !llvm.array<0 x i8>",
        f"llvm.func @{symbol(function.name)}({', '.join(arguments)}) attributes "
        f"{{nvvm.kernel, nvvm.reqntid = array<i32: {context.threads}>{occupancy}}} {{",
        *context.lines,
        "llvm.return",
        "}",
        "}",
    ]
    return "\n".join(lines) + "\n"
