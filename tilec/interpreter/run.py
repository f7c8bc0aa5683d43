"""Runs every block of a launch, sequentially."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from tilec.interpreter.accesses import Accesses
from tilec.interpreter.arithmetic import PURE, sort
from tilec.interpreter.dtypes import Array, numpy_dtype
from tilec.interpreter.errors import InterpreterError
from tilec.interpreter.launch import Launch, bind, check_promises, contents_before
from tilec.interpreter.memory import ACCESSES
from tilec.interpreter.printing import lines
from tilec.ir.core import Access, Block, Function, Op, Value
from tilec.ir.facts.loop_exits import exit_condition
from tilec.ir.ops import BlockId, Constant, Decreases, DimValue, For, If, Invariant, Iota, Meet, NumBlocks, Print, Sort, Yield

FIXED: Final = (Constant, Iota, NumBlocks, DimValue)
"""Operations with the same results in every block."""


def run(
    function: Function,
    arrays: Mapping[str, Array],
    scalars: Mapping[str, int | float] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    block_order: Iterable[Sequence[int]] | None = None,
    accesses: Accesses | None = None,
    printed: Callable[[str], object] | None = None,
) -> None:
    """Runs a kernel on `arrays` (by parameter name, modified in place) and `scalars`.

    Dims come from the shapes; `dims` supplies those that no shape determines. `block_order` lists the block ids to run, each
    with one entry per grid axis; the default is all of them in row-major order. `accesses` records the accesses of every
    block. `printed` takes the lines that the kernel prints, one at a time, without the end of the line; by default they go to
    standard output. bf16 and f8 arrays have the dtypes of ml_dtypes. Raises `InterpreterError` if the launch violates the
    kernel's contract, an access is out of bounds, a loop step is not positive, or a claim of a loop is false; the arrays then
    contain the writes up to that point. It also raises if all blocks ran and the arrays violate the kernel's promises."""
    launch = bind(function, arrays, scalars or {}, dims or {})
    before = contents_before(function, launch)
    order = itertools.product(*map(range, launch.grid)) if block_order is None else block_order
    steps: dict[int, tuple[_Step, ...]] = {}
    with np.errstate(all="ignore"):
        fixed = fixed_values(function, launch)
        for block in order:
            BlockRun(function, launch, tuple(block), accesses, fixed, steps, printed or _to_stdout).execute(function.body)
    if block_order is None:
        check_promises(function, launch, before)


def _to_stdout(line: str) -> None:
    sys.stdout.write(f"{line}\n")


_Step = tuple[Callable[..., Array] | None, Op, tuple[int, ...], tuple[int, ...]]
"""An operation prepared for execution: its rule if it depends on its operands only, the operation, ids of operands and
results."""


def fixed_values(function: Function, launch: Launch) -> dict[int, Array]:
    """Values that are the same in every block, by value id."""
    fixed = {id(p.value): launch.scalars[p.name] for p in function.parameters if p.access is None}
    for op in function.body.walk():
        if isinstance(op, (Constant, Iota)):
            fixed[id(op.result)] = value = np.asarray(PURE[type(op)](op))
            value.flags.writeable = False
        elif isinstance(op, NumBlocks):
            fixed[id(op.result)] = np.array(launch.grid[op.axis], np.int32)
        elif isinstance(op, DimValue):
            fixed[id(op.result)] = np.array(launch.env[op.symbol], numpy_dtype(op.result.tile.dtype))
    return fixed


class BlockRun:
    """One block: the values computed so far, by id. `fixed` contains those that are the same in every block, `steps` the
    prepared operations of IR blocks that ran before."""

    def __init__(
        self,
        function: Function,
        launch: Launch,
        block: tuple[int, ...],
        accesses: Accesses | None,
        fixed: Mapping[int, Array],
        steps: dict[int, tuple[_Step, ...]],
        printed: Callable[[str], object] | None = None,
    ) -> None:
        self.printed = printed  # None: what it prints is dropped
        self.function, self.launch, self.block, self.accesses, self.steps = function, launch, block, accesses, steps
        if len(block) != len(launch.grid) or not all(0 <= i < n for i, n in zip(block, launch.grid, strict=False)):
            raise InterpreterError(f"there is no block {block} in the grid {launch.grid}", kernel=function.name)
        self.number = int(np.ravel_multi_index(block, launch.grid))
        self.names = {id(p.value): p.name for p in function.parameters}
        self.values: dict[int, Array] = dict(fixed)
        self.numbers: dict[int, int] = {}  # of each `while`, where the pass started
        self.unmet = {id(p.value) for p in function.parameters if p.access is Access.PEER}  # what ranks have not met for

    def tensor(self, value: Value) -> tuple[str, Array]:
        """Name and array of a tensor parameter."""
        name = self.names[id(value)]
        return name, self.launch.arrays[name]

    def value(self, value: Value) -> Array:
        return self.values[id(value)]

    def error(self, op: Op, message: str) -> InterpreterError:
        """An error at an operation of this block."""
        return InterpreterError(message, kernel=self.function.name, loc=op.loc, block=self.block)

    def execute(self, block: Block) -> list[Array]:
        """Runs the operations of an IR block; returns the operands of its `yield`."""
        values = self.values
        for rule, op, operands, results in self.steps.get(id(block)) or self.step_list(block):
            if rule is not None:
                values[results[0]] = rule(op, *[values[operand] for operand in operands])
            elif isinstance(op, Yield):
                return [values[operand] for operand in operands]
            else:
                values.update(zip(results, self.results(op), strict=True))
        return []

    def step_list(self, block: Block) -> tuple[_Step, ...]:
        """The operations of an IR block without those of FIXED, cached for later runs."""
        prepared = tuple(
            (PURE.get(type(op)), op, tuple(map(id, op.operands)), tuple(map(id, op.results)))
            for op in block.ops
            if not isinstance(op, FIXED)
        )
        self.steps[id(block)] = prepared
        return prepared

    def results(self, op: Op) -> list[Array]:
        """The results of one operation."""
        if type(op) in PURE:
            return [PURE[type(op)](op, *(self.value(operand) for operand in op.operands))]
        if type(op) in ACCESSES:
            if id(op.operands[0]) in self.unmet:
                raise self.error(op, f"reads `{self.names[id(op.operands[0])]}` before ranks have met")
            loaded = ACCESSES[type(op)](self, op)
            return [] if loaded is None else [loaded]
        if isinstance(op, For):
            return self.loop(op)
        if isinstance(op, If):
            taken = bool(self.value(op.operands[0]))
            return self.execute(op.regions[0 if taken else 1])
        if isinstance(op, Invariant | Decreases):
            self.claim(op)
            return []
        if isinstance(op, Print):
            self.print_lines(op)
            return []
        if isinstance(op, BlockId):
            return [np.array(self.block[op.axis], np.int32)]
        if isinstance(op, Sort):
            return sort(op, *(self.value(operand) for operand in op.operands))
        if isinstance(op, FIXED):
            return [self.value(op.result)]
        if isinstance(op, Meet):
            raise self.error(op, "the kernel meets other ranks, and runs in all of them at once (`run_ranks`)")
        raise self.error(op, f"`{op.opcode}` is an operation of later stages, which the interpreter does not run")

    def print_lines(self, op: Print) -> None:
        if self.printed is not None:
            for line in lines(op, self.block, self.value):
                self.printed(line)

    def claim(self, op: Invariant | Decreases) -> None:
        """Raises if a claim of a loop is false here."""
        value = self.value(op.operands[0])
        if isinstance(op, Invariant):
            if not value:
                raise self.error(op, "the invariant is false")
        elif op.point == "start":
            if value < 1:
                raise self.error(op, f"a pass of a `while` starts with the number {value}")
            self.numbers[op.number] = int(value)
        elif value >= self.numbers[op.number]:
            before = self.numbers[op.number]
            raise self.error(op, f"a pass of a `while` does not make its number smaller: {before}, then {value}")

    def loop(self, op: For) -> list[Array]:
        """Runs a loop; returns the carried values after the last iteration."""
        body = op.regions[0]
        lower, upper, step = (int(self.value(value)) for value in op.operands[:3])
        if step <= 0:
            raise self.error(op, f"the step of a loop is {step}")
        carried, leaving = [self.value(value) for value in op.initial], exit_condition(op)
        for index in range(lower, upper, step):
            if leaving is not None and not carried[leaving]:
                break  # the other iterations change nothing
            self.values[id(body.arguments[0])] = np.array(index, np.int32)
            for argument, array in zip(body.arguments[1:], carried, strict=True):
                self.values[id(argument)] = array
            carried = self.execute(body)
        return carried
