"""Writes at computed positions, right and wrong: shares of a range, digits of a counter, ragged segments, two parts of a range,
lanes packed by prefix sums."""

from __future__ import annotations

from tests.soundness.sketch import Sketch

WRONG = 0.4
"""How often a kernel here is wrong."""


def shared(s: Sketch) -> None:
    """Each block writes a share of `each` elements, or both halves of it under conditions."""
    r = s.r
    rows = r.random() < 0.4
    length = r.choice(["N", "N", "12"])
    each, first, last, at = f"cdiv({length}, S)", "s * each", f"minimum((s + 1) * each, {length})", "j"
    each = r.choice([each, f"({length} + S - 1) // S", f"({length} - 1) // S + 1"])
    blocks = "S"
    if r.random() < WRONG:
        kind = r.randrange(6)
        each = r.choice([f"{length} // S", f"cdiv({length}, S + 1)", f"cdiv({length} - 1, S)"]) if kind == 0 else each
        first = r.choice(["s * each + 1", "(s + 1) * each", "s * (each - 1)"]) if kind == 1 else first
        ends = [f"minimum((s + 1) * each - 1, {length})", f"minimum((s + 1) * each, {length} - 1)", "(s + 1) * each",
                f"minimum((s + 1) * each + 1, {length})", f"minimum(s * each + each, {length} + 1)"]  # fmt: skip
        last = r.choice(ends) if kind in (2, 3) else last
        blocks = r.choice(["S + 1", "maximum(S - 1, 1)", "8"]) if kind == 4 else blocks
        at = r.choice(["j + 1", "j // 2", f"minimum(j, {length} - 2)"]) if kind == 5 else at
    elif r.random() < 0.2:
        at = f"{length} - 1 - j"
    s.dims += ["M"] * rows + ["N"] * (length == "N")
    s.parameters += [f"out: Out[f32, {'M, ' * rows}{length}]", f"S: {r.choice(['i32', 'i32', 'u8'])}"]
    s.head.append(f"requires(1 <= S, S <= {r.choice(['4', '40', '200'])})")
    if length == "N":
        s.head.append("requires(N <= 1000000)")
    s.head.append(f"grid({'M, ' * rows}{blocks.replace('maximum', 'max')})")
    s.line(f"b, s = {'bid(0), bid(1)' if rows else 'i32(0), bid(0)'}")
    s.line(f"each = {each}")
    s.line(f"for j in range({first}, {last}):")
    index = f"(b, {at})" if rows else at
    _maybe_halved(s, "        ", [f"store(out, {index}, 1.0)"], ["s", "j", "b"])


def _maybe_halved(s: Sketch, indent: str, write: list[str], names: list[str]) -> None:
    """The write, or two of it under conditions that are complements or almost so."""
    r = s.r
    s.indent = indent
    if r.random() < 0.5:
        s.body += [indent + line for line in write]
        return
    name = r.choice(names)
    tensor = s.name("x")
    quantity = r.choice([name, f"{name} % 2", f"({name} & 1)", f"({name} >> 1)", "v"])
    if quantity == "v":
        s.parameters.append(f"{tensor}: In[i32, 1]")
        s.line(f"v = load({tensor}, 0)")
    limit = r.choice(["1", "2"])
    other = ">=" if r.random() > 0.2 else ">"
    for condition in (f"{quantity} < {limit}", f"{quantity} {other} {limit}"):
        s.line(f"if {condition}:")
        s.body += [f"{indent}    {line}" for line in write]


def digits(s: Sketch) -> None:
    """An index of two or three axes from one counter: of blocks, of a loop or of lanes."""
    r = s.r
    axes = r.choice([2, 2, 3])
    kind = r.choice(["blocks", "loop", "lanes"])
    sizes = ["A", "B", "C"][:axes]
    if kind == "lanes" or r.random() < 0.4:
        sizes = [str(r.choice([2, 4] if kind == "lanes" else [1, 2, 3, 4])) for _ in range(axes)]
    s.dims += [size for size in sizes if not size.isdigit()]
    product = " * ".join(sizes)
    count = product
    parts = [f"t // {sizes[1]}", f"t % {sizes[1]}"]
    if axes == 3:
        parts = [f"t // ({sizes[1]} * {sizes[2]})", f"t // {sizes[2]} % {sizes[1]}", f"t % {sizes[2]}"]
    if kind == "lanes" and r.random() < 0.4:
        bits = [int(size).bit_length() - 1 for size in sizes]
        below = [sum(bits[k + 1 :]) for k in range(axes)]
        parts = [f"(t >> {shift}) & {int(size) - 1}" for shift, size in zip(below, sizes, strict=True)]
    if r.random() < WRONG:
        change = r.randrange(4)
        if change == 0:
            parts.reverse()
        elif change == 1:
            k = r.randrange(axes)
            parts[k] = parts[k].replace(sizes[-1], sizes[0])
        elif change == 2:
            count = r.choice([f"{product} - 1", f"{product} + 1", f"({product}) // 2"])
        else:
            parts[-1] = f"(t + 1) % {sizes[-1]}" if r.random() < 0.5 else parts[0]
    s.parameters.append(f"out: Out[f32, {', '.join(sizes)}]")
    index = ", ".join(parts)
    if kind == "lanes":
        total = 1
        for size in sizes:
            total *= int(size)
        s.head.append("grid(1)")
        s.line(f"t = arange({total})")
        s.line(f"scatter(out, ({index}), zeros(({total},), f32){r.choice(['', ', mask=True'])})")
        return
    if not count.replace(" * ", "").isdigit():
        s.head.append(f"requires({product} <= 100000)")
    s.head.append(f"grid({count})" if kind == "blocks" else "grid(1)")
    s.line("b = bid(0)")
    s.line("t = bid(0)" if kind == "blocks" else f"for t in range({count}):")
    _maybe_halved(s, "    " if kind == "blocks" else "        ", [f"store(out, ({index}), 1.0)"], ["t"])


def ragged(s: Sketch) -> None:
    """Each block writes a segment between two sorted offsets."""
    r = s.r
    s.dims += ["M", "N"]
    wrong = r.randrange(8) if r.random() < WRONG else -1
    flags = {0: "sorted=True", 1: "ends=True, sorted=True, distinct=True"}.get(wrong, "sorted=True, ends=True")
    high = "N" if wrong == 2 else "N + 1"
    low = "1" if wrong == 3 else "0"
    s.parameters += ["starts: In[i32, M + 1]", "out: Out[f32, N]"]
    s.head += ["requires(N <= 1000000)"] if r.random() < 0.5 else []
    s.head.append(f"values(starts, {low}, {high}, {flags})")
    s.head.append("grid(M)" if wrong != 4 else "grid(M + 1)" if r.random() < 0.5 else "grid(cdiv(M, 2))")
    s.line("b = bid(0)")
    s.line("first = load(starts, b)")
    s.line("last = load(starts, b + 1)")
    begin = "first + 1" if wrong == 5 else "first"
    end = "last - 1" if wrong == 6 else "last + 1" if wrong == 7 else "last"
    if r.random() < 0.3:
        s.line(f"for k in range({end} - first):" if wrong != 5 else "for k in range(1, last - first):")
        _maybe_halved(s, "        ", ["store(out, first + k, 1.0)"], ["b", "k", "first"])
        return
    if r.random() < 0.3:
        s.line(f"for k in range(cdiv({end} - {begin}, 4)):")
        s.line(f"    p = {begin} + k * 4 + arange(4)")
        s.line(f"    scatter(out, where(p < {end}, p, {r.choice(['-1', 'N'])}), zeros((4,), f32), mask=True)")
        return
    s.line(f"for j in range({begin}, {end}):")
    _maybe_halved(s, "        ", ["store(out, j, 1.0)"], ["b", "j", "first", "last"])


def parted(s: Sketch) -> None:
    """Two or three loops, or two boxes, one after the other, write the parts of a row."""
    r = s.r
    rows = r.random() < 0.6
    s.dims += ["M"] * rows + ["N"]
    s.head.append("grid(M)" if rows else "grid(1)")
    s.line("b = bid(0)")
    s.parameters.append(f"out: Out[f32, {'M, ' * rows}N]")
    cut = r.choice(["N // 2", "cdiv(N, 2)", "v", "S", "minimum(b, N)", "N - N % 4", "N // 4 * 4"])
    if cut == "v":
        s.parameters.append(f"x: In[i32, {'M' if rows else 1}]")
        s.line(f"v = load(x, {'b' if rows else 0})")
        if r.random() < 0.5:
            s.head.append("values(x, 0, N + 1)")
        else:
            cut = r.choice(["clamp(v, 0, N)", "minimum(maximum(v, 0), N)", "minimum(v, N)", "(v & 3) % N"])
    elif cut == "S":
        s.parameters.append("S: i32")
        s.head.append(r.choice(["requires(0 <= S, S <= N)", "requires(0 <= S, S <= N)", "requires(0 <= S)"]))
    wrong = r.random() < WRONG
    second = r.choice(["cut + 1", "maximum(cut - 1, 0)", "cut // 2"]) if wrong and r.random() < 0.5 else "cut"
    end = r.choice(["N - 1", "N + 1"]) if wrong and second == "cut" else "N"
    index = "(b, {})" if rows else "{}"
    s.line(f"cut = {cut}")
    s.line("for j in range(cut):")
    _maybe_halved(s, "        ", [f"store(out, {index.format('j')}, 1.0)"], ["j", "b"])
    s.indent = "    "
    backward = r.random() < 0.25
    s.line(f"for i in range({second}, {end}):" if not backward else f"for i in range({end} - {second}):")
    s.line(f"    store(out, {index.format('N - 1 - i' if backward else 'i')}, 2.0)")


def packed(s: Sketch) -> None:
    """Lanes in a new order: those with a property first, by prefix sums, or the order of a sort."""
    r = s.r
    width = r.choice([2, 4, 8])
    dtype = r.choice(["i32", "u8", "f32"])
    rows = r.random() < 0.5
    s.dims += ["M"] * rows
    s.head.append("grid(M)" if rows else "grid(1)")
    s.line("b = bid(0)")
    s.parameters += [f"x: In[{dtype}, {'M, ' * rows}{width}]", f"out: Out[f32, {'M, ' * rows}{width}]"]
    s.line(f"t = load(x, {'(b, 0)' if rows else '0'}, shape={f'(1, {width})' if rows else width}).reshape(({width},))")
    s.line("flag = where(t > 1, 1, 0)")
    wrong = r.random() < WRONG
    if r.random() < 0.5:
        s.line(f"up = cumsum(flag, 0{'' if wrong and r.random() < 0.5 else ', exclusive=True'})")
        s.line(f"down = cumsum(1 - flag, 0{', exclusive=True' if not wrong or r.random() < 0.5 else ''})")
        total = "tilec.sum(flag)" if not wrong or r.random() < 0.5 else str(width // 2)
        s.line(f"at = where(t {'>' if not wrong or r.random() < 0.5 else '>='} 1, up, {total} + down)")
    else:
        order = r.choice(["argsort(t, 0)", "argsort(t, 0, descending=True)", "argsort(flag, 0)", "argsort(argsort(t, 0), 0)"])
        s.line(f"at = {order}")
        if wrong:
            changes = ["at // 2", f"minimum(at, {max(0, width - 2)})", f"at ^ {width}", "sort(flag, 0)", "cummax(at, 0)"]
            s.line(f"at = {r.choice(changes)}")
        elif r.random() < 0.4:
            s.line(f"at = {r.choice([f'{width - 1} - at', 'flip(at, 0)', 'at ^ 1', 'butterfly(at, 0, 1)'])}")
    index = "(b, {})" if rows else "{}"
    if r.random() < 0.5:
        s.line(f"scatter(out, {index.format('at')}, zeros(({width},), f32){r.choice(['', ', mask=True'])})")
        return
    limit = r.choice(["1", "2"])
    quantity = r.choice(["at", "t", "flag", "arange(" + str(width) + ")"])
    for sign in ("<", ">=" if not wrong or r.random() < 0.5 else ">"):
        at = index.format(f"where({quantity} {sign} {limit}, at, {r.choice(['-1', str(width)])})")
        s.line(f"scatter(out, {at}, zeros(({width},), f32), mask=True)")
