"""Accesses of wide kernels: each takes an index of known range and a tensor large enough for it, sometimes one that is not."""

from __future__ import annotations

import random

from tests.programs.typed_tiles import BITS, FLOATS, Shape, Variable
from tests.soundness.bounded import Ranged
from tests.soundness.sketch import Sketch
from tilec.ir.ops import ATOMICS, atomic_word

TOO_TIGHT = 0.1
"""How often a tensor is smaller than its index requires, or an index is not shifted to begin at zero."""


def access(s: Sketch, width: int) -> None:
    """One access of any kind."""
    s.r.choice([_gather, _gather, _scatter, _window, _scalar_read, _atomic, _scratch, _unsafe, _flat, _modulo, _in_out])(
        s, width
    )


def _extent(s: Sketch, high: int) -> str:
    """An extent above `high`: a number, or a dim that `requires` bounds; sometimes one too small."""
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
    """The index shifted so that it begins at zero, or sometimes unshifted, and its largest value."""
    if value.low == 0 or s.r.random() < TOO_TIGHT / 2:
        return value.text, max(0, value.high)
    wide = s.bounded.cast(value, "i64" if value.dtype in ("u32", "i64", "u64") or abs(value.low) > 1 << 30 else "i32")
    return (f"({wide.text} - {value.low})" if value.low > 0 else f"({wide.text} + {-value.low})"), value.high - value.low


def _read(s: Sketch, text: str, dtype: str, shape: Shape) -> str:
    """Uses a loaded tile in later values and indices; its name."""
    name = s.name("v")
    s.line(f"{name} = {text}")
    if s.indent == "    ":
        s.tiles.scope.append(Variable(name, dtype, shape))
    if dtype in BITS:
        s.bounded.data.append((name, dtype, shape))
    return name


def _gather(s: Sketch, width: int) -> None:
    value = s.assign(s.bounded.expression((width,), s.r.randint(1, 3)))
    index, high = _shifted(s, value)
    dtype = s.r.choice([*s.integers, *FLOATS])
    if s.r.random() < 0.5:
        tensor, indices = s.tensor("In", dtype, _extent(s, high)), f"({index},)"
    else:
        tensor, indices = s.tensor("In", dtype, s.rows, _extent(s, high)), f"({s.row}, {index})"
    pad = ", pad=0" if s.r.random() < 0.15 else ""
    tile = _read(s, f"gather({tensor}, {indices}{pad})", dtype, (width,))
    s.parts.append("gather")
    _compaction(s, width, tile)


def _compaction(s: Sketch, width: int, tile: str) -> None:
    """Some elements of a tile side by side in the block's row, sometimes by the sums of another condition. It draws from a
    source of its own, so that the rest of the kernel of a number stays what it was."""
    r = random.Random(f"{width} {tile} {len(s.parameters)} {s.body[-1]}")
    if width & (width - 1) or r.random() < 0.7:
        return
    kept, other = f"({tile} > 0)", r.choice([f"({tile} >= 0)", f"(arange({width}) > 0)", f"({tile} != 0)"])
    summed, written = (other if r.random() < TOO_TIGHT else kept for _ in range(2))
    written += r.choice(["", f" & (arange({width}) < {width // 2})"])
    words = r.choice(["", ", exclusive=True", ", exclusive=True", ", reverse=True"])
    starts = f"cumsum(where({summed}, {r.choice([1, 1, 1, 2])}, 0), 0{words}) + {r.randint(-1, 1)}"
    name = f"kept{len(s.parameters)}"
    s.parameters.append(f"{name}: InOut[f32, {s.rows}, {width}]")
    s.line(f"scatter({name}, ({s.row}, where({written}, {starts}, {width})), zeros(({width},), f32), mask=True)")
    s.parts.append("compaction")


def _scatter(s: Sketch, width: int) -> None:
    """Distinct lanes: positions in some order, scaled and shifted by a scalar."""
    differences = [v for v in s.bounded.scope if v.shape == (width,) and v.text.startswith("d")]
    if differences and s.r.random() < TOO_TIGHT:
        index = f"arange({width}) + {differences[0].text}.astype(i32) * 100"
        s.line(f"scatter({s.tensor('InOut', 'f32', s.rows, width)}, ({s.row}, {index}), zeros(({width},), f32))")
        return
    lanes = s.r.choice([f"arange({width})", f"arange({width}).reshape((2, {width // 2})).permute((1, 0)).reshape(({width},))",
                        f"({width - 1} - arange({width}))"])  # fmt: skip
    factor = s.r.choice([1, 1, 2, 3])
    shift = s.assign(s.bounded.expression((), 1))
    start, high = _shifted(s, shift)
    index = f"{lanes} * {factor} + ({start}).astype(i32)" if s.r.random() < 0.6 else f"{lanes} * {factor}"
    high = high + (width - 1) * factor if "astype" in index else (width - 1) * factor
    if high > 1 << 20:
        return
    dtype = s.r.choice([*s.integers, *FLOATS])
    tensor = s.tensor("InOut", dtype, s.rows, _extent(s, high))
    mask = ", mask=True" if s.r.random() < 0.2 else ""
    s.line(f"scatter({tensor}, ({s.row}, {index}), zeros(({width},), {dtype}){mask})")
    s.parts.append("scatter")


def _window(s: Sketch, width: int) -> None:
    """A box at a ranged offset, padded or in bounds."""
    start, high = _shifted(s, s.assign(s.bounded.expression((), 2)))
    dtype = s.r.choice([*s.integers, *FLOATS, "boolean"])
    if s.r.random() < 0.4:
        tensor = s.tensor("In", dtype, s.rows, s.r.randint(1, 6))
        _read(s, f"load({tensor}, offset=({s.row}, {start}), shape=(1, {width}), pad=0)", dtype, (1, width))
    else:
        tensor = s.tensor("In", dtype, s.rows, _extent(s, high + width - 1))
        _read(s, f"load({tensor}, offset=({s.row}, {start}), shape=(1, {width}))", dtype, (1, width))
    s.parts.append("window")


def _scalar_read(s: Sketch, width: int) -> None:
    start, high = _shifted(s, s.assign(s.bounded.expression((), 3)))
    dtype = s.r.choice(s.integers)
    _read(s, f"load({s.tensor('In', dtype, _extent(s, high))}, {start})", dtype, ())
    s.parts.append("scalar-index")


def _atomic(s: Sketch, width: int) -> None:
    start, high = _shifted(s, s.assign(s.bounded.expression((), 2)))
    dtype = s.r.choice(["f32", "i32", "u32", "i64", *(one for one in s.integers if one == "u64")])
    kind = s.r.choice(["atomic_add", "atomic_max", "atomic_min"])
    mask = s.r.random() < 0.3
    tensor = s.tensor("Atomic", dtype, s.r.randint(1, 8) if mask else _extent(s, high + width - 1))
    s.line(f"{kind}({tensor}, zeros(({width},), {dtype}), offset={start}{', mask=True' if mask else ''})")
    s.parts.append("atomic")
    if high < 1 << 20:
        _atomic_at_positions(s, width, dtype, start, high)


def _atomic_at_positions(s: Sketch, width: int, dtype: str, start: str, high: int) -> None:
    """Atomics from `start` on, some twice, sometimes one past the end; an old value may be an index of a clamped read. It draws
    from another source, so that the kernels of a number stay what they were."""
    r = random.Random(f"{width} {dtype} {start} {high}")
    word = atomic_word(r.choice([kind for kind in ATOMICS[dtype] if kind != "cas"]))
    last = high + width - 1 - (r.random() < TOO_TIGHT)
    tensor = s.tensor("Atomic", dtype, max(1, last + 1))
    lanes = r.choice([f"arange({width})", f"arange({width}) // 2", f"({width - 1} - arange({width}))"])
    mask = r.choice(["", "", ", mask=True"])
    call = f"{word}({tensor}, zeros(({width},), {dtype}), at={lanes} + ({start}).astype(i32){mask})"
    if dtype != "i32" or r.random() < 0.5:
        s.line(call)
        return
    low = r.choice([0, 0, 0, -1])  # -1 is no row
    s.line(f"old = minimum(maximum({call}, {low}), 3)")
    _read(s, f"gather({s.tensor('In', 'i32', 4)}, old)", "i32", (width,))
    s.parts.append("old value")


def _scratch(s: Sketch, width: int) -> None:
    """Working memory written in full, then read at an index."""
    value = s.assign(s.bounded.expression((width,), 2))
    index, high = _shifted(s, value)
    extent = next((e for e in (2, 4, 8, 16) if e > high), 0)
    if not extent:
        return
    dtype = s.r.choice([*s.integers, *FLOATS])
    tensor = s.tensor("Scratch", dtype, s.rows, extent)
    s.line(f"store({tensor}, ({s.row}, 0), zeros((1, {extent}), {dtype}))")
    _read(s, f"gather({tensor}, ({s.row}, {index}))", dtype, (width,))
    s.parts.append("scratch")


def _unsafe(s: Sketch, width: int) -> None:
    value = s.bounded.expression((width,), 2)
    dtype = s.r.choice([*s.integers, *FLOATS])
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
    dtype = s.r.choice([*s.integers, *FLOATS])
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
    """An index modulo a dim that is known only at launch."""
    dim = s.name("E")
    s.dims.append(dim)
    value = s.bounded.cast(s.bounded.expression((), 2), "i32") if s.r.random() < 0.6 else Ranged(s.row, "i32", (), 0, 1 << 30)
    t = value.text
    reduced_indices = [
        f"({t}) % {dim}",
        f"min(max({t}, 0), {dim} - 1)",
        f"({t}) // max(1, {dim}) * 0",
        f"min(abs({t}), {dim} - 1)",
    ]
    index = s.r.choice(reduced_indices)
    dtype = s.r.choice([*s.integers, *FLOATS])
    _read(s, f"load({s.tensor('In', dtype, dim)}, {index})", dtype, ())
    s.parts.append("modulo")


def _in_out(s: Sketch, width: int) -> None:
    """Reads and writes the block's own row through one index."""
    start, high = _shifted(s, s.assign(s.bounded.expression((), 2)))
    dtype = s.r.choice([*s.integers, *FLOATS])
    tensor = s.tensor("InOut", dtype, s.rows, _extent(s, high + width - 1))
    _read(s, f"load({tensor}, offset=({s.row}, {start}), shape=(1, {width}))", dtype, (1, width))
    s.line(f"store({tensor}, zeros((1, {width}), {dtype}), offset=({s.row}, {start}))")
    s.parts.append("inout")
