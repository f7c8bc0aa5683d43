"""Kernels compute what the same text computes in Python: scalar programs are run both ways.

A small evaluator here runs the tile IR, so that an error in the shared interpreter cannot hide one in the front end.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from frontend_kernels import compile_body, compile_text

from tilec.ir import ops
from tilec.ir.core import Block, Function, Op, Value

BINARY = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max, "and": lambda a, b: a & b,
    "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip
UNARY = {"neg": lambda a: -a, "abs": abs, "not": lambda a: not a if isinstance(a, bool) else ~int(a)}
COMPARE = {"eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
           "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b}  # fmt: skip


class Evaluator:
    """Runs scalar operations; a store records the value written."""

    def __init__(self, function: Function, scalars: dict[str, float], block: int) -> None:
        self.values: dict[Value, float] = {}
        self.scalars, self.block, self.stored = scalars, block, list[float]()
        for parameter in function.parameters:
            if parameter.access is None:
                self.values[parameter.value] = scalars[parameter.name]
        self.run(function.body)

    def run(self, block: Block) -> list[float]:
        for op in block.ops:
            args = [self.values.get(value, 0) for value in op.operands]
            if isinstance(op, ops.Yield):
                return args
            results = self.step(op, args)
            for value, result in zip(op.results, results, strict=True):
                self.values[value] = result
        return []

    def step(self, op: Op, args: list[float]) -> list[float]:
        if isinstance(op, ops.Constant):
            return [op.value]
        if isinstance(op, ops.DimValue):
            return [self.scalars[op.symbol]]
        if isinstance(op, ops.BlockId):
            return [self.block]
        if isinstance(op, ops.Binary):
            return [BINARY[op.kind](*args)]
        if isinstance(op, ops.Compare):
            return [COMPARE[op.kind](*args)]
        if isinstance(op, ops.Unary):
            return [
                {"neg": lambda a: -a, "abs": abs, "not": lambda a: not a if isinstance(a, bool) else ~int(a)}[op.kind](args[0])
            ]
        if isinstance(op, ops.Select):
            return [args[1] if args[0] else args[2]]
        if isinstance(op, ops.Cast):
            return [float(args[0]) if op.result.tile.dtype.is_float else int(args[0])]
        if isinstance(op, ops.Reshape):
            return [args[0]]
        if isinstance(op, ops.If):
            return self.run(op.regions[0 if args[0] else 1])
        if isinstance(op, ops.For):
            carried = args[3:]
            (body,) = op.regions
            for i in range(int(args[0]), int(args[1]), int(args[2])):
                for value, item in zip(body.arguments, [i, *carried], strict=True):
                    self.values[value] = item
                carried = self.run(body)
            return carried
        assert isinstance(op, ops.Store), op
        self.stored.append(args[1])
        return []


PROGRAMS = {
    "floor division and modulo of negatives": """
        a = pos - 7
        r = a // 3 * 100 + a % 3
    """,
    "constants fold as Python does": """
        r = (-7 // 2) * 1000 + (-7 % 4) * 100 + 2 ** 5 + (13 >> 2) + (5 & 6) + (5 ^ 1) + pos
    """,
    "a loop carries what it changes": """
        a, b = 0, 1
        for i in range(pos):
            a, b = b, a + b
        r = a
    """,
    "nested loops with an inner variable of the same name": """
        r = 0
        for i in range(pos):
            t = i * i
            for j in range(i, N, 2):
                t = t + j
                r += t
            r = r - t
    """,
    "a name that an iteration sets before reading is not carried": """
        t = 5
        r = t
        for i in range(pos):
            t = i * 2
            r = r + t
    """,
    "branches merge": """
        r = 1
        if pos > 3:
            r = pos * 2
            s = 10
        else:
            s = 20
        r = r + s
    """,
    "elif chains": """
        if pos < 2:
            r = 1
        elif pos < 4:
            r = 2
        elif pos == 5:
            r = 3
        else:
            r = 4
    """,
    "a branch inside a loop": """
        r = 0
        best = -1
        for i in range(N):
            if (i * 7) % 5 > best:
                best = (i * 7) % 5
                r = i
        r = r * 10 + best
    """,
    "a loop inside a branch": """
        r = 3
        if pos % 2 == 0:
            for i in range(pos):
                r = r * 2
        else:
            r = r + 1
    """,
    "conditional expressions and connectives": """
        a = 1 if pos > 2 and not pos > 4 or pos == 0 else 2
        b = pos * 3 if 1 < pos <= 3 else pos
        r = a * 100 + b
    """,
    "builtin min and max": """
        r = builtin_min(pos, 3) * 10 + builtin_max(pos, N, 4)
    """,
    "cdiv": """
        r = cdiv(pos, 4) * 10 + cdiv(N, 3)
    """,
    "early return of a tile function": """
        r = choose(pos, 3) + choose(pos + 1, 10) * 100
    """,
    "a tile function with a static branch, a default and a tuple": """
        a, b = pair(pos, flag=True)
        c, d = pair(pos)
        r = a + 10 * b + 100 * c + 1000 * d
    """,
    "a module constant": """
        r = pos * LIMIT + HALF
    """,
    "static branches fold": """
        if N_STATIC == 3 and True:
            r = pos
        else:
            r = undefined_name_is_never_read
    """,
    "shadowing a tile function's names": """
        t = 100
        r = shadow(pos) + t
    """,
    "augmented assignment of each operator": """
        r = pos
        r += 5
        r *= 3
        r -= 2
        r //= 2
        r %= 7
        r <<= 2
        r |= 1
    """,
    "a loop variable shadows": """
        i = 50
        r = i
        for i in range(pos):
            r = r + i
    """,
    "a zero-trip loop keeps values": """
        r = 9
        for i in range(5, 5):
            r = 1
        r = r + pos
    """,
    "unary operators": """
        r = -pos + ~pos * 10 + (+pos)
    """,
}
BEFORE = """
    LIMIT = 4 * 25 - 1
    HALF = LIMIT // 2
    N_STATIC = 3

    @tilec.function
    def choose(a, b):
        if a > b:
            return a
        c = a * 2
        return c + b

    @tilec.function
    def pair(a, flag=False):
        if flag:
            return a, 1
        return 2, a

    @tilec.function
    def shadow(a):
        t = a + 1
        for i in range(3):
            t = t + i
        return t
"""


def in_python(program: str, pos: int, n: int) -> int:
    """The program run by Python itself."""
    plain = textwrap.dedent(BEFORE).replace("@tilec.function\n", "")
    scope: dict[str, object] = {"pos": pos, "N": n, "cdiv": lambda a, b: -(-a // b), "builtin_min": min, "builtin_max": max}
    exec(plain + "\n" + textwrap.dedent(program), scope)
    result = scope["r"]
    assert isinstance(result, int)
    return result


@pytest.mark.parametrize("name", PROGRAMS)
def test_scalar_program_means_what_python_means(tmp_path: Path, name: str) -> None:
    program = PROGRAMS[name]
    body = "grid(1)\n" + textwrap.dedent(program) + "\nstore(out, 0, i32(r))\n"
    aliases = body.replace("builtin_min", "minimum").replace("builtin_max(pos, N, 4)", "maximum(maximum(pos, N), 4)")
    signature = "x: In[f32, N], out: Out[i32, N], pos: i32"
    function = compile_body(tmp_path, aliases, signature, before=BEFORE)
    for pos in (0, 1, 2, 3, 5, 6):
        for n in (1, 4, 6):
            assert Evaluator(function, {"pos": pos, "N": n}, 0).stored == [in_python(program, pos, n)], (pos, n)


def test_python_min_and_max_need_no_import(tmp_path: Path) -> None:
    text = """
from tilec import Dim, Out, grid, i32, kernel, store
class N(Dim):
    "extent"
@kernel
def k(out: Out[i32, N], pos: i32):
    grid(1)
    store(out, 0, min(pos, N, 7) * 10 + max(2, pos))
"""
    function = compile_text(tmp_path, text)
    assert Evaluator(function, {"pos": 5, "N": 3}, 0).stored == [35]
