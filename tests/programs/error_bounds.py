"""How far a correct implementation may differ from the interpreter, element by element: a running error analysis of one launch.

Each float has an upper bound of its error due to rounding, the order of a sum and the documented error of an approximation,
propagated through every operation. If the bound is not finite (an overflow, a division by a value that may be zero) nothing is
claimed. Integers are exact: in `smooth` programs no float determines one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilec.interpreter.arithmetic import sort
from tilec.interpreter.dtypes import Array
from tilec.interpreter.memory import ACCESSES
from tilec.interpreter.run import _BlockRun, _fixed  # pyright: ignore[reportPrivateUsage]
from tilec.ir import ops
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.types import DType

UNIT = 2.0**-24
LEAST = {"f32": 2.0**-126, "f16": 2.0**-25, "bf16": 2.0**-126, "f8e4m3": 2.0**-10, "f8e5m2": 2.0**-17}
LARGEST = {"f32": 3.4e38, "f16": 65504.0, "bf16": 3.38e38, "f8e4m3": 448.0, "f8e5m2": 57344.0}


def _steep(x: Array, e: Array, scale: float) -> Array:
    return np.expm1(np.minimum(e * scale, 700)) + 2.0**-20 + np.abs(x) * 2.0**-21


UNARY: dict[str, Callable[[Array, Array, Array], Array]] = {
    "neg": lambda x, e, v: e,
    "abs": lambda x, e, v: e,
    "exp2": lambda x, e, v: v * _steep(x, e, 0.6931472) + 2.0**-126,
    "exp": lambda x, e, v: v * _steep(x, e, 1.0) + 2.0**-126,
    "log2": lambda x, e, v: np.where(x > 2 * e, 3 * e / x, np.inf) + 2.0**-19 * (1 + np.abs(v)),
    "log": lambda x, e, v: np.where(x > 2 * e, 2 * e / x, np.inf) + 2.0**-19 * (1 + np.abs(v)),
    "sqrt": lambda x, e, v: np.where(e == 0, 0, np.where(x > 2 * e, e / np.sqrt(np.maximum(x, 1e-300)), np.inf)),
    "rsqrt": lambda x, e, v: np.where(x > 2 * e, v * (2 * e / x + 2.0**-20), np.inf),
    "tanh": lambda x, e, v: e + 2.0**-10,
    "sigmoid": lambda x, e, v: e + 2.0**-18 + 2.0**-126,
    "sin": lambda x, e, v: np.where(np.abs(x) < 3.2, e + 2.0**-19, 2.0),
    "cos": lambda x, e, v: np.where(np.abs(x) < 3.2, e + 2.0**-19, 2.0),
    "erf": lambda x, e, v: 1.13 * e + 2.0**-22 * np.abs(v) + 2.0**-149,
    "floor": lambda x, e, v: np.where(e == 0, 0, np.inf),
    "ceil": lambda x, e, v: np.where(e == 0, 0, np.inf),
}
BINARY: dict[str, Callable[[Array, Array, Array, Array, Array], Array]] = {
    "add": lambda a, b, ea, eb, v: ea + eb,
    "sub": lambda a, b, ea, eb, v: ea + eb,
    "mul": lambda a, b, ea, eb, v: np.abs(a) * eb + np.abs(b) * ea + ea * eb,
    "div": lambda a, b, ea, eb, v: np.where(np.abs(b) > 2 * eb, 2 * (ea + np.abs(v) * eb) / np.abs(b), np.inf),
    "min": lambda a, b, ea, eb, v: np.maximum(ea, eb),
    "max": lambda a, b, ea, eb, v: np.maximum(ea, eb),
}


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


class BoundedRun(_BlockRun):
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
            access = replace(op, kind="max") if isinstance(op, ops.AtomicUpdate) else op
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
                return bounds[0].take(np.bitwise_xor(np.arange(shape[op.axis]), op.mask), op.axis)
            case _ if not op.result.tile.dtype.is_float:
                return np.zeros(shape)
            case _:
                return self._float(op, found.astype(np.float64), [o.astype(np.float64) for o in operands], bounds)

    def _float(self, op: Op, v: Array, operands: list[Array], bounds: list[Array]) -> Array:
        exact = False
        if isinstance(op, ops.Unary):
            exact, bound = op.kind in ("neg", "abs", "floor", "ceil"), UNARY[op.kind](operands[0], bounds[0], v)
            if op.kind in ("exp", "exp2"):
                bound = np.where(np.isneginf(operands[0]) & (bounds[0] == 0), 0.0, bound)
        elif isinstance(op, ops.Binary):
            exact, bound = op.kind in ("min", "max"), BINARY[op.kind](*operands, *bounds, v)
            if op.kind in ("add", "sub"):
                return np.where(_infinite(v, operands, bounds), 0.0, widened(v, bound, op.result.tile.dtype, exact))
        elif isinstance(op, ops.Reduce):
            exact = op.kind != "sum"
            size = operands[0].shape[op.axis]
            total = bounds[0].sum(op.axis) + 2 * size * UNIT * np.abs(operands[0]).sum(op.axis)
            bound = bounds[0].max(op.axis) if exact else total
        elif isinstance(op, ops.Mma):
            a, b = np.abs(operands[0]), np.abs(operands[1])
            inner = a.shape[1] + 2
            bound = (a + bounds[0]) @ bounds[1] + bounds[0] @ b + bounds[2] + 4 * inner * UNIT * (a @ b + np.abs(operands[2]))
        else:
            exact, bound = isinstance(op, ops.Constant), bounds[0] if bounds else np.zeros(v.shape)
        return widened(v, bound, op.result.tile.dtype, exact)


def _infinite(v: Array, operands: list[Array], bounds: list[Array]) -> Array:
    """Where a sum is infinite whatever its finite operand is: an operand is, without an error, and the other's is bounded."""
    certain = [np.isinf(operand) & (bound == 0) for operand, bound in zip(operands, bounds, strict=True)]
    return np.isinf(v) & (certain[0] | certain[1]) & np.isfinite(bounds[0]) & np.isfinite(bounds[1])


def widened(v: Array, bound: Array, dtype: DType, exact: bool) -> Array:
    """The bound after rounding to the dtype; infinite where the value may overflow."""
    if not exact:
        step = 2.0**-dtype.significand
        bound = bound + 2 * step * (np.abs(v) + bound) * (1 + UNIT) + LEAST[dtype.name]
    return np.where(
        np.isfinite(v) & (np.abs(v) + bound < LARGEST[dtype.name]), bound, np.where(exact & (bound == 0), 0.0, np.inf)
    )


def run_bounded(function: Function, arrays: Mapping[str, Array], scalars: Mapping[str, int]) -> dict[str, Array]:
    """Runs the interpreter on `arrays`, in place; returns the bound of every element afterwards, by tensor."""
    from itertools import product

    from tilec.interpreter.launch import bind

    launch = bind(function, arrays, scalars, {})
    memory = {name: np.zeros(array.shape) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        fixed = _fixed(function, launch)
        for block in product(*map(range, launch.grid)):
            BoundedRun(function, launch, block, None, fixed, {}, memory=memory).execute(function.body)
    return memory
