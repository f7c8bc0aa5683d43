"""A step that a GPU can run again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.graph.integers import Replay
from tilec.runtime import Plan
from tilec.step.graph import StepGraph


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A decode step as a CUDA graph. The plans keep the memory alive that the launches point to."""

    graph: StepGraph
    plans: tuple[Plan, ...]
    executable: Any
    replay: Replay
