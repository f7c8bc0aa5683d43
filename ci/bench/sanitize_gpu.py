"""Runs every built kernel under compute-sanitizer: memcheck, racecheck, initcheck, synccheck.

    python3 ci/bench/sanitize_gpu.py artifacts/build/sm_90a [--only add,matvec] [--sizes 2] [--out FOLDER] [--name sanitize_gpu]

Each artifact is launched at its smallest odd sizes on exact allocations, inputs filled with random data, outputs left
uninitialised, in one process per tool and kernel. Writes `sanitize_gpu.json` and `.md`, or as `--name` says, prints the table;
exit code 1 where a tool reports an error, 2 where the tools cannot run on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]
TOOLS: Final = ("memcheck", "racecheck", "initcheck", "synccheck")
MOST_ELEMENTS: Final = 300_000
"""Elements of all tensors of a launch: the tools slow a kernel down a hundredfold."""


def main() -> int:
    """Run the tools, write the table."""
    parser = argparse.ArgumentParser(description="run every built kernel under compute-sanitizer")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, metavar="KERNELS")
    parser.add_argument("--sizes", type=int, default=2, help="sizes per artifact")
    parser.add_argument("--artifacts", type=int, default=4, help="artifacts per kernel")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120.0, help="most for one tool and kernel")
    parser.add_argument("--out", default=os.environ.get("OUT", str(ROOT / "ci" / "bench" / "results")))
    parser.add_argument("--name", default="sanitize_gpu", help="of the written files")
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return launch_all(options.folder, options.worker, options.sizes, options.artifacts)
    kernels = sorted({json.loads(path.read_text())["kernel"] for path in options.folder.glob("*.json")})
    kernels = [name for name in kernels if options.only is None or name in options.only]
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run_tool, tool, name, options) for name in kernels for tool in TOOLS]
        results = [run.result() for run in runs]
    return report(results, Path(options.out) / options.name, time.monotonic() - began)


def run_tool(tool: str, kernel: str, options: argparse.Namespace) -> dict[str, Any]:
    """One kernel under one tool."""
    worker = [sys.executable, __file__, str(options.folder), "--worker", kernel, "--sizes", str(options.sizes)]
    worker += ["--artifacts", str(options.artifacts)]
    command = [
        "compute-sanitizer",
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        "--report-api-errors",
        "no",
        "--kernel-name",
        f"kernel_name={kernel}",
    ]
    try:
        done = subprocess.run([*command, *worker], capture_output=True, text=True, timeout=options.seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"kernel": kernel, "tool": tool, "launches": 0, "errors": None, "text": f"stopped after {options.seconds:.0f} s"}
    launches = re.search(r"^launches (\d+)$", done.stdout, re.MULTILINE)
    errors = re.search(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", done.stdout + done.stderr)
    clean = done.returncode == 0 and errors is not None and errors[1] == "0"
    return {
        "kernel": kernel,
        "tool": tool,
        "launches": int(launches[1]) if launches else 0,
        "errors": int(errors[1]) if errors else None,
        "text": "" if clean else (done.stdout + done.stderr)[-2000:],
    }


def launch_all(folder: Path, kernel: str, sizes: int, most: int) -> int:
    """Launch the first artifacts of a kernel at their smallest sizes."""
    from gpu_cases import arguments, checked_sizes, find_artifacts, make_tensors, values_option

    from tilec.runtime import Device, Kernel, TensorView

    device = Device()
    entries = [entry for entry in find_artifacts([folder], device.architecture)[0] if entry.manifest.kernel == kernel]
    step = max(1, len(entries) // most)
    count = 0
    for entry in entries[::step][:most]:
        loaded = Kernel(entry.manifest, entry.cubin, device)
        if loaded.at_once is not None:
            loaded.at_once = 2  # persistent blocks, which then take several tiles of small tensors
        chosen = sorted(checked_sizes(entry.manifest), key=lambda dims: sum(dims.values()))
        done = 0
        for dims in chosen:
            tensors = make_tensors(entry.manifest, dims, "cpu")
            if done == sizes or (done and sum(tensor.numel() for tensor in tensors.values()) > MOST_ELEMENTS):
                break
            views: dict[str, Any] = {}
            keep: list[Any] = []
            for spec in entry.manifest.tensors:
                tensor = tensors[spec.name]
                place = device.empty(tuple(tensor.shape), spec.dtype)
                if spec.access not in ("out", "scratch"):
                    host = tensor.contiguous()
                    device.driver.copy_to_device(place.pointer, host.data_ptr(), place.nbytes, 0)
                    keep.append(host)
                keep.append(place)
                views[spec.name] = TensorView(place.pointer, spec.dtype, tuple(tensor.shape), tuple(tensor.stride()))
            given = arguments(entry.manifest, tensors)
            loaded.plan({**given, **views}, values=values_option(entry.manifest)).launch()
            device.driver.synchronize(0)
            done += 1
        count += done
    print(f"launches {count}", flush=True)
    return 0 if count else 3


def report(results: list[dict[str, Any]], path: Path, seconds: float) -> int:
    """Write and print the table."""
    lines = ["| kernel | launches | " + " | ".join(TOOLS) + " |", "|---|--:|" + "--:|" * len(TOOLS)]
    for kernel in dict.fromkeys(result["kernel"] for result in results):
        mine = {result["tool"]: result for result in results if result["kernel"] == kernel}
        words = ["not run" if mine[tool]["errors"] is None else f"{mine[tool]['errors']} errors" for tool in TOOLS]
        lines.append(f"| {kernel} | {min(r['launches'] for r in mine.values())} | {' | '.join(words)} |")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps({"seconds": seconds, "results": results}, indent=1) + "\n")
    path.with_suffix(".md").write_text("# Kernels under compute-sanitizer\n\n" + "\n".join(lines) + "\n")
    for result in results:
        if result["text"]:
            print(f"--- {result['kernel']} {result['tool']}\n{result['text'][-600:]}")
    print("\n".join(lines))
    if all(result["errors"] is None for result in results):
        print("compute-sanitizer does not run here")
        return 2
    return int(any(result["text"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
