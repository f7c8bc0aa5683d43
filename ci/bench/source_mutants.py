"""Make mistakes in tilec's own source, one at a time, and keep the table of which test sees each.

`python ci/bench/source_mutants.py --count 100 --jobs 2` writes `ci/bench/results/source_mutants.md` and `.json`. Each mistake
is made in a copy of the tree under a time limit; tests run in steps, the file's own first, and stop at the first failure.
Finished mutants are kept in `--state` (JSON lines) and not run again while neither the file nor the mistake changes. What
survives is explained by hand in `ci/bench/source_mutant_notes.json` (identity: reason). `--list` shows the choice, `--only ID`
runs one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.source_mutation.sites import Mutant, chosen  # noqa: E402
from tests.source_mutation.suite import Step, steps  # noqa: E402

IGNORED = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", "artifacts", ".pytest_cache", "shared")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
NOTES = ROOT / "ci" / "bench" / "source_mutant_notes.json"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant: killed (a test failed), hung (a step ran past its time), survived."""

    identity: str
    source: str
    outcome: str
    test: str
    seconds: float
    steps: int


class Tree:
    """A copy of the source in which mistakes are made and unmade."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        shutil.copytree(ROOT, folder, ignore=IGNORED, symlinks=True)
        if (ROOT / "artifacts").exists():
            (folder / "artifacts").symlink_to(ROOT / "artifacts")

    def run(self, step: Step, limit: float) -> tuple[int, str]:
        """Exit status and output of pytest on a step; status 124 past the limit."""
        environment = os.environ | {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-rfE", "-p", "no:cacheprovider", "-n", "0", *step]
        process = subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return 124, ""
        return process.returncode, output

    def judge(self, mutant: Mutant, limits: dict[Step, float], budget: float) -> Result:
        """Make the mistake, run the steps until one fails, unmake it."""
        path = self.root / mutant.path
        text = path.read_text(encoding="utf-8")
        start = time.perf_counter()
        outcome, test, done = "survived", "", 0
        try:
            path.write_text(mutant.applied(text), encoding="utf-8")
            for step in steps(self.root, mutant.path):
                left = budget - (time.perf_counter() - start)
                if left <= 0:
                    outcome = "survived (out of time)"
                    break
                limit = limits.get(step, 300.0)
                status, output = self.run(step, min(left, limit))
                done += 1
                if status == 124:  # past what the step may take, or past what was left for this mistake
                    outcome, test = ("hung", " ".join(step)) if limit <= left else ("survived (out of time)", "")
                    break
                if status not in (0, 5):
                    found = FAILED.search(output)
                    outcome, test = "killed", found[1] if found else f"{' '.join(step)} (status {status})"
                    break
        finally:
            path.write_text(text, encoding="utf-8")
        return Result(mutant.identity, digest(text), outcome, test, time.perf_counter() - start, done)


def digest(text: str) -> str:
    """Short digest of a source file."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def kept(state: Path) -> dict[tuple[str, str], Result]:
    """Results of earlier runs by identity and digest of the file."""
    if not state.exists():
        return {}
    rows = [Result(**json.loads(line)) for line in state.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {(row.identity, row.source): row for row in rows}


def baseline(tree: Tree, wanted: list[Mutant], slack: float) -> dict[Step, float]:
    """Run every step once without a mistake: all must pass; time limits follow from what they took."""
    limits: dict[Step, float] = {}
    for step in dict.fromkeys(step for mutant in wanted for step in steps(tree.root, mutant.path)):
        start = time.perf_counter()
        status, output = tree.run(step, 1200)
        took = time.perf_counter() - start
        print(f"baseline {took:6.1f} s  {' '.join(step)}", flush=True)
        if status not in (0, 5):
            raise SystemExit(f"without any mistake {' '.join(step)} fails:\n{output[-3000:]}")
        limits[step] = 20 + slack * took
    return limits


def run_all(wanted: list[Mutant], arguments: argparse.Namespace, state: Path) -> None:
    """Judge what the state does not hold yet, in `--jobs` copies of the tree."""
    known = kept(state)
    todo = [m for m in wanted if (m.identity, digest((ROOT / m.path).read_text(encoding="utf-8"))) not in known]
    if not todo:
        return
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        trees: Queue[Tree] = Queue()
        for number in range(arguments.jobs):
            trees.put(Tree(Path(folder) / f"tree{number}"))
        first = trees.get()
        limits = {} if arguments.no_baseline else baseline(first, todo, arguments.slack)
        trees.put(first)

        def work(mutant: Mutant) -> None:
            tree = trees.get()
            try:
                result = tree.judge(mutant, limits, arguments.budget)
            finally:
                trees.put(tree)
            with lock, state.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
                print(
                    f"{result.seconds:6.1f} s {result.outcome:9} {mutant.path}:{mutant.line} {mutant.operator} {result.test}",
                    flush=True,
                )

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(work, todo))


def table(wanted: list[Mutant], results: dict[str, Result], notes: dict[str, str]) -> str:
    """The kept table."""
    counts = Counter(results[m.identity].outcome.split(" ")[0] for m in wanted)
    seen = counts["killed"] + counts["hung"]
    lines = ["# Mistakes in tilec's own source", ""]
    how = f"{counts['killed']} by a failing test, {counts['hung']} by a test that no longer ends"
    took = sum(result.seconds for result in results.values())
    lines += [f"{len(wanted)} mutants: {seen} seen ({how}), {len(wanted) - seen} survived. Sum of run times: {took:.0f} s.", ""]
    operators = Counter(m.operator for m in wanted)
    lines += ["| mistake | mutants | survived |", "|---|--:|--:|"]
    for operator, count in operators.most_common():
        lived = sum(results[m.identity].outcome.startswith("survived") for m in wanted if m.operator == operator)
        lines.append(f"| {operator} | {count} | {lived} |")
    lines += ["", "## Survivors", ""]
    for m in wanted:
        if results[m.identity].outcome.startswith("survived"):
            lines.append(f"- `{m.path}:{m.line}` `{m.function}`, {m.operator} ({_cell(m.what)}), `{m.identity}`: "
                         f"{notes.get(m.identity, 'not explained yet')}")  # fmt: skip
    lines += ["", "## All", "", "| where | function | mistake | what | seen by | s |", "|---|---|---|---|---|--:|"]
    for m in wanted:
        result = results[m.identity]
        by = result.test if result.outcome == "killed" else f"{result.outcome} {result.test}".strip()
        cells = (f"{m.path.removeprefix('tilec/')}:{m.line}", m.function, m.operator, _what(m), by)
        lines.append(f"| {' | '.join(map(_cell, cells))} | {result.seconds:.0f} |")
    return "\n".join(lines) + "\n"


def _what(m: Mutant) -> str:
    return f"`{' '.join(m.old.split())[:50]}` becomes `{' '.join(m.new.split())[:50]}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Exit status 1 if a mutant survived that nobody has explained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=600, help="seconds for one mutant")
    parser.add_argument(
        "--slack", type=float, default=4, help="a step may take so many times its time without a mistake, and 20 s"
    )
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mistake first")
    parser.add_argument("--only", action="append", metavar="ID", help="only these mutants; no table is written")
    parser.add_argument("--list", action="store_true", help="print the choice and end")
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "tilec_source_mutants.jsonl")
    parser.add_argument("--output", type=Path, default=ROOT / "ci" / "bench" / "results")
    arguments = parser.parse_args()
    wanted = chosen(ROOT, arguments.count)
    if arguments.list:
        for m in wanted:
            print(m.identity, f"{m.path}:{m.line}", m.function, m.operator, _what(m), sep="  ")
        return 0
    if arguments.only:
        wanted = [m for m in wanted if m.identity in arguments.only]
    arguments.state.parent.mkdir(parents=True, exist_ok=True)
    run_all(wanted, arguments, arguments.state)
    found = kept(arguments.state)
    results = {m.identity: found[m.identity, digest((ROOT / m.path).read_text(encoding="utf-8"))] for m in wanted}
    notes: dict[str, str] = json.loads(NOTES.read_text(encoding="utf-8")) if NOTES.exists() else {}
    text = table(wanted, results, notes)
    print(text)
    if not arguments.only:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "source_mutants.md").write_text(text, encoding="utf-8")
        rows: list[dict[str, Any]] = [asdict(m) | asdict(results[m.identity]) for m in wanted]
        (arguments.output / "source_mutants.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    lived = [m for m in wanted if results[m.identity].outcome.startswith("survived") and m.identity not in notes]
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
