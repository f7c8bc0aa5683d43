"""What the machine code of an artifact does for its products, in counts of instructions, and what its schedule promises that is
not there.

In: SASS, the schedule, bytes of spilled registers. Out: counts of the instructions below, and a text for each broken promise:

    tcgen05    products of one thread (UTCHMMA; of a pair of blocks UTCHMMA.2CTA), loads of accumulators (LDTM)
    wgmma      products of a warpgroup (HGMMA)
    mma_sync   products of a warp (HMMA)
    tma        copies by one thread (UTMALDG), and without registers between global and shared memory
    tcgen05    no loop over the threads of a warp, which the assembler puts around an instruction of one thread where it cannot
               see that one thread executes it
    any        no spilled register, no call but of a slow path of a division (of subnormal numbers) or of a trap

Traps are the assembler's: it checks that columns of tensor memory are freed that were allocated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from tilec.assemble.sass import instructions
from tilec.target.families import MMA_SYNC, TCGEN05, TMA, WGMMA
from tilec.target.schedule import Schedule

PRODUCTS: Final[Mapping[str, tuple[str, ...]]] = {
    TCGEN05.name: ("UTCHMMA", "LDTM"), WGMMA.name: ("HGMMA",), MMA_SYNC.name: ("HMMA",),
}  # fmt: skip
"""By the family of a product, the instructions that it must have."""
COPY: Final = "UTMALDG"
CALL: Final = "CALL"
LANE_LOOP: Final = "BRA.U.ANY"
"""The branch that closes a loop over the threads of a warp."""
COUNTED: Final = ("UTCHMMA", "HGMMA", "HMMA", "LDTM", "STTM", "LDSM", COPY, "UTMASTG")
PAIR: Final = ".2CTA"
_CALLED: Final = re.compile(r"\bCALL\.[\w.]* `\(([^)]*)\)")
_ALLOWED: Final = re.compile(r"slowpath|guardrail_trap")


def counted(sass: str) -> dict[str, int]:
    """How often each instruction of `COUNTED` occurs, those of pairs of blocks apart; calls, without those that are allowed;
    loops over the threads of a warp."""
    found: Counter[str] = Counter()
    if calls := sum(not _ALLOWED.search(name) for name in _CALLED.findall(sass)):
        found[CALL] = calls
    for opcode, count in instructions(sass).items():
        base = opcode.partition(".")[0]
        if base in COUNTED:
            found[base + (PAIR if PAIR in opcode else "")] += count
        elif opcode.startswith(LANE_LOOP):
            found[LANE_LOOP] += count
    return dict(sorted(found.items()))


def missing(found: Mapping[str, int], schedule: Schedule, spill_bytes: int) -> list[str]:
    """What a schedule with products promises and the machine code breaks; empty for one without products."""
    families = {loop.mma for loop in schedule.pipelines if loop.mma in PRODUCTS}
    if not families:
        return []
    paired = schedule.cluster > 1
    wanted = [one for family in sorted(families) for one in PRODUCTS[family]]
    wanted += [COPY] if any(loop.copy == TMA for loop in schedule.pipelines) else []
    of_pairs = ("UTCHMMA", COPY) if paired else ()
    problems = [f"no {name}" for one in wanted if not found.get(name := one + (PAIR if one in of_pairs else ""))]
    problems += [f"{found[one]} {one} of a block alone" for one in of_pairs if found.get(one)]
    if found.get(CALL):
        problems.append(f"{found[CALL]} calls")
    if found.get(LANE_LOOP) and TCGEN05.name in families:
        problems.append(f"{found[LANE_LOOP]} loops over the threads of a warp")
    if spill_bytes:
        problems.append(f"{spill_bytes} bytes of spilled registers")
    return problems
