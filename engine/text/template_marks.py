"""Which control tokens of a rendered conversation the template itself wrote.

The tree of a parsed template goes in, the same tree with a mark before every control token in its texts comes out: in the text
between the tags, and in the strings that expressions write. Where a string only looks for something (an operand of a comparison
or a test, an argument of a method, a key) it is left alone, so that a marked template decides as the plain one does. Rendered,
a control token behind a mark is the template's; one without came with the messages. Marks are drawn at random by who asks, so
that no message can hold one, and what both renderings give without marks is compared: where it differs the marks say nothing.

Runs in the process that renders templates; needs Jinja alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from jinja2 import nodes

PASSES_ARGUMENTS_ON: Final = frozenset({"join", "default", "d", "replace", "indent", "format"})
"""Filters that write their arguments."""

METHODS_THAT_WRITE: Final = frozenset({"join", "format"})
"""Methods that do; others look for them, as `content.split('</think>')` does."""


def mark_template(template: nodes.Template, tokens: Sequence[str], mark: str) -> nodes.Template:
    """The tree, changed in place: `mark` stands before each of `tokens` that a string of it writes, the longest first."""
    if tokens:
        longest_first = sorted(tokens, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)))
        _visit(template, pattern, mark)
    return template


def words(template: nodes.Template) -> list[str]:
    """The strings of a template's expressions, of 1 to 32 characters."""
    values = {constant.value for constant in template.find_all(nodes.Const) if isinstance(constant.value, str)}
    return sorted(value for value in values if 0 < len(value) <= 32)


def _visit(node: nodes.Node, pattern: re.Pattern[str], mark: str) -> None:
    """Mark the strings of what a node writes."""
    if isinstance(node, nodes.TemplateData):
        node.data = _marked(node.data, pattern, mark)
    elif isinstance(node, nodes.Const):
        if isinstance(node.value, str):
            node.value = _marked(node.value, pattern, mark)
    else:
        for child in _writing_children(node):
            _visit(child, pattern, mark)


def _marked(text: str, pattern: re.Pattern[str], mark: str) -> str:
    return pattern.sub(lambda found: mark + found[0], text)


def _writing_children(node: Any) -> list[nodes.Node]:
    """The children whose strings can be written: not those that only look for something."""
    match node:
        case nodes.Compare() | nodes.Slice():
            return []
        case nodes.If() | nodes.CondExpr():  # its test is an expression like any other, and decides
            parts = [node.body, node.elif_, node.else_] if isinstance(node, nodes.If) else [[node.expr1, node.expr2]]
            return [child for part in parts for child in part if child is not None]
        case nodes.Test():
            return []
        case nodes.Call() if isinstance(node.node, nodes.Getattr) and node.node.attr not in METHODS_THAT_WRITE:
            return [node.node]
        case nodes.Getitem() | nodes.Getattr():
            return [node.node]
        case nodes.Filter() if node.name not in PASSES_ARGUMENTS_ON:
            return [node.node] if node.node is not None else []
        case nodes.Pair():
            return [node.value]
        case _:
            return list(node.iter_child_nodes())
