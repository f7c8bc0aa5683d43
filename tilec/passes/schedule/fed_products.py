"""The schedule that gives products the instruction that reads shared memory, where the chosen one makes them warp by warp.

In: a proven function, the target and its schedule. Out: the text of that schedule, or None. It is suggested only if it works:
the function is scheduled with it on a copy, by all passes, and no product of a loop is left to single warps. Two consumers
share a product, so tiles have whole instructions for two warpgroups.
"""

from __future__ import annotations

from typing import Final

from tilec.diagnostics.diagnostic import CompileError
from tilec.ir.clone import copy_of
from tilec.ir.core import Function
from tilec.passes.schedule.choose import choose
from tilec.passes.schedule.fed_by_default import has_looped_product
from tilec.passes.schedule.prepare import prepare
from tilec.passes.schedule.product_limits import operand_dtypes
from tilec.target.families import TMA
from tilec.target.schedule import Overrides, Schedule, fed_family
from tilec.target.targets import Target

FED: Final = Overrides(copy=TMA, consumers=2)
FED_TEXT: Final = 'schedule = { copy = "tma", consumers = 2 }'


def faster_schedule(function: Function, target: Target, schedule: Schedule) -> str | None:
    """The schedule to suggest for `function`, which has no layouts yet and stays unchanged."""
    if len(schedule.roles) > 1 or not has_looped_product(function.body):
        return None
    family = fed_family(TMA, target, None, operand_dtypes(function))
    ahead = [loop for loop in schedule.pipelines if loop.family is not None and loop.family.runs_ahead]
    if not family.runs_ahead or not target.has(family) or len(ahead) == len(schedule.pipelines) > 0:
        return None
    try:
        chosen = choose(copy_of(function), target, FED)
        prepared = prepare(copy_of(function), target, chosen)
    except CompileError:
        return None
    return None if has_looped_product(prepared.body) else FED_TEXT
