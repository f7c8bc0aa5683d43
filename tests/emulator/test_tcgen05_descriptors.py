"""Descriptors and formats of tcgen05: the bits of descriptors that another compiler wrote, the faults of wrong fields, and the
addresses of every canonical layout by brute force."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilec.emulator.matrices.instruction_descriptors import InstructionDescriptor
from tilec.emulator.matrices.narrow_formats import decode_rows, scale_values
from tilec.emulator.matrices.shared_descriptors import SharedDescriptor
from tilec.emulator.matrices.tensor_layouts import result_cells, scale_cells

SAMPLES = [
    (0x08200490, "f16", ("bf16", "bf16"), "f32", 128, 128, (False, False)),
    (0x08118010, "f16", ("f16", "f16"), "f32", 128, 64, (True, True)),
    (0x08100910, "tf32", ("tf32", "tf32"), "f32", 128, 64, (False, False)),
    (0x08200010, "f8f6f4", ("e4m3", "e4m3"), "f32", 128, 128, (False, False)),
    (0x08200480, "mxf4nvf4", ("e2m1", "e2m1"), "f32", 128, 128, (False, False)),
]


@pytest.mark.parametrize(("bits", "kind", "formats", "result", "rows", "columns", "turned"), SAMPLES)
def test_instruction_descriptors_of_another_compiler_are_read(
    bits: int, kind: str, formats: tuple[str, str], result: str, rows: int, columns: int, turned: tuple[bool, bool]
) -> None:
    fields = InstructionDescriptor.read(bits, kind)
    assert fields.problem(pair=False, weight=False) is None
    assert (fields.formats, fields.result, fields.rows, fields.columns) == (formats, result, rows, columns)
    assert fields.turned == turned and fields.negate == (False, False) and not fields.sparse


def test_scale_factor_ids_are_read_in_the_samples() -> None:
    found = [InstructionDescriptor.read(bits, "mxf8f6f4") for bits in (0x08A00000, 0x28A00010, 0x48A00020, 0x68A00030)]
    assert [(fields.scale_a, fields.scale_b) for fields in found] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert all(fields.problem(pair=False, weight=False) is None and fields.scale_is_ue8m0 for fields in found)


def test_a_pair_has_the_shape_of_both_blocks() -> None:
    fields = InstructionDescriptor.read(0x10200490, "f16")
    assert (fields.rows, fields.columns, fields.problem(pair=True, weight=False)) == (256, 128, None)
    assert "M 256" in str(fields.problem(pair=False, weight=False))


F16, SHAPE = 0x08200010, "a shape that"
WRONG = [
    (F16 | 1 << 6, "f16", "reserves"),
    (F16 | 1 << 23, "f16", "reserves"),
    (F16 | 3, "f16", "reserves"),
    (F16 | 2 << 7, "f16", "2 as the format of A"),
    (F16 | 7 << 10, "f16", "7 as the format of B"),
    (F16 | 1 << 10, "f16", "different formats"),
    (F16 & ~0x10 | 2 << 4, "f16", "2 as the format of D"),
    (0x08200480, "f16", "0 as the format of D"),  # bf16 products in f16
    (F16 | 1 << 30, "f16", "maximum shift"),
    (0x08200000 | 2 << 4 | 1 << 13, "i8", "negates"),
    (0x08200010 | 3 << 7 | 1 << 15, "f8f6f4", "A MN-major"),
    (0x0C200010, "f16", SHAPE),  # M 192
    (0x08000010, "f16", SHAPE),  # N 0
    (0x08000010 | 33 << 17, "f16", SHAPE),  # N 264
    (0x08000020 | 5 << 17, "i8", SHAPE),  # N 40
    (0x04A00000, "mxf8f6f4", SHAPE),  # M 64
    (0x08A00000 & ~(1 << 23), "mxf8f6f4", "ue4m3"),
    (0x08A00490 | 1 << 29, "mxf4", "scale factor id of A"),
    (0x08200480 | 1 << 31, "mxf4nvf4", "reserves"),  # K 96
]


@pytest.mark.parametrize(("bits", "kind", "text"), WRONG)
def test_a_field_that_the_tables_do_not_have_is_named(bits: int, kind: str, text: str) -> None:
    assert text in str(InstructionDescriptor.read(bits, kind).problem(pair=False, weight=False))


def test_the_shared_memory_descriptor_of_another_compiler_is_read() -> None:
    fields = SharedDescriptor.read(0x40004040 << 32 | 0x200 << 16 | 0x0C40)
    assert (fields.address, fields.leading, fields.stride, fields.mode) == (0xC400, 8192, 1024, 2)
    assert fields.problem("f16") is None and fields.problem("f16", turned=True) is None


PLAIN = 1 << 46 | 64 << 32 | 64
CHANGES = [
    (1 << 46, "0 in bits 46 to 48"),
    (1 << 47, "3 in bits 46 to 48"),
    (1 << 49, "base offset 1"),
    (1 << 52, "absolute mode"),
    (1 << 14, "reserved bits"),
    (1 << 55, "reserved bits"),
    (3 << 61, "swizzle mode 3"),
    (1 << 61, "32-byte atoms"),
]
"""Bits of PLAIN that are turned over, and what the fault says."""


@pytest.mark.parametrize(("change", "text"), CHANGES)
def test_a_wrong_field_of_a_shared_memory_descriptor_is_named(change: int, text: str) -> None:
    assert SharedDescriptor.read(PLAIN).problem("f16") is None
    assert text in str(SharedDescriptor.read(PLAIN ^ change).problem("f16"))


def test_mn_major_tf32_has_one_mode_of_its_own() -> None:
    plain = 1 << 46 | 64 << 32 | 64
    assert SharedDescriptor.read(plain | 1 << 61).problem("tf32", turned=True) is None
    assert "tf32" in str(SharedDescriptor.read(plain | 2 << 61).problem("tf32", turned=True))
    assert "f16" in str(SharedDescriptor.read(plain | 1 << 61).problem("f16", turned=True))


def swizzle(address: int, mode: int) -> int:
    """The address of a byte, from the table of modes: bits 4 and up are changed by bits 7 and up."""
    bits = {0: 0, 2: 3, 4: 2, 6: 1}[mode]
    return address ^ (address >> 7 & ((1 << bits) - 1)) << 4


@pytest.mark.parametrize(("mode", "width", "step"), [(0, 16, 0), (6, 32, 0), (4, 64, 0), (4, 64, 1), (2, 128, 0), (2, 128, 1)])
def test_k_major_rows_lie_where_the_canonical_layout_says(mode: int, width: int, step: int) -> None:
    leading, stride, start = 4096, 2048, 8192 + 32 * step
    bits = (start >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | mode << 61
    found = SharedDescriptor.read(bits).chunks(32)
    for row in range(32):
        for half in range(2):
            within = half * (leading if mode == 0 else 16)
            assert found[row, half] == swizzle(start + row % 8 * width + row // 8 * stride + within, mode)


@pytest.mark.parametrize(("mode", "width"), [(0, 16), (6, 32), (4, 64), (2, 128)])
@pytest.mark.parametrize("size", [1, 2])
def test_mn_major_elements_lie_where_the_canonical_layout_says(mode: int, width: int, size: int) -> None:
    leading, stride, start = 16384, 1024, 4096
    bits = (start >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | mode << 61
    found = SharedDescriptor.read(bits).elements(128, size)
    across = width // size  # elements of a row of the atom
    next_atom, group = (stride, leading) if mode == 0 else (leading, stride)
    for row in range(128):
        for k in range(32 // size):
            offset = start + row // across * next_atom + row % across * size + k % 8 * width + k // 8 * group
            assert found[row, k] == swizzle(offset, mode)


def test_mn_major_tf32_has_atoms_of_32_bytes() -> None:
    bits = 512 >> 4 | (4096 >> 4) << 16 | (512 >> 4) << 32 | 1 << 46 | 1 << 61
    found = SharedDescriptor.read(bits).elements(64, 4)
    for row in range(64):
        for k in range(8):
            offset = 512 + row // 32 * 4096 + row % 32 * 4 + k % 4 * 128 + k // 4 * 512
            assert found[row, k] == offset ^ (offset >> 7 & 3) << 5


def test_narrow_floats_have_the_values_of_their_bits() -> None:
    for kind, dtype in (
        ("e2m1", ml_dtypes.float4_e2m1fn),
        ("e2m3", ml_dtypes.float6_e2m3fn),
        ("e3m2", ml_dtypes.float6_e3m2fn),
    ):
        width = 4 if kind == "e2m1" else 6
        codes = np.arange(16, dtype=np.uint8) * (1 if width == 4 else 4) + (0 if width == 4 else 3)
        packed = sum(int(code) << width * k for k, code in enumerate(codes))
        chunk = np.frombuffer(packed.to_bytes(16, "little"), np.uint8)[None]
        expected: Any = codes.view(dtype).astype(np.float64)
        assert (decode_rows(chunk, kind)[0] == expected).all()
    dense = np.array([[0x21, 0xF8]], np.uint8)
    assert decode_rows(dense, "e2m1", dense=True).tolist() == [[0.5, 1.0, -0.0, -6.0]]


def test_scale_factors_are_powers_of_two_or_small_floats() -> None:
    assert scale_values(np.array([0, 127, 254], np.uint8), True).tolist() == [2.0**-127, 1.0, 2.0**127]
    assert np.isnan(scale_values(np.array([255], np.uint8), True)[0])
    assert scale_values(np.array([0x38, 0x01, 0x7E], np.uint8), False).tolist() == [1.0, 2.0**-9, 448.0]


CELLS: list[tuple[int, int, bool, bool, Callable[[int, int], tuple[int, int]]]] = [
    (256, 32, True, False, lambda m, n: (m, n)),
    (128, 32, True, False, lambda m, n: (128 * (m // 64) + m % 64 + (64 if n >= 16 else 0), n % 16)),
    (128, 16, False, False, lambda m, n: (m, n)),
    (64, 16, False, False, lambda m, n: (m // 16 * 32 + m % 16, n)),
    (64, 64, False, True, lambda m, n: (m if n < 32 else m + 64, n % 32)),
    (32, 64, False, True, lambda m, n: (m + 32 * (n // 16), n % 16)),
]


@pytest.mark.parametrize(("rows", "columns", "pair", "weight", "offset"), CELLS)
def test_results_lie_in_the_layout_of_their_shape(
    rows: int, columns: int, pair: bool, weight: bool, offset: Callable[[int, int], tuple[int, int]]
) -> None:
    lane, column = result_cells(rows, columns, pair, weight)
    found = {(m, n): (int(lane[m, n]), int(column[m, n])) for m in range(rows) for n in range(columns)}
    assert found == {(m, n): offset(m, n) for m in range(rows) for n in range(columns)}


def test_scale_factors_of_32_rows_share_a_column() -> None:
    lane, column = scale_cells(256)
    assert [(int(lane[r]), int(column[r])) for r in (0, 31, 32, 127, 128, 255)] == [
        (0, 0), (31, 0), (0, 1), (31, 3), (0, 4), (31, 7),
    ]  # fmt: skip
