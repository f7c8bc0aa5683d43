"""The instructions of atomics (PTX ISA, `atom`, `red`): on global memory, relaxed at GPU scope, where maxima and minima of
floats, which PTX lacks, are compare-and-swap loops; and on shared memory, relaxed at the scope of the block."""

from __future__ import annotations

from typing import Final

from tilec.lowering.context import Context, storage
from tilec.mlir.types import SsaValue, Type, i16, i32, i64, vector
from tilec.target.dtypes import DType

_LETTERS: Final[dict[int, tuple[str, Type]]] = {16: ("h", i16), 32: ("r", i32), 64: ("l", i64)}


def combine(context: Context, kind: str, pointer: SsaValue, value: SsaValue, dtype: DType) -> None:
    """`add`, `max`, `min`, `and`, `or` or `xor` of which nobody needs the old value: `red`, which ptxas does not make of LLVM's
    own `atom`."""
    if dtype.is_float and kind in ("max", "min"):
        _float_extremum(context, kind, pointer, value, returns=False)
        return
    _reduce(context, f"gpu.global.{_instruction(kind, dtype)}", pointer, value, dtype)


def combine_vector(context: Context, pointer: SsaValue, values: list[SsaValue], dtype: DType) -> None:
    """The sums of neighbors in memory at an address that is a multiple of their size, 16 bytes at most, each by itself."""
    if dtype.bits == 16:
        pairs = [values[first : first + 2] for first in range(0, len(values), 2)]
        values = [context.bitcast(context.packed(pair, vector(2, storage(dtype))), i32) for pair in pairs]
    suffix, letter = (f"noftz.{{}}{dtype.name}x2", "r") if dtype.bits == 16 else (f"{{}}{dtype.name}", "f")
    names = ", ".join(f"${1 + number}" for number in range(len(values)))
    count, source = (f"v{len(values)}.", f"{{{names}}}") if len(values) > 1 else ("", names)
    text = f"red.relaxed.gpu.global.add.{suffix.format(count)} [$0], {source};"
    constraints = ",".join(["l", *[letter] * len(values), "~{memory}"])
    context.inline_ptx(text, constraints, [pointer, *values], side_effects=True)


def combine_in_block(context: Context, kind: str, pointer: SsaValue, value: SsaValue, dtype: DType) -> None:
    """`combine` on the block's own shared memory, for the kinds and dtypes of `private_ops.can_be_private`."""
    _reduce(context, f"cta.shared.{_instruction(kind, dtype)}", pointer, value, dtype)


def _reduce(context: Context, name: str, pointer: SsaValue, value: SsaValue, dtype: DType) -> None:
    letter, bits = _LETTERS[dtype.bits]
    text = f"red.relaxed.{name} [$0], $1;"
    context.inline_ptx(text, f"l,{letter},~{{memory}}", [pointer, _as(context, value, bits)], side_effects=True)


def old_value(
    context: Context, kind: str, pointer: SsaValue, value: SsaValue, dtype: DType, compared: SsaValue | None = None
) -> SsaValue:
    """An atomic of any kind, and what was in memory before it. `cas` puts `value` where that equals `compared`."""
    if dtype.is_float and kind in ("max", "min"):
        return _float_extremum(context, kind, pointer, value, returns=True)
    letter, bits = _LETTERS[dtype.bits]
    operands = [_as(context, operand, bits) for operand in (compared, value) if operand is not None]
    operand_numbers = ", ".join(f"${number + 2}" for number in range(len(operands)))
    text = f"atom.relaxed.gpu.global.{_instruction(kind, dtype)} $0, [$1], {operand_numbers};"
    constraints = ",".join([f"={letter}", "l", *[letter] * len(operands), "~{memory}"])
    (old,) = context.inline_ptx(text, constraints, [pointer, *operands], [bits], side_effects=True)
    return _as(context, old, storage(dtype))


def _instruction(kind: str, dtype: DType) -> str:
    """The operation and the type of an instruction other than an extremum of floats."""
    if dtype.is_float and kind == "add":
        return f"add.{'noftz.' if dtype.bits == 16 else ''}{dtype.name}"
    if kind in ("max", "min"):
        return f"{kind}.{'s' if dtype.kind == 'i' else 'u'}{dtype.bits}"
    return f"{kind}.{'u' if kind == 'add' else 'b'}{dtype.bits}"


def _as(context: Context, value: SsaValue, type: Type) -> SsaValue:
    return value if value.type is type else context.bitcast(value, type)


def _float_extremum(context: Context, kind: str, pointer: SsaValue, value: SsaValue, *, returns: bool) -> SsaValue:
    """An f32 maximum or minimum, for which PTX has no `atom`: a compare-and-swap loop that ends when no other thread
    intervened.

    LLVM's own expansion begins with a weak load, which races with the atomics of other blocks (PTX ISA, memory consistency
    model); here every access is relaxed at GPU scope. Nothing is written if memory already holds the result. Integer `atom.max`
    on the bits, signed for positive and unsigned for negative numbers, would let a NaN win over numbers.
    """
    address, operand, result = ("$1", "$2", " mov.b32 $0, old;") if returns else ("$0", "$1", "")
    text = (
        f"{{ .reg .pred same; .reg .b32 old, seen, new; ld.relaxed.gpu.global.b32 old, [{address}]; "
        f"again: {kind}.f32 new, old, {operand}; setp.eq.b32 same, new, old; @same bra done; "
        f"atom.relaxed.gpu.global.cas.b32 seen, [{address}], old, new; setp.eq.b32 same, seen, old; mov.b32 old, seen; "
        f"@!same bra again; done:{result} }}"
    )
    constraints = "=f,l,f,~{memory}" if returns else "l,f,~{memory}"
    found = context.inline_ptx(text, constraints, [pointer, value], [value.type] if returns else [], side_effects=True)
    return found[0] if found else value
