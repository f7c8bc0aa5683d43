"""Launch directives: `grid`, `requires`, `resident`, `values`, `ensures`, recorded on the function."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from tilec.frontend.emitter import At, Term, describe
from tilec.frontend.expressions import expression
from tilec.frontend.host import host_expr, predicate
from tilec.frontend.scope import Scope
from tilec.ir.core import Access, Precondition, Promise, Resident, Value, ValueFact
from tilec.ir.types import TensorType

MAX_GRID: Final = 3
VALUE_WORDS: Final = ("distinct", "distinct_in_rows", "sorted", "ends")
PROMISED_WORDS: Final = ("distinct", "distinct_in_rows", "sorted")


def directive(scope: Scope, node: ast.Call, word: str) -> None:
    """Records the directive `word`; E0109, E0110, E0113, E0207, E0215, E0216, E0217."""
    at = scope.at(node)
    if not scope.is_kernel or scope.depth:
        where = "inside a block" if scope.is_kernel else "in a tile function"
        hint = "launch facts stand at the top level of the kernel, or in an `if` there whose condition is a constant"
        raise at.error("E0109", f"`{word}` {where}", hint=hint)
    if word not in ("values", "ensures") and node.keywords:
        raise at.error("E0113", f"`{word}` takes no keywords", hint="pass its arguments by position")
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            raise at.error("E0113", f"`{word}` takes its arguments one by one", hint="write them out")
    directives = {"grid": _grid, "requires": _requires, "resident": _resident, "values": _values, "ensures": _ensures}
    directives[word](scope, node)


def _grid(scope: Scope, node: ast.Call) -> None:
    at = scope.at(node)
    if scope.function.grid:
        raise at.error("E0110", "the kernel has two grids", hint="call `grid(...)` once")
    if not 1 <= len(node.args) <= MAX_GRID:
        raise at.error("E0113", "`grid` takes 1 to 3 extents", hint="write `grid(T)` or `grid(x, y, z)`")
    extents = tuple(host_expr(scope, argument) for argument in node.args)
    for extent, argument in zip(extents, node.args, strict=True):
        if extent.constant is not None and extent.constant < 1:
            raise scope.at(argument).error(
                "E0205", f"the grid extent is {extent.constant}", hint="a grid has at least one block"
            )
    scope.function.grid = extents


def _requires(scope: Scope, node: ast.Call) -> None:
    if not node.args:
        raise scope.at(node).error("E0113", "`requires` takes at least one condition", hint="write `requires(N % 8 == 0)`")
    for argument in node.args:
        condition = predicate(scope, argument)
        if condition.constant == 0:
            raise scope.at(argument).error("E0216", "this requirement is false for the given constants",
                                    hint="change the constants in build.toml")  # fmt: skip
        if condition.constant is None:
            scope.function.requires += (Precondition(condition, scope.at(argument).span),)


def _resident(scope: Scope, node: ast.Call) -> None:
    if not node.args:
        raise scope.at(node).error("E0113", "`resident` takes at least one tensor", hint="write `resident(w)`")
    known = {one.tensor for one in scope.function.residents}
    for argument in node.args:
        at = scope.at(argument)
        tensor = expression(scope, argument)
        if not isinstance(tensor, Value) or not isinstance(tensor.type, TensorType):
            raise at.error(
                "E0217",
                f"`resident` describes a tensor, found {describe(tensor)}",
                hint="name a parameter such as `w: In[bf16, N]`",
            )
        if scope.function.parameter_of(tensor).access not in (Access.IN, Access.INOUT):
            message = f"`{tensor.name}` is declared neither `In` nor `InOut` and cannot be resident"
            raise at.error("E0207", message, hint="declare it `In`, or `InOut` where the kernel writes what it has read")
        if tensor.name not in known:
            scope.function.residents += (Resident(tensor.name, at.span),)
            known.add(tensor.name)


def _values(scope: Scope, node: ast.Call) -> None:
    at = scope.at(node)
    properties: dict[str, bool] = {}
    for keyword in node.keywords:
        given = expression(scope, keyword.value)
        if keyword.arg not in VALUE_WORDS or not isinstance(given, bool):
            message = "`values` takes `distinct=`, `distinct_in_rows=`, `sorted=` and `ends=`, each `True` or `False`"
            raise at.error("E0113", message, hint="write `values(ids, 0, V, distinct=True)`")
        properties[keyword.arg] = given
    if len(node.args) != 3:
        raise at.error("E0113", "`values` takes a tensor, a low and a high bound", hint="write `values(ids, 0, V)`")
    tensor = expression(scope, node.args[0])
    if not isinstance(tensor, Value) or not isinstance(tensor.type, TensorType) or not _has_integers(tensor):
        _refuse_packed("values", tensor, at)
        raise at.error(
            "E0217",
            f"`values` describes an integer tensor, found {describe(tensor)}",
            hint="name a parameter such as `ids: In[i32, N]`",
        )
    if scope.function.parameter_of(tensor).access in (Access.PEER, Access.SIGNAL):
        message = f"a launch cannot check `{tensor.name}`: another rank may still write it"
        raise at.error("E0217", message, hint="mask the loaded value, as in `load(x[0], i) & 7`, or clamp it")
    low, high = host_expr(scope, node.args[1]), host_expr(scope, node.args[2])
    if properties.get("ends") and not properties.get("sorted"):
        raise at.error("E0113", "`ends=True` says nothing without `sorted=True`", hint="pass `sorted=True` too")
    _check_relations(at, tensor, properties)
    scope.function.values += (ValueFact(tensor.name, low, high, loc=at.span, **properties),)


def _ensures(scope: Scope, node: ast.Call) -> None:
    at = scope.at(node)
    properties: dict[str, bool] = {}
    above: tuple[Value, ...] = ()
    for keyword in node.keywords:
        if keyword.arg == "above":
            named = keyword.value.elts if isinstance(keyword.value, ast.Tuple) else [keyword.value]
            above = tuple(_integers(scope, one) for one in named)
            continue
        given = expression(scope, keyword.value)
        if keyword.arg not in PROMISED_WORDS or not isinstance(given, bool):
            words = "`distinct=`, `distinct_in_rows=` and `sorted=`, each `True` or `False`"
            message = f"`ensures` takes `above=`, of tensors, and {words}"
            raise at.error("E0113", message, hint="write `ensures(out, 0, V, distinct=True)`")
        properties[keyword.arg] = given
    if len(node.args) != 3:
        raise at.error("E0113", "`ensures` takes a tensor, a low and a high bound", hint="write `ensures(out, 0, V)`")
    tensor = _integers(scope, node.args[0])
    if scope.function.parameter_of(tensor).access not in (Access.OUT, Access.INOUT):
        message = f"`{tensor.name}` is declared neither `Out` nor `InOut`, so the kernel does not write it"
        raise at.error(
            "E0207", message, hint="name a tensor that the kernel writes; for its contents before the launch use `values(...)`"
        )
    low, high = host_expr(scope, node.args[1]), host_expr(scope, node.args[2])
    for one in above:
        if scope.function.parameter_of(one).access not in (Access.IN, Access.INOUT):
            message = f"`{one.name}` is declared neither `In` nor `InOut`, so it holds nothing before the launch"
            raise at.error("E0207", message, hint="name tensors that the kernel reads")
        if one.tensor.dims != tensor.tensor.dims:
            message = f"`{one.name}` and `{tensor.name}` have different extents, so their elements do not correspond"
            raise at.error("E0217", message, hint="declare both with the same dims")
    _check_relations(at, tensor, properties)
    names = tuple(one.name for one in above)
    scope.function.promises += (Promise(tensor.name, low, high, names, loc=at.span, **properties),)


def _check_relations(at: At, tensor: Value, properties: Mapping[str, bool]) -> None:
    """Relations between elements say something about the axes that the tensor has."""
    rank = tensor.tensor.rank
    if properties.get("sorted") and rank != 1:
        message = f"`sorted=True` describes a tensor of one axis, and `{tensor.name}` has {rank}"
        raise at.error("E0217", message, hint="declare it with one axis, or drop `sorted=True`")
    if properties.get("distinct_in_rows") and properties.get("distinct"):
        message = "`distinct=True` is about all elements, so `distinct_in_rows=True` adds nothing to it"
        raise at.error("E0113", message, hint="drop one of them")
    if properties.get("distinct_in_rows") and rank < 2:
        message = f"`distinct_in_rows=True` describes a tensor of two axes or more, and `{tensor.name}` has {rank}"
        raise at.error("E0217", message, hint="write `distinct=True`: all elements of one axis are one row")


def _integers(scope: Scope, node: ast.expr) -> Value:
    """The integer tensor that an argument names."""
    tensor = expression(scope, node)
    if not isinstance(tensor, Value) or not isinstance(tensor.type, TensorType) or not _has_integers(tensor):
        _refuse_packed("ensures", tensor, scope.at(node))
        raise scope.at(node).error(
            "E0217",
            f"`ensures` describes an integer tensor, found {describe(tensor)}",
            hint="name a parameter such as `ids: Out[i32, N]`",
        )
    return tensor


def _refuse_packed(word: str, term: Term, at: At) -> None:
    """E0217 for a packed tensor, which `values` and `ensures` do not describe."""
    packed = term.type.packed if isinstance(term, Value) and isinstance(term.type, TensorType) else None
    if packed is not None:
        message = f"`{word}` describes no tensor of {packed}: two elements share a byte"
        raise at.error("E0217", message, hint="clamp what is loaded, as in `minimum(load(x, i).astype(i32), 9)`")


def _has_integers(tensor: Value) -> bool:
    """Whether each element of a tensor is an integer of its own: two packed ones share a byte."""
    return tensor.tensor.dtype.is_integer and tensor.tensor.packed is None
