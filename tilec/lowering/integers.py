"""Integer arithmetic that has a value for every operand (`tilec/ir/SEMANTICS.md`), from LLVM operations that do not.

LLVM leaves a division by zero, the smallest value divided by -1, and a shift by the width or more undefined, and then deletes
code that depends on them. So what reaches such an operation is selected before: `guarded` shows the pattern, which
`tilec.lowering.total` checks. Where a pass has proven that the right operand is `safe` (a positive divisor, an amount below the
width) the operation stands alone and says so in its text.
"""

from __future__ import annotations

from typing import Final

from tilec.lowering.tensor_core import Writer, arith, compare, number, select

PROVEN: Final = "tilec.proven"
"""The attribute of an operation whose right operand is proven to be one for which LLVM gives it a value."""


def proven(out: Writer, kind: str, left: str, right: str, type: str) -> str:
    """A division, remainder or shift whose right operand is proven."""
    return out.value(f"llvm.{kind} {left}, {right} {{{PROVEN}}} : {type}")


def floor_division(out: Writer, kind: str, left: str, right: str, type: str, unsigned: bool, safe: bool) -> str:
    """`floordiv` or `mod`, toward minus infinity; a zero divisor gives 0, the smallest value divided by -1 wraps."""
    if safe:
        return _floor(out, kind, left, right, type, unsigned, PROVEN)
    zero, one = number(out, 0, type), number(out, 1, type)
    if unsigned:
        edge = compare(out, "eq", right, zero, type)
    else:  # 0 or -1
        edge = compare(out, "ult", arith(out, "add", right, one, type), number(out, 2, type), type)
    divisor = select(out, edge, one, right, type)
    found = _floor(out, kind, left, divisor, type, unsigned, "")
    if kind == "mod":  # of 1: 0
        return found
    return select(out, edge, zero if unsigned else arith(out, "mul", left, right, type), found, type)


def _floor(out: Writer, kind: str, left: str, right: str, type: str, unsigned: bool, mark: str) -> str:
    def divided(word: str) -> str:
        return proven(out, word, left, right, type) if mark else arith(out, word, left, right, type)

    if unsigned:
        return divided("udiv" if kind == "floordiv" else "urem")
    zero = number(out, 0, type)
    rest = divided("srem")
    differ = compare(out, "slt", arith(out, "xor", rest, right, type), zero, type)
    adjust = out.value(f"llvm.and {differ}, {compare(out, 'ne', rest, zero, type)} : i1")
    if kind == "mod":
        return select(out, adjust, arith(out, "add", rest, right, type), rest, type)
    quotient = divided("sdiv")
    return select(out, adjust, arith(out, "sub", quotient, number(out, 1, type), type), quotient, type)


def shift(out: Writer, kind: str, left: str, right: str, type: str, unsigned: bool, safe: bool) -> str:
    """`shl` or `shr`; an amount that is negative or at least the width shifts everything out, but for the sign."""
    word = "shl" if kind == "shl" else "lshr" if unsigned else "ashr"
    if safe:
        return proven(out, word, left, right, type)
    width = int(type[1:])
    inside = compare(out, "ult", right, number(out, width, type), type)
    if word == "ashr":
        return arith(out, word, left, select(out, inside, right, number(out, width - 1, type), type), type)
    zero = number(out, 0, type)
    if width == 64:
        # A selection of the result would become the chip's clamping shift, for which LLVM cuts the amount to 32 bits, so that
        # 2^32 counts as 0. In two steps, the last bit goes by the second.
        shifted = arith(out, word, left, select(out, inside, right, number(out, width - 1, type), type), type)
        return arith(out, word, shifted, select(out, inside, zero, number(out, 1, type), type), type)
    shifted = arith(out, word, left, select(out, inside, right, zero, type), type)
    return select(out, inside, shifted, zero, type)


def absolute(out: Writer, name: str, type: str, unsigned: bool) -> str:
    """`abs`: an unsigned value is its own, and so is the smallest signed one."""
    if unsigned:
        return name
    zero = number(out, 0, type)
    return select(out, compare(out, "slt", name, zero, type), arith(out, "sub", zero, name, type), name, type)
