"""Explains planted mistakes that the emulator did not find: they are equivalent, or beyond the launches tried.

Maps a row of `emulator_faults` to a reason; each was determined by reading the PTX around the line. A reason that begins with
"equivalent" says that the changed program does the same in every legal launch; any other is a limit of the launches tried.
"""

from __future__ import annotations

from typing import Any, Final

NEVER_NEGATIVE: Final = "equivalent: the operands are indices and extents, which no legal launch makes negative"
LAUNCH_NEXT: Final = "equivalent: guards only `griddepcontrol.launch_dependents`, a hint for when the next launch may begin"
DRAINED: Final = "equivalent: every copy was waited for in the loop before; none is in flight here"
ACCUMULATORS: Final = (
    "equivalent: since an earlier fence nothing but products and waits for them touched the registers of the product"
)
ONE_GROUP: Final = "equivalent: the first product alone is under way, so that no count above 0 waits for anything"
SAME_PARITY: Final = "equivalent: the register holds that parity"
DIVISION: Final = "equivalent: asks for the sign of a remainder and divisor together, whose exclusive or is 0 for no remainder"
MULTIPLE_OF_8: Final = "equivalent: the extent is a multiple of 8, and the bound is none"
INDEX: Final = "equivalent: the contract keeps the index below the extent"
FENCED_BEFORE: Final = "equivalent: the fence of the product before comes after the same waits and covers the same copies"
NOBODY_WRITES: Final = "equivalent: no launch writes the tensor"
THE_TOKEN: Final = "seen only where the token is the first that is none, which no input tried is"
THE_ROW: Final = "seen only where the rows end in this part of a tile, which no size tried does"

REASONS: Final[tuple[tuple[str, str, str, str], ...]] = (
    # class, part of the file's name, part of the instruction, reason
    ("sign dropped", "", "", NEVER_NEGATIVE),
    ("sign extension dropped", "", "", NEVER_NEGATIVE),
    ("wgmma fence dropped", "", "", ACCUMULATORS),
    ("wgmma wait count one too high", "", "wait_group.sync.aligned 1", ONE_GROUP),
    ("wgmma wait dropped", "", "wait_group.sync.aligned 1", ONE_GROUP),
    ("cp.async wait dropped", "", "wait_group 0", DRAINED),
    ("cp.async wait count one too high", "", "wait_group 0", DRAINED),
    ("mbarrier phase wrong", "flash_attention 64x64", "%r55", SAME_PARITY),
    ("mbarrier phase wrong", "matmul_split 16x64", "%r48", SAME_PARITY),
    ("bound off by one", "", "setp.lt.s32 %p67, %r215, 0", DIVISION),
    ("bound off by one", "persistent", "setp.lt.s32 %p29, %r93, 0", DIVISION),
    ("bound off by one", "few", ", 33;", MULTIPLE_OF_8),
    ("bound off by one", "few", ", 49;", MULTIPLE_OF_8),
    ("bound off by one", "split", ", 33;", MULTIPLE_OF_8),
    ("bound off by one", "matmul 64x64 persistent", "setp.lt.s32 %p17", MULTIPLE_OF_8),
    ("bound off by one", "matvec", "setp.lt.u32 %p1,", LAUNCH_NEXT),
    ("bound off by one", "persistent", "setp.lt.u32 %p1,", LAUNCH_NEXT),
    ("bound off by one", "matmul_split", "setp.lt.u32 %p16,", LAUNCH_NEXT),
    ("bound off by one", "advance", "setp.lt.s32 %p4", THE_TOKEN),
    ("bound off by one", "gather_row", "setp.ge.s32 %p3", INDEX),
    ("bound off by one", "matmul_tf32-sm_120", "setp.lt.s32 %p2", THE_ROW),
    ("branch negated", "gather_row", "%p2 bra", LAUNCH_NEXT),
    ("branch negated", "advance_rows", "%p1 bra", LAUNCH_NEXT),
    ("branch negated", "scaled_matvec_silu_mul", "%p1 bra", LAUNCH_NEXT),
    ("proxy fence dropped", "attention-sm_90", "", FENCED_BEFORE),
    ("read-only path where it is written", "softmax", "", NOBODY_WRITES),
)


def reason(row: dict[str, Any]) -> str:
    """The reason, or `not explained`."""
    for kind, file, instruction, text in REASONS:
        if row["class"] == kind and file in row["file"] and instruction in row["before"]:
            return text
    return "not explained"
