"""`mma.sync`: products of register-resident fragments of one warp.

PTX ISA, "Warp level matrix multiply-accumulate instructions". Shapes m16n8k4 to m16n8k32 of f16, bf16, tf32, e4m3, e5m2, s8
and u8. All lanes of the warp execute it together. `matrices.formats` describes the rounding of sums.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Poison
from tilec.emulator.instructions.convergence import converge
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder, control
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.matrices.formats import WIDTH
from tilec.emulator.matrices.fragments import accumulator, gather, operand_a, operand_b
from tilec.emulator.matrices.products import warp_product

SHAPES: Final = {
    "m16n8k4": ("tf32",), "m16n8k8": ("f16", "bf16", "tf32"), "m16n8k16": ("f16", "bf16", "s8", "u8", "e4m3", "e5m2"),
    "m16n8k32": ("s8", "u8", "e4m3", "e5m2"),
}  # fmt: skip
"""Element formats of each shape; A and B may differ among the formats of one width and kind."""

Words = NDArray[np.uint32]


@control("mma")
def mma(d: Decoder) -> Step:
    """`mma.sync.aligned.SHAPE.row.col[.satfinite].D.A.B.C d, a, b, c`."""
    d.need("sync")
    d.need("aligned")
    shape = d.need(*SHAPES)
    d.need("row")
    d.need("col")
    result = d.need("f32", "f16", "s32")
    left, right = d.need(*SHAPES[shape]), d.need(*SHAPES[shape])
    start = d.need(result)
    d.finish(4)
    integers = left in ("s8", "u8")
    if integers != (right in ("s8", "u8")) or integers != (result == "s32") or WIDTH[left] != WIDTH[right]:
        raise d.unsupported("operand formats that do not go together")
    if (WIDTH[left] >= 16 and left != right) or (result == "f16" and left == "bf16"):
        raise d.unsupported("operand formats that do not go together")
    depth = int(shape[6:])
    words = 2 * max(1, depth * WIDTH[left] // 128)
    counts = (2 if result == "f16" else 4, words, words // 2)
    targets = [d.target(item, "b32") for item in d.vector(0, counts[0])]
    sources = [
        [d.source(item, "b32") for item in d.vector(operand, count)]
        for operand, count in ((1, counts[1]), (2, counts[2]), (3, counts[0]))
    ]

    def step(frame: Frame) -> None:
        (a, a_poison), (b, b_poison), (c, c_poison) = (registers(frame, group) for group in sources)
        product = warp_product(a, b, c, depth, (left, right, start))
        poison = None
        if a_poison is not None or b_poison is not None or c_poison is not None:
            poison = _poison(a_poison, b_poison, c_poison, depth, left, result)
        for position, target in enumerate(targets):
            poison_of_register = None if poison is None else np.ascontiguousarray(poison[..., position]).reshape(-1)
            target(frame, np.ascontiguousarray(product[..., position]).reshape(-1), poison_of_register)

    return converge(d, step)


def registers(frame: Frame, sources: list[Source]) -> tuple[Words, NDArray[Any] | None]:
    """The registers of whole warps, (warps, 32, registers), and their poison or None."""
    values = np.empty((frame.n // 32, 32, len(sources)), np.uint32)
    poison: NDArray[Any] | None = None
    for position, source in enumerate(sources):
        values[..., position] = np.broadcast_to(source.value(frame), (frame.n,)).reshape(-1, 32)
        source_poison = source.poison(frame)
        if source_poison is not None:
            if poison is None:
                poison = np.zeros(values.shape, np.uint8)
            poison[..., position] = source_poison.reshape(-1, 32)
    return values, poison


def _poison(a: Poison | None, b: Poison | None, c: Poison | None, depth: int, kind: str, result: str) -> NDArray[Any]:
    """Poison of the result: an element depends on its row of A, its column of B and its element of C."""
    rows, columns = accumulator(8)
    found = np.zeros((max(len(p) for p in (a, b, c) if p is not None), 16, 8), np.uint8)
    if a is not None:
        found |= np.bitwise_or.reduce(_matrix(a, *operand_a(depth, kind), (16, depth)), axis=2)[:, :, None]
    if b is not None:
        found |= np.bitwise_or.reduce(_matrix(b, *operand_b(depth, kind), (depth, 8)), axis=1)[:, None, :]
    spread = found[:, rows, columns]
    if result == "f16":
        spread = spread[..., 0::2] | spread[..., 1::2]
    return spread if c is None else spread | c


def _matrix(poison: NDArray[Any], rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[Any]:
    return gather(np.broadcast_to(poison[..., None], (*poison.shape, rows.shape[2])), rows, columns, shape)
