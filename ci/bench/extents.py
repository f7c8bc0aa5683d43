"""Registers, spills and seconds to compile at extents that are mostly no powers of two: `add` by BLOCK, `rms_norm` by H.

`python ci/bench/extents.py --label after` compiles each for sm_90a in a process of its own, with the warps that tilec chooses,
and keeps the figures under that label in `ci/bench/results/extents.json`, beside those of other labels (an earlier commit),
and a table of all labels in `extents.md`. Needs no GPU. Seconds are of processor time (ours and the
assembler's), from tile IR to CUBIN, without starting Python.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

EXTENTS = (96, 100, 384, 640, 1000, 1023, 1536, 2880, 5120, 17408)
CONSTANTS = {"add": "BLOCK", "rms_norm": "H"}
LIMIT = 1200
"""Processor seconds of one."""
ARCH = "sm_90a"


def compiled(kernel: str, extent: int) -> dict[str, Any]:
    """The figures of one kernel, in this process; `refused` with the error's text where it is not compiled."""
    from tilec.assemble import assemble
    from tilec.codegen import ptx
    from tilec.diagnostics import CompileError
    from tilec.frontend import load_kernel
    from tilec.lowering import lower
    from tilec.passes.schedule import prepare
    from tilec.target import Target

    target = Target.parse(ARCH)
    ptx.to_ptx(lower(prepare(_load(load_kernel, "add", 256), target), target).mlir, target)  # libraries come into memory
    function = _load(load_kernel, kernel, extent)
    start = _seconds()
    try:
        made = lower(prepare(function, target), target)
        found = assemble(ptx.to_ptx(made.mlir, target), target).resources
    except CompileError as error:
        return {"refused": str(error), "seconds": round(_seconds() - start, 2)}
    return {
        "warps": made.num_threads // 32,
        "registers": found.registers,
        "spill_bytes": found.spill_bytes,
        "seconds": round(_seconds() - start, 2),
    }


def _seconds() -> float:
    """Processor time of this process and of those it waited for."""
    return sum(os.times()[:4])


def _load(load_kernel: Any, kernel: str, extent: int) -> Any:
    return load_kernel(ROOT / "kernels_src" / f"{kernel}.py", {"E": "bf16", CONSTANTS[kernel]: extent}, root=ROOT)


def measured(kernel: str, extent: int) -> dict[str, Any]:
    """The same in a process of its own; `unfinished` past the limit, of processor time."""
    command = [sys.executable, "-P", __file__, "--one", kernel, str(extent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGXCPU:
        return {"unfinished": LIMIT}
    return json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr[-300:]}


def cells(found: dict[str, Any]) -> str:
    """Four cells of the table."""
    if "seconds" not in found or "refused" in found:
        return f"| {' '.join(map(str, next(iter(found.items()))))} | | | "
    return "| " + " | ".join(str(found[name]) for name in ("warps", "registers", "spill_bytes", "seconds")) + " "


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """All labels side by side."""
    labels = list(results)
    lines = ["# Extents that are no powers of two", "", f"bf16, {ARCH}, warps as tilec chooses them.", ""]
    lines.append("| kernel | " + " | ".join(f"{label}: warps | registers | spill bytes | seconds" for label in labels) + " |")
    lines.append("|---|" + "--:|--:|--:|--:|" * len(labels))
    for name in sorted({name for found in results.values() for name in found}, key=lambda n: (n.split()[0], int(n.split()[2]))):
        lines.append(f"| {name} " + "".join(cells(results[label].get(name, {"missing": ""})) for label in labels) + "|")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Exit status 1 if something spilled or was not compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--label", default="after")
    parser.add_argument("--output", type=Path, default=ROOT / "ci" / "bench" / "results")
    parser.add_argument("--one", nargs=2, metavar=("KERNEL", "EXTENT"), help="one kernel in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 60))
        print(json.dumps(compiled(arguments.one[0], int(arguments.one[1]))))
        return 0
    path = arguments.output / "extents.json"
    results: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    here = results[arguments.label] = dict[str, dict[str, Any]]()
    for kernel, constant in CONSTANTS.items():
        for extent in EXTENTS:
            here[f"{kernel} {constant} {extent}"] = found = measured(kernel, extent)
            print(kernel, extent, found, flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (arguments.output / "extents.md").write_text(table(results), encoding="utf-8")
    return int(any(found.get("spill_bytes", 1) for found in here.values()))


if __name__ == "__main__":
    sys.exit(main())
