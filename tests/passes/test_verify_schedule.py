"""The independent verifier accepts the output of the passes and correctly ordered roles, and refuses both with one change."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests import shipped
from tests.campaign import chosen
from tilec.ir.core import Block, Function, Op, VerifyError
from tilec.ir.layouts.operand_layouts import operand_layouts
from tilec.ir.ops import Reduce
from tilec.ir.ops.reduction_ops import ReduceCombine, ReduceStore
from tilec.ir.ops.staging_ops import GroupMma, Relayout, ScratchLoad, ScratchStore, SharedAlloc
from tilec.ir.ops.sync_ops import Barrier, SharedFree
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

LAYOUT = "<2@1*1 2@0*8 8@1*8 1@0*64 | 4@1*2 8@0*1 | 4@0*16 1@0*64>"
ROLES = """kernel @k(%a: in tensor<bf16, [M, K], align 16>, %n: i32) {
  constants {}
  dims [M, K]
  strides []
  grid [1]
  warps 8
  requires K % 8 == 0
  %0 = constant {value = 0} : i32
  %1 = constant {value = 1} : i32
  %2 = constant {value = 3} : i32
  wait_prior
  %3 = ring {sync = "mbarriers", offset = 65536, readers = 4} : ring<4>
  %4 = shared_alloc %3 {offset = 0, alignment = 1024} : shared<bf16, [64, 64], stages 4>
  proxy_fence
  barrier {scope = "block"}
  roles {names = ["consumer", "producer"], warps = [4, 4], registers = [232, 40], alone = [false, true]} {
    %38 = constant {value = 0x0.0p+0} : f32[64, 64] ACCUMULATOR
    %11, %30 = for %0, %n, %1, %0, %0 {variable = "k"} : i32, i32 {
    ^(%12: i32, %13: i32, %31: i32)
      wait %3, %13, %31 {pending = 0}
      %14 = group_mma %4, %13, %4, %13, %38 {family = "wgmma"} : f32[64, 64] ACCUMULATOR
      %39 = wait_mma %14 {family = "wgmma", pending = 0} : f32[64, 64] ACCUMULATOR
      release %3, %13 {unreleased = 0}
      %15 = compare %13, %2 {kind = "eq"} : bool
      %16 = binary %13, %1 {kind = "add"} : i32
      %17 = select %15, %0, %16 : i32
      %32 = binary %1, %31 {kind = "sub"} : i32
      %33 = select %15, %32, %31 : i32
      yield %17, %33
    }
    barrier {scope = "role"}
  } {
    %5, %34 = for %0, %n, %1, %0, %0 {variable = "k"} : i32, i32 {
    ^(%6: i32, %7: i32, %35: i32)
      acquire %3, %7, %35 {expected = 8192}
      tensor_copy %a, %4, %7, %0, %6 {row_axis = -2, sub_tiles = 1, unsafe = none}
      commit %3
      %8 = compare %7, %2 {kind = "eq"} : bool
      %9 = binary %7, %1 {kind = "add"} : i32
      %10 = select %8, %0, %9 : i32
      %36 = binary %1, %35 {kind = "sub"} : i32
      %37 = select %8, %36, %35 : i32
      yield %10, %37
    }
  }
  shared_free %4, %3
}
""".replace("ACCUMULATOR", LAYOUT)


def test_roles_are_read_printed_and_in_order() -> None:
    function = parse_function(ROLES)
    text = print_function(function)
    assert print_function(parse_function(text)) == text
    assert (
        '  roles {names = ["consumer", "producer"], warps = [4, 4], registers = [232, 40], alone = [false, true]} {\n' in text
    )
    verify(function, SM_90A)


def test_register_reallocation_is_at_the_start_of_each_role() -> None:
    """Registers are reallocated from equal shares, so the assembler needs `minctasm`."""
    made = lower(parse_function(ROLES), SM_90A)
    assert made.num_threads == 256 and "nvvm.minctasm = 1" in made.mlir
    assert re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32 (\d+)", made.mlir) == [("dec", "232"), ("dec", "40")]
    assert "setmaxnreg" not in lower(parse_function(ROLES.replace("[232, 40]", "[0, 0]")), SM_90A).mlir


def test_one_role_is_the_block() -> None:
    """A kernel body wrapped into a single role gives the same code."""
    function = prepare(shipped.load("rms_norm"), SM_90A)
    plain = lower(function, SM_90A)
    text = print_function(function)
    wait = "  wait_prior {before = false}\n"
    head, _, body = text.partition(wait)
    warps = function.num_warps
    role = f'roles {{names = ["all"], warps = [{warps}], registers = [0], alone = [false]}}'
    wrapped = f"{head}{wait}  {role} {{\n{body[:-2]}  }}\n}}\n"
    parsed = parse_function(wrapped)
    verify(parsed, SM_90A)
    assert lower(parsed, SM_90A) == plain


WAIT = "      wait %3, %13, %31 {pending = 0}\n"
ACQUIRE = "      acquire %3, %7, %35 {expected = 8192}\n"
COPY = "      tensor_copy %a, %4, %7, %0, %6 {row_axis = -2, sub_tiles = 1, unsafe = none}\n"
RELEASE = "      release %3, %13 {unreleased = 0}\n"
DONE = '      %39 = wait_mma %14 {family = "wgmma", pending = 0}'
BROKEN = [
    (ACQUIRE, "", "goes into a stage that was not acquired"),
    (ACQUIRE, ACQUIRE + ACQUIRE, "names stage and parity (0, 0) where (1, 0) come next"),
    (ACQUIRE, ACQUIRE.replace("%35", "%0"), "names stage and parity (0, 0) where (0, 1) come next"),
    (ACQUIRE, ACQUIRE.replace("8192", "8190"), "copies bring 8192 bytes where 8190 are expected"),
    (ACQUIRE, ACQUIRE.replace("8192", "0"), "products fill its ring"),
    (ACQUIRE, "      acquire %3 {expected = 0}\n", "stage and parity are operands if the ring has mbarriers"),
    ("      commit %3\n", "", "a role leaves copies or products under way"),
    (COPY, "", "copies bring 0 bytes where 8192 are expected"),
    (COPY, COPY + COPY, "overwrites a stage that is in use"),
    (COPY, COPY.replace("%a, %4, %7", "%a, %4, %0"), "goes into a stage that was not acquired"),
    (
        COPY,
        COPY.replace("tensor_copy", "async_copy").replace("{", "{vector = 16, pad = true, whole = true, "),
        "counts other copies",
    ),
    (WAIT, "", "reads a stage before its copy is there"),
    (WAIT, WAIT + WAIT, "names stage and parity"),
    (WAIT, WAIT.replace("%31", "%0"), "names stage and parity (0, 0) where (0, 1) come next"),
    (WAIT, WAIT.replace("%13", "%0"), "names stage and parity (0, 0) where (1, 0) come next"),
    (RELEASE, "", "waits for ever"),
    (RELEASE, RELEASE.replace("unreleased = 0", "unreleased = 4"), "no stage, or several, could be given back"),
    (RELEASE, RELEASE.replace("%13", "%0"), "names stage and parity (0,) where (1,) come next"),
    (RELEASE, RELEASE + RELEASE, "names stage and parity"),
    (WAIT, WAIT + RELEASE, "given back"),
    (DONE, f"{RELEASE}{DONE}", "gives back a stage that a product reads"),
    ("group_mma %4, %13", "group_mma %4, %0", "reads a stage before its copy is there"),
    ("%11, %30 = for %0, %n, %1, %0", "%11, %30 = for %1, %n, %1, %0", "nothing says that they do so equally often"),
    ("%5, %34 = for %0, %n, %1, %0", "%5, %34 = for %1, %n, %1, %0", "nothing says that they do so equally often"),
    ('sync = "mbarriers"', 'sync = "groups"', "warps read a ring of mbarriers"),
    ("readers = 4", "readers = 1", "a stage is free after 1 warps, and 4 read it"),
    ("  proxy_fence\n", "", "uses mbarriers that others do not know of yet"),
    ('  barrier {scope = "block"}\n', "", "uses mbarriers that others do not know of yet"),
    ('    barrier {scope = "role"}', '    barrier {scope = "block"}', "threads of the block that are not all here"),
    ('    barrier {scope = "role"}', '    barrier {scope = "cluster"}', "threads of the cluster that are not all here"),
    (
        "  shared_free %4, %3\n",
        '  barrier {scope = "role"}\n  shared_free %4, %3\n',
        "threads of the role that are not all here",
    ),
    (COPY, COPY + '      barrier {scope = "role"}\n', "one thread of the role is here alone"),
    ("alone = [false, true]", "alone = [false, false]", "is for one thread of a role"),
    ("alone = [false, true]", "alone = [true, true]", "one thread of the role is here alone"),
    ("offset = 65536", "offset = 512", "takes bytes of the ring before it"),
    ("alignment = 1024", "alignment = 128", "its matrices begin at multiples of 1024 bytes"),
    ("in tensor<bf16", "inout tensor<bf16", "its tensor is written"),
    ("registers = [232, 40]", "registers = [232, 38]", "registers are 24 to 256"),
    ("warps 8\n", "warps 9\n", "roles of 8 warps in a block of 9"),
    ("| 4@0*16 1@0*64>\n    %11", "| 5@0*16 1@0*64>\n    %11", "the warps are not 4"),
    ("  shared_free %4, %3\n", "  shared_free %4, %3\n  commit %3\n", "its ring was freed"),
]


@pytest.mark.parametrize(("good", "bad", "rule"), BROKEN, ids=[f"{number} {case[2]}" for number, case in enumerate(BROKEN)])
def test_roles_out_of_order_are_refused(good: str, bad: str, rule: str) -> None:
    assert good in ROLES
    with pytest.raises(VerifyError) as caught:
        verify(parse_function(ROLES.replace(good, bad, 1)), SM_90A)
    assert rule in str(caught.value)


def test_more_registers_than_a_multiprocessor_has_are_refused() -> None:
    text = ROLES.replace("warps 8", "warps 16").replace(
        "warps = [4, 4], registers = [232, 40]", "warps = [4, 12], registers = [232, 104]"
    )
    with pytest.raises(VerifyError, match="69632 registers; a multiprocessor has 65536"):
        verify(parse_function(text), SM_90A)


def test_two_roles_do_not_share_scratch() -> None:
    scratch = "  %50 = shared_alloc {offset = 131072, alignment = 128} : scratch<4096>\n  roles"
    tile = "    %51 = constant {value = 0x0.0p+0} : f32[32] <1 | 32@0*1 | 4>\n    scratch_store %50, %51 {steps = [1]}\n"
    text = ROLES.replace("  roles", scratch).replace("    %11, %30 = for", tile + "    %11, %30 = for")
    verify(parse_function(text), SM_90A)
    both = text.replace("    %5, %34 = for", tile.replace("%51", "%52") + "    %5, %34 = for").replace(
        "[false, true]", "[false, false]"
    )
    with pytest.raises(VerifyError, match="nothing orders scratch_store and scratch_store of two roles"):
        verify(parse_function(both), SM_90A)


def test_the_bytes_of_a_stage_are_reused_once_all_copies_are_complete() -> None:
    """The new buffer comes after `shared_free` and a barrier; `shared_free` must come after the last wait."""
    barrier = '    barrier {scope = "role"}\n'
    free = f"    shared_free %4\n    %50 = shared_alloc {{offset = 0, alignment = 128}} : scratch<4096>\n{barrier}"
    tile = "    %51 = constant {value = 0x0.0p+0} : f32[32] <1 | 32@0*1 | 4>\n    scratch_store %50, %51 {steps = [1]}\n"
    good = ROLES.replace(barrier, free + tile).replace("shared_free %4, %3", "shared_free %3")
    verify(parse_function(good), SM_90A)
    with pytest.raises(VerifyError, match="no barrier of the block's threads"):
        verify(parse_function(good.replace(f"{barrier}    %51", "    %51")), SM_90A)
    freed_first = good.replace("    shared_free %4\n", "").replace(
        "    %38 = constant", "    shared_free %4\n    %38 = constant"
    )
    with pytest.raises(VerifyError, match="the buffer was freed"):
        verify(parse_function(freed_first), SM_90A)


@pytest.mark.parametrize(("name", "target"), chosen(shipped.CASES, shipped.of_its_form), ids=shipped.IDS)
def test_every_kernel_is_verified_again_from_its_text(name: str, target: Target) -> None:
    verify(parse_function(print_function(shipped.prepared(name, target))), target)


def blocks(block: Block) -> list[Block]:
    return [block, *(inner for op in block.ops for region in op.regions for inner in blocks(region))]


def drop(function: Function, op: Op) -> None:
    next(block for block in blocks(function.body) if op in block.ops).ops.remove(op)


def first(function: Function, *kinds: type[Op]) -> Op:
    return next(op for op in function.body.walk() if isinstance(op, kinds))


def lose_a_barrier(function: Function) -> None:
    """Removes the barrier between the store to scratch and the load from it."""
    taken = first(function, ScratchLoad, ReduceCombine)
    home = next(block for block in blocks(function.body) if taken in block.ops)
    index = home.ops.index(taken)
    assert isinstance(home.ops[index - 1], Barrier)
    del home.ops[index - 1]


def lose_a_store(function: Function) -> None:
    drop(function, first(function, ScratchStore, ReduceStore))


def load_by_itself(function: Function) -> None:
    """Replaces a reduction across warps by a single operation."""
    take = first(function, ReduceCombine)
    assert isinstance(take, ReduceCombine)
    direct = Reduce(operands=[take.operands[1]], kind=take.kind, axis=take.axis, results=take.results)
    home = next(block for block in blocks(function.body) if take in block.ops)
    home.ops[home.ops.index(take)] = direct
    direct.result.owner = direct


def combine_by_another_kind(function: Function) -> None:
    first(function, ReduceCombine).kind = "max"  # pyright: ignore[reportAttributeAccessIssue]


def forget_a_conversion(function: Function) -> None:
    """An operation uses its operand without the layout conversion."""
    user, index = next(
        (op, index)
        for op in function.body.walk()
        for index, layout in enumerate(operand_layouts(op))
        if layout is not None and isinstance(op.operands[index].owner, Relayout)
    )
    moved = op.operands[0] if isinstance(op := user.operands[index].owner, Relayout) else None
    assert moved is not None
    user.operands[index] = moved


def hide_a_conversion(function: Function) -> None:
    """Replaces a layout conversion between threads by a single `Relayout`, which cannot move elements between threads."""
    take = first(function, ScratchLoad)
    put = next(op for op in function.body.walk() if isinstance(op, ScratchStore) and op.operands[0] is take.operands[0])
    home = next(block for block in blocks(function.body) if take in block.ops)
    moved = Relayout(operands=[put.operands[1]], results=take.results)
    home.ops[home.ops.index(take)] = moved
    moved.result.owner = moved


FAULTS: list[tuple[str, Callable[[Function], None], str]] = [
    ("rms_norm", lose_a_barrier, "no barrier of the block's threads"),
    ("rms_norm", lose_a_store, "loads what was not stored there"),
    ("rms_norm", load_by_itself, "passes elements between threads by itself"),
    ("rms_norm", combine_by_another_kind, "takes another reduction than was put there"),
    ("flash_attention", forget_a_conversion, "an operand is held as"),
    ("qk_norm_rope_kv", forget_a_conversion, "an operand is held as"),
    ("matmul", hide_a_conversion, "passes elements between threads by itself"),
    ("matmul", lose_a_barrier, "no barrier of the block's threads"),
    ("matmul", lose_a_store, "loads what was not stored there"),
]


@pytest.mark.parametrize(("name", "fault", "rule"), FAULTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_faulty_schedule_is_refused(name: str, fault: Callable[[Function], None], rule: str) -> None:
    function = shipped.prepared(name, SM_90A)
    fault(function)
    with pytest.raises(VerifyError, match=rule):
        verify(function, SM_90A)


def test_scratch_in_use_is_not_reused() -> None:
    function = shipped.prepared("rms_norm", SM_90A)
    alloc = first(function, SharedAlloc)
    home = next(block for block in blocks(function.body) if alloc in block.ops)
    overlapping = SharedAlloc(offset=alloc.offset)  # pyright: ignore[reportAttributeAccessIssue]
    overlapping.define(alloc.result.type)
    home.ops.insert(home.ops.index(alloc) + 1, overlapping)
    with pytest.raises(VerifyError, match="takes bytes of the shared_alloc before it"):
        verify(function, SM_90A)
    drop(function, overlapping)
    free = first(function, SharedFree)
    home.ops.insert(home.ops.index(free) + 1, overlapping)
    verify(function, SM_90A)


def test_a_target_without_the_instruction_is_refused() -> None:
    function = shipped.prepared("matmul", SM_90A)
    assert first(function, GroupMma)
    verify(function, SM_90A)
    with pytest.raises(VerifyError, match=r"sm_120a has no products of groups|bytes of shared memory; sm_120a has 101376"):
        verify(function, SM_120A)
    small = prepare(shipped.load("matmul"), SM_90A, Overrides(stages=3))
    assert first(small, GroupMma)
    verify(small, SM_90A)
    for alloc in [op for op in small.body.walk() if isinstance(op, SharedAlloc)]:
        alloc.alignment = 128
    with pytest.raises(VerifyError, match="multiples of 1024 bytes"):
        verify(small, SM_90A)
