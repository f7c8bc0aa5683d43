"""A driver's stub that copies launch arguments."""

from __future__ import annotations

from typing import Any

from tests.runtime.fake_driver import FakeDriver, argument_bytes

SIZES = {
    "add": [8, 8, 8, 4], "rows": [8, 8, 4, 8, 4], "high_rows": [8, 8, 4, 8, 8], "rms_norm": [8, 8, 8, 4, 4],
    "add_rms_norm": [8, 8, 8, 8, 4, 4], "adamw": [8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4],
}  # fmt: skip


class CopyingDriver(FakeDriver):
    """As a driver does, it copies the launch arguments when the launch is enqueued."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[bytes]] = []

    def launch(self, function: Any, *other_arguments: Any) -> None:
        super().launch(function, *other_arguments)
        self.sent.append(argument_bytes(self.launches[-1], SIZES[function[1]]))
