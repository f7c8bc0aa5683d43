"""Element-wise operations on what one thread holds. 16-bit floats compute in f32 and round once per operation."""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir.blocked_layouts import hidden, reshaped, row_major, with_axes
from tilec.ir.core import Op, Value
from tilec.ir.layout import register_map
from tilec.ir.ops import (
    Binary,
    BinaryInRange,
    BlockId,
    Broadcast,
    Cast,
    Compare,
    Constant,
    DimValue,
    Iota,
    NumBlocks,
    Permute,
    Reshape,
    Select,
    Unary,
)
from tilec.ir.ops_staging import Part, Relayout
from tilec.ir.types import DType, f32, i32, u32
from tilec.lowering.context import Context, literal, storage
from tilec.lowering.convert import moved, registers_in, through_shared
from tilec.lowering.integers import absolute, floor_division, shift
from tilec.lowering.narrow_floats import narrowed, widened
from tilec.lowering.tensor_core import arith, compare, number, select

FLOAT_KINDS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
CONTRACT = "fastmathFlags = #llvm.fastmath<contract>"
"""A product and the sum it goes into may be one `fma`, which rounds once; nothing else is reordered or assumed."""
COMPARE_FLOAT = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def operands_as(context: Context, op: Op, like: Value) -> list[list[str]]:
    """Every operand in the layout of `like` (a scalar stays one register)."""
    if like.layout is None:
        return [context.registers(value) for value in op.operands]
    return [registers_in(context, value, like.layout) for value in op.operands]


def lower_constant(context: Context, op: Constant) -> None:
    count = op.result.layout.num_registers if op.result.layout else 1
    context.assign(op.result, [literal(context, op.value, op.result.tile.dtype)] * count)


def lower_iota(context: Context, op: Iota) -> None:
    layout = op.result.layout
    assert layout is not None
    (first,) = context.thread_coordinates(layout)
    context.assign(
        op.result, [arith(context, "add", first, layout.coordinates(r, 0, 0)[0]) for r in range(layout.num_registers)]
    )


def lower_block_id(context: Context, op: BlockId) -> None:
    context.assign(op.result, [context.value(f"nvvm.read.ptx.sreg.ctaid.{'xyz'[op.axis]} : i32")])


def lower_num_blocks(context: Context, op: NumBlocks) -> None:
    context.assign(op.result, [context.value(f"nvvm.read.ptx.sreg.nctaid.{'xyz'[op.axis]} : i32")])


def lower_dim(context: Context, op: DimValue) -> None:
    context.assign(op.result, [context.leaves[op.symbol].name])


def lower_broadcast(context: Context, op: Broadcast) -> None:
    source, layout = op.operands[0], op.result.layout
    held = context.registers(source)
    assert layout is not None
    if source.layout is None:
        context.assign(op.result, held * layout.num_registers)
        return
    repeated = {axis for axis, extent in enumerate(source.tile.shape) if extent == 1}
    slice_ = hidden(layout, repeated)
    names = registers_in(context, source, slice_)
    places = {slice_.coordinates(r, 0, 0): names[r] for r in range(slice_.num_registers)}
    out: list[str] = []
    for register in range(layout.num_registers):
        place = layout.coordinates(register, 0, 0)
        out.append(places[tuple(0 if axis in repeated else c for axis, c in enumerate(place))])
    context.assign(op.result, out)


def lower_reshape(context: Context, op: Reshape) -> None:
    source, layout = op.operands[0], op.result.layout
    held = context.registers(source)
    if layout is None or source.layout is None:
        count = layout.num_registers if layout else 1
        context.assign(op.result, [held[0]] * count)
        return
    tile = op.result.tile
    if len(set(held)) == 1 and isinstance(source.owner, Constant):
        context.assign(op.result, [held[0]] * layout.num_registers)
        return
    same = reshaped(source.layout, source.tile.shape, tile.shape)
    if same is not None:
        context.assign(op.result, moved(context, held, tile, same, layout))
        return
    linear = (source.layout, row_major(source.tile.shape)), (layout, row_major(tile.shape))
    context.assign(op.result, through_shared(context, held, tile, *linear, tile.size))


def lower_relayout(context: Context, op: Relayout) -> None:
    assert op.result.layout is not None
    context.assign(op.result, registers_in(context, op.operands[0], op.result.layout))


def lower_part(context: Context, op: Part) -> None:
    """A choice of registers."""
    source, target = op.operands[0].layout, op.result.layout
    assert source is not None and target is not None
    found = register_map(source, target, (op.row, op.column))
    assert found is not None, op
    held = context.registers(op.operands[0])
    context.assign(op.result, [held[register] for register in found])


def lower_permute(context: Context, op: Permute) -> None:
    source, layout = op.operands[0], op.result.layout
    held = context.registers(source)
    if layout is None or source.layout is None:  # a scalar
        context.assign(op.result, held)
        return
    turned = with_axes(source.layout, {old: new for new, old in enumerate(op.axes)}, layout.rank)
    context.assign(op.result, moved(context, held, op.result.tile, turned, layout))


def lower_unary(context: Context, op: Unary) -> None:
    dtype = op.result.tile.dtype
    context.assign(op.result, [_unary(context, op.kind, name, dtype) for name in operands_as(context, op, op.result)[0]])


def lower_binary(context: Context, op: Binary) -> None:
    left, right = operands_as(context, op, op.result)
    dtype, safe = op.result.tile.dtype, isinstance(op, BinaryInRange)
    context.assign(op.result, [binary(context, op.kind, a, b, dtype, safe) for a, b in zip(left, right, strict=True)])


def lower_compare(context: Context, op: Compare) -> None:
    left, right = operands_as(context, op, op.result)
    dtype = op.operands[0].tile.dtype
    context.assign(op.result, [compared(context, op.kind, a, b, dtype) for a, b in zip(left, right, strict=True)])


def lower_select(context: Context, op: Select) -> None:
    conditions, on_true, on_false = operands_as(context, op, op.result)
    type_ = storage(op.result.tile.dtype)
    context.assign(op.result, [select(context, c, a, b, type_) for c, a, b in zip(conditions, on_true, on_false, strict=True)])


def lower_cast(context: Context, op: Cast) -> None:
    source, target = op.operands[0].tile.dtype, op.result.tile.dtype
    context.assign(op.result, [cast(context, name, source, target) for name in operands_as(context, op, op.result)[0]])


def in_f32(context: Context, names: list[str], dtype: DType, run: Callable[[list[str]], str]) -> str:
    """`run` on f32 copies of floats of any width, the result rounded back."""
    return narrowed(context, run([widened(context, name, dtype) for name in names]), dtype)


def binary(context: Context, kind: str, left: str, right: str, dtype: DType, safe: bool = False) -> str:
    """One element of `Binary`; `safe` where a divisor or an amount is proven to be in range."""
    if dtype.is_float:
        return in_f32(context, [left, right], dtype, lambda names: _float_binary(context, kind, *names))
    type_ = storage(dtype)
    unsigned = dtype.kind != "i"
    if kind in ("min", "max"):
        predicate = ("u" if unsigned else "s") + ("lt" if kind == "min" else "gt")
        return select(context, compare(context, predicate, left, right, type_), left, right, type_)
    if kind in ("floordiv", "mod"):
        return floor_division(context, kind, left, right, type_, unsigned, safe)
    if kind in ("shl", "shr"):
        return shift(context, kind, left, right, type_, unsigned, safe)
    return arith(context, kind, left, right, type_)


def compared(context: Context, kind: str, left: str, right: str, dtype: DType) -> str:
    """One element of `Compare`."""
    if dtype.is_float and dtype.bits == 8:
        left, right, dtype = widened(context, left, dtype), widened(context, right, dtype), f32
    type_ = storage(dtype)
    if dtype.is_float:
        return context.value(f'llvm.fcmp "{COMPARE_FLOAT[kind]}" {left}, {right} : {type_}')
    sign = "" if kind in ("eq", "ne") else "s" if dtype.kind == "i" else "u"
    return compare(context, sign + kind, left, right, type_)


def cast(context: Context, name: str, source: DType, target: DType) -> str:
    """One element of `Cast`."""
    a, b = storage(source), storage(target)
    if source == target:
        return name
    if source.is_float and target.is_float:
        return narrowed(context, widened(context, name, source), target)
    if source.is_float:
        if target.kind == "b":
            return compared(context, "ne", name, literal(context, 0.0, source), source)
        return to_integer(context, widened(context, name, source), target)
    if target.is_float:
        made = context.value(f"llvm.{'sitofp' if source.kind == 'i' else 'uitofp'} {name} : {a} to f32")
        return narrowed(context, made, target)
    if target.kind == "b":
        return compare(context, "ne", name, number(context, 0, a), a)
    if a == b:
        return name
    if int(b[1:]) < int(a[1:]):
        return context.value(f"llvm.trunc {name} : {a} to {b}")
    return context.value(f"llvm.{'sext' if source.kind == 'i' else 'zext'} {name} : {a} to {b}")


def to_integer(context: Context, name: str, target: DType) -> str:
    """An f32 as an integer: toward zero, at most the ends of the range, NaN as 0. As text: LLVM's conversion has no value out
    of range, while the instruction saturates by itself (PTX ISA, `cvt`); only NaN as a 64-bit integer is another there."""
    wide = max(32, target.bits)
    made = context.value(
        f'llvm.inline_asm "cvt.rzi.{target.kind.replace("i", "s")}{wide}.f32 $0, $1;", '
        f'"={"r" if wide == 32 else "l"},f" {name} : (f32) -> i{wide}'
    )
    if wide == 64:
        is_nan = context.value(f'llvm.fcmp "uno" {name}, {name} : f32')
        return select(context, is_nan, number(context, 0, "i64"), made, "i64")
    if target.bits == 32:
        return made
    wider = i32 if target.kind == "i" else u32
    for kind, limit in zip(("max", "min"), target.integer_range(), strict=True):
        if limit:
            made = binary(context, kind, made, number(context, limit), wider)
    return context.value(f"llvm.trunc {made} : i32 to i{target.bits}")


def _float_binary(context: Context, kind: str, left: str, right: str) -> str:
    if kind in FLOAT_KINDS:
        return context.value(f"llvm.{FLOAT_KINDS[kind]} {left}, {right} {{{CONTRACT}}} : f32")
    if kind in ("min", "max"):
        # `llvm.minnum` leaves the order of zeros open; this is the instruction (PTX ISA, `min`, `max`).
        return context.value(f'llvm.call_intrinsic "llvm.{kind}imumnum.f32"({left}, {right}) : (f32, f32) -> f32')
    assert kind == "pow", kind
    power = context.value(f"llvm.fmul {_approximate(context, 'lg2', left)}, {right} : f32")
    return _approximate(context, "ex2", power)


def _approximate(context: Context, kind: str, name: str) -> str:
    """A special-function unit instruction on f32 (PTX ISA, `ex2`, `lg2`, `rsqrt`, `rcp`, `tanh`, `sin`, `cos`).

    `ex2` gives zero for results below 2^-126: what the other form does about them costs three instructions each time.
    """
    mode = ".ftz" if kind == "ex2" else ""
    return context.value(f'llvm.inline_asm "{kind}.approx{mode}.f32 $0, $1;", "=f,f" {name} : (f32) -> f32')


def _unary(context: Context, kind: str, name: str, dtype: DType) -> str:
    type_ = storage(dtype)
    if not dtype.is_float:
        if kind == "not":
            return arith(context, "xor", name, number(context, 1 if type_ == "i1" else -1, type_), type_)
        if kind == "neg":
            return arith(context, "sub", number(context, 0, type_), name, type_)
        return absolute(context, name, type_, dtype.kind != "i")
    return in_f32(context, [name], dtype, lambda names: _float_unary(context, kind, names[0]))


def _scaled(context: Context, name: str, factor: float) -> str:
    return context.value(f"llvm.fmul {name}, {literal(context, factor, f32)} : f32")


def _float_unary(context: Context, kind: str, name: str) -> str:
    match kind:
        case "neg":
            return context.value(f"llvm.fneg {name} : f32")
        case "abs" | "sqrt" | "floor" | "ceil":
            word = {"abs": "fabs"}.get(kind, kind)
            return context.value(f"llvm.intr.{word}({name}) : (f32) -> f32")
        case "exp2":
            return _approximate(context, "ex2", name)
        case "exp":
            return _approximate(context, "ex2", _scaled(context, name, 1.4426950408889634))
        case "log2":
            return _approximate(context, "lg2", name)
        case "log":
            return _scaled(context, _approximate(context, "lg2", name), 0.6931471805599453)
        case "sigmoid":
            grown = _approximate(context, "ex2", _scaled(context, name, -1.4426950408889634))
            return _approximate(context, "rcp", context.value(f"llvm.fadd {grown}, {literal(context, 1.0, f32)} : f32"))
        case _:
            return _approximate(context, kind, name)
