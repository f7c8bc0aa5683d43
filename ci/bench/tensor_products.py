"""Products whose operands come by `tma`, run in the emulator beside the interpreter, in several interleavings.

    python ci/bench/tensor_products.py [--seeds 3] [--out ci/bench/results]

In: nothing. Out: `tensor_products.json` and `.md`, a row for each kernel: what its schedule is, registers and spills as the
assembler says, launches, faults, results that differ. Every extent is cut off by its tile. Status 1 where anything is found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.tensor_products import emulated, made  # noqa: E402
from tilec.assemble import assemble  # noqa: E402
from tilec.assemble.sass import disassemble, instructions  # noqa: E402
from tilec.target import SM_90A  # noqa: E402

CASES: Final[tuple[tuple[tuple[str, int, int], dict[str, Any], tuple[int, int, int]], ...]] = (
    (("bf16", 64, 64), {}, (72, 72, 136)),
    (("f16", 64, 64), {"stages": 2}, (136, 40, 392)),
    (("f16", 64, 128), {"stages": 3}, (8, 136, 520)),
    (("bf16", 64, 256), {}, (72, 264, 72)),
    (("bf16", 128, 64), {"consumers": 1, "stages": 2}, (136, 72, 264)),
    (("f16", 128, 64), {"consumers": 2, "stages": 3}, (136, 8, 392)),
    (("bf16", 128, 128), {"consumers": 1}, (40, 136, 200)),
    (("f16", 128, 128), {"consumers": 2, "stages": 2}, (136, 120, 328)),
    (("bf16", 128, 192), {"stages": 4}, (120, 200, 72)),
    (("bf16", 192, 128), {"consumers": 3}, (200, 40, 136)),
    (("f16", 128, 256), {"stages": 3}, (136, 24, 264)),
    (("bf16", 256, 64), {"stages": 2}, (264, 72, 136)),
    (("bf16", 256, 128), {}, (24, 136, 264)),
    (("bf16", 64, 64), {"persistent": True}, (200, 200, 136)),
    (("f16", 64, 128), {"stages": 2, "persistent": True}, (136, 264, 392)),
    (("bf16", 128, 80), {"persistent": True}, (264, 168, 72)),
    (("f16", 128, 128), {"consumers": 2, "persistent": True}, (264, 264, 200)),
    (("bf16", 128, 160), {"stages": 3, "persistent": True}, (136, 488, 136)),
    (("bf16", 128, 256), {"persistent": True}, (264, 264, 72)),
)
"""Element and tile, what is wanted of the schedule, and M, N, K."""


def row(sizes: tuple[str, int, int], wanted: dict[str, Any], extents: tuple[int, int, int], seeds: int) -> dict[str, Any]:
    """One kernel, in as many interleavings."""
    kernel = made(*sizes, **wanted)
    assembled = assemble(kernel.ptx, SM_90A)
    code = instructions(disassemble(assembled.cubin))
    faults: list[str] = []
    differ = 0
    for seed in range(seeds):
        report, found, right = emulated(kernel, extents, seed)
        faults += [str(fault) for fault in report.faults]
        differ += int((found != right).sum())
    return {
        "element": sizes[0], "tile": f"{sizes[1]}x{sizes[2]}x64", "schedule": str(kernel.schedule), "extents": extents,
        "registers": assembled.resources.registers, "spill_bytes": assembled.resources.spill_bytes,
        "copies": sum(n for name, n in code.items() if name.startswith("UTMALDG")),
        "products": sum(n for name, n in code.items() if name.startswith("HGMMA")),
        "launches": seeds, "faults": faults, "elements_that_differ": differ,
    }  # fmt: skip


def main() -> int:
    """Run all, write the table; the exit status."""
    parser = argparse.ArgumentParser(description="products by tma in the emulator")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "ci/bench/results")
    options = parser.parse_args()
    start = time.monotonic()
    rows: list[dict[str, Any]] = []
    for sizes, wanted, extents in CASES:
        rows.append(row(sizes, wanted, extents, options.seeds))
        print(rows[-1], flush=True)
    wrong = [one for one in rows if one["faults"] or one["elements_that_differ"] or one["spill_bytes"]]
    lines = [
        "# Products whose operands come by `tma`, in the emulator",
        "",
        f"{len(rows)} kernels, {sum(one['launches'] for one in rows)} launches in {options.seeds} interleavings each "
        f"(`ci/bench/tensor_products.py`); {len(wrong)} with a fault, a spill or another result than the interpreter's.",
        "",
        "| tile | element | schedule | M, N, K | registers | spills | UTMALDG | HGMMA | faults | elements that differ |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one in rows:
        numbers = [one["registers"], one["spill_bytes"], one["copies"], one["products"], len(one["faults"])]
        cells = [one["tile"], one["element"], one["schedule"], ", ".join(map(str, one["extents"])), *map(str, numbers)]
        lines.append(f"| {' | '.join(cells)} | {one['elements_that_differ']} |")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tensor_products.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {"seconds": round(time.monotonic() - start), "kernels": rows}
    (options.out / "tensor_products.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
