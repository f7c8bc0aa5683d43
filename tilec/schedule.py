"""How the threads of a block run a kernel, as a value: who works, how many stages copies run ahead, which instructions.

`tilec.passes.schedule.choose` makes one for a kernel at its constants and a target; the passes beside it follow it. The build
file may fix parts of it (`Overrides`). It is in the key of the lowered code, in the manifest, and shown by `tilec check
--schedule`. What a schedule says and nothing lowers yet is refused here, never passed over.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final

from tilec.diagnostics import Span
from tilec.target import Target

COPIES: Final[dict[str, str | None]] = {"load": None, "cp_async": None, "tma": "wgmma"}
"""How operands come to a product, and the family of instructions that a target must have for it: by the threads' own loads, by
asynchronous copies of 4 to 16 bytes of each thread, by copies of whole boxes that one thread of a role of its own starts,
for products that read them where they lie."""
PRODUCTS: Final[dict[str, str | None]] = {"mma_sync": None, "wgmma": "wgmma"}
"""Families of products: of a warp, from registers; of four warps, from shared memory."""
TO_COME: Final[dict[str, tuple[str, ...]]] = {"copy": (), "mma": ("tcgen05",), "order": ("snake", "grouped"), "store": ()}
"""Names that are understood, and that nothing lowers yet."""
ORDERS: Final[dict[str, str | None]] = {"grid": None, "pingpong": "wgmma"}
"""How consumers go through a persistent block's tiles: all of them through each, or one after the other, each with its own."""
NEXT: Final = ("behind", "before")
STORES: Final[dict[str, str | None]] = {"threads": None, "streamed": None, "tma": "wgmma"}
"""How a tile goes to its tensor: by stores of the threads that hold it; by such whose data is the first to leave the caches; or
through shared memory by copies of whole boxes that one thread starts, where operands come so too."""
MOST_WARPS: Final = 32
"""Of a block: it has 1024 threads at most."""
REGISTERS: Final = 65536
"""Of a multiprocessor, which its blocks share (CUDA programming guide, "Technical Specifications per Compute Capability")."""
MOST_REGISTERS: Final = 255
"""Of a thread."""
MOST_STAGES: Final = 16
MOST_CONSUMERS: Final = 3
CONSUMER: Final = "consumer"
PRODUCER: Final = "producer"
"""Roles of a block whose operands come by `tma`: warps that hold the kernel's tiles, in groups of four, and those that start
copies."""
PRODUCER_WARPS: Final = 4
"""A group of four, of which one thread works, so that registers can be passed on between groups."""
PASSED_ON: Final = {2: (232, 40), 3: (160, 32)}
"""Registers of a thread of so many consumers and of their producer, where it passes them on: all that a multiprocessor has. One
consumer has as many as a thread may have anyway."""


@dataclass(frozen=True, slots=True)
class Role:
    """Warps of a block that run one region. `registers` of a thread: what `setmaxnreg` gives; None: the assembler's."""

    name: str
    warps: int
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A loop whose loads feed products: its copies run `stages` - 1 iterations ahead; with one stage, operands are loaded in
    their turn. `copy` and `mma` are of `COPIES` and `PRODUCTS`."""

    stages: int
    copy: str
    mma: str


NOT_AHEAD: Final = Pipeline(1, "load", "mma_sync")


@dataclass(frozen=True, slots=True)
class Schedule:
    """`pipelines` are the loops that feed products, those inside others first, in the order of the text. `blocks`: as many
    share a multiprocessor, which bounds registers and shared memory; None: no bound. `persistent`: a block takes tile after
    tile, in an order of `ORDERS`; `cluster`: blocks that share their memory. `early`: turns of a loop whose loads and
    copies of resident tensors do not wait for earlier kernels; None: as many as registers are there for, or a few stages.
    `next`: whether a block lets those of the next kernel come before or behind its wait for earlier ones. `store` is of
    `STORES`."""

    roles: tuple[Role, ...]
    pipelines: tuple[Pipeline, ...] = ()
    blocks: int | None = None
    persistent: bool = False
    cluster: int = 1
    order: str = "grid"
    early: int | None = None
    next: str = "behind"
    store: str = "threads"

    @property
    def warps(self) -> int:
        """Of a block, all roles together."""
        return sum(role.warps for role in self.roles)

    @property
    def tile_warps(self) -> int:
        """Warps of the first role, which hold the kernel's tiles."""
        return self.roles[0].warps

    @property
    def takers(self) -> int:
        """Roles that take a block's tiles in turns; 1 where all warps that hold tiles share each."""
        return max(1, len(self.roles) - 1) if self.order == "pingpong" else 1

    @property
    def tile_registers(self) -> int:
        """Registers that a thread of the first role may have."""
        equal = REGISTERS // (32 * self.warps * (self.blocks or 1)) // 8 * 8
        return self.roles[0].registers or min(MOST_REGISTERS, equal)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

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
        words += ["persistent"] if self.persistent else []
        words += [f"clusters of {self.cluster}"] if self.cluster > 1 else []
        words += [f"order {self.order}"] if self.order != "grid" else []
        words += [f"{self.early} turns early"] if self.early is not None else []
        words += ["the next kernel at once"] if self.next == "before" else []
        words += {"tma": ["stored by tma"], "streamed": ["stores streamed"]}.get(self.store, [])
        return "; ".join(words)


def _registers(role: Role) -> str:
    return f" of {role.registers} registers" if role.registers is not None else ""


OVERRIDES: Final[dict[str, type]] = {
    "warps": int, "blocks": int, "stages": int, "copy": str, "mma": str,
    "persistent": bool, "cluster": int, "order": str, "consumers": int, "early": int, "next": str,
    "store": str,
}  # fmt: skip
"""What the build file may fix of a schedule. `stages`, `copy` and `mma` are for every pipeline of the kernel; `consumers` are
groups of four warps that multiply what copies by `tma` bring."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What is fixed of a schedule, None what is left to `choose`. `target` is the architecture that this is for, None: every
    one. `places` tell where each is written; they are no part of the value."""

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
    target: str | None = None
    places: tuple[tuple[str, Span], ...] = field(default=(), compare=False)

    def given(self) -> dict[str, int | str | bool]:
        """What is fixed, by name."""
        return {name: value for name in OVERRIDES if (value := getattr(self, name)) is not None}

    def place(self, name: str) -> Span | None:
        """Where a part is written."""
        return dict(self.places).get(name)


NOTHING_FIXED: Final = Overrides()


def merged(rules: tuple[Overrides, ...], target: Target) -> Overrides:
    """All rules for a target in one; what a later one says counts."""
    found: dict[str, Any] = {}
    places: dict[str, Span] = {}
    for rule in rules:
        if rule.target in (None, target.name):
            found |= rule.given()
            places |= dict(rule.places)
    return Overrides(**found, places=tuple(places.items()))


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a schedule cannot be: the part of it, what is wrong, what to write instead."""

    part: str
    text: str
    hint: str


def problems(schedule: Schedule, target: Target) -> list[Problem]:
    """What of a schedule the target, or lowering, cannot do, whatever the kernel."""
    found = _of_roles(schedule, target)
    for loop in schedule.pipelines:
        found += _of_family("copy", loop.copy, COPIES, target)
        if loop.copy != "tma" or loop.mma != COPIES["tma"]:
            found += _of_family("mma", loop.mma, PRODUCTS, target)
        if not 1 <= loop.stages <= MOST_STAGES:
            found.append(Problem("stages", f"{loop.stages} stages", f"choose 1 to {MOST_STAGES}"))
        if (loop.stages == 1) != (loop.copy == "load"):
            found.append(
                Problem("stages", f"`{loop.copy}` with {loop.stages} stages", "one stage is for `load`, more are for copies")
            )
    found += _of_family("order", schedule.order, ORDERS, target)
    if schedule.order == "pingpong" and not schedule.persistent:
        text = "`pingpong` of blocks that take one tile each"
        found.append(Problem("order", text, "write `persistent = true` too"))
    if schedule.next not in NEXT:
        found.append(Problem("next", f'`next = "{schedule.next}"` is not known', f"choose among {', '.join(NEXT)}"))
    found += _of_family("store", schedule.store, STORES, target)
    if schedule.store == "tma" and all(loop.copy != "tma" for loop in schedule.pipelines):
        text = '`store = "tma"` in a kernel whose operands do not come by `tma`'
        found.append(Problem("store", text, 'write `copy = "tma"` too, or leave `store` out'))
    if schedule.persistent and all(loop.copy != "tma" for loop in schedule.pipelines):
        found.append(_not_yet("persistent", "persistent blocks whose operands do not come by `tma`", "false"))
    if schedule.cluster != 1:
        found.append(_not_yet("cluster", f"clusters of {schedule.cluster} blocks", "1"))
    return list(dict.fromkeys(found))


def tma_roles(consumers: int, passed_on: bool = False, order: str = "grid") -> tuple[Role, ...]:
    """The roles of a block whose operands come by `tma`; with `passed_on`, the producer leaves registers to the consumers. In
    `pingpong` each group of four warps is a role."""
    more, less = PASSED_ON.get(consumers, (None, None)) if passed_on else (None, None)
    if order == "pingpong":
        each = [Role(f"{CONSUMER}{number}", 4, more) for number in range(consumers)]
        return *each, Role(PRODUCER, PRODUCER_WARPS, less)
    return Role(CONSUMER, 4 * consumers, more), Role(PRODUCER, PRODUCER_WARPS, less)


def _of_roles(schedule: Schedule, target: Target) -> list[Problem]:
    found: list[Problem] = []
    if not 1 <= schedule.warps <= MOST_WARPS or min(role.warps for role in schedule.roles) < 1:
        found.append(Problem("warps", f"{schedule.warps} warps a block", f"choose 1 to {MOST_WARPS}"))
    by_tma = [loop for loop in schedule.pipelines if loop.copy == "tma"]
    consumers = schedule.takers if schedule.takers > 1 else schedule.tile_warps // 4
    known = [tma_roles(consumers, passed_on, schedule.order) for passed_on in (False, True)]
    if by_tma and schedule.order == "pingpong" and consumers < 2:
        found.append(Problem("order", "`pingpong` of one consumer", "choose 2 or 3 consumers"))
    if by_tma and (schedule.roles not in known or consumers > MOST_CONSUMERS):
        text = f"`tma` for roles {', '.join(f'{role.name} of {role.warps} warps' for role in schedule.roles)}"
        found.append(Problem("consumers", text, f"choose 1 to {MOST_CONSUMERS} consumers"))
    if not by_tma and len(schedule.roles) > 1:
        found.append(Problem("consumers", f"{len(schedule.roles)} roles without `tma`", 'choose `copy = "tma"`, or one role'))
    if by_tma and (len(by_tma) < len(schedule.pipelines) or len(by_tma) > 1):
        found.append(Problem("copy", "`tma` in a kernel with several loops that feed products", 'choose `copy = "cp_async"`'))
    if any(loop.mma != "wgmma" for loop in by_tma):
        found.append(Problem("copy", "`tma` for products other than `wgmma`", 'choose `mma = "wgmma"`, or `copy = "cp_async"`'))
    if schedule.blocks is not None:
        most = min(target.max_blocks, target.max_warps // max(schedule.warps, 1))
        if not 1 <= schedule.blocks <= most:
            text = f"{schedule.blocks} blocks of {schedule.warps} warps on a multiprocessor of {target}"
            found.append(
                Problem("blocks", text, f"{target.max_warps} warps and {target.max_blocks} blocks have room: at most {most}")
            )
    return found


def _of_family(part: str, name: str, known: dict[str, str | None], target: Target) -> list[Problem]:
    names = ", ".join(f'"{item}"' for item, family in known.items() if family is None or family in target.families)
    if name in TO_COME[part]:
        return [_not_yet(part, f'`{part} = "{name}"`', names)]
    if name not in known:
        return [Problem(part, f'`{part} = "{name}"` is not known', f"choose among {names}")]
    family = known[name]
    if family is not None and family not in target.families:
        text = f"{target} has no `{family}`" + (f", which `{name}` feeds" if family != name else "")
        return [Problem(part, text, f"choose among {names}, or name the `arch` that it is for")]
    return []


def _not_yet(part: str, what: str, instead: str) -> Problem:
    return Problem(part, f"{what}: nothing lowers that yet", f"write {instead}")
