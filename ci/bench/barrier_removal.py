"""Takes every executed barrier out of every shipped kernel's PTX and asks the race detector.

In: an architecture (default sm_90a) and kernels (default all), at the sizes of `tests/shipped_launches.py`. Out: a line each;
1 where the detector and the definition (`tests/emulator/barrier_oracle.py`) disagree. A barrier that orders nothing at one size
may be needed at another: one turn of a loop needs no barrier before the next turn.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests import shipped_launches
from tests.emulator.barrier_oracle import barriers, without
from tests.emulator.shipped_run import compiled, emulate


def main() -> int:
    """Every barrier of the kernels named; 1 if one is judged wrongly."""
    arch = next((a for a in sys.argv[1:] if a.startswith("sm_")), "sm_90a")
    names = [a for a in sys.argv[1:] if not a.startswith("sm_")] or list(shipped_launches.SIZES)
    wrong = total = needless = 0
    for name in names:
        for number, size in enumerate(shipped_launches.SIZES[name]):
            made = compiled(name, number, arch)
            arrays = shipped_launches.make_arrays(made.function, made.env)
            report, needed = barriers(lambda made=made, arrays=arrays: emulate(made, arrays))
            wrong += not report.clean
            for line, orders in needed.items():
                found = not emulate(made, arrays, text=without(made.ptx, line)).clean
                total, needless, wrong = total + 1, needless + (not orders), wrong + (found != orders)
                verdict = "found" if found and orders else "orders nothing here" if found == orders else "MISJUDGED"
                print(f"{name} {size} line {line}: {verdict}", flush=True)
    print(
        f"{total} barriers on {arch}: {total - needless} missed when they are gone, {needless} order nothing, {wrong} misjudged"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
