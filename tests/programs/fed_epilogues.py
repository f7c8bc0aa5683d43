"""Random epilogues of products: what a program does with its accumulators, and how it stores them.

In: the draft of a program and the names of its accumulators. Out: lines of the draft. Operands are small integers, so that most
results are compared bit for bit; what rounds in between says so in the draft.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.programs.fed_draft import Draft


def write(d: Draft, made: list[str]) -> None:
    """Combine the accumulators or keep them, change them, and store each."""
    r = d.r
    if len(made) > 1 and (d.stores_once or r.random() < 0.6):
        made = [_combined(d, *made)]
    for name in made:
        for _ in range(r.choice([0, 1, 1, 2, 3])):
            r.choice(STEPS)(d, name)
        _store(d, name)
    if not d.stores_once and r.random() < 0.2:
        _store(d, made[0])
        d.parts.add("several stores")
    if not d.stores_once and r.random() < 0.1:
        tiles = d.add_dim("P", -(-d.dims["N"] // d.columns), f"P == cdiv(N, {d.columns})")
        out = d.add_tensor("Out", "f32", f"M, {tiles}")
        d.line(f"store({out}, (m, n), tilec.sum({made[0]}, axis=1)[:, None], mask=True)")
        d.exact &= not d.infinite  # a sum of huge values overflows or not, by its order
        d.parts.add("sums of rows")


def _combined(d: Draft, left: str, right: str) -> str:
    if d.r.random() < 0.5:
        d.line(f"{left} = {left} * sigmoid({left}) * {right}")
        d.exact = False
        d.parts.add("SiLU")
    else:
        d.line(f"{left} = {left} - 2.0 * {right}")
    return left


def _scale(d: Draft, name: str) -> None:
    factor = d.r.choice(["0.5", "-2.0", ""])
    d.line(f"{name} = {name} * {factor or d.add_scalar('f32', d.r.choice([2, 4, -1]))}")
    d.parts.add("scale")


def _bias(d: Draft, name: str) -> None:
    by_row = d.r.random() < 0.3
    bias = d.add_tensor("In", d.r.choice([d.element, "f32"]), "M" if by_row else "N")
    index, extent, axes = ("m", d.rows, "[:, None]") if by_row else ("n", d.columns, "[None, :]")
    d.line(f"{name} = {name} + load({bias}, {index}, shape={extent}, pad=0).astype(f32){axes}")
    d.parts.add("bias")


def _residual(d: Draft, name: str) -> None:
    access, dtype = "In" if d.stores_once else d.r.choice(["In", "In", "InOut"]), d.r.choice([d.element, "f32"])
    small = d.r.random() < 0.8
    d.infinite |= not small
    residual = d.add_tensor(access, dtype, "M, N", small=small)
    d.line(f"{name} = {name} + load({residual}, (m, n), shape=({d.rows}, {d.columns}), pad=0).astype(f32)")
    if access == "InOut":
        d.line(f"store({residual}, (m, n), {name}.astype({dtype}), mask=True)")
    d.parts.add("residual in place" if access == "InOut" else "residual")


def _silu(d: Draft, name: str) -> None:
    d.line(f"{name} = {name} * sigmoid({name})")
    d.exact = False
    d.parts.add("SiLU")


def _clamp(d: Draft, name: str) -> None:
    d.line(f"{name} = {d.r.choice([f'maximum({name}, 0.0)', f'minimum(maximum({name}, -9.0), 20.0)'])}")


def _rounded(d: Draft, name: str) -> None:
    d.line(f"{name} = {name}.astype({d.element}).astype(f32)")
    d.parts.add("rounded between")


def _masked(d: Draft, name: str) -> None:
    row, column = f"(m * {d.rows} + arange({d.rows}))[:, None]", f"(n * {d.columns} + arange({d.columns}))[None, :]"
    d.line(f"{name} = where({column} <= {row}, {name}, {d.r.choice(['0.0', '-1.0'])})")
    d.parts.add("mask by position")


def _branch(d: Draft, name: str) -> None:
    d.line(f"if {d.r.choice(['m == 0', 'n > 0', '(m + n) % 2 == 0'])}:")
    d.line(f"    {name} = {name} + {d.r.choice(['1.0', f'{name} * 2.0'])}")
    d.parts.add("branch")


def _reduced(d: Draft, name: str) -> None:
    d.line(f"{name} = {name} - tilec.max({name}, axis=1)[:, None]")
    d.parts.add("maximum of rows")


STEPS: Final[tuple[Callable[[Draft, str], None], ...]] = (
    _scale, _scale, _bias, _bias, _residual, _residual, _silu, _clamp, _rounded, _masked, _branch, _reduced,
)  # fmt: skip


def _store(d: Draft, name: str) -> None:
    dtype, kind = d.r.choice([d.element, d.element, "f32", "bf16", "f16"]), d.r.random()
    if d.stores_once:
        dtype, kind = d.r.choice(["bf16", "f16"]), 1.0
    value = name if dtype == "f32" else f"{name}.astype({dtype})"
    if kind < 0.15:
        out = d.add_tensor("Out", dtype, "N, M")
        d.line(f"store({out}, (n, m), ({value}).T, mask=True)")
        d.parts.add("stored by columns")
    elif kind < 0.25:
        out = d.add_tensor("Out", dtype, "2, M, N")
        for part in (1, 0):
            d.line(f"store({out}, ({part}, m, n), ({value})[None, :, :], mask=True)")
        d.parts.add("several stores")
    else:
        out = d.add_tensor("Out", dtype, "M, N")
        d.line(f"store({out}, (m, n), {value}, mask=True)")
