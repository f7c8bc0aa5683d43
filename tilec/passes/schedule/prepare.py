"""Runs the scheduling passes: from a proven function to a scheduled one for one target."""

from __future__ import annotations

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label
from tilec.ir import verifier
from tilec.ir.core import Function, Value, VerifyError
from tilec.ir.layouts.shared_plan import shared_bytes
from tilec.passes.analysis.obligations import note_proofs
from tilec.passes.schedule.checks import print_check, width_check
from tilec.passes.schedule.checks.verify import verify
from tilec.passes.schedule.choose import choose
from tilec.passes.schedule.passes import Pass, Settings, run, through
from tilec.target.schedule import NOTHING_FIXED, Overrides, Schedule
from tilec.target.targets import Target


def prepare(
    function: Function,
    target: Target,
    schedule: Schedule | Overrides = NOTHING_FIXED,
    *,
    positive: frozenset[Value] = frozenset(),
    last: Pass | None = None,
) -> Function:
    """Run `PASSES` in place, up to `last` if one is named. With `Overrides`, `choose` makes the schedule.

    `positive` are divisors that the prover has shown to be positive. The function is verified after each pass; a VerifyError
    names the pass that broke an invariant. CompileError E0530 if a thread would have too many elements of a tile, E0507 if
    shared memory runs out, and those of `choose`.
    """
    if isinstance(schedule, Overrides):
        schedule = choose(function, target, schedule)
    note_proofs(function)
    settings = Settings(schedule, target, positive)
    printed = print_check.written(function)
    if last is not None:
        return run(function, settings, through(last), check_after)
    run(function, settings, after_each=check_after)
    _refuse_too_large(function, target)
    width_check.check(function)
    print_check.check(function, printed)
    verify(function, target)
    return function


def check_after(function: Function, after: Pass) -> None:
    """VerifyError that names the pass if the verifier's rules do not hold after it; else what its own check raises."""
    try:
        verifier.verify(function)
    except VerifyError as error:
        raise VerifyError(f"after {after.name}: {error}") from error
    if after.check is not None:
        after.check(function)


def _refuse_too_large(function: Function, target: Target) -> None:
    """CompileError E0507 if the function exceeds shared memory."""
    size = shared_bytes(function)
    if size > target.max_shared_bytes:
        message = f"`{function.name}` needs {size} bytes of shared memory; {target} has {target.max_shared_bytes}"
        raise CompileError(
            Diagnostic("E0507", message, Label(function.loc) if function.loc else None, hint="use smaller tiles")
        )
