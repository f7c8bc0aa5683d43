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
from tilec.target.targets import SM_90A, TARGETS, Target

EARLY: Final = re.compile(r"\*/\s+(?:@!?U?P\w+ )?((?:LDG|LD\.E|STG|UTMALDG|ATOM|RED)[\w.]*)")
MARK: Final = ".L1::evict_last"
"""Marks loads after the wait, so that machine code (`.EL`) distinguishes them from those before it."""
BY_TARGET: Final = {
    "rotary_decode_attention": TARGETS, "rotary_decode_attention_kv": TARGETS, "decode_merge_kv": TARGETS, 
    "scaled_matvec": TARGETS, "matvec_add_scaled": TARGETS,
    **dict.fromkeys(
        (
            "scaled_matvec_silu_mul", "embedding_scaled", "rms_norm", "decode_attention", "matvec", "gather_row", "matmul",
            "flash_attention", "sample_token",
        ),
        (SM_90A,),
    ),
}  # fmt: skip


TURNS: Final = {name: targets[turn % len(targets)] for turn, (name, targets) in enumerate(BY_TARGET.items())}
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
        (name, target): listed
        for target, made in cubins.items()
        for name, listed in zip(made, listings(list(made.values()), target), strict=True)
    }


@pytest.mark.parametrize(("name", "target"), campaign.chosen(CASES, lambda case: TURNS[case[0]] == case[1]), ids=str)
def test_machine_code_reads_no_more_before_the_wait_than_its_text(
    name: str, target: Target, code: dict[tuple[str, Target], str]
) -> None:
    assert not early_of_what_is_late(code[name, target])


COMPARED: Final = test_machine_code_reads_no_more_before_the_wait_than_its_text.__name__


def test_the_assembler_moves_reads_of_the_read_only_path() -> None:
    """The reason for the rule: if this test fails, the rule is no longer needed."""
    schedule = Overrides(warps=4, early=6, blocks=6, next="before")
    function = prepare(shipped.load("matvec_add_scaled", {"K": 4096}), SM_90A, schedule)
    ptx = to_ptx(lower(function, SM_90A).mlir, SM_90A)
    plain, promised = listings([marked(ptx, SM_90A), marked(ptx, SM_90A, path=".nc")], SM_90A)
    assert not early_of_what_is_late(plain)
    assert early_of_what_is_late(promised)


def marked(ptx: str, target: Target, path: str = "") -> bytes:
    """The CUBIN of PTX whose loads after the wait are marked; loads of non-resident tensors use `path`."""
    early, late = ptx.split("griddepcontrol.wait;")
    late = re.sub(r"ld\.global((?:\.v\d)?\.b32)", rf"ld.global{path}{MARK}\1", late)
    return assemble(f"{early}griddepcontrol.wait;{late}", target).cubin


def early_of_what_is_late(code: str) -> list[str]:
    """Accesses that are after the wait in PTX and before it in machine code."""
    before, _, after = code.partition("ACQBULK")
    assert EARLY.search(after)
    return [word for word in EARLY.findall(before) if ".EL" in word or not word.startswith("LDG")]
