"""Rules of the checkers that simulate rings or follow demands: what they count and evaluate, and what they leave alone."""

from __future__ import annotations

import pytest

from tests.passes.builder import Access, Kernel
from tests.tensor_products import source
from tilec.ir import ops
from tilec.ir.core import Block, Function, VerifyError
from tilec.ir.ops.staging_ops import ScratchStore, SharedAlloc, SharedLoad, TensorCopy
from tilec.ir.text.parser import parse_function
from tilec.ir.types import ScratchType, TileType, bf16, boolean, f32, i8, i32
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks import bounds_fill_check, ring_check, width_check
from tilec.passes.schedule.checks.ring_check import _round_robin_runs  # pyright: ignore[reportPrivateUsage]
from tilec.passes.schedule.checks.ring_state import evaluate
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

# Rows that copies leave out

COPIED = """kernel @k(%a: in tensor<bf16, [M, K], align 16>, %n: i32) {
  constants {}
  dims [M, K]
  strides []
  grid [1]
  warps 4
  requires K % 8 == 0
  %0 = constant {value = 0} : i32
  wait_prior
  %1 = ring {sync = "mbarriers", offset = 65536, readers = 4} : ring<2>
  %2 = shared_alloc %1 {offset = 0, alignment = 1024} : shared<bf16, [64, 64], stages 2>
  tensor_copy %a, %2, %0, %n, %0 {row_axis = -2, sub_tiles = 1, unsafe = none}
  shared_free %2, %1
}
"""


def with_unfilled_copy() -> tuple[Function, TensorCopy]:
    """A kernel that copies rows of a tensor, fills none outside of it, and so far reads none."""
    function = parse_function(COPIED)
    (copy,) = (op for op in function.body.ops if isinstance(op, TensorCopy))
    copy.unfilled = True
    return function, copy


def test_an_operation_that_reads_a_buffer_asks_for_all_of_its_rows() -> None:
    """A copy only writes its buffer, and asks for none; nor does a load that nothing uses."""
    function, copy = with_unfilled_copy()
    bounds_fill_check.check(function)
    load = SharedLoad(operands=[copy.buffer, copy.stage])
    load.define(TileType(bf16, (64, 16)))
    scratch = SharedAlloc(offset=1 << 17)
    scratch.define(ScratchType(2048))
    store = ScratchStore(operands=[scratch.result, load.result], steps=(16, 1))
    index = function.body.ops.index(copy) + 1
    function.body.ops[index:index] = [load]
    bounds_fill_check.check(function)
    function.body.ops[index + 1 : index + 1] = [scratch, store]
    with pytest.raises(VerifyError, match="tensor_copy of `a` leaves out rows that are asked for"):
        bounds_fill_check.check(function)


# Rings that consumers read round-robin


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("consumers", [2, 3])
def test_tiles_are_simulated_until_their_first_ring_positions_repeat(stages: int, consumers: int) -> None:
    """A position is a stage and a parity. Every position at which a tile can begin occurs before each consumer's last
    tile, for all iteration counts up to twice the stages and one more."""
    runs = _round_robin_runs(stages, consumers)
    tiles_of: dict[int, int] = {}
    for iterations, tiles, _ in runs:
        tiles_of[iterations] = max(tiles, tiles_of.get(iterations, 0))
    positions = 2 * stages
    assert set(range(positions + 2)) <= tiles_of.keys()
    for iterations, tiles in tiles_of.items():
        possible = {tile * iterations % positions for tile in range(positions)}
        assert {tile * iterations % positions for tile in range(tiles - consumers)} == possible
    few = {(iterations, tiles, "") for iterations in (1, stages) for tiles in range(consumers + 2)}
    assert few <= set(runs)  # and runs in which some consumer has no tile, or one has a second


def test_a_loop_without_a_ring_has_no_number_of_tiles() -> None:
    """Its bounds are not known, and nothing in it depends on them."""
    function = prepare(
        source("bf16", 64, 64), SM_90A, Overrides(copy="tma", persistent=True, order="pingpong", consumers=2, stages=2)
    )
    bounds = [ops.DimValue(symbol=name) for name in ("M", "N", "K")]
    for op in bounds:
        op.define(TileType(i32))
    body = Block(ops=[ops.Yield()])
    body.add_argument(TileType(i32), "j")
    function.body.ops += [*bounds, ops.For(operands=[op.result for op in bounds], regions=[body], variable="j")]
    ring_check.check(function)


# Scalars


def test_a_simulation_knows_no_floats() -> None:
    """A cast to a float may round, so it is no integer; integers of the same kernel are known."""
    k = Kernel(1)
    number, zero = k.c(2**24 + 1), k.c(0)
    env = {number: 2**24 + 1, zero: 0}
    results: dict[str, int | None] = {}
    for dtype in (f32, bf16, i8, boolean):
        cast = k.emit(ops.Cast(operands=[number]), TileType(dtype))
        results[dtype.name] = evaluate(cast, env)
    assert results == {"f32": None, "bf16": None, "i8": 1, boolean.name: 1}
    total = k.op("add", number, number).owner
    assert isinstance(total, ops.Binary) and evaluate(total, env) == 2**25 + 2


# Integer widths


def test_a_shift_of_an_index_is_left_to_the_prover() -> None:
    """Only authors write shifts, so the prover has their obligations; what passes compute from one is checked."""
    k = Kernel("N")
    x, n = k.tensor("x", Access.IN, "N"), k.dim("N")
    shifted = k.op("shl", n, n)
    k.load(x, shifted, shape=(1,))
    width_check.check(k.function)
    k.load(x, k.op("add", shifted, shifted), shape=(1,))
    with pytest.raises(VerifyError, match=r"`add` at k\.py:.* may leave i32"):
        width_check.check(k.function)
