"""Builds `print`: its text, the values of one shape, and, once the grid is known, the block that each line names."""

from __future__ import annotations

from tilec.diagnostics.spelling import ask_first
from tilec.frontend import arithmetic
from tilec.frontend.arguments import Call
from tilec.frontend.emitter import Term, describe, usable
from tilec.frontend.vocabulary import word
from tilec.ir import ops
from tilec.ir.core import Function, Value
from tilec.ir.printed_text import MOST_BYTES, MOST_ELEMENTS, MOST_VALUES, is_one_line, pieces
from tilec.ir.types import TileType, boolean, i32


@word("print", "builtins.print")
def print_lines(call: Call) -> Term:
    """One line for each element of the values; E0218 for a text that does not fit them."""
    text = _text(call)
    terms = [usable(term) for term in call.arguments[1:]]
    _check_count(call, text, len(terms))
    for name in call.keywords:
        if name != "where":
            hint = ask_first(name, ["where"], "by name: where")
            raise call.at.error("E0113", f"`{name}` is not a parameter of `print`", hint=hint)
    values = [call.emitter.value(term, call.location(position)) for position, term in enumerate(terms, 1)]
    masked = "where" in call.keywords and call.keywords["where"] is not True
    if masked:
        values.append(_condition(call, usable(call.keywords["where"])))
    shape: tuple[int, ...] = ()
    for position, value in enumerate(values, 1):
        shape = arithmetic.common_shape(shape, value.tile.shape, call.location(position))
    if not masked and TileType(i32, shape).size > MOST_ELEMENTS:
        lines, hint = TileType(i32, shape).size, "choose elements with `where=`, or print a reduction of the tile"
        raise call.at.error("E0218", f"`print` would write {lines} lines for {shape}, more than {MOST_ELEMENTS}", hint=hint)
    tiles = [call.emitter.broadcast(value, shape, call.at) for value in values]
    call.emitter.emit(ops.Print(text=text, masked=masked, operands=tiles), call.at)
    return None


def _text(call: Call) -> str:
    """The first argument, a literal text of one line; E0218."""
    hint = 'write `print("x {}", x)`'
    if not call.arguments:
        raise call.at.error("E0218", "`print` needs a text", hint=hint)
    text = call.arguments[0]
    if not isinstance(text, str):
        raise call.location(0).error("E0218", f"`print` takes its text as a string first, found {describe(text)}", hint=hint)
    if not is_one_line(text):
        raise call.location(0).error(
            "E0218", f"the text of `print` is one line of printable characters, at most {MOST_BYTES} bytes",
            hint="each `print` writes lines of its own: leave `\\n` out",
        )  # fmt: skip
    return text


def _check_count(call: Call, text: str, given: int) -> None:
    try:
        fields = len(pieces(text)) - 1
    except ValueError as error:
        hint = "a field is `{}`; write `{{` and `}}` for braces"
        raise call.location(0).error("E0218", f"`{error}` in the text of `print` is no field", hint=hint) from None
    if fields != given:
        raise call.at.error(
            "E0218", f"the text of `print` has {_counted(fields, 'field')}, {_counted(given, 'value')} given",
            hint="write `{}` in the text for each value",
        )  # fmt: skip
    if given > MOST_VALUES:
        hint = "print the others in another `print`"
        raise call.at.error("E0218", f"`print` takes at most {MOST_VALUES} values, {given} given", hint=hint)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _condition(call: Call, term: Term) -> Value:
    """The value of `where`; E0210."""
    value = call.emitter.value(term, call.at)
    if value.tile.dtype != boolean:
        hint = "compare it: `x != 0`"
        raise call.at.error("E0210", f"`where` of `print` is bool, found {describe(term)}", hint=hint)
    return value


def name_blocks(function: Function) -> None:
    """Gives every `print` the block's index on each axis of the grid, computed once at the start of the kernel."""
    found = ops.prints(function)
    if not found:
        return
    indices: list[Value] = []
    for axis in range(len(function.grid)):
        op = ops.BlockId(axis=axis, loc=found[0].loc)
        op.define(TileType(i32))
        function.body.ops.insert(axis, op)
        indices.append(op.result)
    for one in found:
        one.operands, one.axes = [*indices, *one.operands], len(indices)
