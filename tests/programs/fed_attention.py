"""Random attention, whose two products are back-to-back: a loop that carries a running maximum, a sum and an accumulator.

In: an empty draft. Out: all lines of the program, with a launch. Scores that nobody sees are minus infinity or far below all
others, and they are computed for all keys or only where a tile of keys is partly seen.
"""

from __future__ import annotations

from typing import Final

from tests.programs.fed_draft import Draft

HEAD_WIDTH: Final = 64
"""Elements of a head."""


def write(d: Draft) -> None:
    """Causal, or over all keys, perhaps from a key on that a launch names."""
    r = d.r
    d.rows, d.columns = (r.choice((128, 256)), 64) if d.tensor else (r.choice((64, 64, 128)), r.choice((32, 64)))
    causal, exponent = r.random() < 0.5, r.choice(["exp2", "exp2", "exp"])
    d.dims |= {"T": r.choice([1, 40, d.rows - 3, d.rows, d.rows + 5]), "S": d.columns * r.choice([1, 2, 3, 5])}
    d.dims["H"] = r.choice([1, 2])
    d.head += [f"grid(H, cdiv(T, {d.rows}))", f"requires(S % {d.columns} == 0 and S <= 1000000 and T <= 1000000)"]
    q, k, v = (d.add_tensor("In", d.element, f"{extent}, H, {HEAD_WIDTH}") for extent in "TSS")
    d.line("head, m = bid(0), bid(1)")
    d.line(f"query = load({q}, (m, head, 0), shape=({d.rows}, 1, {HEAD_WIDTH}), pad=0).reshape(({d.rows}, {HEAD_WIDTH}))")
    d.line(f"top = full(({d.rows},), {r.choice(['-60.0', '-tilec.inf'])}, f32)")
    d.line(f"total = zeros(({d.rows},), f32)")
    d.line(f"acc = zeros(({d.rows}, {HEAD_WIDTH}), f32)")
    end = f"min(cdiv(m * {d.rows} + {d.rows}, {d.columns}), cdiv(S, {d.columns}))" if causal else f"cdiv(S, {d.columns})"
    first = ""
    if r.random() < 0.2:  # perhaps past the end, so that there is no iteration
        first = d.add_scalar("i32", r.choice([0, 1, 4]))
        d.head.append(f"requires({first} >= 0 and {first} <= 1000)")
        d.parts.add("loop from a scalar")
    d.line(f"for j in range({first + ', ' if first else ''}{end}):")
    for name, tensor in (("key", k), ("value", v)):
        box = f"load({tensor}, (j, head, 0), shape=({d.columns}, 1, {HEAD_WIDTH}))"
        d.line(f"    {name} = {box}.reshape(({d.columns}, {HEAD_WIDTH}))")
    d.line(f"    s = mma(query, key.T, zeros(({d.rows}, {d.columns}), f32)) * {r.choice(['0.03125', '0.0625', '0.1'])}")
    if causal:
        at_edge = r.random() < 0.5
        seen = f"(j * {d.columns} + arange({d.columns}))[None, :] <= (m * {d.rows} + arange({d.rows}))[:, None]"
        unseen = "-60.0" if first else r.choice(["-60.0", "-tilec.inf"])  # a row of which nothing is seen has no maximum
        if at_edge:
            d.line(f"    if j >= (m * {d.rows} + 1) // {d.columns}:")
        d.line(f"    {'    ' if at_edge else ''}s = where({seen}, s, {unseen})")
    d.line("    higher = maximum(top, tilec.max(s, axis=1))")
    d.line(f"    p = {exponent}(s - higher[:, None])")
    d.line(f"    shrink = {exponent}(top - higher)")
    d.line("    total = total * shrink + tilec.sum(p, axis=1)")
    d.line(f"    acc = mma(p.astype({d.element}), value, acc * shrink[:, None])")
    d.line("    top = higher")
    d.line("result = acc * (1.0 / maximum(total, 0.5))[:, None]")
    if r.random() < 0.4:
        bias = d.add_tensor("In", d.element, str(HEAD_WIDTH))
        d.line(f"result = result + load({bias}, 0, shape={HEAD_WIDTH}).astype(f32)[None, :]")
    dtype = d.element if r.random() < 0.8 else "f32"
    out = d.add_tensor("Out", dtype, f"T, H, {HEAD_WIDTH}")
    d.line(f"store({out}, (m, head, 0), result.astype({dtype}).reshape(({d.rows}, 1, {HEAD_WIDTH})), mask=True)")
    d.exact = False
    d.parts |= {"attention"} | ({"causal"} if causal else set())
