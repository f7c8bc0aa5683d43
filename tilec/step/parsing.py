"""Python's parser for the texts of steps: takes a text, returns its syntax tree, for one thread at a time.

CPython counts the depth of the tree that it builds in one number for all threads. A thread that runs in between (a
collection of garbage may run Python code there) makes the other fail with `SystemError: AST constructor recursion depth
mismatch` (seen with 3.11.7, python/cpython#106905).
"""

from __future__ import annotations

import ast
import threading
from typing import Final

_LOCK: Final = threading.Lock()


def module(text: str) -> ast.Module:
    """The tree of a module; what `ast.parse` raises if it is none."""
    with _LOCK:
        return ast.parse(text)


def term(text: str) -> ast.expr:
    """The tree of one expression; what `ast.parse` raises if it is none."""
    with _LOCK:
        return ast.parse(text, mode="eval").body
