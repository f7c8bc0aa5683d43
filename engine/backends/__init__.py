"""Backends that run a StepGraph: a GPU (`engine.backends.cuda`), or NumPy on any machine (`engine.backends.interpreter`)."""

from __future__ import annotations

from engine.backends.backend import Backend

__all__ = ["Backend"]
