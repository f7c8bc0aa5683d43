"""`tcgen05.mma`: products of matrices in shared and tensor memory into tensor memory, issued by one thread.

PTX ISA, "tcgen05.mma". The instruction is checked when it is issued and performed later (`tensor_queue`). With `.cta_group::2`
each block of the pair holds its half of the rows of A, of the columns of B and of D. Sums are formed in f64 and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.tensor_forms import Form, form
from tilec.emulator.instructions.tensor_operands import blocks_of, of_thread, split_address
from tilec.emulator.instructions.tensor_queue import Issued
from tilec.emulator.instructions.tensor_reads import SharedMatrix, TensorMatrix, begin_reads, shared_matrix
from tilec.emulator.instructions.tensor_scales import ScaleFactors
from tilec.emulator.instructions.tensor_sums import Product
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Step
from tilec.emulator.matrices.instruction_descriptors import InstructionDescriptor
from tilec.emulator.matrices.narrow_formats import BITS
from tilec.emulator.matrices.tensor_layouts import LANES, Rect, left_lanes, rects_of, result_cells, result_rects
from tilec.emulator.ordering.tensor_order import Operation

Index = NDArray[np.int64]


@dataclass(slots=True)
class _Location:
    """Where an mma of `lane` works: its blocks and the row of tensor memory where they begin."""

    lane: int
    blocks: tuple[int, ...]

    @property
    def top(self) -> int:
        return LANES * self.blocks[0]


def mma(d: Decoder) -> Step:
    """`tcgen05.mma` and `.ws` of every dense kind."""
    decoded = form(d)

    def step(frame: Frame) -> None:
        for at in frame.active().tolist():
            _issue(d, decoded, frame, at)

    return step


def _issue(d: Decoder, decoded: Form, frame: Frame, at: int) -> None:
    """Checks the operands of one thread's mma, and starts it."""
    lane = int(frame.lanes[at])
    blocks = blocks_of(d.machine, lane, decoded.pair, d)
    fields = _fields(d, decoded, frame, at)
    accumulate = of_thread(decoded.accumulate, frame, at, "enable-input-d", d)
    result = of_thread(decoded.result, frame, at, "an address in tensor memory", d)
    if blocks is None or fields is None or accumulate is None or result is None:
        return
    location = _Location(lane, blocks)
    corner = _corner(d, location, result, fields, decoded, "D")
    left, left_rects = _left(d, decoded, fields, frame, at, location)
    right = _shared(d, decoded, frame, at, location, fields, 1)
    if corner is None or left is None or right is None:
        return
    rows, columns = result_cells(fields.rows, fields.columns, decoded.pair, decoded.weight)
    written = _written(decoded, frame, at, rows, d)
    scales = ScaleFactors.of(d, decoded, fields, frame, at, location.blocks) if decoded.scales else None
    if written is None or (decoded.scales and scales is None):
        return
    top, first = location.top + corner[0], corner[1]
    covered = result_rects(fields.rows, fields.columns, decoded.pair, decoded.weight)
    if not written.all():
        covered = rects_of(rows[written], 0, int(columns.max()) + 1)
    product = Product(
        d.machine.tensor_memory, fields, left, right, rows + top, columns + first, None if written.all() else written,
        bool(accumulate), decoded.halvings, scales,
    )  # fmt: skip
    reads = (*left_rects, *(scales.rects if scales else ()))
    _start(d, location, decoded, product, reads, tuple((a + top, b + top, c + first, e + first) for a, b, c, e in covered))


def _fields(d: Decoder, decoded: Form, frame: Frame, at: int) -> InstructionDescriptor | None:
    """The instruction descriptor of a thread; None, and a fault, if the instruction cannot use it."""
    bits = of_thread(decoded.descriptor, frame, at, "an instruction descriptor", d)
    if bits is None:
        return None
    fields = InstructionDescriptor.read(bits, decoded.kind)
    if fields.sparse:
        raise d.unsupported("sparse products")
    if fields.shift and decoded.weight:
        raise d.unsupported("a maximum shift of B")
    problem = fields.problem(decoded.pair, decoded.weight)
    if problem is None:
        return fields
    text = f"an instruction descriptor {problem}"
    d.machine.faults.add("descriptor", text, d.instruction, int(frame.lanes[at]), distinct=text)
    return None


def _start(
    d: Decoder, location: _Location, decoded: Form, product: Product, reads: tuple[Rect, ...], writes: tuple[Rect, ...]
) -> None:
    """Checks the order of a product's uses of memory, and issues it."""
    machine, lane, fields = d.machine, location.lane, product.fields
    if not machine.tensor_memory.owns((*writes, *reads), d.instruction, lane):
        return
    chunks = np.concatenate([one.chunks() for one in (product.left, product.right) if isinstance(one, SharedMatrix)])
    shared_reads = begin_reads(machine, d.instruction, lane, chunks)
    pipe = ("mma", writes, decoded.kind, fields.rows, fields.columns, decoded.pair)
    operation = Operation("mma", np.array([lane]), machine.ordering.clocks.now, d.instruction, pipe)
    machine.tensor_memory.order.use(operation, reads, writes)
    machine.tensor_queue.issue(Issued(operation, product.perform, shared_reads, location.blocks))


def _corner(
    d: Decoder, location: _Location, address: int, fields: InstructionDescriptor, decoded: Form, name: str
) -> tuple[int, int] | None:
    """Lane and column of an address of D or A; None, and a fault, if the layout does not begin at that lane."""
    lane, column = split_address(address)
    allowed = (0, 16) if fields.rows == 64 and not decoded.weight and not decoded.pair else (0,)
    if lane in allowed:
        return lane, column
    text = f"{name} at lane {lane} of tensor memory; with M {fields.rows} it begins at {' or '.join(map(str, allowed))}"
    d.machine.faults.add("tensor-memory", text, d.instruction, location.lane, distinct=text)
    return None


def _left(
    d: Decoder, decoded: Form, fields: InstructionDescriptor, frame: Frame, at: int, location: _Location
) -> tuple[SharedMatrix | TensorMatrix | None, tuple[Rect, ...]]:
    """Operand A and the rectangles of tensor memory that it reads; None, and a fault, if it cannot be used."""
    if not decoded.from_tensor:
        return _shared(d, decoded, frame, at, location, fields, 0), ()
    kind = fields.formats[0]
    if fields.turned[0]:
        text = "an instruction descriptor makes A MN-major, which in tensor memory is K-major"
        d.machine.faults.add("descriptor", text, d.instruction, location.lane, distinct=text)
        return None, ()
    if (decoded.weight and fields.rows < 128) or (BITS[kind] < 8 and not _dense(decoded)):
        raise d.unsupported("A of this layout in tensor memory")
    address = of_thread(decoded.left, frame, at, "an address in tensor memory", d)
    corner = None if address is None else _corner(d, location, address, fields, decoded, "A")
    if corner is None:
        return None, ()
    copies = [lanes + location.top + corner[0] for lanes in left_lanes(fields.rows, decoded.pair)]
    rects = rects_of(np.concatenate(copies), corner[1], corner[1] + 8)
    return TensorMatrix(d.machine.tensor_memory, copies[0], corner[1], kind, _dense(decoded)), rects


def _shared(
    d: Decoder, decoded: Form, frame: Frame, at: int, location: _Location, fields: InstructionDescriptor, which: int
) -> SharedMatrix | None:
    """Operand A (`which` 0) or B (1) in shared memory, its rows divided among the blocks."""
    source, rows = (decoded.left, fields.rows) if which == 0 else (decoded.right, fields.columns)
    bits = of_thread(source, frame, at, "a shared memory descriptor", d)
    if bits is None:
        return None
    return shared_matrix(
        d, location.lane, location.blocks, bits, rows // len(location.blocks), fields.formats[which], fields.turned[which],
        _dense(decoded),
    )  # fmt: skip


def _dense(decoded: Form) -> bool:
    return decoded.kind in ("mxf4", "mxf4nvf4")


def _written(decoded: Form, frame: Frame, at: int, rows: Index, d: Decoder) -> NDArray[np.bool_] | None:
    """Which elements of D [M, N] the lane masks let through; None, and a fault, if a mask is poison."""
    words = [of_thread(mask, frame, at, "a lane mask", d) for mask in decoded.masks]
    if any(word is None for word in words):
        return None
    closed = np.zeros(2 * LANES, np.bool_)
    for k, word in enumerate(words):
        closed[32 * k : 32 * k + 32] = int(word or 0) >> np.arange(32) & 1 != 0
    return ~closed[rows]
