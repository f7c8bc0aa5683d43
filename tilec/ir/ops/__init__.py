"""Every operation that a kernel's author can write: operands, attributes, effects, typing rules; nothing else.

A tile is a value of one block; a scalar is a tile of shape `()`. Every operation is total: it has a value for all operands,
given by the table in `tilec/ir/SEMANTICS.md`. Integer arithmetic is two's complement; `floordiv` and `mod` round toward
minus infinity. bf16 and f16 arithmetic is computed in f32 and rounded once per operation. Reductions of float tiles are
computed in f32. Docstrings give the operand order; `tilec.ir.core.Op` describes the class variables.

`values` computes, `moves` reorders, `memory` reads and writes tensors, `control` has regions, `loop_claims` states what loops
keep, `printing` writes lines to standard output, `rank_ops` lets ranks wait for each other. The operations that passes make are
in `tilec/ir/ops/staging_ops.py`, `store_ops.py`, `sync_ops.py`, `launch_ops.py` and other files of that name.
"""

from tilec.ir.ops.control import For, If, Yield
from tilec.ir.ops.loop_claims import Decreases, Invariant
from tilec.ir.ops.memory import (
    ATOMICS,
    BOX_KINDS,
    AtomicScatter,
    AtomicUpdate,
    Gather,
    Load,
    MemoryOp,
    ReadOp,
    Scatter,
    Store,
    WriteOp,
    atomic_word,
)
from tilec.ir.ops.moves import Butterfly, Sort, Take
from tilec.ir.ops.printing import Print, prints
from tilec.ir.ops.rank_ops import Meet
from tilec.ir.ops.values import (
    BINARY_KINDS,
    COMPARE_KINDS,
    EXP2_GROUP,
    FLOAT_UNARY,
    REDUCE_KINDS,
    UNARY_KINDS,
    Binary,
    BinaryInRange,
    Bitcast,
    BlockId,
    Broadcast,
    Cast,
    Compare,
    Constant,
    DimValue,
    Exp2InParts,
    Iota,
    KeptMaximum,
    Mma,
    NumBlocks,
    Permute,
    Reduce,
    Reshape,
    Select,
    Unary,
    convert,
    sum_dtype,
)

__all__ = [
    "ATOMICS",
    "BINARY_KINDS",
    "BOX_KINDS",
    "COMPARE_KINDS",
    "EXP2_GROUP",
    "FLOAT_UNARY",
    "REDUCE_KINDS",
    "UNARY_KINDS",
    "AtomicScatter",
    "AtomicUpdate",
    "Binary",
    "BinaryInRange",
    "Bitcast",
    "BlockId",
    "Broadcast",
    "Butterfly",
    "Cast",
    "Compare",
    "Constant",
    "Decreases",
    "DimValue",
    "Exp2InParts",
    "For",
    "Gather",
    "If",
    "Invariant",
    "Iota",
    "KeptMaximum",
    "Load",
    "Meet",
    "MemoryOp",
    "Mma",
    "NumBlocks",
    "Permute",
    "Print",
    "ReadOp",
    "Reduce",
    "Reshape",
    "Scatter",
    "Select",
    "Sort",
    "Store",
    "Take",
    "Unary",
    "WriteOp",
    "Yield",
    "atomic_word",
    "convert",
    "prints",
    "sum_dtype",
]
