"""Machine code accesses no more before the grid dependency wait than its PTX does, whatever the assembler reorders.

For the assembler, `ld.global.nc` states that the data is read-only while the kernel runs, so it may move such loads across
`griddepcontrol.wait` (SASS `ACQBULK`). Memory that an earlier kernel may still write must not be loaded this way.
"""

from __future__ import annotations

import re
from typing import Final, cast

import pytest

from tests import campaign, shipped
from tests.machine_code import listings
from tilec.assemble import assemble
from tilec.codegen import to_ptx
from tilec.lowering import lower
from tilec.passes.schedule.prepare import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

ACCESS: Final = re.compile(r"\*/\s+(?:@!?U?P\w+ )?((?:LDG|LD\.E|STG|UTMALDG|ATOM|RED)[\w.]*)")
MARK: Final = ".L1::evict_last"
"""Marks loads after the wait, so that machine code (`.EL`) distinguishes them from those before it."""
BY_TARGET: Final = {
    "rotary_decode_attention": MAIN_TARGETS, "rotary_decode_attention_kv": MAIN_TARGETS, "decode_merge_kv": MAIN_TARGETS, 
    "scaled_matvec": MAIN_TARGETS, "matvec_add_scaled": MAIN_TARGETS,
    **dict.fromkeys(
        (
            "scaled_matvec_rows_fp8", "scaled_matvec_silu_mul_rows_fp8", "matvec_add_scaled_rows_fp8",
            "scaled_matvec_int4", "scaled_matvec_silu_mul_int4", "matvec_add_scaled_int4", "matvec_add_int4", "dequantise_int4",
            "scaled_matvec_fp8", "scaled_matvec_silu_mul_fp8", "matvec_add_scaled_fp8", "matvec_add_fp8", "dequantise_fp8",
            "rotary_decode_attention_c8", "rotary_decode_attention_kv_c8", "decode_merge_kv_c8",
            "scaled_matvec_silu_mul", "embedding_scaled", "rms_norm", "decode_attention", "matvec", "gather_row", "matmul",
            "flash_attention", "sample_token", "route_experts", "experts_silu_mul", "experts_add_scaled",
            "experts_silu_mul_fp8",
        ),
        (SM_90A,),
    ),
}  # fmt: skip


DEFAULT_TARGETS: Final = {name: targets[index % len(targets)] for index, (name, targets) in enumerate(BY_TARGET.items())}
"""The architecture of each kernel in the default run."""
CASES: Final = [(name, target) for name, targets in BY_TARGET.items() for target in targets]


@pytest.fixture(scope="module")
def code(request: pytest.FixtureRequest) -> dict[tuple[str, Target], str]:
    """The machine code of every case of this run, with loads after the wait marked."""
    cubins: dict[Target, dict[str, bytes]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == COMPARED:
            name, target = cast("tuple[str, Target]", tuple(item.callspec.params.values()))
            ptx = to_ptx(lower(shipped.as_chosen(name, target), target).mlir, target)
            cubins.setdefault(target, {})[name] = marked(ptx, target)
    return {
        (name, target): listing
        for target, by_name in cubins.items()
        for name, listing in zip(by_name, listings(list(by_name.values()), target), strict=True)
    }


@pytest.mark.parametrize(("name", "target"), campaign.chosen(CASES, lambda case: DEFAULT_TARGETS[case[0]] == case[1]), ids=str)
def test_machine_code_reads_no_more_before_the_wait_than_its_ptx(
    name: str, target: Target, code: dict[tuple[str, Target], str]
) -> None:
    assert not accesses_hoisted_above_the_wait(code[name, target])


COMPARED: Final = test_machine_code_reads_no_more_before_the_wait_than_its_ptx.__name__


def test_the_assembler_moves_reads_of_the_read_only_path() -> None:
    """The reason for the rule: if this test fails, the rule is no longer needed."""
    schedule = Overrides(warps=4, early=6, blocks=6, next="before")
    function = prepare(shipped.load("matvec_add_scaled", {"K": 4096}), SM_90A, schedule)
    ptx = to_ptx(lower(function, SM_90A).mlir, SM_90A)
    plain, read_only = listings([marked(ptx, SM_90A), marked(ptx, SM_90A, path=".nc")], SM_90A)
    assert not accesses_hoisted_above_the_wait(plain)
    assert accesses_hoisted_above_the_wait(read_only)


def marked(ptx: str, target: Target, path: str = "") -> bytes:
    """The CUBIN of PTX whose loads after the wait are marked; loads of non-resident tensors use `path`."""
    before, after = ptx.split("griddepcontrol.wait;")
    after = re.sub(r"ld\.global((?:\.v\d)?\.b32)", rf"ld.global{path}{MARK}\1", after)
    return assemble(f"{before}griddepcontrol.wait;{after}", target).cubin


def accesses_hoisted_above_the_wait(code: str) -> list[str]:
    """Accesses that are after the wait in PTX and before it in machine code."""
    before, _, after = code.partition("ACQBULK")
    assert ACCESS.search(after)
    return [opcode for opcode in ACCESS.findall(before) if ".EL" in opcode or not opcode.startswith("LDG")]
