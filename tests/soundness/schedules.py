"""Correct schedules with random tile sizes and constants, to which mutations are applied."""

from __future__ import annotations

import random

from tests.soundness.description import Assign, Branch, Description, Expr, LoadIndex, Loop, Move, Pick, Statement, Tensor
from tests.soundness.grid_schedules import GRID_SCHEDULES
from tests.soundness.schedule_parts import Schedules, cdiv, copy, io, mul, registered_in

SCHEDULES: Schedules = {}
"""By name; the schedule of a seed depends on their order."""
_schedule = registered_in(SCHEDULES)


@_schedule
def elementwise(r: random.Random) -> Description:
    tile = r.randint(1, 4)
    if r.random() < 0.5:
        return Description("elementwise", [cdiv("N", tile)], io("N"), copy(["b0"], [tile], True, True))
    return Description("elementwise", [cdiv("N", tile)], io("N"), copy([mul("b0", tile)], [tile], False, True))


@_schedule
def divisible(r: random.Random) -> Description:
    tile = r.randint(2, 4)
    kernel = Description("divisible", [("//", "N", tile)], io("N"), copy(["b0"], [tile]))
    kernel.requires.append(("==", ("%", "N", tile), 0))
    return kernel


@_schedule
def row_loop(r: random.Random) -> Description:
    tile = r.randint(1, 4)
    loop = Loop("j", 0, cdiv("M", tile), 1, copy(["b0", "j"], [1, tile], True, True))
    return Description("row_loop", ["N"], io("N", "M"), [loop])


@_schedule
def row_steps(r: random.Random) -> Description:
    tile = r.randint(1, 4)
    loop = Loop("j", 0, "C", tile, copy(["b0", "j"], [1, tile], False))
    kernel = Description("row_steps", ["N"], io("N", "C"), [loop])
    kernel.constants["C"] = tile * r.randint(1, 3)
    return kernel


@_schedule
def tiles_2d(r: random.Random) -> Description:
    t, u = r.randint(1, 3), r.randint(1, 3)
    return Description("tiles_2d", [cdiv("N", t), cdiv("M", u)], io("N", "M"), copy(["b0", "b1"], [t, u], True, True))


@_schedule
def flat_tiles(r: random.Random) -> Description:
    t, u = r.randint(1, 3), r.randint(1, 3)
    across = cdiv("M", u)
    body = copy([("//", "b0", across), ("%", "b0", across)], [t, u], True, True)
    kernel = Description("flat_tiles", [mul(cdiv("N", t), across)], io("N", "M"), body)
    if r.random() < 0.5:
        kernel.constants["M"] = r.randint(1, 7)
    return kernel


@_schedule
def group_swizzle(r: random.Random) -> Description:
    t, u, group = r.randint(1, 2), r.randint(1, 2), r.randint(2, 3)
    body: list[Statement] = [
        Assign("rows", cdiv("N", t)),
        Assign("columns", cdiv("M", u)),
        Assign("width", mul("columns", group)),
        Assign("first", mul(("//", "b0", "width"), group)),
        Assign("size", ("min", ("-", "rows", "first"), group)),
        Assign("rest", ("%", "b0", "width")),
        *copy([("+", "first", ("%", "rest", "size")), ("//", "rest", "size")], [t, u], True, True),
    ]
    kernel = Description("group_swizzle", [mul(cdiv("N", t), cdiv("M", u))], io("N", "M"), body)
    if r.random() < 0.6:
        kernel.constants["M"] = r.randint(1, 6)
    else:
        kernel.requires.append(("<=", "M", r.choice([1000, 100000])))
    return kernel


@_schedule
def head_map(r: random.Random) -> Description:
    group = r.randint(2, 3)
    kernel = Description("head_map", ["N", mul("C", group)], [], [])
    kernel.constants["C"] = r.randint(1, 3)
    kernel.tensors = [Tensor("kv", "In", ["N", "C", 4]), Tensor("out", "Out", ["N", mul("C", group), 4])]
    kernel.body = [
        Move("load", "kv", ["b0", ("//", "b1", group), 0], [1, 1, 4]),
        Move("store", "out", ["b0", "b1", 0], [1, 1, 4]),
    ]
    return kernel


@_schedule
def head_permute(r: random.Random) -> Description:
    symbolic = r.random() < 0.5
    kernel = Description("head_permute", [mul("A", "G")], [], [])
    if not symbolic:
        kernel.constants["G"] = r.randint(2, 4)
    else:
        kernel.constants["A"] = r.randint(2, 4)
    kernel.tensors = [Tensor("x", "In", [mul("A", "G"), 2]), Tensor("out", "Out", ["A", "G", 2])]
    kernel.body = [
        Move("load", "x", ["b0", 0], [1, 2]),
        Move("store", "out", [("//", "b0", "G"), ("%", "b0", "G"), 0], [1, 1, 2]),
    ]
    return kernel


@_schedule
def transposed(r: random.Random) -> Description:
    t = r.randint(1, 2)
    kernel = Description(
        "transposed", [cdiv("N", t), "M"], [Tensor("x", "In", ["N", "M"]), Tensor("out", "Out", ["M", "N"])], []
    )
    kernel.body = [
        Move("load", "x", ["b0", "b1"], [t, 1], True, True),
        Move("store", "out", ["b1", "b0"], [1, t], True, True),
    ]
    return kernel


@_schedule
def split_partials(r: random.Random) -> Description:
    splits = r.randint(2, 4)
    t = r.randint(1, 3)
    kernel = Description(
        "split_partials", ["N", splits], [Tensor("x", "In", ["N", "K"]), Tensor("out", "Out", [splits, "N", 2])], []
    )
    chunk = cdiv(cdiv("K", t), splits)
    kernel.body = [
        Assign("chunk", chunk),
        Loop("j", mul("b1", "chunk"), ("min", mul(("+", "b1", 1), "chunk"), cdiv("K", t)), 1, [
            Move("load", "x", ["b0", "j"], [1, t], True, True),
        ]),
        Move("store", "out", ["b1", "b0", 0], [1, 1, 2]),
    ]  # fmt: skip
    return kernel


@_schedule
def persistent(r: random.Random) -> Description:
    t = r.randint(1, 3)
    blocks: Expr = r.choice([r.randint(1, 4), ("min", "N", 4), "P"])
    kernel = Description("persistent", [blocks], io("N", "M"), [])
    if blocks == "P":
        kernel.requires.append(("<=", "P", 1000))
        kernel.tensors.append(Tensor("work", "In", ["P"]))
    inner: Statement = Loop("j", 0, cdiv("M", t), 1, copy(["i", "j"], [1, t], True, True))
    kernel.body = [Loop("i", "b0", "N", "num_blocks(0)", [inner])]
    return kernel


@_schedule
def persistent_tiles(r: random.Random) -> Description:
    t, u = r.randint(1, 2), r.randint(1, 3)
    kernel = Description("persistent_tiles", [r.randint(1, 4)], io("N", "C"), [])
    kernel.constants["C"] = r.randint(1, 6)
    across = cdiv("C", u)
    body = copy([("//", "i", across), ("%", "i", across)], [t, u], True, True)
    kernel.requires.append(("<=", "N", 10000))
    kernel.body = [Loop("i", "b0", mul(cdiv("N", t), across), "num_blocks(0)", body)]
    return kernel


@_schedule
def embedding(r: random.Random) -> Description:
    tensors = [Tensor("ids", "In", ["N"], True, 0, "V"), Tensor("table", "In", ["V", 4]), Tensor("out", "Out", ["N", 4])]
    body: list[Statement] = [
        LoadIndex("token", "ids", ["b0"]),
        Move("load", "table", ["token", 0], [1, 4]),
        Move("store", "out", ["b0", 0], [1, 4]),
    ]
    return Description("embedding", ["N"], tensors, body)


@_schedule
def slot_store(r: random.Random) -> Description:
    tensors = [
        Tensor("slots", "In", ["N"], True, 0, "S", True),
        Tensor("x", "In", ["N", 2]),
        Tensor("cache", "InOut", ["S", 2]),
    ]
    body: list[Statement] = [
        LoadIndex("slot", "slots", ["b0"]),
        Move("load", "x", ["b0", 0], [1, 2]),
        Move("store", "cache", ["slot", 0], [1, 2]),
    ]
    return Description("slot_store", ["N"], tensors, body)


@_schedule
def permutation(r: random.Random) -> Description:
    tensors = [Tensor("order", "In", ["N"], True, 0, "N", True), *io("N", 2)]
    body: list[Statement] = [LoadIndex("row", "order", ["b0"]), *copy(["row", 0], [1, 2])]
    return Description("permutation", ["N"], tensors, body)


@_schedule
def scatter_rows(r: random.Random) -> Description:
    t = r.randint(2, 4)
    index: list[Expr] = [("+", mul("b0", t), "lane")]
    body: list[Statement] = [Pick("gather", "x", list(index), t, True), Pick("scatter", "out", list(index), t, True)]
    return Description("scatter_rows", [cdiv("N", t)], io("N"), body)


@_schedule
def scatter_box(r: random.Random) -> Description:
    u = r.randint(2, 3)
    t = u * r.randint(1, 2)
    index: list[Expr] = ["b0", ("//", "lane", u), ("%", "lane", u)]
    body: list[Statement] = [Pick("gather", "x", list(index), t), Pick("scatter", "out", list(index), t)]
    return Description("scatter_box", ["N"], io("N", t // u, u), body)


@_schedule
def reversed_order(r: random.Random) -> Description:
    index: Expr = ("-", ("-", "N", 1), "b0")
    return Description("reversed_order", ["N"], io("N", 2), copy([index, 0], [1, 2]))


@_schedule
def longest_first(r: random.Random) -> Description:
    kernel = Description("longest_first", [mul("N", "H")], io("N", "H", 2), [])
    kernel.constants["H"] = r.randint(1, 4)
    t: Expr = ("-", ("-", "N", 1), ("//", "b0", "H"))
    kernel.body = [Assign("row", t), Assign("head", ("%", "b0", "H")), *copy(["row", "head", 0], [1, 1, 2])]
    return kernel


@_schedule
def carried_offset(r: random.Random) -> Description:
    t = r.randint(1, 3)
    loop = Loop("j", 0, ("//", "C", t), 1, [*copy(["b0", "at"], [1, t], False), Assign("at", ("+", "at", t))])
    kernel = Description("carried_offset", ["N"], io("N", "C"), [Assign("at", 0), loop])
    kernel.constants["C"] = t * r.randint(1, 4)
    return kernel


@_schedule
def edge_branch(r: random.Random) -> Description:
    t = r.randint(2, 4)
    whole: Expr = ("<=", mul(("+", "b0", 1), t), "N")
    body: list[Statement] = [Branch(whole, copy(["b0"], [t]), copy(["b0"], [t], True, True))]
    return Description("edge_branch", [cdiv("N", t)], io("N"), body)


@_schedule
def even_odd(r: random.Random) -> Description:
    even = copy([("//", "b0", 2)], [1])
    odd = copy([("-", ("-", "N", 1), ("//", "b0", 2))], [1])
    return Description("even_odd", ["N"], io("N"), [Branch(("==", ("%", "b0", 2), 0), even, odd)])


@_schedule
def joined_index(r: random.Random) -> Description:
    cut = r.randint(1, 3)
    body: list[Statement] = [
        Assign("at", "b0"),
        Branch((">=", "b0", cut), [Assign("at", ("-", "b0", cut))]),
        Move("load", "x", ["at"], [1]),
        Move("store", "out", ["b0"], [1]),
    ]
    return Description("joined_index", ["N"], io("N"), body)


@_schedule
def neighbours(r: random.Random) -> Description:
    body: list[Statement] = [
        Move("load", "x", [("max", ("-", "b0", 1), 0)], [1]),
        Move("load", "x", [("min", ("+", "b0", 1), ("-", "N", 1))], [1]),
        Move("store", "out", ["b0"], [1]),
    ]
    return Description("neighbours", ["N"], io("N"), body)


@_schedule
def in_place(r: random.Random) -> Description:
    t = r.randint(1, 3)
    body: list[Statement] = [
        Move("load", "x", ["b0"], [t], True, True),
        Move("store", "x", ["b0"], [t], True, True),
        Move("load", "x", ["b0"], [t], True, True),
    ]
    return Description("in_place", [cdiv("N", t)], [Tensor("x", "InOut", ["N"])], body)


@_schedule
def scratch_rows(r: random.Random) -> Description:
    t = r.randint(1, 3)
    write: Statement = Loop("j", 0, cdiv("M", t), 1, [Move("store", "part", ["b0", "j"], [1, t], True, True)])
    read: Statement = Loop("k", 0, cdiv("M", t), 1, [
        Move("load", "part", ["b0", "k"], [1, t], True, True),
        Move("store", "out", ["b0", "k"], [1, t], True, True),
    ])  # fmt: skip
    return Description(
        "scratch_rows", ["N"], [Tensor("part", "Scratch", ["N", "M"]), Tensor("out", "Out", ["N", "M"])], [write, read]
    )


@_schedule
def three_axes(r: random.Random) -> Description:
    t = r.randint(1, 2)
    dims: list[Expr] = ["N", "M", "C"]
    kernel = Description("three_axes", ["N", cdiv("M", t), "C"], io(*dims), copy(["b0", "b1", "b2"], [1, t, 1], True, True))
    kernel.constants["C"] = r.randint(1, 3)
    return kernel


@_schedule
def triangular(r: random.Random) -> Description:
    loop = Loop("j", 0, ("+", "b0", 1), 1, [Move("load", "x", ["j", "b0"], [1, 1])])
    body: list[Statement] = [loop, Move("store", "out", ["b0"], [1])]
    return Description("triangular", ["N"], [Tensor("x", "In", ["N", "N"]), Tensor("out", "Out", ["N"])], body)


@_schedule
def position_store(r: random.Random) -> Description:
    tensors = [Tensor("x", "In", ["N", 2]), Tensor("cache", "InOut", ["S", "N", 2])]
    body: list[Statement] = [Move("load", "x", ["b0", 0], [1, 2]), Move("store", "cache", ["POS", "b0", 0], [1, 1, 2])]
    requires: list[Expr] = [(">=", "POS", 0), ("<", "POS", "S")]
    return Description("position_store", ["N"], tensors, body, requires, scalars=["POS"])


@_schedule
def causal(r: random.Random) -> Description:
    t = r.randint(1, 3)
    tensors = [Tensor("kv", "In", ["S", 2]), Tensor("out", "Out", ["N", 2])]
    last: Expr = ("+", ("+", "b0", "POS"), 1)
    loop = Loop("j", 0, cdiv(last, t), 1, [Move("load", "kv", ["j", 0], [t, 2], True, True)])
    body: list[Statement] = [loop, Move("load", "kv", [("-", last, 1), 0], [1, 2]), Move("store", "out", ["b0", 0], [1, 2])]
    requires: list[Expr] = [(">=", "POS", 0), ("<=", ("+", "N", "POS"), "S")]
    return Description("causal", ["N"], tensors, body, requires, scalars=["POS"])


@_schedule
def flat_rows(r: random.Random) -> Description:
    heads = r.randint(2, 4)
    tensors = [Tensor("x", "In", ["N", heads, 2]), Tensor("out", "Out", [mul("N", heads), 2])]
    row: Expr = r.choice([("+", mul("b1", "N"), "b0"), ("+", mul("b0", heads), "b1")])
    body: list[Statement] = [Move("load", "x", ["b0", "b1", 0], [1, 1, 2]), Move("store", "out", [row, 0], [1, 2])]
    return Description("flat_rows", ["N", heads], tensors, body, [("<=", "N", 65536)])


@_schedule
def flagged(r: random.Random) -> Description:
    tensors = [Tensor("flags", "In", ["N"], True, 0, 3), *io("N", "M")]
    t = r.randint(1, 3)
    rows = [Loop("j", 0, cdiv("M", t), 1, copy(["b0", "j"], [1, t], True, True)) for _ in range(2)]
    body: list[Statement] = [LoadIndex("flag", "flags", ["b0"]), Branch((">", "flag", 0), [rows[0]], [rows[1]])]
    return Description("flagged", ["N"], tensors, body)


@_schedule
def halves(r: random.Random) -> Description:
    shift = r.randint(1, 2)
    width = 1 << shift
    index: list[Expr] = [(">>", "b0", shift), ("&", "b0", width - 1)]
    return Description("halves", [mul("N", width)], io("N", width), copy(index, [1, 1]))


@_schedule
def table_of_rows(r: random.Random) -> Description:
    tensors = [Tensor("pages", "In", ["N", "M"], True, 0, "P"), Tensor("kv", "In", ["P", 4]), Tensor("out", "Out", ["N", 4])]
    loop = Loop("j", 0, "M", 1, [LoadIndex("page", "pages", ["b0", "j"]), Move("load", "kv", ["page", 0], [1, 4])])
    body: list[Statement] = [loop, Move("store", "out", ["b0", 0], [1, 4])]
    return Description("table_of_rows", ["N"], tensors, body)


@_schedule
def segments(r: random.Random) -> Description:
    access, t = r.choice(["Out", "Out", "InOut"]), r.choice([1, 1, 2])
    offsets = Tensor("cu", "In", ["M"], True, 0, ("+", "N", 1), sorted=True, ends=access == "Out")
    tensors = [offsets, Tensor("x", "In", ["N", 2]), Tensor("out", access, ["N", 2])]
    body: list[Statement] = [LoadIndex("first", "cu", ["b0"]), LoadIndex("last", "cu", [("+", "b0", 1)])]
    if t == 1:
        body.append(Loop("j", "first", "last", 1, copy(["j", 0], [1, 2])))
    else:  # a tile of rows at a time, rows after the last full tile one by one
        inner = Branch(("<", ("+", "j", "k"), "last"), copy([("+", "j", "k"), 0], [1, 2]), [])
        body.append(Loop("j", "first", "last", t, [Loop("k", 0, t, 1, [inner])]))
    kernel = Description("segments", [("-", "M", 1)], tensors, body)
    kernel.requires.append((">=", "M", 2))
    return kernel


SCHEDULES |= GRID_SCHEDULES
