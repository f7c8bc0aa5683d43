"""Chooses a kernel's schedule: warps, pipeline stages, copy and MMA instructions, and roles.

In: a proven function, the target, and the build file's overrides. Out: a `Schedule`; the function stays unchanged. An override
that cannot be satisfied is refused (E0809) at its location in the build file. Rules:

1. Warps: a number that fits every MMA, more if a thread's registers would not hold its tiles (`register_need`); without MMAs,
   enough that each thread's share of the largest tile fits its registers.
2. Every loop that allows it is software-pipelined, with `wgmma` if its MMAs allow. With `copy = "tma"` a producer role issues
   the copies, and one or two consumer warpgroups run the MMAs, of `wgmma` where the target has it, else of `mma.sync`.
   Back-to-back GEMMs and large accumulators also get registers from the producer (`setmaxnreg`). Without any override a
   producer copies where no product is one of warpgroups otherwise (`fed_by_default`).
3. Blocks per SM: as registers allow; of a kernel without products and without any override the assembler may use fewer
   registers for a quarter more blocks (`tilec.assemble.more_blocks`).
4. Stages: as many as let `blocks` blocks share an SM, at least two. Without `blocks`: at least three if two blocks can then
   share an SM, else as many as fit one block. Fewer if scratch needs the shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tilec.atoms import mma_sync
from tilec.atoms.products import ATOMS
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label
from tilec.ir.clone import copy_of
from tilec.ir.core import Function, Value
from tilec.ir.layouts.shared_plan import shared_bytes
from tilec.ir.ops import Load, Meet, Mma, Permute, Reshape, Yield
from tilec.ir.types import DType
from tilec.passes.analysis.obligations import note_proofs
from tilec.passes.schedule import register_need
from tilec.passes.schedule.fed_by_default import RESERVED_BYTES, fed
from tilec.passes.schedule.layouts import tensor_stores
from tilec.passes.schedule.passes import LAYOUT, SHARED_CONVERSIONS, STAGING, before, run_on_copy, through
from tilec.passes.schedule.pipelining import direct_products, tensor_staging
from tilec.passes.schedule.pipelining.staging import Candidate, stage_by
from tilec.passes.schedule.pipelining.warpgroups import MAX_ACCUMULATORS
from tilec.passes.schedule.product_limits import (
    consumer_problem,
    operand_dtypes,
    pair_problem,
    pingpong_problem,
    tma_problem,
    too_few_registers,
    too_many_columns,
)
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.passes.schedule.specialization import pairs, persistent, pingpong
from tilec.passes.schedule.tile_warps import tile_warps
from tilec.target.families import CP_ASYNC, LOAD, MMA_SYNC, TMA, Family, Issuer, family_named
from tilec.target.schedule import (
    AFTER_WAIT,
    GRID,
    NOT_AHEAD,
    NOTHING_FIXED,
    PAIR,
    PINGPONG,
    THREADS,
    VECTOR,
    Overrides,
    Pipeline,
    Problem,
    Role,
    Schedule,
    block_roles,
    fed_family,
    problems,
)
from tilec.target.targets import Target

DEFAULT_WARPS: Final = 4
LEAST_BY_TMA: Final = 2
"""Fewest stages of a ring that a producer fills: one is read while the next is copied."""
LARGE_ACCUMULATORS: Final = 64
"""Accumulators of a thread from which two consumers share a tile that one could have: as many fragments and addresses need
registers in addition."""
MAX_WITH_FRAGMENTS: Final = 96
"""Accumulators of a thread with which an equal share of the registers has room for two slices of both operands."""


def choose(function: Function, target: Target, wanted: Overrides = NOTHING_FIXED) -> Schedule:
    """The schedule of a kernel. CompileError E0809 if an override cannot be satisfied, E0506 if no MMA instruction fits a
    shape."""
    note_proofs(function)
    draft = copy_of(function)
    canonicalize(draft)
    problem = _meet_problem(draft, wanted)
    if problem is not None:
        raise refusal(function, problem, wanted, target)
    if wanted.cluster == PAIR:
        problem = pair_problem(draft, target, wanted)
        if problem is not None:
            raise refusal(function, problem, wanted, target)
        pairs.halve(draft)
    warps = function.num_warps or wanted.warps or product_warps(draft) or tile_warps(draft)
    schedule = Schedule(
        _tma_roles(draft, target, wanted) if wanted.copy == TMA else (Role("all", warps),),
        (),
        wanted.blocks,
        bool(wanted.persistent),
        wanted.cluster or 1,
        wanted.order or GRID,
        wanted.early,
        wanted.next or AFTER_WAIT,
        wanted.store or THREADS,
        wanted.vector or VECTOR,
    )
    if any(isinstance(op, Mma) for op in draft.body.walk()):
        problem = consumer_problem(draft, schedule, target, wanted)
        if problem is not None:
            raise refusal(function, problem, wanted, target)
        schedule = _reallocate_registers(draft, schedule, target, wanted) if schedule.consumer_roles == 1 else schedule
        schedule = _with_pipelines(draft, schedule, target, wanted)
    if not function.num_warps and wanted.warps is None and wanted.blocks is None and wanted.copy != TMA:
        schedule = _warps_for_registers(draft, schedule, target, wanted)
    problem = (
        _override_problem(schedule, wanted)
        or next(iter(problems(schedule, target)), None)
        or _grid_problem(draft, schedule)
        or too_few_registers(draft, schedule)
        or _store_problem(draft, schedule, target)
        or _too_large(draft, schedule, target, wanted)
        or too_many_columns(draft, schedule, target)
    )
    if problem is not None:
        raise refusal(function, problem, wanted, target)
    if wanted != NOTHING_FIXED or function.num_warps:
        return schedule
    return replace(fed(function, target, schedule, choose), most_blocks=_most_blocks(draft, schedule, target))


def _most_blocks(draft: Function, schedule: Schedule, target: Target) -> int | None:
    """Blocks of a multiprocessor that warps and shared memory have room for; None for kernels with products, whose registers
    hold operands and sums that the next instruction waits for."""
    if any(isinstance(op, Mma) for op in draft.body.walk()):
        return None
    most = min(target.max_blocks, target.max_warps // schedule.warps)
    size = _shared_memory_bytes(draft, schedule, target)
    return min(most, (target.max_shared_bytes + RESERVED_BYTES) // (size + RESERVED_BYTES)) if size else most


def _with_pipelines(draft: Function, schedule: Schedule, target: Target, wanted: Overrides) -> Schedule:
    """The schedule with a pipeline for every loop that can have one, of as many stages as shared memory has room for."""
    schedule = replace(schedule, pipelines=pipelines_of(draft, schedule, target, wanted))
    least = LEAST_BY_TMA if wanted.copy == TMA else 1
    while wanted.stages is None and _most_stages(schedule) > least and _exceeds_shared_memory(draft, schedule, target):
        schedule = replace(schedule, pipelines=pipelines_of(draft, schedule, target, wanted, _most_stages(schedule) - 1))
    return schedule


def _warps_for_registers(draft: Function, schedule: Schedule, target: Target, wanted: Overrides) -> Schedule:
    """The schedule with more warps, if the tiles of a thread need more registers than it has and no product loses its
    instruction. With more than `MOST_WITH_ALL_REGISTERS` a thread has fewer registers, so that nothing is gained."""
    most = _registers_of_tiles(draft, schedule, target)
    by_warps = {loop.mma for loop in schedule.pipelines} == {MMA_SYNC.name}
    fitting = register_need.fitting(draft, by_warps)
    while most > fitting and 2 * schedule.warps <= register_need.MOST_WITH_ALL_REGISTERS:
        warps = 2 * schedule.warps
        shapes = [op.result.tile.shape for op in draft.body.walk() if isinstance(op, Mma)]
        if any(len(shape) != 2 or mma_sync.choose_warps(*shape, warps) is None for shape in shapes):
            break
        more = _with_pipelines(draft, replace(schedule, roles=(Role("all", warps),), pipelines=()), target, wanted)
        fewer = _registers_of_tiles(draft, more, target)
        if [loop.mma for loop in more.pipelines] != [loop.mma for loop in schedule.pipelines] or fewer >= most:
            break
        schedule, most = more, fewer
    return schedule


def _registers_of_tiles(draft: Function, schedule: Schedule, target: Target) -> int:
    if problems(schedule, target):
        return 0
    return register_need.registers(run_on_copy(through(LAYOUT), draft, schedule, target))


def _tma_roles(draft: Function, target: Target, wanted: Overrides) -> tuple[Role, ...]:
    """Roles of a block with `copy = "tma"`. With pingpong each consumer has a whole tile in registers, so it needs register
    reallocation from the producer."""
    family = fed_family(TMA, target, wanted.mma, operand_dtypes(draft))
    if wanted.order != PINGPONG:
        return block_roles(family, wanted.consumers or _consumers(draft, family))
    return block_roles(family, wanted.consumers or 2, target.reallocates_registers and wanted.blocks is None, PINGPONG)


def _reallocate_registers(draft: Function, schedule: Schedule, target: Target, wanted: Overrides) -> Schedule:
    """Add register reallocation from the producer to the consumers, for back-to-back GEMMs and large accumulators, unless
    `blocks` is given."""
    mmas = [op for op in draft.body.walk() if isinstance(op, Mma)]
    carried = {value for op in draft.body.walk() if isinstance(op, Yield) for value in op.operands}
    family = fed_family(TMA, target, wanted.mma, operand_dtypes(draft))
    assert family.specialization is not None
    most = MAX_ACCUMULATORS if family.runs_ahead else MAX_WITH_FRAGMENTS
    elements = max(op.result.tile.size for op in mmas) / (32 * schedule.tile_warps)
    separate_sums = any(
        op.result not in carried for op in mmas
    )  # sums of their own, such as scaled ones, take as many registers
    # A computed right operand is in registers, with what it is computed from (`fused_products`).
    computes = family.runs_ahead and any(not isinstance(_moved(op.operands[1]).owner, Load) for op in mmas)
    few_accumulators = len(mmas) < 2 and not computes and (2 * elements < most if separate_sums else elements <= most)
    if wanted.copy != TMA or few_accumulators or not target.reallocates_registers or schedule.blocks is not None:
        return schedule
    consumers = schedule.tile_warps // family.specialization.consumer_warps
    return replace(schedule, roles=block_roles(family, consumers, reallocates=True))


def _moved(value: Value) -> Value:
    """The tile of which a tile has the elements at other places."""
    while isinstance(value.owner, Permute | Reshape):
        value = value.owner.operands[0]
    return value


def _override_problem(schedule: Schedule, wanted: Overrides) -> Problem | None:
    """Overrides that apply to nothing in this schedule, or contradict each other."""
    parts = [part for part in ("stages", "copy", "mma", "consumers") if part in wanted.given()]
    if parts and not schedule.pipelines:
        return Problem(parts[0], f"no loop of it feeds a product, so that `{parts[0]}` says nothing", "leave it out")
    if wanted.copy == LOAD and wanted.stages is None and _most_stages(schedule) > 1:
        return Problem("copy", "a loop whose operands come by `load` has one stage", "write `stages = 1` too")
    if wanted.consumers is not None and wanted.copy != TMA:
        return Problem("consumers", "`consumers` are of copies by `tma`", 'write `copy = "tma"` too, or `warps` instead')
    if wanted.warps is not None and wanted.warps != schedule.warps:
        text = f"{wanted.warps} warps where consumers and producer have {schedule.warps}"
        return Problem("warps", text, "leave `warps` out, or choose another number of `consumers`")
    return None


def _meet_problem(draft: Function, wanted: Overrides) -> Problem | None:
    """Why the blocks of a kernel that meets other ranks cannot be as wanted: all threads of a block wait for its
    counterparts."""
    parts = {"persistent": bool(wanted.persistent), "cluster": wanted.cluster == PAIR, "copy": wanted.copy == TMA}
    part = next((name for name, given in parts.items() if given), None)
    if part is None or not any(isinstance(op, Meet) for op in draft.body.walk()):
        return None
    return Problem(part, f"no `{part}` for a kernel that meets other ranks", f"leave `{part}` out")


def _grid_problem(draft: Function, schedule: Schedule) -> Problem | None:
    """Why blocks cannot be persistent."""
    text = persistent.problem(draft) if schedule.persistent else None
    return Problem("persistent", text, "write the kernel with a grid of one axis, or leave `persistent` out") if text else None


def _store_problem(draft: Function, schedule: Schedule, target: Target) -> Problem | None:
    """Why the result cannot be stored by TMA."""
    if schedule.store != TMA:
        return None
    text = tensor_stores.problem(run_on_copy(through(LAYOUT), draft, schedule, target))
    return Problem("store", f'no `store = "tma"`: {text}', "leave `store` out") if text else None


def _too_large(draft: Function, schedule: Schedule, target: Target, wanted: Overrides) -> Problem | None:
    """Stages from the build file, or the fewest that copies by TMA need, that exceed shared memory; other stages always
    fit."""
    if (wanted.stages is None and wanted.copy != TMA) or _most_stages(schedule) < 2:
        return None
    size = _shared_memory_bytes(draft, schedule, target)
    if size <= target.max_shared_bytes:
        return None
    text = f"{_most_stages(schedule)} stages take {size} bytes of shared memory; {target} has {target.max_shared_bytes}"
    return Problem("stages", text, "choose fewer stages, or smaller tiles")


def refusal(function: Function, problem: Problem, wanted: Overrides, target: Target) -> CompileError:
    """E0809 at the location of the override in the build file, or at the kernel."""
    location = wanted.location(problem.part) or function.loc
    message = f"`{function.name}` for {target} cannot have this schedule: {problem.text}"
    return CompileError(Diagnostic("E0809", message, Label(location) if location else None, hint=problem.hint))


def product_warps(function: Function) -> int:
    """Number of warps that fits every `mma` of the kernel; 0 if there is none."""
    shapes = [op.result.tile.shape for op in function.body.walk() if isinstance(op, Mma)]
    products = [(shape[0], shape[1]) for shape in shapes if len(shape) == 2]
    if not products:
        return direct_products.default_warps(shapes[0]) if shapes else 0
    max_warps = max(mma_sync.default_warps(rows, columns) for rows, columns in products)
    fitting = [
        count
        for count in range(1, max_warps + 1)
        if all(mma_sync.choose_warps(rows, columns, count) is not None for rows, columns in products)
    ]
    return max(fitting, default=max_warps)


def _consumers(function: Function, family: Family) -> int:
    """Consumers that share every MMA's result: two if each then has whole instructions, or loads whole runs of columns from
    tensor memory; else one. Of a family that warps issue, two also need as many accumulators as leave one few registers."""
    shapes = [op.result.tile.shape[-2:] for op in function.body.walk() if isinstance(op, Mma)]
    if family.issuer is Issuer.WARP:
        warps = 2 * DEFAULT_WARPS
        divided = all(mma_sync.choose_warps(rows, columns, warps) is not None for rows, columns in shapes)
        largest = max((rows * columns for rows, columns in shapes), default=0)
        return 2 if divided and largest > LARGE_ACCUMULATORS * 32 * DEFAULT_WARPS else 1
    assert family.specialization is not None
    warps = 2 * family.specialization.consumer_warps
    return 2 if shapes and all(ATOMS[family.name].fits(rows, columns, warps) for rows, columns in shapes) else 1


def pipelines_of(
    draft: Function, schedule: Schedule, target: Target, wanted: Overrides, limit: int | None = None
) -> tuple[Pipeline, ...]:
    """A pipeline for every loop that can have one, of at most `limit` stages, as if nothing else used shared memory. Runs the
    staging pass on a copy to find these loops."""
    found: list[Pipeline] = []
    persists = schedule.persistent and persistent.problem(draft) is None
    draft_copy = run_on_copy(before(STAGING), draft, replace(schedule, persistent=persists), target)

    def decide(candidate: Candidate) -> Pipeline:
        found.append(_pipeline(candidate, operand_dtypes(draft), schedule.blocks, target, wanted, limit))
        if found[-1].copy == TMA:
            fed = fed_family(TMA, target, wanted.mma, operand_dtypes(draft))
            problem = tma_problem(draft_copy, candidate, fed, target)
            problem = problem or pingpong_problem(draft_copy, candidate, fed, schedule)
            if problem is not None:
                raise refusal(draft, problem, wanted, target)
            return found[-1]
        family = found[-1].family
        lacks = family is not None and target.has(family) and not target.multiplies(family, candidate.dtypes)
        makes = family is None or (family in candidate.families and candidate.is_fed(family, found[-1].copy))
        if family is not None and (lacks or not makes or found[-1].stages < family.least_stages):
            text = f"its product is none that `{family.name}` makes in {found[-1].stages} stages"
            hint = f"leave `mma` out, or have {family.least_stages} stages"
            raise refusal(draft, Problem("mma", text, hint), wanted, target)
        return found[-1]

    stage_by(draft_copy, decide, schedule)
    return tuple(found)


def _pipeline(
    candidate: Candidate, dtypes: Sequence[DType], blocks: int | None, target: Target, wanted: Overrides, limit: int | None
) -> Pipeline:  # fmt: skip
    if wanted.copy == TMA:
        family = fed_family(TMA, target, wanted.mma, dtypes)
        chain = candidate.chain(family)
        used_bytes = tensor_staging.HEAD_BYTES + (chain.unstaged_bytes if chain is not None else 0)
        max_stages = _stages(replace(candidate, used_bytes=used_bytes, unstaged_bytes=0), blocks, target, family.most_stages)
        fitting_stages = max(LEAST_BY_TMA, min(limit or family.most_stages, max_stages))
        return Pipeline(wanted.stages or fitting_stages, TMA, wanted.mma or family.name)
    usable = (one for one in candidate.families if target.multiplies(one, candidate.dtypes))
    fitting = [family for family in usable if CP_ASYNC in family.copies and candidate.is_fed(family, CP_ASYNC)]
    family = (family_named(wanted.mma) or MMA_SYNC) if wanted.mma is not None else fitting[0]
    stages = wanted.stages
    if stages is None:
        max_stages = _stages(candidate, blocks, target, family.most_stages)
        stages = max_stages if limit is None else min(limit, max_stages)
    if wanted.mma is None:
        family = next((one for one in fitting if one.least_stages <= stages), MMA_SYNC)
    if stages < 2:
        return replace(NOT_AHEAD, copy=wanted.copy or NOT_AHEAD.copy, mma=wanted.mma or NOT_AHEAD.mma)
    return Pipeline(stages, wanted.copy or CP_ASYNC, wanted.mma or family.name)


def _stages(candidate: Candidate, blocks: int | None, target: Target, max_stages: int) -> int:
    """Stages that fit `blocks` blocks per SM. Without `blocks`: those for two blocks if at least three fit, else those for
    one."""
    used, per_stage = candidate.used_bytes + candidate.unstaged_bytes, candidate.stage_bytes
    for_one_block = (target.max_shared_bytes - used) // per_stage
    if blocks is not None:
        # The system reserves 1 KB of shared memory for each block (CUDA programming guide, compute capability 8.x, shared
        # memory).
        share = (target.max_shared_bytes + 1024) // blocks - 1024
        return min(max_stages, max((share - used) // per_stage, min(for_one_block, 2)))
    for_two_blocks = (target.max_shared_bytes - used) // 2 // per_stage
    return min(max_stages, for_two_blocks if for_two_blocks >= 3 else for_one_block)


def _exceeds_shared_memory(draft: Function, schedule: Schedule, target: Target) -> bool:
    """Whether rings and scratch together exceed shared memory; the size of scratch is known only once layouts are assigned."""
    if _most_stages(schedule) < 2 or problems(schedule, target) or _grid_problem(draft, schedule):
        return False
    if _store_problem(draft, schedule, target):
        return False
    return _shared_memory_bytes(draft, schedule, target) > target.max_shared_bytes


def _shared_memory_bytes(draft: Function, schedule: Schedule, target: Target) -> int:
    """Bytes of shared memory that a block uses; with pingpong each consumer has its own scratch."""
    scheduled = run_on_copy(through(SHARED_CONVERSIONS), draft, schedule, target)
    return shared_bytes(scheduled) + (schedule.consumer_roles - 1) * pingpong.scratch_bytes(scheduled.body)


def _most_stages(schedule: Schedule) -> int:
    """Stages of the deepest pipeline; 1 if nothing is pipelined."""
    return max((pipeline.stages for pipeline in schedule.pipelines), default=1)
