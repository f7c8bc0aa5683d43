"""Marks stores as streaming: evict-first priority in the cache (PTX ISA, `st.global.cs`)."""

from __future__ import annotations

from tilec.ir.core import Function
from tilec.ir.ops import Store


def mark(function: Function) -> Function:
    """Mark all stores, in place."""
    for op in function.body.walk():
        if isinstance(op, Store):
            op.streamed = True
    return function
