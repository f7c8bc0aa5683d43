"""Every operation that a kernel's author can write: operands, attributes, effects, typing rules; nothing else.

Tiles are values of one block; a scalar is a tile of shape `()`. Every operation has a value for all operands; the table of them
is `tilec/ir/SEMANTICS.md`. Integer arithmetic is two's complement; `floordiv` and `mod` round toward minus infinity. bf16 and
f16 arithmetic is computed in f32 and rounded once per operation. Reductions of float tiles are carried out in f32. Operand
order is given in each docstring. What a class says of itself is listed at `tilec.ir.core.Op`.

`values` computes, `memory` reads and writes tensors, `control` holds regions. Operations that passes make are beside this
folder (`ops_staging`, `ops_stores`, `ops_sync`, `ops_launch`).
"""

from tilec.ir.ops.control import For, If, Yield
from tilec.ir.ops.memory import (
    ATOMIC_DTYPES,
    ATOMIC_KINDS,
    AtomicUpdate,
    Gather,
    Load,
    MemoryOp,
    ReadOp,
    Scatter,
    Store,
    WriteOp,
)
from tilec.ir.ops.values import (
    BINARY_KINDS,
    COMPARE_KINDS,
    FLOAT_UNARY,
    REDUCE_KINDS,
    UNARY_KINDS,
    Binary,
    BinaryInRange,
    BlockId,
    Broadcast,
    Cast,
    Compare,
    Constant,
    DimValue,
    Iota,
    Mma,
    NumBlocks,
    Permute,
    Reduce,
    Reshape,
    Select,
    Unary,
    convert,
)

__all__ = [
    "ATOMIC_DTYPES",
    "ATOMIC_KINDS",
    "BINARY_KINDS",
    "COMPARE_KINDS",
    "FLOAT_UNARY",
    "REDUCE_KINDS",
    "UNARY_KINDS",
    "AtomicUpdate",
    "Binary",
    "BinaryInRange",
    "BlockId",
    "Broadcast",
    "Cast",
    "Compare",
    "Constant",
    "DimValue",
    "For",
    "Gather",
    "If",
    "Iota",
    "Load",
    "MemoryOp",
    "Mma",
    "NumBlocks",
    "Permute",
    "ReadOp",
    "Reduce",
    "Reshape",
    "Scatter",
    "Select",
    "Store",
    "Unary",
    "WriteOp",
    "Yield",
    "convert",
]
