"""Evaluates Python expressions to terms and emits their operations."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, Final

from tilec.diagnostics.spelling import ask_first, did_you_mean
from tilec.frontend import arithmetic
from tilec.frontend.emitter import (
    At,
    Number,
    Term,
    default_dtype,
    describe,
    number_of,
    refuse_codes,
    tile_type,
    too_large,
    usable,
)
from tilec.frontend.module import (
    NUMBERS,
    WORDS,
    DimName,
    ElementName,
    Foreign,
    ModuleConstant,
    Package,
    Routine,
    Word,
    dtype_word,
    is_word,
)
from tilec.frontend.scope import Scope
from tilec.frontend.signature import dtype_named
from tilec.ir import ops
from tilec.ir.core import Block, Value
from tilec.ir.packed import Codes, authored_dims
from tilec.ir.types import TensorType, TileType
from tilec.untrusted.limits import MAX_LITERAL_BITS, MAX_TUPLE

_MATH_CONSTANTS: Final = {"inf": math.inf, "nan": math.nan, "pi": math.pi, "e": math.e, "tau": math.tau}
_OF_TENSORS: Final = ("shape", "ndim", "dtype")
_OF_TILES: Final = ("shape", "ndim", "dtype", "T", "astype", "reshape", "permute", "broadcast_to")


def expression(scope: Scope, node: ast.expr) -> Term:
    """Evaluates an expression; Refused with E0106 for valid Python that kernels do not support."""
    build = _BUILD.get(type(node))
    if build is None:
        description = _UNSUPPORTED.get(type(node), "this expression")
        raise scope.at(node).error(
            "E0106", f"{description} cannot be used in a kernel", hint=_HINTS.get(type(node), "use tile operations")
        )
    term = build(scope, node)
    scope.emitter.stands_for(scope.at(node), term)
    return term


def _constant(scope: Scope, node: ast.Constant) -> Term:
    if isinstance(node.value, bool | int | float | str):
        return _literal(node.value, scope.at(node))
    if node.value is None:
        return None
    raise scope.at(node).error(
        "E0106", f"`{ast.unparse(node)}` cannot be used in a kernel", hint="use an int, a float or a bool"
    )


def _literal(value: bool | int | float | str, at: At) -> bool | int | float | str:
    """The value of a literal; E0205 for an integer of more than `MAX_LITERAL_BITS` bits."""
    if isinstance(value, int) and value.bit_length() > MAX_LITERAL_BITS:
        raise at.error("E0205", f"an integer of {value.bit_length()} bits is too large", hint="keep constants within 64 bits")
    return value


def _name(scope: Scope, node: ast.Name) -> Term:
    entry = scope.name(node)
    if isinstance(entry, ModuleConstant):
        return _module_constant(scope, entry, node)
    return _as_term(scope, entry, node)


def _as_term(scope: Scope, entry: object, node: ast.expr) -> Term:
    if isinstance(entry, Word | Package | Routine | Foreign | DimName | ElementName | ModuleConstant):
        name = entry.name.removeprefix("builtins.") if isinstance(entry, Word | Package | Routine) else ast.unparse(node)
        raise scope.at(node).error("E0106", f"`{name}` is used as a value", hint=f"call it: `{name}(...)`")
    return entry  # type: ignore[return-value]


def _module_constant(scope: Scope, entry: ModuleConstant, node: ast.expr) -> Term:
    """Module constants are arithmetic on literals and other module constants."""

    known: dict[ast.expr, Term] = {}  # without it, `A = B + B`, `B = C + C`, ... would take exponential time

    def evaluate(item: ast.expr, depth: int) -> Term:
        if item not in known:
            known[item] = compute(item, depth)
        return known[item]

    def compute(item: ast.expr, depth: int) -> Term:
        at = scope.at(node)
        if isinstance(item, ast.Constant) and isinstance(item.value, bool | int | float):
            return _literal(item.value, at)
        if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub):
            return -number_of(evaluate(item.operand, depth), at)
        if isinstance(item, ast.BinOp) and type(item.op) in arithmetic.BINARY:
            left, right = number_of(evaluate(item.left, depth), at), number_of(evaluate(item.right, depth), at)
            return arithmetic.fold(arithmetic.BINARY[type(item.op)], left, right, at)
        if isinstance(item, ast.Name) and depth < 32:
            other = entry.module.names.get(item.id)
            if isinstance(other, ModuleConstant):
                return evaluate(other.node, depth + 1)
            if isinstance(other, Word) and dtype_word(other.name):
                return dtype_named(other.name)
            if isinstance(other, Word) and other.name in NUMBERS:
                return NUMBERS[other.name]
        if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name):
            package = entry.module.names.get(item.value.id)
            if isinstance(package, Package) and package.name == "math" and item.attr in _MATH_CONSTANTS:
                return _MATH_CONSTANTS[item.attr]
        raise at.error("E0108", f"`{ast.unparse(node)}` is not a constant that the compiler can evaluate",
                hint="module constants are literals and arithmetic on them")  # fmt: skip

    return evaluate(entry.node, 0)


def _tuple(scope: Scope, node: ast.Tuple | ast.List) -> Term:
    parts: list[Term] = []
    for item in node.elts:
        if isinstance(item, ast.Starred):
            inner = expression(scope, item.value)
            if not isinstance(inner, tuple):
                raise scope.at(item).error(
                    "E0217", f"`*` takes a tuple here, found {describe(inner)}", hint="leave the `*` out"
                )
            parts += inner
        else:
            parts.append(expression(scope, item))
    return _tuple_of(scope, tuple(parts), node)


def _tuple_of(scope: Scope, parts: tuple[Term, ...], node: ast.expr) -> Term:
    """A tuple of these parts; E0511, since `x = x + x` doubles it."""
    if len(parts) > MAX_TUPLE:
        raise too_large("items of a tuple", MAX_TUPLE, scope.at(node))
    return parts


def _binary(scope: Scope, node: ast.BinOp) -> Term:
    left, right = expression(scope, node.left), expression(scope, node.right)
    if isinstance(node.op, ast.Add) and isinstance(left, tuple) and isinstance(right, tuple):
        return _tuple_of(scope, left + right, node)
    if isinstance(node.op, ast.MatMult):
        return matmul(scope, left, right, node)
    return arithmetic.binary(scope.emitter, arithmetic.BINARY[type(node.op)], left, right, scope.at(node))


def matmul(scope: Scope, left: Term, right: Term, node: ast.expr, acc: Term = None, *, tf32: bool = False) -> Term:
    """`left @ right + acc` on tensor cores, of f32 only if `tf32` asks for it; E0201, E0202, E0206."""
    at = scope.at(node)
    a, b = tile_type(left, at), tile_type(right, at)
    if a.rank != b.rank or a.rank not in (2, 3):
        raise at.error("E0206", f"a matrix product takes two matrices, found {describe(left)} and {describe(right)}",
                hint="give each operand two axes, for example with `[None, :]`")  # fmt: skip
    sums = ops.sum_dtype(a.dtype, b.dtype)
    is_f32 = dtype_named("f32") in (a.dtype, b.dtype)
    if sums is None or (is_f32 and not tf32):
        if sums is not None:
            text = "a matrix product of f32 rounds its operands to tf32, and nothing asks for that"
            hint = "write `mma(a, b, acc, tf32=True)`, or convert the operands with `.astype(bf16)`"
        else:
            text = f"a matrix product takes two tiles of bf16, of f16, of f8 or of i8 and u8, found {a.dtype} and {b.dtype}"
            hint = "convert the operands with `.astype(bf16)`"
        raise at.error("E0201", text, hint=hint)
    if tf32 and not is_f32:
        raise at.error("E0201", f"`tf32` is of products of f32, found {a.dtype} and {b.dtype}", hint="leave `tf32` out")
    if a.shape[-1] != b.shape[-2]:
        raise at.error(
            "E0202", f"inner extents differ: {a.shape[-1]} and {b.shape[-2]}", hint="a is (M, K), b is (K, N); use `.T`"
        )
    if a.shape[:-2] != b.shape[:-2]:
        raise at.error(
            "E0202", f"{a.shape[0]} products and {b.shape[0]}", hint="a is (S, M, K), b is (S, K, N): S products side by side"
        )
    result = TileType(sums, (*a.shape[:-1], b.shape[-1]))
    if acc is None:
        acc = scope.emitter.constant(0.0 if sums.is_float else 0, result, at)
    if tile_type(acc, at) != result:
        raise at.error("E0201", f"the accumulator is {result.dtype} of shape {result.shape}, found {describe(acc)}",
                hint=f"start from `zeros({result.shape}, {sums})`")  # fmt: skip
    operands = [scope.emitter.value(term, at) for term in (left, right, acc)]
    return scope.emitter.emit(ops.Mma(operands=operands), at, result)[0]


def _unary(scope: Scope, node: ast.UnaryOp) -> Term:
    term, at = expression(scope, node.operand), scope.at(node)
    if isinstance(node.op, ast.USub):
        return arithmetic.negate(scope.emitter, term, at)
    if isinstance(node.op, ast.Not):
        return arithmetic.logical_not(scope.emitter, term, at)
    if isinstance(node.op, ast.Invert):
        return arithmetic.invert(scope.emitter, term, at)
    if not arithmetic.is_number(term):
        tile_type(term, at)
    return term


def _compare(scope: Scope, node: ast.Compare) -> Term:
    for op in node.ops:
        if type(op) not in arithmetic.COMPARE:
            raise scope.at(node).error("E0106", "`is` and `in` cannot be used in a kernel", hint="compare numbers with `==`")
    terms = [expression(scope, operand) for operand in (node.left, *node.comparators)]
    at = scope.at(node)
    parts = [arithmetic.compare(scope.emitter, arithmetic.COMPARE[type(op)], terms[i], terms[i + 1], at)
             for i, op in enumerate(node.ops)]  # fmt: skip
    return parts[0] if len(parts) == 1 else arithmetic.connect(scope.emitter, "and", parts, [at] * len(parts))


def _connective(scope: Scope, node: ast.BoolOp) -> Term:
    kind = "and" if isinstance(node.op, ast.And) else "or"
    terms: list[Term] = []
    for value in node.values:
        term = expression(scope, value)
        terms.append(term)
        # As in Python, operands after a deciding constant are not evaluated.
        if isinstance(term, bool | int | float) and bool(term) == (kind == "or"):
            break
    return arithmetic.connect(scope.emitter, kind, terms, [scope.at(value) for value in node.values[: len(terms)]])


def _choice(scope: Scope, node: ast.IfExp) -> Term:
    test, at = expression(scope, node.test), scope.at(node)
    if isinstance(test, bool | int | float):
        return expression(scope, node.body if test else node.orelse)
    condition = arithmetic.condition(scope.emitter, test, scope.at(node.test))
    then, other = Block(), Block()
    with scope.emitter.into(then):
        on_true = expression(scope, node.body)
    with scope.emitter.into(other):
        on_false = expression(scope, node.orelse)
    if not then.ops and not other.ops:
        a, b = arithmetic.unify(scope.emitter, on_true, on_false, at)
        mask = scope.emitter.broadcast(condition, a.tile.shape, at)
        return scope.emitter.emit(ops.Select(operands=[mask, a, b]), at, a.tile)[0]
    return join(scope, ops.If(operands=[condition], regions=[then, other]), [(on_true, on_false)], at)[0]


def join(scope: Scope, branch: ops.If, pairs: list[tuple[Term, Term]], at: At) -> list[Term]:
    """Finishes an `if`: yields one value per pair, whose types must agree; E0209."""
    types = [joined_type(pair, at) for pair in pairs]
    for operand, region in enumerate(branch.regions):
        with scope.emitter.into(region):
            yielded = [as_type(scope, pair[operand], type, at) for pair, type in zip(pairs, types, strict=True)]
            scope.emitter.emit(ops.Yield(operands=yielded), at)
    return list(scope.emitter.emit(branch, at, *types))


def as_type(scope: Scope, term: Term, type: TileType, at: At) -> Value:
    """The term as a value of a type that it is known to fit."""
    return term if isinstance(term, Value) else scope.emitter.constant(number_of(term, at), type, at)


def joined_type(pair: tuple[Term, Term], at: At) -> TileType:
    """The common type of two branches' values; a number adopts the other side's dtype; E0209."""
    left, right = (usable(term) for term in pair)
    for side in (left, right):
        refuse_codes(side, at)
    if isinstance(left, Value) and isinstance(right, Value) and left.type == right.type and isinstance(left.type, TileType):
        return left.type
    if isinstance(left, Value) and isinstance(right, bool | int | float) and fits(right, left):
        return left.tile
    if isinstance(right, Value) and isinstance(left, bool | int | float) and fits(left, right):
        return right.tile
    if isinstance(left, bool | int | float) and isinstance(right, bool | int | float):  # noqa: SIM102 (narrows the types)
        if isinstance(left, bool) == isinstance(right, bool):
            return TileType(default_dtype(left if isinstance(left, float) else right))
    raise at.error("E0209", f"the branches give different types: {describe(left)} and {describe(right)}",
                   hint="make both sides agree in dtype and shape")  # fmt: skip


def fits(number: Number, value: Value) -> bool:
    """Whether a number can be a scalar of the dtype of `value`."""
    if not isinstance(value.type, TileType) or value.tile.shape:
        return False
    if value.tile.dtype.kind == "b" or isinstance(number, bool):
        return value.tile.dtype.kind == "b" and isinstance(number, bool)
    return value.tile.dtype.is_float or isinstance(number, int)


def _meant(package: Package, name: str) -> str:
    return did_you_mean(name, WORDS if package.name == "tilec" else _MATH_CONSTANTS, "check the spelling")


def _attribute(scope: Scope, node: ast.Attribute) -> Term:
    at = scope.at(node)
    package = package_of(scope, node.value)
    if package is not None:
        if package.name == "math" and node.attr in _MATH_CONSTANTS:
            return _MATH_CONSTANTS[node.attr]
        if package.name == "tilec" and dtype_word(node.attr):
            return dtype_named(node.attr)
        if package.name == "tilec" and node.attr in NUMBERS:
            return NUMBERS[node.attr]
        if package.name == "tilec" and is_word(node.attr):
            raise at.error("E0106", f"`{node.attr}` is used as a value", hint=f"call it: `tilec.{node.attr}(...)`")
        raise at.error("E0108", f"`{package.name}` has no `{node.attr}` for kernels", hint=_meant(package, node.attr))
    term = expression(scope, node.value)
    if isinstance(term, Value) and isinstance(term.type, TensorType):
        if node.attr == "shape":
            return tuple(scope.emitter.materialize(dim, at) for dim in authored_dims(term.tensor))
        if node.attr == "ndim":
            return term.tensor.rank
        if node.attr == "dtype":
            return term.tensor.packed or term.tensor.dtype
        raise at.error(
            "E0106",
            f"a tensor has no `{node.attr}`",
            hint=ask_first(node.attr, _OF_TENSORS, "it has `shape`, `ndim`, `dtype`; `load` gives a tile"),
        )
    if isinstance(term, Codes) and node.attr in ("shape", "ndim", "dtype"):
        return {"shape": term.value.tile.shape, "ndim": term.value.tile.rank, "dtype": term.dtype}[node.attr]
    refuse_codes(term, at)
    if not isinstance(term, Value):
        raise at.error("E0106", f"{describe(term)} has no `{node.attr}`", hint="attributes belong to tiles and tensors")
    if node.attr == "shape":
        return term.tile.shape
    if node.attr == "ndim":
        return term.tile.rank
    if node.attr == "dtype":
        return term.tile.dtype
    if node.attr == "T":
        return permute(scope, term, tuple(reversed(range(term.tile.rank))), node)
    listed = ", ".join(f"`{name}`" for name in _OF_TILES)
    raise at.error("E0106", f"a tile has no `{node.attr}`", hint=ask_first(node.attr, _OF_TILES, f"it has {listed}"))


def permute(scope: Scope, value: Value, axes: tuple[int, ...], node: ast.expr) -> Value:
    """Reorders axes; returns the value itself for the identity."""
    if axes == tuple(range(len(axes))):
        return value
    type = TileType(value.tile.dtype, tuple(value.tile.shape[axis] for axis in axes))
    return scope.emitter.emit(ops.Permute(axes=axes, operands=[value]), scope.at(node), type)[0]


def package_of(scope: Scope, node: ast.expr) -> Package | None:
    """The package that a name refers to, if any."""
    if isinstance(node, ast.Name) and node.id not in scope.env and node.id not in scope.locals:
        entry = scope.module.names.get(node.id)
        return entry if isinstance(entry, Package) else None
    return None


def _subscript(scope: Scope, node: ast.Subscript) -> Term:
    term, at = expression(scope, node.value), scope.at(node)
    if isinstance(term, tuple):
        if isinstance(node.slice, ast.Slice):
            return term[_slice(scope, node.slice)]
        index = expression(scope, node.slice)
        if not isinstance(index, int) or not -len(term) <= index < len(term):
            raise at.error("E0203", f"the index into {describe(term)} must be a constant in range",
                    hint=f"use -{len(term)}..{len(term)}")  # fmt: skip
        return usable(term[index])
    if isinstance(term, Value) and isinstance(term.type, TensorType):
        raise at.error("E0106", "a tensor is not subscripted", hint=f"read it with `load({term.name}, index, shape=...)`")
    type = tile_type(term, at)
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    shape: list[int] = []
    remaining = list(type.shape)
    for item in items:
        if isinstance(item, ast.Constant) and item.value is None:
            shape.append(1)
        elif isinstance(item, ast.Constant) and item.value is Ellipsis:
            keep = len(remaining) - sum(isinstance(i, ast.Slice) for i in items[items.index(item) + 1 :])
            shape, remaining = [*shape, *remaining[:keep]], remaining[max(keep, 0) :]
        elif isinstance(item, ast.Slice) and item.lower is item.upper is item.step is None:
            if not remaining:
                raise at.error("E0206", f"too many axes for {describe(term)}", hint=f"the tile has {type.rank}")
            shape.append(remaining.pop(0))
        else:
            raise scope.at(item).error("E0106", "elements cannot be picked out of a tile",
                                hint="subscripts are `:` and `None`; load the part you need")  # fmt: skip
    return scope.emitter.reshape(scope.emitter.value(term, at), (*shape, *remaining), at)


def _slice(scope: Scope, node: ast.Slice) -> slice:
    """A slice of a tuple, of constants; E0203."""
    bounds: list[int | None] = []
    for part in (node.lower, node.upper, node.step):
        bound = expression(scope, part) if part is not None else None
        if (part is not None and type(bound) is not int) or (part is node.step and bound == 0):
            raise scope.at(part or node).error("E0203", f"a slice of a tuple takes constants, found {describe(bound)}",
                    hint="use integers; a step is not 0")  # fmt: skip
        bounds.append(bound if isinstance(bound, int) else None)
    return slice(*bounds)


def _call(scope: Scope, node: ast.Call) -> Term:
    return scope.builders.call(scope, node)


_BUILD: Final[dict[type[ast.expr], Callable[[Scope, Any], Term]]] = {
    ast.Constant: _constant, ast.Name: _name, ast.Tuple: _tuple, ast.List: _tuple, ast.BinOp: _binary, ast.UnaryOp: _unary,
    ast.Compare: _compare, ast.BoolOp: _connective, ast.IfExp: _choice, ast.Attribute: _attribute,
    ast.Subscript: _subscript, ast.Call: _call,
}  # fmt: skip
_UNSUPPORTED: Final[dict[type[ast.expr], str]] = {
    ast.ListComp: "a comprehension", ast.SetComp: "a comprehension", ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a generator", ast.Lambda: "a lambda", ast.Dict: "a dict", ast.Set: "a set",
    ast.JoinedStr: "an f-string", ast.NamedExpr: "an assignment inside an expression", ast.Await: "await",
    ast.Yield: "yield", ast.YieldFrom: "yield", ast.Starred: "a starred expression", ast.Slice: "a slice",
}  # fmt: skip
_HINTS: Final[dict[type[ast.expr], str]] = {
    ast.ListComp: "write a `for` loop over `range(...)`", ast.GeneratorExp: "write a `for` loop over `range(...)`",
    ast.Lambda: "define a `@tilec.function`", ast.NamedExpr: "assign on a line of its own",
    ast.JoinedStr: 'to print values, give them to `print`: `print("x {}", x)`',
}  # fmt: skip
