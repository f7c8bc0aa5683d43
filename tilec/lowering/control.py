"""Loops, branches and roles. Loops with a constant trip count are unrolled, so that loads of several iterations overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from tilec.atoms.election import elected
from tilec.atoms.registers import reallocate_registers
from tilec.ir.core import Block, Op, Value
from tilec.ir.facts.loop_exits import exit_condition
from tilec.ir.ops import Binary, BinaryInRange, Constant, For, If
from tilec.ir.ops.launch_ops import LaunchedBlocks
from tilec.ir.ops.pair_ops import PairMma
from tilec.ir.ops.staging_ops import GroupProduct, SharedLoad, StageCopy
from tilec.ir.ops.sync_ops import Roles, SharedFree
from tilec.ir.ops.tmem_ops import ThreadProduct
from tilec.lowering.context import Context
from tilec.lowering.pairs import cluster_rank
from tilec.lowering.words import Words
from tilec.mlir.types import SsaValue
from tilec.target.schedule import REGISTERS

MAX_UNROLL = 8
Lower = Callable[[Sequence[Op]], None]
"""Lowers the operations of a nested region."""


def lower_for(context: Context, op: For, lower: Lower) -> None:
    """An `scf.for` over the registers of all carried values. Floats of 8 and 16 bits are carried as the 32-bit words that loads
    produce: unpacking the words loaded for the next iteration would wait for those loads at the end of the current one. A loop
    that may end early is an `scf.while`, and is not unrolled."""
    body = op.regions[0]
    start = [context.registers(initial) for initial in op.initial]
    going = exit_condition(op)
    factor, step, remainder = _unrolling(op) if going is None else (1, 1, [])
    words = [_carried_words(context, initial, len(registers)) for initial, registers in zip(op.initial, start, strict=True)]

    def packed(values: list[list[SsaValue]]) -> list[list[SsaValue]]:
        return [word.pack(registers) if word else registers for word, registers in zip(words, values, strict=True)]

    def unpacked(carried: list[SsaValue]) -> list[list[SsaValue]]:
        values = _split(carried, counts)
        return [word.elements(registers) if word else registers for word, registers in zip(words, values, strict=True)]

    def run_iterations(variable: SsaValue, arguments: list[SsaValue]) -> list[SsaValue]:
        values = unpacked(arguments)
        for iteration in range(factor):
            index = context.add(variable, iteration * step) if iteration else variable
            values = _run_iteration(context, body, index, values, lower)
        return _joined(packed(values))

    stride = context.scalar(op.step) if factor == 1 else step * factor
    upper = remainder[0] if remainder else context.scalar(op.upper)
    lower_bound, unsigned = context.scalar(op.lower), _is_pingpong_loop(op)
    initial = packed(start)
    counts = [len(registers) for registers in initial]
    if going is None:
        results = unpacked(context.loop(lower_bound, upper, stride, _joined(initial), run_iterations, unsigned))
    else:
        register = sum(counts[:going])
        bounds = lower_bound, context.scalar(op.upper), context.scalar(op.step)
        results = unpacked(context.loop_while(*bounds, _joined(initial), register, run_iterations))
    for index in remainder:
        results = _run_iteration(context, body, context.constant(index), results, lower)
    for value, registers in zip(op.results, results, strict=True):
        context.assign(value, registers)


def _carried_words(context: Context, value: Value, registers: int) -> Words | None:
    """The words in which a loop carries a value; None if it is carried element by element. Integers are not packed: if only low
    bits of a result are used, LLVM leaves the rest of a word undefined."""
    dtype = value.tile.dtype
    is_narrow = dtype.is_float and dtype.bits in (8, 16)
    return Words(context, dtype, registers) if is_narrow and registers * dtype.bits % 32 == 0 else None


def _is_pingpong_loop(op: For) -> bool:
    """Whether a loop processes every n-th of a block's tiles, n > 1 (`tilec.passes.schedule.specialization.pingpong`). Its
    lower bound is not negative and its upper bound is (extent - 1 - block) // blocks + 1, which is at least 1. If the upper
    bound is close to the largest i32, the value of the loop variable after the last iteration overflows i32; only the
    comparison uses that value, and an unsigned comparison is exact."""
    step, upper = op.step.owner, op.upper.owner
    if not (isinstance(step, Constant) and step.value > 1 and isinstance(upper, Binary | BinaryInRange)):
        return False
    quotient = upper.operands[0].owner
    return (
        upper.kind == "add"
        and isinstance(quotient, Binary | BinaryInRange)
        and quotient.kind == "floordiv"
        and isinstance(quotient.operands[1].owner, LaunchedBlocks)
    )


def _run_iteration(
    context: Context, body: Block, index: SsaValue, values: list[list[SsaValue]], lower: Lower
) -> list[list[SsaValue]]:
    """One iteration of a loop's body; returns the carried values after it."""
    carried = body.arguments[1:]
    context.assign(body.arguments[0], [index])
    for argument, registers in zip(carried, values, strict=True):
        context.assign(argument, registers)
    lower(body.ops[:-1])
    return [context.registers(value) for value in body.ops[-1].operands]


def lower_if(context: Context, op: If, lower: Lower) -> None:
    """An scf branch over the registers of all results."""
    counts = [value.layout.num_values if value.layout else 1 for value in op.results]

    def lower_region(region: Block) -> list[SsaValue]:
        lower(region.ops[:-1])
        return _joined([context.registers(value) for value in region.ops[-1].operands])

    then, otherwise = op.regions
    results = context.branch(context.scalar(op.operands[0]), lambda: lower_region(then), lambda: lower_region(otherwise))
    for value, registers in zip(op.results, _split(results, counts), strict=True):
        context.assign(value, registers)


def lower_roles(context: Context, op: Roles, lower: Lower) -> None:
    """Each thread executes the region of its role. A block barrier follows if any operations other than `shared_free` come
    after."""
    equal_registers = REGISTERS // (32 * sum(op.warps)) // 8 * 8
    elects = any(isinstance(inner, ThreadProduct) for region in op.regions for inner in region.walk())

    def single_thread() -> SsaValue:
        return elected(context) if elects else context.compare("eq", context.thread(), context.constant(0))

    def leads(region: Block) -> SsaValue | None:
        """Whether this block runs a role that starts products of a pair; None of other roles, which every block runs."""
        starts = any(isinstance(inner, PairMma) for inner in region.walk())
        return context.compare("eq", cluster_rank(context), context.constant(0)) if starts else None

    def lower_role(number: int, first: int) -> None:
        def lower_region() -> None:
            with context.role(number + 1, first, op.warps[number]):
                reallocate_registers(context, op.registers[number] or equal_registers, equal_registers)
                with context.where(leads(op.regions[number])), context.where(single_thread() if op.alone[number] else None):
                    lower(op.regions[number].ops)

        if number == len(op.regions) - 1:
            lower_region()
        else:
            end = context.constant(32 * (first + op.warps[number]))
            in_role = context.compare("ult", context.thread(), end)
            context.either(in_role, lower_region, lambda: lower_role(number + 1, first + op.warps[number]))

    lower_role(0, 0)
    body = context.function.body.ops
    if len(op.regions) > 1 and any(not isinstance(one, SharedFree) for one in body[body.index(op) + 1 :]):
        context.barrier()


def _joined(groups: list[list[SsaValue]]) -> list[SsaValue]:
    return [value for group in groups for value in group]


def _split(values: list[SsaValue], counts: list[int]) -> list[list[SsaValue]]:
    """Splits a flat list into groups of the given sizes; the inverse of `_joined`."""
    remaining = iter(values)
    return [list(islice(remaining, count)) for count in counts]


def _unrolling(op: For) -> tuple[int, int, list[int]]:
    """The unroll factor, the step, and the loop variable of each remainder iteration, which follow the loop. No unrolling if
    the trip count is unknown or the body is pipelined."""
    bounds = [value.owner.value for value in op.operands[:3] if isinstance(value.owner, Constant)]
    if len(bounds) < 3 or any(isinstance(inner, For | StageCopy | SharedLoad | GroupProduct) for inner in op.regions[0].walk()):
        return 1, 1, []
    lower, upper, step = (int(bound) for bound in bounds)
    trip_count = max(0, -(-(upper - lower) // step))
    # The largest factor without a remainder if it is large enough, else `MAX_UNROLL`.
    exact = max((factor for factor in range(1, MAX_UNROLL + 1) if trip_count and trip_count % factor == 0), default=1)
    factor = exact if 2 * exact > MAX_UNROLL or trip_count <= MAX_UNROLL else MAX_UNROLL
    return factor, step, [lower + step * iteration for iteration in range(trip_count - trip_count % factor, trip_count)]
