"""Checks whether a mutant is refused. If it is accepted, checks that it stays in bounds and free of races over all blocks of
real launches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import Accesses, InterpreterError, run
from tilec.ir.core import Function
from tilec.ir.text.printer import print_function
from tilec.passes.prover import Proofs, prove
from tilec.project.read.models import Constant

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """Arguments of a launch, and the results of the kernel's reference by tensor, computed when called; empty without one."""

    arrays: dict[str, Array]
    scalars: Mapping[str, float]
    dims: Mapping[str, int]
    expected: Callable[[], Mapping[str, Any]]


class Changed(Protocol):
    """A kernel with a mistake: the kernel, the file of the unchanged one, and the text of the changed file."""

    @property
    def kernel(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def text(self) -> str: ...


class Kernels(Protocol):
    """A folder of kernels, with the specialisations and launches at which their mutants are checked."""

    @property
    def folder(self) -> Path: ...

    def specialisations(self, kernel: str) -> Sequence[Mapping[str, Constant]]:
        """Constants of a kernel; each is proven and launched."""
        ...

    def launches(self, function: Function, proofs: Proofs, number: int) -> Iterator[Launch]:
        """Launches of an accepted mutant at specialisation `number`; none if its contract allows none."""
        ...


@dataclass
class Verdict:
    """`outcome`: equivalent (the tile IR is the original's), refused, right (accepted, computes the reference), safe (accepted,
    computes something else in bounds and race-free), unjudged (accepted, no launch of a size that is run satisfies its
    contract) or false accept."""

    outcome: str
    codes: tuple[str, ...] = ()
    counterexample: bool = False
    problems: list[str] = field(default_factory=list[str])


def examine(mutant: Changed, kernels: Kernels) -> Verdict:
    """Proves it at every specialisation, then runs accepted ones."""
    accepted: list[tuple[int, Function, Proofs]] = []
    changed = False
    for number, constants in enumerate(kernels.specialisations(mutant.kernel)):
        function = _load(mutant, kernels.folder, constants)
        if isinstance(function, CompileError):
            return _refused(function)
        if print_function(function) == _original(mutant.path, tuple(constants.items())):
            continue
        changed = True
        try:
            accepted.append((number, function, prove(function)))
        except CompileError as error:
            return _refused(error)
    if not changed:
        return Verdict("equivalent")
    return _run(kernels, accepted)


def _refused(error: CompileError) -> Verdict:
    codes = tuple(sorted({diagnostic.code for diagnostic in error.diagnostics}))
    return Verdict("refused", codes, any(diagnostic.counterexample is not None for diagnostic in error.diagnostics))


def _run(kernels: Kernels, accepted: list[tuple[int, Function, Proofs]]) -> Verdict:
    outcomes: set[str] = set()
    problems: list[str] = []
    for number, function, proofs in accepted:
        for launch in kernels.launches(function, proofs, number):
            violations = problems_of(function, launch)
            if violations is None:
                continue
            problems += violations
            reference = launch.expected()
            close = all(
                np.allclose(launch.arrays[name].astype(np.float64), np.asarray(values, np.float64), 0.05, 0.05, equal_nan=True)
                for name, values in reference.items()
            )
            outcomes.add("right" if reference and close else "safe")
    if problems:
        return Verdict("false accept", problems=problems)
    return Verdict("safe" if "safe" in outcomes else "right" if "right" in outcomes else "unjudged")


def problems_of(function: Function, launch: Launch) -> list[str] | None:
    """Violations of a launch over all its blocks, after which its arrays are as the kernel leaves them; None if the launch
    violates the kernel's contract."""
    accesses = Accesses(function, launch.arrays)
    try:
        run(function, launch.arrays, launch.scalars, dims=launch.dims, accesses=accesses)
    except InterpreterError as error:
        return None if error.block is None else [str(error)]
    return accesses.problems()


def _load(mutant: Changed, kernels: Path, constants: Mapping[str, Constant]) -> Function | CompileError:
    with tempfile.TemporaryDirectory() as folder:
        for path in kernels.glob("*.py"):
            Path(folder, path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        target = Path(folder, f"{mutant.kernel}.py")
        target.write_text(mutant.text, encoding="utf-8")
        try:
            return load_kernel(target, constants, root=Path(folder))
        except CompileError as error:
            return error


@cache
def _original(path: Path, constants: tuple[tuple[str, Constant], ...]) -> str:
    return print_function(load_kernel(path, dict(constants), root=path.parent))
