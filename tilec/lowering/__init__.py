"""Tile IR with layouts -> MLIR text (`llvm`, `nvvm` and `scf` dialects), one `llvm.func` per kernel.

In: a function from `tilec.passes.schedule.prepare`. Out: a module for code generation, and the launch parameters. The text is
deterministic and contains no source paths. Where an operation has a line number in the tile IR text, a comment `// line N`
gives the origin of the lines after it; `// line N replicated` marks stores in which several threads write the same value
(`tilec.codegen.locations` turns both into locations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tilec.artifact.records import AbiSlot, TensorMapSpec
from tilec.ir import ops
from tilec.ir.core import Access, Function, Op
from tilec.ir.facts.tensor_maps import MAP_ALIGNMENT, MAP_BYTES
from tilec.ir.layouts import thread_elements
from tilec.ir.layouts.shared_plan import shared_bytes
from tilec.ir.ops import launch_ops, staging_ops, sync_ops
from tilec.ir.text.lines import text_line
from tilec.lowering import (
    arithmetic,
    butterflies,
    control,
    convert,
    launch,
    memory,
    overlapping,
    pairs,
    printing,
    private_parts,
    products,
    ranks,
    reduce,
    rings,
    staging,
    stores,
    takes,
    tmem,
    tmem_chain,
    total,
)
from tilec.lowering.context import Context, argument_of
from tilec.lowering.launch_terms import symbol
from tilec.lowering.rules import RULES
from tilec.mlir.module import Argument, kernel_module
from tilec.target.targets import Target

__all__ = ["Lowered", "lower"]

_RULE_MODULES: Final = (
    arithmetic,
    butterflies,
    convert,
    launch,
    memory,
    overlapping,
    pairs,
    printing,
    private_parts,
    products,
    ranks,
    reduce,
    rings,
    staging,
    stores,
    takes,
    tmem,
    tmem_chain,
)  # importing them fills `RULES`


@dataclass(frozen=True, slots=True)
class Lowered:
    """MLIR text and its launch parameters: entry symbol, arguments in order, threads and dynamic shared memory (bytes) per
    block, whether the kernel executes `griddepcontrol.wait` itself, and the tensor maps among its arguments."""

    mlir: str
    entry: str
    abi: tuple[AbiSlot, ...]
    num_threads: int
    dynamic_shared_bytes: int
    dependent_launch: bool
    tensor_maps: tuple[TensorMapSpec, ...] = ()


def lower(function: Function, target: Target, *, min_blocks: int | None = None) -> Lowered:
    """`min_blocks` limits the registers per thread so that `min_blocks` blocks fit on a multiprocessor (PTX ISA,
    `.minnctapersm`).

    CompileError E0531 if the text would take too long to compile.
    """
    context = Context(
        function, own_block=target.copies_into_own_block, converts_f8=target.converts_f8, multiplies_f8=target.multiplies_f8
    )

    if printed_bytes := printing.buffer_bytes(function):
        context.reserve_arguments(printed_bytes)

    def run(sequence: Sequence[Op]) -> None:
        outer_line = context.line
        for op in sequence:
            context.at_line(text_line(op) or outer_line)
            if isinstance(op, ops.For):
                control.lower_for(context, op, run)
            elif isinstance(op, ops.If):
                control.lower_if(context, op, run)
            elif isinstance(op, sync_ops.Roles):
                control.lower_roles(context, op, run)
            else:
                RULES[type(op)](context, op)
            if context.operations > thread_elements.MOST_OPERATIONS:
                raise thread_elements.too_long(function)
        context.at_line(outer_line)

    run(function.body.ops)
    maps = tuple(TensorMapSpec(function.parameter_of(t).name, box.extents, box.swizzle) for t, box in context.maps)
    abi = (*_abi_slots(function), *(AbiSlot("tensor_map", spec.tensor) for spec in maps))
    waits = any(isinstance(op, launch_ops.DependencyWait) for op in function.body.walk())
    reallocates_registers = any(isinstance(op, sync_ops.Roles) and any(op.registers) for op in function.body.ops)
    mlir = _module(function, context, min_blocks or (1 if reallocates_registers else None))
    total.check(mlir)
    return Lowered(mlir, symbol(function.name), abi, context.threads, _dynamic_shared_bytes(function, target), waits, maps)


def _dynamic_shared_bytes(function: Function, target: Target) -> int:
    """Dynamic shared memory of a block; of a pair's, more than half of a multiprocessor's. With two blocks on a multiprocessor,
    two pairs might each hold the columns of tensor memory that the other one waits for."""
    needed = shared_bytes(function)
    return max(needed, target.max_shared_bytes // 2 + 1) if function.cluster > 1 else needed


def _abi_slots(function: Function) -> tuple[AbiSlot, ...]:
    pointers = [AbiSlot("pointer", p.name) for p in function.parameters if p.access is not None]
    sizes = [AbiSlot("stride" if name in function.strides else "dim", name) for name in function.dims]
    scalars = [AbiSlot("scalar", p.name) for p in function.parameters if p.access is None]
    return (*pointers, *sizes, *scalars)


def _module(function: Function, context: Context, min_blocks: int | None) -> str:
    pointers = [Argument(argument_of(p), p.access is Access.IN) for p in function.parameters if p.access is not None]
    sizes = [Argument(context.leaves[name].value) for name in function.dims]
    scalars = [Argument(argument_of(p)) for p in function.parameters if p.access is None]
    maps = [Argument(value, size=MAP_BYTES, alignment=MAP_ALIGNMENT) for value in context.maps.values()]
    alignment = max((op.alignment for op in function.body.walk() if isinstance(op, staging_ops.SharedAlloc)), default=128)
    return kernel_module(
        symbol(function.name),
        (*pointers, *sizes, *scalars, *maps),
        context.lines,
        threads=context.threads,
        min_blocks=min_blocks,
        alignment=alignment,
        cluster=function.cluster,
        printed=context.printed,
    )
