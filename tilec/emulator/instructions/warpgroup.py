"""`wgmma`: products of a warpgroup from shared memory, asynchronous until a wait.

PTX ISA, "Asynchronous warpgroup level matrix instructions". A product's result is available after a wait on its group. Until
then its accumulators are poison of the kind IN_FLIGHT, so any use of them or of a copy is found where it takes effect, and
its shared memory operands count as being read. `wgmma.fence` must separate the last change of a register from the product
that uses it. Operands in shared memory are read through the async proxy: see `proxies`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import IN_FLIGHT, POISON, STORED, Poison
from tilec.emulator.instructions.convergence import converge_group
from tilec.emulator.instructions.operands import poison_of, read
from tilec.emulator.instructions.warpgroup_state import GROUP, Product, Warpgroups
from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.memory import SHARED_START
from tilec.emulator.machine.registry import Decoder, control
from tilec.emulator.machine.sources import Source, Step, Target
from tilec.emulator.machine.wave import WARP
from tilec.emulator.matrices.descriptors import CHUNK, Descriptor, element_addresses
from tilec.emulator.matrices.formats import WIDTH, decode
from tilec.emulator.matrices.fragments import accumulator, gather, operand_a
from tilec.emulator.matrices.products import group_product, left_of_group
from tilec.emulator.ordering.in_flight import NOTHING, SHIFT
from tilec.emulator.ptx.syntax import Instruction, Register, Vector

Index = NDArray[np.int64]
Words = NDArray[np.uint32]
DEPTH: Final = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}


@control("wgmma")
def wgmma(d: Decoder) -> Step:
    """`wgmma.fence`, `.commit_group`, `.wait_group` and `.mma_async`."""
    state = d.machine.warpgroups
    form = d.need("fence", "commit_group", "wait_group", "mma_async")
    d.need("sync")
    d.need("aligned")
    if form == "mma_async":
        return _product(d, state)
    d.finish(int(form == "wait_group"))
    if form == "fence":
        return converge_group(d, state.fence)
    if form == "commit_group":

        def commit(frame: Frame) -> None:
            state.committed[frame.lanes] += 1

        return converge_group(d, commit)
    allowed = int(d.source(0, "u32").constant)
    return converge_group(d, lambda frame: state.wait(frame, allowed))


@dataclass(slots=True)
class _Form:
    """The decoded instruction: columns, formats, operands."""

    columns: int
    kind: str
    right_kind: str
    result: str
    targets: list[tuple[int, Target]]
    accumulators: list[Source]
    left_registers: list[Source]
    left: Source | None
    right: Source
    scale_d: Source
    negate: tuple[bool, bool]
    transposed: tuple[bool, bool]


def _product(d: Decoder, state: Warpgroups) -> Step:
    form = _form(d)

    def step(frame: Frame) -> None:
        scale_value, spoilt = read(form.scale_d, frame)
        if spoilt is not None:
            d.machine.faults.poison("scale-d of a wgmma", d.instruction, frame, spoilt)
        firsts = _warpgroup_starts(frame, d)
        if firsts is None:
            return
        values = [np.empty(frame.n, np.uint32) for _ in form.targets]
        poison = np.zeros((len(form.targets), frame.n), np.uint8)
        for at in firsts:
            accumulate = bool(scale_value[at])
            _warpgroup_product(frame, int(at), form, state, d, accumulate, values, poison)
        for (_, target), value, flags in zip(form.targets, values, poison, strict=True):
            target(frame, value, flags)

    return converge_group(d, step)


def _form(d: Decoder) -> _Form:
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", d.left.pop(0) if d.left else "")
    if shape is None or not 8 <= int(shape[1]) <= 256 or int(shape[1]) % 8:
        raise d.unsupported("a shape that wgmma does not have")
    result = d.need("f32", "f16", "s32")
    d.flag("satfinite") if result == "s32" else None
    kind, right_kind = d.need(*DEPTH), d.need(*DEPTH)
    if DEPTH[kind] != int(shape[2]) or DEPTH[right_kind] != DEPTH[kind] or (result == "s32") != (kind in ("s8", "u8")):
        raise d.unsupported("operand formats that do not go together")
    columns = int(shape[1])
    sixteen = kind in ("f16", "bf16")
    from_registers = isinstance(d.operands[1], Vector)
    # operands d, a, b, scale-d, then imm-scale-a, -b (floats), imm-trans-a (a in shared memory), -b (16-bit formats)
    flags = 2 * int(result != "s32") + (int(sixteen) * (1 if from_registers else 2))
    d.finish(4 + flags)
    immediate = [int(d.source(4 + k, "s32").constant) for k in range(flags)]
    negate = (immediate[0] == -1, immediate[1] == -1) if result != "s32" else (False, False)
    turned = immediate[2:] if sixteen else []
    transposed = (False if from_registers or not sixteen else bool(turned[0]), bool(turned[-1]) if sixteen else False)
    count = columns // (4 if result == "f16" else 2)
    items = d.vector(0, count)
    targets: list[tuple[int, Target]] = []
    for item in items:
        if not isinstance(item, Register):
            raise d.unsupported("an accumulator that is no register")
        targets.append((item.index, d.target(item, "b32")))
    return _Form(
        columns, kind, right_kind, result, targets, [d.source(item, "b32") for item in items],
        [d.source(item, "b32") for item in d.vector(1, 4)] if from_registers else [],
        None if from_registers else d.source(1, "b64"), d.source(2, "b64"), d.source(3, "pred"), negate, transposed,
    )  # fmt: skip


def _warpgroup_starts(frame: Frame, d: Decoder) -> Index | None:
    """Positions in the frame at which warpgroups begin; an incomplete warpgroup is a fault."""
    starts = np.flatnonzero(frame.thread % GROUP == 0)
    whole = frame.n % GROUP == 0 and len(starts) * GROUP == frame.n
    if whole and (np.diff(frame.lanes.reshape(-1, GROUP), axis=1) == 1).all():
        return starts
    d.machine.faults.add("divergent", "the four warps of a warpgroup do not come together", d.instruction, int(frame.lanes[0]))
    return None


def _warpgroup_product(
    frame: Frame,
    at: int,
    form: _Form,
    state: Warpgroups,
    d: Decoder,
    accumulate: bool,
    values: list[Words],
    poison: Any,
) -> None:
    """Computes the product of one warpgroup."""
    machine, span = d.machine, slice(at, at + GROUP)
    first = int(frame.lanes[at])
    _check_registers(frame, form, state, d, at, accumulate)
    left, left_poison, left_addresses = _left(frame, form, at, d)
    right, right_poison, right_addresses = _shared(frame, form.right, form.columns, form.right_kind, form.transposed[1], at, d)
    left = -left if form.negate[0] else left
    right = -right if form.negate[1] else right
    accumulators = (
        np.stack([source.value(frame)[span].reshape(4, 32) for source in form.accumulators], axis=-1) if accumulate else None
    )
    words = group_product(left, right, accumulators, form.result)
    flags = np.full((*words.shape,), IN_FLIGHT, np.uint8)
    if left_poison is not None or right_poison is not None:
        flags |= _spread(left_poison, right_poison, form)
    if accumulate:
        for position, source in enumerate(form.accumulators):
            spoilt = source.poison(frame)
            if spoilt is not None:
                flags[..., position] |= spoilt[span].reshape(4, 32)
    for position in range(len(form.targets)):
        values[position][span] = words[..., position].reshape(-1)
        poison[position, span] = flags[..., position].reshape(-1)
    chunk_addresses = np.concatenate([left_addresses, right_addresses])  # one per chunk of 16 bytes
    shift = machine.ordering.shadow.shift
    granules = ((chunk_addresses >> shift)[:, None] + np.arange(CHUNK >> shift)).reshape(-1)
    reads = ((chunk_addresses >> SHIFT)[:, None] + np.arange(CHUNK >> SHIFT)).reshape(-1)
    if len(chunk_addresses):
        machine.ordering.proxies.check(granules, first, d.instruction, int(chunk_addresses[0]))
    machine.ordering.in_flight.check_granules(reads[:, None], np.full(len(reads), first), False, d.instruction)
    _watch(machine, granules, first, d.instruction)
    operation = machine.ordering.in_flight.begin(reads, NOTHING)
    inputs = {_register(source_operand): source.value(frame)[span].copy() for source_operand, source in _inputs(d, form)}
    results = {index: values[position][span].copy() for position, (index, _) in enumerate(form.targets)}
    state.unfinished.append(Product(first, int(state.committed[first]), results, inputs, operation, granules, d.instruction))


def _inputs(d: Decoder, form: _Form) -> list[tuple[Any, Source]]:
    return list(zip(d.vector(1, 4), form.left_registers, strict=True)) if form.left_registers else []


def _register(operand: Any) -> int:
    return int(operand.index)


def _check_registers(frame: Frame, form: _Form, state: Warpgroups, d: Decoder, at: int, accumulate: bool) -> None:
    """Accumulators and register operands must be unchanged since the last fence, or be written by a product of the same
    shape."""
    span, first = slice(at, at + GROUP), int(frame.lanes[at])
    lanes = frame.lanes[span]
    if not state.has_fenced[lanes].all():
        d.machine.faults.add("async", "a wgmma without a wgmma.fence before it", d.instruction, first)
        return
    for position, (index, _) in enumerate(form.targets):
        value = form.accumulators[position].value(frame)[span]
        before = state.last_writer(first, index)
        if before is not None and len(before.results) == len(form.targets):
            same = (value == before.results[index]).all()
        else:
            same = (value == state.fenced[index][lanes]).all()
        if not same:
            text = "an accumulator changed since the last wgmma.fence"
            d.machine.faults.add("async", text, d.instruction, first)
            return
    for operand, source in _inputs(d, form):
        index = _register(operand)
        spoilt = poison_of(source, frame)
        if spoilt is not None and (spoilt[span] & IN_FLIGHT).any():
            d.machine.faults.add("async", "a wgmma takes a register that another one still writes", d.instruction, first)
        elif (source.value(frame)[span] != state.fenced[index][lanes]).any():
            d.machine.faults.add("async", "a register operand changed since the last wgmma.fence", d.instruction, first)


def _left(frame: Frame, form: _Form, at: int, d: Decoder) -> tuple[Any, Any, Index]:
    if form.left is not None:
        return _shared(frame, form.left, 64, form.kind, form.transposed[0], at, d)
    span = slice(at, at + GROUP)
    words = np.stack([source.value(frame)[span].reshape(4, 32) for source in form.left_registers], axis=-1)
    depth = DEPTH[form.kind]
    spoilt = [source.poison(frame) for source in form.left_registers]
    flags: Any = None
    if any(found is not None for found in spoilt):
        stack = np.stack([np.zeros((4, 32), np.uint8) if p is None else p[span].reshape(4, 32) for p in spoilt], axis=-1)
        rows, columns = operand_a(depth, form.kind)
        wide = np.broadcast_to(stack[..., None], (*stack.shape, rows.shape[2]))
        flags = np.bitwise_or.reduce(gather(wide, rows, columns, (16, depth)).reshape(64, depth), axis=1)
    return left_of_group(words, depth, form.kind), flags, np.zeros(0, np.int64)


def _shared(
    frame: Frame, source: Source, rows: int, kind: str, transposed: bool, at: int, d: Decoder
) -> tuple[Any, Poison | None, Index]:
    """Values (rows, K) of an operand in shared memory, poison of each row, and the index in memory of each of its 16-byte
    chunks."""
    machine, lane = d.machine, int(frame.lanes[at])
    bits, spoilt = read(source, frame)
    width = WIDTH[kind] // 8
    nothing = np.zeros((rows, DEPTH[kind])), np.full(rows, POISON, np.uint8), np.zeros(0, np.int64)
    if spoilt is not None and spoilt[at : at + GROUP].any():
        machine.faults.poison("a matrix descriptor", d.instruction, frame, spoilt)
        return nothing
    described = Descriptor.read(int(bits[at]))
    problem = described.problem()
    if problem is None and (bits[at : at + GROUP] != bits[at]).any():
        problem = "differs between the threads of a warpgroup"
    if problem is None and transposed and width != 2:
        problem = "is transposed in a format of other than 16 bits"
    if problem is not None:
        machine.faults.add("descriptor", f"a matrix descriptor {problem}", d.instruction, lane)
        return nothing
    addresses = element_addresses(described, rows, width, transposed)
    if int(addresses.min()) < SHARED_START or int(addresses.max()) + width > SHARED_START + machine.windows.shared_size:
        low, high = int(addresses.min()), int(addresses.max()) + width
        text = f"a matrix at shared addresses {low} to {high}, outside the block's shared memory"
        machine.faults.add("bounds", text, d.instruction, lane, address=low)
        return nothing
    index = addresses + int(machine.windows.shared_base[lane])
    memory = machine.memory
    where = index // width
    raw = memory.views[width][where]
    poison: Poison | None = None
    flags = memory.poison[index]
    for offset in range(1, width):
        flags = flags | memory.poison[index + offset]
    if flags.any():
        poison = np.bitwise_or.reduce(flags, axis=1) & np.uint8(STORED - 1)
    per_chunk = CHUNK // width
    chunks = index[::per_chunk] if transposed else index[:, ::per_chunk]
    return decode(raw, kind), poison, chunks.reshape(-1)


def _spread(left: Poison | None, right: Poison | None, form: _Form) -> NDArray[np.uint8]:
    """Poison of each accumulator register from that of its row of A and its column of B."""
    rows, columns = accumulator(form.columns)
    found = np.zeros((4, 32, rows.shape[1]), np.uint8)
    if left is not None:
        found |= left.reshape(4, 16)[:, rows]
    if right is not None:
        found |= right[columns][None]
    return found[..., 0::2] | found[..., 1::2] if form.result == "f16" else found


def _watch(machine: Machine, granules: Index, first: int, instruction: Instruction) -> None:
    """Reports reads of a product that race for any of the four warps. The wait records them (`stamp_reads`); until then the
    bytes are in flight."""
    for lane in range(first, first + GROUP, WARP):
        lanes = np.full(len(granules), lane)
        racing = machine.ordering.shadow.unordered_writes(granules[:, None], lanes)
        if racing is not None:
            touched = Access(None, granules << machine.ordering.shadow.shift, None, 1 << machine.ordering.shadow.shift, lanes)
            machine.accesses.report_race(touched, racing, instruction, "reads what another thread writes")
            return
