"""Compare the PTX of every artifact with that of an earlier build.  Run: python ci/compare_ptx.py BEFORE AFTER

In: two folders of `.ptx` files. Out: a line for each file whose instructions differ, with the counts of the differing opcodes,
and the total number of instructions; status 1 if a file has more than before. Names of registers and labels are ignored.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path


def opcodes(path: Path) -> Counter[str]:
    """The number of occurrences of each opcode in a file."""
    found = re.findall(r"^\s+(?:@!?%p\d+\s+)?([a-z][\w.:]*).*;\s*$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return Counter(found)


def main(before: Path, after: Path) -> int:
    """Compare two folders; returns the exit status."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.ptx")})
    changed = grown = total_before = total_after = 0
    for name in names:
        if not ((before / name).exists() and (after / name).exists()):
            print(f"{name}: only in {before if (before / name).exists() else after}")
            continue
        old, new = opcodes(before / name), opcodes(after / name)
        total_before, total_after = total_before + old.total(), total_after + new.total()
        differ = {op: (old[op], new[op]) for op in sorted(old | new) if old[op] != new[op]}
        if differ:
            changed += 1
            grown += new.total() > old.total()
            counts = ", ".join(f"{op} {a} -> {b}" for op, (a, b) in differ.items())
            print(f"{name}: {old.total()} -> {new.total()} instructions; {counts}")
    print(f"{len(names)} files, {changed} with other instructions, {grown} with more; {total_before} -> {total_after} in all")
    return int(grown > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
