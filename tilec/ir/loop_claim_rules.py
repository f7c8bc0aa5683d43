"""Checks that every invariant is evaluated where its proof needs it, on the values that its loop has there.

The prover assumes an invariant at the start of an iteration and after the loop because it is shown before the loop and at the
end of each iteration. In: a function. Out: nothing, or a VerifyError if one of these evaluations is missing or computes another
condition: other operations, or the same ones on other values than the initial ones, those of the next iteration, and the
results.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Block, Effect, Function, Op, Value, VerifyError
from tilec.ir.ops import Binary, Constant, For, Invariant


def verify_loop_claims(function: Function) -> None:
    """Raise VerifyError at the first invariant that does not follow."""
    if any(isinstance(op, Invariant) for op in function.body.walk()):
        _block(function.body, None)


def _block(block: Block, loop: For | None) -> None:
    """`loop`: the one whose body this is."""
    entries, heads = dict[int, Invariant](), dict[int, tuple[Invariant, For]]()
    for op in block.ops:
        for region in op.regions:
            _block(region, op if isinstance(op, For) else None)
        if isinstance(op, For):
            for head in _at(op.regions[0], "head").values():
                _Turn(op).check(head, entries.get(head.number), "entry")
                heads[head.number] = head, op
        elif isinstance(op, Invariant) and op.point == "entry":
            entries[op.number] = op
        elif isinstance(op, Invariant) and op.point == "after":
            if op.number not in heads:
                raise _broken(op, "is of no loop before it")
            head, of = heads[op.number]
            _Turn(of).check(head, op, "after")
        elif isinstance(op, Invariant) and op.point == "head":
            if loop is None:
                raise _broken(op, "stands in no loop")
            _Turn(loop).check(op, _at(block, "end").get(op.number), "end")


def _at(block: Block, point: str) -> dict[int, Invariant]:
    return {op.number: op for op in block.ops if isinstance(op, Invariant) and op.point == point}


def _broken(op: Invariant, rule: str) -> VerifyError:
    return VerifyError(f"{op.loc}: {op.opcode} {op.number} {rule}" if op.loc else f"{op.opcode} {op.number} {rule}")


@dataclass(frozen=True, slots=True)
class _Turn:
    """A loop, whose arguments have other values before it, in the next iteration, and after it."""

    loop: For

    def check(self, head: Invariant, other: Invariant | None, point: str) -> None:
        """Raise VerifyError unless `other` evaluates the condition of `head` at a place."""
        if other is None:
            raise _broken(head, f"has no {point}")
        if not self._same(head.operands[0], other.operands[0], point):
            raise _broken(head, f"has another condition at its {point}")

    def _same(self, value: Value, other: Value, point: str) -> bool:
        (body,) = self.loop.regions
        if value in body.arguments:
            return self._stands_for(body.arguments.index(value), other, point)
        op, found = value.owner, other.owner
        is_outside = isinstance(op, Block) or all(op is not one for one in body.walk())
        if is_outside and value is other:
            return True
        if not isinstance(op, Op) or not isinstance(found, Op) or type(op) is not type(found) or value.type != other.type:
            return False
        is_pure = op.effect is Effect.NONE and not op.regions and len(op.results) == 1
        same = op.attributes() == found.attributes() and len(op.operands) == len(found.operands)
        pairs = zip(op.operands, found.operands, strict=False)
        return is_pure and same and all(self._same(a, b, point) for a, b in pairs)

    def _stands_for(self, index: int, other: Value, point: str) -> bool:
        """Whether a value is that of an argument of the body at a place."""
        loop = self.loop
        if index:
            values = {"entry": loop.initial, "end": loop.regions[0].ops[-1].operands, "after": loop.results}
            return values[point][index - 1] is other
        op = other.owner
        if point == "entry":
            return other is loop.lower
        if not isinstance(op, Binary):
            return False
        if point == "end":
            return op.kind == "add" and op.operands == [loop.regions[0].arguments[0], loop.step]
        step = loop.step.owner
        by_one = isinstance(step, Constant) and step.value == 1
        return by_one and op.kind == "max" and op.operands == [loop.lower, loop.upper]
