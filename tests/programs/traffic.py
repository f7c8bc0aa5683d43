"""Random programs that pass tiles through `InOut` and `Scratch` memory: one thread writes an element, another reads it.

Windows overlap and move with loops, shapes change so that threads own other elements, with reductions and branches in between.
If a barrier is missing, the emulator's race detector reports it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.programs.generate import Draft, Program, add_input, add_output, finished, new_draft
from tests.programs.typed_tiles import BITS


@dataclass(frozen=True, slots=True)
class Sizes:
    """Elements of a row of working memory, of its input, and of windows into it; a window is also viewed as a matrix with
    `part` columns or rows."""

    rows: tuple[int, ...]
    looped_rows: tuple[int, ...]
    branched_rows: tuple[int, ...]
    chunks: tuple[int, ...]
    windows: tuple[int, ...]
    part: int
    lanes: int
    small: int
    sliding: tuple[int, ...]
    steps: tuple[int, ...]
    matrices: tuple[tuple[int, int], ...]


EVEN = Sizes(
    (64, 128, 256, 512), (128, 256, 512), (64, 128, 256), (64, 128, 256, 512, 1024), (32, 64, 128, 256), 8, 64, 32,
    (64, 128, 256, 512), (1, 8, 16, 32, 64), ((16, 16), (8, 32), (4, 64), (32, 8)),
)  # fmt: skip
ODD = Sizes(
    (60, 100, 125, 360, 500), (100, 250, 360), (60, 100, 250), (20, 50, 60, 100, 120, 250), (20, 40, 60, 100, 120, 200),
    5, 60, 24, (60, 72, 100, 125, 250, 360), (1, 3, 8, 20, 60), ((12, 20), (6, 40), (24, 10), (10, 26), (50, 6)),
)  # fmt: skip


def traffic(number: int) -> Program:
    """A program that passes tiles through `InOut` and `Scratch` in loops and branches, in overlapping windows and changing
    shapes, with reductions in between."""
    return _traffic(number, f"traffic {number}", odd=False)


def odd_traffic(number: int) -> Program:
    """The same with windows whose sizes are not powers of two."""
    return _traffic(number, f"odd traffic {number}", odd=True)


def _traffic(number: int, seed: str, *, odd: bool) -> Program:
    r = random.Random(seed)
    draft = new_draft(r, "sums", odd=odd)
    add_input(draft)
    for _ in range(r.choice([1, 2])):
        r.choice([_row_traffic, _sliding_traffic, _sliding_traffic, _transposed_traffic, _looped_traffic, _branched_traffic])(
            draft
        )
    add_output(draft)
    return finished(draft, number, "sums")


def _sizes(d: Draft) -> Sizes:
    return ODD if d.odd else EVEN


def _buffer(d: Draft, extent: int) -> tuple[str, str]:
    """Working memory of the block's own row, written in full if it is `Scratch`."""
    dtype = d.dtype()
    access = d.r.choice(["InOut", "Scratch"])
    name = d.tensor(access, dtype, "N", extent)
    if access == "Scratch":
        chunks = _sizes(d).chunks
        chunk = max(c for c in chunks if extent % c == 0 or c == chunks[0])
        for start in range(0, extent, chunk):
            size = min(chunk, extent - start)
            d.line(f"store({name}, {d.tiles.expression(dtype, (1, size), 1)}, offset=(b, {start}))")
    d.parts.add(access)
    return name, dtype


def _moves(d: Draft, name: str, dtype: str, extent: int, count: int, step: str = "") -> None:
    """Stores and loads of windows that overlap, in different shapes, with a reduction or a transpose in between."""
    part, lanes = _sizes(d).part, _sizes(d).lanes
    for _ in range(count):
        size = d.r.choice([s for s in _sizes(d).windows if s <= extent])
        last_start = (extent - size) // (4 if step else 1)
        start = d.r.choice([0, last_start, last_start // 2, min(last_start, 1), min(last_start, 32)])
        offset = f"(b, {start} + {step} * {max(1, min(32, last_start // 4 or 1))})" if step and last_start else f"(b, {start})"
        if step and last_start and start + 3 * max(1, min(32, last_start // 4 or 1)) + size > extent:
            offset = f"(b, {start})"
        if d.r.random() < 0.55:
            shape = d.r.choice([(1, size), (size // part, part), (part, size // part), (size,)])
            d.line(f"store({name}, ({d.tiles.expression(dtype, shape, 2)}).reshape((1, {size})), offset={offset})")
        else:
            roll = d.r.random()
            text = f"load({name}, offset={offset}, shape=(1, {size}))"
            if roll < 0.3:
                d.let(dtype, (size // part, part), f"{text}.reshape(({part}, {size // part})).permute((1, 0))")
            elif roll < 0.5 and dtype in BITS:
                d.let(dtype, (size // part,), f"tilec.sum({text}.reshape(({size // part}, {part})), axis=1)")
            elif roll < 0.6:
                d.let(dtype, (part,), f"tilec.max({text}.reshape(({size // part}, {part})), axis=0)")
            elif roll < 0.75:
                index = f"({d.tiles.expression('i32', (lanes,), 1)}) % {extent}"
                d.provable = False
                d.let(dtype, (lanes,), f"gather({name}, (b, {index}))")
            elif roll < 0.85:
                d.line(f"scatter({name}, (b, {extent - 1} - arange({size})), {d.tiles.expression(dtype, (size,), 1)})")
            else:
                d.let(dtype, (size,), f"{text}.reshape(({size},))")


def _row_traffic(d: Draft) -> None:
    extent = d.r.choice(_sizes(d).rows)
    name, dtype = _buffer(d, extent)
    _moves(d, name, dtype, extent, d.r.randint(2, 5))
    d.parts.add("straight")


def _looped_traffic(d: Draft) -> None:
    extent = d.r.choice(_sizes(d).looped_rows)
    name, dtype = _buffer(d, extent)
    trip_count = d.name("n")
    d.scalars[trip_count] = d.r.choice([0, 1, 2, 4])
    d.head.append(f"requires({trip_count} >= 0, {trip_count} <= 4)")
    variable = d.name("turn")
    shape = (_sizes(d).lanes,)
    total = d.let(dtype, shape, d.tiles.expression(dtype, shape, 1))
    scope_before = list(d.tiles.scope)
    d.line(f"for {variable} in range({trip_count}):")
    d.depth += 1
    _moves(d, name, dtype, extent, d.r.randint(2, 4), variable)
    if d.r.random() < 0.3:
        _branched_moves(d, name, dtype, extent)
    d.line(f"{total} = {d.tiles.expression(dtype, shape, 2)}")
    d.depth -= 1
    d.tiles.scope = scope_before
    _moves(d, name, dtype, extent, d.r.randint(0, 2))
    d.parts.add("loop")


def _sliding_traffic(d: Draft) -> None:
    """A window that moves with the loop: one thread writes an element, another reads it in the next iteration. Nothing else
    causes a barrier."""
    size, step = d.r.choice(_sizes(d).sliding), d.r.choice(_sizes(d).steps)
    dtype = d.dtype()
    shape = (1, size)
    source = d.let(dtype, shape, f"load({d.tensor('In', dtype, 'N', size)}, (b, 0), shape={shape})")
    total = d.let(dtype, shape, f"zeros({shape}, {dtype})")
    name = d.tensor("InOut", dtype, "N", size + 4 * step)
    trip_count, variable = d.name("n"), d.name("turn")
    d.scalars[trip_count] = d.r.choice([0, 2, 3, 4])
    d.head.append(f"requires({trip_count} >= 0, {trip_count} <= 4)")
    offset = d.r.choice([f"(b, {variable} * {step})", f"(b, {4 * step} - {variable} * {step})"])
    written = d.r.choice([source, total, f"maximum({source}, {total})", f"{source} + {total}"])
    store = f"store({name}, {written}, offset={offset})"
    update = d.r.choice([f"maximum({total}, {{}})", f"minimum({total}, {{}})", f"{total} + {{}}"])
    load = f"{total} = {update.format(f'load({name}, offset={offset}, shape={shape})')}"
    lines = [store, load] if d.r.random() < 0.6 else [load, store]
    d.line(f"for {variable} in range({trip_count}):")
    d.depth += 1
    if d.r.random() < 0.3:
        d.line(f"if {d.r.choice(['b == 0', f'{variable} != 1', f'{variable} < {trip_count} - 1'])}:")
        d.body.append("    " * (d.depth + 2) + lines.pop(0))
    for line in lines:
        d.line(line)
    d.depth -= 1
    d.parts |= {"sliding", "InOut"}


def _branched_moves(d: Draft, name: str, dtype: str, extent: int) -> None:
    scope_before = list(d.tiles.scope)
    d.line(f"if {d.tiles.scalar_condition()}:")
    d.provable = False
    d.depth += 1
    _moves(d, name, dtype, extent, d.r.randint(1, 3))
    d.line(f"store({name}, {d.tiles.expression(dtype, (1, _sizes(d).small), 1)}, offset=(b, 0))")
    d.depth -= 1
    d.tiles.scope = list(scope_before)
    if d.r.random() < 0.5:
        d.line("else:")
        d.depth += 1
        _moves(d, name, dtype, extent, d.r.randint(1, 2))
        d.line(f"store({name}, {d.tiles.expression(dtype, (1, _sizes(d).small), 1)}, offset=(b, 16))")
        d.depth -= 1
        d.tiles.scope = scope_before
    d.parts.add("branch")


def _branched_traffic(d: Draft) -> None:
    extent = d.r.choice(_sizes(d).branched_rows)
    name, dtype = _buffer(d, extent)
    _moves(d, name, dtype, extent, 1)
    _branched_moves(d, name, dtype, extent)
    _moves(d, name, dtype, extent, d.r.randint(1, 2))


def _transposed_traffic(d: Draft) -> None:
    """A matrix stored by rows and loaded by columns."""
    rows, columns = d.r.choice(_sizes(d).matrices)
    dtype, access = d.dtype(), d.r.choice(["InOut", "Scratch"])
    name = d.tensor(access, dtype, "N", rows, columns)
    d.line(f"store({name}, (b, 0, 0), {d.tiles.expression(dtype, (1, rows, columns), 2)})")
    for _ in range(d.r.choice([1, 2])):
        d.let(
            dtype,
            (columns, rows),
            f"load({name}, (b, 0, 0), shape=(1, {rows}, {columns})).reshape(({rows}, {columns})).permute((1, 0))",
        )
        window = (1, rows // 2, columns // 2)
        text = f"({d.tiles.expression(dtype, window[1:], 2)}).reshape({window})"
        d.line(f"store({name}, {text}, offset=(b, {d.r.choice([0, 1, rows // 2])}, {d.r.choice([0, 1, columns // 2])}))")
    d.parts |= {"turned", access}
