"""What instructions keep between their steps: a class with hooks for waves, exits and standstills."""

from __future__ import annotations

from tilec.emulator.machine.frame import Frame


class Subsystem:
    """A part of a launch's state; `Machine` has one attribute for each. By default the hooks do nothing."""

    def clear(self) -> None:
        """A new wave starts; `Wave` describes it already."""

    def leave(self, frame: Frame) -> None:
        """The lanes of the frame exit."""

    def advance(self) -> bool:
        """No lane can run. Completes what may complete late; returns whether that woke a lane."""
        return False
