"""The loads that the process gets that sends them over HTTP."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ci.bench.engine.load_traffic import LENGTHS, SHARED, SHORT, Lengths


@dataclass(frozen=True, slots=True)
class Job:
    """A server's port and rows, and the loads that it gets: see `load_traffic`."""

    port: int
    rows: int
    rates: str
    seconds: float
    burst: int
    pairs: int
    seed: int
    lengths: Lengths = LENGTHS
    shared: int = SHARED
    short: Lengths = SHORT

    def line(self) -> bytes:
        """The job as a line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: str) -> Job:
        """The job of a line."""
        fields: dict[str, Any] = json.loads(line)
        for name in ("lengths", "short"):
            fields[name] = Lengths(**{key: tuple(value) for key, value in fields[name].items()})
        return cls(**fields)
