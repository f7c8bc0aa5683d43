"""Measures `add` and `rms_norm` at extents that are not powers of two, against neighbours with whole vectors per thread.

    python ci/bench/extents_gpu.py --build FOLDER         anywhere, needs the compiler: a project with all variants, built
    python ci/bench/extents_gpu.py FOLDER [--out FOLDER]  on a GPU, needs torch: checks and times them, writes extents_gpu.json

Each variant is first compared with float64 at many sizes (`gpu_cases`), then timed on 2^26 elements of bf16 in CUDA graphs,
alternating between all variants of a kernel. The criterion is bytes per second relative to the nearest neighbour: exit status 1
if it is less than `LEAST_SHARE`, or if a result is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

VARIANTS: Final = {
    "add": ("BLOCK", {1000: 1024, 1023: 1024, 2880: 2816}),
    "rms_norm": ("H", {2880: 2816, 3000: 3072, 1000: 1024}),
}
"""By kernel: its constant, and for each extent the neighbour that it is compared with."""

ELEMENTS: Final = 1 << 26
LEAST_SHARE: Final = {"aligned": 0.9, "odd": 0.0}
"""Required share of the neighbour's bytes per second. An extent not divisible by the vector width is read element by element
and only reported."""


def build(folder: Path) -> int:
    """Write the project and build it for sm_90."""
    (folder / "kernels_src").mkdir(parents=True, exist_ok=True)
    text = '[build]\nkernels = "kernels_src"\narch = ["sm_90"]\n'
    shutil.copy(ROOT / "kernels_src" / "dims.py", folder / "kernels_src")
    for kernel, (constant, pairs) in VARIANTS.items():
        shutil.copy(ROOT / "kernels_src" / f"{kernel}.py", folder / "kernels_src")
        extents = sorted({*pairs, *pairs.values()})
        text += f'\n[[kernel]]\nname = "{kernel}"\nconstants = {{ E = "bf16", {constant} = {extents} }}\n'
        text += "budget = { spill_bytes = 0 }\n"
    (folder / "build.toml").write_text(text, encoding="utf-8")
    return subprocess.run([sys.executable, "-P", "-m", "tilec", "build"], cwd=folder, check=False).returncode


def check(bench: Any, cases: Any, entry: Any) -> list[str]:
    """The errors of an artifact, at every checked size."""
    wrong: list[str] = []
    for dims in cases.checked_sizes(entry.manifest):
        tensors = cases.make_tensors(entry.manifest, dims, bench.device_name)
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        bench.plan(entry, tensors).launch(bench.stream())
        bench.synchronize()
        results = cases.compare(before, tensors, entry.manifest)
        wrong += [f"{entry.variant} {dims}: {result}" for result in results if not result.ok]
        wrong += [] if cases.guards_intact(tensors) else [f"{entry.variant} {dims}: wrote outside"]
    return wrong


def timed(bench: Any, cases: Any, entries: list[Any]) -> dict[int, dict[str, float]]:
    """Microseconds and gigabytes per second of variants of one kernel, by extent."""
    measure: Any = importlib.import_module("gpu_clock").measure
    alternatives: dict[str, list[Any]] = {}
    moved: dict[str, tuple[int, int]] = {}
    for entry in entries:
        constant = VARIANTS[entry.manifest.kernel][0]
        extent = int(entry.manifest.constants[constant])
        dims = {"N": ELEMENTS} if constant == "BLOCK" else {"T": ELEMENTS // extent}
        sets = [cases.make_tensors(entry.manifest, dims, bench.device_name) for _ in range(2)]
        plans = [bench.plan(entry, tensors) for tensors in sets]
        alternatives[entry.variant] = [lambda plan=plan: plan.launch(bench.stream()) for plan in plans]
        moved[entry.variant] = extent, cases.bytes_moved(entry.manifest, sets[0])
    timings = measure(alternatives, max(size for _, size in moved.values()) / 3.5e6, dry=bench.dry)
    found: dict[int, dict[str, float]] = {}
    for name, (extent, size) in moved.items():
        microseconds = timings[name].median
        found[extent] = {"microseconds": round(microseconds, 2), "gigabytes_per_second": round(size / microseconds / 1e3, 1)}
    return found


def measured(folder: Path, *, dry: bool = False) -> dict[str, Any]:
    """All results: times and the share of the neighbour's speed per kernel and extent; `wrong` and `slow` as messages."""
    cases: Any = importlib.import_module("gpu_cases")
    bench: Any = importlib.import_module("gpu_worker").Bench(dry)
    entries, broken = cases.find_artifacts([folder / "artifacts" / "build"], bench.device.architecture)
    wrong: list[str] = [*broken]
    slow: list[str] = []
    times: dict[str, dict[str, dict[str, float]]] = {}
    for kernel, (_, pairs) in VARIANTS.items():
        own = [entry for entry in entries if entry.manifest.kernel == kernel]
        if not own:
            wrong.append(f"no artifact of {kernel}")
            continue
        wrong += [] if dry else [line for entry in own for line in check(bench, cases, entry)]
        found = timed(bench, cases, own)
        for extent, neighbour in pairs.items():
            share = found[extent]["gigabytes_per_second"] / max(found[neighbour]["gigabytes_per_second"], 1e-9)
            found[extent] |= {"neighbour": neighbour, "share": round(share, 3)}
            if share < LEAST_SHARE["odd" if extent % 8 else "aligned"]:
                slow.append(f"{kernel} at {extent} has {share:.2f} of the speed at {neighbour}")
        times[kernel] = {str(extent): found[extent] for extent in sorted(found)}
    return {"gpu": bench.device.name, "times": times, "wrong": wrong, "slow": slow}


def main() -> int:
    """Returns exit status 1 if something is wrong or slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", action="store_true", help="write the project into the folder and build it")
    parser.add_argument("--out", type=Path, default=ROOT / "ci" / "bench" / "results")
    parser.add_argument("--dry-run", action="store_true", help="walk through with a driver that launches nothing")
    options = parser.parse_args()
    if options.build:
        return build(options.folder)
    found = measured(options.folder, dry=options.dry_run)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.dry_run:
        (options.out / "extents_gpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return int(bool(found["wrong"] or (found["slow"] and not options.dry_run)))


if __name__ == "__main__":
    sys.exit(main())
