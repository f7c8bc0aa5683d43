"""One program on several machines: the tile interpreter is the reference; the MLIR block machine and the PTX emulator must
agree.

`difference` reports where two results differ more than allowed. Code generation may abort the process, so a campaign calls
`examine` in worker processes only.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from tests.programs.generate import Program
from tests.programs.launches import Array, arrays
from tilec.artifact.records import Manifest, Resources, parameter_specs
from tilec.codegen import ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import Accesses, InterpreterError, run
from tilec.interpreter.error_bounds import run_bounded
from tilec.ir.core import Access, Function
from tilec.lowering import Lowered, lower
from tilec.passes.prover import positive_divisions, prove
from tilec.passes.schedule import choose, prepare
from tilec.target.families import TMA
from tilec.target.schedule import Overrides, Schedule
from tilec.target.targets import Target

LOWERING_TESTS = str(Path(__file__).resolve().parents[1] / "lowering")


@dataclass(slots=True)
class Outcome:
    """`kind`: equal, different, fault (the emulator found a race, a missing barrier, an out-of-bounds access, ...), refused (by
    the prover), error (a stage failed). `detail` describes it; `seconds` by stage; `ptx` is the digest of the PTX of all
    targets, if it was generated."""

    kind: str
    detail: str = ""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    operations: tuple[tuple[str, str], ...] = ()
    ptx: str = ""


def load(program: Program) -> Function:
    """The program through the frontend."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(program.text, encoding="utf-8")
        return load_kernel(path, {}, root=Path(folder))


def reference(function: Function, program: Program) -> tuple[dict[str, Array], dict[str, Array] | None]:
    """Memory after the interpreter's run, and for programs that are not exact the error bound of each element."""
    tensors = arrays(function, program)
    if not program.exact:
        return tensors, run_bounded(function, tensors, program.scalars)
    record = Accesses(function, tensors)
    run(function, tensors, program.scalars, accesses=record)
    problems = [line for line in record.problems() if "read before" not in line]
    assert not problems, problems
    return tensors, None


def difference(
    function: Function, found: Mapping[str, Array], expected: Mapping[str, Array], bounds: Mapping[str, Array] | None
) -> str:
    """The first wrong element, or an empty string. `Scratch` is not a result."""
    for parameter in function.parameters:
        if parameter.access in (None, Access.SCRATCH, Access.IN):
            continue
        name = parameter.name
        a, b = found[name], expected[name]
        if parameter.value.tensor.dtype.is_float:
            with np.errstate(all="ignore"):
                x, y = a.astype(np.float64), b.astype(np.float64)
                same = (x == y) & (np.signbit(x) == np.signbit(y)) | (np.isnan(x) & np.isnan(y))
                if bounds is not None:
                    same |= (np.abs(x - y) <= bounds[name]) | ~np.isfinite(bounds[name])
        else:
            same = a == b
        if not same.all():
            index = tuple(int(i) for i in np.argwhere(~same)[0])
            allowed = "" if bounds is None else f", at most {bounds[name][index]} off"
            return f"{name}{list(index)} is {a[index]!r} instead of {b[index]!r}{allowed}; {int((~same).sum())} elements differ"
    return ""


REFUSED_SCHEDULES: Final = ("E0506", "E0507", "E0530", "E0809")
"""Codes of refusals of a schedule: a shape without an instruction, too little shared memory, too few registers, an override
that cannot be satisfied."""
INSTRUCTIONS: Final = ("tcgen05.mma", "wgmma.mma_async", "mma.sync", "cp.async.bulk.tensor", "setmaxnreg")
"""What is reported of a program that has its own schedules."""
FED: Final = (Overrides(copy=TMA, consumers=2), Overrides(copy=TMA, consumers=1))
"""Schedules with a producer, for two consumers or one."""


def lowered(program: Program, target: Target, *, fed: bool = False) -> Lowered:
    """The program as MLIR, with the first of its own schedules that it can have. `fed`: with a producer, if it can."""
    return _scheduled(program, target, fed)[0]


def _scheduled(program: Program, target: Target, fed: bool) -> tuple[Lowered, Schedule]:
    """The program as MLIR and its schedule; at last with one that the passes choose."""
    for wanted in program.schedules or (FED if fed else ()):
        try:
            return _built(load(program), target, wanted)
        except CompileError as error:
            if error.diagnostics[0].code not in REFUSED_SCHEDULES:
                raise
    return _built(load(program), target, Overrides(warps=program.warps), proven_divisors=False)


def _built(
    function: Function, target: Target, wanted: Overrides, *, proven_divisors: bool = True
) -> tuple[Lowered, Schedule]:  # fmt: skip
    """A function as MLIR, as a build makes it; without `proven_divisors`, every division is guarded."""
    schedule = choose(function, target, wanted)
    divisions = positive_divisions(function) if proven_divisors else []
    prepared = prepare(function, target, schedule, positive=frozenset(op.operands[1] for op in divisions))
    return lower(prepared, target, min_blocks=schedule.blocks), schedule


def _instructions(text: str, schedule: Schedule) -> str:
    """Which instructions of products and of their copies a PTX text has, and its schedule."""
    return "; ".join([*(name for name in INSTRUCTIONS if name in text), str(schedule)])


def manifest(function: Function, code: Lowered, target: Target, schedule: Schedule | None = None) -> Manifest:
    """The launch information besides the PTX. Proofs and the CUBIN's resources are omitted, because nothing runs on a GPU.
    Without the `schedule` of a persistent kernel, a launch has a block for each tile."""
    tensors, scalars = parameter_specs(function)
    return Manifest(
        kernel=function.name, entry=code.entry, arch=target.name, constants={}, tensors=tensors, scalars=scalars,
        abi=code.abi, grid=function.grid, block=code.num_threads, cluster=1, dependent_launch=code.dependent_launch,
        launch_checks=(), value_checks=(), no_alias=(), resources=Resources(0, 0, 0, 0, code.dynamic_shared_bytes),
        obligations=(), unsafe=(), digests={}, toolchain={}, tensor_maps=code.tensor_maps,
        schedule={} if schedule is None else schedule.to_json(),
    )  # fmt: skip


class _Stopwatch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now


def examine(program: Program, targets: tuple[Target, ...], *, seeds: tuple[int, ...] = (0,), proven: bool = False,
            block_machine: bool = False, fed: bool = False,
            known: Callable[[str], Outcome | None] | None = None) -> Outcome:  # fmt: skip
    """Runs a program on all machines; one PTX text stands for all targets whose PTX differs only in its header. `fed`: with a
    producer, where it can be. `known` is asked, with the digest of all PTX, for an outcome that is still valid: if there is
    one, nothing runs."""
    watch = _Stopwatch()
    digest = ""

    def outcome(kind: str, detail: str = "") -> Outcome:
        return Outcome(kind, detail, watch.seconds, ptx=digest)

    try:
        function = load(program)
        scheduled = [_scheduled(program, target, fed) for target in targets]
        codes = [code for code, _ in scheduled]
        watch.lap("lower")
        texts = [ptx.to_ptx(code.mlir, target) for code, target in zip(codes, targets, strict=True)]
        digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
        watch.lap("ptx")
        recorded = known(digest) if known is not None else None
        if recorded is not None:
            return recorded
        if proven and program.provable:
            prove(function)
            watch.lap("prove")
        expected, bounds = reference(function, program)
        watch.lap("interpret")
        if block_machine:
            wrong = _on_block_machine(function, program, codes[0], expected, bounds)
            watch.lap("block machine")
            if wrong:
                return outcome("different", f"block machine, {targets[0]}: {wrong}")
        seen: set[str] = set()
        for target, (code, schedule), text in zip(targets, scheduled, texts, strict=True):
            body = "\n".join(line for line in text.splitlines() if not line.startswith((".target", ".version", "//")))
            for seed in () if body in seen else seeds:
                described = manifest(function, code, target, schedule)
                found = _emulated(function, program, described, text, expected, bounds, seed)
                watch.lap("emulate")
                if found is not None:
                    return outcome(found[0], f"{target}, schedule {seed}: {found[1]}")
            seen.add(body)
    except (CompileError, InterpreterError) as error:
        kind = "refused" if isinstance(error, CompileError) and error.diagnostics[0].code[:3] in ("E03", "E04") else "error"
        return outcome(kind, f"{type(error).__name__}: {str(error)[:300]}")
    return outcome("equal", _instructions(texts[0], scheduled[0][1]) if program.schedules else "")


def _on_block_machine(function: Function, program: Program, code: Lowered, expected: Mapping[str, Array],
                      bounds: Mapping[str, Array] | None) -> str:  # fmt: skip
    if LOWERING_TESTS not in sys.path:
        sys.path.insert(0, LOWERING_TESTS)
    from block_machine import launch  # pyright: ignore

    tensors = arrays(function, program)
    launch(function, code, tensors, {**program.dims, **program.scalars})
    return difference(function, tensors, expected, bounds)


def _emulated(function: Function, program: Program, described: Manifest, text: str, expected: Mapping[str, Array],
              bounds: Mapping[str, Array] | None, seed: int) -> tuple[str, str] | None:  # fmt: skip
    from tilec.emulator import emulate  # pyright: ignore

    tensors = arrays(function, program)
    report = emulate(text, described, tensors, {**program.dims, **program.scalars}, seed=seed)
    if not report.clean or report.notes:
        return "fault", str((report.faults or report.notes)[0])
    wrong = difference(function, report.tensors, expected, bounds)
    return ("different", wrong) if wrong else None
