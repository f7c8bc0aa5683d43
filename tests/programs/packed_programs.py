"""Random programs with packed tensors, safe by construction: kernels that load, convert and store two elements in a byte.

Tiles of packed dtypes begin at any row and column: at tiles, at numbers, block ids, loop variables and launch scalars, even or
odd, in rows with strides, past edges with a pad. Results are packed tensors and wide ones, whole or masked. Programs of an even
number have only words that `tests.soundness.authored` runs too, which shares no code with the compiler; products with a scale
for each group are among them. Those of an odd number mix packed tiles with every operation of `generate`.
"""

from __future__ import annotations

import random

from tests.programs.generate import STEPS, Draft, Program, add_output, finished, new_draft
from tests.programs.typed_tiles import Shape, Variable, tuple_text

DTYPES = ("u4", "i4", "f4e2m1")
WIDE = {"u4": ("u8", "i8", "i32", "u16", "f32", "f16", "bf16"), "i4": ("i8", "i8", "i32", "i64", "f32", "f16", "bf16"),
        "f4e2m1": ("f16", "bf16", "f32", "f32", "i32", "i8")}  # fmt: skip
"""Dtypes that elements are converted to."""
ROWS = (1, 2, 3, 4, 8, 16)
COLUMNS = (1, 2, 3, 5, 6, 8, 16, 31, 32, 48, 64, 128)
BY_NUMPY = "by NumPy"
"""A part of programs that `tests.soundness.authored` can run."""
FLOATS = ("f32", "f16", "bf16")


def packed_program(number: int) -> Program:
    """The program of a number."""
    r = random.Random(f"packed program {number}")
    known = number % 2 == 0
    d = new_draft(r, "sums" if known else r.choice(["sums", "products", "smooth"]), odd=not known and r.random() < 0.3)
    d.head.insert(0, "requires(N <= 4096)")
    if known and r.random() < 0.25:
        _product(d)
        return finished(d, number, "sums")
    _columns(d)
    for _ in range(r.choice([1, 2, 2, 3])):
        r.choice([_box, _box, _box, _loop_of_boxes, _scalars])(d)
    for step in r.sample(STEPS, 0 if known else r.choice([1, 2])):
        step(d)
    if not known:
        add_output(d)
    for _ in range(r.choice([1, 1, 2])):
        _output(d)
    if r.random() < 0.5:
        _packed_and_back(d)
    made = finished(d, number, d.tiles.mode)
    made.parts = (*made.parts, BY_NUMPY) if known else made.parts
    return made


def _columns(d: Draft) -> None:
    """The extent `K` of packed rows: a launch scalar, which no tensor measures."""
    multiple = d.r.choice([2, 2, 4, 32])
    d.scalars["K"] = multiple * d.r.randint(1, 4 if multiple == 32 else 40)
    d.dims["K"] = d.scalars["K"]
    d.head.insert(0, f"requires(1 <= K, K <= 4096{f', K % {multiple} == 0' if d.r.random() < 0.7 else ''})")


def _tensor(d: Draft, access: str, dtype: str, *dims: int | str) -> str:
    """A packed tensor, with strides now and then."""
    name = d.tensor(access, f"tilec.{dtype}", *dims)
    if len(dims) == 2 and d.r.random() < 0.15:
        stride = d.name("S")
        d.dims[stride] = (d.scalars["K"] if dims[1] == "K" else int(dims[1])) // 2
        d.parameters[-1] = d.parameters[-1][:-1] + f', Strides["2 * {stride}", 1]]'
        d.parts.add("strides")
    return name


def _let(d: Draft, dtype: str, shape: Shape, text: str) -> None:
    """Names a tile of codes as numbers."""
    wide = d.r.choice(WIDE[dtype])
    d.let(wide, shape, f"{text}.astype({wide})")
    d.parts |= {dtype, f"{dtype} as {wide}"}


def _position(d: Draft, extent: int) -> tuple[str, str]:
    """A column to begin at, and the pad that it needs."""
    r = d.r
    kind = r.choice(["number", "scalar", "scalar", "twice", "block", "end"])
    pad = f", pad={r.choice([0, 1, 2, 6])}"
    if kind == "number":
        return str(r.choice([0, 1, 2, 3, 7, 8, 15, -1, -4])), pad
    if kind in ("scalar", "twice"):
        name = d.name("p")
        d.scalars[name] = r.choice([0, 1, 2, 3, 5, 8, 17, -1, -3])
        d.head.insert(0, f"requires(-64 <= {name}, {name} <= 64)")
        if r.random() < 0.3:
            d.scalars[name] = 2 * abs(d.scalars[name])
            d.head.insert(0, f"requires({name} % 2 == 0)")
        wide = r.choice([name, name, f"i64({name})"])
        return f"2 * {wide}" if kind == "twice" else wide, pad
    if kind == "block":
        return r.choice(["b", "2 * b", "3 * b + 1", "b * 4 + 2"]), pad
    return r.choice([f"K - {extent}", f"K - {extent} - b", f"K - {2 * extent}"]), pad


def _box(d: Draft) -> None:
    """A box of rows and columns, at a tile or at an offset."""
    r, dtype = d.r, d.r.choice(DTYPES)
    rows, columns = r.choice(ROWS), r.choice(COLUMNS)
    access = "In" if r.random() < 0.85 else "InOut"
    if r.random() < 0.3:  # a row of the block's own
        tensor = _tensor(d, access, dtype, "N", "K")
        column, pad = _position(d, columns)
        text = f"load({tensor}, offset=(b, {column}), shape=(1, {columns}){pad})"
        _let(d, dtype, (1, columns), text)
    elif r.random() < 0.4:  # whole, of a known extent
        even = columns + columns % 2
        tensor = _tensor(d, access, dtype, "N", rows, even)
        text = f"load({tensor}, (b, 0, 0), shape=(1, {rows}, {even}))"
        _let(d, dtype, (1, rows, even), text)
    else:
        tensor = _tensor(d, "In", dtype, r.choice([rows, rows + 2, 40]), "K")
        if r.random() < 0.4:
            text = (
                f"load({tensor}, ({r.choice(['0', '1', 'b'])}, {r.choice(['0', '1', 'b'])}), shape=({rows}, {columns}), pad=1)"
            )
            d.parts.add("at a tile")
        else:
            column, pad = _position(d, columns)
            text = (
                f"load({tensor}, offset=({r.choice(['0', '1', 'b', '2 * b - 1'])}, {column}), shape=({rows}, {columns}){pad})"
            )
        _let(d, dtype, (rows, columns), text)


def _scalars(d: Draft) -> None:
    """One element, and a row of them."""
    dtype = d.r.choice(DTYPES)
    tensor = _tensor(d, "In", dtype, "N", "K")
    _let(d, dtype, (), f"load({tensor}, (b, {d.r.choice(['0', '1', 'K - 1', 'K // 2', 'K - 2'])}))")


def _loop_of_boxes(d: Draft) -> None:
    """Sums of the boxes of a row: i32, or the largest number."""
    r, dtype = d.r, d.r.choice(DTYPES)
    rows, columns = r.choice(ROWS), r.choice(COLUMNS)
    tensor = _tensor(d, "In", dtype, rows, "K")
    wide = "i32" if dtype != "f4e2m1" else "f32"
    total, step = d.name("v"), r.choice([columns, columns, columns + 1, columns + 2])
    first = r.choice(["0", "0", "1", "2", "b"])
    d.line(f"{total} = zeros(({rows}, {columns}), {wide})")
    by_tile = first == "0" and step == columns and r.random() < 0.5
    d.line(f"for c in range(cdiv(K, {columns})):" if by_tile else f"for c in range({first}, K, {step}):")
    position = "(0, c)" if by_tile else "offset=(0, c)"
    loaded = f"load({tensor}, {position}, shape=({rows}, {columns}), pad=0).astype({wide})"
    d.line(f"    {total} = {r.choice([f'{total} + {loaded}', f'{loaded} - {total}', f'maximum({total}, {loaded})'])}")
    d.tiles.scope.append(Variable(total, wide, (rows, columns)))
    d.parts |= {"loop", dtype}


def _output(d: Draft) -> None:
    """A tile in scope as it is, and what it is plus a number."""
    v = d.r.choice(d.tiles.scope)
    if v.dtype == "boolean":
        return
    shape = v.shape or (1,)
    index = ", ".join(["b", *("0" for _ in shape)])
    text = v.name if v.shape else f"full((1,), {v.name}, {v.dtype})"
    if d.r.random() < 0.4 and v.dtype in ("i32", "f32", "f16"):
        text = f"({text} {d.r.choice(['+', '-'])} {d.r.choice(['1', '3'])})"
    d.line(f"store({d.tensor('Out', v.dtype, 'N', *shape)}, ({index}), ({text}).reshape({(1, *shape)}))")


def _packed_and_back(d: Draft) -> None:
    """A tile in scope as packed numbers, in a row of the block's own: whole bytes from an even column on."""
    r = d.r
    fitting = [v for v in d.tiles.scope if v.shape and v.shape[-1] % 2 == 0 and v.dtype != "boolean"]
    if not fitting:
        return
    v, dtype = r.choice(fitting), r.choice(DTYPES)
    if d.tiles.mode == "smooth" and v.dtype in FLOATS:
        return  # a small difference would become a large one
    shape = (1, *v.shape)
    converted = f"{v.name}.reshape({tuple_text(shape)}).astype(tilec.{dtype})"
    index = ", ".join(["b", *("0" for _ in v.shape)])
    roll = r.random()
    d.parts.add(f"{dtype} stored")
    if roll < 0.4:
        d.line(f"store({_tensor(d, 'Out', dtype, 'N', *v.shape)}, ({index}), {converted})")
        return
    column = r.choice(["0", "2", "4", "-2", "2 * b", "K - 2"])
    even = "requires(K % 2 == 0)"
    if column == "K - 2" and even not in d.head:
        d.head.insert(0, even)
    tensor = _tensor(d, "InOut", dtype, "N", *v.shape[:-1], "K")
    position = ", ".join(["b", *("0" for _ in v.shape[:-1]), column])
    d.line(f"store({tensor}, {converted}, offset=({position}), mask=True)")
    d.parts.add("packed mask")
    if roll < 0.7:  # and read again, by other threads than wrote it
        first = r.choice(["0", "1", "3", column])
        position = ", ".join(["b", *("0" for _ in v.shape[:-1]), first])
        extent = max(1, v.shape[-1] - r.choice([0, 1, 2]))
        text = f"load({tensor}, offset=({position}), shape={(1, *v.shape[:-1], extent)}, pad=0)"
        _let(d, dtype, (1, *v.shape[:-1], extent), text)
        v = d.tiles.scope[-1]
        d.line(f"store({d.tensor('Out', v.dtype, 'N', *v.shape)}, ({index}, 0), {v.name}.reshape({(1, *v.shape)}))")
        d.parts.add("read again")


def _product(d: Draft) -> None:
    """A product with packed weights, by groups of columns with a scale each."""
    r, dtype = d.r, d.r.choice(DTYPES)
    kind = r.choice(["bf16", "f16"])
    rows, columns, group, groups = (
        r.choice([16, 32, 64]),
        r.choice([16, 32, 64]),
        r.choice([16, 32, 64, 128]),
        r.choice([1, 2, 3]),
    )
    x = d.tensor("In", kind, "N", rows, group * groups)
    transposed = r.random() < 0.6
    shape: Shape = (columns, group * groups) if transposed else (group * groups, columns)
    w = d.tensor("In", f"tilec.{dtype}", *shape)
    scales = d.tensor("In", "f32", 1, columns * groups)
    d.small |= {x, scales}
    d.line(f"acc = zeros(({rows}, {columns}), f32)")
    d.line(f"for g in range({groups}):")
    d.line(f"    left = load({x}, (b, 0, g), shape=(1, {rows}, {group})).reshape(({rows}, {group}))")
    position, box = ("(0, g)", (columns, group)) if transposed else ("(g, 0)", (group, columns))
    d.line(f"    right = load({w}, {position}, shape={box}).astype({kind})")
    right = "right.T" if transposed else "right"
    if r.random() < 0.5:
        d.line(f"    acc = mma(left, {right}, acc)")
    else:
        d.line(f"    part = mma(left, {right}, zeros(({rows}, {columns}), f32))")
        d.line(f"    acc = acc + part * load({scales}, (0, g), shape=(1, {columns}))")
        d.parts.add("scales")
    d.parts |= {"mma", f"mma of {dtype}", BY_NUMPY}
    d.line(f"store({d.tensor('Out', 'f32', 'N', rows, columns)}, (b, 0, 0), acc.reshape((1, {rows}, {columns})))")
