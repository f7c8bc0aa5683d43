"""`.cta_group::2` in the emulator: tensor memory and operands of both blocks of a pair, and commits to both."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.emulator.tensor_programs import (
    BARRIERS,
    IMAGE,
    REGISTERS,
    START,
    Array,
    barriers,
    copy_image,
    descriptor,
    names,
    read_back,
    store_registers,
    wait,
)
from tests.emulator.tiny import kinds, launch, program
from tilec.emulator import Report

BF16 = ml_dtypes.bfloat16
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
RANK = (
    ".reg .b32 %rank; .reg .pred %leads; mov.u32 %rank, %cluster_ctarank; setp.eq.u32 %leads, %rank, 0;"
    "and.pred %leads, %leads, %one;"
)
ALLOC = """
@%first tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%sm], 64;
@%first tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
bar.sync 0; ld.shared.b32 %tm, [%sm];
and.b32 %own, %warp, 3; shl.b32 %own, %own, 21; add.u32 %own, %own, %tm;
"""
FREE = MEET + "@%first tcgen05.dealloc.cta_group::2.sync.aligned.b32 %tm, 64;"
COMMIT = (
    ".reg .b16 %mask; mov.b16 %mask, 3; @%leads tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
    f".multicast::cluster.b64 [%sm+{BARRIERS}], %mask;"
)
AFTER = "tcgen05.fence::after_thread_sync;"


def core_matrices(matrix: Array) -> bytes:
    """K-major without a swizzle: 8 rows of 16 bytes are 128 bytes; first along K, then along the rows."""
    rows = matrix.view(np.uint8).reshape(len(matrix), 2, 16)
    return b"".join(rows[8 * r : 8 * r + 8, half].tobytes() for r in range(len(matrix) // 8) for half in range(2))


def run(body: str, image: Array, columns: int = 32, *, seed: int = 0, grid: int = 2, size: int = 0) -> Report:
    """Runs pairs; the image [grid, bytes] has the operands of each block, `out` [grid, 128, columns] its registers."""
    own = f"mov.u32 %x0, %ctaid.x; mul.wide.u32 %y0, %x0, {image.shape[1]}; add.u64 %a1, %a1, %y0;"
    own += f"mul.wide.u32 %y0, %x0, {128 * 4 * columns}; add.u64 %a0, %a0, %y0;"
    tensors: dict[str, Array] = {"out": np.zeros((grid, 128, columns), np.uint32), "image": image}
    text = program(START + RANK + own + body, list(tensors), registers=REGISTERS, shared=1 << 14, target="sm_100a")
    return launch(
        text, tensors, threads=128, grid=(grid,), out=("out",) if columns and size == 0 else (), read_only=("image",),
        shared=1 << 14, seed=seed, cluster=(2, 1, 1),
    )  # fmt: skip


def operands(a: Array, b: Array) -> tuple[Array, str]:
    """The image of both blocks, each with half of the rows of A and of B, and the descriptors."""
    halves = [core_matrices(part[k * len(part) // 2 : (k + 1) * len(part) // 2]) for k in range(2) for part in (a, b)]
    image = np.stack([np.frombuffer(halves[0] + halves[1], np.uint8), np.frombuffer(halves[2] + halves[3], np.uint8)])
    text = descriptor("%a_desc", 0, lbo=128, sbo=256) + descriptor("%b_desc", len(halves[0]), lbo=128, sbo=256)
    return image, text.replace("cvt.u64.u32", "and.b32 %x1, %x1, 0x3FFF; cvt.u64.u32")


def product(rows: int, columns: int, p: str = "%no") -> str:
    idesc = rows << 20 | columns << 14 | 1 << 7 | 1 << 10 | 1 << 4
    return f"mov.b32 %x7, {idesc}; @%leads tcgen05.mma.cta_group::2.kind::f16 [%tm], %a_desc, %b_desc, %x7, {p};"


@pytest.mark.parametrize("rows", [128, 256])
@pytest.mark.parametrize("seed", [0, 1])
def test_products_of_a_pair(rows: int, seed: int) -> None:
    random = np.random.default_rng(rows)
    a, b = (random.integers(-4, 5, size=(size, 16)).astype(BF16) for size in (rows, 32))
    image, text = operands(a, b)
    columns = 32 if rows == 256 else 16
    body = (
        ALLOC + barriers() + copy_image(image.shape[1]) + text + MEET + product(rows, 32) + product(rows, 32, "%yes") + COMMIT
    )
    body += wait() + AFTER + read_back(columns) + store_registers(columns) + FREE
    report = run(body, image, columns, seed=seed)
    assert not report.faults, "\n".join(map(str, report.faults))
    found = report.tensors["out"].view(np.float32)
    exact: Any = 2 * (a.astype(np.float64) @ b.astype(np.float64).T)
    for m in range(rows):
        for n in range(32):
            here = (m // 128, m % 128, n) if rows == 256 else (m // 64, m % 64 + 64 * (n // 16), n % 16)
            assert found[here] == exact[m, n]


def test_copies_of_a_pair_take_the_shared_memory_of_each_block() -> None:
    image = np.random.default_rng(3).integers(0, 256, size=(2, 2048)).astype(np.uint8)
    copy = descriptor("%a_desc", 0, sbo=128).replace("cvt.u64.u32", "and.b32 %x1, %x1, 0x3FFF; cvt.u64.u32")
    copy += "@%leads tcgen05.cp.cta_group::2.128x128b [%tm], %a_desc;"
    body = (
        ALLOC + barriers() + copy_image(2048) + MEET + copy + COMMIT + wait() + AFTER + read_back(4) + store_registers(4) + FREE
    )
    report = run(body, image, 4)
    assert not report.faults, "\n".join(map(str, report.faults))
    assert (report.tensors["out"].view(np.uint8).reshape(2, 2048) == image).all()


def test_the_other_block_must_allocate_too() -> None:
    setup = ALLOC.replace(
        "@%first tcgen05.alloc", "setp.eq.u32 %done, %rank, 0; and.pred %done, %done, %first; @%done tcgen05.alloc"
    )
    assert "deadlock" in kinds(run(setup + FREE, np.zeros((2, 16), np.uint8), 1, size=1))


def test_the_other_block_knows_of_a_product_by_its_own_commit_only() -> None:
    a, b = np.ones((256, 16), BF16), np.ones((32, 16), BF16)
    image, text = operands(a, b)
    body = ALLOC + barriers() + copy_image(image.shape[1]) + text + MEET + product(256, 32) + COMMIT
    reader = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {names(32)}, [%own]; tcgen05.wait::ld.sync.aligned;"
    early = (
        "setp.eq.u32 %done, %rank, 1; @%done bra read;" + wait(label="_leader") + "read:" + reader + wait(label="_all") + FREE
    )
    for seed in range(4):
        found = kinds(run(body + early, image, 1, size=1, seed=seed))
        assert found and found <= {"async", "race"}


def test_an_operand_of_the_other_block_stays_in_use_until_the_commit() -> None:
    a, b = np.ones((256, 16), BF16), np.ones((32, 16), BF16)
    image, text = operands(a, b)
    body = ALLOC + barriers() + copy_image(image.shape[1]) + text + MEET + product(256, 32) + COMMIT + MEET
    spoil = f"setp.eq.u32 %done, %rank, 1; and.pred %done, %done, %one; @%done st.shared.b32 [%sm+{IMAGE}], 0;"
    assert kinds(run(body + spoil + wait() + FREE, image, 1, size=1)) == {"async"}
    assert not run(body + wait() + spoil + FREE, image, 1, size=1).faults
