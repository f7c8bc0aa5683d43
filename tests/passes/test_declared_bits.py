"""Bit operations whose operand a declaration limits: the choice that they become equals them for all values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir.core import Value
from tilec.ir.facts.meaning import integer_binary
from tilec.ir.facts.range_facts import Range, of_dtype
from tilec.ir.ops import Binary
from tilec.ir.types import TileType, i32
from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.declared_bits import by_declared
from tilec.passes.prover.integer_sets import evaluator
from tilec.passes.prover.prove import prove
from tilec.passes.prover.terms import Kind

WHOLE = of_dtype(i32)
NUMBERS = st.integers(-40, 70) | st.integers(WHOLE.low, WHOLE.high)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["and", "or", "xor", "shl", "shr"]), NUMBERS, NUMBERS, st.integers(-3, 40), st.integers(0, 15))
def test_the_choice_is_the_operation(kind: str, left: int, right: int, low: int, width: int) -> None:
    atoms = Atoms()
    x, y, unknown = (terms.of(atoms.make(name, Kind.OPAQUE, name, WHOLE[:2])) for name in ("x", "y", "r"))
    op = Binary(kind=kind, operands=[Value(TileType(i32)), Value(TileType(i32))])
    op.define(TileType(i32))
    found = by_declared(atoms, op, [x, y], [WHOLE, WHOLE], [WHOLE, Range(low, low + width)], unknown)
    if found is None:
        return
    result = integer_binary(kind, left, right, i32)
    named = {poly.atom: number for poly, number in ((x, left), (y, right), (unknown, result)) if poly.atom is not None}
    assert terms.evaluate(found, evaluator(named)) == result
    if low <= right <= low + width and kind in ("and", "or", "xor") and low >= 0 and (right & (right + 1)) == 0:
        # A mask of one run of ones is exact: the result does not rest on the unknown.
        assert terms.evaluate(found, evaluator({**named, unknown.atom: result + 1})) == result  # type: ignore[dict-item]


KERNEL = '''"""Sums of pairs of a butterfly."""
import tilec as tl


class N(tl.Dim):
    """number of elements"""


@tl.kernel
def pairs(x: tl.In[tl.f32, N], out: tl.Out[tl.f32, N], s: tl.i32, *, BLOCK: tl.Const):
    tl.requires(N % BLOCK == 0, {bounds})
    tl.grid(N // BLOCK)
    i = tl.bid(0) * BLOCK + tl.arange(BLOCK)
    tl.store(out, tl.bid(0), tl.gather(x, i) + tl.gather(x, i ^ (1 << s)))
'''


def verdict(tmp_path: Path, bounds: str) -> str:
    path = tmp_path / "pairs.py"
    path.write_text(KERNEL.format(bounds=bounds), encoding="utf-8")
    try:
        prove(load_kernel(path, {"BLOCK": 32}))
    except CompileError as error:
        return " ".join(f"{d.code}{' with a launch' if d.counterexample else ''}" for d in error.diagnostics)
    return "proven"


@pytest.mark.parametrize("bounds", ["0 <= s, s < 5", "s >= 0, s <= 4", "s == 3", "s > 1 and 5 > s"])
def test_partners_stay_in_their_block(tmp_path: Path, bounds: str) -> None:
    assert verdict(tmp_path, bounds) == "proven"


@pytest.mark.parametrize("bounds", ["0 <= s, s < 6", "s >= 0, s <= 5", "s == 5"])
def test_a_partner_in_the_next_block_is_refused(tmp_path: Path, bounds: str) -> None:
    assert verdict(tmp_path, bounds) == "E0303 with a launch"
