"""Costs of a team of ten and a farm of a thousand: measured per artifact here, and simulated from that.

    tilec --cache-dir STORE build && python ci/bench/judges.py farm_model --store STORE

Measured: CPU by stage and bytes of every entry, from the store of one cold build; bytes on a remote and seconds of a second
clone, from remote_cache.json; overhead per task, from farm.json. Simulated, and labelled so: tasks drawn from the measured
ones, dispatched sequentially, with the measured overhead for each, to free workers. Network, stragglers and lost machines are
modelled by parameters. Writes farm_model.json and farm_model.md.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ci.bench.front import Outcome
from tilec.cache import Store
from tilec.cache.remote.envelope import pack
from tilec.cache.remote.signer import Unsigned

SHARED = ("proofs", "mlir", "ptx", "cubin", "artifact")
FARMS = ((1, 441), (10, 441), (100, 441), (100, 10_000), (1000, 10_000), (1000, 100_000))
"""Numbers of workers and of artifacts to build."""
SLOW, SLOWER = 0.01, 5.0
"""Share of tasks on a slow machine, and their slowdown; the farm dispatches them again."""
LOST = 1e-3
"""Share of tasks whose worker is lost half way."""
BANDWIDTH = 1e9 / 8
"""Bytes per second into the builder, which receives every artifact."""


def measured(root: Path) -> dict[str, Any]:
    """CPU seconds and bytes by stage, and CPU seconds of every artifact, in the store of a cold build."""
    stages: dict[str, dict[str, float]] = {}
    artifacts: list[float] = []
    with contextlib.closing(Store(root)) as store:
        for key, record in store.records():
            stage = record["label"].partition(" ")[0]
            entry = store.lookup(key)
            if entry is None:
                continue
            row = stages.setdefault(stage, {"entries": 0, "cpu_seconds": 0.0, "bytes": 0, "packed": 0})
            row["entries"] += 1
            row["bytes"] += sum(map(len, entry.outputs.values()))
            row["packed"] += len(pack(key, entry.outputs, entry.cost, Unsigned()) or b"")
            if stage == "artifact":
                artifacts.append(entry.cost / 1000)
            else:
                row["cpu_seconds"] += entry.cost / 1000
    return {"stages": stages, "artifact_cpu_seconds": artifacts}


def simulate(workers: int, tasks: Sequence[float], dispatch: float, packed: float, seed: int = 0) -> dict[str, float]:
    """Seconds until all tasks are done, and the workers' utilization."""
    rng = random.Random(seed)
    free = [0.0] * workers
    given = received = last = work = 0.0
    for task in sorted(tasks, reverse=True):
        given += dispatch  # the scheduler is sequential
        start = max(given, heapq.heappop(free))
        seconds = task
        if rng.random() < LOST:
            seconds += task / 2  # a lost task is restarted
        if rng.random() < SLOW:
            seconds = min(seconds * SLOWER, 3 * task + task)  # dispatched again after three times the median
        end = start + seconds
        heapq.heappush(free, end)
        work += task
        received = max(received, end) + packed / BANDWIDTH
        last = max(last, end)
    return {"seconds": max(last, received), "busy": work / (workers * max(last, received)), "dispatched_after": given}


def team(
    found: dict[str, Any], second: dict[str, Any], people: int = 10, pulls: int = 8, kernels: float = 26.0
) -> dict[str, float]:
    """A day of a team: each person pulls `pulls` times, and each time the artifacts of one kernel are new."""
    artifacts = len(found["artifact_cpu_seconds"])
    per_task = statistics.mean(found["artifact_cpu_seconds"])
    changed = artifacts / kernels
    packed = found["stages"]["artifact"]["packed"] / artifacts
    shared = sum(found["stages"][name]["packed"] for name in SHARED if name in found["stages"]) / artifacts
    return {
        "artifacts_per_change": changed,
        "cpu_hours_alone": people * pulls * changed * per_task / 3600,
        "cpu_hours_shared": pulls * changed * per_task / 3600,
        "received_mb": people * pulls * changed * packed / 1e6,
        "written_mb": pulls * changed * shared / 1e6,
        "server_mb_of_one_version": artifacts * shared / 1e6,
        "new_clone_seconds": second["seconds"],
    }


def table(record: dict[str, Any]) -> str:
    """The results as Markdown."""
    artifacts = record["artifacts"]
    lines = ["Measured on one cold build (`judges.py farm_model`):", ""]
    lines += ["| stage | entries | CPU, s | CPU per artifact, ms | bytes per entry | on a remote | fetched from a remote |"]
    lines += ["|---|--:|--:|--:|--:|--:|---|"]
    for name, row in record["stages"].items():
        per_task = row["cpu_seconds"] / artifacts * 1000
        lines.append(
            f"| {name} | {row['entries']} | {row['cpu_seconds']:.1f} | {per_task:.0f} | {row['bytes'] / row['entries']:.0f} "
            f"| {row['packed'] / row['entries']:.0f} | {'yes' if name in SHARED else 'no'} |"
        )
    lines += ["", f"An artifact takes {record['cpu_seconds_per_artifact']:.2f} s of CPU. Round trips of an artifact: 1 where "]
    lines[-1] += "the remote has it; where it has nothing, 1 before, 2 when it is made (the loan, a second look), 1 for each "
    lines[-1] += "shared stage, and off the path 1 for each entry written and 1 for the loan given back."
    ten = record["team"]
    lines += ["", "A team of ten, arithmetic on the above: each pulls 8 times a day, and each pull brings one changed kernel "
              f"({ten['artifacts_per_change']:.0f} artifacts).", "", "| | a day |", "|---|--:|"]  # fmt: skip
    lines += [
        f"| CPU hours, everybody for himself | {ten['cpu_hours_alone']:.2f} |",
        f"| CPU hours, each artifact made once | {ten['cpu_hours_shared']:.2f} |",
        f"| received by all, MB | {ten['received_mb']:.0f} |",
        f"| written, MB | {ten['written_mb']:.0f} |",
        f"| on the server for one version of everything, MB | {ten['server_mb_of_one_version']:.0f} |",
        f"| a new clone's first build of everything, s (measured, Redis) | {ten['new_clone_seconds']:.1f} |",
    ]
    lines += ["", f"**Simulated**: farms of one-thread workers, {record['dispatch_ms']:.1f} ms of the scheduler for a task "]
    lines[-1] += (
        f"(measured), {SLOW:.0%} of tasks {SLOWER:g} times slower, {LOST:.1%} lost half way, 1 Gbit/s into the builder. "
    )
    lines[-1] += "A task is one artifact."
    lines += ["", "| workers | artifacts | seconds | workers busy | scheduler done after, s |", "|--:|--:|--:|--:|--:|"]
    for row in record["farms"]:
        lines.append(
            f"| {row['workers']} | {row['artifacts']} | {row['seconds']:.0f} | {row['busy']:.0%} "
            f"| {row['dispatched_after']:.0f} |"
        )
    lines += [
        "",
        f"One scheduler keeps {record['workers_kept_busy']:.0f} workers busy: CPU of an artifact over its time for a task.",
    ]
    return "\n".join(lines) + "\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--store", type=Path, required=True, help="the store of one cold build of everything")


def measure(options: argparse.Namespace) -> Outcome:
    """Read the measurements and simulate."""
    found = measured(options.store)
    second = next(
        row for row in json.loads((options.out / "remote_cache.json").read_text())["second"]["rows"] if row["remote"] == "redis"
    )
    farm = json.loads((options.out / "farm.json").read_text())["speed"]
    tasks = found["artifact_cpu_seconds"]
    dispatch = farm["scheduler_seconds_per_task"]
    overhead = farm["node_seconds_per_task"]
    packed = found["stages"]["artifact"]["bytes"] / len(tasks)  # Dask sends products uncompressed
    rng = random.Random(0)
    rows: list[dict[str, float]] = []
    for workers, count in FARMS:
        drawn = [task + overhead for task in (tasks if count == len(tasks) else rng.choices(tasks, k=count))]
        rows.append({"workers": workers, "artifacts": count} | simulate(workers, drawn, dispatch, packed))
    per_task = statistics.mean(tasks)
    record = {
        "artifacts": len(tasks), "stages": found["stages"], "cpu_seconds_per_artifact": per_task,
        "dispatch_ms": dispatch * 1000, "workers_kept_busy": per_task / dispatch, "team": team(found, second), "farms": rows,
    }  # fmt: skip
    return Outcome(record, {"farm_model.md": table(record)})
