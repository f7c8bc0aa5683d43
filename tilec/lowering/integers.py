"""Integer arithmetic that is defined for every operand (`tilec/ir/SEMANTICS.md`), built from LLVM operations that are not.

In LLVM, a division by zero, the smallest value divided by -1, and a shift by the width or more are undefined, and LLVM deletes
code that depends on them. A `select` therefore replaces such an operand first, in the pattern that `tilec.lowering.total`
checks. If a pass has proven the right operand `safe` (a positive divisor, an amount below the width), the operation has no
guard and its text carries a `PROVEN` mark.
"""

from __future__ import annotations

from tilec.mlir.builder import Builder, IntegerOp
from tilec.mlir.types import SsaValue, i32


def floor_division(out: Builder, kind: str, left: SsaValue, right: SsaValue, unsigned: bool, safe: bool) -> SsaValue:
    """`floordiv` or `mod`, rounding toward minus infinity. A zero divisor gives 0; the smallest value divided by -1 wraps."""
    if safe:
        return _floor(out, kind, left, right, unsigned, proven=True)
    type_ = left.type
    zero, one = out.constant(0, type_), out.constant(1, type_)
    if unsigned:
        needs_guard = out.compare("eq", right, zero)
    else:  # 0 or -1
        needs_guard = out.compare("ult", out.add(right, one), out.constant(2, type_))
    divisor = out.select(needs_guard, one, right)
    result = _floor(out, kind, left, divisor, unsigned, proven=False)
    if kind == "mod":  # the guarded divisor is 1, so the remainder is 0
        return result
    return out.select(needs_guard, zero if unsigned else out.mul(left, right), result)


def _floor(out: Builder, kind: str, left: SsaValue, right: SsaValue, unsigned: bool, proven: bool) -> SsaValue:
    def divide(operation: IntegerOp) -> SsaValue:
        return out.integer(operation, left, right, proven=proven)

    if unsigned:
        return divide("udiv" if kind == "floordiv" else "urem")
    zero = out.constant(0, left.type)
    remainder = divide("srem")
    differ = out.compare("slt", out.bit_xor(remainder, right), zero)
    adjust = out.bit_and(differ, out.compare("ne", remainder, zero))
    if kind == "mod":
        return out.select(adjust, out.add(remainder, right), remainder)
    quotient = divide("sdiv")
    return out.select(adjust, out.sub(quotient, 1), quotient)


def shift(out: Builder, kind: str, left: SsaValue, right: SsaValue, unsigned: bool, safe: bool) -> SsaValue:
    """`shl` or `shr`; a negative amount, or one of at least the width, shifts out all bits (an arithmetic shift fills with the
    sign)."""
    operation: IntegerOp = "shl" if kind == "shl" else "lshr" if unsigned else "ashr"
    if safe:
        return out.integer(operation, left, right, proven=True)
    type_, width = left.type, left.type.bits
    if width == 64 and operation != "ashr":
        return _shift_of_64(out, operation, left, right)
    in_range = out.compare("ult", right, out.constant(width, type_))
    if operation == "ashr":
        return out.integer(operation, left, out.select(in_range, right, out.constant(width - 1, type_)))
    zero = out.constant(0, type_)
    shifted = out.integer(operation, left, out.select(in_range, right, zero))
    return out.select(in_range, shifted, zero)


def multiply_high(out: Builder, left: SsaValue, right: SsaValue, unsigned: bool) -> SsaValue:
    """The upper half of a product: `mul.hi` of 32 and 64 bits (PTX ISA, `mul`); of narrower integers, a product of 32 bits."""
    type_, width = left.type, left.type.bits
    if width >= 32:
        instruction = f"mul.hi.{'u' if unsigned else 's'}{width} $0, $1, $2;"
        (high,) = out.inline_ptx(instruction, "=r,r,r" if width == 32 else "=l,l,l", [left, right], [type_])
        return high
    product = out.mul(out.extended(left, i32, signed=not unsigned), out.extended(right, i32, signed=not unsigned))
    return out.trunc(out.lshr(product, width), type_)


def _shift_of_64(out: Builder, operation: str, left: SsaValue, right: SsaValue) -> SsaValue:
    """A 64-bit shift in PTX, whose amount has 32 bits and whose result is 0 for every amount from 64 on (PTX ISA, `shl`,
    `shr`). LLVM 22 drops a select with that meaning and uses the low 32 bits of the amount, whatever its upper bits are."""
    instruction = f"{'shl.b64' if operation == 'shl' else 'shr.u64'} $0, $1, amount;"
    text = f"{{ .reg .b64 most; .reg .b32 amount; min.u64 most, $2, 64; cvt.u32.u64 amount, most; {instruction} }}"
    (shifted,) = out.inline_ptx(text, "=l,l,l", [left, right], [left.type])
    return shifted


def absolute(out: Builder, value: SsaValue, unsigned: bool) -> SsaValue:
    """`abs`: an unsigned value is unchanged, and so is the smallest signed value."""
    if unsigned:
        return value
    zero = out.constant(0, value.type)
    return out.select(out.compare("slt", value, zero), out.sub(zero, value), value)
