"""Checks whether a mutant is refused. If it is accepted, checks that it stays in bounds and free of races over all blocks of
real launches."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from tests import shipped
from tests.mutation.generate import Mutant
from tests.shipped_launches import SIZES, expected, launch_values, make_arrays
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import Accesses, InterpreterError, run
from tilec.ir.core import Function
from tilec.ir.text.printer import print_function
from tilec.passes.prover import prove

Size = dict[str, float | str]


@dataclass
class Verdict:
    """`outcome`: equivalent (the tile IR is the original's), refused, right (accepted, computes the reference), safe (accepted,
    computes something else in bounds and race-free), unjudged (accepted, no launch satisfies its contract) or false accept."""

    outcome: str
    codes: tuple[str, ...] = ()
    counterexample: bool = False
    problems: list[str] = field(default_factory=list[str])


def judge(mutant: Mutant) -> Verdict:
    """Proves it at every specialisation that the launches use, then runs accepted ones."""
    accepted: list[tuple[Size, Function]] = []
    changed = False
    for size in SIZES[mutant.kernel]:
        function = _load(mutant, size)
        if isinstance(function, CompileError):
            return _refused(function)
        if print_function(function) == _original(mutant.kernel, _key(size)):
            continue
        changed = True
        try:
            prove(function)
        except CompileError as error:
            return _refused(error)
        accepted.append((size, function))
    if not changed:
        return Verdict("equivalent")
    return _run(accepted)


def _refused(error: CompileError) -> Verdict:
    codes = tuple(sorted({diagnostic.code for diagnostic in error.diagnostics}))
    return Verdict("refused", codes, any(diagnostic.counterexample is not None for diagnostic in error.diagnostics))


def _run(accepted: list[tuple[Size, Function]]) -> Verdict:
    outcomes: set[str] = set()
    problems: list[str] = []
    for size, function in accepted:
        env = launch_values(function, size)
        arrays = make_arrays(function, env)
        scalars = {p.name: env[p.name] for p in function.parameters if p.access is None}
        dims = {name: int(value) for name, value in env.items() if name in function.dims}
        before = {name: array.copy() for name, array in arrays.items()}
        accesses = Accesses(function, arrays)
        try:
            run(function, arrays, scalars, dims=dims, accesses=accesses)
        except InterpreterError as error:
            if error.block is None:  # the launch violates the mutant's contract
                outcomes.add("unjudged")
                continue
            problems.append(str(error))
            continue
        problems += accesses.problems()
        reference = expected(function, before, env)
        close = all(
            np.allclose(arrays[name].astype(np.float64), np.asarray(values, np.float64), rtol=0.05, atol=0.05, equal_nan=True)
            for name, values in reference.items()
        )
        outcomes.add("right" if close else "safe")
    if problems:
        return Verdict("false accept", problems=problems)
    return Verdict("safe" if "safe" in outcomes else "right" if "right" in outcomes else "unjudged")


def _load(mutant: Mutant, size: Size) -> Function | CompileError:
    _, constants = shipped.specialisation(mutant.kernel, size)
    with tempfile.TemporaryDirectory() as folder:
        for path in (shipped.ROOT / "kernels_src").glob("*.py"):
            Path(folder, path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        target = Path(folder, f"{mutant.kernel}.py")
        target.write_text(mutant.text, encoding="utf-8")
        try:
            return load_kernel(target, constants, root=Path(folder))
        except CompileError as error:
            return error


def _key(size: Size) -> tuple[tuple[str, float | str], ...]:
    return tuple(sorted(size.items()))


@cache
def _original(kernel: str, size: tuple[tuple[str, float | str], ...]) -> str:
    return print_function(shipped.load(kernel, dict(size)))
