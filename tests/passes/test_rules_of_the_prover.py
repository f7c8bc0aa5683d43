"""Single rules of the proofs: what a condition bounds, which stores a promise compares, which segments cover rows."""

from __future__ import annotations

import islpy
import pytest

from tests.passes.builder import Access, Kernel, binary, const, sym
from tilec.diagnostics.diagnostic import CompileError
from tilec.ir import ops
from tilec.ir.core import Block, Promise, Value, ValueFact
from tilec.ir.expr import Expr
from tilec.ir.facts.range_facts import Range
from tilec.ir.types import TileType, i32
from tilec.passes.analysis.declared_ranges import required
from tilec.passes.analysis.ranges import RangeAnalysis, symbol_ranges
from tilec.passes.analysis.selected_ranges import selected
from tilec.passes.prover import prove, terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.bit_terms import bit_term
from tilec.passes.prover.integer_sets import evaluator
from tilec.passes.prover.set_text import _holds  # pyright: ignore[reportPrivateUsage]
from tilec.passes.prover.terms import Atom, Kind


def codes(k: Kernel) -> set[str]:
    """The codes of what is refused in a kernel; none if it is accepted."""
    try:
        prove(k.function)
    except CompileError as error:
        return {one.code for one in error.diagnostics}
    return set()


# Ranges


def test_every_part_of_a_conjunction_bounds_its_symbol() -> None:
    k = Kernel("N", "M")
    parts: list[Expr] = [binary(">=", sym("N"), const(3)), binary("<", sym("N"), const(8)), binary("==", sym("M"), const(5))]
    k.requires(binary("and", binary("and", parts[0], parts[1]), parts[2]))
    found = {(bound.symbol, max(bound.low, 1), min(bound.high, 99)) for bound in required(k.function)}
    assert found == {("N", 3, 99), ("N", 1, 7), ("M", 5, 5)}


def test_a_selected_sum_is_no_wider_than_it_is_known_to_be() -> None:
    """Its operands alone would give 0 to 20, and 1 to 20 where the condition holds."""
    k = Kernel(11, 11)
    a, b = k.bid(0), k.bid(1)
    total = k.add(a, b)
    chosen = k.emit(ops.Select(operands=[k.op("ge", a, 1), total, k.c(5)]), TileType(i32))
    assert isinstance(chosen, ops.Select)
    condition = chosen.operands[0].owner
    assert isinstance(condition, ops.Compare)
    facts: dict[Value, Range] = {value: Range(0, 10) for value in (a, b)}
    facts |= {total: Range(4, 6), condition.operands[1]: Range(1, 1), chosen.operands[2]: Range(5, 5)}
    analysis = RangeAnalysis(k.function, symbol_ranges(k.function))
    found = selected(chosen, facts, analysis.refined_result)
    assert (found.low, found.high) == (4, 6)


# Terms


def unknown(atoms: Atoms, name: str, high: int) -> Atom:
    return atoms.make(name, Kind.OPAQUE, name, (0, high))


def test_a_sum_is_taken_out_of_a_dividend_only_with_all_its_terms() -> None:
    """The dividend has nothing of `y + z`, so its quotient by it stays as it is."""
    atoms = Atoms()
    x, y, z = (terms.of(unknown(atoms, name, 9)) for name in "xyz")
    divisor = y + z
    (quotient,) = atoms.quotient(x, divisor).atoms()
    assert quotient.args == (x, divisor)
    assert atoms.quotient(x + divisor * 3, divisor) == terms.of(quotient) + 3


@pytest.mark.parametrize("narrow", [0, 1])
@pytest.mark.parametrize("kind", ["and", "or", "xor"])
def test_bits_are_distinguished_by_the_operand_with_fewer_values(kind: str, narrow: int) -> None:
    """There are 64 values of the other operand, which are too many for a case distinction."""
    atoms, highs = Atoms(), [63, 63]
    highs[narrow] = 3
    left, right = unknown(atoms, "left", highs[0]), unknown(atoms, "right", highs[1])
    found = bit_term(atoms, kind, 32, [terms.of(left), terms.of(right)], [Range(0, high) for high in highs])
    assert found is not None
    for a, b in [(0, 0), (1, 3), (3, 2), (2, 1), (3, 3)]:
        expected = {"and": a & b, "or": a | b, "xor": a ^ b}[kind]
        assert terms.evaluate(found, evaluator({left: a, right: b})) == expected


def test_no_point_of_an_empty_set_has_the_value() -> None:
    """isl reads a set that mentions NaN as empty: its word is no name, and that is an answer."""
    context = islpy.Context()
    assert not _holds(islpy.Set.read_from_str(context, "{ [a, nan] : nan = 7 and a = nan }"))
    assert _holds(islpy.Set.read_from_str(context, "{ [a, b] : b = 7 and a = b }"))


# Wrapping


def clipped_box(extent: int) -> Kernel:
    """A load of a box that may begin at any index of i32 from 0 on; what is outside the tensor is padded."""
    k = Kernel(2**31 - 1)
    x = k.tensor("x", Access.IN, "N")
    k.load(x, k.add(k.bid(), 1), shape=(extent,), pad=0.0)
    return k


def test_the_end_of_a_clipped_box_fits_the_type_of_its_index() -> None:
    assert codes(clipped_box(1)) == set()
    assert codes(clipped_box(2)) == {"E0304"}
    assert codes(clipped_box(64)) == {"E0304"}


# Promises


def two_stores(first: tuple[int, int], second: tuple[int, int]) -> Kernel:
    """One block that writes two elements; a store is an index and the integer that it leaves there."""
    k = Kernel(1)
    out = k.tensor("out", Access.OUT, 2, dtype=i32)
    for offset, number in (first, second):
        tile = k.emit(ops.Constant(value=number), TileType(i32, (1,))).result
        k.emit(ops.Store(operands=[out, tile, k.c(offset)]))
    k.function.promises = (Promise("out", const(0), const(9), sorted=True),)
    return k


@pytest.mark.parametrize("later_first", [False, True])
def test_stores_are_compared_for_a_sorted_promise_in_either_order(later_first: bool) -> None:
    """Which store comes first in the kernel does not say which one writes the element that comes first."""

    def left(first: int, second: int) -> set[str]:
        stores = [(0, first), (1, second)]
        return codes(two_stores(*reversed(stores)) if later_first else two_stores(*stores))

    assert left(3, 5) == set()
    assert left(5, 3) == {"E0406"}


# Coverage


def segments(blocks: int) -> Kernel:
    """Each block writes the rows from one to the next of the five sorted numbers in `cu`, which begin at 0 and end at `T`."""
    k = Kernel(blocks)
    cu, out = k.tensor("cu", Access.IN, 5, dtype=i32), k.tensor("out", Access.OUT, "T", 2)
    end = binary("+", sym("T"), const(1))
    k.function.values = (ValueFact("cu", const(0), end, sorted=True, ends=True),)
    first, last = k.scalar_load(cu, k.bid()), k.scalar_load(cu, k.add(k.bid(), 1))
    with k.loop(first, last) as row:
        k.store(out, row, 0, shape=(1, 2))
    return k


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_rows_are_left_out_where_no_block_has_their_segment(blocks: int) -> None:
    assert codes(segments(4)) == set()
    assert codes(segments(blocks)) and codes(segments(blocks)) <= {"E0306", "E0403"}


@pytest.mark.parametrize("initially", [False, True])
def test_no_example_is_shown_of_an_index_that_only_a_computation_decides(initially: bool) -> None:
    """The loop squares 2 modulo 16 to 4, 0, 0 and 0, so the only element is written, which the prover cannot see. The loop also
    carries an integer that is loaded, before it or in it, but the index does not depend on it."""
    k = Kernel(1)
    x, out = k.tensor("x", Access.IN, 8, dtype=i32), k.tensor("out", Access.OUT, 1)
    bounds, a, b = [k.c(number) for number in (0, 4, 1)], k.c(0), k.c(2)
    c = k.scalar_load(x, 0) if initially else k.c(0)
    loop = ops.For(operands=[*bounds, a, b, c], variable="i", regions=[Block()])
    _, a, b, c = (loop.regions[0].add_argument(TileType(i32), name) for name in ("i", "a", "b", "c"))
    k.emit_region(loop)
    k.block = loop.regions[0]
    k.emit_yield(k.mod(k.add(a, 1), 8), k.mod(k.mul(b, b), 16), c if initially else k.scalar_load(x, 1))
    loop.define(*[TileType(i32)] * 3)
    k.block = k.body
    k.store(out, loop.results[1], shape=(1,), mask=True)
    assert codes(k) == {"E0306"}
