"""Child processes of a case: a kernel that faults or hangs loses only its own results.

A case with children has the hidden option `--child`: names in JSON. Such a child works through these kernels or candidates (all
of them if there are none) one after the other, and prints its records as lines `@JSON`: `todo` with all names, `begin` and
`end` around each one's own. After a failure the next child continues with the name after.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = Path(__file__).resolve().parents[1] / "kernels.py"
SILENCE_SECONDS: Final = 60.0
"""A child without output for this long counts as hanging."""
Record = dict[str, Any]


def add_child(parser: argparse.ArgumentParser) -> None:
    """The hidden option of a case with children."""
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)


def command(case: str, arguments: Sequence[object], names: Sequence[str]) -> list[str]:
    """The command of a child."""
    return [sys.executable, str(PROGRAM), case, *map(str, arguments), "--child", json.dumps(names)]


def emit(kind: str, **fields: Any) -> None:
    """Send a record to the parent."""
    print("@" + json.dumps({"kind": kind, **fields}), flush=True)


def records_in(text: str) -> list[Record]:
    """The records among a child's output."""
    return [json.loads(line[1:]) for line in text.splitlines() if line.startswith("@")]


def end_if_lost(error: Exception) -> None:
    """End this child after an error that lost its context: a new one continues."""
    if "CUDA error" in str(error) or "CUDA_ERROR" in str(error):
        raise SystemExit(70) from None


def run(case: str, arguments: Sequence[object], names: Sequence[str], seconds: float = math.inf) -> list[Record]:
    """The records of all children, with a `problem` for each failure, and for what `seconds` did not suffice for."""
    records: list[Record] = []
    deadline, todo = time.monotonic() + seconds, list(names)
    while time.monotonic() <= deadline:
        child = _Child(command(case, arguments, todo), todo)
        reason = child.follow(records, deadline)
        if reason:
            records.append(_problem(child.current or "between kernels", reason))
        todo = [name for name in child.left if name != child.current]
        if not child.current or not todo:  # it finished, or a new child would fail at the same point
            return records
    return [*records, _problem(",".join(todo), "not run: out of time")]


def _problem(name: str, text: str) -> Record:
    return {"kind": "problem", "kernel": name, "text": text}


class _Child:
    """A running child, with the names it has left and the current one."""

    def __init__(self, command: list[str], names: list[str]) -> None:
        self.left, self.current = names, ""
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(None)

    def follow(self, records: list[Record], deadline: float) -> str:
        """Append its records until it ends; returns why it ended early, empty if it finished."""
        try:
            for line in self._until(deadline):
                self._take(line, records)
        except queue.Empty:
            self._process.kill()
            self._process.wait()
            return "hung or out of time"
        status = self._process.wait()
        return f"the process died with status {status}" if status else ""

    def _until(self, deadline: float) -> Iterator[str]:
        while True:
            line = self._lines.get(timeout=max(1.0, min(SILENCE_SECONDS, deadline - time.monotonic())))
            if line is None:
                return
            yield line

    def _take(self, line: str, records: list[Record]) -> None:
        record = json.loads(line[1:]) if line.startswith("@") else {"kind": ""}
        match record["kind"]:
            case "":
                print(line, end="", flush=True)
            case "todo":
                self.left = record["kernels"]
            case "begin":
                self.current = record["kernel"]
                print(f"[{self.current}]", flush=True)
            case "end":
                self.left, self.current = [name for name in self.left if name != self.current], ""
            case _:
                records.append(record)
