"""Random kernels of several ranks that are right, or nearly: what they do with the parts of all ranks after the meet, and with
their own tensors before it."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.rank_soundness.drafts import FLOATS, Draft
from tests.soundness.sketch import WideKernel


def random_rank_kernel(r: random.Random) -> WideKernel:
    """A kernel of one or two schedules, with work before the meet in half of all."""
    draft = Draft(r)
    for schedule in r.sample(sorted(SCHEDULES), r.choice((1, 1, 1, 2))):
        draft.names.append(schedule)
        SCHEDULES[schedule](draft)
    for early in r.sample(sorted(EARLY), r.choice((0, 0, 1, 1, 2))):
        draft.names.append(early)
        EARLY[early](draft)
    return draft.kernel()


def _sum(draft: Draft, x: str, read: Callable[[str], str], shape: str, dtype: str) -> list[str]:
    """Lines that leave what they read of the parts `x` in the f32 tile `v`; `read` makes a load of a part."""
    r, ranks = draft.r, draft.ranks
    cast = "" if dtype == "f32" else ".astype(f32)"
    zero = f"zeros({shape}, f32)" if shape else "0.0"
    one = r.randrange(ranks)
    match r.choice(("first and others", "counted", "one", "by rank", "backwards", "ring", "alternating")):
        case "first and others":
            return [f"v = {read(f'{x}[0]')}{cast}", f"for part in {x}[1:]:", f"    v = v + {read('part')}{cast}"]
        case "counted":
            return [f"v = {zero}", f"for k in static_range({ranks}):", f"    v = v + {read(f'{x}[k]')}{cast}"]
        case "one":
            return [f"v = {read(f'{x}[{one}]')}{cast}"]
        case "by rank":
            other = (one + 1) % ranks
            return [f"v = {zero}", f"if rank == {one}:", f"    v = {read(f'{x}[{one}]')}{cast}", "else:",
                    f"    v = {read(f'{x}[{other}]')}{cast}"]  # fmt: skip
        case "backwards":
            return [f"v = {zero}", f"for part in {x}[::-1]:", f"    v = v + {read('part')}{cast}"]
        case "ring":
            lines = [f"v = {zero}", f"for step in range({ranks}):", f"    source = (rank + step) % {ranks}"]
            for k in range(ranks):
                lines += [f"    if source == {k}:", f"        v = v + {read(f'{x}[{k}]')}{cast}"]
            return lines
        case _:
            lines = [f"v = {read(f'{x}[0]')}{cast}"]
            return lines + [f"v = v {'+-'[k % 2]} {read(f'{x}[{k}]')}{cast}" for k in range(1, ranks)]


def _back(dtype: str) -> str:
    return "v" if dtype == "f32" else f"v.astype({dtype})"


def _pad(draft: Draft, extent: str, tile: int) -> tuple[str, str, str]:
    """The number of tiles of an axis, `pad` of a load and `mask` of a store: for a ragged axis, or one that is required not to
    be."""
    if tile == 1:
        return extent, "", ""
    if draft.r.random() < 0.3:
        draft.head.append(f"requires({extent} % {tile} == 0)")
        return f"({extent} // {tile})", "", ""
    return f"cdiv({extent}, {tile})", ", pad=0", ", mask=True"


def summed(draft: Draft) -> None:
    """An all-reduce of a vector."""
    t, dtype = draft.tile, draft.dtype
    n = draft.dim("N")
    x, out = draft.parts(dtype, n), draft.tensor(draft.r.choice(("Out", "Out", "InOut")), dtype, n)
    tiles, pad, mask = _pad(draft, n, t)
    if draft.r.random() < 0.25 and t > 1:
        body = _sum(draft, x, lambda part: f"gather({part}, (i * {t} + arange({t}),), pad=0)", f"({t},)", dtype)
        tiles, mask = f"cdiv({n}, {t})", ", mask=True"
    else:
        body = _sum(draft, x, lambda part: f"load({part}, i, shape={t}{pad})", f"({t},)", dtype)
    draft.after += draft.steps(tiles, [*body, f"store({out}, i, {_back(dtype)}{mask})"])


def added(draft: Draft) -> None:
    """A residual of rows and columns that grows by the sum of all parts, or a sum that is scaled by a weight."""
    t, dtype = draft.tile, draft.dtype
    rows, columns = draft.dim("T", 1 << 10), draft.dim("N", 1 << 10)
    x = draft.parts(dtype, rows, columns)
    y = draft.tensor("InOut", dtype, rows, columns)
    tiles, pad, mask = _pad(draft, columns, t)
    shape = f"(1, {t})"
    body = ["row, column = i // columns, i % columns"]
    body += _sum(draft, x, lambda part: f"load({part}, (row, column), shape={shape}{pad})", shape, dtype)
    cast = "" if dtype == "f32" else ".astype(f32)"
    if draft.r.random() < 0.3:
        w = draft.tensor("In", "f32", columns)
        body.append(f"v = v * load({w}, column, shape={t}{pad})[None, :]")
    body.append(f"v = v + load({y}, (row, column), shape={shape}{pad}){cast}")
    draft.after += [
        f"columns = {tiles}",
        *draft.steps(f"{rows} * columns", [*body, f"store({y}, (row, column), {_back(dtype)}{mask})"]),
    ]


def gathered(draft: Draft) -> None:
    """All parts one after the other along the first axis."""
    t, dtype, ranks = draft.tile, draft.dtype, draft.ranks
    p, n = draft.dim("P", 1 << 10), draft.dim("N", 1 << 10)
    x = draft.parts(dtype, p, n)
    out = draft.tensor("Out", dtype, f'"{ranks} * {p}"', n)
    tiles, pad, mask = _pad(draft, n, t)
    index = draft.r.choice((f"k * {p} + j", f"k * {p} + j", f"{p} * k + j"))
    body = [f"for j in range({p}):", f"    for k in static_range({ranks}):",
            f"        part = load({x}[k], (j, i), shape=(1, {t}){pad})",
            f"        store({out}, ({index}, i), part{mask})"]  # fmt: skip
    draft.after += draft.steps(tiles, body)


def own_slice(draft: Draft) -> None:
    """Each rank sums the slice of the parts that is its own."""
    t, dtype, ranks = draft.tile, draft.dtype, draft.ranks
    s = draft.dim("S", 1 << 10)
    x = draft.parts(dtype, f'"{ranks} * {s}"')
    out = draft.tensor(draft.r.choice(("Out", "InOut")), dtype, s)
    index, tiles, shape = f"rank * {s} + i", s, ""
    if draft.r.random() < 0.5:
        draft.head.append(f"requires({s} % {t} == 0)")
        index, tiles, shape = f"offset=rank * {s} + i * {t}, shape={t}", f"({s} // {t})", f"({t},)"
    write = f"store({out}, i, {_back(dtype)})"
    lines = _sum(draft, x, lambda part: f"load({part}, {index})", shape, dtype)
    draft.after += draft.steps(tiles, [*lines, write])


def placed_slice(draft: Draft) -> None:
    """Each rank updates the slice of its own tensor that has its number."""
    dtype, ranks = draft.dtype, draft.ranks
    s = draft.dim("S", 1 << 10)
    x, y = draft.parts(dtype, s), draft.tensor("InOut", dtype, f'"{ranks} * {s}"')
    body = _sum(draft, x, lambda part: f"load({part}, i)", "", dtype)
    index = draft.r.choice((f"rank * {s} + i", f"rank * {s} + i", f"({ranks} - 1 - rank) * {s} + i"))
    draft.after += draft.steps(s, [*body, f"store({y}, {index}, {_back(dtype)})"])


def transposed(draft: Draft) -> None:
    """The second axis of a part first."""
    dtype, one = draft.dtype, draft.r.randrange(draft.ranks)
    rows, columns = draft.dim("T", 1 << 10), draft.dim("N", 1 << 10)
    x, out = draft.parts(dtype, rows, columns), draft.tensor("Out", dtype, columns, rows)
    body = [f"for j in range({rows}):", f"    v = load({x}[{one}], (j, i), shape=(1, 1))",
            f"    store({out}, (i, j), v)"]  # fmt: skip
    draft.after += draft.steps(columns, body)


def indexed(draft: Draft) -> None:
    """Elements of a part, at places that another part has, or a tensor of the rank."""
    r = draft.r
    n, m = draft.dim("N"), draft.dim("M")
    x, out = draft.parts("f32", m), draft.tensor("Out", "f32", n)
    if r.random() < 0.5:
        ids = draft.parts("i32", n)
        draft.head += [f"values({ids}[{k}], 0, {m})" for k in range(draft.ranks)]
        source = f"{ids}[{r.randrange(draft.ranks)}]"
    else:
        source = draft.tensor("In", "i32", n)
        draft.head.append(f"values({source}, 0, {m})")
    at = f"load({source}, i)"
    if r.random() < 0.5:
        at = f"min(max({at}, 0), {m} - 1)"
    body = [f"at = {at}", *_sum(draft, x, lambda part: f"load({part}, at)", "", "f32")]
    draft.after += draft.steps(n, [*body, f"store({out}, i, v)"])


def counted(draft: Draft) -> None:
    """Sums of the parts, added to an atomic tensor of the rank."""
    n, t = draft.dim("N"), draft.tile
    x, a = draft.parts("f32", n), draft.tensor("Atomic", "f32", n if draft.r.random() < 0.5 else t)
    to_all = a and draft.parameters[-1].endswith(f"{t}]") and not draft.parameters[-1].endswith(f"{n}]")
    tiles, pad, mask = _pad(draft, n, t)
    body = _sum(draft, x, lambda part: f"load({part}, i, shape={t}{pad})", f"({t},)", "f32")
    draft.after += draft.steps(tiles, [*body, f"atomic_add({a}, 0, v)" if to_all else f"atomic_add({a}, i, v{mask})"])


def a_block_each(draft: Draft) -> None:
    """A tile for each block, of those that there are."""
    dtype, t = draft.dtype, draft.tile
    n = draft.dim("N")
    draft.head.append(f"requires({n} <= {draft.blocks * t})")
    x, out = draft.parts(dtype, n), draft.tensor("Out", dtype, n)
    body = _sum(draft, x, lambda part: f"load({part}, b, shape={t}, pad=0)", f"({t},)", dtype)
    lines = [*body, f"store({out}, b, {_back(dtype)}, mask=True)"]
    guarded = draft.r.random() < 0.4
    draft.after += [f"if b * {t} < {n}:", *(f"    {line}" for line in lines)] if guarded else lines


def kept_rows(draft: Draft) -> None:
    """Rows of a scratch tensor, written before the meet or after it, and read after it."""
    t = draft.tile
    n = draft.dim("N")
    s, x, out = (
        draft.tensor("Scratch", "f32", draft.blocks, t),
        draft.parts("f32", n),
        draft.tensor("Out", "f32", draft.blocks, t),
    )
    write = f"store({s}, (b, 0), zeros((1, {t}), f32))"
    (draft.before if draft.r.random() < 0.6 else draft.after).append(write)
    one = draft.r.randrange(draft.ranks)
    draft.after += [
        f"kept = load({s}, (b, 0), shape=(1, {t}))",
        f"store({out}, (b, 0), kept + load({x}[{one}], b % cdiv({n}, {t}), shape={t}, pad=0)[None, :])",
    ]


def nearest(draft: Draft) -> None:
    """A neighbour of each element, at the ends the element itself."""
    n, one = draft.dim("N"), draft.r.randrange(draft.ranks)
    x, out = draft.parts("f32", n), draft.tensor("Out", "f32", n)
    at = draft.r.choice((f"min(i + 1, {n} - 1)", "max(i - 1, 0)", f"{n} - 1 - i", f"(i + rank) % {n}", f"(i + 1) % {n}"))
    body = [f"at = {at}", f"v = load({x}[{one}], at) + load({x}[{(one + 1) % draft.ranks}], i)", f"store({out}, i, v)"]
    draft.after += draft.steps(n, body)


def helped(draft: Draft) -> None:
    """The sum of all parts by a tile function, which gets them as a tuple."""
    name, t, dtype = draft.name("sum_of"), draft.tile, draft.dtype
    n = draft.dim("N")
    x, out = draft.parts(dtype, n), draft.tensor("Out", dtype, n)
    draft.helpers.append(
        f"@tilec.function\ndef {name}(x, i):\n    total = load(x[0], i, shape={t}, pad=0).astype(f32)\n"
        f"    for part in x[1:]:\n        total = total + load(part, i, shape={t}, pad=0).astype(f32)\n    return total"
    )
    body = [f"v = {name}({x}, i)", f"store({out}, i, {_back(dtype)}, mask=True)"]
    draft.after += draft.steps(f"cdiv({n}, {t})", body)


def searched(draft: Draft) -> None:
    """The first element of a part that is positive, found by a loop that ends there, or by as many steps as the rank has."""
    n, one = draft.dim("N"), draft.r.randrange(draft.ranks)
    x, out, at = draft.parts("i32", n), draft.tensor("Out", "i32", draft.blocks), draft.name("place")
    steps = draft.r.choice((n, n, "rank", f"min(rank + b, {n})", f"min({n}, 3)"))
    index = "j" if steps != "rank" else draft.r.choice((f"min(j, {n} - 1)", f"j % {n}"))
    draft.after += [f"{at} = i32(0)", f"for j in range({steps}):", f"    if load({x}[{one}], {index}) > 0:", "        break",
                    f"    {at} = {index}", f"store({out}, b, load({x}[{(one + 1) % draft.ranks}], {at}))"]  # fmt: skip


def nothing(draft: Draft) -> None:
    """Nothing but the meet."""
    draft.names.append("only")


SCHEDULES: dict[str, Callable[[Draft], None]] = {
    one.__name__: one
    for one in (summed, added, gathered, own_slice, placed_slice, transposed, indexed, counted, a_block_each, kept_rows,
                nearest, searched, helped, nothing)
}  # fmt: skip


def reads_own(draft: Draft) -> None:
    """A sum over a tensor of the rank."""
    n, w, total = draft.dim("N"), draft.tensor("In", dtype := draft.r.choice(FLOATS), "N"), draft.name("total")
    cast = "" if dtype == "f32" else ".astype(f32)"
    draft.before += [f"{total} = 0.0", f"for j in range({n}):", f"    {total} = {total} + load({w}, j){cast}"]


def writes_own(draft: Draft) -> None:
    """A tensor of the rank that is written before the meet, and sometimes read after it."""
    n, y = draft.dim("N"), draft.tensor(draft.r.choice(("Out", "InOut")), "f32", "N")
    draft.before += draft.steps(n, [f"store({y}, j, 0.0)"], "j")


def looks_up(draft: Draft) -> None:
    """A search in a tensor of the rank, which ends."""
    n, w, at = draft.dim("N"), draft.tensor("In", "i32", "N"), draft.name("at")
    draft.before += [f"{at} = i32(0)", f"while {at} < {n}:", f"    invariant(0 <= {at})",
                     f"    if load({w}, {at}) > 3:", "        break", f"    {at} = {at} + 1"]  # fmt: skip


def branches(draft: Draft) -> None:
    """A branch by rank or block in which only a tensor of the rank is touched."""
    n, w, first = draft.dim("N"), draft.tensor("In", "f32", "N"), draft.name("first")
    test = draft.r.choice(("rank == 0", "b == 0", f"rank + b < {n}", f"{n} > 2"))
    draft.before += [f"{first} = 0.0", f"if {test}:", f"    {first} = load({w}, 0)"]


def never(draft: Draft) -> None:
    """A read of a part that no block of any rank executes."""
    r = draft.r
    n, x, early = draft.dim("N"), draft.parts("f32", "N"), draft.name("early")
    test = r.choice((f"rank >= {draft.ranks}", "rank < 0", f"b >= {draft.blocks}", "b < 0", f"{n} < 1"))
    draft.before += [f"{early} = 0.0", f"if {test}:", f"    {early} = load({x}[{r.randrange(draft.ranks)}], 0)"]


EARLY: dict[str, Callable[[Draft], None]] = {one.__name__: one for one in (reads_own, writes_own, looks_up, branches, never)}
