"""Limits of products: why a kernel's products cannot be made as a schedule or an override says.

In: a draft of the kernel, the schedule so far, and the target. Out: the first `Problem`, with the part of the schedule that it
is about, or None. The draft stays unchanged. Limits of a schedule for any kernel are in `tilec.target.schedule`.
"""

from __future__ import annotations

from tilec.atoms import mma_sync
from tilec.atoms.products import ATOMS
from tilec.ir.core import Function
from tilec.ir.ops import For, Mma
from tilec.ir.ops.tmem_ops import TmemReserve
from tilec.ir.types import TMEM_COLUMNS, DType, TmemSpaceType
from tilec.passes.schedule.passes import STAGING, run_on_copy, through
from tilec.passes.schedule.pipelining import tensor_staging
from tilec.passes.schedule.pipelining.staging import Candidate
from tilec.passes.schedule.specialization import pairs, persistent, pingpong
from tilec.target.families import TMA, Family, MemorySpace
from tilec.target.schedule import MOST_WARPS, NO_PAIR, REGISTERS, Overrides, Problem, Schedule, fed_family
from tilec.target.targets import Target


def operand_dtypes(function: Function) -> tuple[DType, ...]:
    """The dtypes of the operands of all products."""
    values = (value for op in function.body.walk() if isinstance(op, Mma) for value in op.operands[:2])
    return tuple(dict.fromkeys(value.tile.dtype for value in values))


def pair_problem(draft: Function, target: Target, wanted: Overrides) -> Problem | None:
    """Why blocks cannot form pairs; None if they can."""
    family = fed_family(TMA, target, wanted.mma, operand_dtypes(draft))
    if wanted.copy != TMA or not target.feeds(family, TMA) or not family.in_tensor_memory:
        return NO_PAIR
    text = pairs.problem(draft)
    return Problem("cluster", f"no pairs of blocks: {text}", "leave `cluster` out") if text else None


def consumer_problem(draft: Function, schedule: Schedule, target: Target, wanted: Overrides) -> Problem | None:
    """Why the consumers from the build file cannot share a product: no instruction divides it among their warps. With pingpong
    each has a whole product."""
    if wanted.consumers is None or wanted.copy != TMA or schedule.consumer_roles > 1:
        return None
    family = fed_family(TMA, target, wanted.mma, operand_dtypes(draft))
    atom, warps = ATOMS.get(family.name), schedule.tile_warps
    for op in draft.body.walk():
        if not isinstance(op, Mma):
            continue
        rows, columns = op.result.tile.shape[-2:]
        if mma_sync.choose_warps(rows, columns, warps) is None and not (atom and atom.fits(rows, columns, warps)):
            text = f"{wanted.consumers} consumers of {warps} warps cannot share a product of {rows} x {columns}"
            return Problem("consumers", text, "choose another number of `consumers`, or leave it out")
    return None


def too_few_registers(draft: Function, schedule: Schedule) -> Problem | None:
    """Too many warps per SM: the registers left per thread are fewer than an MMA needs."""
    families = [loop.family for loop in schedule.pipelines if loop.family is not None]
    if not families or not 1 <= schedule.warps <= MOST_WARPS:
        return None
    blocks = schedule.blocks or 1
    available = REGISTERS // (blocks * 32 * schedule.warps) // 8 * 8
    loops = [op for op in draft.body.walk() if isinstance(op, For)]
    columns = [op.result.tile.shape[-1] for op in draft.body.walk() if isinstance(op, Mma)]
    least = max(family.least_registers(max(columns)) for family in families)
    shown = f"a product of {max(columns)} columns takes"
    if (
        schedule.blocks
        and len(columns) > 1
        and all(one.runs_ahead and one.accumulators is MemorySpace.REGISTERS for one in families)
    ):
        together = max(sum(op.result.tile.shape[-1] for op in loop.regions[0].ops if isinstance(op, Mma)) for loop in loops)
        least = max(least, *(family.least_registers(together) for family in families))
        shown = f"products of {together} columns take"
    if available >= least:
        return None
    text = f"{blocks} blocks of {schedule.warps} warps leave {available} registers a thread; {shown}"
    part = "blocks" if schedule.blocks else "consumers" if len(schedule.roles) > 1 else "warps"
    return Problem(part, f"{text} {least}", "choose fewer, or tiles of fewer columns")


def too_many_columns(draft: Function, schedule: Schedule, target: Target) -> Problem | None:
    """`blocks` that need more tensor memory together than an SM has: the last of them would wait for another's columns."""
    if schedule.blocks is None or not any(loop.family and loop.family.in_tensor_memory for loop in schedule.pipelines):
        return None
    staged = run_on_copy(through(STAGING), draft, schedule, target)
    types = [op.result.type for op in staged.body.walk() if isinstance(op, TmemReserve)]
    columns = sum(type_.columns for type_ in types if isinstance(type_, TmemSpaceType))
    if schedule.blocks * columns <= TMEM_COLUMNS:
        return None
    text = f"{schedule.blocks} blocks of {columns} columns of tensor memory, where an SM has {TMEM_COLUMNS}"
    return Problem("blocks", text, f"choose at most {TMEM_COLUMNS // columns}, or tiles of fewer columns")


def tma_problem(function: Function, candidate: Candidate, family: Family, target: Target) -> Problem | None:
    """Why TMA copies cannot load a loop's operands."""
    chain = candidate.chain(family)
    if not target.feeds(family, TMA):
        text = f"`tma` feeds `{family.name}`, which {target} lacks"
    elif not target.multiplies(family, candidate.dtypes):
        text = f"`{family.name}` has no products of {' and '.join(map(str, candidate.dtypes))} on {target}"
    elif chain is not None and function.cluster > 1:
        text = "back-to-back products are not those of a pair of blocks"
    elif chain is not None:
        text = tensor_staging.problem(function, candidate.loop, chain.copied) or ""
    elif family not in candidate.families:
        product = f"product of two copied operands on {function.num_warps} warps"
        text = f"`{family.name}` does not make its {product} (`tilec explain E0809`)"
    else:
        text = tensor_staging.problem(function, candidate.loop, candidate.operands) or ""
    return Problem("copy", text, 'choose `copy = "cp_async"`, or other `consumers`') if text else None


def pingpong_problem(function: Function, candidate: Candidate, family: Family, schedule: Schedule) -> Problem | None:
    """Why consumers cannot process tiles round-robin (pingpong)."""
    if schedule.consumer_roles == 1 or not schedule.persistent or persistent.problem(function) is not None:
        return None
    reason = "it is a back-to-back GEMM" if candidate.chain(family) is not None else None
    text = reason or pingpong.problem(function, candidate.loop)
    return Problem("order", f"no `pingpong`: {text}", "leave `order` out") if text else None
