"""Kernels with packed tensors, whose bytes have two elements each: right ones and wrong ones.

Blocks of one or two axes, or loops, write boxes of whole bytes; loads begin at any element, reach over edges, go through launch
scalars, loaded rows, strides, a `Scratch`, and in an `InOut` to bytes of neighbours. In a wrong kernel a box is too long or
begins too late, blocks share a byte, or a part is left unwritten.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.soundness.sketch import Sketch, WideKernel

WRONG = 0.12
"""How often each decision is made wrongly."""
DTYPES = ("tilec.u4", "tilec.i4", "tilec.f4e2m1")


@dataclass(slots=True)
class Boxes:
    """Where a block is: `row` of a tensor with `rows` rows, or empty for none, and boxes of `step` columns from `first` on, the
    number `tile` of them, in a row of `columns`. `whole`: the columns are a multiple of `step`."""

    row: str
    rows: str
    columns: str
    step: int
    first: str
    tile: str
    whole: bool


def packed_tensors(r: random.Random) -> WideKernel:
    """A kernel with at least one packed tensor that it writes."""
    s = Sketch(r, dims=[])
    dtype = r.choice(DTYPES)
    boxes = _boxes(s)
    value = _reads(s, boxes, dtype)
    _writes(s, boxes, dtype, value)
    kernel = s.kernel()
    kernel.schedule = " ".join(["packed", *sorted(set(s.parts))])
    return kernel


def _boxes(s: Sketch) -> Boxes:
    r = s.r
    step = 2 * r.choice([1, 1, 2, 2, 3, 4])
    if r.random() < WRONG / 3:
        step += 1
    columns = r.choice(["K", "K", "K", "K", "2 * H", f"{step // 2 * 2} * H", str(2 * r.randint(1, 12))])
    for name in ("K", "H"):
        if name in columns:
            if r.random() < 0.8:
                s.head.append(f"requires({name} <= 1 << 20)")
            s.dims.append(name)
            if name == "K" and r.random() < 0.5:  # a launch measures no dim in halves of bytes
                s.parameters.append("K: i32")
                s.head.insert(0, "requires(1 <= K)")
            elif name == "K":
                s.parameters.append(f"m: In[f32, {name}]")
    whole = False
    if columns == "K":
        multiple = r.choice([0, step, step, 2 * step, 2, 4])
        whole = multiple > 0 and multiple % step == 0
        if multiple:
            s.head.append(f"requires(K % {multiple} == 0)")
    elif columns.isdigit():
        whole = int(columns) % step == 0
    else:
        whole = int(columns.split()[0]) % step == 0
    rows = r.choice(["", "", "N", "N", "N", "3"])
    if rows == "N":
        s.dims.append("N")
    count = f"cdiv({columns}, {step})"
    if whole or r.random() < WRONG:
        count = r.choice([count, f"({columns}) // {step}"])
    if r.random() < WRONG / 2:
        count += r.choice([" + 1", " + 2"])
    kind = r.choice(["blocks", "blocks", "blocks", "loop", "swapped"])
    s.parts.append(kind)
    if kind == "loop" and r.random() < 0.5 and rows:
        s.head.append(f"grid({rows})")
        s.line("b = bid(0)")
        s.line(f"for c in range(0, {columns}, {step}):")
        s.indent += "    "
        return Boxes("b", rows, columns, step, "c", f"c // {step}", whole)
    if kind == "loop":  # a block takes several boxes
        width = r.choice([2, 3])
        s.head.append(f"grid({f'{rows}, ' if rows else ''}cdiv({count}, {width}))")
        s.line("b, g = bid(0), bid(1)" if rows else "g = bid(0)")
        s.line(f"for j in range(g * {width}, minimum(g * {width} + {width}, {count})):")
        s.indent += "    "
        return Boxes("b" if rows else "", rows, columns, step, f"j * {step}", "j", whole)
    if kind == "swapped" and rows:
        s.head.append(f"grid({count}, {rows})")
        s.line("t, b = bid(0), bid(1)")
    elif rows:
        s.head.append(f"grid({rows}, {count})")
        s.line("b, t = bid(0), bid(1)")
    else:
        s.head.append(f"grid({count})")
        s.line("t = bid(0)")
    tile = "t"
    if whole and r.random() < 0.2:
        tile = f"(({columns}) // {step} - 1 - t)"
    return Boxes("b" if rows else "", rows, columns, step, f"{tile} * {step}", tile, whole)


def _at(boxes: Boxes, column: str, row: str = "") -> str:
    return f"({row or boxes.row}, {column})" if boxes.row else column


def _shape(boxes: Boxes, extent: int) -> str:
    return f"(1, {extent})" if boxes.row else f"{extent}"


def _tensor(s: Sketch, boxes: Boxes, access: str, dtype: str) -> str:
    name = s.name({"In": "x", "Out": "out", "InOut": "y", "Scratch": "s"}[access])
    dims = [dtype, *([boxes.rows] if boxes.row else []), boxes.columns]
    if boxes.row and s.r.random() < 0.2 and "strides" not in s.parts:
        s.parts.append("strides")
        stride = s.name("S")
        s.dims.append(stride)
        dims.append(f'Strides["2 * {stride}", 1]' if s.r.random() > WRONG / 4 else f"Strides[{stride}, 1]")
        if access != "In" and s.r.random() > WRONG:
            s.head.insert(0, f"requires(2 * {stride} >= {boxes.columns})")
    s.parameters.append(f"{name}: {access}[{', '.join(dims)}]")
    return name


def _reads(s: Sketch, boxes: Boxes, dtype: str) -> str:
    """Loads from packed inputs; returns the text of an integer made of what they read."""
    value = "0"
    for _ in range(s.r.choice([0, 1, 1, 1, 2])):
        access = s.r.choice(["In", "In", "In", "Scratch"])
        if access == "Scratch":
            value = _scratch(s, boxes, value)
        else:
            value = _load(s, boxes, _tensor(s, boxes, "In", s.r.choice(DTYPES)), value)
    return value


def _scratch(s: Sketch, boxes: Boxes, value: str) -> str:
    """Writes a box of a `Scratch` and reads elements of it."""
    r, dtype = s.r, s.r.choice(DTYPES)
    name = _tensor(s, boxes, "Scratch", dtype)
    even = boxes.step // 2 * 2 or 2
    s.line(f"store({name}, {_full(boxes, even, value, dtype)}, offset={_at(boxes, boxes.first)}, mask=True)")
    first = r.choice([0, 1, 1, even - 1] if r.random() > WRONG else [even, -1])
    extent = max(1, even - max(first, 0) - r.choice([0, 0, 1])) + (r.random() < WRONG)
    pad = "" if boxes.whole and r.random() < 0.5 else ", pad=1"
    at = _at(boxes, f"{boxes.first} + {first}")
    s.parts.append("scratch")
    return _named(s, f"load({name}, offset={at}, shape={_shape(boxes, extent)}{pad})", extent)


def _named(s: Sketch, text: str, extent: int) -> str:
    name = s.name("v")
    s.line(f"{name} = tilec.max({text}.astype(i32).reshape(({extent},)), axis=0)")
    return name


def _load(s: Sketch, boxes: Boxes, name: str, value: str) -> str:
    """A load, of a box of the block or at a position of some other kind."""
    r, step = s.r, boxes.step
    kind = r.choice(["tile", "odd", "odd", "inner", "inner", "scalar", "row", "one"])
    pad = "" if r.random() < WRONG else f", pad={r.choice([0, 1, 2, 3])}"
    extent, row = r.randint(1, 9), ""
    if kind == "tile":
        s.parts.append("tile")
        pad = pad if not boxes.whole or r.random() < 0.5 else ""
        return _named(s, f"load({name}, {_at(boxes, boxes.tile)}, shape={_shape(boxes, step)}{pad})", step)
    if kind == "odd":
        column = f"{boxes.first} + {r.choice([1, 1, 3, -1, -1, 2, 0])}"
    elif kind == "inner":  # inside of the block's box
        first = r.randrange(step)
        extent = max(1, step - first - r.choice([0, 0, 1]) + (r.random() < WRONG))
        column, pad = f"{boxes.first} + {first}", pad if not boxes.whole else ""
    elif kind == "scalar":
        scalar = s.name("p")
        s.parameters.append(f"{scalar}: i32")
        last = r.choice([f"{boxes.columns} - {extent}", f"{boxes.columns} - {extent + 1}", f"{boxes.columns} - 1", "5"])
        factor = r.choice(["", "", "2 * "])
        s.head.insert(0, f"requires({r.choice(['0', '0', '1', '-1'])} <= {factor}{scalar}, {factor}{scalar} <= {last})")
        column, pad = f"{factor}{scalar}", r.choice([pad, "", ""])
    elif kind == "row" and boxes.row:
        index = s.name("i")
        s.parameters.append(f"{index}: In[i32, {boxes.rows}]")
        limit = boxes.rows if r.random() > WRONG else f"{boxes.rows} + 1"
        s.head.insert(0, f"values({index}, 0, {limit})")
        row = f"load({index}, {boxes.row})"
        pad = r.choice([pad, ""])
        first = r.randrange(step)
        extent, column = max(1, step - first), f"{boxes.first} + {first}"
        pad = pad if not boxes.whole else r.choice([pad, ""])
    else:
        position = r.choice(
            [f"{boxes.first}", f"({boxes.first}) // 2", f"{boxes.columns} - 1", f"{boxes.columns} - 1 - ({boxes.first})"]
        )
        s.parts.append("one")
        pad = pad if r.random() < 0.3 else ""
        found = s.name("v")
        s.line(f"{found} = load({name}, {_at(boxes, position)}{pad}).astype(i32)")
        return found
    s.parts.append(kind)
    return _named(s, f"load({name}, offset={_at(boxes, column, row)}, shape={_shape(boxes, extent)}{pad})", extent)


def _full(boxes: Boxes, extent: int, value: str, dtype: str) -> str:
    return f"full({_shape(boxes, extent)}, {value}, i32).astype({dtype})"


def _writes(s: Sketch, boxes: Boxes, dtype: str, value: str) -> None:
    """Writes to an `Out` or an `InOut`, of which it reads first at times."""
    r = s.r
    access = r.choice(["Out", "Out", "Out", "InOut", "InOut"])
    name = _tensor(s, boxes, access, dtype)
    if access == "InOut" and r.random() < 0.7:
        value = _neighbour(s, boxes, name)
    mask = ", mask=True" if not boxes.whole or r.random() < 0.3 else ""
    if r.random() < WRONG / 2:
        mask = "" if mask else ", mask=True"
    step, form = boxes.step, r.choice(["box", "box", "box", "halves", "branch", "data", "moved"])
    s.parts += [access, form]
    if form == "halves" and step >= 4:
        middle = step // 4 * 2
        if r.random() < WRONG:
            middle += r.choice([-2, 2, 1])
        sizes = [(0, max(1, step // 4 * 2)), (middle, max(1, step - step // 4 * 2))]
        for first, extent in sizes if r.random() > 0.3 else sizes[::-1]:
            s.line(
                f"store({name}, {_full(boxes, extent, value, dtype)}, offset={_at(boxes, f'{boxes.first} + {first}')}{mask})"
            )
        return
    by_tile = f"store({name}, {_at(boxes, boxes.tile)}, {_full(boxes, step, value, dtype)}{mask})"
    extent = step if r.random() > WRONG else max(1, step + r.choice([-2, 2, 2, 1]))
    first = _even(s, boxes) if r.random() > WRONG else f"{boxes.first} + {r.choice([2, -2, 1])}"
    by_offset = f"store({name}, {_full(boxes, extent, value, dtype)}, offset={_at(boxes, first)}{mask})"
    write = r.choice([by_tile, by_offset])
    if form == "branch":
        quantity = r.choice([boxes.tile, boxes.row or boxes.tile, f"{boxes.tile} % 2"])
        more = "else" if r.random() > WRONG else f"if {quantity} > 0" if r.random() < 0.5 else f"if {quantity} > 1"
        s.line(f"if {quantity} < 1:")
        s.line(f"    {by_tile}")
        s.line(f"{more}:")
        s.line(f"    {by_offset}")
    elif form == "data" and access == "InOut" and value != "0":
        s.line(f"if {value} > 0:")
        s.line(f"    {write}")
    else:
        s.line(write)


def _even(s: Sketch, boxes: Boxes) -> str:
    """The first column of a box, written otherwise now and then: even by other operations, by a cast, or by the contract."""
    r, first = s.r, boxes.first
    if r.random() < 0.6:
        return first
    kind = r.choice(["scalar", "bits", "cast", "clamped", "shift", "difference", "masked"])
    s.parts.append(kind)
    if kind in ("scalar", "difference", "masked"):
        scalar = s.name("q")
        s.parameters.append(f"{scalar}: {r.choice(['i32', 'i32', 'i64', 'u8'])}")
        if kind == "masked":
            return f"{first} + ({scalar} & {r.choice(['0', '2', '1', '254'])})"
        s.head.insert(0, f"requires(0 <= {scalar}, {scalar} <= {r.choice(['0', '1', '1', '2'])})")
        if r.random() > WRONG:
            s.head.insert(1, f"requires({scalar} % {r.choice(['2', '2', '4', '6'])} == 0)")
        return f"{first} + {scalar}" if kind == "scalar" else f"{first} - {r.choice(['', '2 * '])}{scalar}"
    if kind == "clamped":
        limit = r.choice([f"{boxes.columns} - {boxes.step}", f"{boxes.columns} - 2", f"{boxes.columns}"])
        return r.choice([f"minimum({first}, {limit})", f"maximum({first}, 0)", f"maximum({first}, 1)"])
    if kind == "shift":
        return f"(({boxes.tile}) << 1) * {boxes.step // 2}"
    return (
        f"(({first}) {r.choice(['| 0', '^ 0', '& -2', '^ 2', '| 1'])})"
        if kind == "bits"
        else f"{r.choice(['i64', 'u32', 'i16', 'u8'])}({first})"
    )


def _neighbour(s: Sketch, boxes: Boxes, name: str) -> str:
    """A load of a tensor that blocks write, of the block's own bytes or, wrongly, of others."""
    r, step = s.r, boxes.step
    first = r.randrange(step)
    extent = max(1, step - first - r.choice([0, 0, 1]))
    if r.random() < 2 * WRONG:
        first, extent = r.choice([(-1, 2), (-1, 1), (first, extent + 1), (first, extent + 2), (0, step + 1), (-2, 2)])
    s.parts.append("neighbour")
    pad = "" if boxes.whole and first >= 0 and r.random() < 0.6 else ", pad=2"
    at = _at(boxes, f"{boxes.first} + {first}")
    return _named(s, f"load({name}, offset={at}, shape={_shape(boxes, extent)}{pad})", extent)
