"""Correct schedules with their own order of tiles over the grid, in the form of `schedules`."""

from __future__ import annotations

import random

from tests.soundness.description import Description, Expr, Loop, Move, Statement, Tensor
from tests.soundness.schedule_parts import Schedules, cdiv, copy, io, mul, registered_in

GRID_SCHEDULES: Schedules = {}
_schedule = registered_in(GRID_SCHEDULES)


@_schedule
def swizzle(r: random.Random) -> Description:
    width = r.choice([2, 4, 8])
    key: Expr = r.choice([r.randint(0, width - 1), ("&", "b0", width - 1), ("%", "b0", width), (">>", "b0", 3)])
    mixed: Expr = ("^", "j", key) if not isinstance(key, tuple) or key[0] != ">>" else ("^", "j", ("&", key, width - 1))
    mixed = r.choice([mixed, ("&", mixed, width - 1), ("-", ("|", mixed, width), width)])
    body: list[Statement] = [Loop("j", 0, width, 1, copy(["b0", mixed], [1, 1]))]
    return Description("swizzle", ["N"], io("N", width), body)


@_schedule
def bits(r: random.Random) -> Description:
    mask = r.choice([1, 2, 3, 5, 6, 12])
    index: Expr = r.choice([("&", "b0", mask), ("-", ("|", "b0", mask), "b0"), ("&", ("^", "b0", mask), mask)])
    tensors = [Tensor("x", "In", [mask + 1]), Tensor("out", "Out", ["N"])]
    body: list[Statement] = [Move("load", "x", [index], [1]), Move("store", "out", ["b0"], [1])]
    return Description("bits", ["N"], tensors, body)


@_schedule
def persistent_grid(r: random.Random) -> Description:
    t, u = r.randint(1, 3), r.randint(1, 3)
    across, down = cdiv("M", u), cdiv("N", t)
    body = copy([("//", "t", across), ("%", "t", across)], [t, u], True, True)
    kernel = Description("persistent_grid", ["p"], io("N", "M"), [Loop("t", "b0", mul(down, across), "p", body)])
    kernel.scalars.append("p")
    kernel.requires += [("<=", mul("N", "M"), 1 << 20), ("<=", "p", 64)]
    return kernel
