"""How far a correct implementation, or the exact result, may differ from the interpreter's, element by element: a running error
analysis of one launch.

Each float has an upper bound of its error due to rounding, the order of a sum and the documented error of a function,
propagated through every operation (`error_rules.py`). If the bound is not finite (an overflow, a division by a value that may
be zero) nothing is claimed. Integers, and what a condition selects, count as exact: a kernel whose floats decide such may
differ more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from tilec.interpreter import error_rules
from tilec.interpreter.arithmetic import sort, take
from tilec.interpreter.dtypes import Array
from tilec.interpreter.error_rules import BINARY, UNIT, infinite, widened
from tilec.interpreter.launch import bind
from tilec.interpreter.memory import ACCESSES
from tilec.interpreter.run import BlockRun, fixed_values
from tilec.ir import ops
from tilec.ir.core import Block, Function, Op, Value


class _BoundMemory:
    """Lets the access rules propagate bounds as they move values: tensors are bounds, the tile is its bound, indices stay
    indices."""

    def __init__(self, run: BoundedRun, tile: Value | None) -> None:
        self.run, self.tile, self.block, self.number, self.accesses = run, tile, run.block, run.number, None

    def tensor(self, value: Value) -> tuple[str, Array]:
        name, _ = self.run.tensor(value)
        return name, self.run.memory[name]

    def value(self, value: Value) -> Array:
        return self.run.bound(value) if value is self.tile else self.run.value(value)

    def error(self, op: Op, message: str) -> Exception:
        return self.run.error(op, message)


class BoundedRun(BlockRun):
    """One block of the interpreter that propagates bounds next to values."""

    def __init__(self, *arguments: Any, memory: dict[str, Array]) -> None:
        super().__init__(*arguments)
        self.memory = memory
        self.bounds: dict[int, Array] = {}

    def bound(self, value: Value) -> Array:
        """The bound of a value; zero if there is none."""
        return self.bounds.get(id(value), np.zeros(value.tile.shape))

    def execute(self, block: Block) -> list[Array]:
        """Executes an operation and its bound; propagates bounds out of an `if` or a loop when its body yields."""
        for op in block.ops:
            if isinstance(op, ops.Yield):
                self.yielded = [self.bound(operand) for operand in op.operands]
                return [self.value(operand) for operand in op.operands]
            self.values |= {id(result): array for result, array in zip(op.results, self.results(op), strict=True)}
        return []

    def results(self, op: Op) -> list[Array]:
        if isinstance(op, ops.For):
            return self._loop(op)
        found = super().results(op)
        if isinstance(op, ops.If):
            self.bounds |= {id(result): bound for result, bound in zip(op.results, self.yielded, strict=True)}
        elif isinstance(op, ops.Sort):
            self._sort(op)
        elif type(op) in ACCESSES:
            tile = getattr(op, "tile", None)
            # Whichever of two values is selected, its error is at most the larger of theirs.
            access = replace(op, kind="max") if isinstance(op, ops.AtomicUpdate | ops.AtomicScatter) else op
            if isinstance(op, ops.Load | ops.Gather) and op.pad is not None:
                access = replace(op, pad=0.0 if tile is not None and tile.tile.dtype.is_float else 0)  # padding is exact
            propagated = ACCESSES[type(op)](_BoundMemory(self, tile), access)  # pyright: ignore[reportArgumentType]
            if propagated is not None:
                self.bounds[id(op.result)] = np.asarray(propagated).astype(np.float64) * 1.01
        elif op.results:
            operands = [self.value(operand) for operand in op.operands]
            with np.errstate(all="ignore"):
                self.bounds[id(op.result)] = self._computed(op, found[0], operands)
        return found

    def _sort(self, op: ops.Sort) -> None:
        """Keys move by at most the largest of their errors; the other tiles follow keys that are exact."""
        keys, *others = [self.bound(operand) for operand in op.operands]
        assert not others or not keys.any(), "the order of inexact keys is not determined"
        largest = np.broadcast_to(keys.max(op.axis, keepdims=True), keys.shape)
        moved = sort(op, self.value(op.operands[0]), *others)[1:]
        self.bounds |= {id(result): bound for result, bound in zip(op.results, [largest, *moved], strict=True)}

    def _loop(self, op: ops.For) -> list[Array]:
        body = op.regions[0]
        carried = [self.bound(value) for value in op.initial]
        lower, upper, step = (int(self.value(value)) for value in op.operands[:3])
        values = [self.value(value) for value in op.initial]
        for index in range(lower, upper, step):
            self.values[id(body.arguments[0])] = np.array(index, np.int32)
            for argument, value, bound in zip(body.arguments[1:], values, carried, strict=True):
                self.values[id(argument)], self.bounds[id(argument)] = value, bound
            values = self.execute(body)
            carried = self.yielded
        self.bounds |= {id(result): bound for result, bound in zip(op.results, carried, strict=True)}
        return values

    def _computed(self, op: Op, found: Array, operands: list[Array]) -> Array:
        shape = found.shape
        bounds = [self.bound(operand) for operand in op.operands]
        match op:
            case ops.Select():
                return np.where(operands[0], bounds[1], bounds[2])
            case ops.Reshape():
                return bounds[0].reshape(shape)
            case ops.Broadcast():
                return np.broadcast_to(bounds[0], shape)
            case ops.Permute():
                return bounds[0].transpose(op.axes)
            case ops.Butterfly():
                return bounds[0].take([position ^ op.mask for position in range(shape[op.axis])], op.axis)
            case ops.Take():
                return take(op, bounds[0], operands[1])
            case _ if not op.result.tile.dtype.is_float:
                return np.zeros(shape)
            case _:
                return self._float(op, found.astype(np.float64), [o.astype(np.float64) for o in operands], bounds)

    def _float(self, op: Op, v: Array, operands: list[Array], bounds: list[Array]) -> Array:
        exact = False
        if isinstance(op, ops.Unary):
            exact, bound = error_rules.unary(op, operands[0], bounds[0], v)
        elif isinstance(op, ops.Binary):
            (a, b), (a_bound, b_bound) = operands, bounds
            exact, bound = op.kind in ("min", "max"), BINARY[op.kind](a, b, a_bound, b_bound, v)
            if op.kind in ("add", "sub"):
                return np.where(infinite(v, operands, bounds), 0.0, widened(v, bound, op.result.tile.dtype, exact))
        elif isinstance(op, ops.Reduce):
            exact = op.kind != "sum"
            size = operands[0].shape[op.axis]
            total = bounds[0].sum(op.axis) + 2 * size * UNIT * np.abs(operands[0]).sum(op.axis)
            bound = bounds[0].max(op.axis) if exact else total
        elif isinstance(op, ops.Mma):
            bound = error_rules.product(op, *operands, *bounds)
        else:
            exact, bound = isinstance(op, ops.Constant), bounds[0] if bounds else np.zeros(v.shape)
        return widened(v, bound, op.result.tile.dtype, exact)


def run_bounded(
    function: Function,
    arrays: Mapping[str, Array],
    scalars: Mapping[str, int | float],
    *,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """Runs the interpreter on `arrays`, in place, as `run` does; returns the bound of every element afterwards (f64, infinite
    where nothing is claimed), by tensor. Takes about twice the time of `run`. InterpreterError as of `run`."""
    launch = bind(function, arrays, scalars, dims or {})
    memory = {name: np.zeros(array.shape) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        fixed = fixed_values(function, launch)
        for block in product(*map(range, launch.grid)):
            BoundedRun(function, launch, block, None, fixed, {}, memory=memory).execute(function.body)
    return memory
