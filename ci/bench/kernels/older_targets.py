"""Checks the PTX of targets without a suffix on the GPU of this machine, which its driver compiles for any newer chip.

    python ci/bench/kernels.py older_targets FOLDER --build-only     on a machine with the compiler; FOLDER then goes to the GPU
    python ci/bench/kernels.py older_targets FOLDER [--only add,matmul] [--out FOLDER]

Building writes manifest and PTX of every kernel of build.toml for sm_80, sm_86 and sm_89 to FOLDER/ARCH (with `--each N`: of
its first N specialisations). On the GPU each is loaded by `cuModuleLoadData` from its PTX, launched on the cases of
`kernels_gpu` (fresh random inputs, poisoned outputs with guard bytes, odd sizes) and compared with float64 in the same way.
This shows what the instructions of the older chips compute, not what an older chip does with its own CUBIN. Status 1 if a
result is wrong. Needs torch and cuda-bindings; `--dry-run` runs everything on a processor with a driver that launches nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ci.bench import front
from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from ci.evidence import ROOT

ARCHS: Final = ("sm_80", "sm_86", "sm_89")
FROM: Final = "build.toml"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build-only", action="store_true", help="write manifests and PTX; needs no GPU")
    parser.add_argument("--each", type=int, default=1, metavar="N", help="specialisations of a kernel to build")
    parser.add_argument("--only", type=front.names, default=[], metavar="KERNELS")
    parser.add_argument("--dry-run", action="store_true")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Build, or launch and compare."""
    if options.build_only:
        return build(options.folder, options.only, options.each)
    began = time.monotonic()
    rows = list(launched_all(options.folder, options.only, options.dry_run))
    failed = not rows or any(row["wrong"] for row in rows)
    data = {"seconds": time.monotonic() - began, "rows": rows}
    whole = not options.only and not options.dry_run
    return Outcome(data, {f"{options.name}.md": table(rows)}, int(failed), whole=whole)


def build(folder: Path, only: list[str], each: int) -> int:
    """Write manifest and PTX of each kernel for each architecture; 1 if one is refused."""
    from tilec.diagnostics.diagnostic import CompileError
    from tilec.project.build.just_in_time import products
    from tilec.project.read.buildfile import read_build_file
    from tilec.project.read.plan import artifact_name
    from tilec.target.targets import Target

    file, refused = read_build_file(ROOT / FROM), 0
    for arch in ARCHS:
        target, seen = Target.parse(arch), dict[str, int]()
        (folder / arch).mkdir(parents=True, exist_ok=True)
        for entry in file.entries:
            for values in entry.specialisations() if entry.among((target,)) and (not only or entry.name in only) else ():
                seen[entry.name] = seen.get(entry.name, 0) + 1
                if seen[entry.name] > each:
                    continue
                single = replace(entry, constants={name: (value,) for name, value in values.items()})
                name = artifact_name(entry.name, values)
                try:
                    made = products(replace(file, entries=(single,)), target)
                except CompileError as error:
                    print(f"{name} for {arch}: {error.diagnostics[0].message}")
                    refused += 1
                    continue
                for suffix in ("json", "ptx"):
                    (folder / arch / f"{name}.{suffix}").write_bytes(made[suffix])
        print(f"{arch}: {sum(min(count, each) for count in seen.values())} artifacts of {len(seen)} kernels")
    return int(bool(refused))


def launched_all(folder: Path, only: list[str], dry: bool) -> Iterator[dict[str, Any]]:
    """A row for each artifact: its architecture and name, the number of sizes, and what is wrong at the first wrong size."""
    from ci.bench.kernels.launch import Bench, Entry
    from tilec.artifact.manifest_reader import manifest_from_json

    bench = Bench(dry)
    for arch in ARCHS:
        for path in sorted((folder / arch).glob("*.json")):
            manifest = manifest_from_json(json.loads(path.read_bytes()))
            if only and manifest.kernel not in only:
                continue
            # The driver makes code for this device out of the PTX, so the manifest of that code names this device.
            image = path.with_suffix(".ptx").read_bytes() + b"\0"
            entry = Entry(replace(manifest, arch=bench.device.architecture), image, path.stem)
            row: dict[str, Any] = {"arch": arch, "artifact": path.stem, "kernel": manifest.kernel, "sizes": 0, "wrong": ""}
            found = _checked(bench, entry)
            lost = found.pop("lost", False)
            yield row | found
            if lost:
                return  # the context of this process is gone, so that every later launch would fail


def _checked(bench: Any, entry: Any) -> dict[str, Any]:
    """Launch one artifact at every size, until a result is wrong."""
    from ci.bench.kernels.cases import MEANING, checked_sizes, guards_intact, launched, make_tensors

    if entry.manifest.kernel not in MEANING:
        return {"wrong": "ci/bench/kernels/cases.py does not say what this kernel computes"}
    count = 0
    for dims in checked_sizes(entry.manifest):
        try:
            tensors = make_tensors(entry.manifest, dims, bench.device_name)
            results = launched(bench, entry, tensors)
        except Exception as error:
            text = f"{dims}: {type(error).__name__}: {error}"[:300]
            return {"sizes": count, "wrong": text, "lost": "CUDA error" in text or "CUDA_ERROR" in text}
        count += 1
        bad = [result.output for result in results if not result.ok]
        if bad or not guards_intact(tensors):
            return {"sizes": count, "wrong": f"{dims}: {', '.join(bad) or 'bytes next to the tensor were written'}"}
    return {"sizes": count, "wrong": "" if count else "no size fits"}


def table(rows: list[dict[str, Any]]) -> str:
    """The page: a line for each architecture, then one for each wrong artifact."""
    head = ("architecture", "kernels", "artifacts", "sizes", "right", "wrong")
    lines: list[tuple[Any, ...]] = []
    for arch in ARCHS:
        own = [row for row in rows if row["arch"] == arch]
        wrong = sum(bool(row["wrong"]) for row in own)
        kernels = len({row["kernel"] for row in own})
        lines.append((f"`{arch}`", kernels, len(own), sum(row["sizes"] for row in own), len(own) - wrong, wrong))
    faults = [(row["arch"], row["artifact"], row["wrong"]) for row in rows if row["wrong"]]
    more = ["", *grid(("architecture", "artifact", "wrong"), faults, left=3)] if faults else []
    return page(["# PTX of older targets, compiled by the driver", "", *grid(head, lines), *more])
