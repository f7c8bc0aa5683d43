"""Kernels from no schedule: random index expressions, loops and conditions, sometimes with sufficient extents."""

from __future__ import annotations

import random

from tests.soundness.description import COMPARISONS, Assign, Branch, Description, Expr, Loop, Move, Pick, Statement, Tensor


def wild(r: random.Random) -> Description:
    """A random kernel with one to three grid axes."""
    dims: list[Expr] = [r.choice(["N", "M", r.randint(1, 6)]) for _ in range(r.choice([1, 1, 2, 2, 3]))]
    grid: list[Expr] = []
    for _ in range(r.choice([1, 1, 2, 3])):
        dim = r.choice(dims)
        grid.append(r.choice([dim, dim, ("cdiv", dim, r.randint(1, 3)), ("*", dim, r.choice(dims)), ("+", dim, 1)]))
    kernel = Description(
        "wild", grid, [Tensor("x", "In", list(dims)), Tensor("out", r.choice(["Out", "Out", "InOut"]), list(dims))], []
    )
    scope = [f"b{axis}" for axis in range(len(grid))]
    kernel.body = [_statement(r, kernel, scope, 2) for _ in range(r.choice([1, 1, 2, 3]))]
    return kernel


def _statement(r: random.Random, kernel: Description, scope: list[str], depth: int) -> Statement:
    dims = kernel.tensor("out").dims
    kind = r.random()
    if depth and kind < 0.2:
        name = f"i{depth}"
        upper = r.choice([r.choice(dims), _expr(r, kernel, scope, 1), r.randint(1, 4), ("+", r.choice(scope), 1)])
        inner = [_statement(r, kernel, [*scope, name], depth - 1) for _ in range(r.choice([1, 1, 2]))]
        return Loop(name, r.choice([0, 0, r.choice(scope)]), upper, r.choice([1, 1, 2, "num_blocks(0)"]), inner)
    if depth and kind < 0.4:
        condition = (r.choice(COMPARISONS), _expr(r, kernel, scope, 1), _expr(r, kernel, scope, 1))
        then = [_statement(r, kernel, scope, depth - 1)]
        return Branch(condition, then, [_statement(r, kernel, scope, depth - 1)] if r.random() < 0.5 else [])
    if kind < 0.46:
        return Assign(r.choice(scope), _expr(r, kernel, scope, 1))
    tensor = r.choice(["x", "out", "out", "out"])
    verb = "load" if tensor == "x" or (kernel.tensor("out").access == "InOut" and r.random() < 0.3) else "store"
    if kind < 0.55:
        extent = r.randint(2, 4)
        index = [_expr(r, kernel, [*scope, "lane"], 2) for _ in dims]
        return Pick("gather" if verb == "load" else "scatter", tensor, index, extent, r.random() < 0.6)
    shape = [r.choice([1, 1, 2, 3]) for _ in dims]
    index = [_near(r, kernel, scope, axis) for axis in range(len(dims))]
    return Move(verb, tensor, index, shape, r.random() < 0.6, r.random() < 0.6)


def _near(r: random.Random, kernel: Description, scope: list[str], axis: int) -> Expr:
    if axis < len(scope) and r.random() < 0.6:
        return scope[axis]
    return _expr(r, kernel, scope, r.randint(0, 2))


def _expr(r: random.Random, kernel: Description, scope: list[str], depth: int) -> Expr:
    names = [dim for dim in kernel.tensor("out").dims if isinstance(dim, str)]
    if not depth or r.random() < 0.2:
        return r.choice([*scope, *scope, *scope, *names, r.randint(0, 3)])
    op = r.choice(["+", "+", "-", "*", "*", "//", "%", "%", "min", "max"])
    left = _expr(r, kernel, scope, depth - 1)
    if op in ("//", "%"):
        return op, left, r.choice([r.randint(1, 4), r.randint(1, 4), *names])
    right = r.randint(1, 4) if r.random() < 0.5 else _expr(r, kernel, scope, depth - 1)
    return op, left, right
