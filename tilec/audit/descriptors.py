"""The layouts in which products read operands from shared memory: a PTX function goes in, bytes of swizzles come out.

A product of `wgmma` or `tcgen05.mma` finds an operand by a matrix descriptor, whose layout is in bits 61 to 63 (PTX ISA,
"Matrix Descriptor Format" and "Shared memory descriptor"). Followed is a descriptor that is made of a number with these bits,
and of small ones that have none of them; which address these stand for is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tilec.audit.flow import Flow, Sum, summed

LAYOUTS: Final = {1: 128, 2: 64, 3: 32}
"""Bytes of a swizzle by bits 62 and 63 of a matrix descriptor: the layout field of `wgmma`, and of `tcgen05.mma` without its
lowest bit, which is set only for a swizzle of other atoms."""
READERS: Final = (("wgmma", "mma_async"), ("tcgen05", "mma"))
"""Instructions, by opcode and modifier, that read operands in shared memory through descriptors."""
_DEPTH: Final = 8
"""Maximum number of sums followed: numbers below 2 ** 32 stay far below bit 61."""


def swizzles(flow: Flow) -> Iterator[tuple[int, int | None]]:
    """For each descriptor of a product the line of the PTX, and the bytes of its swizzle: 0 is no known one, None is not
    derived. An operand in registers or in tensor memory has no descriptor."""
    for position, one in enumerate(flow.instructions):
        if any(one.opcode == opcode and modifier in one.modifiers for opcode, modifier in READERS):
            for operand in one.operands[1:3]:
                if not hasattr(operand, "items") and not hasattr(operand, "base"):
                    yield one.line, _swizzle(flow, operand, position)


def _swizzle(flow: Flow, operand: Any, position: int) -> int | None:
    layout = _layout(flow, summed(flow.symbolic(operand, position)))
    return None if layout is None else 0 if layout & 1 else LAYOUTS.get(layout >> 1, 0)


def _layout(flow: Flow, value: Sum, depth: int = 0) -> int | None:
    """Bits 61 to 63 of a number that is combined with small ones by `or`, to which others may be added; None if that is not
    how a value is made. Sums of few small numbers do not reach bit 61 if bit 60 of the number is not set."""
    found = _definition(flow, value)
    if found is None or not 0 <= value.constant < 1 << 32 or depth == _DEPTH:
        return None
    one, at = found
    parts = [summed(flow.symbolic(source, at)) for source in one.operands[1:]]
    if one.opcode == "add" and "cc" not in one.modifiers:
        layouts = [_layout(flow, part, depth + 1) for part in parts if not _is_small(flow, part)]
        return layouts[0] if len(layouts) == 1 else None
    numbers = [part.constant for part in parts if part.base is None]
    small = all(_is_small(flow, part) for part in parts if part.base is not None)
    if one.opcode != "or" or len(numbers) != 1 or numbers[0] >> 60 & 1 or not small:
        return None
    return numbers[0] >> 61 & 7


def _is_small(flow: Flow, value: Sum, depth: int = 0) -> bool:
    """Whether a value is a sum of few numbers below 2 ** 32."""
    if not 0 <= value.constant < 1 << 32:
        return False
    if value.base is None:
        return True
    found = _definition(flow, value)
    if found is None or depth == _DEPTH:
        return False
    one, at = found
    if one.opcode == "cvt":
        return one.modifiers == ("u64", "u32")
    parts = [summed(flow.symbolic(source, at)) for source in one.operands[1:]]
    if one.opcode == "and":
        return any(part.base is None and 0 <= part.constant < 1 << 32 for part in parts)
    return one.opcode == "add" and "cc" not in one.modifiers and all(_is_small(flow, part, depth + 1) for part in parts)


def _definition(flow: Flow, value: Sum) -> tuple[Any, int] | None:
    """The instruction on 64 bits that a value is identified with, and its index."""
    if not isinstance(value.base, tuple) or value.base[1] < 0:
        return None
    one = flow.instructions[value.base[1]]
    known = one.guard is None and {"b64", "s64", "u64"} & set(one.modifiers) and hasattr(one.operands[0], "index")
    return (one, value.base[1]) if known else None
