"""Analyses and rewrites of the tile IR: `prove` shows a kernel safe, `prepare` decides how threads run it."""

from __future__ import annotations

from tilec.passes.prepare import prepare
from tilec.passes.prove import Proofs, prove

__all__ = ["Proofs", "prepare", "prove"]
