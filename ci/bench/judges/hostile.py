"""All campaigns of hostile input, in one table: bundles, artifacts and launches, model folders, stores, builds, kernels.

`judges.py hostile --jobs 16` runs all of them, each split into parts that run in parallel, and writes
`ci/bench/results/hostile.md` and `.json`. `--only NAME` (repeatable) selects; `--scale 0.01`, `--count 20` or `--seconds 9` run
fewer, `--first 14 --count 1` repeats one by its number, and `--out /tmp/x` does not touch the table. Rows of campaigns that
did not run are kept from the existing file. Status 1 if anything went wrong or over its budget. No campaign needs a GPU;
`kernels` needs the prover's packages, `models` the engine's, `builds` and `stores` the command line's. `tests/fuzz` defines
what each counts as wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from ci.bench.front import Outcome, earlier
from ci.bench.markdown import grid, page

Part = dict[str, Any]
WRONG: Final = ("outside", "tracebacks", "wrong")


def _mutants(name: str, first: int, count: int) -> Part:
    from tests.fuzz import artifacts, bundles
    from tests.fuzz.watch import quick

    module = {"bundles": bundles, "artifacts": artifacts}[name]
    with tempfile.TemporaryDirectory(dir=quick()) as folder:
        tally = module.campaign(count, first, Path(folder))
    found = dataclasses.asdict(tally)
    return {
        "tried": found["tried"], "outside": found["violations"], "tracebacks": found["tracebacks"], "wrong": found["wrong"],
        "worst": found["worst_seconds"], "budget": module.LIMIT_SECONDS, "accepted": found["accepted"],
    }  # fmt: skip


def _models(_: str, first: int, count: int) -> Part:
    from tests.fuzz import model_campaign

    with tempfile.TemporaryDirectory() as folder:
        verdicts = list(model_campaign.campaign(first, count, Path(folder)))
    wrong = [json.dumps(one) for one in verdicts if one["wrong"]]
    worst = max(one["cpu"] for one in verdicts)
    return {
        "tried": len(verdicts), "outside": [], "tracebacks": [], "wrong": wrong, "worst": worst,
        "budget": model_campaign.SECONDS, "accepted": sum(one["status"] == 0 for one in verdicts),
    }  # fmt: skip


def _stores(_: str, first: int, count: int) -> Part:
    from tests.fuzz import store_scene, stores

    with tempfile.TemporaryDirectory() as folder:
        found = stores.campaign(Path(folder), count, first)
    wrong = [json.dumps({"seed": one.seed, "forged": one.forged, "wrong": one.wrong}) for one in found if one.wrong]
    return {
        "tried": len(found), "outside": [], "tracebacks": [], "wrong": wrong, "worst": max(one.seconds for one in found),
        "budget": store_scene.SECONDS, "accepted": sum(not one.refused for one in found),
    }  # fmt: skip


def _builds(_: str, first: int, count: int) -> Part:
    from tests.fuzz import builds

    with tempfile.TemporaryDirectory() as folder:
        found = builds.campaign(Path(folder), count, first)
    failed = sum(row["failed"] for row in found["kinds"].values())
    return {
        "tried": found["builds"], "outside": [], "tracebacks": [], "wrong": [json.dumps(one) for one in found["wrong"]],
        "worst": found["worst_seconds"], "budget": found["budget_seconds"], "accepted": found["builds"] - failed,
    }  # fmt: skip


def _kernels(_: str, first: int, count: int) -> Part:
    from tests.fuzz.hostile_kernels import CPU_SECONDS, examined

    rows = [(seed, examined(seed)) for seed in range(first, first + count)]
    bad = [f"{seed}: {verdict}" for seed, verdict in rows if verdict.kind not in ("accepted", "refused", "killed")]
    killed = [f"{seed}: {verdict}" for seed, verdict in rows if verdict.kind == "killed"]
    return {
        "tried": len(rows), "outside": [], "tracebacks": bad, "wrong": killed, "worst": max(v.seconds for _, v in rows),
        "budget": CPU_SECONDS, "accepted": sum(v.kind == "accepted" for _, v in rows),
    }  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Campaign:
    """The subject of a campaign, the number of attempts, and the size of a part; parts are named by their first number."""

    what: str
    count: int
    step: int
    run: Callable[[str, int, int], Part]


CAMPAIGNS: Final = {
    "bundles": Campaign("mutants of bundles", 100_000, 2_500, _mutants),
    "artifacts": Campaign("mutants of artifacts and launches", 100_000, 2_500, _mutants),
    "models": Campaign("forged model folders", 3_000, 50, _models),
    "stores": Campaign("forged stores", 1_000, 25, _stores),
    "builds": Campaign("builds under faults", 300, 10, _builds),
    "kernels": Campaign("hostile kernels", 200, 4, _kernels),
}


def _run(name: str, first: int, count: int, until: float) -> Part | None:
    """Run one part; None if `until`, in seconds since the epoch, has passed."""
    return CAMPAIGNS[name].run(name, first, count) if time.time() < until else None


def ran(name: str, first: int, count: int, jobs: int, seconds: float) -> Part:
    """Run a campaign in parts, `jobs` in parallel, starting none after `seconds`; returns one row."""
    step, start, until = CAMPAIGNS[name].step, time.monotonic(), time.time() + seconds
    with ProcessPoolExecutor(jobs, max_tasks_per_child=1) as pool:
        starts = range(first, first + count, step)
        done = [pool.submit(_run, name, at, min(step, first + count - at), until) for at in starts]
        parts = [part for one in done if (part := one.result()) is not None]
    if not parts:
        raise SystemExit(f"{name}: no part was begun in {seconds:g} seconds")
    return together(name, parts, time.monotonic() - start)


def together(name: str, parts: list[Part], seconds: float) -> Part:
    """Combine a campaign's parts into one row."""
    lists = {key: [text for part in parts for text in part[key]] for key in WRONG}
    return {
        "what": CAMPAIGNS[name].what, "tried": sum(part["tried"] for part in parts),
        "accepted": sum(part["accepted"] for part in parts), **lists, "worst": max(part["worst"] for part in parts),
        "budget": parts[0]["budget"], "seconds": round(seconds, 1), "python": platform.python_version(),
    }  # fmt: skip


def table(rows: dict[str, Part]) -> str:
    """The rows as a readable table."""
    lines = [
        "# Hostile input",
        "",
        "`judges.py hostile`. Accepted: valid after all, or good enough to serve; the others",
    ]
    lines += ["end in one clear error. Code run, files touched outside and what else went wrong must be 0. Times are of the"]
    lines += ["processor: they do not depend on what else a machine does.", ""]
    header = [
        "what",
        "tried",
        "accepted",
        "code run or files outside",
        "tracebacks",
        "wrong",
        "worst, s",
        "budget, s",
        "Python",
    ]
    lines += grid(header, [_cells(rows[name]) for name in CAMPAIGNS if name in rows])
    found = [text for row in rows.values() for key in WRONG for text in row[key]]
    return page([*lines, *(["", "## Went wrong", ""] if found else []), *(f"- `{text[:300]}`" for text in found)])


def _cells(row: Part) -> list[object]:
    bad = [len(row[key]) for key in WRONG]
    return [row["what"], row["tried"], row["accepted"], *bad, f"{row['worst']:.2f}", f"{row['budget']:g}", row["python"]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--only", action="append", choices=CAMPAIGNS)
    parser.add_argument("--scale", type=float, default=1.0, help="share of each campaign that is run")
    parser.add_argument("--count", type=int, help="how many, instead of a share")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no part of a campaign after this")


def measure(options: argparse.Namespace) -> Iterator[Outcome]:
    """Run the selected campaigns; status 1 if anything went wrong or exceeded a budget."""
    known = earlier(options)
    rows: dict[str, Part] = {name: known[name] for name in CAMPAIGNS if name in known}
    begun = options.only or [*CAMPAIGNS]
    for number, name in enumerate(begun, 1):
        count = options.count or max(1, round(CAMPAIGNS[name].count * options.scale))
        rows[name] = ran(name, options.first, count, options.jobs, options.seconds)
        good = all(not row[key] for row in rows.values() for key in WRONG)
        status = int(not good or any(row["worst"] > row["budget"] for row in rows.values()))
        yield Outcome(rows, {"hostile.md": table(rows)}, status, whole=number == len(CAMPAIGNS))
        print(name, {key: value for key, value in rows[name].items() if key not in WRONG}, flush=True)
