"""`take` against NumPy's `take_along_axis`, bit by bit, and what the prover accepts against brute force."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import campaign
from tests.passes.schedule_edits import block_of, drop
from tests.words.kernels import One, refusal
from tests.words.test_joins import NUMBERS, any_bits, bits_of
from tests.words.test_proofs_of_moves import Given, scattered
from tilec.diagnostics.diagnostic import CompileError
from tilec.interpreter.arithmetic import PURE
from tilec.ir.core import Function, Op, VerifyError
from tilec.ir.layouts.blocked_layouts import natural
from tilec.ir.ops import Take
from tilec.ir.ops.staging_ops import ScratchStore
from tilec.ir.ops.sync_ops import Barrier
from tilec.ir.ops.take_ops import TakeLoad
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A

SHAPE, INDICES, WARPS = (4, 64), (4, 96), 4


def taking(shape: tuple[int, ...], indices: tuple[int, ...], axis: int, dtype: str = "f32") -> One:
    """`take` with indices modulo the extent."""
    extent = shape[axis]
    others = tuple(max(a, b) for a, b in zip(shape, indices, strict=True))
    result = (*others[: axis % len(shape)], indices[axis], *others[axis % len(shape) + 1 :])
    return One(f"tl.take(a, b % {extent}, {axis})", dtype, result, ((dtype, shape), ("i32", indices)))


def along(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    """NumPy's function, whose other axes broadcast too."""
    wide = [max(x, y) for x, y in zip(a.shape, b.shape, strict=True)]
    shapes = [[*wide] for _ in "ab"]
    shapes[0][axis], shapes[1][axis] = a.shape[axis], b.shape[axis]
    return np.take_along_axis(np.broadcast_to(a, shapes[0]), np.broadcast_to(b % a.shape[axis], shapes[1]), axis)


def any_indices(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, shape, dtype=np.int32)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_no_bit_changes(dtype: str) -> None:
    a, b = any_bits(dtype, SHAPE, 7), any_indices(INDICES, len(dtype))
    one, expected = taking(SHAPE, INDICES, 1, dtype), bits_of(along(a, b, 1))
    np.testing.assert_array_equal(bits_of(one.interpreted(a, b)), expected)
    target = MAIN_TARGETS[NUMBERS.index(dtype) % len(MAIN_TARGETS)]
    np.testing.assert_array_equal(bits_of(one.emulated(target, a, b, warps=WARPS)), expected)


def test_on_every_architecture() -> None:
    a, b = any_bits("f32", (32, 8), 1), any_indices((64, 8), 2)
    np.testing.assert_array_equal(bits_of(taking((32, 8), (64, 8), 0).agreed(a, b)), bits_of(along(a, b, 0)))


def test_booleans() -> None:
    a, b = any_bits("i8", (64,), 3), any_indices((64,), 4)
    one = One("tl.where(tl.take(a > 9, b & 63, 0), 1, 0)", "i32", (64,), (("i8", (64,)), ("i32", (64,))))
    np.testing.assert_array_equal(one.agreed(a, b), a[b & 63] > 9)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_shape(data: st.DataObject) -> None:
    """Extents that are no powers of two, axes that broadcast, elements that several threads have."""
    extents = st.sampled_from((1, 2, 3, 5, 8, 20, 32))
    rank = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(0, rank - 1))
    shape, indices = (data.draw(st.lists(extents, min_size=rank, max_size=rank)) for _ in "ab")
    for other in range(rank):
        if other != axis:
            shape[other], indices[other] = data.draw(
                st.sampled_from(((shape[other], shape[other]), (1, shape[other]), (shape[other], 1)))
            )
    dtype = data.draw(st.sampled_from(("f32", "bf16", "u8", "i64")))
    a, b = any_bits(dtype, (8, *shape), rank)[0], any_indices(tuple(indices), axis)
    one = taking(tuple(shape), tuple(indices), axis - rank, dtype)
    expected = bits_of(along(a, b, axis))
    np.testing.assert_array_equal(bits_of(one.interpreted(a, b)), expected)
    found = one.emulated(SM_90A, a, b, warps=data.draw(st.sampled_from((1, 2, 3, 4))))
    np.testing.assert_array_equal(bits_of(found), expected)


def test_a_tile_that_is_computed_and_indices_in_another_layout() -> None:
    """The tile is transposed, and the indices are sums over an axis."""
    a, b = any_bits("f32", (16, 32), 5), any_indices((8, 4, 32), 6)
    one = One("tl.take(a.T, (tl.sum(b, axis=1) & 15).T, 1)", "f32", (32, 8), (("f32", (16, 32)), ("i32", (8, 4, 32))))
    np.testing.assert_array_equal(bits_of(one.agreed(a, b)), bits_of(along(a.T, (b.sum(1) & 15).T, 1)))


WITHIN = (
    "tl.take(tl.arange(64), tl.arange(64), 0)",
    "tl.take(tl.arange(64), 63 - tl.arange(64), 0)",
    "tl.take(tl.arange(64), tl.argsort(a, 0), 0)",
    "tl.take(tl.argsort(a, 0), tl.flip(tl.arange(64), 0), 0)",
    "tl.take(tl.arange(128), tl.arange(64) * 2, 0) // 2",
)
REFUSED = {
    "tl.take(tl.arange(64), tl.arange(64) + 1, 0)": "E0308",
    "tl.take(tl.arange(64), tl.arange(64) - 1, 0)": "E0308",
    "tl.take(tl.arange(64), tl.load(b_, 0, shape=(64,)), 0)": "E0308",
    "tl.take(tl.arange(32), tl.arange(64), 0)": "E0308",
    "tl.take(tl.arange(64), tl.abs(tl.load(b_, 0, shape=(64,))) % 64, 0)": "E0404",
    "tl.take(tl.arange(64), tl.arange(64) // 2, 0)": "E0404",
    "tl.take(tl.arange(65), tl.arange(64) + 1, 0)": "E0303",
    "tl.take(tl.arange(64) // 2, tl.arange(64), 0)": "E0404",
    "tl.where(a > 0, tl.take(tl.arange(64), tl.arange(64) + tl.where(a > 0, 0, 1), 0), 0)": "E0308",
    "tl.take(tl.arange(64), tl.arange(64) * 67108865, 0)": "E0304",
}


@pytest.mark.parametrize("index", WITHIN)
def test_the_prover_knows_what_is_taken(index: str) -> None:
    """A scatter to it writes each element once."""
    assert scattered(index).function() is not None


@pytest.mark.parametrize("index", REFUSED)
def test_an_index_that_may_be_outside_is_refused(index: str) -> None:
    with pytest.raises(CompileError) as caught:
        scattered(index).function()
    assert REFUSED[index] in {one.code for one in caught.value.diagnostics}


def test_no_index_is_trusted() -> None:
    """An `unsafe` block is about accesses of tensors."""
    source = One("a", "f32", (64,), (("f32", (64,)), ("i32", (64,)))).text
    body = '    with tl.unsafe("trust me"):\n        v = tl.take(a, b, 0)\n    tl.store(out, (0,), v)\n'
    text = source.replace("    tl.store(out, (0,), a)\n", body)
    with pytest.raises(CompileError) as caught:
        Given("", "f32", (64,), (), text).function()
    assert [one.code for one in caught.value.diagnostics] == ["E0308"]
    assert caught.value.diagnostics[0].counterexample is not None


def random_index(r: random.Random, depth: int) -> str:
    """Positions of 16 elements, which may repeat or leave 0..16."""
    if not depth:
        return r.choice(("tl.arange(16)", "b", "(b & 15)", "tl.argsort(a, 0)"))
    inner, roll = random_index(r, depth - 1), r.random()
    if roll < 0.35:
        return f"tl.take({random_index(r, depth - 1)}, {inner}, 0)"
    forms = ("({} & 15)", "({} ^ 5)", "(15 - {})", "({} // 2)", "({} + 3)", "({} - 1)", "({} * 2)", "({} % 16)",
             "tl.minimum({}, 15)", "tl.maximum({}, 0)", "tl.where(a > 0, {}, 7)", "tl.where({0} < 16, {0}, 0)")  # fmt: skip
    return r.choice(forms).format(inner)


@pytest.mark.parametrize("seed", campaign.first(3, range(12)))
def test_no_accepted_take_reads_outside(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By brute force: every index of what the prover accepts, for all data that is tried, is a position."""
    r, data, seen = random.Random(f"takes {seed}"), np.random.default_rng(seed), list[tuple[int, int, int]]()
    take = PURE[Take]

    def watched(op: Take, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        seen.append((int(indices.min()), int(indices.max()), x.shape[op.axis]))
        return take(op, x, indices)

    monkeypatch.setitem(PURE, Take, watched)
    for _ in range(30):
        index = f"tl.take(b, {random_index(r, r.choice((1, 2, 3)))}, 0)"
        one = One(index, "i32", (16,), (("f32", (16,)), ("i32", (16,))))
        try:
            one.function()
        except CompileError:
            continue
        for count in (1, 16, 2**31):
            a = data.integers(-3, 3, 16).astype(np.float32)
            one.interpreted(a, data.integers(-count, count, 16).astype(np.int32))
    assert len(seen) > 10
    assert all(low >= 0 and high < extent for low, high, extent in seen)


def first(function: Function, kind: type[Op]) -> Op:
    return next(op for op in function.body.walk() if type(op) is kind)


def lose_the_store(function: Function) -> None:
    drop(function, first(function, ScratchStore))


def lose_the_barrier(function: Function) -> None:
    """The one between the store and the load."""
    load = first(function, TakeLoad)
    ops = block_of(function, load).ops
    assert isinstance(ops[ops.index(load) - 1], Barrier)
    del ops[ops.index(load) - 1]


def store_in_other_rows(function: Function) -> None:
    store = first(function, ScratchStore)
    assert isinstance(store, ScratchStore)
    store.steps = (1, 4)


def take_from_another_shape(function: Function) -> None:
    load = first(function, TakeLoad)
    assert isinstance(load, TakeLoad)
    load.source = (4, 63)


def indices_in_another_layout(function: Function) -> None:
    load = first(function, TakeLoad)
    load.result.layout = natural(INDICES, WARPS, vector=4)


def take_directly(function: Function) -> None:
    load, store = first(function, TakeLoad), first(function, ScratchStore)
    direct = Take(axis=1, operands=[store.operands[1], load.operands[1]], results=load.results)
    direct.result.owner = direct
    ops = block_of(function, load).ops
    ops[ops.index(load)] = direct


MISTAKES = (
    lose_the_store, lose_the_barrier, store_in_other_rows, take_from_another_shape, indices_in_another_layout, take_directly,
)  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_verifier_of_schedules_refuses_mistakes(mistake: Callable[[Function], None]) -> None:
    function = prepare(taking(SHAPE, INDICES, 1).function(), SM_90A, Overrides(warps=WARPS))
    verify(function, SM_90A)
    mistake(function)
    with pytest.raises(VerifyError):
        verify(function, SM_90A)


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.take(a, b, 2)", "E0203: no axis `2` in a tile with 2 axes; name an axis from 0 to 1"),
     ("tl.take(a, b.astype(tl.i64), 1)", "E0204: the indices of `take` are i32, found i64; convert them with `.astype(i32)`"),
     ("tl.take(a, a, 1)", "E0204: the indices of `take` are i32, found f32; convert them with `.astype(i32)`"),
     ("tl.take(a, tl.arange(8), 1)", "E0202: the indices of `take` have the axes of the tile: (8,) for (4, 24); insert axes of "
      "extent 1: `[None, :]`"),
     ("tl.take(a, tl.arange(8), 0)", "E0202: the indices of `take` have the axes of the tile: (8,) for (4, 24); insert axes of "
      "extent 1: `[:, None]`"),
     ("tl.take(a, b.reshape((2, 4, 3)), 0)", "E0202: the indices of `take` have the axes of the tile: (2, 4, 3) for (4, 24); "
      "give one index for each element to take"),
     ("tl.take(a, b, 0)", "E0202: shapes (1, 24) and (1, 6) do not broadcast; insert axes of extent 1 with `[:, None]` or "
      "`[None, :]`"),
     ("tl.take(a, 3, 0)", "E0206: `take` takes a tile of indices, found a scalar; make a tile of them: "
      "`full(shape, index, i32)`"),
     ("tl.take(tl.bid(0), b, 0)", "E0206: `take` takes a tile, found a scalar; a scalar has no axis")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(One(expression, "f32", (4, 6), (("f32", (4, 24)), ("i32", (4, 6)))).text) == message
