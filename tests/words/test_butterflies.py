"""`butterfly` and `flip` against NumPy's indexing, bit by bit, in registers, between lanes and between warps."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.passes.schedule_edits import block_of, drop
from tests.words.kernels import One, refusal
from tests.words.test_joins import NUMBERS, any_bits, bits_of
from tilec.ir.core import Function, Op, VerifyError
from tilec.ir.layouts.blocked_layouts import natural
from tilec.ir.layouts.butterflies import is_binary, partners, parts_of
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.layouts.thread_elements import MOST_ELEMENTS
from tilec.ir.ops import Butterfly
from tilec.ir.ops.butterfly_ops import ButterflyLoad, ButterflyStore
from tilec.ir.ops.sync_ops import Barrier
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A

SHAPE, WARPS = (2, 1024), 4
MASKS = {"registers": 5, "lanes": 24, "registers and lanes": 33, "warps": 256, "all": 1023}


def moved(a: np.ndarray, axis: int, mask: int) -> np.ndarray:
    return a.take([i ^ mask for i in range(a.shape[axis])], axis)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_no_bit_changes(dtype: str, mask: int) -> None:
    a = any_bits(dtype, SHAPE, mask)
    one = One(f"tl.butterfly(a, 1, {mask})", dtype, SHAPE, ((dtype, SHAPE),))
    np.testing.assert_array_equal(bits_of(one.interpreted(a)), bits_of(moved(a, 1, mask)))
    target = MAIN_TARGETS[(NUMBERS.index(dtype) + mask) % len(MAIN_TARGETS)]
    np.testing.assert_array_equal(bits_of(one.emulated(target, a, warps=WARPS)), bits_of(moved(a, 1, mask)))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_booleans(mask: int) -> None:
    a = any_bits("i8", SHAPE, mask)
    one = One(f"tl.where(tl.butterfly(a > 9, 1, {mask}), 1, 0)", "i32", SHAPE, (("i8", SHAPE),))
    np.testing.assert_array_equal(one.agreed(a, warps=WARPS), moved(a, 1, mask) > 9)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_shape(data: st.DataObject) -> None:
    """Extents of the other axes may wrap, and replicate elements over threads."""
    shape = data.draw(st.lists(st.sampled_from((1, 2, 3, 4, 6, 8, 20, 32)), min_size=0, max_size=2))
    axis = data.draw(st.integers(0, len(shape)))
    shape = (*shape[:axis], 2 ** data.draw(st.integers(1, 6)), *shape[axis:])
    mask, dtype = data.draw(st.integers(0, shape[axis] - 1)), data.draw(st.sampled_from(("f32", "bf16", "u8", "i64")))
    warps = data.draw(st.sampled_from((1, 2, 3, 4, 6)))
    assume(prod(shape) <= 32 * MOST_ELEMENTS)  # as many in a thread, of one warp or of several that repeat them
    a = any_bits(dtype, shape, mask)
    one = One(f"tl.butterfly(a, {axis - len(shape)}, {mask})", dtype, shape, ((dtype, shape),))
    expected = bits_of(moved(a, axis, mask))
    np.testing.assert_array_equal(bits_of(one.interpreted(a)), expected)
    found = one.emulated(SM_90A, a, warps=warps)
    np.testing.assert_array_equal(bits_of(found), expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_flip(axis: int) -> None:
    a = any_bits("f16", (16, 64), axis)
    one = One(f"tl.flip(a, {axis})", "f16", (16, 64), (("f16", (16, 64)),))
    np.testing.assert_array_equal(bits_of(one.interpreted(a)), bits_of(np.flip(a, axis)))
    np.testing.assert_array_equal(bits_of(one.emulated(SM_90A, a)), bits_of(np.flip(a, axis)))


LAYOUTS = (
    natural((2, 1024), WARPS),
    natural((64, 8), 6),
    natural((3, 32, 20), 3),
    Layout(2, (Digit(3, 0, 1), Digit(2, 1, 4)), (Digit(2, 1, 1), Digit(4), Digit(4, 0, 3)), (Digit(3), Digit(2, 1, 2))),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_partners_have_the_element(layout: Layout) -> None:
    """Of every thread, every mask: the register of the other thread that stands for the partner's coordinates."""
    lanes, warps = 32, prod(digit.extent for digit in layout.warps)
    for axis, extent in enumerate(layout.covered):
        if extent & (extent - 1) or not is_binary(layout, axis):
            continue
        for mask in range(1, extent):
            parts, registers = parts_of(layout, axis, mask), partners(layout, axis, mask)
            for warp in range(warps):
                other = warp
                for weight, count, turned in parts.warps:
                    digit = warp // weight % count
                    other += ((digit ^ turned) - digit) * weight
                for register, lane in ((r, n) for r in range(layout.num_registers) for n in range(lanes)):
                    here = layout.coordinates(register, lane, warp)
                    there = layout.coordinates(registers[register], lane ^ parts.lanes, other)
                    assert there == (*here[:axis], here[axis] ^ mask, *here[axis + 1 :])


def test_a_layout_that_counts_in_threes_is_not_binary() -> None:
    assert not is_binary(Layout(1, (Digit(3, 0, 1), Digit(2, 0, 3)), (Digit(32),), (Digit(1),)), 0)
    assert is_binary(Layout(2, (Digit(3, 0, 1), Digit(2, 1, 1)), (Digit(32),), (Digit(1),)), 1)


def test_only_bits_of_the_warp_index_need_shared_memory() -> None:
    for name, mask in MASKS.items():
        one = One(f"tl.butterfly(a, 1, {mask})", "f32", SHAPE, (("f32", SHAPE),))
        ops = [type(op) for op in prepare(one.function(), SM_90A, Overrides(warps=WARPS)).body.walk()]
        through_scratch = name in ("warps", "all")
        assert (ButterflyStore in ops, ButterflyLoad in ops, Butterfly in ops) == (
            through_scratch,
            through_scratch,
            not through_scratch,
        )
        assert one.ptx(SM_90A, WARPS)[0].count("shfl.sync.bfly") == (16 if "lanes" in name else 0)


def lose_the_store(function: Function) -> None:
    drop(function, first(function, ButterflyStore))


def lose_the_barrier(function: Function) -> None:
    """The one between the store and the load."""
    load = first(function, ButterflyLoad)
    ops = block_of(function, load).ops
    assert isinstance(ops[ops.index(load) - 1], Barrier)
    del ops[ops.index(load) - 1]


def load_another_layout(function: Function) -> None:
    first(function, ButterflyLoad).result.layout = natural((2, 1024), WARPS, vector=4)


def pass_elements_directly(function: Function) -> None:
    """A butterfly between warps by itself."""
    load, store = first(function, ButterflyLoad), first(function, ButterflyStore)
    assert isinstance(load, ButterflyLoad)
    direct = Butterfly(axis=load.axis, mask=load.mask, operands=[store.operands[1]], results=load.results)
    direct.result.owner = direct
    ops = block_of(function, load).ops
    ops[ops.index(load)] = direct


def first(function: Function, kind: type[Op]) -> Op:
    return next(op for op in function.body.walk() if type(op) is kind)


@pytest.mark.parametrize("mistake", [lose_the_store, lose_the_barrier, load_another_layout, pass_elements_directly])
def test_the_verifier_of_schedules_refuses_mistakes(mistake: Callable[[Function], None]) -> None:
    one = One("tl.butterfly(a, 1, 256)", "f32", SHAPE, (("f32", SHAPE),))
    function = prepare(one.function(), SM_90A, Overrides(warps=WARPS))
    verify(function, SM_90A)
    mistake(function)
    with pytest.raises(VerifyError):
        verify(function, SM_90A)


@pytest.mark.parametrize(
    ("expression", "left"),
    [("tl.butterfly(tl.butterfly(a, 0, 3), 0, 3)", 0), ("tl.butterfly(tl.butterfly(a, 0, 3), 0, 2)", 2),
     ("tl.butterfly(tl.full((32,), 2.0, tl.f32), 0, 3)", 0), ("tl.butterfly(tl.broadcast_to(tl.sum(a), (32,)), 0, 3)", 0),
     ("tl.butterfly(a, 0, 0)", 0)],
)  # fmt: skip
def test_exchanges_of_equal_elements_vanish(expression: str, left: int) -> None:
    function = canonicalize(One(expression, "f32", (32,), (("f32", (32,)),)).function())
    assert sum(isinstance(op, Butterfly) for op in function.body.walk()) == left


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.butterfly(a, 1, 1)", "E0202: `butterfly` takes a power of two of elements, axis 1 has 24; load 32 elements with "
      "`pad=`"),
     ("tl.flip(a, -1)", "E0202: `flip` takes a power of two of elements, axis 1 has 24; load 32 elements with `pad=`"),
     ("tl.butterfly(a, 0, 4)", "E0203: `butterfly` has no partner at `i ^ 4`; positions along an axis of 4 have masks from 0 "
      "to 3"),
     ("tl.butterfly(a, 0, -1)", "E0203: `butterfly` has no partner at `i ^ -1`; positions along an axis of 4 have masks from 0 "
      "to 3"),
     ("tl.butterfly(a, 0, tl.bid(0))", "E0203: the mask of `butterfly` is static, found a scalar of i32; pass an integer"),
     ("tl.butterfly(a, 2, 1)", "E0203: no axis `2` in a tile with 2 axes; name an axis from 0 to 1"),
     ("tl.flip(tl.bid(0), 0)", "E0206: `flip` takes a tile, found a scalar; a scalar has no axis")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(One(expression, "f32", (4, 24), (("f32", (4, 24)),)).text) == message
