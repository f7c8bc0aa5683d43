"""Random tile programs that are safe by construction: kernel source with dims, scalars and error bounds.

A program loads tiles of its block's own rows, computes with every operation and dtype, loops, branches on data, moves tiles
through `InOut` and `Scratch` memory, and stores its results. Addresses are simple; the tests target errors below the tile IR.
The same number gives the same program.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.programs.typed_tiles import BITS, FLOATS, INTEGERS, NARROW_FLOATS, Shape, Tiles, Variable, tuple_text
from tests.soundness.sketch import imports
from tilec.ir.ops import BOX_KINDS
from tilec.target.schedule import Overrides

SHAPES: tuple[Shape, ...] = (
    (16, 8), (8, 16), (32, 4), (1, 64), (64,), (128,), (3, 40), (5,), (7, 3), (4, 4, 8), (2, 128), (16, 32), (256,), (1, 1),
)  # fmt: skip
LARGE_SHAPES: tuple[Shape, ...] = ((16, 64), (32, 32), (1024,), (4, 256))
ODD_SHAPES: tuple[Shape, ...] = (
    (12,), (24,), (40,), (60,), (100,), (125,), (250,), (96,), (3, 40), (24, 10), (12, 12), (5, 25), (40, 6), (100, 3),
    (7, 9, 2), (6, 5, 4), (1, 72), (9, 16), (16, 9), (5,),
)  # fmt: skip
WITH_U64 = (*INTEGERS, *FLOATS, *["u64"] * 8)
"""Dtypes of a program with u64, which about half of its tiles have."""
LARGE_ODD_SHAPES: tuple[Shape, ...] = ((1000,), (1023,), (24, 40), (5, 200), (7, 12, 12), (360,), (31, 33))


@dataclass(slots=True)
class Program:
    """Kernel source and one launch of it. `exact`: results are bit-identical (any NaN equals any other). Tensors in `small`
    contain small integers, whose products and sums are exact."""

    number: int
    text: str
    exact: bool
    dims: dict[str, int]
    scalars: dict[str, int]
    warps: int | None  # None: chosen by the passes
    parts: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    provable: bool = True  # False: arithmetic that may wrap decides an index or a branch
    schedules: tuple[Overrides, ...] = ()  # to try, the first possible one is taken; none: chosen by the passes


@dataclass(slots=True)
class Draft:
    """A program under construction."""

    r: random.Random
    tiles: Tiles
    parameters: list[str] = field(default_factory=list[str])
    body: list[str] = field(default_factory=list[str])
    dims: dict[str, int] = field(default_factory=dict[str, int])
    scalars: dict[str, int] = field(default_factory=dict[str, int])
    head: list[str] = field(default_factory=list[str])
    parts: set[str] = field(default_factory=set[str])
    small: set[str] = field(default_factory=set[str])
    provable: bool = True
    count: int = 0
    depth: int = 0
    odd: bool = False  # extents are rarely powers of two

    def name(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}{self.count}"

    def line(self, text: str) -> None:
        self.body.append("    " * (self.depth + 1) + text)

    def let(self, dtype: str, shape: Shape, text: str) -> str:
        """Names a tile and brings it into scope."""
        name = self.name("v")
        self.line(f"{name} = {text}")
        self.tiles.scope.append(Variable(name, dtype, shape))
        return name

    def tensor(self, access: str, dtype: str, *dims: int | str) -> str:
        """A new tensor parameter."""
        name = self.name({"In": "x", "Out": "out", "InOut": "y", "Scratch": "s", "Atomic": "a"}[access])
        self.parameters.append(f"{name}: {access}[{', '.join([dtype, *map(str, dims)])}]")
        return name

    def shape(self) -> Shape:
        """A shape, rarely a large one."""
        if self.odd:
            return self.r.choice(LARGE_ODD_SHAPES if self.r.random() < 0.15 else ODD_SHAPES)
        return self.r.choice(LARGE_SHAPES if self.r.random() < 0.06 else SHAPES)

    def shapes(self) -> tuple[Shape, ...]:
        """The usual shapes."""
        return ODD_SHAPES if self.odd else SHAPES

    def dtype(self) -> str:
        """A dtype that tiles are stored in."""
        return self.r.choice(self.tiles.dtypes)


def program(number: int) -> Program:
    """A program over all operations."""
    return _program(number, f"program {number}", odd=False)


def odd_program(number: int) -> Program:
    """A program over all operations on tiles whose extents are not powers of two."""
    return _program(number, f"odd program {number}", odd=True)


def u64_program(number: int) -> Program:
    """A program over all operations of which many tiles are u64."""
    return _program(number, f"u64 program {number}", odd=number % 4 == 3, dtypes=WITH_U64)


def _program(number: int, seed: str, *, odd: bool, dtypes: tuple[str, ...] = INTEGERS + FLOATS) -> Program:
    r = random.Random(seed)
    mode = r.choice(["sums", "sums", "products", "smooth", "smooth"])
    draft = new_draft(r, mode, odd=odd)
    draft.tiles.dtypes = dtypes
    for _ in range(r.choice([1, 2, 2, 3])):
        add_input(draft)
    for step in r.sample(STEPS, r.choice([1, 2, 3])):
        step(draft)
    for _ in range(r.choice([1, 1, 2])):
        add_output(draft)
    return finished(draft, number, mode)


def new_draft(r: random.Random, mode: str, *, odd: bool = False) -> Draft:
    """A program with a grid and nothing else."""
    tiles = Tiles(r, [], mode=mode, folds=(3, 5, 7, 12, 24) if odd else (2, 4, 8, 16))
    draft = Draft(r, tiles, odd=odd)
    draft.dims["N"] = r.randint(1, 3)
    draft.head.append("grid(N)")
    draft.line("b = bid(0)")
    return draft


def finished(draft: Draft, number: int, mode: str) -> Program:
    """The finished program of a draft."""
    dims = "".join(f'class {name}(Dim):\n    """extent {name}"""\n\n\n' for name in sorted(draft.dims))
    scalars = [f"{name}: i32" for name in draft.scalars]
    text = f"{dims}@tilec.kernel\ndef program({', '.join([*draft.parameters, *scalars])}):\n"
    text += "\n".join([*(f"    {line}" for line in draft.head), *draft.body]) + "\n"
    source = f'"""Random program {number}."""\n\n{imports(text)}\n\n{text}'
    warps = None if "mma" in draft.parts else draft.r.choice([1, 2, 3, 4, 5, 6, 8] if draft.odd else [1, 2, 4])
    return Program(
        number,
        source,
        mode != "smooth",
        draft.dims,
        draft.scalars,
        warps,
        tuple(sorted(draft.parts)),
        tuple(sorted(draft.small)),
        draft.provable,
    )


def add_input(d: Draft) -> None:
    """A tile of the block's own row, sometimes padded, gathered, bool or f8."""
    shape, roll = d.shape(), d.r.random()
    dtype = d.dtype()
    index = ", ".join(["b", *("0" for _ in shape)])
    if roll < 0.1:
        d.let(
            "boolean",
            shape,
            f"load({d.tensor('In', 'boolean', 'N', *shape)}, ({index}), shape={(1, *shape)}).reshape({tuple_text(shape)})",
        )
        d.parts.add("bool tile")
    elif roll < 0.2:
        narrow = d.r.choice(NARROW_FLOATS)
        text = f"load({d.tensor('In', narrow, 'N', *shape)}, ({index}), shape={(1, *shape)}).reshape({tuple_text(shape)})"
        d.let("f32", shape, f"{text}.astype(f32)")
        d.parts.add("f8")
    elif roll < 0.35:
        extent = d.name("M")
        d.dims[extent] = max(1, shape[-1] + d.r.choice([-3, -1, 0, 1, 5]))
        tensor = d.tensor("In", dtype, "N", *shape[:-1], extent)
        d.let(dtype, shape, f"load({tensor}, ({index}), shape={(1, *shape)}, pad=0).reshape({tuple_text(shape)})")
        d.parts.add("pad")
    else:
        tensor = d.tensor("In", dtype, "N", *shape)
        d.let(dtype, shape, f"load({tensor}, ({index}), shape={(1, *shape)}).reshape({tuple_text(shape)})")


def _compute(d: Draft) -> None:
    dtype, shape = d.dtype(), d.shape()
    if d.r.random() < 0.6 and d.tiles.scope:
        variable = d.r.choice(d.tiles.scope)
        dtype, shape = (variable.dtype, variable.shape) if variable.dtype != "boolean" else (dtype, variable.shape)
    d.let(dtype, shape, d.tiles.expression(dtype, shape, d.r.randint(1, 3)))


def _loop(d: Draft) -> None:
    """A loop with a trip count known only at launch, and one or two carried tiles."""
    trip_count = d.name("n")
    d.scalars[trip_count] = d.r.choice([0, 1, 2, 3])
    d.head.append(f"requires({trip_count} >= 0)")
    carried = [v for v in d.r.sample(d.tiles.scope, min(2, len(d.tiles.scope))) if v.shape]
    scope_before = list(d.tiles.scope)
    carried_copies = [
        Variable(d.let(v.dtype, v.shape, f"where({trip_count} > 7, {v.name}, {v.name})"), v.dtype, v.shape) for v in carried
    ]
    turn = d.name("turn")
    _header(d, turn, d.r.choice([trip_count, trip_count, f"{trip_count} - 1", "2"]))
    _exit(d, turn)
    for v in carried_copies or [None]:
        if v is None:
            d.line("pass")
        else:
            d.line(f"{v.name} = {d.tiles.expression(v.dtype, v.shape, 2)}")
    d.depth -= 1
    d.tiles.scope = scope_before + carried_copies
    d.parts.add("loop")


def _header(d: Draft, turn: str, stop: str) -> None:
    """The start of a loop, as a `while` now and then, by numbers of its own."""
    if random.Random(f"while {d.count} {d.body[-1]}").random() > 0.2:
        d.line(f"for {turn} in range({stop}):")
        d.depth += 1
        return
    d.line(f"{turn} = i32(-1)")
    d.line(f"while {turn} < {stop} - 1:")
    d.depth += 1
    d.line(f"invariant(-1 <= {turn})")
    d.line(f"{turn} = {turn} + 1")
    d.parts.add("while")


def _exit(d: Draft, turn: str) -> None:
    """An exit of the loop now and then, by numbers of its own: the programs without one stay as they were."""
    r = random.Random(f"exit {d.count} {d.body[-1]}")
    if r.random() < 0.25:
        numbers = [v.name for v in d.tiles.scope if not v.shape and v.dtype in ("i32", "u32", "i16", "i8", "u8", "u16", "i64")]
        conditions = [f"{name} % 3 == {r.randint(0, 2)}" for name in numbers] + [f"{turn} == {r.randint(0, 2)}"]
        d.line(f"if {r.choice(conditions)}:")
        d.line(f"    {r.choice(['break', 'break', 'continue'])}")
        d.parts.add("exit")


def _branch(d: Draft) -> None:
    """A branch on data, with tiles that both sides define."""
    target = d.r.choice([v for v in d.tiles.scope if v.shape] or [None])
    if target is None:
        return
    name = d.let(
        target.dtype, target.shape, target.name if target.dtype == "boolean" else f"where(b < 0, {target.name}, {target.name})"
    )
    condition = d.tiles.scalar_condition()
    d.provable = False
    d.line(f"if {condition}:")
    d.depth += 1
    d.line(f"{name} = {d.tiles.expression(target.dtype, target.shape, 2)}")
    d.depth -= 1
    if d.r.random() < 0.5:
        d.line("else:")
        d.depth += 1
        d.line(f"{name} = {d.tiles.expression(target.dtype, target.shape, 2)}")
        d.depth -= 1
    d.parts.add("branch")


def _gather(d: Draft) -> None:
    """Elements of the block's own row at an index computed from data, clamped to the row."""
    shape, dtype = d.r.choice([s for s in d.shapes() if len(s) == 1]), d.dtype()
    extent = d.r.choice([1, 3, 8, 33])
    integers = d.r.choice([k for k in d.tiles.dtypes if k in BITS])
    index = f"({d.tiles.expression(integers, shape, 2)}).astype(i32)"
    clamped_index = d.r.choice([f"({index}) % {extent}", f"minimum(maximum({index}, 0), {extent - 1})"])
    access = "In" if d.r.random() < 0.7 else "InOut"
    d.let(dtype, shape, f"gather({d.tensor(access, dtype, 'N', extent)}, (b, {clamped_index}))")
    d.parts.add("gather")
    d.provable = False


def _scatter(d: Draft) -> None:
    """Stores lanes to the block's own row in another order; some are out of bounds and masked."""
    shape, dtype = d.r.choice([(40,), (100,), (125,), (250,)] if d.odd else [(64,), (8,), (128,), (256,)]), d.dtype()
    (extent,) = shape
    orders = [f"{extent - 1} - arange({extent})", f"arange({extent}) ^ 5", f"(arange({extent}) * 3 + 1) % {extent}"]
    order = d.r.choice(orders if extent % 8 == 0 else orders[::2])
    row_length = d.r.choice([extent, extent // 2])
    d.provable = d.provable and "-" in order
    tensor = d.tensor("InOut", dtype, "N", row_length)
    d.line(
        f"scatter({tensor}, (b, {order}), {d.tiles.expression(dtype, shape, 2)}{', mask=True' if row_length < extent else ''})"
    )
    d.parts.add("scatter")


def _atomic(d: Draft) -> None:
    """Combines integers and exact float maxima of all blocks in one tile."""
    dtype = d.r.choice(["i32", "u32", "i64", "f32"]) if "u64" not in d.tiles.dtypes else "u64"
    kind = d.r.choice(["atomic_max", "atomic_min"] + ([] if dtype == "f32" else ["atomic_add"] * 2))
    shape = d.r.choice([s for s in d.shapes() if len(s) == 1])
    start = d.r.choice([0, 1])
    tensor = d.tensor("Atomic", dtype, *shape)
    d.line(f"{kind}({tensor}, {d.tiles.expression(dtype, shape, 2)}, offset={start}{', mask=True' if start else ''})")
    d.parts.add("atomic")
    _atomic_at_positions(d, dtype, shape)


def _atomic_at_positions(d: Draft, dtype: str, shape: Shape) -> None:
    """The same at positions, several of which are one element, and some outside. It draws from another source, so that programs
    of a number stay what they were; nobody uses the old values, which depend on the order."""
    r, (width,) = random.Random(f"{d.count} {dtype} {shape}"), shape
    kind = r.choice(["max", "min"] if dtype == "f32" else BOX_KINDS)
    index = r.choice([f"arange({width}) % 3", f"arange({width}) ^ 3", f"(arange({width}) - 2) // 2"])
    value = r.choice([v.name for v in d.tiles.scope if v.dtype == dtype and v.shape in (shape, (1,), ())] or ["1"])
    rows = r.choice([[], [], [2]])
    indices = f"({r.choice(['0', '1', f'arange({width}) % 2'])}, {index})" if rows else index
    d.line(f"atomic_{kind}({d.tensor('Atomic', dtype, *rows, 5)}, {value}, at={indices}, mask=True)")
    d.parts.add("atomic at positions")


def _product(d: Draft) -> None:
    """A matrix product, in one step or in a loop that is staged through shared memory."""
    dtype = d.r.choice(["bf16", "f16"])
    rows, columns, inner = d.r.choice([16, 32, 64]), d.r.choice([16, 32]), d.r.choice([16, 32])
    if d.odd:
        rows, columns, inner = d.r.choice([16, 48, 96]), d.r.choice([8, 24, 40]), d.r.choice([48, 80])
    steps = d.r.choice([1, 2, 3])
    access = d.r.choice(["In", "In", "InOut"])
    other, sums = dtype, "f32"
    r = random.Random(f"narrow product {d.count} {len(d.body)} {rows} {inner}")
    if r.random() < 0.5:  # by numbers of its own: the programs without one stay as they were
        dtype, other = r.choice([("i8", "i8"), ("i8", "u8"), ("f8e4m3", "f8e4m3"), ("f8e5m2", "f8e4m3"), ("f32", "f32")])
        inner = max(1, inner // 32) * 32
        sums = "i32" if dtype == "i8" else "f32"
        d.parts.add(f"mma of {dtype}")
    a, w = d.tensor(access, dtype, "N", rows, inner * steps), d.tensor("In", other, inner * steps, columns)
    d.parts.add("mma")
    d.small |= {a, w} if sums == "f32" else set()
    d.line(f"acc = zeros(({rows}, {columns}), {sums})")
    d.line(f"for k in range({steps}):")
    d.line(f"    left = load({a}, (b, 0, k), shape=(1, {rows}, {inner})).reshape(({rows}, {inner}))")
    if d.r.random() < 0.3:
        d.line("    left = left + left")
    tf32 = ", tf32=True" if dtype == "f32" else ""
    d.line(f"    acc = mma(left, load({w}, (k, 0), shape=({inner}, {columns})), acc{tf32})")
    if access == "InOut" and d.r.random() < 0.7:
        low, high = ("-1", "2") if sums == "i32" else ("-1.0", "2.0")
        d.line(f"    store({a}, (b, 0, k), maximum(minimum(left, {high}), {low}).reshape((1, {rows}, {inner})))")
    d.tiles.scope.append(Variable("acc", sums, (rows, columns)))


STEPS: list[Callable[[Draft], None]] = [
    _compute, _compute, _compute, _loop, _loop, _branch, _gather, _scatter, _atomic, _product,
]  # fmt: skip


def add_output(d: Draft) -> None:
    """A result, stored whole or masked at the edge."""
    variable = d.r.choice(d.tiles.scope)
    dtype, shape = variable.dtype, variable.shape if variable.shape else (1,)
    if d.r.random() < 0.5:
        dtype, shape = d.dtype(), d.shape()
    value = f"({d.tiles.expression(dtype, shape, d.r.randint(0, 2))}).reshape({(1, *shape)})"
    index = ", ".join(["b", *("0" for _ in shape)])
    if d.r.random() < 0.2:
        extent = d.name("M")
        d.dims[extent] = max(1, shape[-1] - d.r.choice([0, 1, 3]))
        d.head.append(f"requires({extent} <= {shape[-1]})")
        d.line(f"store({d.tensor('Out', dtype, 'N', *shape[:-1], extent)}, ({index}), {value}, mask=True)")
        d.parts.add("mask")
    elif dtype in ("f32", "f16", "bf16") and d.r.random() < 0.1:
        narrow = d.r.choice(NARROW_FLOATS)
        d.line(f"store({d.tensor('Out', narrow, 'N', *shape)}, ({index}), ({value}).astype({narrow}))")
        d.parts.add("f8")
    else:
        d.line(f"store({d.tensor('Out', dtype, 'N', *shape)}, ({index}), {value})")
