"""A kernel's schedule as a value: roles and warps, pipeline stages, copy, MMA and store instructions, persistence.

`tilec.passes.schedule.choose` makes one for a kernel, its constants and a target; the other schedule passes apply it. The build
file may override parts of it (`Overrides`). The schedule is part of the key of the lowered code and of the manifest; `tilec
check --schedule` prints it. Parts that no lowering supports yet are refused here, never ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tilec.diagnostics.diagnostic import Span
from tilec.target.dtypes import DType
from tilec.target.families import CP_ASYNC, FAMILIES, LOAD, MMA_SYNC, TMA, Family, Helper, family_named, fed_by, helper_named
from tilec.target.targets import Target

COPIES: Final[dict[str, tuple[Family, ...]]] = {LOAD: (), CP_ASYNC: (), TMA: fed_by(TMA)}
"""How an MMA's operands are copied, with the families of which the target must feed one so; none: every target can."""
PRODUCTS: Final = {family.name: (family,) if family.pattern else () for family in FAMILIES}
"""MMA instructions by name, with the family that the target must have."""
GRID: Final = "grid"
PINGPONG: Final = "pingpong"
ORDERS: Final[dict[str, tuple[Family, ...]]] = {
    GRID: (),
    PINGPONG: tuple(family for family in COPIES[TMA] if family.specialization is not None and not family.in_tensor_memory),
}
"""How consumers process a persistent block's tiles: `grid`, all consumers share each tile; `pingpong`, round-robin, each
consumer has its own tile. Where products run into tensor memory, `grid` already computes one tile while another is stored."""
AFTER_WAIT: Final = "after"
BEFORE: Final = "before"
NEXT: Final = (AFTER_WAIT, BEFORE)
THREADS: Final = "threads"
STREAMED: Final = "streamed"
STORES: Final[dict[str, tuple[Family, ...]]] = {THREADS: (), STREAMED: (), TMA: COPIES[TMA]}
"""How a tile is stored: `threads`, by each thread's stores; `streamed`, by such stores with evict-first priority; `tma`,
through shared memory by copies of whole boxes, if operands come by TMA too."""
TO_COME: Final[dict[str, tuple[str, ...]]] = {"copy": (), "mma": (), "order": ("snake", "grouped"), "store": ()}
"""Names that are recognized, but that no lowering supports yet."""
MOST_WARPS: Final = 32
"""Maximum warps per block (1024 threads)."""
REGISTERS: Final = 65536
"""Registers of an SM, which its blocks share (CUDA programming guide, "Technical Specifications per Compute Capability")."""
MOST_REGISTERS: Final = 255
"""Maximum registers per thread."""
MOST_STAGES: Final = 16
VECTOR: Final = 16
"""Maximum bytes of a load on every target."""
VECTORS: Final = (VECTOR, 32)
"""Bytes of 16-bit elements that a thread has side by side. It loads them at once where the target does (`Target.widest_load`);
of 8-bit elements it has half as many bytes."""
PAIR: Final = 2
"""Blocks of a pair: a cluster whose products read the shared memory of both."""
CONSUMER: Final = "consumer"
"""The role of a block with a producer that has the kernel's tiles; the others are `tilec.target.families.Helper`s."""


@dataclass(frozen=True, slots=True)
class Role:
    """Warps of a block that run one region. `registers` per thread, set by `setmaxnreg`; None: as ptxas allocates."""

    name: str
    warps: int
    registers: int | None = None

    @property
    def helper(self) -> Helper | None:
        """What it does for the consumers, if it is none of them."""
        return helper_named(self.name)

    @property
    def is_single_thread(self) -> bool:
        """Whether one thread of it runs the region, as for every helper."""
        return self.helper is not None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A loop whose loads feed MMAs, with `stages` stages; with one stage, each iteration loads its own operands. `copy` is one
    of `COPIES`, `mma` one of `PRODUCTS`."""

    stages: int
    copy: str
    mma: str

    @property
    def family(self) -> Family | None:
        """The family of its MMA; None for a name that no family has."""
        return family_named(self.mma)


NOT_AHEAD: Final = Pipeline(1, LOAD, MMA_SYNC.name)


@dataclass(frozen=True, slots=True)
class Schedule:
    """`pipelines`: one for each loop that feeds MMAs, inner loops first, in program order. `blocks`: blocks per SM, which
    bounds registers and shared memory; None: no bound. `persistent`: a block processes several tiles, in an order of `ORDERS`.
    `cluster`: blocks per cluster. `early`: prologue iterations or stages whose loads of resident tensors precede the grid
    dependency wait; None: as many iterations as registers allow, or a few stages. `next`: whether `launch_dependents` is issued
    `before` or after (`after`) this kernel's own wait. `store`: one of `STORES`. `vector`: bytes that a thread has side by
    side of 16-bit elements, and loads at once at most, one of `VECTORS`. `most_blocks`: blocks per SM that anything but
    registers has room for, if the assembler may choose registers for more blocks than it has at first; None: it may not."""

    roles: tuple[Role, ...]
    pipelines: tuple[Pipeline, ...] = ()
    blocks: int | None = None
    persistent: bool = False
    cluster: int = 1
    order: str = GRID
    early: int | None = None
    next: str = AFTER_WAIT
    store: str = THREADS
    vector: int = VECTOR
    most_blocks: int | None = None

    @property
    def warps(self) -> int:
        """Warps per block, all roles together."""
        return sum(role.warps for role in self.roles)

    @property
    def tile_warps(self) -> int:
        """Warps of the first role, which have the kernel's tiles in registers."""
        return self.roles[0].warps

    @property
    def consumer_roles(self) -> int:
        """Consumers that process a block's tiles round-robin (pingpong); 1 if all consumers share each tile."""
        return max(1, sum(role.helper is None for role in self.roles)) if self.order == PINGPONG else 1

    @property
    def tile_registers(self) -> int:
        """Maximum registers per thread of the first role."""
        equal = REGISTERS // (32 * self.warps * (self.blocks or 1)) // 8 * 8
        return self.roles[0].registers or min(MOST_REGISTERS, equal)

    @property
    def chooses_registers(self) -> bool:
        """Whether nobody fixed a part of it, so that a thread's registers may be spent as the compiler thinks best."""
        return self.most_blocks is not None

    def to_json(self) -> dict[str, Any]:
        """Plain data; `most_blocks` only if there is one."""
        return {name: value for name, value in dataclasses.asdict(self).items() if (name, value) != ("most_blocks", None)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Schedule:
        """Inverse of `to_json`."""
        parts: dict[str, Any] = {
            "roles": tuple(Role(**role) for role in data["roles"]),
            "pipelines": tuple(Pipeline(**pipeline) for pipeline in data["pipelines"]),
        }
        return Schedule(**(data | parts))

    def __str__(self) -> str:
        one = len(self.roles) == 1
        words = [f"{role.warps} warps{'' if one else f' {role.name}'}{_registers(role)}" for role in self.roles]
        words += [f"{loop.mma} by {loop.copy}{f', {loop.stages} stages' if loop.stages > 1 else ''}" for loop in self.pipelines]
        words += [f"{self.blocks} blocks a multiprocessor"] if self.blocks else []
        words += [f"up to {self.most_blocks} blocks a multiprocessor"] if self.most_blocks else []
        words += ["persistent"] if self.persistent else []
        words += [f"clusters of {self.cluster}"] if self.cluster > 1 else []
        words += [f"order {self.order}"] if self.order != GRID else []
        words += [f"{self.early} turns early"] if self.early is not None else []
        words += ["the next kernel at once"] if self.next == BEFORE else []
        words += {TMA: ["stored by tma"], STREAMED: ["stores streamed"]}.get(self.store, [])
        words += [f"loads of {self.vector} bytes"] if self.vector != VECTOR else []
        return "; ".join(words)


def _registers(role: Role) -> str:
    return f" of {role.registers} registers" if role.registers is not None else ""


OVERRIDES: Final[dict[str, type]] = {
    "warps": int, "blocks": int, "stages": int, "copy": str, "mma": str,
    "persistent": bool, "cluster": int, "order": str, "consumers": int, "early": int, "next": str,
    "store": str, "vector": int,
}  # fmt: skip
"""Parts of a schedule that the build file may override. `stages`, `copy` and `mma` apply to every pipeline of the kernel;
`consumers` is the number of consumer warpgroups with `tma` copies."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """Overrides of a schedule; `choose` decides those that are None. `target`: the architecture that they apply to, None: all.
    `locations`: source location of each override; not compared."""

    warps: int | None = None
    blocks: int | None = None
    stages: int | None = None
    copy: str | None = None
    mma: str | None = None
    persistent: bool | None = None
    cluster: int | None = None
    order: str | None = None
    consumers: int | None = None
    early: int | None = None
    next: str | None = None
    store: str | None = None
    vector: int | None = None
    target: str | None = None
    locations: tuple[tuple[str, Span], ...] = field(default=(), compare=False)

    def given(self) -> dict[str, int | str | bool]:
        """The overrides that are set, by name."""
        return {name: value for name in OVERRIDES if (value := getattr(self, name)) is not None}

    def location(self, name: str) -> Span | None:
        """Source location of an override."""
        return dict(self.locations).get(name)


NOTHING_FIXED: Final = Overrides()


def merged(rules: tuple[Overrides, ...], target: Target) -> Overrides:
    """All rules for a target merged into one; a later rule wins."""
    found: dict[str, Any] = {}
    locations: dict[str, Span] = {}
    for rule in rules:
        if rule.target in (None, target.name):
            found |= rule.given()
            locations |= dict(rule.locations)
    return Overrides(**found, locations=tuple(locations.items()))


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a schedule is invalid: the part of it, the reason, and a suggestion."""

    part: str
    text: str
    hint: str


def problems(schedule: Schedule, target: Target) -> list[Problem]:
    """Parts of a schedule that the target or lowering does not support for any kernel."""
    found = _of_roles(schedule, target)
    for loop in schedule.pipelines:
        found += _of_family("copy", loop.copy, COPIES, target)
        found += _of_family("mma", loop.mma, PRODUCTS, target)
        if loop.family is not None and loop.copy not in (TMA, *loop.family.copies):
            names = " or ".join(f'`copy = "{name}"`' for name in loop.family.copies)
            found.append(Problem("mma", f"`{loop.mma}` of operands copied by `{loop.copy}`", f"write {names} too"))
        if not 1 <= loop.stages <= MOST_STAGES:
            found.append(Problem("stages", f"{loop.stages} stages", f"choose 1 to {MOST_STAGES}"))
        if (loop.stages == 1) != (loop.copy == LOAD):
            found.append(
                Problem("stages", f"`{loop.copy}` with {loop.stages} stages", "one stage is for `load`, more are for copies")
            )
    found += _of_family("order", schedule.order, ORDERS, target)
    without = [loop for loop in schedule.pipelines if loop.family is not None and loop.family not in ORDERS[PINGPONG]]
    if schedule.order == PINGPONG and without:
        text = f"`pingpong` of products by `{without[0].mma}`, which run into tensor memory while a tile is stored"
        found.append(Problem("order", text, "leave `order` out"))
    if schedule.order == PINGPONG and not schedule.persistent:
        text = "`pingpong` of blocks that take one tile each"
        found.append(Problem("order", text, "write `persistent = true` too"))
    if schedule.next not in NEXT:
        found.append(Problem("next", f'`next = "{schedule.next}"` is not known', f"choose among {', '.join(NEXT)}"))
    found += _of_family("store", schedule.store, STORES, target)
    if schedule.store == TMA and all(loop.copy != TMA for loop in schedule.pipelines):
        text = '`store = "tma"` in a kernel whose operands do not come by `tma`'
        found.append(Problem("store", text, 'write `copy = "tma"` too, or leave `store` out'))
    if schedule.persistent and all(loop.copy != TMA for loop in schedule.pipelines):
        found.append(_not_yet("persistent", "persistent blocks whose operands do not come by `tma`", "false"))
    found += _of_cluster(schedule)
    found += _of_vector(schedule)
    return list(dict.fromkeys(found))


NO_PAIR: Final = Problem(
    "cluster",
    "pairs of blocks whose products are not those in tensor memory, of operands copied by `tma`",
    'write `copy = "tma"` too, for sm_100 alone, or leave `cluster` out',
)
"""Why blocks form no pairs, whatever the kernel."""


def _of_cluster(schedule: Schedule) -> list[Problem]:
    """Blocks form pairs where products read the shared memory of both, and a multiprocessor has one of them."""
    if schedule.cluster == 1:
        return []
    if schedule.cluster != PAIR:
        return [Problem("cluster", f"clusters of {schedule.cluster} blocks", f"write 1, or {PAIR} for pairs of blocks")]
    if not schedule.pipelines:
        return [Problem("cluster", "pairs of blocks without products", "leave it out")]
    if any(loop.copy != TMA or loop.family is None or not loop.family.in_tensor_memory for loop in schedule.pipelines):
        return [NO_PAIR]
    if schedule.blocks not in (None, 1):
        return [Problem("blocks", f"{schedule.blocks} blocks of pairs on a multiprocessor", "leave `blocks` out")]
    return []


def _of_vector(schedule: Schedule) -> list[Problem]:
    """Vectors of 32 bytes are for weights that threads multiply themselves; operands of products are copied otherwise."""
    if schedule.vector == VECTOR:
        return []
    if schedule.vector not in VECTORS:
        return [Problem("vector", f"loads of {schedule.vector} bytes", f"choose {' or '.join(map(str, VECTORS))}")]
    if schedule.pipelines:
        return [Problem("vector", f"loads of {schedule.vector} bytes in a kernel that feeds products", "leave `vector` out")]
    return []


def fed_family(copy: str, target: Target, wanted: str | None = None, dtypes: Sequence[DType] = ()) -> Family:
    """The family for operands of `dtypes` that are copied so: the one of the name `wanted` if it can be, else the target's,
    else any."""
    fitting = fed_by(copy)
    named = [family for family in fitting if family.name == wanted]
    fed = [family for family in fitting if target.feeds(family, copy) and target.multiplies(family, dtypes)]
    return (named or fed or fitting)[0]


def block_roles(family: Family, consumers: int, reallocates: bool = False, order: str = GRID) -> tuple[Role, ...]:
    """The roles of a block with helpers; with `reallocates`, registers move from the helpers to the consumers. With `pingpong`
    each consumer is a role, else all are one role."""
    parts = family.specialization
    assert parts is not None
    more, less = parts.reallocation.get(consumers, (None, None)) if reallocates else (None, None)
    helpers = [Role(helper.name, helper.warps, less) for helper in parts.helpers]
    if order == PINGPONG:
        return *(Role(f"{CONSUMER}{number}", parts.consumer_warps, more) for number in range(consumers)), *helpers
    return Role(CONSUMER, parts.consumer_warps * consumers, more), *helpers


def _of_roles(schedule: Schedule, target: Target) -> list[Problem]:
    found: list[Problem] = []
    if not 1 <= schedule.warps <= MOST_WARPS or min(role.warps for role in schedule.roles) < 1:
        found.append(Problem("warps", f"{schedule.warps} warps a block", f"choose 1 to {MOST_WARPS}"))
    by_tma = [loop for loop in schedule.pipelines if loop.copy == TMA]
    parts = fed_family(TMA, target, by_tma[0].mma if by_tma else None)
    assert parts.specialization is not None
    most = parts.specialization.most_consumers
    consumers = (
        schedule.consumer_roles if schedule.consumer_roles > 1 else schedule.tile_warps // parts.specialization.consumer_warps
    )
    known = [block_roles(parts, consumers, reallocates, schedule.order) for reallocates in (False, True)]
    if by_tma and schedule.order == PINGPONG and consumers < 2:
        found.append(Problem("order", "`pingpong` of one consumer", "choose 2 or 3 consumers"))
    if by_tma and (schedule.roles not in known or consumers > most):
        text = f"`tma` for roles {', '.join(f'{role.name} of {role.warps} warps' for role in schedule.roles)}"
        found.append(Problem("consumers", text, f"choose 1 to {most} consumers"))
    if not by_tma and len(schedule.roles) > 1:
        found.append(Problem("consumers", f"{len(schedule.roles)} roles without `tma`", 'choose `copy = "tma"`, or one role'))
    if by_tma and (len(by_tma) < len(schedule.pipelines) or len(by_tma) > 1):
        found.append(Problem("copy", "`tma` in a kernel with several loops that feed products", 'choose `copy = "cp_async"`'))
    if any(loop.family not in COPIES[TMA] for loop in by_tma):
        text = f"`tma` for products other than `{parts.name}`"
        found.append(Problem("copy", text, f'choose `mma = "{parts.name}"`, or `copy = "{CP_ASYNC}"`'))
    if schedule.blocks is not None:
        most = min(target.max_blocks, target.max_warps // max(schedule.warps, 1))
        if not 1 <= schedule.blocks <= most:
            text = f"{schedule.blocks} blocks of {schedule.warps} warps on a multiprocessor of {target}"
            found.append(
                Problem("blocks", text, f"{target.max_warps} warps and {target.max_blocks} blocks have room: at most {most}")
            )
    return found


def _of_family(part: str, name: str, known: Mapping[str, tuple[Family, ...]], target: Target) -> list[Problem]:
    def can(families: tuple[Family, ...]) -> bool:
        return not families or any(target.has(one) if part == "mma" else target.feeds(one, TMA) for one in families)

    names = ", ".join(f'"{item}"' for item, families in known.items() if can(families))
    if name in TO_COME[part]:
        return [_not_yet(part, f'`{part} = "{name}"`', names)]
    if name not in known:
        return [Problem(part, f'`{part} = "{name}"` is not known', f"choose among {names}")]
    if can(known[name]):
        return []
    lacking = f"`{name}`" if part == "mma" else f"tensor maps, which `{name}` needs"
    return [Problem(part, f"{target} has no {lacking}", f"choose among {names}, or name the `arch` that it is for")]


def _not_yet(part: str, what: str, instead: str) -> Problem:
    return Problem(part, f"{what}: nothing lowers that yet", f"write {instead}")
