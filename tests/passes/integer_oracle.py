"""Random integer programs on tiles, and the value of each operation by the semantics table, in plain Python.

A program works on tiles of four elements of every integer dtype: data loaded from an `In` tensor, scalars, constants, iota,
every integer operation, selections, casts, reductions, transposes, and a loop that carries one or two tiles. Positions of
largest numbers are also those of tiles converted to floats. The oracle runs it on given contents and returns the value of every
operation after each loop iteration and at the end. It shares no code with the prover, the interpreter or constant folding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from tests.passes.builder import Access, Kernel
from tilec.ir import ops
from tilec.ir.core import Block, Op, Parameter, Value
from tilec.ir.types import DType, TileType, boolean, f16, f32, i8, i16, i32, i64, u8, u16, u32

DTYPES = (i8, i16, i32, i64, u8, u16, u32)
SIZE = 4
ITERATIONS = 3
FLOATS = {f16: (11, 65504), f32: (24, 1 << 127)}  # digits, and the largest number
State = dict[Value, list[int]]


def wrap(value: int, dtype: DType) -> int:
    """Two's complement at the dtype's width."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "i" and value >> (dtype.bits - 1) else value


def exact(kind: str, a: int, b: int, dtype: DType) -> int:
    """`a kind b` by the semantics table, before wrapping."""
    if kind in ("floordiv", "mod") and b == 0:
        return 0
    if kind in ("shl", "shr") and not 0 <= b < dtype.bits:
        return 0 if kind == "shl" or a >= 0 else -1
    match kind:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "floordiv":
            return a // b
        case "mod":
            return a - b * (a // b)
        case "min":
            return a if a < b else b
        case "max":
            return a if a > b else b
        case "and":
            return a & b
        case "or":
            return a | b
        case "xor":
            return a ^ b
        case "shl":
            return a << b
        case "mulhi":
            return a * b >> dtype.bits
        case _:
            return a >> b


def unary(kind: str, a: int, dtype: DType) -> int:
    """`kind a` by the semantics table, before wrapping."""
    if kind == "neg":
        return -a
    if kind == "abs":
        return -a if a < 0 else a
    return 1 - a if dtype.kind == "b" else -1 - a if dtype.kind == "i" else (1 << dtype.bits) - 1 - a


def rounded(value: int, dtype: DType) -> int:
    """The nearest float, which is an integer too, with an even last digit of two; for an infinity a larger number."""
    digits, largest = FLOATS[dtype]
    unit = 1 << max(0, abs(value).bit_length() - digits)
    found = round(Fraction(abs(value), unit)) * unit
    found = found if found <= largest else 2 * largest
    return -found if value < 0 else found


COMPARE = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@dataclass
class Program:
    """A kernel, and the contents of its tensors and scalars by name."""

    kernel: Kernel
    contents: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    loop: ops.For | None = None
    wrapped: set[Op] = field(default_factory=set[Op])

    def states(self) -> Iterator[tuple[int, State]]:
        """(loop iteration, every value known in it); the last entry is the end of the program, as iteration -1."""
        state: State = {}
        for parameter in self.kernel.function.parameters:
            state[parameter.value] = self.contents[parameter.name]
        yield from self._run(self.kernel.body.ops, state)
        yield -1, state

    def _run(self, block: list[Op], state: State) -> Iterator[tuple[int, State]]:
        for op in block:
            if isinstance(op, ops.For):
                body = op.regions[0]
                carried = [state[value] for value in op.initial]
                for iteration in range(ITERATIONS):
                    inner = {**state, body.arguments[0]: [iteration]}
                    inner.update(zip(body.arguments[1:], carried, strict=True))
                    yield from self._run(body.ops[:-1], inner)
                    yield iteration, inner
                    carried = [inner[value] for value in body.ops[-1].operands]
                state.update(zip(op.results, carried, strict=True))
            elif op.results:
                state[op.result] = self._value(op, [state[value] for value in op.operands])

    def _value(self, op: Op, inputs: list[list[int]]) -> list[int]:
        shape, dtype = op.result.tile.shape, op.result.tile.dtype
        match op:
            case ops.Constant():
                return [int(op.value)] * max(1, op.result.tile.size)
            case ops.Iota():
                return list(range(shape[0]))
            case ops.Load():
                return inputs[0]
            case ops.Binary():
                found = [exact(op.kind, a, b, dtype) for a, b in zip(*inputs, strict=True)]
            case ops.Unary():
                found = [unary(op.kind, a, dtype) for a in inputs[0]]
            case ops.Compare():
                return [int(COMPARE[op.kind](a, b)) for a, b in zip(*inputs, strict=True)]
            case ops.Select():
                return [a if c else b for c, a, b in zip(*inputs, strict=True)]
            case ops.Cast() if dtype.is_float:
                return [rounded(a, dtype) for a in inputs[0]]
            case ops.Cast():
                if dtype == boolean:
                    return [int(a != 0) for a in inputs[0]]
                found = inputs[0]
            case ops.Broadcast():
                return inputs[0] * SIZE
            case ops.Reshape():
                return inputs[0]
            case ops.Permute():
                return [inputs[0][2 * column + row] for row in range(2) for column in range(2)]
            case ops.Reduce():
                best = max(inputs[0]) if "max" in op.kind else min(inputs[0])
                found = [inputs[0].index(best) if op.kind.startswith("arg") else sum(inputs[0]) if op.kind == "sum" else best]
            case _:
                raise NotImplementedError(op.opcode)
        if dtype == boolean:
            return found
        kept = [wrap(value, dtype) for value in found]
        if kept != found or (isinstance(op, ops.Binary) and op.kind in ("floordiv", "mod") and min(inputs[1]) < 1):
            self.wrapped.add(op)
        return kept


def edges(dtype: DType, r: random.Random) -> int:
    """A number at which an operation may overflow or change sign."""
    low, high = dtype.integer_range()
    some = (0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits, high, high - 1, low, low + 1, -1, -2, -3, r.randint(low, high))
    return max(low, min(high, r.choice(some)))


class Maker:
    """Builds one program from a seed."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.k = Kernel(1)
        self.built = Program(self.k)
        self.tiles: list[Value] = []

    def program(self) -> Program:
        """Inputs, some operations, perhaps a loop with more operations, and more operations after it."""
        for number, dtype in enumerate(self.r.sample(DTYPES, 2)):
            name = f"x{number}"
            tensor = self.k.tensor(name, Access.IN, SIZE, dtype=dtype)
            self.built.contents[name] = [edges(dtype, self.r) for _ in range(SIZE)]
            self.tiles.append(self.k.load(tensor, 0, shape=(SIZE,)))
        scalar = self.r.choice(DTYPES)
        value = self.k.body.add_argument(TileType(scalar), "s")
        self.k.function.parameters.append(Parameter("s", value, None))
        self.built.contents["s"] = [edges(scalar, self.r)]
        self.tiles.append(self.k.spread(value, (SIZE,)))
        self.tiles.append(self.k.iota(SIZE))
        for _ in range(self.r.randint(1, 5)):
            self.step()
        if self.r.random() < 0.6:
            self.loop()
        for _ in range(self.r.randint(1, 3)):
            self.step()
        return self.built

    def step(self) -> None:
        """Emits one more operation."""
        r, k = self.r, self.k
        a = r.choice([t for t in self.tiles if t.tile.dtype != boolean])
        dtype = a.tile.dtype
        same = [t for t in self.tiles if t.tile.dtype == dtype]
        b = r.choice(same) if r.random() < 0.5 else self.constant(dtype)
        form = r.random()
        if form < 0.5:
            kinds = [kind for kind in ops.BINARY_KINDS if kind not in ("div", "pow", "fast_pow")]
            self.add(ops.Binary(kind=r.choice(kinds), operands=[a, b]), a.tile)
        elif form < 0.6:
            self.add(ops.Unary(kind=r.choice(("neg", "abs", "not")), operands=[a]), a.tile)
        elif form < 0.7:
            test = k.emit(ops.Compare(kind=r.choice(ops.COMPARE_KINDS), operands=[a, b]), TileType(boolean, (SIZE,))).result
            self.tiles.append(test)
            self.add(ops.Select(operands=[test, a, r.choice(same)]), a.tile)
        elif form < 0.82:
            source = r.choice(self.tiles)
            self.add(ops.Cast(operands=[source]), TileType(r.choice((*DTYPES, boolean)), (SIZE,)))
        elif form < 0.9:
            kind = r.choice(ops.REDUCE_KINDS)
            if "arg" in kind and r.random() < 0.5:
                a = k.emit(ops.Cast(operands=[a]), TileType(r.choice((f16, f32)), (SIZE,))).result
            reduced = k.emit(ops.Reduce(kind=kind, axis=0, operands=[a]), TileType(i32 if "arg" in kind else dtype)).result
            self.tiles.append(k.spread(reduced, (SIZE,)))
        else:
            self.tiles.append(self.transposed(a))

    def transposed(self, tile: Value) -> Value:
        """The tile reshaped to a matrix, transposed, and reshaped to a row again."""
        dtype = tile.tile.dtype
        matrix = self.k.emit(ops.Reshape(operands=[tile]), TileType(dtype, (2, 2))).result
        transposed = self.k.emit(ops.Permute(axes=(1, 0), operands=[matrix]), TileType(dtype, (2, 2))).result
        return self.k.emit(ops.Reshape(operands=[transposed]), TileType(dtype, (SIZE,))).result

    def add(self, op: Op, type: TileType) -> None:
        self.tiles.append(self.k.emit(op, type).result)

    def constant(self, dtype: DType) -> Value:
        return self.k.emit(ops.Constant(value=edges(dtype, self.r)), TileType(dtype, (SIZE,))).result

    def loop(self) -> None:
        """A loop of `ITERATIONS` iterations that carries one tile, or carries two and swaps them."""
        first = self.r.choice(self.tiles)
        pair = [t for t in self.tiles if t.tile.dtype == first.tile.dtype]
        initial = [first, self.r.choice(pair)][: self.r.randint(1, 2)]
        op = ops.For(operands=[self.k.c(0), self.k.c(ITERATIONS), self.k.c(1), *initial], variable="i", regions=[Block()])
        variable = op.regions[0].add_argument(TileType(i32), "i")
        carried = [op.regions[0].add_argument(first.type, f"c{k}") for k in range(len(initial))]
        self.k.emit_region(op)
        outer, known = self.k.block, list(self.tiles)
        self.k.block = op.regions[0]
        self.tiles += [*carried, self.k.spread(variable, (SIZE,))]
        for _ in range(self.r.randint(1, 4)):
            self.step()
        fitting = [t for t in self.tiles if t.tile.dtype == first.tile.dtype]
        self.k.emit_yield(*(self.r.choice([*fitting[-3:], *carried]) for _ in initial))
        self.k.block, self.tiles = outer, known
        op.define(*(value.tile for value in initial))
        self.tiles += op.results
        self.built.loop = op
