"""Attention with TMA operands: matrix descriptors, PTX in which the emulator finds no fault, machine code that overlaps
products with softmax."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

from tests.campaign import one_of_each
from tests.clean import check_clean
from tests.tensor_attention import differs, emulated, made
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble
from tilec.atoms import wgmma
from tilec.atoms.staged_operands import descriptor_offset
from tilec.emulator.matrices.descriptors import Descriptor, element_addresses
from tilec.ir.core import Block, VerifyError
from tilec.ir.ops import For
from tilec.ir.ops.staging_ops import RegisterGroupMma
from tilec.ir.ops.sync_ops import Wait
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.ir.types import SharedType, bf16
from tilec.passes.schedule.checks.verify import verify
from tilec.target.targets import SM_90A

BASE = 0x8400
CASES: list[Any] = [
    (("bf16", 64, 64, 64), {"stages": 2}, (65, 3, 128, 2), (0,)),
    (("bf16", 64, 64, 64), {"stages": 2}, (65, 3, 128, 2), (1,)),
    (("bf16", 64, 64, 64), {"stages": 3}, (1, 0, 64, 1), (0,)),
    (("f16", 128, 64, 128), {"consumers": 2, "stages": 3}, (129, 60, 256, 1), (1,)),
    (("bf16", 192, 128, 128), {"consumers": 3, "stages": 2}, (5, 379, 384, 1), (0,)),
    (("bf16", 128, 128, 128), {"consumers": 2, "stages": 2}, (130, 200, 512, 1), (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (128, 128), (192, 64), (64, 256)])
def test_descriptors_and_copies_agree_on_the_layout_of_swizzle_atoms(rows: int, columns: int) -> None:
    """Every element of a K step of 16 is read where a copy stores it, for operands whose rows run along M or N, and along K."""
    type_ = SharedType(bf16, (rows, columns), 1, columns // 64)
    for k in range(0, columns, 16):
        increment = descriptor_offset(k, type_.atom_bytes, False, bf16)
        found = element_addresses(Descriptor.read(wgmma.fields() + (BASE >> 4) + increment), rows, 2, False)
        assert (found == [[BASE + type_.offset(row, k + depth) for depth in range(16)] for row in range(rows)]).all()
    for k in range(0, rows, 16):
        descriptor = wgmma.fields(type_.atom_bytes) + (BASE >> 4) + descriptor_offset(k, type_.atom_bytes, True, bf16)
        found = element_addresses(Descriptor.read(descriptor), columns, 2, True)
        assert (found == [[BASE + type_.offset(k + depth, column) for depth in range(16)] for column in range(columns)]).all()


@pytest.mark.parametrize(
    ("sizes", "wanted", "lengths", "seeds"), one_of_each(CASES, lambda case: "consumers" in case[1]), ids=str
)
def test_the_emulator_finds_nothing_and_agrees(sizes: Any, wanted: Any, lengths: Any, seeds: tuple[int, ...]) -> None:
    kernel = made(*sizes, **wanted)
    for seed in seeds:
        report, found, expected = emulated(kernel, lengths, seed)
        check_clean(report)
        assert not differs(found, expected)


@pytest.mark.campaign
def test_the_second_product_overlaps_with_the_softmax_of_the_first() -> None:
    """In the loop's machine code both products are issued and the first is waited for. Then come the exponentials of all scores
    of a thread, and after them the wait for the second product."""
    kernel = made("bf16", 128, 128, consumers=2, stages=2)
    assert [role.registers for role in kernel.schedule.roles] == [232, 40]
    assembled = assemble(kernel.ptx, SM_90A)
    assert assembled.resources.spill_bytes == 0 and not assembled.one_by_one
    opcodes = re.findall(r"\b(HGMMA|MUFU\.EX2|WARPGROUP\.DEPBAR\.LE gsb0, 0x[01])", disassemble(assembled.cubin))
    runs = [(opcode, len(list(same))) for opcode, same in groupby(opcodes)]
    body = runs[runs.index(("HGMMA", 16)) :]
    assert [opcode for opcode, _ in body[:4]] == [
        "HGMMA",
        "WARPGROUP.DEPBAR.LE gsb0, 0x1",
        "MUFU.EX2",
        "WARPGROUP.DEPBAR.LE gsb0, 0x0",
    ]
    assert body[2][1] == 66  # and two for the rescaling factors


def test_threads_with_fewer_registers_wait_for_each_product() -> None:
    three_consumers = made("bf16", 192, 128, consumers=3, stages=2)
    two_consumers = made("bf16", 128, 128, consumers=2, stages=2)
    counts = [
        sum(isinstance(op, RegisterGroupMma) for op in kernel.prepared.body.walk())
        for kernel in (three_consumers, two_consumers)
    ]
    assert counts == [1, 2]


@pytest.mark.parametrize("number", range(6))
def test_a_missing_wait_is_refused(number: int) -> None:
    """Removes the wait for the register-resident operand, for the first iteration's keys, in the loop for keys and values, and
    for the last values; also starts a loop at another slot than the copies do."""
    function = parse_function(print_function(made("bf16", 64, 64, 64, stages=2).prepared))
    waits = [op for op in function.body.walk() if isinstance(op, Wait)]
    assert len(waits) == 5
    if number < 5:
        next(block for block in _blocks(function.body) if waits[number] in block.ops).ops.remove(waits[number])
    else:
        loop = next(op for op in function.body.walk() if isinstance(op, For) and waits[2] in op.regions[0].ops)
        loop.operands[0] = loop.operands[2]
    with pytest.raises(VerifyError):
        verify(function, SM_90A)


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from _blocks(region)
