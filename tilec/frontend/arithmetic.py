"""Operators on terms: constant folding, weak typing, broadcasting.

Two values of different dtypes never mix, with one exception: an integer that the host can compute (a dim, an integer parameter,
or arithmetic on them) adopts the other operand's dtype, like a literal.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, Final

from tilec.frontend.emitter import At, Emitter, Number, Term, as_float, describe, number_of, shape_text, tile_type
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import DType, TileType, boolean, i32

BINARY: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "pow",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "shr",
}  # fmt: skip
COMPARE: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
_FOLD: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "pow": lambda a, b: a**b, "and": lambda a, b: a & b,
    "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
    "min": lambda a, b: min(_numbers(a, b)), "max": lambda a, b: max(_numbers(a, b)),
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
_MATH: Final[dict[str, Callable[[float], float]]] = {
    "exp2": lambda x: 2.0**x, "exp": math.exp, "log2": math.log2, "log": math.log, "sqrt": math.sqrt,
    "rsqrt": lambda x: 1.0 / math.sqrt(x), "tanh": math.tanh, "sin": math.sin, "cos": math.cos,
    "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)), "floor": lambda x: float(math.floor(x)),
    "ceil": lambda x: float(math.ceil(x)), "round": lambda x: float(round(x)), "erf": math.erf,
}  # fmt: skip
FUNCTIONS: Final = tuple(_MATH)
"""Element-wise functions of floats."""
APPROXIMATED: Final = frozenset(FUNCTIONS) - {"floor", "ceil", "round", "erf"}
"""Those for which a chip has an approximation, which `fast=True` asks for; so has `pow`."""
_LARGEST_INT: Final = 1 << 128
_INTEGER_ONLY: Final = frozenset({"floordiv", "mod", "shl", "shr"})
_BITWISE: Final = frozenset({"and", "or", "xor"})


def _numbers(*operands: Number) -> list[Number]:
    """Those that are numbers, which win over a NaN; all, if none is."""
    return [operand for operand in operands if operand == operand] or list(operands)


def is_number(term: Term) -> bool:
    """Whether the term is a compile-time number."""
    return isinstance(term, bool | int | float)


def fold(kind: str, left: Number, right: Number, at: At) -> Number:
    """Python's own arithmetic on compile-time numbers; E0204, E0205."""
    if kind in ("pow", "shl") and (abs(right) > 128 or (isinstance(left, int) and abs(left) > _LARGEST_INT)):
        raise at.error("E0205", "the constant is too large", hint="keep constants within 64 bits")
    try:
        result = _FOLD[kind](left, right)
    except ZeroDivisionError:
        raise at.error(
            "E0205", "division by zero in a constant expression", hint="the divisor is 0 for these constants"
        ) from None
    except (OverflowError, ValueError) as error:
        raise at.error("E0205", f"constant expression has no value: {error}") from None
    except TypeError:
        raise at.error("E0204", f"`{left}` and `{right}` do not take this operator") from None
    if not isinstance(result, bool | int | float):
        raise at.error("E0205", "the constant expression has no real value", hint="check the operands")
    if isinstance(result, int) and abs(result) > _LARGEST_INT:
        raise at.error("E0205", "the constant is too large", hint="keep constants within 64 bits")
    return result


def unify(emitter: Emitter, left: Term, right: Term, at: At) -> tuple[Value, Value]:
    """Both terms as values of one dtype and one shape; E0201, E0202."""
    if not isinstance(left, Value) and not isinstance(right, Value):
        a, b = number_of(left, at), number_of(right, at)
        if isinstance(a, bool) != isinstance(b, bool):
            raise at.error("E0201", f"the operands have different dtypes: `{a}` and `{b}`", hint="use two numbers or two bools")
        if isinstance(a, float) or isinstance(b, float):
            a, b = as_float(a, at), as_float(b, at)
        return emitter.value(a, at), emitter.value(b, at)
    if not isinstance(left, Value):
        type = tile_type(right, at)
        return emitter.constant(number_of(left, at), type, at), emitter.value(right, at)
    if not isinstance(right, Value):
        type = tile_type(left, at)
        return left, emitter.constant(number_of(right, at), type, at)
    left, right = _one_dtype(emitter, left, right, at)
    shape = common_shape(left.tile.shape, right.tile.shape, at)
    return emitter.broadcast(left, shape, at), emitter.broadcast(right, shape, at)


def _one_dtype(emitter: Emitter, left: Value, right: Value, at: At) -> tuple[Value, Value]:
    a, b = tile_type(left, at).dtype, tile_type(right, at).dtype
    if a == b:
        return left, right
    if emitter.host(left) is not None and _adopts(a, b):
        return emitter.cast(left, b, at), right
    if emitter.host(right) is not None and _adopts(b, a):
        return left, emitter.cast(right, a, at)
    both_integer = a.is_integer and b.is_integer
    wide = a if a.bits > b.bits or (a.is_float and not b.is_float) else b
    hint = f"widen one side: `{wide}(...)` or `.astype({wide})`" if both_integer else f"convert one side with `.astype({wide})`"
    raise at.error("E0201", f"the operands have different dtypes: {a} and {b}", label=f"{a} meets {b}", hint=hint)


def _adopts(known: DType, other: DType) -> bool:
    return other.is_float or (other.kind == "i" and other.bits > known.bits)


def common_shape(left: tuple[int, ...], right: tuple[int, ...], at: At) -> tuple[int, ...]:
    """Numpy's broadcast shape of two; E0202."""
    rank = max(len(left), len(right))
    a, b = (1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right
    if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
        raise at.error("E0202", f"shapes {shape_text(left)} and {shape_text(right)} do not broadcast",
                hint="insert axes of extent 1 with `[:, None]` or `[None, :]`")  # fmt: skip
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def binary(emitter: Emitter, kind: str, left: Term, right: Term, at: At, *, fast: bool = False) -> Term:
    """`left kind right`, element-wise; `fast` by the chip's approximation; E0201, E0202, E0204, E0205."""
    if isinstance(left, bool | int | float) and isinstance(right, bool | int | float):
        return fold(kind, left, right, at)
    if kind == "pow" and isinstance(left, Value) and isinstance(right, int) and right in (2, 3):
        square = binary(emitter, "mul", left, left, at)
        return square if right == 2 else binary(emitter, "mul", square, left, at)
    a, b = unify(emitter, left, right, at)
    dtype = a.tile.dtype
    _check_operator(kind, dtype, at)
    if kind in ("floordiv", "mod") and right == 0 and not isinstance(right, Value):
        raise at.error("E0205", "division by zero", hint="the divisor is 0 for these constants")
    if kind in ("shl", "shr") and isinstance(right, int) and not 0 <= right < dtype.bits:
        raise at.error("E0205", f"shift by {right} of a {dtype}", hint=f"shift by 0 to {dtype.bits - 1}")
    return emitter.binary_op(f"fast_{kind}" if fast else kind, a, b, at)


def _check_operator(kind: str, dtype: DType, at: At) -> None:
    if kind in _BITWISE:
        if dtype.is_float:
            raise at.error(
                "E0204",
                f"`& | ^` take integers or booleans, not {dtype}",
                hint="compare the tile first, or convert it with `.astype(i32)`",
            )
    elif dtype.kind == "b":
        raise at.error("E0204", "arithmetic on booleans", hint="use `& | ~`, or `where(condition, 1, 0)` for a number")
    elif kind in _INTEGER_ONLY and dtype.is_float:
        hint = "use `floor(a / b)`" if kind == "floordiv" else "convert with `.astype(i32)`"
        raise at.error("E0204", f"this operator takes integers, not {dtype}", hint=hint)
    elif kind in ("div", "pow") and not dtype.is_float:
        hint = "use `//`, or convert with `.astype(f32)`" if kind == "div" else "convert with `.astype(f32)`, or multiply"
        raise at.error("E0204", f"this operator takes floats, not {dtype}", hint=hint)


def compare(emitter: Emitter, kind: str, left: Term, right: Term, at: At) -> Term:
    """`left kind right` as booleans, element-wise."""
    if isinstance(left, DType) or isinstance(right, DType) or isinstance(left, str) or isinstance(right, str):
        if kind not in ("eq", "ne") or type(left) is not type(right):
            raise at.error(
                "E0204", f"cannot compare {describe(left)} with {describe(right)}", hint="compare numbers with numbers"
            )
        return (left == right) == (kind == "eq")
    if isinstance(left, bool | int | float) and isinstance(right, bool | int | float):
        return fold(kind, left, right, at)
    a, b = unify(emitter, left, right, at)
    if a.tile.dtype.kind == "b" and kind not in ("eq", "ne"):
        raise at.error("E0204", "booleans have no order", hint="use `==`, `!=` or `& | ~`")
    return emitter.emit(ops.Compare(kind=kind, operands=[a, b]), at, TileType(boolean, a.tile.shape))[0]


def negate(emitter: Emitter, term: Term, at: At) -> Term:
    """`-term`."""
    if isinstance(term, bool | int | float):
        return -term
    if tile_type(term, at).dtype.kind == "b":
        raise at.error("E0204", "arithmetic on booleans", hint="use `~` to invert")
    if emitter.host(term) is not None:
        return binary(emitter, "sub", 0, term, at)
    return unary_op(emitter, "neg", emitter.value(term, at), at)


def invert(emitter: Emitter, term: Term, at: At) -> Term:
    """`~term` of integers and booleans."""
    if isinstance(term, bool):
        return not term
    if isinstance(term, int):
        return ~term
    if tile_type(term, at).dtype.is_float:
        raise at.error("E0204", "`~` takes integers or booleans", hint="compare the tile first")
    return unary_op(emitter, "not", emitter.value(term, at), at)


def logical_not(emitter: Emitter, term: Term, at: At) -> Term:
    """`not term` of a scalar condition."""
    if isinstance(term, bool | int | float):
        return not term
    return unary_op(emitter, "not", condition(emitter, term, at), at)


def function(emitter: Emitter, kind: str, term: Term, at: At, *, fast: bool = False) -> Term:
    """An element-wise function of floats (`abs` of any number); `fast` by the chip's approximation."""
    if isinstance(term, bool | int | float):
        try:
            return abs(term) if kind == "abs" else _MATH[kind](as_float(term, at))
        except (ValueError, OverflowError, ZeroDivisionError) as error:
            raise at.error("E0205", f"`{kind}({term})` has no value: {error}") from None
    dtype = tile_type(term, at).dtype
    if kind == "abs" and dtype.kind == "b":
        raise at.error("E0204", "`abs` takes numbers", hint="use `where(condition, 1, 0)`")
    value = emitter.value(term, at)
    if kind != "abs" and not dtype.is_float:
        if emitter.host(term) is None:
            raise at.error("E0204", f"`{kind}` takes floats, not {dtype}", hint="convert with `.astype(f32)`")
        raise at.error("E0204", f"`{kind}` takes floats, not {dtype}", hint="convert with `f32(...)`")
    return unary_op(emitter, f"fast_{kind}" if fast else kind, value, at)


def unary_op(emitter: Emitter, kind: str, value: Value, at: At) -> Value:
    """Emit an element-wise operation of one value."""
    return emitter.emit(ops.Unary(kind=kind, operands=[value]), at, value.tile)[0]


def condition(emitter: Emitter, term: Term, at: At) -> Value:
    """The term as a bool scalar; E0210."""
    if isinstance(term, bool):
        return emitter.value(term, at)
    type = tile_type(term, at)
    if type.shape:
        raise at.error("E0210", f"a condition must be a scalar, found {describe(term)}",
                hint="select element-wise with `where(condition, a, b)`, combine with `& | ~`")  # fmt: skip
    if type.dtype != boolean:
        raise at.error("E0210", f"a condition must be a bool, found {describe(term)}", hint="compare it: `x != 0`")
    return emitter.value(term, at)


def connect(emitter: Emitter, kind: str, terms: list[Term], nodes: list[At]) -> Term:
    """`and` / `or` of scalar conditions. Both sides are evaluated; constants fold."""
    values: list[Value] = []
    for term, at in zip(terms, nodes, strict=True):
        if isinstance(term, bool | int | float):
            if bool(term) == (kind == "or"):
                return bool(term)
        else:
            values.append(condition(emitter, term, at))
    if not values:
        return kind == "and"
    result = values[0]
    for value in values[1:]:
        result = emitter.binary_op(kind, result, value, nodes[0])
    return result


def check_integer_scalar(term: Term, at: At, what: str, *, instead: str = "") -> None:
    """Raises E0206 unless the term is an integer scalar. `instead` is the hint for a tile of integers."""
    if isinstance(term, int) and not isinstance(term, bool):
        return
    scalar = isinstance(term, Value) and isinstance(term.type, TileType) and not term.tile.shape
    if isinstance(term, Value) and scalar and term.tile.dtype.is_integer:
        return
    hint = "use an integer"
    if isinstance(term, Value) and isinstance(term.type, TileType):
        integers = term.tile.dtype.is_integer
        hint = (instead or "take one number of the tile, such as its `max`") if integers else "convert it with `.astype(i32)`"
    raise at.error("E0206", f"{what} must be an integer scalar, found {describe(term)}", hint=hint)


def integer_scalar(emitter: Emitter, term: Term, at: At, what: str) -> Value:
    """The term as an integer scalar value; a literal becomes i32; E0206."""
    check_integer_scalar(term, at, what)
    if isinstance(term, int):
        return emitter.constant(term, TileType(i32), at)
    assert isinstance(term, Value)
    return term
