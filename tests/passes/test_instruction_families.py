"""Families of matrix instructions agree with atoms, targets and schedules; layouts say their memory space."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests import shipped
from tests.shipped import ROOT
from tilec.atoms import mma_sync, tcgen05, wgmma
from tilec.atoms.mma_sync import WarpGrid
from tilec.atoms.products import ATOMS as ATOMS_OF_PRODUCTS
from tilec.codegen.legality import check
from tilec.diagnostics.diagnostic import CompileError
from tilec.ir.core import VerifyError
from tilec.ir.layouts.blocked_layouts import natural
from tilec.ir.layouts.conversion_scratch import moves_space
from tilec.ir.layouts.layout import register_map
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.text.tokens import ParseError
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.passes.schedule.layouts.conversions import convert
from tilec.target import families
from tilec.target.families import (
    CP_ASYNC,
    FAMILIES,
    LOAD,
    MMA_SYNC,
    PRODUCER,
    TCGEN05,
    TMA,
    WGMMA,
    Family,
    Helper,
    Issuer,
    MemorySpace,
    Specialization,
    Work,
    family_named,
)  # fmt: skip
from tilec.target.schedule import COPIES, ORDERS, PINGPONG, PRODUCTS, REGISTERS, STORES, Schedule, block_roles, fed_family
from tilec.target.targets import MAIN_TARGETS, SM_90A, SM_120A, TARGETS, Target

ATOMS = (mma_sync, wgmma, tcgen05)
ELSEWHERE = """kernel @k(%a: i32) {
  constants {}
  dims []
  strides []
  grid [1]
  warps 4
  %0 = constant {value = 0x0.0p+0} : f32[64, 64]
  %1 = unary %0 {kind = "neg"} : f32[64, 64]
}
"""
ACCUMULATOR = wgmma.accumulator(64, 64, 4)


def test_every_family_has_one_atom_and_a_name_of_its_own() -> None:
    assert [atom.FAMILY for atom in ATOMS] == [*FAMILIES]
    assert [family_named(name) for name in PRODUCTS] == [*FAMILIES]
    assert {*ATOMS_OF_PRODUCTS} == {family.name for family in FAMILIES if family.runs_ahead}
    assert family_named("tcgen06") is None


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_only_its_definition_and_its_atom_write_its_name(family: Family) -> None:
    """Emulator and audit are independent checkers with their own names of instructions."""
    pattern = re.compile(f"""["']{family.name}["']""")
    found = {path.relative_to(ROOT) for path in (ROOT / "tilec").rglob("*.py") if pattern.search(path.read_text())}
    assert {path for path in found if path.parts[1] not in ("emulator", "audit")} == {Path("tilec/target/families.py")}


def test_accumulators_say_where_they_are() -> None:
    for layout, family in ((mma_sync.accumulator(16, 8, WarpGrid(1, 1)), mma_sync.FAMILY), (ACCUMULATOR, WGMMA)):
        assert layout.space is family.accumulators
        assert layout.problem((family.shape.rows, 8 if family is not WGMMA else 64), family.issuer.warps) is None


def test_roles_use_up_the_registers_of_a_multiprocessor() -> None:
    parts = WGMMA.specialization
    assert parts is not None and parts.consumer_warps == WGMMA.issuer.warps == Issuer.WARPGROUP.warps
    for consumers in parts.reallocation:
        for order in ORDERS:
            roles = block_roles(WGMMA, consumers, reallocates=True, order=order)
            assert [role.is_single_thread for role in roles] == [*(False for _ in roles[:-1]), True]
            total = sum(32 * role.warps * (role.registers or 0) for role in roles)
            assert REGISTERS - 32 * 4 * 8 * len(roles) < total <= REGISTERS


def test_roles_are_consumers_and_the_helpers_of_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Helper("issuer", 1, Work.MULTIPLY)
    parts = Specialization(4, (PRODUCER, issuer), 2, {})
    issued = replace(WGMMA, issuer=Issuer.THREAD, specialization=parts)
    monkeypatch.setattr(families, "FAMILIES", (issued,))
    roles = block_roles(issued, 2)
    assert [(role.name, role.warps, role.helper) for role in roles] == [
        ("consumer", 8, None), ("producer", 4, PRODUCER), ("issuer", 1, issuer),
    ]  # fmt: skip
    assert [role.is_single_thread for role in roles] == [False, True, True]
    assert Schedule(block_roles(issued, 2, order=PINGPONG), order=PINGPONG).consumer_roles == 2


def test_threads_compute_on_accumulators_of_another_memory_in_registers() -> None:
    in_tensor, row_layout = ACCUMULATOR.in_space(MemorySpace.TENSOR), natural((64, 64), 4)
    assert moves_space(in_tensor, ACCUMULATOR) and not moves_space(ACCUMULATOR, ACCUMULATOR)
    assert not moves_space(in_tensor, row_layout) and in_tensor.num_values == 1
    function = parse_function(ELSEWHERE)
    function.body.ops[0].result.layout, function.body.ops[1].result.layout = in_tensor, row_layout
    moved = convert(function).body.ops[1:3]
    assert [op.opcode for op in moved] == ["relayout", "relayout"]
    assert [op.result.layout for op in moved] == [ACCUMULATOR, row_layout]


def test_issuers_share_a_product() -> None:
    assert [WGMMA.issuers(warps) for warps in (1, 4, 6, 8)] == [0, 1, 0, 2]
    assert [FAMILIES[0].issuers(warps) for warps in (1, 4)] == [1, 4]
    assert replace(WGMMA, issuer=Issuer.THREAD).issuers(6) == 1


def test_what_only_some_families_can_names_them() -> None:
    assert COPIES[TMA] == STORES[TMA] == (WGMMA, TCGEN05, MMA_SYNC) and ORDERS[PINGPONG] == (WGMMA, MMA_SYNC)
    assert not any(families for name, families in COPIES.items() if name != TMA)
    for target in TARGETS:
        assert target.has(FAMILIES[0])
    for target in MAIN_TARGETS:
        assert fed_family(TMA, target, "mma_sync") is MMA_SYNC
        preferred = next((family for family in (WGMMA, TCGEN05) if target.has(family)), MMA_SYNC)
        assert fed_family(TMA, target) is preferred


def test_copies_of_boxes_need_a_capability() -> None:
    """And those of a target without clusters name the block's own shared memory."""
    older = replace(SM_90A, capability=(8, 9))
    assert older.feeds(WGMMA, CP_ASYNC) and older.feeds(MMA_SYNC, LOAD) and not older.feeds(WGMMA, TMA)
    for target in MAIN_TARGETS:
        assert target.feeds(MMA_SYNC, TMA) and not target.feeds(WGMMA, LOAD)
        assert target.feeds(WGMMA, TMA) == target.has(WGMMA)
    assert [target.copies_into_own_block for target in MAIN_TARGETS] == [False, False, True]


def test_code_of_a_family_is_for_targets_that_have_it() -> None:
    code = 'call void asm sideeffect "wgmma.fence.sync.aligned;", ""()'
    check(code, SM_90A)
    with pytest.raises(CompileError, match="does not exist on sm_120a"):
        check(code, SM_120A)


def in_tensor_memory(text: str) -> str:
    """The tile IR with every tile in tensor memory."""
    return re.sub(r"(\| [^|>]*>)$", r"\1 in tensor", text, flags=re.MULTILINE)


def test_the_text_of_a_layout_has_its_memory_space() -> None:
    in_tensor = replace(ACCUMULATOR, space=MemorySpace.TENSOR)
    assert str(in_tensor) == f"{ACCUMULATOR} in tensor"
    assert register_map(ACCUMULATOR, in_tensor) is None
    assert register_map(in_tensor, in_tensor) == tuple(range(in_tensor.num_registers))
    text = print_function(prepare(shipped.load("add"), SM_90A))
    moved = in_tensor_memory(text)
    assert moved != text and print_function(parse_function(moved)) == moved
    for wrong in ("registers", "heap"):
        with pytest.raises(ParseError, match="expected a memory space"):
            parse_function(moved.replace("in tensor\n", f"in {wrong}\n"))


@pytest.mark.parametrize("target", [SM_90A, SM_120A], ids=str)
def test_targets_without_tensor_memory_have_no_tiles_there(target: Target) -> None:
    text = print_function(prepare(shipped.load("add"), target))
    verify(parse_function(text), target)
    with pytest.raises(VerifyError, match=f"no family of {target} has accumulators in tensor memory"):
        verify(parse_function(in_tensor_memory(text)), target)
