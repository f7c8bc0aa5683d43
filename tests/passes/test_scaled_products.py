"""Products whose sums are scaled block by block, in persistent blocks on `wgmma`: the order of an iteration, loads ahead,
stores by TMA from parts of a tile's columns, planted mistakes, and what machine code keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import campaign, shipped
from tests.passes.schedule_mutants import mutants
from tests.programs.machines import manifest
from tilec.assemble import sass
from tilec.assemble.jit_link import assemble
from tilec.atoms import stmatrix, wgmma
from tilec.codegen import to_ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.ir.core import Function, Op, VerifyError
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops import Constant, For, Gather, If, Load
from tilec.ir.ops.staging_ops import GroupMma, LoadAhead, RegisterGroupMma, Relayout, ScratchStore, WaitMma
from tilec.ir.ops.store_ops import TensorStore
from tilec.ir.ops.sync_ops import Release, Roles
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

TILES: list[tuple[str, dict[str, Any]]] = [
    (entry.name, constants)
    for entry in shipped.all_entries()
    if entry.name in ("matmul_fp8", "matmul_silu_mul_fp8") and SM_90A in entry.targets
    for constants in entry.specialisations()
    if constants["E"] == "bf16" and constants["PART"] == 64
]
"""Tiles of prompts. Those of at most 256 rows have parts of 16 or 32 columns, and load their scales in other orders."""
IDS = [f"{name}-{constants['BM']}x{constants['BN']}-{constants['AHEAD']}" for name, constants in TILES]
REFUSED = (
    "acquire dropped", "commit dropped", "wait dropped", "release doubled", "tensor_copy dropped", "proxy_fence dropped",
    "wait doubled", "tensor_copy doubled", "wrong bytes", "wrong readers", "swapped roles", "roles of other warps",
    "loop begins elsewhere", "loop of other turns", "barrier of other threads",
)  # fmt: skip
SOURCE = '''"""Products."""

import tilec as tl


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


class K(tl.Dim):
    """depth"""


@tl.kernel
def products(x: tl.In[tl.bf16, M, K], w: tl.In[tl.bf16, N, K], scale: tl.In[tl.f32, K, N], first: tl.i32,
             out: tl.Out[tl.bf16, M, N]):
    tl.requires(K % 64 == 0, N % 8 == 0, first >= 0, first <= 100)
    columns = tl.cdiv(N, 64)
    tl.grid(tl.cdiv(M, 128) * columns)
    tl.requires(tl.cdiv(M, 128) * columns <= 2147483647)
    m, n = tl.bid(0) // columns, tl.bid(0) % columns
    total = tl.zeros((128, 64), tl.f32)
{before}    for k in range(first, K // 64):
        a = tl.load(x, (m, {left}), shape=(128, 64), pad=0)
        b = tl.load(w, (n, k), shape=(64, 64), pad=0)
        s = tl.load(scale, (k, n), shape=(1, 64), pad=0)
        total += tl.mma({operand}, b.T, tl.zeros((128, 64), tl.f32)) * s
    tl.store(out, (m, n), tl.astype(total, tl.bf16), mask=True)
'''
PERSISTENT = Overrides(copy="tma", consumers=2, stages=3, persistent=True)


def written(folder: Path, before: str = "", left: str = "k", operand: str = "a") -> Function:
    (folder / "products.py").write_text(SOURCE.format(before=before, left=left, operand=operand))
    return load_kernel(folder / "products.py", {}, root=folder)


@cache
def text_of(number: int) -> str:
    name, constants = TILES[number]
    return print_function(shipped.prepared(name, SM_90A, constants))


def consumers(function: Function) -> list[Op]:
    """The loop over a tile's blocks, with the operations that it consists of."""
    (roles,) = (op for op in function.body.ops if isinstance(op, Roles))
    (tiles,) = (op for op in roles.regions[0].ops if isinstance(op, For))
    (loop,) = (op for op in tiles.regions[0].walk() if isinstance(op, For))
    return list(loop.regions[0].walk())


@pytest.mark.parametrize(("name", "constants"), TILES, ids=IDS)
def test_sums_are_added_while_the_next_block_is_multiplied(name: str, constants: dict[str, Any]) -> None:
    """Every product begins with sums of zero; each wait leaves those that started later."""
    ops, ahead = consumers(shipped.prepared(name, SM_90A, constants)), constants["AHEAD"]
    order = [op for op in ops if isinstance(op, GroupMma | WaitMma)]
    assert "".join("G" if isinstance(op, GroupMma) else "W" for op in order) == "G" * ahead + "W" * ahead
    assert [op.pending for op in order if isinstance(op, WaitMma)] == list(reversed(range(ahead)))
    for op in order[:ahead]:
        zero = op.operands[-1].owner
        zero = zero.operands[0].owner if isinstance(zero, Relayout) else zero
        assert isinstance(zero, Constant) and zero.value == 0
    assert sum(isinstance(op, Release) for op in ops) == 2 * ahead
    assert not any(isinstance(op, ScratchStore) for op in ops)


@pytest.mark.parametrize(("name", "constants"), TILES, ids=IDS)
def test_scales_are_loaded_an_iteration_ahead(name: str, constants: dict[str, Any]) -> None:
    """Scales of rows and of blocks: all loads of the loop are for the next iteration, after its first product started; but for
    tiles of 192 rows, whose three consumers leave a thread no registers for them: there they are loaded before the product."""
    ops, ahead = consumers(shipped.prepared(name, SM_90A, constants)), constants["AHEAD"]
    loads = [op for op in ops if isinstance(op, Load | Gather)]
    if constants["BM"] == 192:
        assert [type(op) for op in loads] == [Load, Gather]
        assert max(map(ops.index, loads)) < next(index for index, op in enumerate(ops) if isinstance(op, GroupMma))
        return
    assert sum(isinstance(op, LoadAhead) for op in loads) == ahead == sum(isinstance(op, Gather) for op in loads)
    assert len(loads) == 2 * ahead
    first = next(index for index, op in enumerate(ops) if isinstance(op, GroupMma))
    last = next(index for index, op in enumerate(ops) if isinstance(op, WaitMma))
    assert first < min(map(ops.index, loads)) and max(map(ops.index, loads)) < last


@pytest.mark.parametrize(("name", "constants"), campaign.one_of_each(TILES, lambda case: (case[1]["AHEAD"], case[1]["LATE"])))
def test_machine_code_waits_and_spills_no_more_than_the_kernel(name: str, constants: dict[str, Any]) -> None:
    """ptxas injects a wait for all products wherever it cannot tell which registers one may still write, such as sums that are
    added in the next iteration."""
    lowered = lower(shipped.prepared(name, SM_90A, constants), SM_90A)
    counts = sass.instructions(sass.disassemble(assemble(to_ptx(lowered.mlir, SM_90A), SM_90A).cubin))
    found = {
        kind: sum(count for op, count in counts.items() if op.startswith(kind))
        for kind in ("QGMMA", "WARPGROUP.DEPBAR", "LDL", "STL")
    }
    ahead = constants["AHEAD"]
    assert found == {"QGMMA": 4 * ahead, "WARPGROUP.DEPBAR": ahead, "LDL": 0, "STL": 0}


def test_results_are_stored_by_tma_from_parts_of_columns() -> None:
    """Columns that share a scale are digits of their own in the layout of the sums, whose registers are those of a product."""
    for columns in (128, 192):
        layout = wgmma.accumulator(128, columns, 8)
        (whole,) = (digit for digit in layout.registers if digit.extent == columns // 8)
        parts = (Digit(8, whole.axis, whole.stride), Digit(columns // 64, whole.axis, 8 * whole.stride))
        registers = tuple(part for digit in layout.registers for part in (parts if digit is whole else (digit,)))
        divided = Layout(layout.rank, registers, layout.lanes, layout.warps)
        assert divided != layout and stmatrix.fits(divided, 128, columns, 8)
        swapped = tuple(reversed(parts))
        registers = tuple(part for digit in layout.registers for part in (swapped if digit is whole else (digit,)))
        assert not stmatrix.fits(Layout(layout.rank, registers, layout.lanes, layout.warps), 128, columns, 8)
    for number in range(len(TILES)):
        assert any(isinstance(op, TensorStore) for op in parse_function(text_of(number)).body.walk())


@pytest.mark.parametrize("number", campaign.first(2, range(len(TILES))))
def test_a_wait_for_fewer_products_is_refused(number: int) -> None:
    waits = [index for index, op in enumerate(parse_function(text_of(number)).body.walk()) if isinstance(op, WaitMma)]
    for index in waits:
        function = parse_function(text_of(number))
        wait = list(function.body.walk())[index]
        assert isinstance(wait, WaitMma)
        wait.pending += 1
        with pytest.raises(VerifyError, match=r"not computed yet|gives back a stage that a product reads"):
            verify(function, SM_90A)
    assert waits


@pytest.mark.parametrize(("number", "every"), campaign.chosen([(0, 30), (1, 20), (2, 10), (3, 10)], lambda case: case[0] == 0))
def test_what_changes_an_order_is_refused(number: int, every: int) -> None:
    verify(parse_function(text_of(number)), SM_90A)
    found = list(mutants(text_of(number), every, REFUSED))
    assert len({mutant.kind for mutant in found}) > 10
    for mutant in found:
        with pytest.raises(VerifyError):
            verify(parse_function(mutant.text), SM_90A)
            pytest.fail(f"accepted: {mutant.kind}, {mutant.what}")


@pytest.mark.parametrize(("m", "n", "k", "first"), [(300, 136, 192, 0), (130, 72, 256, 3), (64, 64, 128, 2), (64, 64, 64, 7)])
def test_results_of_loops_of_few_or_no_iterations(m: int, n: int, k: int, first: int, tmp_path: Path) -> None:
    """Four persistent blocks share the tiles; a loop without iterations loads nothing."""
    ops = _emulated(m, n, k, first, lambda block: block, written(tmp_path), written(tmp_path))
    assert any(isinstance(op, LoadAhead) for op in ops) and any(isinstance(op, If) for op in ops)


def test_an_operand_that_stays_is_loaded_by_the_threads_of_each_tile(tmp_path: Path) -> None:
    """A block that processes one tile has it copied once."""
    staying = {"before": "    stays = tl.load(x, (m, 0), shape=(128, 64), pad=0)\n", "operand": "stays"}
    ops = _emulated(300, 136, 192, 1, lambda _: 0, written(tmp_path, **staying), written(tmp_path, **staying))
    assert any(isinstance(op, RegisterGroupMma) for op in ops) and not any(isinstance(op, GroupMma) for op in ops)
    once = prepare(written(tmp_path, **staying), SM_90A, Overrides(copy="tma", consumers=2, stages=3))
    assert any(isinstance(op, GroupMma) for op in once.body.walk())


def _emulated(m: int, n: int, k: int, first: int, left: Callable[[int], int], function: Function, again: Function) -> list[Op]:
    """Launches a kernel of `written` in persistent blocks and compares its result, where the left operand of a block of the
    depth is that of block `left`. Returns its operations."""
    schedule = choose(function, SM_90A, PERSISTENT)
    prepared = prepare(again, SM_90A, schedule)
    lowered = lower(prepared, SM_90A)
    random = np.random.default_rng(m)
    x, w, scale = random.normal(size=(m, k)), random.normal(size=(n, k)), random.normal(size=(k, n)).astype(np.float32)
    bits = {name: (value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for name, value in (("x", x), ("w", w))}
    wide = {name: (value.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for name, value in bits.items()}
    given: dict[str, Any] = {name: value.reshape(-1) for name, value in bits.items()}
    given |= {"scale": scale.reshape(-1), "out": np.full(m * n, 0x7FC0, np.uint16)}
    env = {"M": m, "N": n, "K": k, "first": first}
    report = emulate(to_ptx(lowered.mlir, SM_90A), manifest(prepared, lowered, SM_90A, schedule), given, env)
    assert report.clean, report
    exact = np.zeros((m, n))
    for block in range(first, k // 64):
        a, b = (wide[name][:, 64 * number : 64 * number + 64] for name, number in (("x", left(block)), ("w", block)))
        exact += a @ b.T * scale[block]
    found = (report.tensors["out"].view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(m, n)
    assert np.abs(found - exact).max() <= 2.0**-8 * np.abs(exact).max() + 1e-30
    return list(prepared.body.walk())
