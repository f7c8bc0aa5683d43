"""Measures a farm of four local Dask workers against one process, the scheduler's overhead, and builds with killed workers.

Builds some kernels with real compilers, cold, once with `--jobs 1` and once with `--on` four single-threaded workers, each time
with empty stores, and compares every byte. The scheduler's overhead is measured with empty tasks of the same size, the node's
as the task time there outside of its stages. Writes farm.json and farm.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from ci.bench.front import Outcome, names
from ci.bench.judges.clones import build, by_part, clone, products
from ci.evidence import ROOT

WORKERS = 4
LIMIT = 0.10
"""Maximum overhead of dispatching a task, as a share of its time."""
PARCEL = 20_000
"""Bytes of an empty task, like those of a shipped kernel's task."""


@contextlib.contextmanager
def cluster(folder: Path, workers: int = WORKERS) -> Generator[Any]:
    """Single-threaded worker processes with stores of their own below `folder`."""
    from distributed import LocalCluster

    os.environ["TILEC_CACHE_DIR"] = str(folder / "node-store")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    make: Any = LocalCluster
    with make(
        workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        local_directory=str(folder / "dask"),
    ) as found:
        yield found


def nothing(data: bytes) -> bytes:
    """An empty task."""
    return data[:100]


def empty_tasks(address: str, count: int = 400) -> float:
    """Seconds per empty task of a real task's size, dispatched as in `tilec build --on`."""
    from distributed import Client, as_completed

    make: Any = Client
    with make(address, set_as_default=False) as client:
        client.gather([client.submit(nothing, os.urandom(PARCEL), pure=False) for _ in range(8)])
        start = time.perf_counter()
        futures = [client.submit(nothing, os.urandom(PARCEL), pure=False) for _ in range(WORKERS * 2)]
        left = count - len(futures)
        done: Any = as_completed(futures, loop=client.loop)
        for future in done:
            future.result()
            if left:
                left -= 1
                done.add(client.submit(nothing, os.urandom(PARCEL), pure=False))
        return (time.perf_counter() - start) / count


def speed(work: Path, words: list[str]) -> dict[str, Any]:
    """One process against the farm, and the overhead per task."""
    one, many = clone(work / "one"), clone(work / "many")
    alone, _ = build(one, [*words, "--jobs", "1"])
    with cluster(work) as farm:
        address = farm.scheduler_address.replace("tcp://", "dask://")
        warm = clone(work / "warm")  # once per node: identification, and import of the compilers
        first, _ = build(warm, ["--kernel", "gather_row", "--arch", "sm_90", "--on", address])
        shared, report = build(many, [*words, "--on", address])
        overhead = empty_tasks(farm.scheduler_address)
    tasks: dict[str, list[dict[str, float]]] = {}
    for item in report["artifacts"]:
        tasks.setdefault(item["name"], []).append(item["milliseconds"])
    node = [sum(stages.get("node", 0.0) for stages in task) / 1000 for task in tasks.values()]
    stages = [sum(sum(found.values()) - found.get("node", 0.0) for found in task) / 1000 for task in tasks.values()]
    part, same = (overhead + statistics.median(node)) / statistics.mean(stages), products(one) == products(many)
    return {
        "artifacts": len(report["artifacts"]), "tasks": len(tasks), "one_process_seconds": alone, "farm_seconds": shared,
        "first_build_seconds": first, "seconds_of_stages_per_task": statistics.mean(stages),
        "node_seconds_per_task": statistics.median(node), "scheduler_seconds_per_task": overhead,
        "overhead": part, "same_bytes": same, "ok": part < LIMIT and same,
    }  # fmt: skip


def worker(address: str, folder: Path) -> subprocess.Popen[bytes]:
    """A worker that is restarted only by this script."""
    line = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
    line += ["--no-dashboard", "--host", "127.0.0.1", "--local-directory", str(folder)]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)


def kills(work: Path, words: list[str], wanted: int = 20) -> dict[str, Any]:
    """Builds while workers are killed at random and replaced; the products must be identical."""
    reference = clone(work / "reference")
    build(reference, [*words, "--jobs", "1"])
    expected = products(reference)
    killed = builds = wrong = 0
    stop, rng = threading.Event(), random.Random(1)
    (work / "dask").mkdir()
    with cluster(work, 0) as farm:
        running = [worker(farm.scheduler_address, work / "dask") for _ in range(WORKERS)]
        address = farm.scheduler_address.replace("tcp://", "dask://")
        build(clone(work / "warm"), ["--kernel", "gather_row", "--arch", "sm_90", "--on", address])

        def disturb() -> None:
            nonlocal killed
            while not stop.wait(rng.uniform(1.0, 4.0)) and killed < wanted:
                if len(farm.scheduler.workers) >= WORKERS // 2:  # starting a worker takes longer than killing it
                    chosen = rng.randrange(WORKERS)
                    running[chosen].kill()
                    running[chosen].wait()
                    killed += 1
                    running[chosen] = worker(farm.scheduler_address, work / "dask")

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            while killed < wanted:
                shutil.rmtree(work / "node-store", ignore_errors=True)  # so that there is something to build
                project = clone(work / f"kills-{builds}")
                build(project, [*words, "--on", address])
                builds += 1
                wrong += products(project) != expected
                print(f"{killed} kills, {builds} builds, {wrong} wrong", file=sys.stderr, flush=True)
        finally:
            stop.set()
            thread.join()
            for process in running:
                process.kill()
                process.wait()
    return {"kills": killed, "builds": builds, "wrong": wrong, "artifacts_each": len(expected) // 3, "ok": not wrong}


def table(record: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"`ci/bench/judges/farm.py` on {record['cores']} cores: {WORKERS} Dask workers of one thread, on the same machine."
    ]
    if "speed" in record:
        row = record["speed"]
        lines += ["", "| what | |", "|---|--:|"]
        lines += [
            f"| artifacts, tasks | {row['artifacts']}, {row['tasks']} |",
            f"| one process (`--jobs 1`), s | {row['one_process_seconds']:.1f} |",
            f"| {WORKERS} workers on {record['cores']} cores, s | {row['farm_seconds']:.1f} |",
            f"| first build, in which nodes load the compilers, s | {row['first_build_seconds']:.1f} |",
            f"| stages of a task, s | {row['seconds_of_stages_per_task']:.3f} |",
            f"| what a node takes in addition, ms | {row['node_seconds_per_task'] * 1000:.1f} |",
            f"| what Dask takes for a task that does nothing, ms | {row['scheduler_seconds_per_task'] * 1000:.1f} |",
            f"| overhead per task | {row['overhead'] * 100:.1f} % |",
            f"| same bytes | {'yes' if row['same_bytes'] else 'NO'} |",
        ]
    if "kills" in record:
        row = record["kills"]
        lines += ["", f"{row['kills']} kills of workers (SIGKILL) during {row['builds']} builds of {row['artifacts_each']} "]
        lines[-1] += f"artifacts: {row['wrong']} builds had other bytes."
    return "\n".join(lines) + "\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--parts", type=names, default=["speed", "kills"])
    parser.add_argument("--kernel", action="append", default=[])


def measure(options: argparse.Namespace) -> Iterator[Outcome]:
    """Run the parts; status 1 if one fails."""
    kernels = options.kernel or ["flash_attention", "rms_norm", "topk_blocks", "decode_attention"]
    words = [option for name in kernels for option in ("-k", name)]
    fast_options = ["-k", "add", "-k", "rms_norm", "-k", "embedding", "--arch", "sm_90"]
    runs: dict[str, Callable[[Path], dict[str, Any]]] = {
        "speed": lambda work: speed(work, words), "kills": lambda work: kills(work, fast_options),
    }  # fmt: skip
    chosen = {part: run for part, run in runs.items() if part in options.parts}
    return by_part(options, chosen, runs, lambda record: {"farm.md": table(record)})
