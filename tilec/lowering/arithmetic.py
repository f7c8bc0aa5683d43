"""Element-wise operations on the registers of one thread. 16-bit floats are computed in f32 and rounded once per operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tilec.atoms import error_function, exponentials
from tilec.ir.core import Op, VerifyError
from tilec.ir.layouts.blocked_layouts import hidden, reshaped
from tilec.ir.layouts.layout import register_map
from tilec.ir.ops import (
    EXP2_GROUP,
    Binary,
    BinaryInRange,
    Bitcast,
    BlockId,
    Broadcast,
    Cast,
    Compare,
    Constant,
    DimValue,
    Exp2InParts,
    Iota,
    KeptMaximum,
    NumBlocks,
    Permute,
    Reshape,
    Select,
    Unary,
)
from tilec.ir.ops.staging_ops import Part
from tilec.ir.types import DType, f32, i32, u32
from tilec.lowering import functions
from tilec.lowering.context import Context, literal, storage
from tilec.lowering.coordinates import TileCoordinates
from tilec.lowering.integers import absolute, floor_division, multiply_high, shift
from tilec.lowering.narrow_floats import narrowed, widened, widened_all
from tilec.lowering.pairs import tile_blocks
from tilec.lowering.rules import lowers
from tilec.mlir import types as mlir
from tilec.mlir.builder import FloatOp, FloatTest, IntegerOp, IntegerTest
from tilec.mlir.types import SsaValue, i1, i64

INTEGER_KINDS: Final[dict[str, IntegerOp]] = {
    "add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor",
}  # fmt: skip
FLOAT_KINDS: Final[dict[str, FloatOp]] = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
PREDICATES: Final[dict[str, tuple[IntegerTest, IntegerTest, FloatTest]]] = {
    "eq": ("eq", "eq", "oeq"), "ne": ("ne", "ne", "une"), "lt": ("slt", "ult", "olt"),
    "le": ("sle", "ule", "ole"), "gt": ("sgt", "ugt", "ogt"), "ge": ("sge", "uge", "oge"),
}  # fmt: skip
"""Predicates of a comparison: for signed integers, for unsigned integers, for floats."""


def operands_of(context: Context, op: Op) -> list[list[SsaValue]]:
    """This thread's registers of every operand, in the result's layout (`tilec.ir.layouts.operand_layouts`)."""
    return [context.registers(value) for value in op.operands]


@lowers(Constant)
def lower_constant(context: Context, op: Constant) -> None:
    count = op.result.layout.num_registers if op.result.layout else 1
    context.assign(op.result, [literal(context, op.value, op.result.tile.dtype)] * count)


@lowers(Iota)
def lower_iota(context: Context, op: Iota) -> None:
    layout = op.result.layout
    assert layout is not None
    coordinates = TileCoordinates(context, layout, op.result.tile.shape)
    context.assign(op.result, [coordinates.coordinate(register, 0) for register in range(layout.num_registers)])


@lowers(BlockId)
def lower_block_id(context: Context, op: BlockId) -> None:
    context.assign(op.result, [tile_blocks(context, "ctaid", op.axis)])


@lowers(NumBlocks)
def lower_num_blocks(context: Context, op: NumBlocks) -> None:
    context.assign(op.result, [tile_blocks(context, "nctaid", op.axis)])


@lowers(DimValue)
def lower_dim(context: Context, op: DimValue) -> None:
    context.assign(op.result, [context.leaves[op.symbol].value])


@lowers(Broadcast)
def lower_broadcast(context: Context, op: Broadcast) -> None:
    source, layout = op.operands[0], op.result.layout
    source_registers = context.registers(source)
    assert layout is not None
    if source.layout is None:
        context.assign(op.result, source_registers * layout.num_registers)
        return
    repeated = {axis for axis, extent in enumerate(source.tile.shape) if extent == 1}
    slice_ = hidden(layout, repeated)
    assert source.layout == slice_, op
    by_coordinates = {slice_.coordinates(r, 0, 0): source_registers[r] for r in range(slice_.num_registers)}
    out: list[SsaValue] = []
    for register in range(layout.num_registers):
        coordinates = layout.coordinates(register, 0, 0)
        out.append(by_coordinates[tuple(0 if axis in repeated else c for axis, c in enumerate(coordinates))])
    context.assign(op.result, out)


@lowers(Reshape)
def lower_reshape(context: Context, op: Reshape) -> None:
    source, layout = op.operands[0], op.result.layout
    registers = context.registers(source)
    if layout is None or source.layout is None:
        count = layout.num_registers if layout else 1
        context.assign(op.result, [registers[0]] * count)
        return
    if len(set(registers)) == 1 and isinstance(source.owner, Constant):
        context.assign(op.result, [registers[0]] * layout.num_registers)
        return
    assert reshaped(source.layout, source.tile.shape, op.result.tile.shape) == layout, op
    context.assign(op.result, registers)


@lowers(Part)
def lower_part(context: Context, op: Part) -> None:
    """Selects registers; no data moves between threads."""
    source, target = op.operands[0].layout, op.result.layout
    assert source is not None and target is not None
    register_indices = register_map(source, target, (op.row, op.column))
    assert register_indices is not None, op
    registers = context.registers(op.operands[0])
    context.assign(op.result, [registers[register] for register in register_indices])


@lowers(Permute)
def lower_permute(context: Context, op: Permute) -> None:
    """No data moves: the result has the operand's registers in the same order."""
    context.assign(op.result, context.registers(op.operands[0]))


@lowers(Unary)
def lower_unary(context: Context, op: Unary) -> None:
    dtype = op.result.tile.dtype
    context.assign(op.result, [_unary(context, op.kind, name, dtype) for name in operands_of(context, op)[0]])


@lowers(Exp2InParts)
def lower_exp2_in_parts(context: Context, op: Exp2InParts) -> None:
    """The last `polynomial` elements of each `EXP2_GROUP` in pairs; the special-function unit computes the others meanwhile."""
    (registers,) = operands_of(context, op)
    results: list[SsaValue] = []
    for first in range(0, len(registers), 2):
        pair = registers[first : first + 2]
        if len(pair) == 2 and first % EXP2_GROUP >= EXP2_GROUP - op.polynomial:
            results += exponentials.exp2_of_pair(context, *pair)
        else:
            results += [_approximate(context, "ex2", value) for value in pair]
    context.assign(op.result, results)


@lowers(Binary, BinaryInRange)
def lower_binary(context: Context, op: Binary) -> None:
    left, right = operands_of(context, op)
    dtype, safe = op.result.tile.dtype, isinstance(op, BinaryInRange)
    if dtype.is_float and dtype.bits == 16 and _is_multiplied(op) and len(left) % 2 == 0:
        context.assign(op.result, _of_pairs(context, op.kind, left, right, dtype))
        return
    context.assign(op.result, [binary(context, op.kind, a, b, dtype, safe) for a, b in zip(left, right, strict=True)])


def _is_multiplied(op: Binary) -> bool:
    """Whether an operation is a product, or the sum or difference that uses one: every target that has bf16 multiplies and adds
    two at a time, and older ones do nothing else with two."""
    owners = [value.owner for value in op.operands]
    uses = any(isinstance(owner, Binary) and owner.kind == "mul" for owner in owners)
    return op.kind == "mul" or (op.kind in ("add", "sub") and uses)


def _of_pairs(
    context: Context, kind: str, left: list[SsaValue], right: list[SsaValue], dtype: DType
) -> list[SsaValue]:  # fmt: skip
    """Binary operations on 16-bit floats, two neighbors among the registers at a time (PTX ISA, `fma.f16x2`, `fma.bf16x2`).

    They round the exact result once, to what rounding it to f32 first gives: f32 has more than twice as many bits.
    """
    type_ = mlir.vector(2, storage(dtype))
    results: list[SsaValue] = []
    for first in range(0, len(left), 2):
        a, b = (context.packed(values[first : first + 2], type_) for values in (left, right))
        both = context.float_op(FLOAT_KINDS[kind], a, b, contract=True)
        results += [context.extract(both, index) for index in range(2)]
    return results


@lowers(KeptMaximum)
def lower_kept_maximum(context: Context, op: KeptMaximum) -> None:
    threshold, zero = (literal(context, number, f32) for number in (op.threshold, 0.0))
    results: list[SsaValue] = []
    for old, new, *factors in zip(*operands_of(context, op), strict=True):
        limit = threshold
        for factor in factors:
            limit = context.select(context.float_compare("ogt", factor, zero), threshold, zero)
        exceeds = context.float_compare("ogt", new, context.float_op("fadd", old, limit))
        results.append(context.select(exceeds, new, old))
    context.assign(op.result, results)


@lowers(Compare)
def lower_compare(context: Context, op: Compare) -> None:
    left, right = operands_of(context, op)
    dtype = op.operands[0].tile.dtype
    context.assign(op.result, [compared(context, op.kind, a, b, dtype) for a, b in zip(left, right, strict=True)])


@lowers(Select)
def lower_select(context: Context, op: Select) -> None:
    conditions, on_true, on_false = operands_of(context, op)
    context.assign(op.result, [context.select(c, a, b) for c, a, b in zip(conditions, on_true, on_false, strict=True)])


@lowers(Cast)
def lower_cast(context: Context, op: Cast) -> None:
    source, target = op.operands[0].tile.dtype, op.result.tile.dtype
    (registers,) = operands_of(context, op)
    if source.is_float and source.bits == 8 and source != target:
        registers, source = widened_all(context, registers, source), f32
    context.assign(op.result, [cast(context, value, source, target) for value in registers])


@lowers(Bitcast)
def lower_bitcast(context: Context, op: Bitcast) -> None:
    """A register move (PTX ISA, `mov`), or nothing: integers of either sign and 8-bit floats are stored alike."""
    type_ = storage(op.result.tile.dtype)
    (registers,) = operands_of(context, op)
    context.assign(op.result, [value if value.type is type_ else context.bitcast(value, type_) for value in registers])


def in_f32(context: Context, values: list[SsaValue], dtype: DType, run: Callable[[list[SsaValue]], SsaValue]) -> SsaValue:
    """`run` on f32 copies of floats of any width; the result is rounded back to `dtype`."""
    return narrowed(context, run([widened(context, value, dtype) for value in values]), dtype)


def binary(context: Context, kind: str, left: SsaValue, right: SsaValue, dtype: DType, safe: bool = False) -> SsaValue:
    """One element of `Binary`; `safe` if a divisor or shift amount is proven to be in range."""
    if dtype.is_float:
        return in_f32(context, [left, right], dtype, lambda values: _float_binary(context, kind, *values))
    unsigned = dtype.kind != "i"
    if kind in ("min", "max"):
        below, above = ("ult", "ugt") if unsigned else ("slt", "sgt")
        return context.select(context.compare(below if kind == "min" else above, left, right), left, right)
    if kind in ("floordiv", "mod"):
        return floor_division(context, kind, left, right, unsigned, safe)
    if kind in ("shl", "shr"):
        return shift(context, kind, left, right, unsigned, safe)
    if kind == "mulhi":
        return multiply_high(context, left, right, unsigned)
    return context.integer(INTEGER_KINDS[kind], left, right)


def compared(context: Context, kind: str, left: SsaValue, right: SsaValue, dtype: DType) -> SsaValue:
    """One element of `Compare`."""
    if dtype.is_float and dtype.bits == 8:
        left, right, dtype = widened(context, left, dtype), widened(context, right, dtype), f32
    signed, unsigned, floating = PREDICATES[kind]
    if dtype.is_float:
        return context.float_compare(floating, left, right)
    return context.compare(signed if dtype.kind == "i" else unsigned, left, right)


def cast(context: Context, value: SsaValue, source: DType, target: DType) -> SsaValue:
    """One element of `Cast`."""
    if source == target:
        return value
    if source.is_float and target.is_float:
        return narrowed(context, widened(context, value, source), target)
    if source.is_float:
        if target.kind == "b":
            return compared(context, "ne", value, literal(context, 0.0, source), source)
        return to_integer(context, widened(context, value, source), target)
    if target.is_float:
        converted = context.integer_to_float(value, mlir.f32, signed=source.kind == "i")
        return narrowed(context, converted, target)
    if target.kind == "b":
        return context.compare("ne", value, context.constant(0, value.type))
    storage_type = storage(target)
    if storage_type is value.type:
        return value
    if storage_type.bits < value.type.bits:
        return context.trunc(value, storage_type)
    return context.extended(value, storage_type, signed=source.kind == "i")


def to_integer(context: Context, value: SsaValue, target: DType) -> SsaValue:
    """Converts an f32 to an integer: rounds toward zero, saturates at the ends of the range, NaN gives 0. Inline PTX, because
    LLVM's conversion is poison out of range, whereas `cvt` saturates (PTX ISA, `cvt`). Only NaN to a 64-bit integer differs in
    `cvt` and is selected explicitly."""
    wide = max(32, target.bits)
    conversion = f"cvt.rzi.{target.kind.replace('i', 's')}{wide}.f32 $0, $1;"
    (converted,) = context.inline_ptx(conversion, "=r,f" if wide == 32 else "=l,f", [value], [mlir.integer(wide)])
    if wide == 64:
        is_nan = context.float_compare("uno", value, value)
        return context.select(is_nan, context.constant(0, i64), converted)
    if target.bits == 32:
        return converted
    wider = i32 if target.kind == "i" else u32
    for kind, limit in zip(("max", "min"), target.integer_range(), strict=True):
        if limit:
            converted = binary(context, kind, converted, context.constant(limit), wider)
    return context.trunc(converted, storage(target))


def _float_binary(context: Context, kind: str, left: SsaValue, right: SsaValue) -> SsaValue:
    if kind in FLOAT_KINDS:
        # A product and the sum that uses it may contract to one `fma`; nothing else is reordered or assumed.
        return context.float_op(FLOAT_KINDS[kind], left, right, contract=True)
    if kind in ("min", "max"):
        # `llvm.minnum` leaves the order of +0 and -0 open; `llvm.minimumnum` and `llvm.maximumnum` match PTX `min` and `max`.
        (best,) = context.intrinsic(f"{kind}imumnum.f32", [left, right], [mlir.f32])
        return best
    if kind == "pow":
        return functions.power(context, left, right)
    assert kind == "fast_pow", kind
    power = context.float_op("fmul", _approximate(context, "lg2", left), right)
    return _approximate(context, "ex2", power)


def _approximate(context: Context, kind: str, value: SsaValue) -> SsaValue:
    """A special-function unit instruction on f32 (PTX ISA, `ex2`, `lg2`, `sqrt`, `rsqrt`, `rcp`, `tanh`, `sin`, `cos`).

    `ex2` uses `.ftz` and flushes results below 2^-126 to zero: supporting subnormals costs three more instructions per element.
    """
    mode = ".ftz" if kind == "ex2" else ""
    (result,) = context.inline_ptx(f"{kind}.approx{mode}.f32 $0, $1;", "=f,f", [value], [mlir.f32])
    return result


def _unary(context: Context, kind: str, value: SsaValue, dtype: DType) -> SsaValue:
    if dtype.is_float and kind in FLOAT_UNARY:
        return in_f32(context, [value], dtype, lambda values: FLOAT_UNARY[kind](context, values[0]))
    if kind == "not" and not dtype.is_float:
        return context.bit_xor(value, 1 if value.type is i1 else -1)
    if kind == "neg" and not dtype.is_float:
        return context.sub(context.constant(0, value.type), value)
    if kind == "abs" and not dtype.is_float:
        return absolute(context, value, dtype.kind != "i")
    functions_of_floats = sorted(name for name in FLOAT_UNARY if not name.startswith("fast_"))
    known = ", ".join(functions_of_floats if dtype.is_float else ("abs", "neg", "not"))
    raise VerifyError(f"no instructions compute `{kind}` of {dtype}; write it with what there is: {known}")


def _scaled(context: Context, value: SsaValue, factor: float) -> SsaValue:
    return context.float_op("fmul", value, literal(context, factor, f32))


def _fast_sigmoid(context: Context, value: SsaValue) -> SsaValue:
    exponential = _approximate(context, "ex2", _scaled(context, value, -1.4426950408889634))
    return _approximate(context, "rcp", context.float_op("fadd", exponential, literal(context, 1.0, f32)))


FLOAT_UNARY: Final[dict[str, Callable[[Context, SsaValue], SsaValue]]] = {
    "neg": lambda context, value: context.negated(value),
    "abs": lambda context, value: context.float_function("fabs", value),
    "sqrt": lambda context, value: context.float_function("sqrt", value),
    "floor": lambda context, value: context.float_function("floor", value),
    "ceil": lambda context, value: context.float_function("ceil", value),
    "round": lambda context, value: context.float_function("roundeven", value),
    "fast_sqrt": lambda context, value: _approximate(context, "sqrt", value),
    "fast_rsqrt": lambda context, value: _approximate(context, "rsqrt", value),
    "fast_exp2": lambda context, value: _approximate(context, "ex2", value),
    "fast_exp": lambda context, value: _approximate(context, "ex2", _scaled(context, value, 1.4426950408889634)),
    "fast_log2": lambda context, value: _approximate(context, "lg2", value),
    "fast_log": lambda context, value: _scaled(context, _approximate(context, "lg2", value), 0.6931471805599453),
    "fast_sin": lambda context, value: _approximate(context, "sin", value),
    "fast_cos": lambda context, value: _approximate(context, "cos", value),
    "fast_tanh": lambda context, value: _approximate(context, "tanh", value),
    "fast_sigmoid": _fast_sigmoid,
    "erf": error_function.erf,
    **{kind: partial(functions.accurate, kind=kind) for kind in functions.ACCURATE},
}
"""Functions of floats, of one element in f32. `fast_...` are the chip's approximations."""
