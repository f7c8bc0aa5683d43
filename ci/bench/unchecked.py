"""What safety costs at run time: products and attention as they are shipped beside the same text without a mask.

    python ci/bench/unchecked.py FOLDER                 build what is missing, check, time
    python ci/bench/unchecked.py FOLDER --build-only    on a machine with no GPU; FOLDER then goes to one that has it

In: kernels of `kernels_src` at tiles and schedules of build.toml. The copy that they are held against has no `pad=` and no
`mask=`: it requires instead that tiles divide the extents, so that nothing has to be masked, and is launched by one call of the
driver with nothing checked. `unchecked_gpu.py` checks and times both, and writes `unchecked.json` and `.md`. Exit code 1 where
a build fails or a kernel is wrong.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Final

from candidates import ELEMENT, IN_TURNS, PERSISTENT, STORED, Candidate, Part, arguments, run, tma

SAFE: Final = "safe"
UNCHECKED: Final = "unchecked"
KERNELS: Final = {
    "matmul": (
        "requires(M % BM == 0 and N % BN == 0 and K % BK == 0)",
        (
            tma(128, 128, 2, 4, IN_TURNS + STORED, 16),
            tma(128, 160, 2, 4, IN_TURNS, 16),
            tma(128, 192, 2, 4, PERSISTENT + STORED),
            tma(128, 256, 2, 3, PERSISTENT + STORED, 16),
        ),
    ),
    "matmul_silu_mul": (
        "requires(M % BM == 0 and I % BN == 0 and K % BK == 0)",
        (tma(128, 64, 2, 5, IN_TURNS + STORED, 16), tma(128, 80, 2, 4, IN_TURNS + STORED, 16)),
    ),
    "flash_attention": ("requires(T % BM == 0)", (tma(128, 128, 2, 2),)),
}
"""By kernel: what makes masks needless, and the tiles with their schedules, of those that build.toml has for prompts."""


def unmasked(text: str, condition: str) -> str:
    """A kernel's text with `condition` in place of its masks; ValueError where there is none."""
    text, pads = re.subn(r", pad=0\b", "", text)
    text, masks = re.subn(r", mask=True\b", "", text)
    text, grids = re.subn(r"^( +)(grid\(.*\))$", rf"\1\2\n\1{condition}", text, flags=re.MULTILINE)
    if not (pads and masks and grids == 1):
        raise ValueError(f"{pads} pads, {masks} masks, {grids} grids in the text of a kernel")
    return text


def main() -> int:
    """Build, then time; the exit status."""
    options = arguments("shipped kernels beside the same without masks").parse_args()
    names: dict[Candidate, Part] = {}
    for kernel, (condition, tiles) in KERNELS.items():
        for tile in tiles:
            for kind, edit in ((SAFE, str), (UNCHECKED, partial(unmasked, condition=condition))):
                constants = f'E = "{ELEMENT}", BM = {tile.rows}, BN = {tile.columns}'
                constants += ", D = 128" if kernel == "flash_attention" else f", BK = 64, GROUP = {tile.group}"
                pair = Candidate(tile.rows, tile.columns, tile.schedule, tile.group, label=f"{kernel}_{kind}_")
                names[pair] = Part(kernel, constants, tile.schedule, edit)
    return run(options, tuple(names), lambda one: (names[one],), "unchecked_gpu.py")


if __name__ == "__main__":
    sys.exit(main())
