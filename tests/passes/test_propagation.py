"""Layouts propagate from tensor-core results: the loops of attention need no layout conversion through shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import shipped
from tilec.ir import ops
from tilec.ir.core import Function, Op, Value
from tilec.ir.layouts.blocked_layouts import hidden
from tilec.ir.layouts.layout import Layout, register_map
from tilec.ir.ops.reduction_ops import ReduceCombine
from tilec.ir.ops.staging_ops import Part, Relayout, ScratchLoad, SharedLoad
from tilec.target.targets import SM_90A

ATTENTION = ("flash_attention", "decode_attention")
ELEMENTWISE = (ops.Unary, ops.Binary, ops.Compare, ops.Select, ops.Cast)


def loops(function: Function) -> list[ops.For]:
    return [op for op in function.body.walk() if isinstance(op, ops.For)]


def moves(op: Op) -> Iterator[tuple[Value, Layout]]:
    """Operands of an operation, with the layout that lowering converts them to."""
    if isinstance(op, Relayout) or (isinstance(op, ELEMENTWISE) and op.result.layout is not None):
        assert op.result.layout is not None
        yield from ((value, op.result.layout) for value in op.operands if value.tile.rank)
    elif isinstance(op, ops.Broadcast) and op.operands[0].tile.rank:
        assert op.result.layout is not None
        repeated = {axis for axis, extent in enumerate(op.operands[0].tile.shape) if extent == 1}
        yield op.operands[0], hidden(op.result.layout, repeated)


def is_free(value: Value, required: Layout) -> bool:
    """Whether the conversion only renames registers of the same thread."""
    if isinstance(value.owner, ops.Constant) or value.layout == required:
        return True
    return value.layout is not None and register_map(value.layout, required) is not None


@pytest.mark.parametrize("kernel", ATTENTION)
def test_nothing_else_moves_between_threads_in_the_loop(kernel: str) -> None:
    for loop in loops(shipped.prepared(kernel, SM_90A)):
        body = loop.regions[0]
        found = [(op, value, required) for op in body.walk() for value, required in moves(op)]
        assert len(found) > 20
        assert all(is_free(value, required) for _, value, required in found)
        moved = [op for op in body.walk() if isinstance(op, ScratchLoad | ReduceCombine)]
        # The weights of decode attention are the result of one product and the right operand of the next, which is transposed.
        assert [op.opcode for op in moved] == ["scratch_load"] * (kernel == "decode_attention")
        assert all(op.result.tile.size <= 512 for op in moved)
        for argument, yielded in zip(body.arguments[1:], body.ops[-1].operands, strict=True):
            assert argument.layout == yielded.layout


@pytest.mark.parametrize("kernel", ATTENTION)
def test_a_row_stays_in_one_warp(kernel: str) -> None:
    for loop in loops(shipped.prepared(kernel, SM_90A)):
        for op in loop.regions[0].ops:
            if isinstance(op, ops.Reduce):
                layout = op.operands[0].layout
                assert layout is not None
                assert all(digit.axis != op.axis or digit.extent == 1 for digit in layout.warps)


@pytest.mark.parametrize("kernel", ATTENTION)
def test_the_query_is_converted_once_and_keys_and_values_are_loaded_through_shared_memory(kernel: str) -> None:
    function = shipped.prepared(kernel, SM_90A)
    for loop in loops(function):
        products = [op for op in loop.regions[0].ops if isinstance(op, ops.Mma)]
        assert len(products) > 2
        for product in products:
            assert {type(value.owner) for value in product.operands[:2]} == {Part, SharedLoad}
        assert not any(isinstance(op, ops.Load) for op in loop.regions[0].walk())
    sources = {op.operands[0] for op in function.body.walk() if isinstance(op, Part)}
    outside = [op for op in function.body.ops if isinstance(op, Relayout | ScratchLoad) and op.result in sources]
    assert len(outside) == 1


def test_an_index_needed_along_rows_and_columns_is_computed_twice() -> None:
    """The kernel's two `arange(64)` are one value after canonicalization; the mask needs it in two layouts."""
    function = shipped.prepared("flash_attention", SM_90A)
    masked = loops(function)[0].regions[0]
    iotas = [op for op in (*function.body.ops, *masked.walk()) if isinstance(op, ops.Iota)]
    assert len({str(op.result.layout) for op in iotas}) == 2
