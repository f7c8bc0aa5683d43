"""Runs every built kernel under compute-sanitizer: memcheck, racecheck, initcheck, synccheck.

    python3 ci/bench/sanitize_gpu.py artifacts/build/sm_90a [--only add,matvec] [--sizes 2] [--out FOLDER] [--name sanitize_gpu]

Each artifact is launched at its smallest odd sizes on exact allocations, with random inputs and uninitialised outputs, in one
process per tool and kernel. A CUBIN in which a tool found nothing is not run under it again (`verdicts/sanitize_gpu.txt`).
Writes `sanitize_gpu.json` and `.md`, or as `--name` says, and the verdicts, prints the table; exit code 1 if a tool reports an
error, 2 if the tools cannot run on this machine.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from ci.evidence import Digests  # noqa: E402
from ci.evidence.digests import short  # noqa: E402
from ci.evidence.verdicts import Budget, Verdict, Verdicts, key  # noqa: E402

BASIS: Final = (
    "ci/bench/sanitize_gpu.py", "ci/bench/gpu_cases.py", "ci/bench/gpu_attention.py", "ci/bench/gpu_decode.py",
)  # fmt: skip
"""Sources that a verdict on a CUBIN depends on."""
CLEAN: Final = "clean"
NOT_BEGUN: Final = "not begun: out of time"
UNFINISHED: Final = 3
TOOLS: Final = ("memcheck", "racecheck", "initcheck", "synccheck")
MOST_ELEMENTS: Final = 300_000
"""Maximum elements of all tensors of a launch: the tools slow a kernel down a hundredfold."""


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
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no process after; the next run goes on")
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return launch_all(options.folder, options.worker.split(","), options.sizes)
    began, budget = time.monotonic(), Budget(options.budget)
    kept = Verdicts(options.name)
    kept.path = Path(options.out) / "verdicts" / kept.path.name
    basis = f"{Digests(ROOT).sources(BASIS)} {options.sizes}"
    found = [
        Artifact(kernel, path.stem, key(basis, short(path.with_suffix(".cubin").read_bytes())))
        for kernel, paths in by_kernel(options.folder, options.only).items()
        for path in paths[:: max(1, len(paths) // options.artifacts)][: options.artifacts]
    ]
    runs: list[tuple[str, str, list[Artifact]]] = []
    for kernel in dict.fromkeys(artifact.kernel for artifact in found):
        for tool in TOOLS:
            own = [artifact for artifact in found if artifact.kernel == kernel]
            runs.append((tool, kernel, [a for a in own if kept.find(a.case(tool), a.key) is None]))
    with ThreadPoolExecutor(options.jobs) as pool:
        begun = [pool.submit(run_tool, *run, options, budget) for run in runs]
        results = [run.result() for run in begun]
    for (tool, _, todo), result in zip(runs, results, strict=True):
        if result["errors"] == 0 and not result["text"]:
            for artifact in todo:
                kept.add(artifact.case(tool), [artifact.key], Verdict(CLEAN, result["by_artifact"].get(artifact.stem, 0)))
        before = [kept.find(a.case(tool), a.key) for a in found if a.kernel == result["kernel"] and a not in todo]
        result["launches"] += sum(verdict.detail for verdict in before if verdict is not None)
        del result["by_artifact"]
    kept.close([a.case(tool) for a in found for tool in TOOLS] if options.only is None else None)
    if budget.is_spent() and any(result["text"] == NOT_BEGUN for result in results):
        print("run again to go on")
        return UNFINISHED
    return report(results, Path(options.out) / options.name, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact to launch, and the key of verdicts on it."""

    kernel: str
    stem: str
    key: str

    def case(self, tool: str) -> str:
        """The name of the artifact under a tool in the verdicts file."""
        return f"{self.stem}:{tool}"


def by_kernel(folder: Path, only: list[str] | None) -> dict[str, list[Path]]:
    """Manifests of a folder by kernel, in order."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.json")):
        kernel = json.loads(path.read_text())["kernel"]
        if only is None or kernel in only:
            found.setdefault(kernel, []).append(path)
    return dict(sorted(found.items()))


def run_tool(tool: str, kernel: str, todo: list[Artifact], options: argparse.Namespace, budget: Budget) -> dict[str, Any]:
    """Run some artifacts of one kernel under one tool; a kernel without any has no errors."""
    found: dict[str, Any] = {"kernel": kernel, "tool": tool, "launches": 0, "errors": 0, "text": "", "by_artifact": {}}
    if not todo:
        return found
    if budget.is_spent():
        return found | {"errors": None, "text": NOT_BEGUN}
    worker = [sys.executable, __file__, str(options.folder), "--worker", ",".join(artifact.stem for artifact in todo)]
    worker += ["--sizes", str(options.sizes)]
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
        return found | {"errors": None, "text": f"stopped after {options.seconds:.0f} s"}
    launches = {stem: int(count) for stem, count in re.findall(r"^launches (\S+) (\d+)$", done.stdout, re.MULTILINE)}
    errors = re.search(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", done.stdout + done.stderr)
    clean = done.returncode == 0 and errors is not None and errors[1] == "0"
    missing = [artifact.stem for artifact in todo if not launches.get(artifact.stem)]
    text = f"no launch of {', '.join(missing)}" if missing else ""
    return found | {
        "launches": sum(launches.values()),
        "errors": int(errors[1]) if errors else None,
        "text": text if clean else (done.stdout + done.stderr)[-2000:],
        "by_artifact": launches,
    }


def launch_all(folder: Path, stems: list[str], sizes: int) -> int:
    """Launch some artifacts at their smallest sizes."""
    from gpu_cases import arguments, checked_sizes, make_tensors, values_option

    from tilec.runtime import Device, Kernel, TensorView, load_artifact

    device = Device()
    for stem in stems:
        manifest, cubin = load_artifact(folder / f"{stem}.json")
        loaded = Kernel(manifest, cubin, device)
        if loaded.at_once is not None:
            loaded.at_once = 2  # persistent blocks, which then process several tiles of small tensors
        chosen = sorted(checked_sizes(manifest), key=lambda dims: sum(dims.values()))
        done = 0
        for dims in chosen:
            tensors = make_tensors(manifest, dims, "cpu")
            if done == sizes or (done and sum(tensor.numel() for tensor in tensors.values()) > MOST_ELEMENTS):
                break
            views: dict[str, Any] = {}
            keep: list[Any] = []
            for spec in manifest.tensors:
                tensor = tensors[spec.name]
                array = device.empty(tuple(tensor.shape), spec.dtype)
                if spec.access not in ("out", "scratch"):
                    host = tensor.contiguous()
                    device.driver.copy_to_device(array.pointer, host.data_ptr(), array.nbytes, 0)
                    keep.append(host)
                keep.append(array)
                views[spec.name] = TensorView(array.pointer, spec.dtype, tuple(tensor.shape), tuple(tensor.stride()))
            given = arguments(manifest, tensors)
            loaded.plan({**given, **views}, values=values_option(manifest)).launch()
            device.driver.synchronize(0)
            done += 1
        print(f"launches {stem} {done}", flush=True)
    return 0


def report(results: list[dict[str, Any]], path: Path, seconds: float) -> int:
    """Write and print the table."""
    lines = ["| kernel | launches | " + " | ".join(TOOLS) + " |", "|---|--:|" + "--:|" * len(TOOLS)]
    for kernel in dict.fromkeys(result["kernel"] for result in results):
        own = {result["tool"]: result for result in results if result["kernel"] == kernel}
        cells = ["not run" if own[tool]["errors"] is None else f"{own[tool]['errors']} errors" for tool in TOOLS]
        lines.append(f"| {kernel} | {min(r['launches'] for r in own.values())} | {' | '.join(cells)} |")
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
