"""Joins writes of the same box in both arms of an `if` into one write without the condition, so that which elements are written
no longer depends on data in the condition.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.ops import If
from tilec.passes.prover.accesses import AccessSite
from tilec.passes.prover.findings import Findings


def join_arms(findings: Findings, writes: list[AccessSite]) -> list[AccessSite]:
    """The writes, with each pair that covers the same elements from opposite arms joined into one without the condition."""
    found = list(writes)
    while True:
        pair = next(((a, b) for a in found for b in found if _opposite(findings, a, b)), None)
        if pair is None:
            return found
        first, second = pair
        given = tuple(fact for fact in first.instance.given if fact in second.instance.given)
        joined = replace(first, instance=replace(first.instance, runs=first.instance.runs[:-1], given=given))
        found = [joined if site is first else site for site in found if site is not second]


def _opposite(findings: Findings, left: AccessSite, right: AccessSite) -> bool:
    """Whether both have the same elements and conditions (one for each frame, outermost first), except that the last frames are
    the two arms of one `if`."""
    if left.unsafe or right.unsafe or left.instance.axes != right.instance.axes:
        return False
    frames = [findings.index.structure.frames[site.op][: len(site.instance.runs)] for site in (left, right)]
    left_frames, right_frames = frames
    if not left_frames or len(left_frames) != len(right_frames) or left.instance.runs[:-1] != right.instance.runs[:-1]:
        return False
    same_enclosing = all(a.op is b.op and a.arm == b.arm for a, b in zip(left_frames[:-1], right_frames[:-1], strict=True))
    last, other = left_frames[-1], right_frames[-1]
    return same_enclosing and isinstance(last.op, If) and last.op is other.op and (last.arm, other.arm) == (0, 1)
