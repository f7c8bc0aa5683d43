"""Which tensors a kernel leaves different if its blocks and threads run in another order, by more than rounding.

In: a function. Out: names of tensors. The old value of an atomic depends on the order, and so does what is computed from it, at
positions computed from it, or under a condition on it. An element that is replaced, compared and swapped, or combined in two
ways depends on which came last. What is read of such a tensor depends on the order too.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import BOX_KINDS, AtomicScatter, AtomicUpdate, For, If, MemoryOp, WriteOp
from tilec.ir.types import TensorType


def order_dependent(function: Function) -> frozenset[str]:
    """The tensors; more than there are if two writes meet in no element."""
    found = _Found(set(_ambiguous(function)))
    while True:
        before = (len(found.tensors), len(found.values))
        found.block(function.body, under=False)
        if before == (len(found.tensors), len(found.values)):
            return frozenset(function.parameter_of(tensor).name for tensor in found.tensors)


def _ambiguous(function: Function) -> set[Value]:
    """Tensors whose atomics do not commute."""
    kinds: dict[Value, set[str]] = {}
    for op in function.body.walk():
        if isinstance(op, AtomicUpdate | AtomicScatter):
            kinds.setdefault(op.target, set()).add(op.kind)
    return {tensor for tensor, of in kinds.items() if len(of) > 1 or not of <= {*BOX_KINDS}}


class _Found:
    def __init__(self, tensors: set[Value]) -> None:
        self.tensors = tensors
        self.values: set[Value] = set()

    def block(self, block: Block, under: bool) -> None:
        """Adds what the operations of a block make; `under` a condition or bounds that depend on the order."""
        for op in block.ops:
            depends = not self.values.isdisjoint(op.operands)
            if isinstance(op, WriteOp) and (depends or under):
                self.tensors.add(op.target)
            if isinstance(op, MemoryOp):
                depends |= isinstance(op, AtomicScatter) or op.tensor in self.tensors
            if depends:
                self.values.update(value for value in op.results if not isinstance(value.type, TensorType))
            if isinstance(op, For | If):
                self.inside(op, under)

    def inside(self, op: For | If, under: bool) -> None:
        """The regions of a loop or branch, and its results."""
        decided = under or not self.values.isdisjoint(op.operands[: 3 if isinstance(op, For) else 1])
        for region in op.regions:
            self.block(region, decided)
        yields: list[Op] = [region.ops[-1] for region in op.regions]
        if isinstance(op, For):
            variable, *carried = op.regions[0].arguments
            self.values.update([variable] if decided else [])
            for argument, first, following, result in zip(carried, op.initial, yields[0].operands, op.results, strict=True):
                if decided or first in self.values or following in self.values:
                    self.values.update((argument, result))
            return
        for number, result in enumerate(op.results):
            if decided or any(one.operands[number] in self.values for one in yields):
                self.values.add(result)
