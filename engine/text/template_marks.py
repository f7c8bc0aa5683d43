"""Marks the control tokens of a rendered conversation that the template itself wrote.

Inserts a mark before every control token in the output of a parsed template: in the text between the tags, and in strings that
expressions write. Strings that are only compared or searched for (an operand of a comparison or a test, an argument of a
method, a key) are unchanged, so the marked template takes the same branches as the original. In the rendered text, a control
token after a mark is the template's; one without a mark came from the messages. The caller draws marks at random, so that no
message contains one, and compares both renderings without marks: if they differ, the marks are not used.

Runs in the process that renders templates; depends only on Jinja.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from jinja2 import nodes

FILTERS_THAT_WRITE: Final = frozenset({"join", "default", "d", "replace", "indent", "format"})
"""Filters that write their arguments."""

METHODS_THAT_WRITE: Final = frozenset({"join", "format"})
"""Methods that write their arguments; others search for them, such as `content.split('</think>')`."""


def mark_template(template: nodes.Template, tokens: Sequence[str], mark: str) -> nodes.Template:
    """The tree, changed in place: `mark` before each of `tokens` in strings that the template writes, the longest first."""
    if tokens:
        longest_first = sorted(tokens, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)))
        _visit(template, pattern, mark)
    return template


def template_strings(template: nodes.Template) -> list[str]:
    """The strings of 1 to 32 characters in a template's expressions."""
    values = {constant.value for constant in template.find_all(nodes.Const) if isinstance(constant.value, str)}
    return sorted(value for value in values if 0 < len(value) <= 32)


def _visit(node: nodes.Node, pattern: re.Pattern[str], mark: str) -> None:
    """Mark the strings that a node writes."""
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
    """The children whose strings can be written, without those that are only compared or searched for."""
    match node:
        case nodes.Compare() | nodes.Slice():
            return []
        case nodes.If() | nodes.CondExpr():  # the test only selects a branch, so its strings stay unmarked
            parts = [node.body, node.elif_, node.else_] if isinstance(node, nodes.If) else [[node.expr1, node.expr2]]
            return [child for part in parts for child in part if child is not None]
        case nodes.Test():
            return []
        case nodes.Call() if isinstance(node.node, nodes.Getattr) and node.node.attr not in METHODS_THAT_WRITE:
            return [node.node]
        case nodes.Getitem() | nodes.Getattr():
            return [node.node]
        case nodes.Filter() if node.name not in FILTERS_THAT_WRITE:
            return [node.node] if node.node is not None else []
        case nodes.Pair():
            return [node.value]
        case _:
            return list(node.iter_child_nodes())
