"""ld, ldu, st, prefetch, discard, applypriority, createpolicy, isspacep, fence and membar (PTX ISA, section 9.7.9 and
9.7.13).

Cache hints (`.ca`, `.cg`, `.L1::...`, `.L2::...`, a policy operand) have no effect. `.volatile`, `.relaxed`, `.acquire` and
`.release` accesses are strong: they do not race with each other, and acquire and release order the accesses around them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tilec.emulator.errors import Lanes, Poison
from tilec.emulator.instructions.quads import half, half_targets
from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.memory import GLOBAL_BASE, LOCAL_BASE, PARAM_BASE, PARAM_START, SHARED_BASE
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.scalar_types import RAW, TYPES
from tilec.emulator.machine.sources import Step, Target
from tilec.emulator.machine.windows import WINDOW
from tilec.emulator.ptx.syntax import Address, Symbol

KINDS: Final = (
    *(f"{k}{b}" for k in "bus" for b in (8, 16, 32, 64)),
    "b128",
    "f16",
    "bf16",
    "f32",
    "f64",
)
SPACE_NAMES: Final = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry")
_CACHE: Final = ("ca", "cg", "cs", "lu", "cv", "wb", "wt")
_L1: Final = tuple(f"L1::{p}" for p in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate"))
_L2: Final = tuple(f"L2::{p}" for p in ("evict_normal", "evict_first", "evict_last"))
_PREFETCH: Final = ("L2::64B", "L2::128B", "L2::256B")
SCOPES: Final = ("cta", "cluster", "gpu", "sys")


def state_space(name: str | None) -> str:
    """The space that `Locator.locate` takes, by its modifier. Without a sub-qualifier `.shared` is the own block's."""
    if name is None or name == "shared::cluster":
        return name or "generic"
    return name.partition("::")[0]


def hints(d: Decoder) -> bool:
    """Consumes cache hints; returns whether a cache policy operand follows."""
    d.take(*_CACHE)
    d.take(*_L1)
    d.take(*_L2)
    policy = d.flag("L2::cache_hint")
    d.take(*_PREFETCH)
    return policy


def _prologue(d: Decoder) -> tuple[str, str, str | None, bool, bool]:
    """(space, order, scope, non-coherent, policy operand) of ld and st."""
    order = d.take("weak", "volatile", "relaxed", "acquire", "release") or "weak"
    scope = d.need(*SCOPES) if order in ("relaxed", "acquire", "release") else None
    space = state_space(d.take(*SPACE_NAMES))
    cache = d.take(*_CACHE)
    nc = d.instruction.opcode == "ldu" or (d.instruction.opcode == "ld" and d.flag("nc"))
    if cache and nc and cache not in ("ca", "cg", "cs"):
        raise d.unsupported(f"unknown modifier .{cache}")
    return space, order, scope, nc, hints(d)


def _shape(d: Decoder) -> tuple[int, str]:
    count = d.take("v2", "v4", "v8")
    kind = d.need(*KINDS)
    return int(count[1:]) if count else 1, kind


@lanewise("ld", "ldu")
def ld(d: Decoder) -> Step:
    space, order, scope, nc, policy = _prologue(d)
    if d.instruction.opcode == "ldu" and space not in ("global", "generic"):
        raise d.unsupported("ldu outside global memory")
    if order == "release":
        raise d.unsupported("unknown modifier .release")
    count, kind = _shape(d)
    d.finish(3 if policy else 2)
    targets = [d.target(item, _raw(kind)) for item in d.vector(0, count)]
    if kind == "b128":
        count, kind, targets = 2 * count, "b64", [part for target in targets for part in half_targets(target)]
    operand = d.address(1)
    space = _of_call(d, operand, space)
    if space == "param" and isinstance(operand.base, Symbol) and count == 1:
        return _parameter(d, operand.base, operand.offset, targets, kind)
    return _loader(d, operand, space, order, scope, nc, count, kind, targets)


def _of_call(d: Decoder, operand: Address, space: str) -> str:
    """The space of a variable: parameters of calls that the kernel makes are local to a thread."""
    in_call = space == "param" and isinstance(operand.base, Symbol) and operand.base.name in d.machine.windows.local_offsets
    return "local" if in_call else space


def _raw(kind: str) -> str:
    """The type of the register contents: floats as bits."""
    return kind if kind[0] in "us" else f"b{TYPES[kind][0]}"


def _parameter(d: Decoder, name: Symbol, offset: int, targets: list[Target], kind: str) -> Step:
    """A parameter has the same value in every lane of a device, so it is read once, when decoded."""
    width, parameters, values = TYPES[kind][0] // 8, d.machine.windows.parameters, list[Any]()
    for one in parameters:
        start = d.symbol_address(name) - PARAM_START + offset + one.start
        if not one.start <= start <= one.end - width or start % width:
            raise d.unsupported("a parameter access outside the parameters")
        values.append(d.machine.memory.data[start : start + width].copy().view(TYPES[_raw(kind)][1])[0])
    if not values:
        raise d.unsupported("a parameter access outside the parameters")
    if len(values) == 1:
        value = values[0]
        return lambda frame: targets[0](frame, np.full(frame.n, value), None)
    by_device = np.array(values)
    return lambda frame: targets[0](frame, by_device[frame.wave.device[frame.block]], None)


def _loader(
    d: Decoder,
    operand: Address,
    space: str,
    order: str,
    scope: str | None,
    nc: bool,
    count: int,
    kind: str,
    targets: list[Target],
) -> Step:
    address, width, instruction = d.address_source(operand), TYPES[kind][0] // 8, d.instruction
    dtype, total, strong = TYPES[_raw(kind)][1], TYPES[kind][0] // 8 * count, order != "weak"
    machine = d.machine
    synchronise = machine.ordering.synchronise if strong else None

    def step(frame: Frame) -> None:
        where = address.value(frame)
        found = machine.locator.locate(
            frame, where, address.poison(frame), space, min(total, 16), instruction, write=False, align=total
        )
        if total > 16:
            values, poisons = _halves(machine, frame, found, width, count, instruction, nc)
        else:
            used = instruction.used_bytes
            values, poisons = machine.accesses.load(
                frame, found, width, count, instruction, atomic=strong, nc=nc, scope=scope, used=used
            )
        for target, value, poison in zip(targets, values, poisons, strict=True):
            target(frame, value.view(dtype), poison)
        if synchronise is not None:
            synchronise.after_read(found, order, scope)

    return step


def _halves(
    machine: Machine, frame: Frame, found: Access, width: int, count: int, instruction: Any, nc: bool
) -> tuple[list[Lanes], list[Poison | None]]:
    """A 32-byte access as two of 16 bytes. Both halves lie in one allocation, because 32-byte accesses are aligned."""
    values: list[Lanes] = []
    poisons: list[Poison | None] = []
    for number in range(2):
        part = Access(found.positions, found.index + 16 * number, found.allocation, 16, found.lanes)
        used = instruction.used_bytes >> 16 * number
        more = machine.accesses.load(frame, part, width, count // 2, instruction, nc=nc, used=used)
        values += more[0]
        poisons += more[1]
    return values, poisons


@lanewise("st")
def st(d: Decoder) -> Step:
    if d.flag("async"):
        return ASYNC_STORE[0](d)
    space, order, scope, _, policy = _prologue(d)
    if space == "param" and d.operands and isinstance(d.operands[0], Address):
        space = _of_call(d, d.operands[0], space)
    if order == "acquire" or space in ("const", "param"):
        raise d.unsupported(f"a store of kind .{order} to .{space}")
    count, kind = _shape(d)
    d.finish(3 if policy else 2)
    raw, width, instruction = _raw(kind), TYPES[kind][0] // 8, d.instruction
    sources = [d.source(item, "b" + raw[1:]) for item in d.vector(1, count)]
    if kind == "b128":
        count, width, sources = 2 * count, 8, [half(source, k) for source in sources for k in (0, 1)]
    address, total, dtype, strong = d.address_source(d.address(0)), width * count, RAW[8 * width], order != "weak"
    machine = d.machine
    synchronise = machine.ordering.synchronise if strong else None

    def step(frame: Frame) -> None:
        where = address.value(frame)
        found = machine.locator.locate(
            frame, where, address.poison(frame), space, min(total, 16), instruction, write=True, align=total
        )
        values = [np.asarray(source.value(frame)).astype(dtype, copy=False) for source in sources]
        poisons = [source.poison(frame) for source in sources]
        if synchronise is not None:
            synchronise.before_write(found, order, scope)
        for first in range(0, count, max(1, 16 // width)):
            last = min(count, first + max(1, 16 // width))
            index = found.index + first * width
            part = Access(found.positions, index, found.allocation, (last - first) * width, found.lanes)
            machine.accesses.store(
                frame, part, width, values[first:last], poisons[first:last], instruction, atomic=strong, scope=scope
            )

    return step


@lanewise("prefetch", "prefetchu", "applypriority", "discard")
def hint(d: Decoder) -> Step:
    """Cache hints without effect. `discard` is rejected because it makes memory contents undefined."""
    if d.instruction.opcode == "discard":
        raise d.unsupported("unknown opcode")
    tensor = d.flag("tensormap") if d.instruction.opcode == "prefetch" else False
    if not tensor:
        d.take("global", "local", "const", "param")
        d.need("L1", "L2", *_L2)
    d.finish(1, 2)
    d.address_source(d.address(0))
    return lambda frame: None


@lanewise("createpolicy")
def createpolicy(d: Decoder) -> Step:
    """A cache policy: an opaque number that nothing reads."""
    d.need("fractional", "cvt", "range")
    while d.left and d.left[0] != "b64":
        d.need("L2", "global", *_L2, "L2::evict_unchanged")
    d.need("b64")
    d.finish(1, 2, 4)
    write = d.target(0, "b64")
    return lambda frame: write(frame, np.full(frame.n, 1, np.uint64), None)


@lanewise("isspacep")
def isspacep(d: Decoder) -> Step:
    space = state_space(d.need("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param"))
    d.finish(2)
    if space.startswith("shared"):
        return _in_shared(d, space == "shared::cluster")

    def inside(address: Lanes) -> Lanes:
        address = np.asarray(address).view(np.int64)
        base = {"local": LOCAL_BASE, "param": PARAM_BASE}.get(space)
        if base is not None:
            return (address >= base) & (address < base + WINDOW)
        memory, index = d.machine.memory, address - GLOBAL_BASE
        return np.array([(a := memory.allocation_at(int(i))) is not None and a.space == space for i in np.atleast_1d(index)])

    return d.pure(0, "pred", [d.source(1, "u64")], inside)


def _in_shared(d: Decoder, peers: bool) -> Step:
    """isspacep for the window of the own block, or (`peers`) of any block of the cluster."""
    source, target, cluster = d.source(1, "u64"), d.target(0, "pred"), d.machine.windows.cluster

    def step(frame: Frame) -> None:
        address = np.broadcast_to(source.value(frame), frame.n).astype(np.uint64).view(np.int64)
        found = (address >= SHARED_BASE) & (address < SHARED_BASE + WINDOW)
        if cluster is not None:
            owner = cluster.blocks(frame.lanes, address - SHARED_BASE)
            found &= owner >= 0 if peers else owner == frame.block
        target(frame, found, source.poison(frame))

    return step


@lanewise("fence", "membar")
def fence(d: Decoder) -> Step:
    """Orders a thread's earlier accesses with its later ones, at strong accesses (PTX ISA, section 8.8)."""
    if d.instruction.opcode == "membar":
        kind, scope = "sc", d.need("cta", "gl", "sys")
    else:
        if d.take("proxy"):
            proxy = FENCE_PROXY.get(d.left[0] if d.left else "")
            if proxy is None:
                raise d.unsupported("unknown proxy")
            return proxy(d)
        if d.take("mbarrier_init"):
            d.need("release")
            d.need("cluster")
            d.finish(0)
            return _mbarrier_init_fence(d)
        else:
            kind = d.take("sc", "acq_rel", "acquire", "release") or "acq_rel"
            scope = d.need(*SCOPES)
    d.finish(0)
    synchronise = d.machine.ordering.synchronise

    return lambda frame: synchronise.fence(frame, kind, scope)


def _mbarrier_init_fence(d: Decoder) -> Step:
    """`fence.mbarrier_init.release.cluster`, which orders only the thread's earlier `mbarrier.init`."""
    ordering = d.machine.ordering

    def step(frame: Frame) -> None:
        lanes = frame.active_lanes()
        ordering.barrier_inits.fence(lanes)
        ordering.proxies.fence(lanes, is_mbarrier_init=True)

    return step


ASYNC_STORE: Final[list[Any]] = []
"""The decoder of st.async; `async_stores` registers it."""
FENCE_PROXY: Final[dict[str, Any]] = {}
"""Decoders of fence.proxy by its next modifier; `proxy_fences` registers them."""
