"""Divides exponentials between the special-function unit and the units that add and multiply: those of an attention in tensor
memory, whose products a multiprocessor computes in the time of its exponentials (Zadouri et al., FlashAttention-4, 2026).

In clocks of a multiprocessor of compute capability 10.0, for a tile of 256 rows, 128 keys and 128 values: both products 2048;
its 32768 exponentials, 16 a clock, 2048 too, so that whatever delays one of them delays the kernel. A scheduler issues one
instruction a clock, 8 for each exponential of its share. Counted in machine code, for each element, by the fraction s of the
elements that have a polynomial:

    special-function unit   8 (1 - s) clocks
    instructions            4.1 + 6.5 s: half a maximum, the product with the scale, the exponential, the sum, half a
                            conversion; a polynomial has 7.5 instead of the exponential's one

s = 1/4 makes these 6.0 and 5.8 of 8. With s = 1/2 they are 4.0 and 7.4, which leaves little for masks, loads, stores and
scales. The elements with a polynomial are four in a row, because ptxas (13.5) spills 52 bytes if each fourth pair is one: a
thread has 168 registers.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Block, Function, Op
from tilec.ir.ops import Exp2InParts, Unary
from tilec.ir.ops.tmem_chain_ops import TmemStore
from tilec.ir.types import f32

POLYNOMIAL: Final = 4
"""Elements of each 16 that have a polynomial."""


def divide(function: Function) -> None:
    """Replace the exponentials of matrices next to a `tmem_store`, in place, keeping their result values."""
    for op in function.body.walk():
        for region in op.regions:
            if any(isinstance(inner, TmemStore) for inner in region.ops):
                _divide(region)


def _divide(block: Block) -> None:
    for position, op in enumerate(block.ops):
        if _is_of_a_matrix(op):
            divided = Exp2InParts(polynomial=POLYNOMIAL, operands=op.operands, results=op.results, loc=op.loc)
            divided.result.owner = divided
            block.ops[position] = divided


def _is_of_a_matrix(op: Op) -> bool:
    return type(op) is Unary and op.kind == "fast_exp2" and op.result.tile.rank == 2 and op.result.tile.dtype == f32
