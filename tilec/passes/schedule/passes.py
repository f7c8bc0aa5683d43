"""The scheduling passes in their order, and how they run: all of them, or up to one of them.

In: a proven function without a schedule, and the `Settings` of a block. Out: the same function, rewritten in place. `prepare`
runs all passes; `choose` runs some on a copy, to know what a schedule would need; `tilec dump --after` shows what each makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tilec.ir.clone import copy_of
from tilec.ir.core import Function, Value
from tilec.ir.layouts import thread_elements
from tilec.passes.schedule.checks import bounds_fill_check
from tilec.passes.schedule.launch_overlap import dependency_wait, prologue_rings, prologue_stages
from tilec.passes.schedule.layouts import (
    conversions,
    layout,
    private_parts,
    shared_conversions,
    streamed_stores,
    tensor_stores,
    vector_positions,
)
from tilec.passes.schedule.pipelining import bounds_fill, loads_ahead, loads_in_flight, staging
from tilec.passes.schedule.simplify import exponentials, in_range, invariant_loads, loop_sums, networks, versioning
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.passes.schedule.specialization import pairs, persistent, pingpong, roles
from tilec.passes.schedule.sync import barrier_insertion
from tilec.target.families import TMA
from tilec.target.schedule import STREAMED, Schedule
from tilec.target.targets import Target


@dataclass(frozen=True, slots=True)
class Settings:
    """What passes know besides the function. `positive`: divisors that the prover has shown to be positive."""

    schedule: Schedule
    target: Target
    positive: frozenset[Value] = frozenset()


def _always(_: Schedule, _target: Target) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewrite of a function, in place. `reason`: why it has its place in the order. `when`: the schedules and targets that
    it runs for. `check`: what holds after it besides the rules of the verifier; raises otherwise."""

    name: str
    run: Callable[[Function, Settings], object]
    reason: str
    when: Callable[[Schedule, Target], bool] = _always
    check: Callable[[Function], None] | None = None

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return self.name.replace("_", "-")


def _of_one_block(schedule: Schedule, _: Target) -> bool:
    return schedule.cluster == 1


STAGING: Final = Pass(
    "staging",
    lambda function, settings: staging.stage(function, settings.schedule),
    "Pipelines fix the layouts of operands and accumulators, and the copies that later passes move.",
)
LAYOUT: Final = Pass(
    "layout",
    lambda function, settings: layout.assign(function, settings.schedule.vector, settings.target.widest_load),
    "Every operation that has elements is there, in the version of the loop that runs it.",
    check=thread_elements.check,
)
SHARED_CONVERSIONS: Final = Pass(
    "shared_conversions",
    lambda function, _: shared_conversions.make_shared(function),
    "The conversions that renaming registers cannot make are left. Shared memory grows no more.",
)
PASSES: Final = (
    Pass("networks", lambda function, _: networks.expand(function), "No later pass knows sorts."),
    Pass("canonicalize", lambda function, _: canonicalize(function), "Later passes need not know equal forms."),
    Pass(
        "pairs",
        lambda function, _: pairs.halve(function),
        "Every later pass sees the tiles of one block of a pair.",
        when=lambda schedule, _: schedule.cluster > 1,
    ),
    Pass(
        "dependency_wait",
        lambda function, settings: dependency_wait.insert(function, settings.schedule),
        "The scalars that may precede the wait are those of the kernel itself, before loops and copies add others.",
        when=lambda _, target: target.overlaps_launches,
    ),
    Pass(
        "persistent",
        lambda function, _: persistent.wrap(function),
        "The tile loop is around everything that depends on the tile, rings not yet included.",
        when=lambda schedule, _: schedule.persistent,
    ),
    STAGING,
    Pass("prologue_rings", lambda function, _: prologue_rings.hoist(function), "It moves the copies that staging made."),
    Pass(
        "prologue_stages",
        lambda function, settings: prologue_stages.hoist(function, settings.schedule),
        "It peels the producer's loop that staging made.",
        when=_of_one_block,
    ),
    Pass(
        "bounds_fill",
        lambda function, _: bounds_fill.mark(function),
        "All copies are made, and an iteration still has one copy of its code.",
        when=_of_one_block,
        check=bounds_fill_check.check,
    ),
    Pass(
        "pingpong",
        lambda function, settings: pingpong.order_consumers(function, settings.schedule.consumer_roles),
        "It divides a loop whose copies no longer move.",
        when=lambda schedule, _: schedule.consumer_roles > 1,
    ),
    Pass(
        "invariant_loads",
        lambda function, _: invariant_loads.hoist(function),
        "It moves loads of the author, of which versioning makes two.",
        when=lambda schedule, _: len(schedule.roles) == 1 and not schedule.persistent and schedule.cluster == 1,
    ),
    Pass(
        "loop_sums",
        lambda function, _: loop_sums.combine(function),
        "It moves atomics of the author, of which versioning makes two.",
        when=lambda schedule, _: len(schedule.roles) == 1 and not schedule.persistent and schedule.cluster == 1,
    ),
    Pass("versioning", lambda function, _: versioning.version(function), "It copies a body that has its final operations."),
    Pass(
        "in_range",
        lambda function, settings: in_range.mark(function, settings.positive),
        "Versions have tighter ranges; operations that are in range fit one instruction, in whatever layout.",
    ),
    Pass(
        "exponentials",
        lambda function, _: exponentials.divide(function),
        "It rewrites the version of each loop that runs, whose elements have no order yet that a later pass would keep.",
        when=lambda _, target: target.waits_for_exponentials,
    ),
    LAYOUT,
    Pass(
        "vector_positions",
        lambda function, settings: vector_positions.mark(function, settings.target),
        "What an index is divisible by is known before conversions add operations.",
    ),
    Pass(
        "loads_ahead",
        lambda function, settings: loads_ahead.load(function, settings.schedule.tile_registers),
        "Layouts and vectors say how many registers loads take, and conversions of what they load come later.",
        when=lambda schedule, _: len(schedule.roles) > 1 and schedule.consumer_roles == 1,
    ),
    Pass(
        "loads_in_flight",
        lambda function, settings: loads_in_flight.load(function, settings.schedule.chooses_registers),
        "Layouts say how many bytes a thread loads, and vectors are known from the author's positions.",
        when=lambda schedule, _: len(schedule.roles) == 1 and not schedule.persistent and schedule.cluster == 1,
    ),
    Pass(
        "tensor_stores",
        lambda function, settings: tensor_stores.insert(function, settings.target, settings.schedule.consumer_roles),
        "It stores from accumulators' layouts, before conversions that its stores do not need.",
        when=lambda schedule, _: schedule.store == TMA,
    ),
    Pass(
        "streamed_stores",
        lambda function, _: streamed_stores.mark(function),
        "It marks the stores that threads still make themselves.",
        when=lambda schedule, _: schedule.store == STREAMED,
    ),
    Pass("conversions", lambda function, _: conversions.convert(function), "Operands have all layouts that operations need."),
    Pass(
        "private_parts",
        lambda function, _: private_parts.insert(function),
        "Operands have their layouts, and the scratch of conversions comes after the parts.",
        when=lambda schedule, _: private_parts.applies(schedule),
    ),
    SHARED_CONVERSIONS,
    Pass(
        "barrier_insertion",
        lambda function, _: barrier_insertion.insert(function),
        "All accesses of shared memory by threads are there.",
    ),
    Pass(
        "roles",
        lambda function, settings: roles.split(function, settings.schedule),
        "It divides finished code; barriers then count the threads of their role.",
    ),
)  # fmt: skip
"""Every pass, in the order in which they run."""


def pass_names() -> tuple[str, ...]:
    """All names that `--after` takes, in order."""
    return tuple(one.option for one in PASSES)


def pass_named(option: str) -> Pass:
    """The pass of a name on the command line; KeyError if there is none."""
    return {one.option: one for one in PASSES}[option]


def before(last: Pass) -> Sequence[Pass]:
    """The passes that run before one of them."""
    return PASSES[: PASSES.index(last)]


def through(last: Pass) -> Sequence[Pass]:
    """The passes up to one of them, and it."""
    return PASSES[: PASSES.index(last) + 1]


def run(
    function: Function,
    settings: Settings,
    passes: Sequence[Pass] = PASSES,
    after_each: Callable[[Function, Pass], None] | None = None,
) -> Function:
    """Run those of `passes` that the schedule needs, in place; `after_each` may check what each of them made."""
    function.num_warps = settings.schedule.tile_warps
    for one in passes:
        if one.when(settings.schedule, settings.target):
            one.run(function, settings)
            if after_each is not None:
                after_each(function, one)
    return function


def run_on_copy(passes: Sequence[Pass], function: Function, schedule: Schedule, target: Target) -> Function:
    """A copy on which those of `passes` that the schedule needs have run."""
    return run(copy_of(function), Settings(schedule, target), passes)
