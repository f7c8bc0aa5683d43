"""Random programs that print: those of `generate`, with a `print` after some of their assignments, in loops and branches too.

The interpreter says which lines there are; the PTX of every target prints the same ones, and each block in the same order.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from tests.programs.generate import Program, odd_program, program
from tests.programs.launches import arrays
from tests.programs.machines import load, manifest
from tilec.codegen.ptx import to_ptx
from tilec.emulator import emulate
from tilec.interpreter import run
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import Target

_ASSIGNMENT = re.compile(r"( +)(v\d+) = ")


def printing(number: int) -> Program | None:
    """Program `number` with prints; None if rounding may decide what it computes, or if it has nothing to print."""
    r = random.Random(f"prints {number}")
    plain = (odd_program if number % 2 else program)(number)
    lines: list[str] = []
    count = 0
    for line in plain.text.split("\n"):
        lines.append(line)
        match = _ASSIGNMENT.match(line)
        if match is not None and r.random() < 0.5:
            indent, name = match.groups()
            where = f"({name} == {name}) & (b {r.choice(['== 0', '< 2', '> 0'])})"
            lines.append(f'{indent}print("{count} {{}} of {{}}", {name}, b, where={where})')
            count += 1
    return replace(plain, text="\n".join(lines)) if plain.exact and count else None


def expected_lines(made: Program) -> list[str]:
    """The lines of the interpreter."""
    found: list[str] = []
    function = load(made)
    run(function, arrays(function, made), made.scalars, printed=found.append)
    return found


def emulated_lines(made: Program, target: Target, seed: int) -> list[str]:
    """The lines that the PTX for a target prints in the emulator."""
    function = load(made)
    schedule = choose(function, target, Overrides(warps=made.warps))
    code = lower(prepare(function, target, schedule), target)
    described = manifest(load(made), code, target, schedule)
    report = emulate(to_ptx(code.mlir, target), described, arrays(load(made), made), {**made.dims, **made.scalars}, seed=seed)
    assert report.clean and not report.notes, (report.faults or report.notes)[0]
    return report.printed


def order(lines: Sequence[str], block: int) -> list[str]:
    """The number of the print of each line of a block, in order."""
    return [line.split(": ")[1].split()[0] for line in lines if line.startswith(f"bid ({block})")]
