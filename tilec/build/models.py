"""`[[model]]` and `[[step]]` of the build file: the numbers of each model, and what the operations of its step ask for.

A step operation names a kernel and the constants that the model decides, each a value, a dtype or an expression over the
model's numbers, or a list of those. Constants it does not name are tuning, which the kernel's own entry decides.

    [[model]]
    name = "qwen3-4b"
    config = { hidden_size = 2560, head_dim = 128 }

    [[step]]
    op = "input_layernorm"
    kernel = "rms_norm"
    constants = { E = "bf16", H = "hidden_size" }
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tilec.bundle_format import MODEL, STEP
from tilec.diagnostics import Span
from tilec.ir.expr import Expr, binary, const, sym
from tilec.ir.types import DTYPES

Constant = int | float | bool | str
Refuse = Callable[..., None]
Locate = Callable[..., Span]

_MODEL_KEYS: Final = ("name", "config", "family")
_STEP_KEYS: Final = ("op", "kernel", "constants", "family")
_OPERATORS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
_WORD: Final = re.compile(r"[a-z0-9_\-]{0,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Model:
    """A model by name; `config` are its numbers under the names of its publisher; its step is that of its `family`."""

    name: str
    family: str
    config: dict[str, Constant]
    span: Span


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a family's step: the kernel it asks for, and every value of each constant that the model decides."""

    op: str
    family: str
    kernel: str
    constants: dict[str, tuple[Constant | Expr, ...]]
    span: Span
    constant_spans: dict[str, Span]

    def requests(self, config: Mapping[str, Constant]) -> Iterator[dict[str, Constant]]:
        """The constants asked for, one mapping per combination; ValueError for a number that `config` does not have."""
        numbers = {name: value for name, value in config.items() if type(value) is int}
        values = [[_evaluated(item, numbers) for item in items] for items in self.constants.values()]
        for chosen in itertools.product(*values):
            yield dict(zip(self.constants, chosen, strict=True))


def _evaluated(item: Constant | Expr, numbers: Mapping[str, int]) -> Constant:
    if not isinstance(item, Expr):
        return item
    try:
        return item.evaluate(numbers)
    except KeyError as error:
        raise ValueError(f"has no number `{error.args[0]}`") from None
    except ZeroDivisionError:
        raise ValueError(f"divides by zero in `{item}`") from None


def expression(text: str) -> Expr:
    """An integer expression of names, numbers, `+ - * // %` and parentheses; ValueError where it is something else."""
    try:
        tree = ast.parse(text, mode="eval").body if len(text) <= 200 else None
    except (SyntaxError, ValueError):
        tree = None
    return _expression(tree)


def _expression(node: ast.expr | None) -> Expr:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return const(node.value)
    if isinstance(node, ast.Name):
        return sym(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return binary(_OPERATORS[type(node.op)], _expression(node.left), _expression(node.right))
    raise ValueError("neither a dtype nor an expression over the model's numbers")


def read_models(value: Any, refuse: Refuse, span: Locate) -> tuple[Model, ...]:
    """The `[[model]]` tables."""
    found: list[Model] = []
    for index, table in _tables(value, "model", _MODEL_KEYS, refuse, span):
        name, config = table.get("name"), table.get("config")
        if not (isinstance(name, str) and MODEL.fullmatch(name)):
            hint = "use small letters, digits, `-`, `_` and `.`: `qwen3-4b`"
            refuse("E0802", "`name` is not a name for a model", span("model", index, "name"), hint)
            continue
        if not isinstance(config, dict) or not config:
            hint = "write `config = { hidden_size = 2560 }`"
            refuse("E0802", f"`config` of `{name}` is not a table of numbers", span("model", index, "config"), hint)
            continue
        numbers: dict[str, Any] = config  # pyright: ignore[reportUnknownVariableType]
        for key, number in numbers.items():
            if not (key.isidentifier() and isinstance(number, (int, float, bool, str))):
                refuse("E0802", f"`{key}` is not a number, bool or string", span("model", index, "config", key))
        if any(model.name == name for model in found):
            refuse("E0806", f"model `{name}` is named twice", span("model", index, "name"), "remove one of them")
        found.append(Model(name, _family(table, "model", index, refuse, span), numbers, span("model", index, "name")))
    return tuple(found)


def read_steps(value: Any, refuse: Refuse, span: Locate) -> tuple[Step, ...]:
    """The `[[step]]` tables."""
    found: list[Step] = []
    for index, table in _tables(value, "step", _STEP_KEYS, refuse, span):
        op, kernel = table.get("op"), table.get("kernel")
        if not (isinstance(op, str) and STEP.fullmatch(op)):
            hint = "use small letters, digits and `_`: `input_layernorm`"
            refuse("E0802", "`op` is not a name for an operation", span("step", index, "op"), hint)
            continue
        if not (isinstance(kernel, str) and kernel.isidentifier()):
            refuse(
                "E0802", "`kernel` is not the name of a kernel", span("step", index, "kernel"), 'write `kernel = "rms_norm"`'
            )
            continue
        constants = _constants(table.get("constants", {}), index, refuse, span)
        spans = {key: span("step", index, "constants", key) for key in constants}
        family = _family(table, "step", index, refuse, span)
        if any((step.op, step.family) == (op, family) for step in found):
            refuse("E0806", f"operation `{op}` is named twice", span("step", index, "op"), "remove one of them")
        found.append(Step(op, family, kernel, constants, span("step", index, "kernel"), spans))
    return tuple(found)


def _tables(
    value: Any, name: str, keys: tuple[str, ...], refuse: Refuse, span: Locate
) -> Iterator[tuple[int, dict[str, Any]]]:  # fmt: skip
    items: list[Any] = value if isinstance(value, list) else [None]  # pyright: ignore[reportUnknownVariableType]
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            refuse("E0802", f"`{name}` is not a list of tables", span(name), f"write `[[{name}]]`")
            return
        table: dict[str, Any] = item  # pyright: ignore[reportUnknownVariableType]
        for key in table:
            if key not in keys:
                hint = f"the keys here are {', '.join(f'`{one}`' for one in keys)}"
                refuse("E0802", f"unknown key `{key}`", span(name, index, key), hint)
        yield index, table


def _family(table: Mapping[str, Any], name: str, index: int, refuse: Refuse, span: Locate) -> str:
    family = table.get("family", "")
    if isinstance(family, str) and _WORD.fullmatch(family):
        return family
    refuse("E0802", "`family` is not a name", span(name, index, "family"), "use small letters, digits, `-` and `_`")
    return ""


def _constants(value: Any, index: int, refuse: Refuse, span: Locate) -> dict[str, tuple[Constant | Expr, ...]]:
    if not isinstance(value, dict):
        hint = 'write `constants = { H = "hidden_size" }`'
        refuse("E0802", "`constants` is not a table", span("step", index, "constants"), hint)
        return {}
    found: dict[str, tuple[Constant | Expr, ...]] = {}
    items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    for key, given in items.items():
        values: list[Any] = given if isinstance(given, list) else [given]  # pyright: ignore[reportUnknownVariableType]
        try:
            found[key] = tuple(_constant(item) for item in values)
        except ValueError as error:
            hint = f'write `{key} = "hidden_size"`, `{key} = "bf16"` or `{key} = 1`'
            refuse("E0802", f"`{key}` is {error}", span("step", index, "constants", key), hint)
    return found


def _constant(item: Any) -> Constant | Expr:
    if isinstance(item, (int, float, bool)):
        return item
    if not isinstance(item, str):
        raise ValueError("not a number, bool, dtype or expression")
    return item if item in DTYPES else expression(item)
