"""Shrinks a kernel of several ranks that is accepted although enumeration refutes it."""

from __future__ import annotations

from dataclasses import replace

from tests.rank_soundness.drafts import with_imports
from tests.rank_soundness.verdict import RankKernel, examine
from tests.soundness.source_edits import shrink_source


def smallest(kernel: RankKernel, kind: str = "false_accept") -> str:
    """Text of the smallest kernel found with this verdict, which `kernel` itself must have; an edit of its IR stays."""

    def has_property(text: str) -> bool:
        try:
            return examine(replace(kernel, text=with_imports(text))).kind == kind
        except Exception:  # a crash is another property
            return False

    return with_imports(shrink_source(kernel.text, has_property))
