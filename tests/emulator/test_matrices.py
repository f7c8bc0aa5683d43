"""Layouts and products of matrix instructions against the PTX ISA's formulas, lane by lane."""

import ml_dtypes
import numpy as np
import pytest

from tilec.emulator.matrices import descriptors, fragments, products, tensor_maps
from tilec.emulator.matrices.formats import decode, encode, join, split
from tilec.emulator.matrices.swizzle import swizzled

TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def index_a(shape, lane, i):
    """Row and column of element i of A, from the ISA's section of each shape."""
    group, member = lane >> 2, lane % 4
    if shape in ("k16 16", "k8 16"):
        return group + 8 * (i in (2, 3, 6, 7)), member * 2 + (i & 1) + 8 * (i >= 4)
    if shape in ("k8 32", "k4 32"):
        return group + 8 * (i % 2), member + 4 * (i >= 2)
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    return row, member * 4 + (i & 3) + 16 * (i >= 8)


def index_b(shape, lane, i):
    """Row and column of element i of B."""
    group, member = lane >> 2, lane % 4
    if shape in ("k16 16", "k8 16"):
        return member * 2 + (i & 1) + 8 * (i >= 2), group
    if shape in ("k8 32", "k4 32"):
        return member + 4 * i, group
    return member * 4 + (i & 3) + 16 * (i >= 4), group


SHAPES = [("k16 16", 16, "f16"), ("k16 16", 16, "bf16"), ("k8 16", 8, "bf16"), ("k8 32", 8, "tf32"), ("k4 32", 4, "tf32"),
          ("k32 8", 32, "e4m3"), ("k32 8", 32, "e5m2"), ("k32 8", 32, "s8"), ("k16 8", 16, "u8")]  # fmt: skip


def random_bits(random, shape, kind):
    if kind == "tf32":
        return random.normal(size=shape).astype(np.float32).view(np.uint32)
    if kind in ("s8", "u8"):
        return random.integers(0, 256, shape).astype(np.uint32)
    values = random.normal(size=shape).astype(TYPES[kind])
    return values.view(np.uint16 if values.itemsize == 2 else np.uint8).astype(np.uint32)


@pytest.mark.parametrize(("shape", "depth", "kind"), SHAPES)
def test_mma_sync_multiplies_matrices_with_the_register_layout_of_the_isa(shape, depth, kind):
    random = np.random.default_rng(depth)
    a, b = random_bits(random, (16, depth), kind), random_bits(random, (depth, 8), kind)
    result = "s32" if kind in ("s8", "u8") else "f32"
    c = random.normal(size=(16, 8)).astype(np.float32) if result == "f32" else random.integers(-9, 9, (16, 8)).astype(np.int32)
    per = 1 if kind == "tf32" else (2 if kind in ("f16", "bf16") else 4)
    left = np.array([[a[index_a(shape, lane, i)] for i in range(16 * depth // 32)] for lane in range(32)])
    right = np.array([[b[index_b(shape, lane, i)] for i in range(8 * depth // 32)] for lane in range(32)])
    start = np.array([[c[(lane >> 2) + 8 * (i >= 2), (lane % 4) * 2 + (i & 1)] for i in range(4)] for lane in range(32)])
    found = products.warp_product(
        join(left.reshape(1, 32, -1, per), kind), join(right.reshape(1, 32, -1, per), kind),
        start.view(np.uint32)[None], depth, (kind, kind, result),
    )  # fmt: skip
    exact = decode(a, kind) @ decode(b, kind) + c
    for lane in range(32):
        for i in range(4):
            value = found[0, lane, i : i + 1].view(c.dtype)[0]
            assert value == exact[(lane >> 2) + 8 * (i >= 2), (lane % 4) * 2 + (i & 1)].astype(c.dtype)


def test_tf32_ignores_the_low_bits_and_f16_accumulators_share_registers():
    assert decode(np.array([0x3F800FFF], np.uint32), "tf32")[0] == 1.0
    values = np.arange(8, dtype=np.float64).reshape(2, 4)
    words = products.packed(values, "f16")
    assert words.shape == (2, 2) and (products.unpacked(words, "f16") == values).all()
    assert words[0, 0] == 0x3C000000
    assert (split(words, "f16").reshape(2, 4) == encode(values, "f16")).all()


def test_ldmatrix_gives_each_lane_two_neighbours_of_its_row_and_stmatrix_takes_them_back():
    rows = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    plain, transposed = fragments.load_matrix(rows, False), fragments.load_matrix(rows, True)
    for lane in range(32):
        for m in range(4):
            assert plain[lane, m] == int(rows[m, lane // 4, lane % 4 * 2]) | int(rows[m, lane // 4, lane % 4 * 2 + 1]) << 16
            assert (
                transposed[lane, m] == int(rows[m, lane % 4 * 2, lane // 4]) | int(rows[m, lane % 4 * 2 + 1, lane // 4]) << 16
            )
    assert (fragments.store_matrix(plain, False) == rows).all() and (fragments.store_matrix(transposed, True) == rows).all()


@pytest.mark.parametrize("columns", [8, 64, 256])
def test_wgmma_accumulators_lie_as_the_isa_draws_them(columns):
    random = np.random.default_rng(columns)
    left, right = random.normal(size=(64, 16)), random.normal(size=(columns, 16))
    words = products.group_product(left, right, None, "f32").view(np.float32)
    exact = (left @ right.T).astype(np.float32)
    for thread in range(128):
        for i in range(columns // 2):
            row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
            column = i // 4 * 8 + thread % 4 * 2 + i % 2
            assert words[thread // 32, thread % 32, i] == exact[row, column]


def test_wgmma_takes_its_left_operand_from_registers_as_mma_does():
    matrix = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float16)
    bits = matrix.view(np.uint16)
    words = np.zeros((4, 32, 4), np.uint32)
    for warp in range(4):
        for lane in range(32):
            for i in range(8):
                row, column = index_a("k16 16", lane, i)
                words[warp, lane, i // 2] |= np.uint32(bits[16 * warp + row, column]) << np.uint32(16 * (i % 2))
    assert (products.left_of_group(words, 16, "f16") == matrix).all()


@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize("transposed", [False, True])
def test_descriptors_find_what_was_laid_out_atom_by_atom(span, transposed):
    """Builds the layout here from its parts: chunks of 8 elements, eight rows to a swizzle atom, the atom's chunks permuted."""
    rows, depth, width = 64, 16, (span or 16) // 2
    contiguous, other = (depth, rows) if not transposed else (rows, depth)
    memory = np.full(1 << 16, -1, np.int64)  # by 2-byte element
    base = 4096
    across = max(1, contiguous // width)
    atom = 8 * max(span, 16)
    # consecutive atoms along the contiguous dimension are `near` bytes apart, the others `far` bytes
    near, far = (atom, atom * across) if contiguous >= width else (atom, atom)
    for o in range(other):
        for c in range(contiguous):
            chunk, row = c % width // 8, o % 8
            offset = base + c // width * near + o // 8 * far
            address = row * max(span, 16) + ((chunk ^ (row * max(span, 16) >> 7 & {0: 0, 32: 1, 64: 3, 128: 7}[span])) * 16)
            memory[(offset + address) // 2 + c % 8] = (o * depth + c) if not transposed else (c * depth + o)
    leading, stride = near, far
    if span == 0 and transposed:
        leading, stride = far, near
    bits = base >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | {0: 0, 128: 1, 64: 2, 32: 3}[span] << 62
    described = descriptors.Descriptor.read(bits)
    assert described.problem() is None
    found = memory[descriptors.element_addresses(described, rows, 2, transposed) // 2]
    assert (found == np.arange(rows * depth).reshape(rows, depth)).all()


def test_a_descriptor_may_begin_inside_the_swizzled_row():
    base = descriptors.Descriptor(2048, 16, 1024, 0, 128)
    further = descriptors.Descriptor(2048 + 32, 16, 1024, 0, 128)
    all_addresses = swizzled(2048 + np.arange(8)[:, None] * 128 + np.arange(64)[None] * 2, 128)
    assert (descriptors.element_addresses(base, 8, 2, False) == all_addresses[:, :16]).all()
    assert (descriptors.element_addresses(further, 8, 2, False) == all_addresses[:, 16:32]).all()


def test_a_base_offset_is_refused_by_name():
    assert "base offset 3" in str(descriptors.Descriptor.read(3 << 49).problem())


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_box_past_every_edge_moves_what_is_inside(swizzle):
    tensor = tensor_maps.TensorMap(1 << 20, 2, (40, 9, 3), (96, 96 * 9), (16, 4, 2), swizzle)
    assert tensor_maps.TensorMap.decode(tensor.encode()) == tensor and len(tensor.encode()) == 128
    start = (32, -1, 2)
    global_addresses, shared_addresses = tensor_maps.box_addresses(tensor, start, 8192)
    assert tensor.box_bytes == 2 * global_addresses.size == 256
    assert len(set(shared_addresses)) == global_addresses.size and set(shared_addresses) == set(range(8192, 8192 + 256, 2))
    expected = []
    for z in range(2):
        for y in range(4):
            for x in range(16):
                inside = 32 + x < 40 and 0 <= y - 1 < 9 and 2 + z < 3
                expected.append((1 << 20) + (32 + x) * 2 + (y - 1) * 96 + (2 + z) * 96 * 9 if inside else -1)
    assert (global_addresses == expected).all()
    flat = shared_addresses - 8192
    order = np.arange(global_addresses.size) * 2
    chunk_bits = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    assert (flat == (order ^ ((order >> 7 & chunk_bits) << 4))).all()


def test_tensor_maps_that_the_driver_would_refuse_are_refused():
    for arguments in (
        (8, 2, (64,), (), (64,), 0),
        (16, 2, (64, 8), (20,), (64, 8), 0),
        (16, 2, (64,), (), (128,), 128),
        (16, 2, (512,), (), (512,), 0),
        (16, 2, (64, 8), (), (64, 8), 0),
    ):
        with pytest.raises(ValueError):
            tensor_maps.TensorMap(*arguments)
    assert tensor_maps.TensorMap.decode(bytes(128)) is None
