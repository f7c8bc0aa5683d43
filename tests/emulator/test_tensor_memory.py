"""Tensor memory of the emulator: the allocator, and the cells that every shape of ld and st touches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clean import check_clean
from tests.emulator.tensor_programs import (
    alloc,
    free,
    go,
    names,
    numbered,
    read_back,
    store_registers,
    whole,
)
from tests.emulator.tiny import kinds
from tilec.emulator.errors import UnsupportedPtx

ALLOC = "@%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%sm+{}], {};"
FREE = "@%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tm, {};"
STORED = "tcgen05.st.sync.aligned.32x32b.x{}.b32 [{}], {}; tcgen05.wait::st.sync.aligned;"


def message(body: str, kind: str = "tensor-memory", **more: object) -> str:
    """The message of the only fault of a body."""
    report = go(body, written=False, **more)  # pyright: ignore
    assert kinds(report) == {kind}, "\n".join(map(str, report.faults))
    assert len(report.faults) == 1
    return report.faults[0].message


def test_words_come_back_from_the_lane_and_column_they_went_to() -> None:
    report = go(alloc() + numbered(64, 64) + STORED.format(64, "%own", names(64)) + numbered(64, 0) + read_back(64)
                + store_registers(64) + free())  # fmt: skip
    check_clean(report)
    assert (whole(report, 64, np.uint32) == np.arange(128 * 64).reshape(128, 64)).all()


def matrix_8x4(thread: int) -> tuple[int, int]:
    """Row and column of a thread's word in a matrix of 8 rows of 128 bits, as in an operand of mma.sync."""
    return thread // 4, thread % 4


def cell_of(shape: str, thread: int, register: int, offset: int) -> tuple[int, int]:
    """Lane and column of a register, from matrices of 8 rows: worked out apart from the emulator's formulas."""
    if shape == "32x32b":
        return thread, register
    if shape == "16x32bx2":
        return (thread, register) if thread < 16 else (thread - 16, register + offset)
    if shape == "16x64b":  # a quad has two lanes with two columns each
        pair = {0: (0, 0), 1: (8, 0), 2: (0, 1), 3: (8, 1)}[thread % 4]
        return thread // 4 + pair[0], 2 * register + pair[1]
    row, column = matrix_8x4(thread)
    if shape == "16x128b":  # matrices: lower 8 lanes, upper 8 lanes, then four columns on
        matrix = register
        return row + (8 if matrix % 2 else 0), column + 4 * (matrix // 2)
    matrix, which = divmod(register, 2)  # 16x256b: a thread has two neighbours of a row of 256 bits
    return row + (8 if matrix % 2 else 0), 8 * (matrix // 2) + 2 * column + which


SHAPES = [("32x32b", 16, 16), ("16x64b", 8, 8), ("16x128b", 4, 8), ("16x256b", 2, 8), ("16x32bx2", 8, 8)]
"""Shape, repetition, registers."""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("shape", "times", "count", "start"),
    [(*form, start) for form in SHAPES for start in (0, 16) if form[0] != "32x32b" or not start],
)
def test_loads_take_the_cells_of_their_shape(shape: str, times: int, count: int, start: int, packed: bool) -> None:
    offset = 5 if shape == "16x32bx2" else 0
    tail, pack = (f", {offset}" if offset else ""), ".pack::16b" if packed else ""
    body = alloc() + numbered(64, 64) + STORED.format(64, "%own", names(64))
    body += f"add.u32 %x1, %own, {(start << 16) + 2}; "
    body += f"tcgen05.ld.sync.aligned.{shape}.x{times}{pack}.b32 {names(count)}, [%x1]{tail}; tcgen05.wait::ld.sync.aligned;"
    report = go(body + store_registers(count) + free(), count)
    check_clean(report)
    found = whole(report, count, np.uint32)
    for warp in range(4):
        for thread in range(32):
            for register in range(count):
                lane, column = cell_of(shape, thread, register, 0)
                apart = offset if thread >= 16 else 0
                here = 64 * (32 * warp + start + lane) + 2
                expected = here + column + apart
                if packed:
                    low, high = here + 2 * column + apart, here + 2 * column + 1 + apart
                    expected = (low & 0xFFFF) | (high & 0xFFFF) << 16
                assert found[32 * warp + thread, register] == expected, (shape, warp, thread, register)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("shape", "times", "count"), SHAPES)
def test_stores_are_the_inverse_of_loads(shape: str, times: int, count: int, packed: bool) -> None:
    offset, pack = (", 24" if shape == "16x32bx2" else ""), "unpack::16b" if packed else ""
    body = alloc() + "".join(f"mov.b32 %v{k}, 0;" for k in range(64)) + STORED.format(64, "%own", names(64))
    body += numbered(count, 64)
    body += f"tcgen05.st.sync.aligned.{shape}.x{times}{'.' + pack if pack else ''}.b32 [%own]{offset}, {names(count)};"
    body += "tcgen05.wait::st.sync.aligned;" + read_back(64) + store_registers(64) + free()
    report = go(body)
    check_clean(report)
    expected = np.zeros((128, 64), np.uint32)
    for warp in range(4):
        for thread in range(32):
            for register in range(count):
                lane, column = cell_of(shape, thread, register, 0)
                shift, value = 24 if offset and thread >= 16 else 0, 64 * (32 * warp + thread) + register
                if packed:
                    expected[32 * warp + lane, 2 * column + shift] = value & 0xFFFF
                    expected[32 * warp + lane, 2 * column + 1 + shift] = value >> 16
                else:
                    expected[32 * warp + lane, column + shift] = value
    assert (whole(report, 64, np.uint32) == expected).all()


def test_cells_that_nobody_wrote_are_uninitialised() -> None:
    report = go(alloc() + read_back(1) + store_registers(1) + free(), 1)
    assert kinds(report) == {"uninitialised"}


def test_freed_columns_lose_their_contents() -> None:
    again = "bar.sync 0;" + ALLOC.format(0, 64) + "bar.sync 0; ld.shared.b32 %tm, [%sm];"
    report = go(alloc(relinquish=False) + numbered(1, 1) + STORED.format(1, "%own", "{%v0}") + free() + again + read_back(1)
                + store_registers(1) + free(), 1)  # fmt: skip
    assert kinds(report) == {"uninitialised"}


@pytest.mark.parametrize("columns", [16, 33, 96, 1024])
def test_sizes_are_powers_of_two_from_32_to_512(columns: int) -> None:
    size = {16: 32, 33: 64, 96: 128, 1024: 512}[columns]
    body = ALLOC.format(0, columns) + "bar.sync 0; ld.shared.b32 %tm, [%sm];" + FREE.format(size)
    assert f"tcgen05.alloc of {columns} columns" in message(body)


def test_sizes_do_not_grow() -> None:
    body = alloc(32, relinquish=False) + ALLOC.format(4, 64)
    body += "bar.sync 0; ld.shared.b32 %x1, [%sm+4];" + FREE.format(32) + FREE.replace("%tm", "%x1").format(64)
    assert message(body).endswith("sizes must not grow")


def test_a_block_that_gave_up_the_right_does_not_allocate() -> None:
    body = alloc(64) + ALLOC.format(4, 32)
    body += "bar.sync 0; ld.shared.b32 %x1, [%sm+4];" + FREE.format(64) + FREE.replace("%tm", "%x1").format(32)
    assert "gave up the right to allocate" in message(body)


def test_columns_are_freed_once() -> None:
    assert message(alloc(64) + free(64) + FREE.format(64)).startswith("tcgen05.dealloc of 64 columns")
    assert "no alloc of the block returned" in message(alloc(64) + free(64) + FREE.format(32))


def test_columns_are_freed_before_the_block_ends() -> None:
    assert message(alloc(64)) == "a block ends without tcgen05.dealloc of 64 columns of tensor memory"


def test_too_few_columns_are_a_deadlock_unless_a_warp_frees_some() -> None:
    two = alloc(512, relinquish=False)
    assert "threads wait for ever" in message(two + ALLOC.format(4, 32), "deadlock")
    second = "setp.ge.u32 %done, %t, 32;"
    other = "@%done tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%sm+4], 256;"
    body = two + second + other + FREE.format(512) + "bar.sync 0; ld.shared.b32 %x1, [%sm+4];"
    body += "@%done tcgen05.dealloc.cta_group::1.sync.aligned.b32 %x1, 256;"
    for seed in range(4):
        check_clean(go(body, threads=64, written=False, seed=seed))


def test_other_columns_are_out_of_bounds() -> None:
    body = alloc(32) + numbered(32, 1) + "add.u32 %x1, %own, 16;" + STORED.format(32, "%x1", names(32)) + free(32)
    assert message(body, "bounds") == "tensor memory columns 16 to 47, of which 32 is not allocated"
    after = alloc(32) + numbered(1, 1) + free(32) + "bar.sync 0;" + STORED.format(1, "%own", "{%v0}")
    assert "not allocated" in message(after, "bounds")


def test_a_warp_keeps_to_its_quarter_of_the_lanes() -> None:
    body = alloc(32) + numbered(1, 1) + STORED.format(1, "%tm", "{%v0}") + free(32)
    assert message(body).startswith("lanes 0 to 31 of tensor memory; the warp accesses 32 to 63")

    above = alloc(32) + "add.u32 %x1, %own, 0x110000; tcgen05.ld.sync.aligned.16x64b.x1.b32 {%v0}, [%x1];"
    assert message(above + "tcgen05.wait::ld.sync.aligned;" + free(32)).startswith("lanes 17 to 32")


def test_threads_of_a_warp_give_one_address() -> None:
    body = alloc(32) + numbered(1, 1) + "add.u32 %x1, %own, %t;" + STORED.format(1, "%x1", "{%v0}") + free(32)
    assert message(body, "divergent") == "an address in tensor memory differs between the threads of a warp"


def test_a_seed_chooses_where_columns_lie() -> None:
    body = alloc(64) + "mov.b32 %v0, %tm;" + store_registers(1) + free(64)
    found = {int(whole(go(body, 1, seed=seed), 1, np.uint32)[0, 0]) for seed in range(12)}
    assert 0 in {int(whole(go(body, 1), 1, np.uint32)[0, 0])}
    assert len(found) > 1 and all(column % 32 == 0 for column in found)


def test_forms_that_the_assembler_refuses_are_not_supported() -> None:
    for text in (
        "tcgen05.ld.sync.aligned.16x256b.x64.b32 {%v0}, [%tm];",
        "tcgen05.ld.sync.aligned.32x32b.x3.b32 {%v0}, [%tm];",
    ):
        with pytest.raises(UnsupportedPtx):
            go(text, written=False)
    mixed = "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;"
    with pytest.raises(UnsupportedPtx, match=r"two different \.cta_group"):
        go(alloc(32) + mixed, written=False)
