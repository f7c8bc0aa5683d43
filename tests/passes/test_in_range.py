"""Divisions and shifts are marked as in range if and only if ranges show that the plain instruction is defined."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import Kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import shipped
from tilec.frontend import load_kernel
from tilec.ir import ops
from tilec.ir.core import Access, Parameter, Value
from tilec.ir.text.printer import print_function
from tilec.ir.types import TileType, i32
from tilec.ir.verifier import verify
from tilec.lowering import lower
from tilec.passes.prover import positive_divisions
from tilec.passes.schedule import prepare
from tilec.passes.schedule.simplify import in_range
from tilec.target.targets import SM_90A


def kernel_of(kind: str, right: str) -> tuple[Kernel, Value]:
    """A kernel that stores `n kind right`; `right` names how the right operand is computed."""
    k = Kernel(1)
    n = k.body.add_argument(TileType(i32), "n")
    k.function.parameters.append(Parameter("n", n))
    out = k.tensor("out", Access.OUT, 64, dtype=i32)
    operand = {
        "n": lambda: n,
        "0": lambda: k.c(0),
        "-1": lambda: k.c(-1),
        "5": lambda: k.c(5),
        "32": lambda: k.c(32),
        "n % 8": lambda: k.emit(ops.Binary(kind="mod", operands=[n, k.c(8)]), TileType(i32)).result,
        "max(n, 1)": lambda: k.emit(ops.Binary(kind="max", operands=[n, k.c(1)]), TileType(i32)).result,
        "min(n, 1)": lambda: k.emit(ops.Binary(kind="min", operands=[n, k.c(1)]), TileType(i32)).result,
    }[right]()
    result = k.emit(ops.Binary(kind=kind, operands=[n, operand]), TileType(i32)).result
    tile = k.emit(ops.Reshape(operands=[result]), TileType(i32, (1,))).result
    k.emit(ops.Store(operands=[out, tile, k.c(0)]))
    return k, result


MARKED = {("floordiv", "5"), ("floordiv", "32"), ("floordiv", "max(n, 1)"), ("shl", "0"), ("shl", "5"), ("shl", "n % 8")}


@pytest.mark.parametrize("right", ["n", "0", "-1", "5", "32", "n % 8", "max(n, 1)", "min(n, 1)"])
@pytest.mark.parametrize("kind", ["floordiv", "mod", "shl", "shr", "add"])
def test_only_proven_operations_are_marked(kind: str, right: str) -> None:
    k, result = kernel_of(kind, right)
    in_range.mark(k.function)
    verify(k.function)
    alike = {"mod": "floordiv", "shr": "shl"}.get(kind, kind)
    assert isinstance(result.owner, ops.BinaryInRange) == ((alike, right) in MARKED)
    assert result.owner in list(k.function.body.walk())
    assert ("binary_in_range" in print_function(k.function)) or (alike, right) not in MARKED


@settings(max_examples=200, deadline=None)
@given(low=st.integers(-40, 40), high=st.integers(-40, 40), kind=st.sampled_from(["floordiv", "mod", "shl", "shr"]))
def test_a_mark_holds_for_every_value_of_the_operand(low: int, high: int, kind: str) -> None:
    k, _ = kernel_of("add", "n")
    n = k.function.parameters[0].value
    above = k.emit(ops.Binary(kind="max", operands=[n, k.c(low)]), TileType(i32)).result
    amount = k.emit(ops.Binary(kind="min", operands=[above, k.c(high)]), TileType(i32)).result
    result = k.emit(ops.Binary(kind=kind, operands=[n, amount]), TileType(i32)).result
    in_range.mark(k.function)
    if isinstance(result.owner, ops.BinaryInRange):
        for value in (-(2**31), *range(-50, 50), 2**31 - 1):
            right = min(max(value, low), high)
            assert right >= 1 if kind in ("floordiv", "mod") else 0 <= right < 32


@pytest.mark.parametrize("name", shipped.NAMES)
def test_shipped_kernels_guard_nothing(name: str) -> None:
    """The divisor of `matmul`, the height of a group of tiles, needs the proof ladder; ranges are enough for all others."""
    open_ = [
        op
        for op in shipped.prepared(name, SM_90A).body.walk()
        if type(op) is ops.Binary and op.kind in ("floordiv", "mod", "shl", "shr") and op.result.tile.dtype.is_integer
    ]
    assert not open_


LADDER = """
import tilec
from tilec import Dim, In, Out, bid, grid, i32, load, requires, store

class N(Dim): "length"

@tilec.kernel
def k(x: In[i32, N], out: Out[i32, N], n: i32):
    grid(N)
    requires({clause})
    b = bid(0)
{division}
    store(out, b, q)
"""


@pytest.mark.parametrize(
    ("clause", "division", "count"),
    [
        ("n >= 1", "    q = b // n", 1),
        ("n >= 0", "    q = load(x, b) // n", 0),
        ("n >= 1", "    q = b // (n - 1)", 0),
        ("n >= 1", "    q = load(x, b) % (N - b)", 1),
        ("n >= 0", "    q = 0\n    if n != 0:\n        q = b // n", 0),  # an arm may be left out; the ladder is not asked
    ],
)
def test_the_ladder_proves_more_than_ranges(tmp_path: Path, clause: str, division: str, count: int) -> None:
    path = tmp_path / "k.py"
    path.write_text(LADDER.format(clause=clause, division=division))
    function = load_kernel(path, {})
    proven = positive_divisions(function)
    assert len(proven) == count
    in_range.mark(function, frozenset(op.operands[1] for op in proven))
    assert sum(isinstance(op, ops.BinaryInRange) for op in function.body.walk()) == count


def test_prepare_marks() -> None:
    k, _ = kernel_of("mod", "max(n, 1)")
    assert "tilec.proven" in lower(prepare(k.function, SM_90A), SM_90A).mlir
