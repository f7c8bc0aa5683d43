"""`tcgen05.mma` and `.cp` in the emulator against NumPy, with operands that the test lays out itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.clean import check_clean
from tests.emulator.tensor_programs import (
    IMAGE,
    Array,
    alloc,
    barriers,
    commit,
    copy_image,
    descriptor,
    free,
    go,
    mma,
    names,
    numbered,
    read_back,
    store_registers,
    wait,
    whole,
)
from tests.emulator.tiny import kinds

AFTER = "tcgen05.fence::after_thread_sync;"
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
KINDS: dict[str, tuple[Any, Any, int]] = {
    "f16": (np.float16, "f16", 0), "bf16": (BF16, "f16", 1), "tf32": (np.float32, "tf32", 2), "e4m3": (E4M3, "f8f6f4", 0),
    "e5m2": (E5M2, "f8f6f4", 1), "u8": (np.uint8, "i8", 0), "s8": (np.int8, "i8", 1),
}  # fmt: skip
"""Dtype, `.kind` and number in the descriptor of each format."""


def idesc(rows: int, columns: int, a: int = 0, b: int = 0, d: int = 1, more: int = 0) -> int:
    """An instruction descriptor."""
    return rows << 20 | columns << 14 | a << 7 | b << 10 | d << 4 | more


def values(random: np.random.Generator, shape: tuple[int, int], dtype: Any) -> Array:
    """Small numbers that every format has, so that sums are exact."""
    low = 0 if dtype is np.uint8 else -4
    return random.integers(low, 5, size=shape).astype(dtype)


def core_matrices(matrix: Array) -> bytes:
    """K-major without a swizzle: 8 rows of 16 bytes are 128 bytes; first along K, then along the rows."""
    rows = matrix.view(np.uint8).reshape(len(matrix), 2, 16)
    return b"".join(rows[8 * r : 8 * r + 8, half].tobytes() for r in range(len(matrix) // 8) for half in range(2))


def operands(a: Array, b: Array) -> tuple[Array, str]:
    """The image of two K-major operands [rows, K], and the descriptors of them."""
    parts = core_matrices(a), core_matrices(b)
    text = descriptor("%a_desc", 0, lbo=128, sbo=256) + descriptor("%b_desc", len(parts[0]), lbo=128, sbo=256)
    return np.frombuffer(parts[0] + parts[1], np.uint8), text


def run(
    image: Array, text: str, products: str, columns: int, before: str = "", start: str = "", out: int = 0, **more: Any
) -> Array:
    """D as [128 lanes, columns] of words. `before` fills tensor memory; `products` are all instructions before the commit."""
    out = out or columns
    body = alloc(max(64, columns)) + barriers() + copy_image(len(image)) + start + text + before + products + commit() + wait()
    body += AFTER + read_back(out) + store_registers(out) + free(max(64, columns))
    report = go(body, out, image=image, **more)
    check_clean(report)
    return whole(report, out, np.uint32)


ZEROS = "".join(f"mov.b32 %v{k}, 0;" for k in range(64)) + (
    f"tcgen05.st.sync.aligned.32x32b.x64.b32 [%own], {names(64)}; tcgen05.wait::st.sync.aligned;"
    "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"
)


@pytest.mark.parametrize("name", KINDS)
def test_products_of_every_format(name: str) -> None:
    dtype, kind, number = KINDS[name]
    random = np.random.default_rng(1)
    depth = 32 // np.dtype(dtype).itemsize
    a, b = values(random, (128, depth), dtype), values(random, (16, depth), dtype)
    image, text = operands(a, b)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    found = run(image, text, mma(idesc(128, 16, number, number, 2 if kind == "i8" else 1), kind), 16)
    assert (found.view(np.int32 if kind == "i8" else np.float32) == exact).all()


def test_a_product_adds_to_its_accumulator_where_the_predicate_is_true() -> None:
    random = np.random.default_rng(2)
    a, b = values(random, (128, 16), BF16), values(random, (16, 16), BF16)
    image, text = operands(a, b)
    once = mma(idesc(128, 16, 1, 1))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    for seed in range(3):
        found = run(image, text, once + mma(idesc(128, 16, 1, 1), p="%yes") * 2, 16, seed=seed)
        assert (found.view(np.float32) == 3 * exact).all()
        assert (run(image, text, once * 2, 16, seed=seed).view(np.float32) == exact).all()


def test_operands_are_negated_and_the_accumulator_is_halved() -> None:
    random = np.random.default_rng(3)
    a, b = values(random, (128, 16), BF16), values(random, (16, 16), BF16)
    image, text = operands(a, b)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    first = mma(idesc(128, 16, 1, 1, more=1 << 13))
    assert (run(image, text, first, 16).view(np.float32) == -exact).all()
    assert (run(image, text, mma(idesc(128, 16, 1, 1, more=3 << 13)), 16).view(np.float32) == exact).all()
    both = mma(idesc(128, 16, 1, 1)) + mma(idesc(128, 16, 1, 1), p="%yes", more=", 3")
    assert (run(image, text, both, 16).view(np.float32) == exact + exact / 8).all()


def test_a_result_of_f16_lies_in_the_low_half() -> None:
    random = np.random.default_rng(4)
    a, b = values(random, (128, 16), np.float16), values(random, (16, 16), np.float16)
    image, text = operands(a, b)
    found = run(image, text, mma(idesc(128, 16, 0, 0, 0)) + mma(idesc(128, 16, 0, 0, 0), p="%yes"), 16)
    exact = 2 * (a.astype(np.float64) @ b.astype(np.float64).T)
    assert ((found & 0xFFFF).astype(np.uint16).view(np.float16) == exact).all()


def test_integers_wrap_or_saturate() -> None:
    a, b = np.full((128, 32), 255, np.uint8), np.full((16, 32), 255, np.uint8)
    image, text = operands(a, b)
    start = "".join(f"mov.b32 %v{k}, 0x7FFFFFF0;" for k in range(16)) + ZEROS[ZEROS.index("tcgen05.st") :].replace(
        "x64", "x16").replace(names(64), names(16))  # fmt: skip
    for saturates in (False, True):
        found = run(image, text, mma(idesc(128, 16, 0, 0, 2, 8 * saturates), "i8", p="%yes"), 16, before=start)
        exact = 0x7FFFFFF0 + 32 * 255 * 255
        assert (found == (0x7FFFFFFF if saturates else exact)).all()


def test_lane_masks_keep_rows_of_the_accumulator() -> None:
    random = np.random.default_rng(5)
    a, b = values(random, (128, 16), BF16), values(random, (16, 16), BF16)
    image, text = operands(a, b)
    masked = f"mov.b32 %x7, {idesc(128, 16, 1, 1)}; @%one tcgen05.mma.cta_group::1.kind::f16 [%tm], %a_desc, %b_desc, %x7, "
    masked += "{%x3, %x4, %x5, %x6}, %no;"
    start = "mov.b32 %x3, 5; mov.b32 %x4, 0; mov.b32 %x5, -1; mov.b32 %x6, 0x80000000;"
    found = run(image, text, masked, 16, before=ZEROS + start).view(np.float32)
    exact = (a.astype(np.float64) @ b.astype(np.float64).T).copy()
    exact[[0, 2, *range(64, 96), 127]] = 0
    assert (found == exact).all()


@pytest.mark.parametrize("start", [0, 16])
def test_64_rows_take_16_lanes_of_each_quarter(start: int) -> None:
    random = np.random.default_rng(6)
    a, b = values(random, (64, 16), BF16), values(random, (16, 16), BF16)
    image, text = operands(a, b)
    move = f"add.u32 %x6, %tm, {start << 16};"
    found = run(image, text, mma(idesc(64, 16, 1, 1), d="%x6"), 16, before=ZEROS + move).view(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    for m in range(64):
        assert (found[m // 16 * 32 + m % 16 + start] == exact[m]).all()
    assert not found.reshape(4, 2, 16, 16)[:, 1 - start // 16].any()


@pytest.mark.parametrize("rows", [32, 64, 128])
def test_weight_stationary_shapes(rows: int) -> None:
    random = np.random.default_rng(7)
    a, b = values(random, (rows, 16), BF16), values(random, (64, 16), BF16)
    image, text = operands(a, b)
    product = f"mov.b32 %x7, {idesc(rows, 64, 1, 1)}; @%one tcgen05.mma.ws.cta_group::1.kind::f16.collector::b0::fill "
    found = run(image, text, product + "[%tm], %a_desc, %b_desc, %x7, %no;", 64, out=64 * rows // 128).view(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    wide = 64 * rows // 128
    for m in range(rows):
        for n in range(64):
            assert found[m + rows * (n // wide), n % wide] == exact[m, n]


def mn_major(matrix: Array, width: int) -> bytes:
    """MN-major rows of `width` bytes, eight of K to an atom, atoms along K, then along M or N; swizzled."""
    per = width // matrix.itemsize
    image = bytearray(matrix.nbytes)
    for row in range(len(matrix)):
        for k in range(matrix.shape[1]):
            at = row // per * (matrix.shape[1] * width) + k * width + row % per * matrix.itemsize
            at ^= (at >> 7 & (width // 16 - 1)) << 4
            image[at : at + matrix.itemsize] = matrix[row, k].tobytes()
    return bytes(image)


@pytest.mark.parametrize(("mode", "width"), [(6, 32), (4, 64), (2, 128)])
def test_mn_major_operands_in_every_swizzle(mode: int, width: int) -> None:
    random = np.random.default_rng(8)
    a, b = values(random, (128, 16), BF16), values(random, (64, 16), BF16)
    parts = mn_major(a, width), mn_major(b, width)
    text = descriptor("%a_desc", 0, lbo=16 * width, sbo=8 * width, mode=mode)
    text += descriptor("%b_desc", len(parts[0]), lbo=16 * width, sbo=8 * width, mode=mode)
    image = np.frombuffer(parts[0] + parts[1], np.uint8)
    found = run(image, text, mma(idesc(128, 64, 1, 1, more=3 << 15)), 64).view(np.float32)
    assert (found == a.astype(np.float64) @ b.astype(np.float64).T).all()


def test_padded_narrow_operands() -> None:
    random = np.random.default_rng(9)
    codes_a, codes_b = random.integers(0, 64, size=(128, 32)), random.integers(0, 16, size=(16, 32))

    def padded(codes: Array, bits: int) -> Array:
        image = np.zeros((len(codes), 32), np.uint8)
        for row in range(len(codes)):
            for half in range(2):
                number = sum(int(code) << bits * k for k, code in enumerate(codes[row, 16 * half : 16 * half + 16]))
                image[row, 16 * half : 16 * half + 16] = np.frombuffer(number.to_bytes(16, "little"), np.uint8)
        return image

    image, text = operands(padded(codes_a, 6), padded(codes_b, 4))
    found = run(image, text, mma(idesc(128, 16, 4, 5), "f8f6f4"), 16).view(np.float32)
    a = codes_a.astype(np.uint8).view(ml_dtypes.float6_e3m2fn).astype(np.float64)
    b = codes_b.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    assert np.abs(found - a @ b.T).max() == 0


def test_a_in_tensor_memory() -> None:
    random = np.random.default_rng(10)
    a, b = values(random, (128, 16), BF16), values(random, (16, 16), BF16)
    image, text = operands(a, b)
    words = "".join(
        f"cvt.u64.u32 %y1, %t; mad.lo.u64 %y1, %y1, 32, %a1; ld.global.b32 %v{k}, [%y1+{len(image) + 4 * k}];" for k in range(8)
    )
    start = words + f"add.u32 %x6, %own, 32; tcgen05.st.sync.aligned.32x32b.x8.b32 [%x6], {names(8)};"
    start += "tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"
    start += "add.u32 %x6, %tm, 32;"
    whole_image = np.concatenate([image, a.view(np.uint8).reshape(-1)])
    body = (
        alloc() + barriers() + copy_image(len(image)) + text + start + mma(idesc(128, 16, 1, 1), a="[%x6]") + commit() + wait()
    )
    body += AFTER + read_back(16) + store_registers(16) + free()
    report = go(body, 16, image=whole_image)
    check_clean(report)
    assert (whole(report, 16) == a.astype(np.float64) @ b.astype(np.float64).T).all()


SCALED = [
    ("mxf8f6f4", "block32", 1, 32),
    ("mxf4", "block32", 2, 64),
    ("mxf4nvf4", "block16", 4, 64),
    ("mxf4nvf4", "block32", 2, 64),
]


@pytest.mark.parametrize(("kind", "vector", "count", "depth"), SCALED)
def test_scale_factors_copied_from_shared_memory(kind: str, vector: str, count: int, depth: int) -> None:
    random = np.random.default_rng(11)
    ue8m0 = vector == "block32"
    shape = 2 if count == 2 else 0  # the id of the scale factors
    if kind == "mxf8f6f4":
        a, b = values(random, (128, 32), E4M3), values(random, (16, 32), E4M3)
        wide = [x.astype(np.float64) for x in (a, b)]
    else:
        codes = [random.integers(0, 16, size=(rows, 64)) for rows in (128, 16)]
        a, b = ((c[:, 0::2] | c[:, 1::2] << 4).astype(np.uint8) for c in codes)
        wide = [c.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64) for c in codes]
    image, text = operands(a, b)
    scales = [random.integers(120, 130, size=(128, 4)).astype(np.uint8) if ue8m0 else
              random.integers(0x30, 0x48, size=(128, 4)).astype(np.uint8) for _ in range(2)]  # fmt: skip
    blocks = b"".join(s.reshape(4, 32, 4).transpose(1, 0, 2).tobytes() for s in scales)  # byte 16 (r % 32) + 4 (r / 32) + s
    size = len(image)
    image = np.concatenate([image, np.frombuffer(blocks, np.uint8)])
    copies = "".join(
        f"add.u32 %x6, %tm, {32 + 4 * k};" + descriptor("%y2", size + 512 * k, sbo=128)
        + "@%one tcgen05.cp.cta_group::1.32x128b.warpx4 [%x6], %y2;" for k in range(2)
    )  # fmt: skip
    fields = {"mxf8f6f4": idesc(128, 16, d=0), "mxf4": idesc(128, 16, 1, 1, 0), "mxf4nvf4": idesc(128, 16, 1, 1, 0)}[kind]
    fields |= (1 << 23 if ue8m0 else 0) | shape << 29 | shape << 4
    product = f"mov.b32 %x7, {fields}; add.u32 %x5, %tm, 32; add.u32 %x6, %tm, 36; "
    product += (
        f"@%one tcgen05.mma.cta_group::1.kind::{kind}.block_scale.{vector} [%tm], %a_desc, %b_desc, %x7, [%x5], [%x6], %no;"
    )
    found = run(image, text, copies + product, 16).view(np.float32)
    factors: list[Array] = []
    for scale, rows in zip(scales, (128, 16), strict=True):
        picked = scale[:rows, shape : shape + count]
        value = 2.0 ** (picked.astype(np.float64) - 127) if ue8m0 else picked.view(E4M3).astype(np.float64)
        factors.append(np.repeat(value, depth // count, axis=1))
    exact = (wide[0] * factors[0]) @ (wide[1] * factors[1]).T
    assert np.abs(found - exact).max() <= 2.0**-23 * np.abs(exact).max()


def test_scale_factors_are_the_same_in_all_quarters() -> None:
    random = np.random.default_rng(12)
    a, b = values(random, (128, 32), E4M3), values(random, (16, 32), E4M3)
    image, text = operands(a, b)
    fill = numbered(64, 64) + ZEROS[ZEROS.index("tcgen05.st") :]
    product = f"mov.b32 %x7, {idesc(128, 16, d=0) | 1 << 23}; add.u32 %x5, %tm, 32; add.u32 %x6, %tm, 36;"
    product += "@%one tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%tm], %a_desc, %b_desc, %x7, [%x5], [%x6], %no;"
    body = alloc() + barriers() + copy_image(len(image)) + text + fill + product + commit() + wait() + free()
    report = go(body, image=image, written=False)
    assert kinds(report) == {"tensor-memory"}
    assert "differ between the four quarters" in report.faults[0].message


COPIES: dict[str, tuple[int, Callable[[int], int]]] = {
    "128x256b": (2, lambda lane: lane), "128x128b": (1, lambda lane: lane), "32x128b.warpx4": (1, lambda lane: lane % 32),
    "64x128b.warpx2::02_13": (1, lambda lane: lane % 64),
    "64x128b.warpx2::01_23": (1, lambda lane: lane % 32 + (32 if lane >= 64 else 0)),
}  # fmt: skip


@pytest.mark.parametrize("shape", COPIES)
def test_copies_put_rows_into_lanes(shape: str) -> None:
    chunks, source = COPIES[shape]
    rows = np.random.default_rng(13).integers(0, 256, size=(128, 32)).astype(np.uint8)
    image = np.frombuffer(core_matrices(rows), np.uint8)
    text = descriptor("%y2", 0, lbo=128, sbo=256)
    copy = f"@%one tcgen05.cp.cta_group::1.{shape} [%tm], %y2;"
    found = run(image, text, copy, 4 * chunks).view(np.uint8)
    for lane in range(128):
        assert (found[lane] == rows[source(lane)][: 16 * chunks]).all()


def test_a_shift_moves_rows_to_the_next_lane() -> None:
    body = alloc() + barriers() + numbered(64, 64) + ZEROS[ZEROS.index("tcgen05.st") :]
    body += "add.u32 %x6, %tm, 0x200004; @%one tcgen05.shift.cta_group::1.down [%x6];" + commit() + wait() + AFTER
    report = go(body + read_back(16) + store_registers(16) + free(), 16)
    check_clean(report)
    expected = 64 * np.arange(128)[:, None] + np.arange(16)
    expected[33:, 4:12] = expected[32:-1, 4:12].copy()
    assert (whole(report, 16, np.uint32) == expected).all()


def test_poison_reaches_its_row_and_column_of_the_result() -> None:
    random = np.random.default_rng(14)
    a, b = values(random, (128, 16), BF16), values(random, (16, 16), BF16)
    image, _ = operands(a, b)
    text = descriptor("%a_desc", 0, lbo=128, sbo=256) + descriptor("%b_desc", len(image), lbo=128, sbo=256)  # past the image
    body = alloc() + barriers() + copy_image(len(image)) + text + mma(idesc(128, 16, 1, 1)) + commit() + wait() + AFTER
    report = go(body + read_back(16) + store_registers(16) + free(), 16, image=image)
    assert kinds(report) == {"uninitialised"}
    assert IMAGE % 1024 == 0
