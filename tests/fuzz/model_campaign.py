"""Checks forged model folders for a range of seeds, in a process that is killed if a folder hangs it.

In: seeds. Out: verdicts. A seed whose process died or exceeded its time gets a verdict that says so, and the next seed is
checked in another process.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

from tests.processor_time import STILL, TICK, Use

CHECKER: Final = Path(__file__).resolve().with_name("model_checker.py")

SECONDS: Final = 90.0
"""Processor-time limit of one folder."""

FRESH: Final = 250
"""Folders that a process checks before a new one replaces it, so that a peak of memory is that of a few folders."""


def campaign(
    first: int, count: int, work: Path, *, seconds: float = SECONDS, still: float = STILL
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Verdicts of the seeds from `first`, one each and in order."""
    seed, last = first, first + count
    while seed < last:
        for verdict in _process(seed, min(last, seed + FRESH), work, seconds, still):
            yield verdict
            seed = verdict["seed"] + 1


def _process(first: int, last: int, work: Path, seconds: float, still: float) -> Iterator[dict[str, Any]]:
    """Verdicts of one process; if it dies, the last verdict says so."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
        "RUST_BACKTRACE": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-P", str(CHECKER), str(work), str(first), str(last)]
    with (work / "checker.err").open("wb") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=stderr, env=environment, start_new_session=True
        )
    use = Use(process.pid, seconds, still)
    current = first
    try:
        for line in _lines(cast("IO[bytes]", process.stdout), use):
            if line is None:
                break
            record = json.loads(line)
            if "begins" in record:
                current = record["begins"]
                use.begin()
                continue
            yield record
            current = record["seed"] + 1
        else:
            if process.wait() == 0:
                return
        ended = process.poll()
        why = use.look() if ended is None else f"the process ended with {ended}"
        yield {"seed": current, "forged": "", "status": -1, "said": (work / "checker.err").read_text(errors="replace")[-300:],
               "seconds": round(use.used, 2), "cpu": round(use.used, 2), "peak_mib": 0, "wrong": [why]}  # fmt: skip
    finally:
        process.kill()
        process.wait()
        cast("IO[bytes]", process.stdout).close()


def _lines(stream: IO[bytes], use: Use) -> Iterator[bytes | None]:
    """The lines of a stream as they arrive; None when its writer is to be killed."""
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(TICK):
                if use.look():
                    break
                continue
            part = os.read(stream.fileno(), 1 << 16)
            if not part:
                return
            *whole, kept = (kept + part).split(b"\n")
            yield from whole
    yield None


def summary(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """The table rows that summarize verdicts."""
    slowest = max(verdicts, key=lambda verdict: verdict["seconds"])
    largest = max(verdicts, key=lambda verdict: verdict["peak_mib"])
    return {
        "folders": len(verdicts),
        "answered": sum(verdict["status"] == 0 for verdict in verdicts),
        "statuses": dict(sorted(Counter(str(verdict["status"]) for verdict in verdicts).items())),
        "changes": dict(sorted(Counter(kind(part) for v in verdicts for part in v["forged"].split("; ")).items())),
        "slowest_seconds": slowest["seconds"], "slowest": slowest["forged"],
        "most_cpu_seconds": max(verdict["cpu"] for verdict in verdicts),
        "peak_mib": largest["peak_mib"],
        "wrong": [verdict for verdict in verdicts if verdict["wrong"]],
    }  # fmt: skip


def kind(forged: str) -> str:
    """The kind of a change, without its numbers and files."""
    for name in (
        "after that",
        "values",
        "keys",
        "depth",
        "bytes",
        "another kind",
        "length",
        "header",
        "index",
        "template",
        "tensors",
    ):
        if name in forged:
            return name
    return "absent file" if forged.startswith("no ") else forged
