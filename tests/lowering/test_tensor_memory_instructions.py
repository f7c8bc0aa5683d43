"""The texts and layouts of `tcgen05`, against the tables of the PTX ISA written out here: which cells of tensor memory a load
brings into which registers, descriptors, and where the instructions of a product read and write."""

from __future__ import annotations

import re

import pytest
from thread_machine import PtxThread

from tilec.atoms import tcgen05
from tilec.atoms.staged_operands import Left, Right
from tilec.ir.types import SharedType, TmemType, bf16, f16, f32
from tilec.mlir.types import SHARED, i1, i64

SHAPES = [(64, 16), (64, 64), (64, 160), (128, 48), (128, 96), (128, 160), (128, 192), (128, 256), (256, 128), (512, 64)]
TILES = [(*shape, warps) for shape in SHAPES for warps in (4, 8) if tcgen05.fits(*shape, warps)]


class Texts(PtxThread):
    """A thread that records inline PTX with the values of its operands."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str, list[int]]] = []

    def ptx(self, text: str, operands: list[int]) -> None:
        self.texts.append((text, operands))


def cell(thread: int, register: int) -> tuple[int, int]:
    """Lane and column of a register of `tcgen05.ld.16x256b`, relative to the address (PTX ISA, "tcgen05.ld")."""
    return thread // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (thread % 4) + register % 2


def element(rows: int, columns: int, lane: int, column: int) -> tuple[int, int] | None:
    """Row and column in a matrix of the cell at a column relative to the accumulator (PTX ISA, data path layouts D and F)."""
    if rows != 64:
        return column // columns * 128 + lane, column % columns
    return (lane // 32 * 16 + lane % 32, column) if lane % 32 < 16 else None


@pytest.mark.parametrize(("rows", "columns", "warps"), TILES)
def test_a_load_brings_each_element_to_the_thread_that_its_layout_names(rows: int, columns: int, warps: int) -> None:
    buffer, layout, base = TmemType(f32, (rows, columns), 1), tcgen05.accumulator(rows, columns, warps), 32
    assert layout.problem((rows, columns), warps) is None and not layout.is_replicated
    found: set[tuple[int, int]] = set()
    for warp in range(warps):
        machine = Texts()
        loaded = tcgen05.load(machine, buffer, machine.bind(base), layout, machine.bind(warp))
        ((text, (address,)),) = machine.texts
        assert text.startswith("tcgen05.fence::after_thread_sync;") and len(loaded) == layout.num_registers
        loads = re.findall(r"tcgen05\.ld\.sync\.aligned\.16x256b\.x(\d+)\.b32 \{([^}]*)\}, \[\$(\d+) \+ (\d+)\];", text)
        for times, registers, operand, offset in loads:
            assert int(times) in (1, 2, 4, 8, 16, 32) and int(operand) == layout.num_registers
            numbers = [int(name.strip(" $")) for name in registers.split(",")]
            assert len(numbers) == 4 * int(times)
            lane, column = divmod(address + int(offset), 1 << 16)
            assert 32 * (warp % 4) <= lane and lane + 15 < 32 * (warp % 4 + 1), "a warp accesses its lanes"
            for thread in range(32):
                for index, number in enumerate(numbers):
                    more_lanes, more_columns = cell(thread, index)
                    wanted = element(rows, columns, lane + more_lanes, column - base + more_columns)
                    assert layout.coordinates(number, thread, warp) == wanted
                    assert wanted is not None
                    found.add(wanted)
        assert sum(len(registers.split(",")) for _, registers, *_ in loads) == layout.num_registers
    assert len(found) == rows * columns


def test_a_load_is_complete_when_its_text_is() -> None:
    machine = Texts()
    layout = tcgen05.accumulator(128, 32, 4)
    tcgen05.load(machine, TmemType(f32, (128, 32), 1), machine.bind(0), layout, machine.bind(0))
    ((text, _),) = machine.texts
    end = "tcgen05.wait::ld.sync.aligned; tcgen05.fence::before_thread_sync;"
    assert text.endswith(end) and text.count("wait::ld") == 1


@pytest.mark.parametrize(
    ("rows", "columns", "warps", "fits"),
    [
        (64, 16, 4, True), (128, 256, 4, True), (128, 256, 8, True), (256, 256, 4, True), (512, 128, 8, True),
        (64, 32, 8, True), (128, 96, 8, True), (128, 16, 8, False), (128, 48, 8, False),
        (0, 64, 4, False), (32, 64, 4, False), (96, 64, 4, False), (192, 64, 4, False),
        (128, 8, 4, False), (128, 24, 4, False), (128, 272, 4, False),
        (512, 256, 4, False), (1024, 64, 4, True), (1024, 80, 4, False),
        (128, 64, 0, False), (128, 64, 1, False), (128, 64, 6, False), (128, 64, 12, False),
    ],
)  # fmt: skip
def test_what_instructions_compute_and_warps_share(rows: int, columns: int, warps: int, fits: bool) -> None:
    assert tcgen05.fits(rows, columns, warps) == fits


def test_descriptors_of_instructions_have_the_fields_of_the_isa() -> None:
    """The first two: of compilers' texts (for the second without its transposed A)."""
    assert tcgen05.instruction(128, 128, bf16) == 0x08200490
    assert tcgen05.instruction(128, 64, f16, b_is_mn_major=True) == 0x08118010 - (1 << 15)
    assert tcgen05.instruction(64, 256, f16) == (1 << 4) | (256 >> 3) << 17 | (64 >> 4) << 24


def test_a_descriptor_of_shared_memory_has_the_swizzle_of_its_rows() -> None:
    """K-major, 128 bytes: 1024 bytes from 8 rows to the next, bit 46, swizzle 2; 14 bits of the address in units of 16."""
    assert tcgen05.fields() >> 32 == 0x40004040
    machine = Texts()
    found = machine.values[tcgen05.descriptor(machine, machine.bind(0x52400, SHARED)).name]
    assert found >> 32 == 0x40004040 and found & 0x3FFF == 0x12400 >> 4


@pytest.mark.parametrize(("rows", "columns", "depth"), [(64, 64, 64), (128, 160, 64), (256, 128, 64), (128, 64, 128)])
def test_instructions_of_a_product_read_and_write_each_part_once(rows: int, columns: int, depth: int) -> None:
    machine = Texts()
    atoms = depth // 64
    left, right = (SharedType(bf16, (extent, depth), 2, atoms) for extent in (rows, columns))
    a, b, target = machine.bind(1 << 10, i64), machine.bind(1 << 12, i64), machine.bind(96)
    operands = Left(a, left.atom_bytes), Right(b, right.atom_bytes)
    tcgen05.multiply(machine, *operands, target, machine.bind(1, i1), (rows, columns, depth), bf16)
    ((text, values),) = machine.texts
    assert values == [96, 1 << 10, 1 << 12, 1]
    made = [
        (int(part[1]), *(int(more) for more in step))
        for part in re.finditer(r"add\.u32 to, \$0, (\d+);((?: add\.s64[^;]*; add\.s64[^;]*; tcgen05[^;]*;)+)", text)
        for step in re.findall(r"add\.s64 a, \$1, (\d+); add\.s64 b, \$2, (\d+); tcgen05\.mma", part[2])
    ]
    expected = [
        (tile * columns, left.offset(128 * tile, 0) // 16 + step_of(left, k), step_of(right, k))
        for tile in range(max(1, rows // 128))
        for k in range(0, depth, 16)
    ]
    assert made == expected
    predicates = re.findall(r"tcgen05\.mma\.cta_group::1\.kind::f16 \[to\], a, b, code, (\S+);", text)
    assert predicates == [*["$3", *["more"] * (depth // 16 - 1)] * max(1, rows // 128)]
    assert f"mov.b32 code, {tcgen05.instruction(min(rows, 128), columns, bf16)};" in text


def step_of(buffer: SharedType, k: int) -> int:
    """Units of 16 bytes to column `k` of the first row, whose swizzle changes nothing."""
    return buffer.offset(0, k) // 16
