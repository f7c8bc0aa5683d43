"""Checks and times every built kernel on the GPU of this machine.

    python3 ci/bench/kernels_gpu.py artifacts/build/sm_90a [MORE_FOLDERS] [--only add,matvec] [--out FOLDER]

Several folders, or several artifacts of one kernel, are variants of each other: all are checked and timed, the fastest one
counts. First correctness: fresh random inputs, poisoned outputs with guard bytes around them, odd sizes, error against float64
at most 1.5 times torch's in the same dtype. Then times, in CUDA graphs, with the library in the same run. After a failure a new
child process continues: a kernel that faults or hangs loses only its own results. A CUBIN with a valid verdict is timed, but
not checked again (`verdicts/kernels_gpu.txt`). Writes `kernels_gpu.json`, `kernels_gpu.md` and the verdicts; prints the tables;
exit code 1 if a kernel is wrong or misses its floor. Needs torch and cuda-bindings. `--dry-run` runs everything on a CPU with a
driver that launches nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]
SILENCE_SECONDS: Final = 60.0
"""A child without output for this long counts as hanging."""


def main() -> int:
    """Run the children, write the report."""
    options = _options()
    if options.worker:
        from gpu_worker import work

        work(options.folders, options.only, options.dry_run, options.skip_checks, options.skip_times)
        return 0
    began = time.monotonic()
    records: list[dict[str, Any]] = []
    pending: list[str] | None = options.only
    while pending is None or pending:
        if time.monotonic() - began > options.budget:
            records.append({"kind": "problem", "kernel": ",".join(pending or []), "text": "not run: out of time"})
            break
        todo, current, reason = _child(options, pending, records, began + options.budget)
        if reason:
            records.append({"kind": "problem", "kernel": current or "between kernels", "text": reason})
        if todo is None or not current:  # it finished, or a new child would fail at the same point
            break
        pending = [kernel for kernel in todo if kernel != current]
    from gpu_report import keep_verdicts, write_report

    keep_verdicts(records, Path(options.out), every=options.only is None)
    return write_report(records, Path(options.out), time.monotonic() - began)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="check and time the built kernels on this machine's GPU")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, metavar="KERNELS")
    parser.add_argument("--out", default=os.environ.get("OUT", str(ROOT / "ci" / "bench" / "results")))
    parser.add_argument("--budget", type=float, default=280.0, help="seconds in all")
    parser.add_argument("--skip-checks", action="store_true")
    parser.add_argument("--skip-times", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _child(
    options: argparse.Namespace, pending: list[str] | None, records: list[dict[str, Any]], deadline: float
) -> tuple[list[str] | None, str, str]:
    """Run one child over `pending`; returns the kernels left, the current one, and why it stopped early."""
    command = [sys.executable, __file__, "--worker", *map(str, options.folders)]
    if pending is not None:
        command += ["--only", ",".join(pending)]
    command += [f"--{name.replace('_', '-')}" for name in ("dry_run", "skip_checks", "skip_times") if getattr(options, name)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    left, current = (None if pending is None else list(pending)), ""
    while True:
        try:
            line = lines.get(timeout=max(1.0, min(SILENCE_SECONDS, deadline - time.monotonic())))
        except queue.Empty:
            child.kill()
            child.wait()
            return left, current, "hung or out of time"
        if line is None:
            status = child.wait()
            return ([], "", "") if status == 0 else (left, current, f"the process died with status {status}")
        if not line.startswith("@"):
            print(line, end="", flush=True)
            continue
        record = json.loads(line[1:])
        if record["kind"] == "todo":
            left = record["kernels"]
        elif record["kind"] == "begin":
            current = record["kernel"]
            print(f"[{record['kernel']}] {record['artifacts']} artifacts", flush=True)
        elif record["kind"] == "end":
            left, current = [kernel for kernel in left or [] if kernel != current], ""
        else:
            records.append(record)


if __name__ == "__main__":
    sys.exit(main())
