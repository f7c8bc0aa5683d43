"""Passes rely only on index arithmetic that has a proof obligation, and every value that decides about memory has one.

`proven_to_fit` is checked against the obligations of accepted kernels. `relevance` is checked by running kernels with one value
corrupted: no access may move unless that value is among those that decide.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.passes.builder import Access, Kernel
from tests.soundness.arithmetic import evaluate, wrapped
from tests.ui.corpus import FOLDER, constants, expected
from tilec.frontend import load_kernel
from tilec.ir import ops
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.types import TileType, boolean, i32
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.obligations import note_proofs, proven_to_fit
from tilec.passes.analysis.relevance import deciding_ops
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.targets import SM_90A

ACCEPTED = [path for path in sorted(FOLDER.glob("bounds/*.py")) if not expected(path.read_text(encoding="utf-8"))]


def loaded(path: Path) -> Function:
    return load_kernel(path, constants(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_assumed_values_have_a_record(path: Path) -> None:
    function = loaded(path)
    record = prove(function)._findings.by_op  # pyright: ignore[reportPrivateUsage]
    for op in proven_to_fit(function):
        assert any(one.property == "wrap" for one in record.get(op, [])), (op.opcode, op.attributes(), op.loc)


def test_a_shift_by_an_amount_that_only_a_promise_bounds_has_no_record() -> None:
    """The prover does not use `requires(n % 64 == 3)` for the amount of `x << (n % 64)`, so nothing shows that the shift
    fits."""
    k = Kernel("N")
    amounts = k.tensor("n", Access.IN, "N", dtype=i32)
    out = k.tensor("out", Access.INOUT, "N")
    shifted = k.op("shl", k.bid(), k.op("and", k.scalar_load(amounts, 0), 31))
    exact = k.op("shl", k.bid(), 3)
    k.store(out, shifted, shape=(1,), mask=True)
    k.store(out, exact, shape=(1,), mask=True)
    fitting = [op.result for op in proven_to_fit(k.function)]
    assert exact in fitting and shifted not in fitting


def test_nothing_is_assumed_of_unmarked_values() -> None:
    """Arithmetic that a pass inserts, or that is parsed from text, may wrap."""
    k = Kernel("N")
    out = k.tensor("out", Access.INOUT, "N")
    offset = k.mul(k.bid(), 1 << 20)
    k.store(out, offset, shape=(1,), mask=True)
    assert aligned_ranges(k.function)[offset].low == -(2**31)
    assert aligned_ranges(note_proofs(k.function))[offset].low == 0


V1 = """
import tilec
from tilec import Dim, In, InOut, f32, full, grid, {dtype}, i32, load, minimum, store

class N(Dim):
    \"\"\"n\"\"\"

@tilec.kernel
def v1(x: In[f32, N], out: InOut[f32, 8], n: {dtype}):
    grid(1)
    off = 5 - minimum(({value} << {dtype}({amount})).astype(i32), 5)
    {access}
"""
ACCESSES = {
    "store": "store(out, full((4,), 1.0, f32), offset=off, mask=True)",
    "load": "store(out, load(out, off, shape=(4,), pad=0), offset=0)",
}


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize(
    ("dtype", "value", "amount"), [("i32", "x.shape[0]", 33), ("u8", "n", 9), ("i16", "n", 17), ("u32", "n", 40)]
)
def test_a_mask_that_is_needed_stays(tmp_path: Path, access: str, dtype: str, value: str, amount: int) -> None:
    """A shift past the width gives 0, so the box starts at 5 of 8 and extends past the end: every access without a mask must be
    under a bounds test."""
    path = tmp_path / "v1.py"
    path.write_text(V1.format(dtype=dtype, value=value, amount=amount, access=ACCESSES[access]), encoding="utf-8")
    function = load_kernel(path, {})
    prove(function)
    prepared = prepare(function, SM_90A)
    wide = [op for op in prepared.body.walk() if isinstance(op, ops.Load | ops.Store) and op.tile.tile.shape == (4,)]
    guarded = {op for branch in prepared.body.walk() if isinstance(branch, ops.If) for op in branch.regions[0].walk()}
    hanging = [op for op in wide if (isinstance(op, ops.Store) if access == "store" else isinstance(op, ops.Load))]
    assert hanging and any(op.clipped for op in hanging)
    assert all(op.clipped or op in guarded for op in hanging)


@dataclass
class Spoilt:
    """Runs scalar code, and corrupts the result of one operation by an addend. `accesses` are the accessed elements, each with
    its source location."""

    op: Op | None = None
    accesses: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    steps: int = 0

    def block(self, block: Block, state: dict[Value, int]) -> list[int]:
        for op in block.ops:
            self.steps += 1
            if self.steps > 4000:
                return []
            if isinstance(op, ops.Yield):
                return [state[value] for value in op.operands]
            self.run(op, state)
        return []

    def run(self, op: Op, state: dict[Value, int]) -> None:
        match op:
            case ops.For():
                carried = [state[value] for value in op.initial]
                for iteration in range(state[op.lower], state[op.upper], max(1, state[op.step])):
                    state.update(zip(op.regions[0].arguments, [iteration, *carried], strict=True))
                    carried = self.block(op.regions[0], state)
                    if self.steps > 4000:
                        return
                state.update(zip(op.results, carried, strict=True))
            case ops.If():
                state.update(zip(op.results, self.block(op.regions[not state[op.operands[0]]], state), strict=True))
            case ops.Store():
                self.accesses.append((str(op.loc), state[op.offsets[0]]))
            case ops.Load():
                self.accesses.append((str(op.loc), state[op.offsets[0]]))
                state[op.result] = 5
            case ops.BlockId():
                state[op.result] = 1
            case _:
                raw = evaluate(op, [[state[value]] for value in op.operands])[0]
                state[op.result] = wrapped(int(raw), op.result.tile.dtype)
        if op is self.op:
            state[op.result] = 1 - state[op.result] if op.result.tile.dtype == boolean else wrapped(state[op.result] + 1, i32)


class Nested:
    """A random kernel of scalars: arithmetic, loops with carried values, branches with results, accesses."""

    def __init__(self, seed: int) -> None:
        self.r, self.k = random.Random(seed), Kernel(1)
        self.x = self.k.tensor("x", Access.INOUT, "N", dtype=i32)
        self.values = [self.k.bid(), self.k.c(3), self.k.c(-2)]
        self.some(self.r.randint(4, 8), 2)

    def some(self, count: int, depth: int) -> None:
        for _ in range(count):
            roll = self.r.random()
            if roll < 0.5 or (roll < 0.8 and not depth):
                kind = self.r.choice(("add", "sub", "mul", "min", "max", "xor"))
                self.values.append(self.k.op(kind, self.pick(), self.pick()))
            elif roll < 0.65 and depth:
                self.loop(depth)
            elif roll < 0.8 and depth:
                self.branch(depth)
            elif roll < 0.9:
                self.values.append(self.k.scalar_load(self.x, self.pick()))
            else:
                tile = self.k.spread(self.pick(), (1,))
                self.k.emit(ops.Store(operands=[self.x, tile, self.pick()]))

    def pick(self) -> Value:
        return self.r.choice(self.values[-6:])

    def inside(self, block: Block, depth: int) -> None:
        outer, known, self.k.block = self.k.block, list(self.values), block
        self.values += block.arguments
        self.some(self.r.randint(1, 3), depth - 1)
        self.k.emit_yield(self.pick())
        self.k.block, self.values = outer, known

    def loop(self, depth: int) -> None:
        op = ops.For(operands=[self.k.c(0), self.k.op("min", self.pick(), 3), self.k.c(1), self.pick()], regions=[Block()])
        for name in "ic":
            op.regions[0].add_argument(TileType(i32), name)
        self.region(op, depth)

    def branch(self, depth: int) -> None:
        self.region(ops.If(operands=[self.k.op("lt", self.pick(), self.pick())], regions=[Block(), Block()]), depth)

    def region(self, op: Op, depth: int) -> None:
        self.k.emit_region(op)
        for region in op.regions:
            self.inside(region, depth)
        op.define(TileType(i32))
        self.values += op.results


def touched(function: Function, op: Op | None = None) -> list[tuple[str, int]] | None:
    one = Spoilt(op)
    one.block(function.body, {})
    return one.accesses if one.steps <= 4000 else None


def test_operations_that_do_not_decide_addresses_move_no_access() -> None:
    """At least one value that does decide must move an access, otherwise the test tried nothing."""
    moved = 0
    for seed in range(120):
        function = Nested(seed).k.function
        deciding, right = set(deciding_ops(function)), touched(function)
        if right is None:
            continue
        for op in function.body.walk():
            if len(op.results) != 1 or isinstance(op, ops.For | ops.If | ops.Load):
                continue
            found = touched(function, op)
            assert op in deciding or found in (right, None), (seed, op, op.loc)
            moved += op in deciding and found not in (right, None)
    assert moved > 100
