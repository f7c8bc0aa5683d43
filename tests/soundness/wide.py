"""Kernels over the whole language, right as made: every dtype, casts, bits, index tiles that are carried, permuted, reduced and
gathered, `Atomic`, `Scratch`, `unsafe`, strides, tile functions, conditions on data, empty extents, products in `requires`.

A kernel is source text made of parts: inputs, a few index tiles of known range, accesses through them, and a store that covers
the output. What mutations make of it may be wrong.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from tests.programs.typed_tiles import BITS, FLOATS, INTEGERS, Shape, Tiles, Variable
from tests.soundness.bounded import Bounded, Ranged

WORDS = (
    "Atomic", "Const", "Dim", "In", "InOut", "Out", "Scratch", "Strides", "abs", "arange", "atomic_add", "atomic_max",
    "atomic_min", "bid", "boolean", "broadcast_to", "cdiv", "exp2", "f16", "f32", "bf16", "full", "gather", "grid", "i8", "i16",
    "i32", "i64", "load", "maximum", "minimum", "num_blocks", "requires", "scatter", "sqrt", "store", "u8", "u16", "u32",
    "unsafe", "values", "where", "zeros", "f8e4m3", "f8e5m2", "floor", "ceil", "exp", "log2", "log", "rsqrt", "tanh",
    "sigmoid", "sin", "cos", "mma",
)  # fmt: skip

TOO_TIGHT = 0.1
"""How often a tensor is made smaller than its index needs, or an index not moved to begin at zero."""


@dataclass(slots=True)
class WideKernel:
    """A kernel as source text; `schedule` names what it is made of."""

    schedule: str
    text: str
    constants: dict[str, int] = field(default_factory=dict[str, int])


def imports(text: str) -> str:
    """The import lines for the words that a text uses."""
    used = sorted(word for word in WORDS if re.search(rf"(?<![\w.]){word}\b", text))
    return f"import tilec\nfrom tilec import {', '.join(used)}\n"


def with_imports(text: str) -> str:
    """The text, importing the words that it uses now."""
    kept = [line for line in text.splitlines(keepends=True) if not line.startswith(("import tilec", "from tilec import"))]
    return f"{kept[0]}\n{imports(''.join(kept))}{''.join(kept[1:])}"


@dataclass(slots=True)
class Sketch:
    """A kernel in the making. `row` is the block's row in `0 .. extent` of the main dim."""

    r: random.Random
    row: str = "b"
    rows: str = "N"
    head: list[str] = field(default_factory=list[str])
    parameters: list[str] = field(default_factory=list[str])
    body: list[str] = field(default_factory=list[str])
    helpers: list[str] = field(default_factory=list[str])
    parts: list[str] = field(default_factory=list[str])
    dims: list[str] = field(default_factory=lambda: ["N"])
    indent: str = "    "
    bounded: Bounded = field(init=False)
    tiles: Tiles = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.bounded = Bounded(self.r, [], [], [])
        self.tiles = Tiles(self.r, [], most=16)

    def name(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}{self.count}"

    def line(self, text: str) -> None:
        self.body.append(self.indent + text)

    def tensor(self, access: str, dtype: str, *dims: str | int) -> str:
        """A new tensor parameter, now and then strided."""
        name = self.name({"In": "x", "Out": "out", "InOut": "y", "Scratch": "s", "Atomic": "a"}[access])
        note = [dtype, *map(str, dims)]
        if self.r.random() < 0.12 and "strides" not in self.parts:
            strides = [self.name("S") for _ in dims[:-1]] + ["1"] if len(dims) > 1 else [self.name("S")]
            note.append(f"Strides[{', '.join(strides)}]")
            self.dims += [s for s in strides if s != "1"]
            self.parts.append("strides")
        self.parameters.append(f"{name}: {access}[{', '.join(note)}]")
        return name

    def assign(self, value: Ranged, stem: str = "k") -> Ranged:
        """Give a ranged tile a name."""
        name = self.name(stem)
        self.line(f"{name} = {value.text}")
        kept = Ranged(name, value.dtype, value.shape, value.low, value.high)
        self.bounded.scope.append(kept)
        return kept

    def kernel(self) -> WideKernel:
        """The finished kernel."""
        dims = [f'class {name}(Dim):\n    """extent {name}"""\n\n\n' for name in dict.fromkeys(self.dims)]
        text = "".join(dims) + "".join(f"{helper}\n\n\n" for helper in self.helpers)
        text += f"@tilec.kernel\ndef random_kernel({', '.join(self.parameters)}):\n"
        text += "\n".join([*(f"    {line}" for line in self.head), *self.body]) + "\n"
        return WideKernel(" ".join(["wide", *sorted(set(self.parts))]), f'"""Random kernel."""\n\n{imports(text)}\n\n{text}')


def wide(r: random.Random) -> WideKernel:
    """A kernel that uses a handful of parts."""
    s = Sketch(r)
    _frame(s)
    width = r.choice([2, 4, 4, 8])
    for _ in range(r.choice([1, 2, 2])):
        r.choice([_data_scalar, _data_scalar, _ranged_scalar, _data_tile, _truth, _scalar])(s, width)
    used = r.choice([_plain, _plain, _looped, _branched, _helped])
    used(s, width)
    _cover(s)
    return s.kernel()


def _frame(s: Sketch) -> None:
    """The grid: one block per row, in one or two axes, or a loop over rows."""
    roll = s.r.random()
    s.line("b = bid(0)")
    if roll < 0.7:
        s.head.append("grid(N)")
    elif roll < 0.85:
        s.head.append(f"grid(N, {s.r.choice(['M', '2'])})")
        other = "M" if "M)" in s.head[-1] else "2"
        s.dims += ["M"] if other == "M" else []
        s.line("row = b * num_blocks(1) + bid(1)")
        s.row, s.rows = "row", f"N * {other}"
        if other == "M":
            s.head.append("requires(N * M <= 1000000)")
            s.parameters.append("w0: In[f32, M]")
        s.parts.append("product")
    else:
        s.head.append("grid(N)")
        s.line("row = N - 1 - b")
        s.row = "row"


def _data_scalar(s: Sketch, width: int) -> None:
    """An integer or a float that memory holds, as one number."""
    dtype = s.r.choice([*INTEGERS, *FLOATS])
    name = s.name("d")
    s.line(f"{name} = load({s.tensor('In', dtype, s.rows)}, {s.row})")
    if dtype in FLOATS:
        whole = s.name("d")
        target = s.r.choice(INTEGERS)
        s.line(f"{whole} = {s.r.choice([f'{target}({name})', f'abs({name}).astype({target})', f'(-{name}).astype({target})'])}")
        name, dtype = whole, target
        s.parts.append("float-index")
    s.bounded.data.append((name, dtype, ()))
    s.parts.append("data")


def _ranged_scalar(s: Sketch, width: int) -> None:
    """A number that `values` bounds."""
    dtype = s.r.choice(INTEGERS)
    low = s.r.choice([0, 0, 1, -2]) if dtype[0] != "u" else s.r.choice([0, 1])
    high = low + s.r.randint(1, 6)
    tensor = s.tensor("In", dtype, s.rows)
    s.head.append(f"values({tensor}, {low}, {high})")
    s.assign(Ranged(f"load({tensor}, {s.row})", dtype, (), low, high - 1), "d")
    s.parts.append("values")


def _data_tile(s: Sketch, width: int) -> None:
    """A tile that memory holds, of any or of declared values."""
    dtype = s.r.choice(INTEGERS)
    name = s.name("t")
    tensor = s.tensor("In", dtype, s.rows, width)
    text = f"load({tensor}, ({s.row}, 0), shape=(1, {width})).reshape(({width},))"
    if s.r.random() < 0.5:
        s.head.append(f"values({tensor}, 0, 5)")
        s.assign(Ranged(text, dtype, (width,), 0, 4), "t")
    else:
        s.line(f"{name} = {text}")
        s.bounded.data.append((name, dtype, (width,)))
    s.parts.append("data-tile")


def _truth(s: Sketch, width: int) -> None:
    """A bool scalar from a bool tensor, a float or an integer."""
    name = s.name("q")
    dtype = s.r.choice(["boolean", "f32", "bf16", "f16", "i8", "u32"])
    loaded = f"load({s.tensor('In', dtype, s.rows)}, {s.row})"
    s.line(f"{name} = {loaded}" if dtype == "boolean" else f"{name} = {loaded} {s.r.choice(['>', '==', '!=', '<='])} 1")
    s.bounded.truths.append(name)
    s.parts.append("bool")


def _scalar(s: Sketch, width: int) -> None:
    """A scalar parameter, bounded by `requires` or not."""
    dtype = s.r.choice(["i32", "i32", "u32", "i64", "i8", "i16", "u8", "u16"])
    name = s.name("p")
    s.parameters.append(f"{name}: {dtype}")
    if s.r.random() < 0.6:
        low = s.r.choice([0, 1, 2])
        s.head.append(f"requires({name} >= {low}, {name} < {low + 5})")
        s.bounded.scope.append(Ranged(name, dtype, (), low, low + 4))
    else:
        s.bounded.data.append((name, dtype, ()))
    s.parts.append("scalar")


def _plain(s: Sketch, width: int) -> None:
    for _ in range(s.r.choice([1, 1, 2])):
        _access(s, width)


def _looped(s: Sketch, width: int) -> None:
    """Accesses in a loop that carries an index tile or scalar."""
    shape: Shape = s.r.choice([(), (width,)])
    start = s.assign(s.bounded.expression(shape, 1), "c")
    most = max(1, start.high)
    if start.low < 0 or start.high > 100:
        start = s.assign(Ranged(f"{'abs' if start.low < 0 else ''}({start.text}) % 5", start.dtype, shape, 0, 4), "c")
        most = 4
    turns = s.r.choice(["2", "3", "N", "(N - 1)"])
    s.line(f"for i in range({turns}):")
    outer, kept = s.indent, (list(s.bounded.scope), list(s.bounded.data), list(s.bounded.truths))
    s.indent += "    "
    if turns in "23":
        s.bounded.scope.append(Ranged("i", "i32", (), 0, int(turns) - 1))
    s.bounded.scope = [v for v in s.bounded.scope if v.text != start.text] + [
        Ranged(start.text, start.dtype, shape, 0, most)
    ] * 3
    if shape and s.r.random() < 0.4:
        turned = f"{start.text}.reshape((2, {width // 2})).permute((1, 0)).reshape(({width},))"
        signed = f"{start.text}.astype(i32) - {turned}.astype(i32)" if start.dtype[0] == "u" else f"{start.text} - {turned}"
        dtype = "i32" if start.dtype[0] == "u" else start.dtype
        s.assign(Ranged(signed, dtype, shape, -most, most), "d")
        s.bounded.scope += s.bounded.scope[-1:] * 3
    _access(s, width, looped=True)
    nexts = [f"({start.text} + 1) % {most + 1}", f"where({start.text} > 0, {start.text} - 1, {most})", f"{most} - {start.text}"]
    if shape:
        nexts.append(f"{start.text}.reshape((2, {width // 2})).permute((1, 0)).reshape(({width},))")
    s.line(f"{start.text} = ({s.r.choice(nexts)}).astype({start.dtype})")
    s.indent = outer
    s.bounded.scope, s.bounded.data, s.bounded.truths = kept
    s.bounded.scope = [v for v in s.bounded.scope if v.text != start.text] + [Ranged(start.text, start.dtype, shape, 0, most)]
    if s.r.random() < 0.5:
        _access(s, width)
    s.parts.append("carried")


def _branched(s: Sketch, width: int) -> None:
    """Accesses under conditions on data, and an index that they decide."""
    if not s.bounded.truths:
        _truth(s, width)
    shape: Shape = s.r.choice([(), (width,)])
    value = s.bounded.cast(s.bounded.expression(shape, 1), "i32")
    other = s.bounded.cast(s.bounded.expression(shape, 2), "i32")
    merged = s.assign(value, "m")
    kept = (list(s.bounded.scope), list(s.bounded.data), list(s.bounded.truths))
    s.line(f"if {s.r.choice(s.bounded.truths)}:")
    s.indent += "    "
    s.line(f"{merged.text} = {other.text}")
    _access(s, width, looped=True)
    s.indent = s.indent[4:]
    s.bounded.scope, s.bounded.data, s.bounded.truths = kept
    s.bounded.scope = [v for v in s.bounded.scope if v.text != merged.text]
    s.bounded.scope += [Ranged(merged.text, "i32", shape, min(value.low, other.low), max(value.high, other.high))] * 3
    _access(s, width)
    s.parts.append("branch")


def _helped(s: Sketch, width: int) -> None:
    """An index that a tile function clamps."""
    most = s.r.randint(1, 6)
    body = s.r.choice([f"minimum(maximum(v, 0), {most})", f"where((v < 0) | (v > {most}), {most}, v)", f"abs(v % {most + 1})"])
    s.helpers.append(f"@tilec.function\ndef cut(v):\n    w = {body}\n    return w")
    value = s.bounded.expression(s.r.choice([(), (width,)]), 2)
    s.assign(Ranged(f"cut(({value.text}).astype(i32))", "i32", value.shape, 0, most))
    s.bounded.scope.append(s.bounded.scope[-1])
    _access(s, width)
    s.parts.append("function")


def _access(s: Sketch, width: int, looped: bool = False) -> None:
    s.r.choice([_gather, _gather, _scatter, _window, _scalar_read, _atomic, _scratch, _unsafe, _flat, _modulo, _in_out])(
        s, width
    )


def _extent(s: Sketch, high: int) -> str:
    """An extent that holds indices up to `high`: a number, or a dim that `requires` bounds, or one less than it."""
    roll = s.r.random()
    if high > 0 and s.r.random() < TOO_TIGHT:
        high = s.r.randrange(high)
    if roll < 0.6:
        return str(high + 1)
    dim = s.name("E")
    s.dims.append(dim)
    if roll < 0.85:
        s.head.append(f"requires({dim} > {high})")
        return dim
    s.head.append(f"requires({dim} - 1 > {high})")
    s.parameters.append(f"{s.name('w')}: In[f32, {dim}]")
    return f"{dim} - 1"


def _shifted(s: Sketch, value: Ranged) -> tuple[str, int]:
    """The index moved so that it begins at zero, and its largest value."""
    if value.low == 0 or s.r.random() < TOO_TIGHT / 2:
        return value.text, max(0, value.high)
    wide = s.bounded.cast(value, "i64" if value.dtype in ("u32", "i64") or abs(value.low) > 1 << 30 else "i32")
    return (f"({wide.text} - {value.low})" if value.low > 0 else f"({wide.text} + {-value.low})"), value.high - value.low


def _read(s: Sketch, text: str, dtype: str, shape: Shape) -> None:
    """A tile that was read takes part in later values and indices."""
    name = s.name("v")
    s.line(f"{name} = {text}")
    if s.indent == "    ":
        s.tiles.scope.append(Variable(name, dtype, shape))
    if dtype in BITS:
        s.bounded.data.append((name, dtype, shape))


def _gather(s: Sketch, width: int) -> None:
    value = s.assign(s.bounded.expression((width,), s.r.randint(1, 3)))
    index, high = _shifted(s, value)
    dtype = s.r.choice([*INTEGERS, *FLOATS])
    if s.r.random() < 0.5:
        tensor, indices = s.tensor("In", dtype, _extent(s, high)), f"({index},)"
    else:
        tensor, indices = s.tensor("In", dtype, s.rows, _extent(s, high)), f"({s.row}, {index})"
    pad = ", pad=0" if s.r.random() < 0.15 else ""
    _read(s, f"gather({tensor}, {indices}{pad})", dtype, (width,))
    s.parts.append("gather")


def _scatter(s: Sketch, width: int) -> None:
    """Lanes that stay apart: positions in some order, spread and moved by a scalar."""
    spread = [v for v in s.bounded.scope if v.shape == (width,) and v.text.startswith("d")]
    if spread and s.r.random() < TOO_TIGHT:
        s.line(
            f"scatter({s.tensor('InOut', 'f32', s.rows, width)}, ({s.row}, arange({width}) + {spread[0].text}.astype(i32) * 100), zeros(({width},), f32))"
        )
        return
    lanes = s.r.choice([f"arange({width})", f"arange({width}).reshape((2, {width // 2})).permute((1, 0)).reshape(({width},))",
                        f"({width - 1} - arange({width}))"])  # fmt: skip
    factor = s.r.choice([1, 1, 2, 3])
    moved = s.assign(s.bounded.expression((), 1))
    start, high = _shifted(s, moved)
    index = f"{lanes} * {factor} + ({start}).astype(i32)" if s.r.random() < 0.6 else f"{lanes} * {factor}"
    high = high + (width - 1) * factor if "astype" in index else (width - 1) * factor
    if high > 1 << 20:
        return
    dtype = s.r.choice([*INTEGERS, *FLOATS])
    tensor = s.tensor("InOut", dtype, s.rows, _extent(s, high))
    mask = ", mask=True" if s.r.random() < 0.2 else ""
    s.line(f"scatter({tensor}, ({s.row}, {index}), zeros(({width},), {dtype}){mask})")
    s.parts.append("scatter")


def _window(s: Sketch, width: int) -> None:
    """A box at a ranged offset, padded or inside."""
    start, high = _shifted(s, s.assign(s.bounded.expression((), 2)))
    dtype = s.r.choice([*INTEGERS, *FLOATS, "boolean"])
    if s.r.random() < 0.4:
        tensor = s.tensor("In", dtype, s.rows, s.r.randint(1, 6))
        _read(s, f"load({tensor}, offset=({s.row}, {start}), shape=(1, {width}), pad=0)", dtype, (1, width))
    else:
        tensor = s.tensor("In", dtype, s.rows, _extent(s, high + width - 1))
        _read(s, f"load({tensor}, offset=({s.row}, {start}), shape=(1, {width}))", dtype, (1, width))
    s.parts.append("window")


def _scalar_read(s: Sketch, width: int) -> None:
    start, high = _shifted(s, s.assign(s.bounded.expression((), 3)))
    dtype = s.r.choice(INTEGERS)
    _read(s, f"load({s.tensor('In', dtype, _extent(s, high))}, {start})", dtype, ())
    s.parts.append("scalar-index")


def _atomic(s: Sketch, width: int) -> None:
    start, high = _shifted(s, s.assign(s.bounded.expression((), 2)))
    dtype = s.r.choice(["f32", "i32", "u32", "i64"])
    kind = s.r.choice(["atomic_add", "atomic_max", "atomic_min"])
    mask = s.r.random() < 0.3
    tensor = s.tensor("Atomic", dtype, s.r.randint(1, 8) if mask else _extent(s, high + width - 1))
    s.line(f"{kind}({tensor}, zeros(({width},), {dtype}), offset={start}{', mask=True' if mask else ''})")
    s.parts.append("atomic")


def _scratch(s: Sketch, width: int) -> None:
    """Working memory written in full, then read at an index."""
    value = s.assign(s.bounded.expression((width,), 2))
    index, high = _shifted(s, value)
    extent = next((e for e in (2, 4, 8, 16) if e > high), 0)
    if not extent:
        return
    dtype = s.r.choice([*INTEGERS, *FLOATS])
    tensor = s.tensor("Scratch", dtype, s.rows, extent)
    s.line(f"store({tensor}, ({s.row}, 0), zeros((1, {extent}), {dtype}))")
    _read(s, f"gather({tensor}, ({s.row}, {index}))", dtype, (width,))
    s.parts.append("scratch")


def _unsafe(s: Sketch, width: int) -> None:
    value = s.bounded.expression((width,), 2)
    dtype = s.r.choice([*INTEGERS, *FLOATS])
    s.line('with unsafe("trusted"):')
    s.indent += "    "
    if s.r.random() < 0.5:
        s.line(f"{s.name('v')} = gather({s.tensor('In', dtype, s.rows)}, ({value.text},), pad=0)")
    else:
        s.line(f"scatter({s.tensor('InOut', dtype, s.rows)}, ({value.text},), zeros(({width},), {dtype}), mask=True)")
    s.indent = s.indent[4:]
    s.parts.append("unsafe")


def _flat(s: Sketch, width: int) -> None:
    """An i64 offset into a flat tensor, or an i32 one that `requires` bounds."""
    start, high = _shifted(s, s.assign(s.bounded.expression((), 1)))
    pitch = high + width
    if pitch > 1 << 12:
        return
    dtype = s.r.choice([*INTEGERS, *FLOATS])
    access = s.r.choice(["In", "InOut"])
    extent = f"({s.rows}) * {pitch}" if s.rows != "N" else f"N * {pitch}"
    tensor = s.tensor(access, dtype, extent)
    wide = s.r.random() < 0.6
    if not wide:
        s.head.append(f"requires({extent} <= 1000000)")
    index = f"i64({s.row}) * {pitch} + ({start}).astype(i64)" if wide else f"{s.row} * {pitch} + ({start}).astype(i32)"
    if access == "InOut" and s.r.random() < 0.6:
        s.line(f"store({tensor}, zeros(({width},), {dtype}), offset={index})")
    else:
        _read(s, f"load({tensor}, offset={index}, shape=({width},))", dtype, (width,))
    s.parts.append("i64" if wide else "flat")


def _modulo(s: Sketch, width: int) -> None:
    """An index that a dim cuts, dim known at launch only."""
    dim = s.name("E")
    s.dims.append(dim)
    value = s.bounded.cast(s.bounded.expression((), 2), "i32") if s.r.random() < 0.6 else Ranged(s.row, "i32", (), 0, 1 << 30)
    cut = s.r.choice([f"({value.text}) % {dim}", f"min(max({value.text}, 0), {dim} - 1)", f"({value.text}) // max(1, {dim}) * 0",
                      f"min(abs({value.text}), {dim} - 1)"])  # fmt: skip
    dtype = s.r.choice([*INTEGERS, *FLOATS])
    _read(s, f"load({s.tensor('In', dtype, dim)}, {cut})", dtype, ())
    s.parts.append("modulo")


def _in_out(s: Sketch, width: int) -> None:
    """Read and write the block's own row through one index."""
    start, high = _shifted(s, s.assign(s.bounded.expression((), 2)))
    dtype = s.r.choice([*INTEGERS, *FLOATS])
    tensor = s.tensor("InOut", dtype, s.rows, _extent(s, high + width - 1))
    _read(s, f"load({tensor}, offset=({s.row}, {start}), shape=(1, {width}))", dtype, (1, width))
    s.line(f"store({tensor}, zeros((1, {width}), {dtype}), offset=({s.row}, {start}))")
    s.parts.append("inout")


def _cover(s: Sketch) -> None:
    """A store that covers an output, of a value that takes every operation there is."""
    dtype = s.r.choice([*INTEGERS, *FLOATS, "boolean"])
    width = s.r.choice([1, 2, 4])
    value = s.tiles.expression(dtype, (1, width), s.r.randint(0, 3))
    roll = s.r.random()
    if roll < 0.45:
        s.line(f"store({s.tensor('Out', dtype, s.rows, width)}, ({s.row}, 0), {value})")
    elif roll < 0.6:
        tensor = s.tensor("Out", dtype, s.rows, width)
        s.line(f"scatter({tensor}, ({s.row}, {width - 1} - arange({width})), ({value}).reshape(({width},)))")
    elif roll < 0.75:
        truth = s.r.choice(s.bounded.truths) if s.bounded.truths else f"{s.row} > 1"
        tensor = s.tensor("Out", dtype, s.rows, width)
        s.line(f"if {truth}:")
        s.line(f"    store({tensor}, ({s.row}, 0), {value})")
        s.line("else:")
        s.line(f"    store({tensor}, ({s.row}, 0), zeros((1, {width}), {dtype}))")
    elif roll < 0.85 and s.rows == "N":
        s.parameters.append(f"{s.name('w')}: In[f32, N]")
        tensor = s.tensor("Out", dtype, "N - 1", width)
        s.line(f"store({tensor}, ({s.row}, 0), {value}, mask=True)")
        s.parts.append("empty")
    else:
        length = s.name("L")
        s.dims.append(length)
        tensor = s.tensor("Out", dtype, s.rows, length)
        s.line(f"for j in range(cdiv({length}, {width})):")
        s.line(f"    store({tensor}, ({s.row}, j), {value}, mask=True)")
        s.parts.append("row-loop")
    if not any(re.search(r"[\[ ]N[,\]]", p) for p in s.parameters):
        s.parameters.append(f"{s.name('w')}: In[f32, N]")
