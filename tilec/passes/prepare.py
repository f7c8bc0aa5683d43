"""From a proven function to one that says how threads run it, for one target."""

from __future__ import annotations

from tilec.ir.clone import clone
from tilec.ir.core import Function, Value, VerifyError
from tilec.ir.exchange import shared_bytes
from tilec.ir.ops_staging import SharedAlloc
from tilec.ir.verifier import verify
from tilec.passes import conversions, in_range, layout, meeting_check, meetings, overlap, ring_check, staging, versioning
from tilec.passes.canonicalize import canonicalize
from tilec.target import Target


def prepare(function: Function, target: Target, *, num_warps: int | None = None, min_blocks: int | None = None) -> Function:
    """Clean up, wait for earlier kernels where memory is first touched, pipeline the loops that feed tensor cores, free full
    blocks from masks, mark divisions and shifts that need no guard, decide layouts and vectors, let threads meet where they
    must; in place.

    `num_warps` overrides the choice that shapes decide; pipelines leave room for `min_blocks` blocks on a multiprocessor where
    two stages allow it. The function is verified after each pass; the VerifyError names the pass that broke a rule.
    """
    positive = in_range.positive_divisors(function)
    canonicalize(function)
    _check(function, "canonicalize")
    overlap.overlap(function)
    _check(function, "overlap")
    if num_warps is not None and not function.num_warps:
        function.num_warps = num_warps
    kept, warps = clone(function.body.ops, {}), function.num_warps
    _schedule(function, target, positive, num_warps, min_blocks, None)
    # Scratch beside the buffers is known only now; where it leaves them no room, pipelines get shorter.
    while shared_bytes(function) > target.max_shared_bytes and (stages := _stages(function)):
        function.body.ops, function.num_warps = clone(kept, {}), warps
        _schedule(function, target, positive, num_warps, min_blocks, stages - 1)
    return function


def _schedule(
    function: Function,
    target: Target,
    positive: frozenset[Value],
    num_warps: int | None,
    min_blocks: int | None,
    max_stages: int | None,
) -> None:
    staging.stage(function, target, max_stages=max_stages, min_blocks=min_blocks)
    _check(function, "staging")
    versioning.version(function)
    _check(function, "versioning")
    in_range.mark(function, positive)
    _check(function, "marking what is in range")
    layout.assign(function, num_warps)
    _check(function, "layout")
    conversions.convert(function)
    _check(function, "conversions")
    meetings.meet(function)
    _check(function, "meetings")
    meeting_check.check(function)
    ring_check.check(function)


def _stages(function: Function) -> int:
    """Stages of the longest pipeline, 0 where there is none."""
    return max((op.result.shared.stages for op in function.body.walk() if isinstance(op, SharedAlloc)), default=0)


def _check(function: Function, after: str) -> None:
    try:
        verify(function)
    except VerifyError as error:
        raise VerifyError(f"after {after}: {error}") from error
