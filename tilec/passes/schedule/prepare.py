"""Runs the scheduling passes: from a proven function to a scheduled one for one target."""

from __future__ import annotations

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label
from tilec.ir import verifier
from tilec.ir.core import Function, Value, VerifyError
from tilec.ir.layouts import thread_elements
from tilec.ir.layouts.shared_plan import shared_bytes
from tilec.ir.ops import Store
from tilec.passes.analysis.obligations import note_proofs
from tilec.passes.schedule.checks import bounds_fill_check, width_check
from tilec.passes.schedule.checks.verify import verify
from tilec.passes.schedule.choose import choose
from tilec.passes.schedule.launch_overlap import dependency_wait, prologue_rings, prologue_stages
from tilec.passes.schedule.layouts import conversions, layout, shared_conversions, tensor_stores
from tilec.passes.schedule.pipelining import bounds_fill, staging
from tilec.passes.schedule.simplify import in_range, versioning
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.passes.schedule.specialization import persistent, pingpong, roles
from tilec.passes.schedule.sync import barrier_insertion
from tilec.target.schedule import NOTHING_FIXED, Overrides, Schedule
from tilec.target.targets import Target


def prepare(
    function: Function,
    target: Target,
    schedule: Schedule | Overrides = NOTHING_FIXED,
    *,
    positive: frozenset[Value] = frozenset(),
) -> Function:
    """Run all passes in place, in this order: canonicalization, grid dependency wait, persistent blocks, pipelining, prologue
    loads before the wait, skipping of out-of-bounds rows, pingpong, versioning of full blocks without masks, unguarded
    divisions and shifts, layouts and vector widths, TMA stores, layout conversions, barriers, roles. With `Overrides`, `choose`
    makes the schedule.

    `positive` are divisors that the prover has shown to be positive. The function is verified after each pass; a VerifyError
    names the pass that broke an invariant. CompileError E0530 if a thread would have too many elements of a tile, E0507 if
    shared memory runs out, and those of `choose`.
    """
    if isinstance(schedule, Overrides):
        schedule = choose(function, target, schedule)
    note_proofs(function)
    canonicalize(function)
    _check(function, "canonicalize")
    dependency_wait.insert(function, schedule)
    _check(function, "wait_prior")
    if schedule.persistent:
        persistent.wrap(function)
        _check(function, "going from tile to tile")
    function.num_warps = schedule.tile_warps
    staging.stage(function, schedule)
    _check(function, "staging")
    prologue_rings.hoist(function)
    prologue_stages.hoist(function, schedule)
    _check(function, "copying early")
    bounds_fill.mark(function)
    _check(function, "clipping copies")
    bounds_fill_check.check(function)
    if schedule.takers > 1:
        pingpong.take_turns(function, schedule.takers)
        _check(function, "taking turns")
    versioning.version(function)
    _check(function, "versioning")
    in_range.mark(function, positive)
    _check(function, "marking what is in range")
    layout.assign(function)
    _check(function, "layout")
    thread_elements.check(function)
    if schedule.store == "tma":
        tensor_stores.insert(function, target, schedule.takers)
        _check(function, "storing by copies")
    if schedule.store == "streamed":
        _stream(function)
    conversions.convert(function)
    _check(function, "conversions")
    shared_conversions.exchange(function)
    _check(function, "exchanges")
    barrier_insertion.meet(function)
    _check(function, "meetings")
    roles.split(function, schedule)
    _check(function, "splitting roles")
    _refuse_too_large(function, target)
    width_check.check(function)
    verify(function, target)
    return function


def _stream(function: Function) -> None:
    """Mark all stores as streaming (evict-first)."""
    for op in function.body.walk():
        if isinstance(op, Store):
            op.streamed = True


def _refuse_too_large(function: Function, target: Target) -> None:
    """CompileError E0507 if the function exceeds shared memory."""
    size = shared_bytes(function)
    if size > target.max_shared_bytes:
        message = f"`{function.name}` needs {size} bytes of shared memory; {target} has {target.max_shared_bytes}"
        raise CompileError(
            Diagnostic("E0507", message, Label(function.loc) if function.loc else None, hint="use smaller tiles")
        )


def _check(function: Function, after: str) -> None:
    try:
        verifier.verify(function)
    except VerifyError as error:
        raise VerifyError(f"after {after}: {error}") from error
