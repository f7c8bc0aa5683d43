"""Kernels with one masked box whose offset consists of shifts, casts and masks at the edges of dtypes, to test which masks are
dropped.

In: a number. Out: source text and launch values; a verdict. The prover accepts many of them, because their operations have no
obligation (`&`, `%`, `>>`, a shift by the width or more) or are clamped before they have one. For each accepted kernel the
enumerator runs the function, unprepared and prepared, element by element: both access the same elements, all in bounds, and
operations marked as unguarded need no guard. Some are also lowered and run on the MLIR block machine, and their stores compared
with the interpreter.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.soundness.enumeration import Launch
from tests.soundness.memory import Memory
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function, Op, VerifyError
from tilec.ir.ops import BinaryInRange
from tilec.ir.types import DTYPES, MAX_DIM, DType
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

INTEGERS = tuple(name for name, dtype in DTYPES.items() if dtype.is_integer)
BOX = 4
HEAD = '''import tilec
from tilec import Dim, In, InOut, arange, f32, full, grid, i8, i16, i32, i64, load, maximum, minimum, store, u8, u16, u32, where


class N(Dim):
    """elements"""


@tilec.kernel
'''


@dataclass(frozen=True)
class Expression:
    """Source text of a scalar, its dtype, and bounds that hold if nothing in it wraps."""

    text: str
    dtype: str
    low: int
    high: int


class Maker:
    """Generates expressions of `n` (an extent, i32) and of the scalars `p` and `q`."""

    def __init__(self, r: random.Random, p: str, q: str) -> None:
        self.r = r
        self.leaves = [Expression("n", "i32", 1, MAX_DIM), *(self._scalar(*one) for one in (("p", p), ("q", q)))]

    def _scalar(self, name: str, dtype: str) -> Expression:
        return Expression(name, dtype, *DTYPES[dtype].integer_range())

    def constant(self, dtype: str) -> Expression:
        low, high = DTYPES[dtype].integer_range()
        number = self.r.choice([n for n in (0, 1, 2, 3, 5, 7, 8, 63, 255, -1, -8, low, high, high // 2) if low <= n <= high])
        return Expression(f"{dtype}({number})", dtype, number, number)

    def clamped(self, e: Expression, low: int, high: int) -> Expression:
        dtype_low, dtype_high = DTYPES[e.dtype].integer_range()
        low, high = max(low, dtype_low), min(high, dtype_high)
        return Expression(f"minimum(maximum({e.text}, {e.dtype}({low})), {e.dtype}({high}))", e.dtype, low, high)

    def make(self, depth: int) -> Expression:
        if depth == 0 or self.r.random() < 0.1:
            return self.r.choice(self.leaves)
        e, roll = self.make(depth - 1), self.r.random()
        if roll < 0.35:
            return self.shift(e)
        if roll < 0.6:
            return self.bits(e)
        if roll < 0.72:
            return self.cast(e)
        if roll < 0.82:
            return self.divided(e)
        if roll < 0.92:
            return self.chosen(e, depth)
        small = self.clamped(e, -40, 40)
        low, high = sorted((-small.low, -small.high))
        if DTYPES[e.dtype].kind == "u":
            return Expression(f"({small.text} + {e.dtype}(3))", e.dtype, small.low + 3, small.high + 3)
        return Expression(f"(-{small.text})", e.dtype, low, high)

    def shift(self, e: Expression) -> Expression:
        bits, (dtype_low, dtype_high) = DTYPES[e.dtype].bits, DTYPES[e.dtype].integer_range()
        amount = self.r.choice((0, 1, 3, bits - 1, bits, bits + 1, 33, 40, 63, 64, dtype_high, dtype_low))
        amount = amount if dtype_low <= amount <= dtype_high else bits
        other = self.r.choice(self.leaves)
        if other.dtype == e.dtype and self.r.random() < 0.3:
            return Expression(f"({e.text} {self.r.choice(('<<', '>>'))} {other.text})", e.dtype, dtype_low, dtype_high)
        if self.r.random() < 0.5:
            return Expression(f"({e.text} >> {e.dtype}({amount}))", e.dtype, min(e.low, -1 if dtype_low else 0), max(e.high, 0))
        if 0 <= amount < bits:
            e = self.clamped(e, dtype_low >> amount, dtype_high >> amount)
            return Expression(f"({e.text} << {e.dtype}({amount}))", e.dtype, e.low << amount, e.high << amount)
        return Expression(f"({e.text} << {e.dtype}({amount}))", e.dtype, 0, 0)

    def bits(self, e: Expression) -> Expression:
        dtype_low, dtype_high = DTYPES[e.dtype].integer_range()
        other = self.constant(e.dtype)
        kind = self.r.choice("&&|^")
        if kind == "&" and other.low >= 0:
            return Expression(f"({e.text} & {other.text})", e.dtype, 0, other.high)
        return Expression(f"({e.text} {kind} {other.text})", e.dtype, dtype_low, dtype_high)

    def cast(self, e: Expression) -> Expression:
        target = self.r.choice(INTEGERS)
        low, high = DTYPES[target].integer_range()
        if not low <= e.low <= e.high <= high:
            e = self.clamped(e, low, high)
        return Expression(f"({e.text}).astype({target})", target, e.low, e.high)

    def divided(self, e: Expression) -> Expression:
        by = self.r.choice((2, 3, 7, 64, 127))
        if self.r.random() < 0.5:
            return Expression(f"({e.text} % {e.dtype}({by}))", e.dtype, 0, by - 1)
        return Expression(f"({e.text} // {e.dtype}({by}))", e.dtype, e.low // by, e.high // by)

    def chosen(self, e: Expression, depth: int) -> Expression:
        other = self.make(depth - 1)
        other = other if other.dtype == e.dtype else self.constant(e.dtype)
        test = f"{e.text} {self.r.choice(('<', '>=', '==', '!='))} {self.constant(e.dtype).text}"
        return Expression(f"where({test}, {e.text}, {other.text})", e.dtype, min(e.low, other.low), max(e.high, other.high))


@dataclass(frozen=True)
class EdgeProgram:
    """Source text, and dtypes of its scalars."""

    text: str
    p: str
    q: str


def program(number: int) -> EdgeProgram:
    """The program of a number."""
    r = random.Random(f"edge program {number}")
    p, q = r.choice(INTEGERS), r.choice(INTEGERS)
    maker = Maker(r, p, q)
    index = maker.make(r.randint(1, 4))
    index = maker.shift(index) if r.random() < 0.3 else index
    index = maker.clamped(index, r.choice((-9, -1, 0, 0, 2)), r.choice((2, 4, 5, 8, 13)))
    offset = f"({index.text}).astype(i32)"
    offset = r.choice(
        (
            offset,
            f"{r.randint(0, 13)} - {offset}",
            f"{r.randint(4, 6)} - {offset}",
            f"{offset} * 3",
            f"{offset} + 2",
            f"minimum({offset}, n)",
        )
    )
    value = maker.make(2)
    dim = r.choice(("8", "8", "16", "N"))
    moves = {
        "store": [f"store(out, full(({BOX},), 1.0, f32), offset=off, mask=True)"],
        "load": [f"store(out, load(x, off, shape=({BOX},), pad=-1.0), offset=0, mask=True)"],
        "both": [f"t = load(x, off, shape=({BOX},), pad=-1.0)", "store(out, t, offset=off, mask=True)"],
    }[r.choice(("store", "load", "both"))]
    lines = [
        f"def edge(x: In[f32, {dim}], size: In[f32, N], out: InOut[f32, {dim}], made: InOut[i64, 4], p: {p}, q: {q}):",
        "    grid(1)",
        "    n = size.shape[0]",
        f"    off = {offset}",
        f"    store(made, full((4,), ({value.text}).astype({value.dtype}), {value.dtype}).astype(i64), offset=0)",
        *(f"    {line}" for line in moves),
    ]
    return EdgeProgram(HEAD + "\n".join(lines) + "\n", p, q)


def launches(edge_program: EdgeProgram, number: int, count: int) -> list[dict[str, int]]:
    """Launch values at the edges of their dtypes."""
    r = random.Random(f"edge launch {number}")
    return [
        {"n": 0, "N": r.choice((1, 3, 8, 9, 100)), "p": _edge(DTYPES[edge_program.p], r), "q": _edge(DTYPES[edge_program.q], r)}
        for _ in range(count)
    ]


def _edge(dtype: DType, r: random.Random) -> int:
    low, high = dtype.integer_range()
    candidates = (
        0,
        1,
        2,
        5,
        8,
        dtype.bits - 1,
        dtype.bits,
        dtype.bits + 1,
        33,
        64,
        -1,
        -3,
        low,
        low + 1,
        high,
        high - 1,
        r.randint(low, high),
    )
    return r.choice([n for n in candidates if low <= n <= high])


class Unguarded(Exception):
    """An unguarded division or shift whose right operand is out of range: undefined in machine code."""


class Prepared(Launch):
    """Also runs operations that passes add, which do not affect which memory is accessed."""

    def _compute(self, op: Op) -> None:
        if not op.results or op.result not in self.needed:
            return
        if isinstance(op, BinaryInRange):
            bits = op.result.tile.dtype.bits
            inside = range(1, 1 << 64) if op.kind in ("floordiv", "mod") else range(bits)
            if not all(int(value) in inside for value in self.values[op.operands[1]]):
                raise Unguarded(f"{op.kind} by {self.values[op.operands[1]]}")
        super()._compute(op)


def accessed_elements(
    function: Function, sizes: dict[str, int]
) -> tuple[list[str], dict[str, tuple[set[object], set[object]]]]:
    """Out-of-bounds accesses, and the elements that are read and written."""
    launch = Prepared(function, sizes, Memory(function, sizes, 1))
    out_of_bounds = [str(fault) for fault in launch.run() if fault.kind == "bounds"]
    return out_of_bounds, {name: (set(traffic.writers), set(traffic.readers)) for name, traffic in launch.traffic.items()}


@dataclass(frozen=True)
class Outcome:
    """`kind`: equal, wrong, refused (by the frontend or the prover), internal; `dropped`: a mask was removed."""

    kind: str
    detail: str = ""
    dropped: bool = False
    lowered: bool = False


def examine(number: int, folder: Path, *, machine: bool, count: int = 6) -> Outcome:
    """Tests the program of a number at `count` launches; with `machine`, its lowered code too."""
    edge_program, path = program(number), folder / "edge.py"
    path.write_text(edge_program.text, encoding="utf-8")
    try:
        function = load_kernel(path, {})
        prove(function)
        prepared = prepare(load_kernel(path, {}), SM_90A, Overrides(warps=1))
    except CompileError as error:
        return Outcome("refused", error.diagnostics[0].code)
    except VerifyError as error:
        return Outcome("internal", str(error))
    masks = [sum(getattr(op, "clipped", False) for op in version.body.walk()) for version in (function, prepared)]
    for sizes in launches(edge_program, number, count):
        try:
            out_of_bounds, accessed = accessed_elements(prepared, sizes)
        except Unguarded as wrong:
            return Outcome("wrong", f"{sizes}: {wrong}")
        if out_of_bounds:
            return Outcome("wrong", f"{sizes}: {out_of_bounds[0]}")
        if accessed != accessed_elements(function, sizes)[1]:
            return Outcome("wrong", f"{sizes}: other elements are touched")
    if machine and (wrong := on_machine(function, prepared, launches(edge_program, number, 2))):
        return Outcome("wrong", wrong, lowered=True)
    return Outcome("equal", dropped=masks[1] < masks[0], lowered=machine)


def on_machine(function: Function, prepared: Function, launch_values: list[dict[str, int]]) -> str:
    """The first difference between the stores of the lowered code and the interpreter; an empty string if they agree."""
    folder = str(Path(__file__).resolve().parents[1] / "lowering")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    from block_machine import launch  # pyright: ignore

    lowered = lower(prepared, SM_90A)
    for sizes in launch_values:
        scalars = {name: sizes[name] for name in ("p", "q")}
        expected, found = _arrays(function, sizes), _arrays(function, sizes)
        run(function, expected, dict(scalars))
        launch(function, lowered, found, {**scalars, "N": sizes["N"]})
        for name, array in expected.items():
            if not np.array_equal(array, found[name]):
                return f"{sizes}: `{name}` is {found[name].tolist()} instead of {array.tolist()}"
    return ""


def _arrays(function: Function, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for parameter in function.parameters:
        if parameter.access is not None:
            extents = [dim.evaluate(sizes) for dim in parameter.value.tensor.dims]
            integers = parameter.value.tensor.dtype.is_integer
            arrays[parameter.name] = np.arange(
                100, 100 + int(np.prod(extents)), dtype=np.int64 if integers else np.float32
            ).reshape(extents)
    return arrays
