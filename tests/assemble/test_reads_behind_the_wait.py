"""No machine code touches, in front of its wait for earlier kernels, more than its PTX does, whatever the assembler reorders.

The assembler takes `ld.global.nc` for a promise that nothing writes the data while the kernel runs, and moves such loads across
`griddepcontrol.wait` (SASS `ACQBULK`). Of what an earlier kernel may still write there must be none.
"""

from __future__ import annotations

import re
from typing import Final

import pytest
import shipped

from tests import campaign
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble
from tilec.codegen import to_ptx
from tilec.lowering import lower
from tilec.passes.schedule.prepare import prepare
from tilec.schedule import Overrides
from tilec.target import SM_90A, TARGETS, Target

EARLY: Final = re.compile(r"\*/\s+(?:@!?U?P\w+ )?((?:LDG|LD\.E|STG|UTMALDG|ATOM|RED)[\w.]*)")
MARK: Final = ".L1::evict_last"
"""Put on loads behind the wait, so that machine code (`.EL`) tells them from those in front."""
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
"""The one architecture of each kernel in the default run."""
CASES: Final = [(name, target) for name, targets in BY_TARGET.items() for target in targets]


@pytest.mark.parametrize(("name", "target"), campaign.chosen(CASES, lambda case: TURNS[case[0]] == case[1]), ids=str)
def test_machine_code_reads_no_more_before_the_wait_than_its_text(name: str, target: Target) -> None:
    ptx = to_ptx(lower(shipped.as_chosen(name, target), target).mlir, target)
    assert not early_of_what_is_late(ptx, target)


def test_the_assembler_moves_reads_of_the_read_only_path() -> None:
    """What makes the rule necessary: were it not so, it could go."""
    schedule = Overrides(warps=4, early=6, blocks=6, next="before")
    function = prepare(shipped.load("matvec_add_scaled", {"K": 4096}), SM_90A, schedule)
    ptx = to_ptx(lower(function, SM_90A).mlir, SM_90A)
    assert not early_of_what_is_late(ptx, SM_90A)
    assert early_of_what_is_late(ptx, SM_90A, path=".nc")


def early_of_what_is_late(ptx: str, target: Target, path: str = "") -> list[str]:
    """Accesses that PTX has behind the wait and machine code in front of it; loads of what is not resident take a `path`."""
    early, late = ptx.split("griddepcontrol.wait;")
    marked = re.sub(r"ld\.global((?:\.v\d)?\.b32)", rf"ld.global{path}{MARK}\1", late)
    before, _, after = disassemble(assemble(f"{early}griddepcontrol.wait;{marked}", target).cubin).partition("ACQBULK")
    assert EARLY.search(after)
    return [word for word in EARLY.findall(before) if ".EL" in word or not word.startswith("LDG")]
