"""The word `meet`, in which ranks wait for each other, and the rules for where it stands."""

from __future__ import annotations

import operator
from typing import Final

from tilec.frontend.arguments import Call
from tilec.frontend.emitter import Term, describe
from tilec.frontend.scope import Scope
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Access, Function, Precondition, Value
from tilec.ir.expr import binary, const
from tilec.ir.ops.rank_ops import blocks_problem
from tilec.ir.types import TileType, i32

_TOP: Final = "call it once, at the top level of the kernel"


@word("meet")
def meet(call: Call) -> Term:
    """Waits for all ranks; the launch then requires that `rank` is one of theirs. E0217, E0116."""
    signals, rank = call.bind("signals rank")
    function = call.scope.function
    values = _signals_of(call.scope, signals)
    if not values:
        hint = "pass a parameter declared `Signal[RANKS, BLOCKS]`"
        raise call.location(0).error("E0217", f"`meet` takes the signals of all ranks, found {describe(signals)}", hint=hint)
    number = call.emitter.host(rank)
    if not isinstance(rank, Value) or rank.type != TileType(i32) or number is None or not _is_parameter(function, rank):
        hint = "pass a parameter such as `rank: i32`"
        raise call.location(1).error("E0217", f"`meet` takes the number of this rank, found {describe(rank)}", hint=hint)
    if call.emitter.block is not call.emitter.body:
        message = "`meet` in a loop or a branch, where blocks and ranks may pass differently often"
        raise call.at.error("E0116", message, hint=_TOP)
    if any(isinstance(op, ops.Meet) for op in function.body.walk()):
        raise call.at.error("E0116", "the kernel meets twice", hint=_TOP)
    for condition in (binary(">=", number, const(0)), binary("<", number, const(len(values)))):
        function.requires += (Precondition(condition, call.at.span),)
    call.emitter.emit(ops.Meet(operands=[*values, rank]), call.at)
    return None


def _signals_of(scope: Scope, found: Term) -> list[Value]:
    """The tensors of one `Signal` parameter, of all ranks in their order; empty for anything else. In another order, or of two
    parameters, a rank would count where another one does, and counts of earlier launches would not fit."""
    tensors = found if isinstance(found, tuple) else ()
    for parameters in scope.signature.of_ranks.values():
        whole = len(tensors) == len(parameters) and all(map(operator.is_, tensors, (one.value for one in parameters)))
        if whole and parameters[0].access is Access.SIGNAL:
            return [one.value for one in parameters]
    return []


def _is_parameter(function: Function, value: Value) -> bool:
    """Whether a scalar is a parameter as the host passes it: two ranks pass two numbers, computed ones may be equal."""
    return any(parameter.value is value and parameter.access is None for parameter in function.parameters)


def check_meet(scope: Scope) -> None:
    """Checks what the whole kernel must have for its meet: signals for each block, and peers of the same ranks. E0116."""
    function = scope.function
    met = next((op for op in function.body.ops if isinstance(op, ops.Meet)), None)
    if met is None or not function.grid:
        return
    at = scope.at(scope.callers[0].node)
    problem = blocks_problem(function, met)
    if problem:
        hint = "write `grid(BLOCKS)` for signals declared `Signal[RANKS, BLOCKS]`, and loop over what is more"
        raise at.error("E0116", problem, hint=hint)
    for name, tensors in scope.signature.of_ranks.items():
        if len(tensors) != len(met.signals):
            message = f"`{name}` is of {len(tensors)} ranks, and {len(met.signals)} meet"
            raise at.error("E0116", message, hint="give both the same number of ranks")
