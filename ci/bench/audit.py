"""Audit the bundles of every model for every architecture, and write what was confirmed, emulated and left open.

    python ci/bench/audit.py [--models qwen3-4b,...] [--arch sm_90,...] [--jobs N] [--time-limit S] [--launches N] [--seeds N]

Packs into a temporary folder what the store has, audits one bundle after the other, and shares results between bundles by the
digest of what they depend on. Writes `ci/bench/results/audit.md` and `audit.json`; the exit status is the worst of the audits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tilec.audit.report import lines, seal  # noqa: E402
from tilec.audit.run import Memo, Options, audit  # noqa: E402
from tilec.bundle.pack import pack  # noqa: E402
from tilec.cli.bundle_commands import needed_entries  # noqa: E402
from tilec.cli.project import chosen_targets, open_project, open_store, toolchain  # noqa: E402
from tilec.output import Output  # noqa: E402
from tilec.project.closed_world import enumerate_world  # noqa: E402
from tilec.project.driver import build_project  # noqa: E402
from tilec.runtime import open_bundle  # noqa: E402

RESULTS = ROOT / "ci" / "bench" / "results"
HEADER = (
    "| bundle | artifacts | obligations | confirmed | unknown | refuted | missing | clean in the emulator | launches | "
    "instructions | new work, s |"
)


def bundles(folder: Path, models: tuple[str, ...], arch: str | None, jobs: int) -> list[Path]:
    """Bundles of the models, packed from the store of the project."""
    build = open_project(str(ROOT))
    targets = chosen_targets(arch) or build.targets
    chosen = [model for model in build.models if not models or model.name in models]
    world = enumerate_world(build, targets, tuple(model.name for model in chosen))
    if world.problems:
        raise SystemExit(f"the project lacks artifacts: {world.problems[0].message}")
    found: list[Path] = []
    with contextlib.closing(open_store()) as store:
        built = build_project(build, needed_entries(world), targets, store, toolchain(store), jobs=jobs)
        if built.diagnostics:
            raise SystemExit(built.diagnostics[0].message)
        for model in chosen:
            for target in targets:
                with pack(model, build.families[model.family], target, world, built, store, Output(folder, None)) as bundle:
                    found.append(bundle.path)
    return found


def row(report: dict[str, Any], seconds: float) -> str:
    """A line of the table."""
    total = report["summary"]
    counts = total["obligations"]
    cells = (
        f"{report['bundle']['model']} {report['bundle']['arch']}",
        total["artifacts"],
        sum(counts.values()),
        counts["confirmed"],
        counts["unknown"],
        counts["refuted"],
        sum(total["missing"].values()),
        total["emulation"].get("clean", 0),
        total["emulated_launches"],
        total["emulated_instructions"],
        f"{seconds:.0f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def distinct(reports: list[dict[str, Any]]) -> list[str]:
    """Figures over distinct texts, and every thing that is not confirmed or clean."""
    proofs: dict[str, int] = {}
    ptx: dict[str, dict[str, Any]] = {}
    open_: set[str] = set()
    for report in reports:
        for one in report["artifacts"]:
            proofs[one["digests"]["tir"]] = len(one["obligations"])
            ptx[one["digests"]["ptx"]] = one["emulation"]
        text = lines(report)
        open_ |= set(text[text.index("") + 1 : -1]) - {""}
    shares = sorted(emulation["coverage"] for emulation in ptx.values() if "coverage" in emulation)
    found = [f"Distinct tile IR: {len(proofs)} texts with {sum(proofs.values())} obligations. Distinct PTX: {len(ptx)} texts."]
    if shares:
        middle = shares[len(shares) // 2]
        found.append(
            f"Share of PTX instructions that some launch executed: least {shares[0]:.0%}, median {middle:.0%}. What is never "
            "executed are branches that no launch of the contract takes (masks of blocks that are always whole, indices that "
            "value checks exclude), and sizes beyond the launches tried."
        )
    differs = sum(bool(launch.get("differs")) for emulation in ptx.values() for launch in emulation["launches"])
    found.append(f"Launches whose results differ from the tile interpreter's by more than rounding explains: {differs}.")
    return [*found, "", "Open: " + ("nothing." if not open_ else ""), *(f"- {text}" for text in sorted(open_))]


def write(reports: list[dict[str, Any]], rows: list[str], options: Options) -> None:
    """The results so far."""
    table = [HEADER, "|---|" + "--:|" * 10, *rows]
    intro = (
        "Every bundle of build.toml through `tilec audit`: obligations derived from the tile IR and proven with z3, and the "
        "PTX of every artifact run in the emulator at the edges of its contract. Results are shared between bundles by "
        f"digest, so the seconds are those of what a bundle adds; {options.jobs} processes, at most {options.launches} "
        f"launches of an artifact, each in {options.seeds} schedules."
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "audit.md").write_text(
        "\n".join(["# Audit", "", intro, "", *table, "", *distinct(reports), ""]), encoding="utf-8"
    )
    data = [
        {"bundle": r["bundle"], "tools": r["tools"], "limits": r["limits"], "summary": r["summary"], "seal": seal(r)}
        for r in reports
    ]
    (RESULTS / "audit.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Pack, audit, write; the worst status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="names, separated by commas; all where empty")
    parser.add_argument("--arch")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds per bundle")
    parser.add_argument("--launches", type=int, default=Options().launches)
    parser.add_argument("--seeds", type=int, default=Options().seeds)
    given = parser.parse_args()
    options = Options(given.time_limit, given.jobs, (), given.launches, given.seeds)
    memo: Memo = {}
    reports: list[dict[str, Any]] = []
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        models = tuple(name for name in given.models.split(",") if name)
        for path in bundles(Path(folder), models, given.arch, given.jobs):
            start = time.perf_counter()
            with open_bundle(path) as bundle:
                reports.append(audit(bundle, options, memo))
            rows.append(row(reports[-1], time.perf_counter() - start))
            print(rows[-1], flush=True)
            write(reports, rows, options)
    return max((report["summary"]["status"] for report in reports), default=0)


if __name__ == "__main__":
    sys.exit(main())
