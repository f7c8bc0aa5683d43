"""Kernels over the whole language, correct by construction: every dtype, casts, bits, index tiles that are carried, permuted,
reduced and gathered, `Atomic`, `Scratch`, `unsafe`, strides, tile functions, conditions on data, empty extents, products in
`requires`.

A kernel is source text made of parts: inputs, a few index tiles of known range, accesses through them, and a store that covers
the output. Mutations of it may be wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tests.programs.typed_tiles import FLOATS, INTEGERS, Shape
from tests.soundness.bounded import Bounded, Ranged
from tests.soundness.sketch import Sketch, WideKernel
from tests.soundness.wide_accesses import access


def wide(r: random.Random, integers: tuple[str, ...] = INTEGERS) -> WideKernel:
    """A kernel that uses a handful of parts, with integers of these dtypes; one named more than once is drawn more often."""
    return grown(Sketch(r, integers=integers))


def grown(s: Sketch, also: Callable[[Sketch, int], None] | None = None) -> WideKernel:
    """The kernel of an empty sketch; `also` adds statements before its accesses."""
    r = s.r
    _frame(s)
    width = r.choice([2, 4, 4, 8])
    for _ in range(r.choice([1, 2, 2])):
        r.choice([_data_scalar, _data_scalar, _ranged_scalar, _data_tile, _condition, _scalar])(s, width)
    _words(s, width)
    if also is not None:
        also(s, width)
    body_part = r.choice([_straight, _straight, _looped, _branched, _with_function])
    body_part(s, width)
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
        extent = "M" if "M)" in s.head[-1] else "2"
        s.dims += ["M"] if extent == "M" else []
        s.line("row = b * num_blocks(1) + bid(1)")
        s.row, s.rows = "row", f"N * {extent}"
        if extent == "M":
            s.head.append("requires(N * M <= 1000000)")
            s.parameters.append("w0: In[f32, M]")
        s.parts.append("product")
    else:
        s.head.append("grid(N)")
        s.line("row = N - 1 - b")
        s.row = "row"


def _data_scalar(s: Sketch, width: int) -> None:
    """An integer or a float loaded from memory, as a scalar."""
    dtype = s.r.choice([*s.integers, *FLOATS])
    name = s.name("d")
    s.line(f"{name} = load({s.tensor('In', dtype, s.rows)}, {s.row})")
    if dtype in FLOATS:
        integer = s.name("d")
        target = s.r.choice(s.integers)
        s.line(
            f"{integer} = {s.r.choice([f'{target}({name})', f'abs({name}).astype({target})', f'(-{name}).astype({target})'])}"
        )
        name, dtype = integer, target
        s.parts.append("float-index")
    s.bounded.data.append((name, dtype, ()))
    s.parts.append("data")


def _ranged_scalar(s: Sketch, width: int) -> None:
    """A scalar that `values` bounds."""
    dtype = s.r.choice(s.integers)
    low = s.r.choice([0, 0, 1, -2]) if dtype[0] != "u" else s.r.choice([0, 1])
    high = low + s.r.randint(1, 6)
    tensor = s.tensor("In", dtype, s.rows)
    s.head.append(f"values({tensor}, {low}, {high})")
    s.assign(Ranged(f"load({tensor}, {s.row})", dtype, (), low, high - 1), "d")
    s.parts.append("values")


def _data_tile(s: Sketch, width: int) -> None:
    """A tile loaded from memory, of arbitrary or declared values."""
    dtype = s.r.choice(s.integers)
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


def _condition(s: Sketch, width: int) -> None:
    """A bool scalar from a bool tensor, a float or an integer."""
    name = s.name("q")
    dtype = s.r.choice(["boolean", "f32", "bf16", "f16", "i8", "u32"])
    loaded = f"load({s.tensor('In', dtype, s.rows)}, {s.row})"
    s.line(f"{name} = {loaded}" if dtype == "boolean" else f"{name} = {loaded} {s.r.choice(['>', '==', '!=', '<='])} 1")
    s.bounded.conditions.append(name)
    s.parts.append("bool")


def _scalar(s: Sketch, width: int) -> None:
    """A scalar parameter, bounded by `requires` or not."""
    dtype = s.r.choice(["i32", "i32", "u32", "i64", "i8", "i16", "u8", "u16", *(one for one in s.integers if one == "u64")])
    name = s.name("p")
    s.parameters.append(f"{name}: {dtype}")
    if s.r.random() < 0.6:
        low = s.r.choice([0, 1, 2])
        s.head.append(f"requires({name} >= {low}, {name} < {low + 5})")
        s.bounded.scope.append(Ranged(name, dtype, (), low, low + 4))
    else:
        s.bounded.data.append((name, dtype, ()))
    s.parts.append("scalar")


def _words(s: Sketch, width: int) -> None:
    """A `take`, or a loop with claims, now and then, by numbers of its own: the kernels without one stay as they were."""
    r = random.Random(f"words {len(s.body)} {s.body[-1]} {s.parameters}")
    roll = r.random()
    if roll < 0.2:
        _taken(s, r, width)
    elif roll < 0.4:
        _counted(s, r)


def _taken(s: Sketch, r: random.Random, width: int) -> None:
    """An index tile whose elements are taken from another one, at positions within it."""
    own = Bounded(r, list(s.bounded.scope), list(s.bounded.data), list(s.bounded.conditions))
    indices = own.cast(own.expression((width,), 2), "i32")
    if indices.low < 0 or indices.high > 63:
        indices = Ranged(f"(({indices.text}) % {width})", "i32", (width,), 0, width - 1)
    extent = r.choice([indices.high + 1, indices.high + 2])
    value = own.expression((extent,), 1)
    s.assign(Ranged(f"take({value.text}, {indices.text}, 0)", value.dtype, (width,), value.low, value.high), "k")
    s.bounded.scope += s.bounded.scope[-1:] * 2
    s.parts.append("take")


def _counted(s: Sketch, r: random.Random) -> None:
    """A count that a loop carries and its invariants bound."""
    count, limit = s.name("c"), r.randint(1, 5)
    ranged = [v for v in s.bounded.scope if v.shape == () and v.dtype == "i32" and 0 <= v.low <= v.high < 50]
    bound = r.choice(ranged) if ranged and r.random() < 0.6 else Ranged(str(limit), "i32", (), limit, limit)
    stop = [*s.bounded.conditions, f"{count} == {r.randint(0, 4)}", f"{count} > b"]
    s.line(f"{count} = i32(0)")
    if r.random() < 0.5:
        s.line(f"while {count} < {bound.text}:")
        s.line(f"    invariant(0 <= {count}, {count} <= {bound.text})")
        s.line(f"    decreases({bound.text} - {count})")
        if r.random() < 0.6:
            s.line(f"    if {r.choice(stop)}:")
            s.line("        break")
        s.line(f"    {count} = {count} + 1")
    else:
        s.line(f"for n in range({bound.text}):")
        s.line(f"    invariant(0 <= {count}, {count} <= n)")
        s.line(f"    if {r.choice([*stop, 'n % 2 == 0'])}:")
        s.line(f"        {r.choice([f'{count} = {count} + 1', 'continue', 'break'])}")
        s.line(f"    {count} = {count} + 1" if s.body[-1].strip() in ("continue", "break") else "    pass")
    s.bounded.scope += [Ranged(count, "i32", (), 0, bound.high)] * 2
    s.parts.append("claims")


def _straight(s: Sketch, width: int) -> None:
    for _ in range(s.r.choice([1, 1, 2])):
        access(s, width)


def _looped(s: Sketch, width: int) -> None:
    """Accesses in a loop that carries an index tile or scalar."""
    shape: Shape = s.r.choice([(), (width,)])
    start = s.assign(s.bounded.expression(shape, 1), "c")
    limit = max(1, start.high)
    if start.low < 0 or start.high > 100:
        start = s.assign(Ranged(f"{'abs' if start.low < 0 else ''}({start.text}) % 5", start.dtype, shape, 0, 4), "c")
        limit = 4
    trip_count = s.r.choice(["2", "3", "N", "(N - 1)"])
    s.line(f"for i in range({trip_count}):")
    outer, scope_before = s.indent, (list(s.bounded.scope), list(s.bounded.data), list(s.bounded.conditions))
    s.indent += "    "
    if trip_count in "23":
        s.bounded.scope.append(Ranged("i", "i32", (), 0, int(trip_count) - 1))
    s.bounded.scope = [v for v in s.bounded.scope if v.text != start.text] + [
        Ranged(start.text, start.dtype, shape, 0, limit)
    ] * 3
    if shape and s.r.random() < 0.4:
        transposed = f"{start.text}.reshape((2, {width // 2})).permute((1, 0)).reshape(({width},))"
        signed = (
            f"{start.text}.astype(i32) - {transposed}.astype(i32)" if start.dtype[0] == "u" else f"{start.text} - {transposed}"
        )
        dtype = "i32" if start.dtype[0] == "u" else start.dtype
        s.assign(Ranged(signed, dtype, shape, -limit, limit), "d")
        s.bounded.scope += s.bounded.scope[-1:] * 3
    access(s, width)
    updates = [
        f"({start.text} + 1) % {limit + 1}",
        f"where({start.text} > 0, {start.text} - 1, {limit})",
        f"{limit} - {start.text}",
    ]
    if shape:
        updates.append(f"{start.text}.reshape((2, {width // 2})).permute((1, 0)).reshape(({width},))")
    _exit(s)
    s.line(f"{start.text} = ({s.r.choice(updates)}).astype({start.dtype})")
    s.indent = outer
    s.bounded.scope, s.bounded.data, s.bounded.conditions = scope_before
    s.bounded.scope = [v for v in s.bounded.scope if v.text != start.text] + [Ranged(start.text, start.dtype, shape, 0, limit)]
    if s.r.random() < 0.5:
        access(s, width)
    s.parts.append("carried")


def _exit(s: Sketch) -> None:
    """An exit of the loop now and then, by numbers of its own: the kernels without one stay as they were."""
    r = random.Random(f"exit {len(s.body)} {s.body[-1]}")
    if r.random() < 0.2:
        conditions = [*s.bounded.conditions, f"i == {r.randint(0, 2)}", f"i > {r.randint(0, 2)}"]
        s.line(f"if {r.choice(conditions)}:")
        s.line(f"    {r.choice(['break', 'break', 'continue'])}")
        s.parts.append("exit")


def _branched(s: Sketch, width: int) -> None:
    """Accesses under conditions on data, and an index that they select."""
    if not s.bounded.conditions:
        _condition(s, width)
    shape: Shape = s.r.choice([(), (width,)])
    value = s.bounded.cast(s.bounded.expression(shape, 1), "i32")
    other = s.bounded.cast(s.bounded.expression(shape, 2), "i32")
    merged = s.assign(value, "m")
    scope_before = (list(s.bounded.scope), list(s.bounded.data), list(s.bounded.conditions))
    s.line(f"if {s.r.choice(s.bounded.conditions)}:")
    s.indent += "    "
    s.line(f"{merged.text} = {other.text}")
    access(s, width)
    s.indent = s.indent[4:]
    s.bounded.scope, s.bounded.data, s.bounded.conditions = scope_before
    s.bounded.scope = [v for v in s.bounded.scope if v.text != merged.text]
    s.bounded.scope += [Ranged(merged.text, "i32", shape, min(value.low, other.low), max(value.high, other.high))] * 3
    access(s, width)
    s.parts.append("branch")


def _with_function(s: Sketch, width: int) -> None:
    """An index that a tile function clamps."""
    limit = s.r.randint(1, 6)
    body = s.r.choice(
        [f"minimum(maximum(v, 0), {limit})", f"where((v < 0) | (v > {limit}), {limit}, v)", f"abs(v % {limit + 1})"]
    )
    s.helpers.append(f"@tilec.function\ndef cut(v):\n    w = {body}\n    return w")
    value = s.bounded.expression(s.r.choice([(), (width,)]), 2)
    s.assign(Ranged(f"cut(({value.text}).astype(i32))", "i32", value.shape, 0, limit))
    s.bounded.scope.append(s.bounded.scope[-1])
    access(s, width)
    s.parts.append("function")


def _cover(s: Sketch) -> None:
    """A store that covers an output, of a value computed with every operation."""
    dtype = s.r.choice([*s.integers, *FLOATS, "boolean"])
    width = s.r.choice([1, 2, 4])
    value = s.tiles.expression(dtype, (1, width), s.r.randint(0, 3))
    roll = s.r.random()
    if roll < 0.45:
        s.line(f"store({s.tensor('Out', dtype, s.rows, width)}, ({s.row}, 0), {value})")
    elif roll < 0.6:
        tensor = s.tensor("Out", dtype, s.rows, width)
        s.line(f"scatter({tensor}, ({s.row}, {width - 1} - arange({width})), ({value}).reshape(({width},)))")
    elif roll < 0.75:
        truth = s.r.choice(s.bounded.conditions) if s.bounded.conditions else f"{s.row} > 1"
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
