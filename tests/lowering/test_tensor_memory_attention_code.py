"""Attention in tensor memory: PTX in which the emulator finds no fault, and machine code whose products one thread starts."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.campaign import first
from tests.clean import check_clean
from tests.tensor_attention import differs, emulated, made
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble
from tilec.target.targets import SM_100A

CASES: list[Any] = [
    (("bf16", 256, 128), (129, 60, 256, 1), (0,)),
    (("f16", 256, 64), (40, 3, 128, 2), (1,)),
    (("bf16", 128, 64), (130, 0, 192, 1), (2,)),
    (("bf16", 256, 128), (1, 0, 128, 1), (0, 3)),
    (("bf16", 256, 128), (513, 127, 640, 1), (0, 5)),
    (("f16", 256, 128), (257, 500, 1024, 1), (1,)),
    (("bf16", 256, 64), (300, 77, 512, 2), (0, 4)),
    (("bf16", 256, 32), (100, 30, 160, 1), (1,)),
]
"""Dtype, rows and columns of a tile; tokens, tokens before them, slots and heads of a group; seeds."""


@pytest.mark.parametrize(("sizes", "lengths", "seeds"), first(3, CASES), ids=str)
def test_the_emulator_finds_nothing_and_agrees(sizes: Any, lengths: Any, seeds: tuple[int, ...]) -> None:
    """Neither faults nor notes, such as products that rely on an order that the PTX ISA does not promise."""
    consumers = sizes[1] // 128
    kernel = made(*sizes, target=SM_100A, consumers=consumers)
    assert "tcgen05.mma" in kernel.ptx
    for seed in seeds:
        report, found, expected = emulated(kernel, lengths, seed)
        check_clean(report)
        assert not differs(found, expected)


@pytest.mark.parametrize(("scale", "scales"), [(20.0, True), (1.0, False), (1e-30, False)])
def test_warps_scale_sums_only_if_a_factor_is_not_one(scale: float, scales: bool) -> None:
    """Usual scores change no maximum by more than 8, so that it is kept and each factor is 1. Then code that never scales has
    the same results, otherwise others."""
    kernel = made("bf16", 256, 64, target=SM_100A, consumers=2)
    report, found, expected = emulated(kernel, (40, 100, 192, 1), 0, scale=scale)
    check_clean(report)
    assert not differs(found, expected)
    never = kernel.ptx.replace("@!some bra equal;", "bra equal;")
    assert never != kernel.ptx
    report, found, expected = emulated(kernel, (40, 100, 192, 1), 0, never, scale=scale)
    check_clean(report)
    assert differs(found, expected) == scales


@pytest.mark.parametrize(("columns", "products", "exponentials"), [(64, 56, 49), (128, 56, 97)])
def test_one_thread_starts_products_and_threads_have_rows(columns: int, products: int, exponentials: int) -> None:
    """Each stage's first products, those of the loop, and no more: no loop over the threads of a warp around an instruction.
    Rows are reduced without shuffles. The special-function unit computes three of four exponentials, and the factor's."""
    kernel = made("bf16", 256, columns, target=SM_100A, consumers=2)
    assembled = assemble(kernel.ptx, SM_100A)
    assert assembled.resources.spill_bytes == 0
    code = disassemble(assembled.cubin)
    opcodes = Counter(re.findall(r"\b(UTCHMMA|LDTM|STTM|UTMALDG|ELECT|SHFL|LDL|STL|MUFU\.EX2|FMUL2|FFMA2)\b", code))
    assert opcodes["UTCHMMA"] == products and opcodes["MUFU.EX2"] == exponentials
    assert opcodes["FFMA2"] == 5 * columns // 8  # five steps for each two of a fourth of the elements
    assert opcodes["LDTM"] and opcodes["STTM"] and opcodes["UTMALDG"] and opcodes["FMUL2"]
    assert opcodes["ELECT"] <= 3 and not opcodes.keys() & {"SHFL", "LDL", "STL"}


@pytest.mark.parametrize("columns", [64, 128])
def test_a_score_has_fewer_than_six_instructions(columns: int) -> None:
    """From loaded first sums, without masks, to stored operand A. The products take 8 clocks for each score of a scheduler's
    two warps, so that what else an iteration does has time too."""
    code = disassemble(assemble(made("bf16", 256, columns, target=SM_100A, consumers=2).ptx, SM_100A).cubin).splitlines()
    loads = [line_index for line_index, line in enumerate(code) if "LDTM" in line]
    loaded = loads[columns // 32 - 1]
    (label,) = re.findall(r"BRA `\((\.L_x_\d+)\)", next(line for line in code[loaded:] if "BRA" in line))
    unmasked = code.index(f"{label}:")
    stored = [line_index for line_index, line in enumerate(code) if "STTM" in line and line_index > unmasked][
        -(-columns // 64) - 1
    ]
    count = sum("/*" in line for line in code[unmasked:stored])
    exponentials = sum("MUFU.EX2" in line for line in code[unmasked:stored])
    assert exponentials == columns * 3 // 4 + 1
    assert 5 * columns < count < 6 * columns
