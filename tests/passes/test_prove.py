"""Accepted and refused kernels, built by hand: every property has a wrong kernel and its corrected twin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.builder import Access, Kernel, binary, cdiv, const, sym
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.ir import ops
from tilec.ir.core import Block
from tilec.ir.types import TileType, boolean, i32
from tilec.passes.prover import prove, prove_claims
from tilec.passes.prover.ladder import Ladder


def refused(kernel: Kernel) -> tuple[Diagnostic, ...]:
    with pytest.raises(CompileError) as caught:
        prove(kernel.function)
    return caught.value.diagnostics


def rungs(kernel: Kernel, property: str) -> set[str]:
    return {o.rung for o in prove(kernel.function).obligations if o.property == property}


def add_kernel(mask: bool = True, pad: float | None = 0.0, grid=None) -> Kernel:
    k = Kernel(grid if grid is not None else cdiv(sym("N"), const(1024)))
    x, out = k.tensor("x", Access.IN, "N"), k.tensor("out", Access.OUT, "N")
    start = k.mul(k.bid(), 1024)
    k.load(x, start, shape=(1024,), pad=pad)
    k.store(out, start, shape=(1024,), mask=mask)
    return k


def test_a_masked_add_is_proven():
    proofs = prove(add_kernel().function)
    assert {o.property for o in proofs.obligations} >= {"bounds", "race", "coverage", "wrap"}
    assert ("x", "out") in proofs.no_alias


def test_an_unmasked_store_past_the_end_is_refused():
    (diagnostic,) = refused(add_kernel(mask=False))
    assert diagnostic.code == "E0302"
    assert diagnostic.counterexample is not None
    n = diagnostic.counterexample.dims["N"]
    assert diagnostic.counterexample.element[0] >= n


def test_a_precondition_makes_the_unmasked_store_right():
    k = add_kernel(mask=False, pad=None)
    k.requires(binary("==", binary("%", sym("N"), const(1024)), const(0)))
    assert rungs(k, "bounds") == {"launch"}


def test_a_dropped_tail_is_refused():
    (diagnostic,) = refused(add_kernel(grid=binary("//", sym("N"), const(1024))))
    assert diagnostic.code == "E0403"
    assert diagnostic.counterexample is not None


def test_two_blocks_writing_one_element_are_refused():
    k = Kernel(cdiv(sym("N"), const(1024)))
    out = k.tensor("out", Access.OUT, "N")
    k.store(out, k.mul(k.bid(), 1000), shape=(1024,), mask=True)
    assert "E0401" in {d.code for d in refused(k)}


def rows(divide: str) -> Kernel:
    """Heads permuted: out[h // G, h % G] with a symbolic G."""
    k = Kernel(binary("*", sym("A"), sym("G")))
    out = k.tensor("out", Access.OUT, "A", "G", 64)
    h = k.bid()
    k.store(out, k.div(h, "G"), k.mod(h, divide), 0, shape=(1, 1, 64))
    return k


def test_a_block_id_decomposed_by_a_symbol_is_proven():
    assert rungs(rows("G"), "coverage") == {"set"}


def test_the_wrong_modulus_is_refused():
    assert refused(rows("A"))


def swizzle(group: int = 8, bad: bool = False) -> Kernel:
    m, n = cdiv(sym("M"), const(64)), cdiv(sym("N"), const(64))
    k = Kernel(binary("*", m, n))
    out = k.tensor("out", Access.OUT, "M", "N")
    pid, num_m, num_n = k.bid(), k.cdiv("M", 64), k.cdiv("N", 64)
    width = k.mul(num_n, group)
    first = k.mul(k.div(pid, width), group)
    size = k.op("min", k.op("sub", num_m, first), k.c(group))
    rest = k.mod(pid, width)
    row = k.add(first, k.mod(rest, size if not bad else k.c(group)))
    column = k.div(rest, size)
    k.store(out, k.mul(row, 64), k.mul(column, 64), shape=(64, 64), mask=True)
    return k


def test_a_grouped_swizzle_is_proven():
    proofs = prove(swizzle().function)
    assert {"race", "coverage"} <= {o.property for o in proofs.obligations}


def test_a_wrong_swizzle_is_refused():
    assert {d.code for d in refused(swizzle(bad=True))} & {"E0401", "E0403", "E0302"}


def persistent(start_at_one: bool = False, grid: int | str = "G") -> Kernel:
    k = Kernel(grid)
    out = k.tensor("out", Access.OUT, "T", 128)
    if grid == "G":
        k.tensor("work", Access.IN, "G")
        k.requires(binary("<=", sym("G"), const(65536)))
    start = k.bid()
    with k.loop(k.add(start, 1) if start_at_one else start, "T", k.num_blocks(), "t") as t:
        k.store(out, t, 0, shape=(1, 128))
    return k


@pytest.mark.parametrize("grid", ["G", 132])
def test_a_persistent_loop_is_proven(grid: int | str):
    assert "coverage" in {o.property for o in prove(persistent(grid=grid).function).obligations}


def test_a_persistent_loop_that_skips_the_first_is_refused():
    assert refused(persistent(start_at_one=True, grid=132))


def embedding(declared: bool) -> Kernel:
    k = Kernel("T")
    ids = k.tensor("ids", Access.IN, "T", dtype=i32)
    table, out = k.tensor("table", Access.IN, "V", 64), k.tensor("out", Access.OUT, "T", 64)
    if declared:
        k.values("ids", 0, "V")
    row = k.bid()
    k.load(table, k.scalar_load(ids, row), 0, shape=(1, 64))
    k.store(out, row, 0, shape=(1, 64))
    return k


def test_an_unchecked_token_id_is_refused():
    diagnostics = refused(embedding(declared=False))
    assert {d.code for d in diagnostics} == {"E0301"}
    assert all(d.counterexample is not None for d in diagnostics)


def test_a_declared_token_id_is_proven_by_value():
    assert "value" in rungs(embedding(declared=True), "bounds")


def slot_store(distinct: bool) -> Kernel:
    k = Kernel("T")
    slots = k.tensor("slots", Access.IN, "T", dtype=i32)
    cache = k.tensor("cache", Access.INOUT, "S", 128)
    k.values("slots", 0, "S", distinct)
    k.store(cache, k.scalar_load(slots, k.bid()), 0, shape=(1, 128))
    return k


def test_distinct_slots_are_proven():
    assert rungs(slot_store(True), "race") == {"value"}


def test_slots_that_may_repeat_are_refused():
    (diagnostic,) = refused(slot_store(False))
    assert diagnostic.code == "E0401"


def test_a_product_that_may_wrap_is_refused():
    k = Kernel("T")
    x = k.tensor("x", Access.IN, "N")
    k.tensor("y", Access.IN, "T", "H")
    k.load(x, k.mul(k.bid(), "H"), shape=(1,), pad=0)
    assert "E0304" in {d.code for d in refused(k)}


def test_a_product_that_an_extent_bounds_does_not_wrap():
    k = Kernel("T")
    x = k.tensor("x", Access.IN, binary("*", sym("T"), sym("H")))
    k.load(x, k.mul(k.bid(), "H"), shape=(1,))
    facts = {fact for o in prove(k.function).obligations for fact in o.facts}
    assert facts == {"1 <= T * H <= 2147418112"}


def test_a_read_of_another_blocks_element_is_refused():
    k = Kernel("T")
    x = k.tensor("x", Access.INOUT, "T", 64)
    k.load(x, k.mod(k.add(k.bid(), 1), "T"), 0, shape=(1, 64))
    k.store(x, k.bid(), 0, shape=(1, 64))
    assert "E0402" in {d.code for d in refused(k)}


def split_k(splits: int, stored: int) -> Kernel:
    k = Kernel("T", stored)
    part = k.tensor("part", Access.OUT, splits, "T", 64)
    k.store(part, k.bid(1), k.bid(0), 0, shape=(1, 1, 64))
    return k


def test_split_k_partials_are_proven():
    assert rungs(split_k(8, 8), "race")


def test_a_missing_split_is_refused():
    assert {d.code for d in refused(split_k(8, 7))} == {"E0403"}


def scratch(read_first: bool) -> Kernel:
    k = Kernel("T")
    buffer = k.tensor("buffer", Access.SCRATCH, "T", 64)
    if read_first:
        k.load(buffer, k.bid(), 0, shape=(1, 64))
    k.store(buffer, k.bid(), 0, shape=(1, 64))
    k.load(buffer, k.bid(), 0, shape=(1, 64))
    return k


def test_scratch_read_after_write_is_proven():
    assert "order" in {o.property for o in prove(scratch(False).function).obligations}


def test_scratch_read_before_write_is_refused():
    assert {d.code for d in refused(scratch(True))} == {"E0405"}


def permuted(distinct: bool) -> Kernel:
    k = Kernel("T")
    order = k.tensor("order", Access.IN, "T", dtype=i32)
    out = k.tensor("out", Access.OUT, "T", 64)
    k.values("order", 0, "T", distinct)
    k.store(out, k.scalar_load(order, k.bid()), 0, shape=(1, 64))
    return k


def test_a_permutation_covers():
    assert rungs(permuted(True), "coverage") == {"value"}


def test_a_map_that_is_no_permutation_is_refused():
    assert {"E0401"} <= {d.code for d in refused(permuted(False))}


def written_twice(overlap: int) -> Kernel:
    k = Kernel("T")
    out = k.tensor("out", Access.OUT, "T", 256)
    with k.loop(0, 256, 64) as i:
        k.store(out, k.bid(), i, shape=(1, 64 + overlap), mask=True)
    return k


def test_an_element_written_in_two_iterations_is_refused():
    assert {d.code for d in refused(written_twice(1))} == {"E0404"}


def test_adjacent_tiles_of_a_loop_are_proven():
    assert rungs(written_twice(0), "race")


def two_iterations(second: str) -> Kernel:
    """A store under a condition on memory, and a store under a second condition on the same value."""
    k = Kernel("T")
    ids = k.tensor("ids", Access.IN, "T", dtype=i32)
    out = k.tensor("out", Access.OUT, "T", 64)
    row = k.bid()
    token = k.scalar_load(ids, row)
    with k.when(k.op("lt", token, 0)):
        k.store(out, row, 0, shape=(1, 64))
    with k.when(k.op(second, token, 0)):
        k.store(out, row, 0, shape=(1, 64))
    return k


def test_stores_in_two_iterations_do_not_complement_each_other_over_memory_that_changes():
    """A value that is read anew in each iteration is not a function of the block. It may be above 0 in the second iteration but
    not in the first, and then nothing is stored. No launch is shown: two writes that depend on loaded elements may cover it."""
    k = Kernel("N")
    flags, out = k.tensor("flags", Access.INOUT, "N", dtype=i32), k.tensor("out", Access.OUT, "N")
    row = k.bid()
    with k.loop(0, 2) as iteration:
        above = k.op("gt", k.scalar_load(flags, row), 0)
        below = k.emit(ops.Unary(kind="not", operands=[above]), TileType(boolean)).result
        for side, number in ((above, 0), (below, 1)):
            both = ops.Binary(kind="and", operands=[side, k.op("eq", iteration, number)])
            with k.when(k.emit(both, TileType(boolean)).result):
                k.store(out, row, shape=(1,))
    assert {"E0306", "E0403"} & {d.code for d in refused(k)}


def test_stores_that_complement_each_other_cover_for_any_memory_contents():
    assert rungs(two_iterations("ge"), "coverage") == {"set"}


def test_stores_that_leave_a_value_out_are_refused():
    assert {d.code for d in refused(two_iterations("gt"))} == {"E0403"}


def joined(safe: bool) -> Kernel:
    """An index that one arm of an `if` bounds and the other replaces: no earlier fact may survive the join."""
    k = Kernel("N")
    x = k.tensor("x", Access.IN, "N")
    row = k.bid()
    op = ops.If(operands=[k.op("lt", row, 4)], regions=[Block(), Block()])
    k.emit_region(op)
    outer = k.block
    k.block = op.regions[0]
    k.emit_yield(row)
    k.block = op.regions[1]
    k.emit_yield(k.op("sub", row, 4) if safe else k.add(row, 4))
    k.block = outer
    op.define(TileType(i32))
    k.load(x, op.results[0], shape=(1,))
    return k


def test_facts_of_one_arm_do_not_survive_a_join():
    (diagnostic,) = refused(joined(safe=False))
    assert diagnostic.code == "E0301"
    assert diagnostic.counterexample is not None
    n, (block,) = diagnostic.counterexample.dims["N"], diagnostic.counterexample.blocks[0]
    assert block >= 4 and block + 4 >= n


def test_both_arms_inside_the_tensor_are_proven():
    assert rungs(joined(safe=True), "bounds") == {"set"}


def test_one_slot_for_all_tokens_is_refused():
    k = Kernel("T")
    cache = k.tensor("cache", Access.INOUT, "S", 128)
    k.store(cache, 0, 0, shape=(1, 128))
    (diagnostic,) = refused(k)
    assert diagnostic.code == "E0401"
    assert diagnostic.counterexample is not None
    first, second = diagnostic.counterexample.blocks
    assert first != second


def test_a_divisor_that_may_be_zero_is_refused_alone():
    k = Kernel("N")
    x = k.tensor("x", Access.IN, "N")
    k.load(x, k.div(k.bid(), k.op("sub", "N", 1)), shape=(1,))
    (diagnostic,) = refused(k)
    assert diagnostic.code == "E0305"
    assert diagnostic.counterexample is not None
    assert diagnostic.counterexample.dims["N"] == 1


def test_claims_are_refused_without_an_example_that_the_kernel_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples take longer than proofs, and each would be looked for twice."""
    asked: list[str] = []
    witness = Ladder.witness

    def counted(ladder: Ladder, *values: Any) -> Any:
        asked.append(ladder.index.function.name)
        return witness(ladder, *values)

    monkeypatch.setattr(Ladder, "witness", counted)
    claims, kernel = add_kernel(mask=False).function, add_kernel(mask=False).function
    claims.name = "claims"
    with pytest.raises(CompileError) as caught:
        prove_claims(claims, lambda: kernel)
    assert asked == [kernel.name]
    assert [d.code for d in caught.value.diagnostics] == ["E0302"]


def test_claims_that_are_refused_are_reported_if_the_kernel_is_not() -> None:
    with pytest.raises(CompileError) as caught:
        prove_claims(add_kernel(mask=False).function, lambda: add_kernel().function)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0302" and diagnostic.counterexample is not None
