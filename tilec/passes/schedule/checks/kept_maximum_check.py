"""Checks that everything computed from a kept maximum is relative to it, so that another reference gives the same results.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. Rules of m' = `kept_maximum` of m and new, in
a loop that carries m:

- m is an argument of the loop, m' is what the next iteration has there, and nothing uses the loop's last one.
- m' is subtracted, and nothing else: from m, and from each element of its row of a matrix. m is used in no other way.
- Both differences have exp2, and no other use.
"""

from __future__ import annotations

from collections import defaultdict

from tilec.ir.core import Function, Op, Value, VerifyError
from tilec.ir.ops import Binary, Broadcast, For, KeptMaximum, Reshape, Unary, Yield
from tilec.ir.ops.staging_ops import Relayout
from tilec.passes.schedule.checks.op_location import at


def check(function: Function) -> None:
    """Raise VerifyError at the first broken rule. Kernels without a kept maximum pass."""
    ops = list(function.body.walk())
    if any(isinstance(op, KeptMaximum) for op in ops):
        _Check(ops).check()


class _Check:
    def __init__(self, ops: list[Op]) -> None:
        self.ops = ops
        self.named: dict[Value, Value] = {}
        """Values in another layout, and what they are."""
        self.uses: dict[Value, list[Op]] = defaultdict(list)
        for op in ops:
            if isinstance(op, Relayout):
                self.named[op.result] = self.value(op.operands[0])
                continue
            for value in op.operands:
                self.uses[self.value(value)].append(op)

    def value(self, value: Value) -> Value:
        """The value, in whatever layout."""
        return self.named.get(value, value)

    def check(self) -> None:
        loops = {inner: op for op in self.ops if isinstance(op, For) for inner in op.regions[0].ops}
        for op in self.ops:
            if isinstance(op, KeptMaximum):
                self.check_carried(op, loops.get(op))
                self.check_differences(op)

    def check_carried(self, op: KeptMaximum, loop: For | None) -> None:
        old = self.value(op.operands[0])
        arguments = loop.regions[0].arguments[1:] if loop is not None else []
        if loop is None or old not in arguments:
            raise VerifyError(f"{at(op)}: its first operand is not carried by its loop")
        yielded = [self.value(value) is op.result for value in loop.regions[0].ops[-1].operands]
        if yielded != [value is old for value in arguments] or self.uses[loop.results[arguments.index(old)]]:
            raise VerifyError(f"{at(op)}: the loop carries it to the next iteration, and no further")

    def check_differences(self, op: KeptMaximum) -> None:
        old, rows, matrices = self.value(op.operands[0]), list[Op](), list[Op]()
        for use in self.uses[op.result]:
            if isinstance(use, Reshape):
                matrices += [inner for column in self.uses[use.result] for inner in self.of_matrix(op, column)]
            elif not isinstance(use, Yield):
                rows.append(use)
        if len(rows) != 1 or not matrices or not all(_subtracts(use) for use in (*rows, *matrices)):
            raise VerifyError(f"{at(op)}: it is subtracted from the one before and from matrices, and nothing else")
        if [self.value(value) for value in rows[0].operands] != [old, op.result] or self.uses[old] != [op, rows[0]]:
            raise VerifyError(f"{at(op)}: the one before has its difference to it, and nothing else")
        for use in (*rows, *matrices):
            if not all(isinstance(inner, Unary) and inner.kind in ("exp2", "fast_exp2") for inner in self.uses[use.result]):
                raise VerifyError(f"{at(op)}: each difference to it has exp2, and nothing else")

    def of_matrix(self, op: KeptMaximum, column: Op) -> list[Op]:
        """What uses the matrix that repeats a column of it, on the right alone."""
        if not isinstance(column, Broadcast):
            raise VerifyError(f"{at(op)}: its column is repeated, and nothing else")
        found = self.uses[column.result]
        for use in found:
            if [self.value(value) is column.result for value in use.operands] != [False, True]:
                raise VerifyError(f"{at(op)}: it is subtracted from matrices, and they are not from it")
        return found


def _subtracts(op: Op) -> bool:
    return isinstance(op, Binary) and op.kind == "sub"
