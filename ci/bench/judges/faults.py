"""Tests the cache and bundles under faults: kills, damage, concurrent builders, unwritable disks, mutated bundles.

Works on copies of the project in a temporary folder, with the real compilers. Writes faults.json and faults.md; status 1 if
anything wrong was served, lost silently, accepted, or exceeded the bounds of time and memory. tilec must not be edited
meanwhile: keys include the digest of its source.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ci.bench.front import Outcome
from ci.bench.judges.clones import clone
from ci.bench.markdown import page
from tests.bundle import faults, mutants
from tilec.runtime import BundleError, open_bundle

KERNELS = ("rms_norm", "add_rms_norm", "gather_row", "argmax_reduce", "advance", "embedding")
"""Kernels that are built and killed: many artifacts of short build time, so that kills hit every stage."""
SECONDS, BYTES = 2.0, 64 << 20
"""Bounds for refusing one bundle: processor time, and Python's peak of allocated memory in addition to the mapped file."""
MODEL = "qwen3-0.6b"


def build_command(*extra: str) -> list[str]:
    """A build of `KERNELS` for one architecture."""
    chosen = [option for name in KERNELS for option in ("-k", name)]
    return faults.tilec("build", "--arch", "sm_90", "--jobs", "2", *chosen, *extra)


def pack_command(output: Path, *extra: str) -> list[str]:
    """A pack of the smallest model for one architecture."""
    return faults.tilec("bundle", "pack", "-m", MODEL, "--arch", "sm_90", "-o", str(output), *extra)


def mutated(bundle: Path, folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Open mutants of a bundle; returns the number refused by kind, and the worst time and memory."""
    path = folder / "mutant.bundle"
    kinds: dict[str, int] = {}
    accepted: list[str] = []
    slowest, largest = 0.0, 0
    for number, (kind, data) in enumerate(mutants.mutants(bundle.read_bytes(), count, seed)):
        path.write_bytes(data)
        tracemalloc.start()
        start = time.process_time()
        try:
            open_bundle(path).close()
            accepted.append(f"{kind}, mutant {number} of seed {seed}")
        except BundleError:
            kinds[kind] = kinds.get(kind, 0) + 1
        slowest = max(slowest, time.process_time() - start)
        largest = max(largest, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return {
        "tried": count,
        "refused": sum(kinds.values()),
        "accepted": accepted,
        "kinds": kinds,
        "slowest_seconds": round(slowest, 4),
        "most_bytes": largest,
        "limit_seconds": SECONDS,
        "limit_bytes": BYTES,
        "bundle_bytes": bundle.stat().st_size,
    }


def full_disk(folder: Path, size: str) -> bool:
    """Mount a file system of `size` at `folder`; returns False if that is not permitted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    return done.returncode == 0


def disks(root: Path, folder: Path) -> dict[str, str]:
    """The single error line of builds and packs that cannot write, by situation."""
    good = folder / "good-store"
    subprocess.run(pack_command(folder / "good"), cwd=root, env=faults.environment(good), check=True, capture_output=True)
    found: dict[str, str] = {}
    cases: list[tuple[str, list[str], Path, Callable[[], None] | None]] = []
    complete = folder / "whole"
    subprocess.run(build_command(), cwd=root, env=faults.environment(complete), check=True, capture_output=True)
    largest = max(path.stat().st_size for path in complete.rglob("*") if path.is_file())
    for limit in (0, 4_000, 40_000, largest - 1):
        cases.append(
            (f"cache, files end at {limit} bytes", build_command(), folder / f"limit-{limit}", faults.small_files(limit))
        )
    locked = folder / "locked"
    locked.mkdir(mode=0o555)
    cases.append(("cache, read-only folder", build_command(), locked, faults.obey_permissions))
    cases.append(("bundles, read-only folder", pack_command(locked), good, faults.obey_permissions))
    mounted = [
        mount for mount in (folder / "tiny", folder / "small") if full_disk(mount, "128k" if mount.name == "tiny" else "1m")
    ]
    try:
        for mount in mounted:
            cases.append((f"cache, full disk ({mount.name})", build_command(), mount / "store", None))
        if mounted:
            cases.append(("bundles, full disk", pack_command(mounted[0] / "out"), good, None))
        for name, command, store, before in cases:
            found[name] = faults.one_clear_error(command, root, store, before).replace(str(folder), "<folder>")
    finally:
        for mount in mounted:
            subprocess.run(["umount", str(mount)], check=True)
    after = folder / "after"
    subprocess.run(pack_command(after), cwd=root, env=faults.environment(good), check=True, capture_output=True)
    name = f"{MODEL}-sm_90a.bundle"
    if (after / name).read_bytes() != (folder / "good" / name).read_bytes():
        found["after all that"] = "WRONG: another bundle"
    return found


def clones(folder: Path) -> dict[str, Any]:
    """Compare bundles of two clones at different paths, built with different numbers of workers and separate stores."""
    paths = [clone(folder / "one"), clone(folder / "a longer path" / "two")]
    bundles: list[dict[str, bytes]] = []
    for jobs, root in enumerate(paths, 1):
        command = faults.tilec("bundle", "pack", "-m", MODEL, "-o", str(root / "out"), "--jobs", str(jobs))
        subprocess.run(command, cwd=root, env=faults.environment(root / "store"), check=True, capture_output=True)
        bundles.append({path.name: path.read_bytes() for path in sorted((root / "out").iterdir())})
    return {
        "bundles": len(bundles[0]),
        "same": bundles[0] == bundles[1],
        "bytes": {name: len(data) for name, data in bundles[0].items()},
    }


def table(record: dict[str, Any]) -> list[str]:
    """The record as Markdown."""
    lines = ["Cache and bundles under fault, real compilers, `python ci/bench/judges.py faults`", ""]
    lines += ["| fault | tried | served right | misses | wrong | unexplained |", "|---|--:|--:|--:|--:|--:|"]
    for name in ("killed builds", "damaged entries", "damaged index", "builders at once"):
        one = record[name]
        cells = (one["tried"], one["served"], one["misses"], len(one["wrong"]), len(one["unexplained"]))
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    one = record["mutated bundles"]
    lines += ["", f"Mutated bundles of {one['bundle_bytes']} bytes: {one['refused']} of {one['tried']} refused; slowest"]
    lines[-1] += f" {one['slowest_seconds']} s (limit {SECONDS} s), most memory {one['most_bytes']} bytes (limit {BYTES})."
    lines += ["", "| kind | refused |", "|---|--:|", *(f"| {kind} | {count} |" for kind, count in one["kinds"].items())]
    lines += ["", "| disk | what the command says |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in record["disks"].items()]
    same = "the same bytes" if record["clones"]["same"] else "DIFFERENT bytes"
    lines += ["", f"Two clones at different paths: {record['clones']['bundles']} bundles, {same}."]
    return lines


def failed(record: dict[str, Any]) -> bool:
    """Whether anything was wrong."""
    counts = [record[name] for name in ("killed builds", "damaged entries", "damaged index", "builders at once")]
    mutated = record["mutated bundles"]
    return (
        any(one["wrong"] or one["unexplained"] for one in counts)
        or bool(mutated["accepted"])
        or mutated["slowest_seconds"] > SECONDS
        or mutated["most_bytes"] > BYTES
        or any(text.startswith("WRONG") for text in record["disks"].values())
        or not record["clones"]["same"]
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--damage", type=int, default=200)
    parser.add_argument("--mutants", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)


def measure(options: argparse.Namespace) -> Outcome:
    """Run every fault; status 1 if anything went wrong."""
    record: dict[str, Any] = {"seed": options.seed, "cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def step(what: str, run: Callable[[], Any]) -> None:
            start = time.perf_counter()
            record[what] = run()
            print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)

        root = clone(folder / "killed" / "project")
        step("killed builds", lambda: faults.killed_builds(root, build_command(), options.kills, options.seed).as_json())
        store = folder / "killed" / "safe"
        most = options.damage * 4 // 5
        step("damaged entries", lambda: faults.damaged_entries(store, most, options.seed).as_json())
        step("damaged index", lambda: faults.damaged_index(store, options.damage - most, options.seed).as_json())
        shared = folder / "shared"
        step("builders at once", lambda: faults.concurrent_builders(root, shared, build_command("--json"), 4).as_json())
        step("disks", lambda: disks(root, folder))
        bundle = folder / "good" / f"{MODEL}-sm_90a.bundle"
        step("mutated bundles", lambda: mutated(bundle, folder, options.mutants, options.seed))
        step("clones", lambda: clones(folder / "clones"))
    return Outcome(record, {"faults.md": page(table(record))}, int(failed(record)))
