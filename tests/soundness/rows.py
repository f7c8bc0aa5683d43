"""Kernels about integers that differ in each row: some promise it of what they leave, others rely on it. Right and wrong ones.

A row is a tile that a block stores, lanes of several blocks, or iterations of a loop. Its numbers are lanes, positions that a
sort takes keys from, numbers that keys contain, or what another tensor is declared to hold. A wrong kernel makes two of them
equal for some contents: keys that tie, numbers that keys have too few bits for, halves, clamps, rows that are columns of
another tensor, a second store of other numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.soundness.sketch import Sketch, WideKernel

if TYPE_CHECKING:
    import random

WRONG = 0.5
"""How often a kernel here is made wrong, if it can be."""


def rows(r: random.Random) -> WideKernel:
    """A kernel with one promise or one declaration of integers that differ in each row."""
    s = Sketch(r, dims=["N"])
    part = r.choice([_keys, _keys, _padded, _padded, _measured, _lanes, _handed_on, _handed_on, _loop, _readers, _readers])
    part(s)
    kernel = s.kernel()
    kernel.schedule = " ".join(["rows", part.__name__.removeprefix("_"), *sorted(set(s.parts))])
    return kernel


def _is_wrong(s: Sketch) -> bool:
    return s.r.random() < WRONG


def _promise(s: Sketch, width: int | str, high: int | str, axes: str = "N, ") -> None:
    access = s.r.choice(["Out", "Out", "InOut"])
    s.parameters.append(f"out: {access}[i32, {axes}{width}]")
    s.head.append(f"ensures(out, 0, {high}, distinct_in_rows=True)")


def _stored(s: Sketch, width: int, high: int, text: str) -> None:
    """A row for each block, of a tensor of two axes or three; perhaps twice, or in a loop."""
    r, kind = s.r, s.r.choice(["row", "row", "row", "three axes", "twice", "in a loop"])
    s.line(f"d = {text}")
    if kind == "three axes":
        s.head.append("grid(N, 2)")
        _promise(s, width, high, "N, 2, ")
        s.line(f"store(out, (bid(0), bid(1), 0), d.reshape((1, 1, {width})))")
        return
    s.head.append("grid(N)")
    _promise(s, width, high)
    s.parts.append(kind)
    if kind in ("twice", "in a loop"):
        s.parameters[-1] = s.parameters[-1].replace(" Out[", " InOut[")
    if kind == "in a loop":
        wrong = f"where(arange({width})[None, :] < j, d, {high - 1} - d)"
        s.line(f"for j in range({r.choice([1, 2])}):")
        s.line(f"    store(out, (bid(0), 0), {wrong if _is_wrong(s) and width > 1 else f'{high - 1} - d'})")
        return
    s.line("store(out, (bid(0), 0), d)")
    if kind == "twice":
        s.line(f"store(out, (bid(0), 0), {r.choice(['0', str(high - 1)]) if _is_wrong(s) else 'd'})")


def _loaded(s: Sketch, width: int, high: str) -> None:
    s.parameters.append(f"x: In[i32, N, {width}]")
    s.head.append(f"values(x, 0, {high})")
    s.line(f"v = load(x, (bid(0), 0), shape=(1, {width}))")


def _keys(s: Sketch) -> None:
    """Numbers that the keys of a sort contain."""
    r, width = s.r, s.r.choice([2, 4, 8])
    _loaded(s, width, "3")
    base = width * r.choice([1, 1, 2, 16])
    inside = r.choice(["i", f"{width - 1} - i", "i ^ 1", f"(i + 1) % {width}"])
    packed, taken = f"v * {base} + {inside}", f"k % {base}"
    if _is_wrong(s):
        s.parts.append("wrong")
        packed, taken = r.choice([
            (f"v * {base}", taken), (f"v * {base} + {inside} // 2", taken), (packed, f"k % {width // 2}"),
            (packed, f"(k // 2) % {base}"), (packed, f"minimum(k % {base}, {max(0, width - 2)})"),
            (f"(v + {inside}) * {base}", taken), (f"v * {max(1, base // 2)} + {inside}", taken), (packed, f"k // {base}"),
            (f"v + {inside}", taken), (packed, f"(k + i) % {base}"), (packed, f"(k * 2) % {base}"),
        ])  # fmt: skip
    s.line(f"i = arange({width})[None, :]")
    s.line(f"k = sort({packed}, 1{r.choice(['', ', descending=True'])})")
    _stored(s, width, base, taken)


def _padded(s: Sketch) -> None:
    """The first elements of a sort whose keys are apart in two parts of the axis, or seem so."""
    r, width = s.r, s.r.choice([4, 8])
    part = r.choice([1, 2, 3, width - 1])
    count = r.choice([one for one in (1, 2, 4) if one <= part])
    _loaded(s, width, "3")
    least, other = r.choice([(1, 0), (0, 0), (5, 4), (2, 2)])
    low = f"{width - 1} - i"
    condition, limit, is_descending = f"i < {part}", part - 1, True
    if r.random() < 0.3:  # the other side, or smaller keys first
        condition, low, limit = f"i >= {width - part}", "i", part - 1
    if r.random() < 0.3:
        is_descending, low = False, f"{width - 1} - ({low})"
    above, below = f"maximum(v, {least})", str(other)
    if not is_descending:
        above, below = f"minimum(v, {2 - min(2, least)})", str(max(2 - other, 2 - min(2, least)))
    if _is_wrong(s):
        s.parts.append("wrong")
        change = r.randrange(5)
        if change == 0:
            above = "v"
        elif change == 1:
            below = "v"
        elif change == 2:
            is_descending = not is_descending
        elif change == 3:
            count = r.choice([one for one in (2, 4, 8) if part < one <= width] or [width])
        else:
            low = r.choice(["i // 2", "0 * i", f"{width - 1} - ({low})"])
    s.line(f"i = arange({width})[None, :]")
    s.line(f"c = where({condition}, {above}, {below})")
    s.line(f"k = sort(c * {width} + {low}, 1{', descending=True' if is_descending else ''})")
    taken = f"k % {width}" if low == "i" else f"{width - 1} - k % {width}"
    if condition.startswith("i >="):
        taken = f"({taken}) - {width - part}" if r.random() < 0.8 else taken
    s.head.append("grid(N)")
    _promise(s, count, width)
    s.line(f"store(out, (bid(0), 0), minimum(maximum({taken}, 0), {r.choice([limit, width - 1])}), mask=True)")


def _measured(s: Sketch) -> None:
    """The first elements of such a sort, where keys of both parts follow from a number of the row, or of each element."""
    r, width = s.r, s.r.choice([4, 8])
    part = r.choice([2, 3, width - 1])
    _loaded(s, width, "3")
    whole = "minimum(maximum({}.astype(i32), 0), 3)"
    of_row, of_each = whole.format("load(y, (bid(0), 0))"), whole.format(f"load(y, (bid(0), 0), shape=(1, {width}))")
    s.parameters.append(f"y: In[f32, N, {width}]")
    unknown, above, below = of_row, r.choice(["v + w + 1", "w + 1", "maximum(v, w) + 1"]), "w"
    if _is_wrong(s):
        s.parts.append("wrong")
        unknown, above, below = r.choice([
            (of_each, above, below), (of_row, "v + w", below), (of_row, "v + 1", below), (of_row, above, "v"),
            (of_row, below, above), (of_row, "maximum(v, w)", below), (of_each, "v + 4", "w + 2"),
        ])  # fmt: skip
    s.line(f"i, w = arange({width})[None, :], {unknown}")
    s.line(f"c = where(i < {part}, {above}, {below})")
    s.line(f"k = sort(c * {width} + i, 1, descending=True)")
    s.head.append("grid(N)")
    _promise(s, 2, width)
    s.line(f"store(out, (bid(0), 0), minimum(k % {width}, {part - 1}), mask=True)")


def _lanes(s: Sketch) -> None:
    """Lanes of blocks, a row of which has its number of elements at launch."""
    r, width = s.r, s.r.choice([1, 2, 4])
    s.dims.append("M")
    s.head += ["requires(M <= 1000)", f"grid(N, cdiv(M, {width}))"]
    s.line(f"e = bid(1) * {width} + arange({width})")
    right = ["e", "M - 1 - e", "where(e > 0, e - 1, M - 1)"]
    wrong = ["bid(1) + 0 * e", "e // 2", "e % 3", "minimum(e, 2)", "e & 5", f"arange({width})", "bid(0) % M + 0 * e"]
    text, index = r.choice(wrong if _is_wrong(s) else right), "(bid(0), e)"
    _promise(s, "M", "M")
    if r.random() < 0.3:
        index = r.choice(["(bid(0), M - 1 - e)", "(N - 1 - bid(0), e)"])
    s.line(f"scatter(out, {index}, minimum(maximum({text}, 0), M - 1), mask=True)")


def _handed_on(s: Sketch) -> None:
    """Numbers of another tensor, of whose contents something is declared."""
    r, width = s.r, s.r.choice([1, 2, 4])
    word = r.choice(["distinct_in_rows", "distinct_in_rows", "distinct_in_rows", "distinct"])
    high = "9" if word == "distinct_in_rows" else f"N * {width} + 3"
    s.parameters.append(f"x: In[i32, N, {width}]")
    s.head += [f"values(x, 0, {high}{', ' + word + '=True' if r.random() > WRONG / 4 else ''})", "requires(N <= 100)"]
    right = ["v", f"{high} - 1 - v", "v * 2", "v + 3", f"v * {width} + i"]
    wrong = ["v // 2", "v % 4", "minimum(v, 3)", "v + i", "v & 6", "v - i + 3", "v * i"]
    text = r.choice(wrong if _is_wrong(s) else right)
    source = r.choice(["(b, i)", "(b, i)", f"(b, {width - 1} - i)", "(N - 1 - b, i)"])
    if r.random() < WRONG / 4:
        source = r.choice(["(b, i // 2)", "(b, 0 * i)", "((b + i) % N, i)"])
    s.head.append("grid(N)")
    s.line(f"b, i = bid(0), arange({width})")
    s.line(f"v = gather(x, {source})")
    if r.random() < 0.2:  # the elements of a column
        s.parts.append("columns")
        _promise(s, "N", f"({high}) * {max(2, width)} + 4", f"{width}, ")
        s.line(f"scatter(out, (i, b + 0 * i), {text})")
        return
    _promise(s, width, f"({high}) * {max(2, width)} + 4")
    s.line(f"scatter(out, (b{' + 0 * i'}, i), {text})")


def _loop(s: Sketch) -> None:
    """A number for each iteration of a loop."""
    r, width = s.r, s.r.choice([2, 4])
    _loaded(s, width, "3")
    right = ["j", f"{width - 1} - j", "j ^ 1"]
    wrong = ["j // 2", "j % 2", f"(j + load(x, (bid(0), j))) % {width}", f"minimum(j, {max(0, width - 2)})", "bid(0) % 2"]
    text, column = r.choice(wrong if _is_wrong(s) else right), r.choice(["j", f"{width - 1} - j"])
    s.head.append("grid(N)")
    _promise(s, width, width)
    s.line(f"for j in range({width}):")
    s.line(f"    store(out, (bid(0), {column}), {text})")


def _readers(s: Sketch) -> None:
    """Elements written at the columns that another tensor holds."""
    r, width = s.r, s.r.choice([1, 2, 4])
    s.dims.append("M")
    words = ["distinct_in_rows=True", "distinct_in_rows=True", "distinct=True"]
    flags = ", " + r.choice(words) if r.random() > WRONG / 3 else ""
    s.parameters += [f"columns: In[i32, N, {width}]", "out: InOut[f32, N, M]"]
    s.head += ["requires(N <= 100, M <= 100)", f"values(columns, 0, M{flags})"]
    by_block = r.random() < 0.5
    if by_block:
        s.head.append(f"grid(N, {width})")
        s.line("b, i = bid(0), bid(1)")
        s.line("c = load(columns, (b, i))")
    else:
        s.head.append("grid(N)")
        s.line(f"b, i = bid(0), arange({width})")
        s.line("c = gather(columns, (b, i))")
    row, column = "b", "c"
    if _is_wrong(s):
        s.parts.append("wrong")
        row, column = r.choice([("b // 2", "c"), ("0", "c"), ("b", "c // 2"), ("b", "(c + i) % M"), ("N - 1 - b", "c"),
                                ("b", "minimum(c, 1) % M"), ("b", "M - 1 - c")])  # fmt: skip
    if by_block:
        s.line(f"store(out, ({row}, {column}), 1.0)")
    else:
        s.line(f"scatter(out, ({row} + 0 * i, {column}), zeros(({width},), f32))")
