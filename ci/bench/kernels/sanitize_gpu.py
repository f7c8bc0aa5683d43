"""Runs every built kernel under compute-sanitizer: memcheck, racecheck, initcheck, synccheck.

    python ci/bench/kernels.py sanitize_gpu artifacts/build/sm_90a [--only add,matvec] [--sizes 2] [--out FOLDER]

Each artifact is launched at its smallest odd sizes on exact allocations, with random inputs and uninitialised outputs, in one
process per tool and kernel. A CUBIN in which a tool found nothing is not run under it again (`verdicts/sanitize_gpu.txt`).
Status 1 if a tool reports an error, 2 if the tools cannot run on this machine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.bench import front
from ci.bench.front import Outcome, Unfinished
from ci.bench.kernels import children
from ci.bench.markdown import grid, page
from ci.evidence import ROOT, Digests
from ci.evidence.digests import short
from ci.evidence.verdicts import Budget, Verdict, Verdicts, key

BASIS: Final = (
    "ci/bench/kernels/sanitize_gpu.py", "ci/bench/kernels/launch.py", "ci/bench/kernels/cases.py",
    "ci/bench/kernels/attention_cases.py", "ci/bench/kernels/decode_cases.py", "ci/bench/kernels/few_cases.py",
    "ci/bench/kernels/experts_cases.py", "ci/bench/kernels/experts_tile_cases.py",
    "ci/bench/kernels/experts_fp8_cases.py",
)  # fmt: skip
"""Sources that a verdict on a CUBIN depends on."""
CLEAN: Final = "clean"
NOT_BEGUN: Final = "not begun: out of time"
TOOLS: Final = ("memcheck", "racecheck", "initcheck", "synccheck")
MOST_ELEMENTS: Final = 300_000
"""Maximum elements of all tensors of a launch: the tools slow a kernel down a hundredfold."""
ARTIFACTS: Final = 4
"""Maximum artifacts of a kernel."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=front.names, default=[], metavar="KERNELS")
    parser.add_argument("--sizes", type=int, default=2, help="sizes per artifact")
    parser.add_argument("--seconds", type=float, default=120.0, help="most for one tool and kernel")
    children.add_child(parser)


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact to launch, and the key of verdicts on it."""

    kernel: str
    stem: str
    key: str

    def case(self, tool: str) -> str:
        """The name of the artifact under a tool in the verdicts file."""
        return f"{self.stem}:{tool}"


def measure(options: argparse.Namespace) -> Outcome | int:
    """Run the tools on what has no verdict."""
    if options.child is not None:
        return launch_all(options.folder, options.child, options.sizes)
    began, budget = time.monotonic(), Budget(options.budget)
    kept = Verdicts(options.name)
    kept.path = options.out / "verdicts" / kept.path.name
    found = artifacts(options.folder, options.only, f"{Digests(ROOT).sources(BASIS)} {options.sizes}")
    runs = [(tool, own) for own in found.values() for tool in TOOLS]
    with ThreadPoolExecutor(options.jobs) as pool:
        begun = [pool.submit(run_tool, tool, own, kept, options, budget) for tool, own in runs]
        results = [run.result() for run in begun]
    for (tool, own), result in zip(runs, results, strict=True):
        _keep(kept, tool, own, result)
    cases = [artifact.case(tool) for tool, own in runs for artifact in own]
    kept.close(None if options.only else cases)
    if any(result["text"] == NOT_BEGUN for result in results):
        raise Unfinished(f"{sum(result['text'] != NOT_BEGUN for result in results)} of {len(results)} runs done")
    for result in results:
        if result["text"]:
            print(f"--- {result['kernel']} {result['tool']}\n{result['text'][-600:]}")
    status = int(any(result["text"] for result in results))
    if all(result["errors"] is None for result in results):
        print("compute-sanitizer does not run here")
        status = 2
    data = {"seconds": time.monotonic() - began, "results": results}
    return Outcome(data, {f"{options.name}.md": table(results)}, status, whole=not options.only)


def artifacts(folder: Path, only: list[str], basis: str) -> dict[str, list[Artifact]]:
    """The artifacts of a folder to launch, by kernel, in order."""
    found: dict[str, list[Artifact]] = {}
    for path in sorted(folder.glob("*.json")):
        kernel = json.loads(path.read_text(encoding="utf-8"))["kernel"]
        if not only or kernel in only:
            now = key(basis, short(path.with_suffix(".cubin").read_bytes()))
            found.setdefault(kernel, []).append(Artifact(kernel, path.stem, now))
    return {name: own[:: max(1, len(own) // ARTIFACTS)][:ARTIFACTS] for name, own in sorted(found.items())}


def run_tool(tool: str, own: list[Artifact], kept: Verdicts, options: argparse.Namespace, budget: Budget) -> dict[str, Any]:
    """Run the artifacts of one kernel that have no verdict under one tool; without any there are no errors."""
    todo = [artifact for artifact in own if kept.find(artifact.case(tool), artifact.key) is None]
    found: dict[str, Any] = {"kernel": own[0].kernel, "tool": tool, "launches": 0, "errors": 0, "text": "", "by_artifact": {}}
    if not todo:
        return found
    if budget.is_spent():
        return found | {"errors": None, "text": NOT_BEGUN}
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no"]
    command += ["--kernel-name", f"kernel_name={own[0].kernel}"]
    stems = [artifact.stem for artifact in todo]
    command += children.command("sanitize_gpu", [options.folder, "--sizes", options.sizes], stems)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds, check=False)
    except subprocess.TimeoutExpired:
        return found | {"errors": None, "text": f"stopped after {options.seconds:.0f} s"}
    launches = {record["artifact"]: record["launches"] for record in children.records_in(done.stdout)}
    errors = re.search(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", done.stdout + done.stderr)
    clean = done.returncode == 0 and errors is not None and errors[1] == "0"
    missing = [stem for stem in stems if not launches.get(stem)]
    text = f"no launch of {', '.join(missing)}" if missing else ""
    return found | {
        "launches": sum(launches.values()), "errors": int(errors[1]) if errors else None,
        "text": text if clean else (done.stdout + done.stderr)[-2000:], "by_artifact": launches,
    }  # fmt: skip


def _keep(kept: Verdicts, tool: str, own: list[Artifact], result: dict[str, Any]) -> None:
    """Add the launches of earlier runs to a result, and its own to the verdicts if the tool found nothing."""
    by_artifact = result.pop("by_artifact")
    before = [kept.find(artifact.case(tool), artifact.key) for artifact in own]
    result["launches"] += sum(verdict.detail for verdict in before if verdict is not None)
    if result["errors"] == 0 and not result["text"]:
        for artifact in own:
            if artifact.stem in by_artifact:
                kept.add(artifact.case(tool), [artifact.key], Verdict(CLEAN, by_artifact[artifact.stem]))


def launch_all(folder: Path, stems: list[str], sizes: int) -> int:
    """Launch some artifacts at their smallest sizes, in a child."""
    from ci.bench.kernels.cases import checked_sizes, make_tensors
    from ci.bench.kernels.launch import arguments, values_option
    from tilec.runtime import Device, Kernel, TensorView, load_artifact

    device = Device()
    for stem in stems:
        manifest, cubin = load_artifact(folder / f"{stem}.json")
        loaded, done = Kernel(manifest, cubin, device), 0
        if loaded.at_once is not None:
            loaded.at_once = 2  # persistent blocks, which then process several tiles of small tensors
        for dims in sorted(checked_sizes(manifest), key=lambda dims: sum(dims.values())):
            tensors = make_tensors(manifest, dims, "cpu")
            if done == sizes or (done and sum(tensor.numel() for tensor in tensors.values()) > MOST_ELEMENTS):
                break
            views: dict[str, Any] = {}
            keep: list[Any] = []  # alive until the launch ends
            for spec in manifest.tensors:
                tensor = tensors[spec.name]
                array, host = device.empty(tuple(tensor.shape), spec.dtype), tensor.contiguous()
                if spec.access not in ("out", "scratch"):
                    device.driver.copy_to_device(array.pointer, host.data_ptr(), array.nbytes, 0)
                keep += array, host
                views[spec.name] = TensorView(array.pointer, spec.dtype, tuple(tensor.shape), tuple(tensor.stride()))
            loaded.plan(arguments(manifest, tensors) | views, values=values_option(manifest)).launch()
            device.driver.synchronize(0)
            done += 1
        children.emit("launched", artifact=stem, launches=done)
    return 0


def table(results: list[dict[str, Any]]) -> str:
    """The errors of each kernel under each tool."""
    rows: list[list[object]] = []
    for kernel in dict.fromkeys(result["kernel"] for result in results):
        own = {result["tool"]: result for result in results if result["kernel"] == kernel}
        cells = ["not run" if own[tool]["errors"] is None else f"{own[tool]['errors']} errors" for tool in TOOLS]
        rows.append([kernel, min(result["launches"] for result in own.values()), *cells])
    return page(["# Kernels under compute-sanitizer", "", *grid(["kernel", "launches", *TOOLS], rows)])
