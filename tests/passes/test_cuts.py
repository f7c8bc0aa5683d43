"""Cuts of inequalities: every integer solution stays, by enumeration; and rows of more elements than are written."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.passes.texts import function_of
from tests.soundness.verdict import examine_function
from tilec.diagnostics.diagnostic import CompileError
from tilec.passes.prover import prove, terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.cuts import cuts
from tilec.passes.prover.nonlinear import Case
from tilec.passes.prover.terms import Kind, Poly

ATOMS = Atoms()
X, Y, K = (ATOMS.make(name, Kind.OPAQUE, name, bounds) for name, bounds in (("x", (-3, 3)), ("y", (-3, 3)), ("k", (0, 4))))
POINTS = [dict(zip((X, Y, K), numbers, strict=True)) for numbers in product(range(-3, 4), range(-3, 4), range(5))]


@given(st.tuples(*[st.integers(-12, 12)] * 4), st.booleans())
def test_every_integer_solution_stays(numbers: tuple[int, ...], is_product: bool):
    a, b, c, d = numbers
    poly = terms.of(X) * a + (terms.of(X) * terms.of(Y) if is_product else terms.of(Y)) * b + terms.of(K) * c + d
    found = cuts(Case([poly], []), {})
    for point in POINTS:
        if terms.evaluate(poly, point.__getitem__) >= 0:
            assert all(terms.evaluate(one, point.__getitem__) >= 0 for one in found), (poly, found, point)


def test_a_cut_says_more_than_linear_programming():
    """`11 * (x - y) + k - 3 >= 0` for `k` in `0..5` is `x - y >= 0`, of which rationally `x - y >= -1 / 11` is left."""
    poly = (terms.of(X) - terms.of(Y)) * 11 + terms.of(K) - 3
    assert Poly({(X,): 1, (Y,): -1}) in cuts(Case([poly], []), {})


KERNEL = '''"""Rows of some elements, of which a block writes a part that data decides."""

from tilec import Dim, In, InOut, bid, f32, grid, i32, kernel, load, num_blocks, requires, store, u8, where, zeros


class M(Dim):
    """rows"""


class N(Dim):
    """rows of rows"""


@kernel
def k(w: In[f32, M], v: In[f32, N], x: In[u8, N * M], y: InOut[f32, N * M * {row}]):
    grid(N, M)
    requires(N * M <= 1000, N * M * {row} <= 1000000)
    row = bid(0) * num_blocks(1) + bid(1)
    at = where(load(x, row) > 1, 0, {last}).astype(i32)
    store(y, zeros((8,), f32), offset=row * {row} + at)
'''


@pytest.mark.parametrize(
    ("row", "last", "is_right"), [(11, 3, True), (8, 0, True), (9, 1, True), (11, 4, False), (8, 1, False)]
)
def test_rows_that_data_decides(row: int, last: int, is_right: bool, tmp_path: Path):
    function = function_of(tmp_path, KERNEL.format(row=row, last=last))
    if is_right:
        assert prove(function)
        assert examine_function(function).kind == "accepted"
    else:
        with pytest.raises(CompileError):
            prove(function)
