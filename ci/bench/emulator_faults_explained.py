"""Why planted mistakes that the emulator did not find are none, or are out of its sight.

A row of `emulator_faults` goes in, a reason comes out; each was read in the PTX around the line. A reason that begins with
"equivalent" says that the changed program does the same in every legal launch; any other is a limit of the launches tried.
"""

from __future__ import annotations

from typing import Any, Final

NEVER_NEGATIVE: Final = "equivalent: the operands are indices and extents, which no legal launch makes negative"
LAUNCH_NEXT: Final = "equivalent: guards only `griddepcontrol.launch_dependents`, a hint for when the next launch may begin"
SLOW_PATH: Final = "equivalent: chooses between the path of whole vectors and the one of single elements, which does the same"
LAST_BARRIER: Final = "equivalent: nothing touches shared memory between this barrier and the next one or the end"
DRAINED: Final = "equivalent: every copy was waited for in the loop before; none is in flight here"
ONE_MORE: Final = "equivalent: at that extent one more stage is started, with every copy masked"
NOT_THE_MAXIMUM: Final = "reads another element of the same row: seen only where one of the two is the maximum"
ROW_END: Final = "seen only where a row ends at this element of a thread's, which no row tried does"
RANK_UNUSED: Final = "the launches keep at most 20 of the 64 ranks, and this one is masked"

REASONS: Final[tuple[tuple[str, str, str, str], ...]] = (
    # class, part of the file's name, part of the instruction, reason
    ("barrier dropped", "matvec", "bar.sync", LAST_BARRIER),
    ("cp.async wait dropped", "matvec", "wait_group 0", DRAINED),
    ("cp.async wait dropped", "decode_attention", "wait_group 0", DRAINED),
    ("cp.async wait dropped", "matmul", "wait_group 0", DRAINED),
    ("cp.async wait count one too high", "matvec", "wait_group 0", DRAINED),
    ("cp.async wait count one too high", "decode_attention", "wait_group 0", DRAINED),
    ("sign dropped", "embedding", "setp.gt.s32 %p7", SLOW_PATH),
    ("sign dropped", "", "", NEVER_NEGATIVE),
    ("sign extension dropped", "", "", NEVER_NEGATIVE),
    ("bound off by one", "triton matmul_tf32", "", ONE_MORE),
    ("bound off by one", "rms_norm", "setp.lt.u32 %p1", LAUNCH_NEXT),
    ("bound off by one", "gather_row", "setp.lt.u32 %p2", LAUNCH_NEXT),
    ("bound off by one", "silu_mul_rows", "setp.gt.s32 %p3", SLOW_PATH),
    ("bound off by one", "argmax_reduce", "setp.lt.s32 %p4", SLOW_PATH),
    ("bound off by one", "embedding", "2042", "equivalent: the operand is a multiple of eight"),
    ("bound off by one", "topk_blocks", "", ROW_END),
    ("branch negated", "embedding", "%p6 bra", SLOW_PATH),
    ("branch negated", "advance", "%p1 bra", LAUNCH_NEXT),
    ("branch negated", "rms_norm", "%p1 bra", LAUNCH_NEXT),
    ("branch negated", "embedding", "%p5 bra", LAUNCH_NEXT),
    ("global pointer shifted", "argmax_blocks", "", NOT_THE_MAXIMUM),
    ("shared pointer shifted", "sample_token", "", RANK_UNUSED),
    ("sum turned to difference", "sample_token", "", RANK_UNUSED),
)  # fmt: skip


def reason(row: dict[str, Any]) -> str:
    """The reason, or that there is none yet."""
    for kind, file, instruction, text in REASONS:
        if row["class"] == kind and file in row["file"] and instruction in row["before"]:
            return text
    return "not explained"
