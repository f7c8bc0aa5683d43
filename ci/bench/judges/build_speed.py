"""Measures the time of `tilec build`: cold, nothing changed, one kernel edited, a comment edited.

Builds a copy of the project (build.toml and kernels_src) in a temporary folder, as a user would, in fresh processes; times
are wall clock and include the start of the interpreter. Writes build_speed.json and build_speed.md. With `--before`, builds
of another checkout alternate with those of this one, each with its own build.toml and kernels, and build_speed_before.json
and .md compare the medians of the rounds, so that a slow machine affects both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ci.bench.front import Outcome, write
from ci.bench.markdown import grid, page
from ci.evidence import ROOT

WARM_RUNS = 7
AIMS = {
    "cold": 270.0, "cold, one architecture": 90.0, "cold, per artifact": 1.0, "nothing changed": 0.7, "one kernel edited": 3.0,
}  # fmt: skip
"""Seconds to aim at. A missed aim is shown, and is no failure of the run: seconds depend on the machine."""


def build(project: Path, options: list[str], tree: Path = ROOT) -> tuple[float, dict[str, Any]]:
    """Wall-clock seconds of one `tilec build --json` by the compiler in `tree`, and its output."""
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"TILEC_CACHE_DIR": f"{project}-store", "PYTHONPATH": path}
    command = [sys.executable, "-m", "tilec", "build", "--project", str(project), "--json", *options]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=project)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return seconds, json.loads(done.stdout)


def rebuilt(report: dict[str, Any], kernel: str, stage: str) -> list[str]:
    """Artifacts for which `stage` ran; an error if an artifact of another kernel was built."""
    built = [item for item in report["artifacts"] if item["status"] == "built"]
    other = {item["kernel"] for item in built} - {kernel}
    if other:
        sys.exit(f"editing {kernel} rebuilt {', '.join(sorted(other))}")
    return [item["name"] for item in built if not item["stage_hits"][stage]]


def situations(
    project: Path, options: list[str], kernel: str, edit: list[str], tree: Path = ROOT
) -> list[dict[str, Any]]:  # fmt: skip
    """One row per situation: name, seconds, artifacts built, artifacts whose CUBIN was assembled again."""
    cold, report = build(project, options, tree)
    count = len(report["artifacts"])
    rows: list[dict[str, Any]] = [{"what": "cold", "seconds": cold, "artifacts": count, "cubins": count}]
    rows.append({"what": "cold, per artifact", "seconds": cold / count, "artifacts": 1, "cubins": 1})
    warm = [build(project, options, tree) for _ in range(WARM_RUNS)]
    if any(item["status"] != "hit" for _, report in warm for item in report["artifacts"]):
        sys.exit("a build with nothing changed made something")
    rows.append({"what": "nothing changed", "seconds": statistics.median(s for s, _ in warm), "artifacts": 0, "cubins": 0})
    path = project / "kernels_src" / f"{kernel}.py"
    text = path.read_text(encoding="utf-8")
    if edit[0] not in text:
        sys.exit(f"{path.name} has no `{edit[0]}` to edit")
    edited = edit[1].join(text.rsplit(edit[0], 1))  # the last occurrence is code, an earlier one may be prose
    for situation, fresh in (("one kernel edited", edited), ("a comment edited", f"{edited}# a comment\n")):
        path.write_text(fresh, encoding="utf-8")
        seconds, report = build(project, options, tree)
        built_count = sum(item["status"] == "built" for item in report["artifacts"])
        rows.append(
            {"what": situation, "seconds": seconds, "artifacts": built_count, "cubins": len(rebuilt(report, kernel, "cubin"))}
        )
    if not rows[-2]["cubins"]:
        sys.exit(f"the edit of {path.name} changed no CUBIN")
    if rows[-1]["cubins"]:
        sys.exit("a comment assembled a CUBIN again")
    return rows


def copied(tree: Path, project: Path) -> Path:
    """The project of a checkout, as a user has it."""
    shutil.copytree(tree / "kernels_src", project / "kernels_src")
    if (tree / "engine" / "models").is_dir():  # if the checkout has step files of its own
        shutil.copytree(tree / "engine" / "models", project / "engine" / "models")
    shutil.copy(tree / "build.toml", project)
    return project


def compare_checkouts(before: Path, options: argparse.Namespace) -> int:
    """Measure both checkouts alternately; write and print the medians."""
    build_options = ["--arch", options.arch, "--jobs", str(options.jobs)]
    seconds: dict[str, dict[str, list[float]]] = {}
    artifacts: dict[str, dict[str, int]] = {}
    for round_number in range(options.rounds):
        for name, tree in (("before", before.resolve()), ("after", ROOT)):
            with tempfile.TemporaryDirectory() as folder:
                project = copied(tree, Path(folder, "project"))
                for row in situations(project, build_options, options.kernel, options.edit, tree):
                    seconds.setdefault(row["what"], {}).setdefault(name, []).append(row["seconds"])
                    artifacts.setdefault(row["what"], {})[name] = row["artifacts"]
            print(f"round {round_number + 1}, {name}", file=sys.stderr, flush=True)
    cores = len(os.sched_getaffinity(0))
    lines = [f"`tilec build --arch {options.arch} --jobs {options.jobs}` on {cores} cores, medians of {options.rounds} rounds"]
    rows: list[tuple[object, ...]] = []
    for situation, found in seconds.items():
        old, new = (statistics.median(found[name]) for name in ("before", "after"))
        made = "{before} -> {after}".format(**artifacts[situation])
        rows.append((situation, f"{old:.2f}", f"{new:.2f}", f"{new / old:.2f}", made))
    lines += ["", *grid(["what", "before, s", "after, s", "after / before", "artifacts made"], rows)]
    record = {"arch": options.arch, "jobs": options.jobs, "cores": cores, "seconds": seconds, "artifacts": artifacts}
    write(Outcome(record, {"build_speed_before.md": page(lines)}), options.out, "build_speed_before")
    return 0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--arch", default="sm_90,sm_100,sm_120")
    parser.add_argument("--kernel", default="rms_norm", help="the kernel to edit")
    parser.add_argument(
        "--edit", nargs=2, default=["+ eps", "+ eps + eps"], metavar=("OLD", "NEW"), help="the edit to its text"
    )
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="alternate with the compiler of another checkout")
    parser.add_argument("--rounds", type=int, default=3, help="with --before")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Measure this checkout, or two of them."""
    if options.before is not None:
        return compare_checkouts(options.before, options)
    build_options = ["--arch", options.arch, "--jobs", str(options.jobs)]
    with tempfile.TemporaryDirectory() as folder:
        alone = copied(ROOT, Path(folder, "alone"))
        seconds, report = build(alone, ["--arch", options.arch.split(",")[0], "--jobs", str(options.jobs)])
        count = len(report["artifacts"])
        first = {"what": "cold, one architecture", "seconds": seconds, "artifacts": count, "cubins": count}
        rows = situations(copied(ROOT, Path(folder, "project")), build_options, options.kernel, options.edit)
        rows.insert(1, first)
    cores = len(os.sched_getaffinity(0))
    lines = [f"`tilec build --arch {options.arch} --jobs {options.jobs}` on {cores} cores", ""]
    lines += grid(
        ["what", "seconds", "aim", "artifacts made", "CUBINs assembled"],
        [(row["what"], f"{row['seconds']:.2f}", AIMS.get(row["what"], ""), row["artifacts"], row["cubins"]) for row in rows],
    )
    record = {"arch": options.arch, "jobs": options.jobs, "cores": cores, "aims_seconds": AIMS, "rows": rows}
    return Outcome(record, {"build_speed.md": page(lines)})
