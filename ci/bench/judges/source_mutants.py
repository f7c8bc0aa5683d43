"""Make mistakes in tilec's own source, one at a time, and keep the table of which test sees each.

`judges.py source_mutants --count 100 --jobs 16 --no-baseline --budget 560` writes `ci/bench/results/source_mutants.md`
and `.json`. Each mistake is made in a copy of the tree; tests run in steps (`tests/source_mutation/suite.py`), first cheap and
related ones for all mistakes, then expensive ones for undetected mistakes. Wide steps run only the test files that reach the
function; `--reach` finds these. Every finished step is a line of `verdicts/source_mutants.txt`, so that an interrupted run can
continue, also on another machine. A line is valid while neither the function with the mistake nor the tests that ran change:
for a failure the file of the failed test, for a pass all files of the step and what tests share.

`source_mutant_notes.json` holds by identity why a mistake survives; `equivalent: REASON` says that no program can tell
it from none: the next one of the same file takes its place, and the table lists it with its reason. `--list` shows the choice,
`--only ID` checks one, `--steps N` runs only so many steps.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

from ci.bench import front
from ci.evidence import ROOT, Digests
from ci.evidence.digests import UnknownDigest
from ci.evidence.verdicts import Verdict, Verdicts, key
from tests.processor_time import ENDED, STOPPED, finish
from tests.source_mutation.reach import insert_probes, reached, read_map, write_map
from tests.source_mutation.sites import Mutant, chosen, files, function_tree, mutants
from tests.source_mutation.suite import DEFAULT, RATCHET, Step, command, steps, targets, wide_files

IGNORED = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "artifacts", "shared")
BUILT = shutil.ignore_patterns("build", "bundles", "store", "tune", "site", "emulator_gpu", "ptx_semantics")
SHARED = ("tests/conftest.py", "tests/campaign.py", "tests/shipped.py")
"""What most tests rest on in addition to their own files."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
NOTES = ROOT / "ci" / "bench" / "judges" / "source_mutant_notes.json"
REACH = "source_mutants_reach.json"
"""Which test files reach the function of a mistake, in the folder of verdicts; `--reach` writes it."""
EQUIVALENT = "equivalent: "
LIMIT = 300.0
"""Processor seconds for a step where no baseline says what it takes: several times what the dearest takes."""
SEEN = ("failed", "hung")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step said of a mutant: passed, failed (`test` is the first that did) or hung (past its processor time, or it stood
    still). `seconds` are of processor time."""

    status: str
    test: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant: killed (a test failed), hung (a step no longer ended), survived, unfinished."""

    outcome: str
    test: str
    seconds: float
    steps: int


class Tree:
    """A copy of the source in which mistakes are made and unmade. `passed` are tests that passed without a mistake, which trees
    of one run share."""

    def __init__(self, folder: Path, passed: set[Step] | None = None) -> None:
        self.root, self.passed = folder, set[Step]() if passed is None else passed
        shutil.copytree(ROOT, folder, ignore=IGNORED, symlinks=True)
        # Not a link: commands write through none. What builds left there belongs to no tree.
        shutil.copytree(ROOT / "artifacts", folder / "artifacts", ignore=BUILT)

    def run(self, step: Step, limit: float, until: float = float("inf")) -> tuple[str, int, str, float]:
        """How a step ended (`tests.processor_time`), its exit status and output, and the processor seconds it took."""
        with tempfile.TemporaryDirectory() as scratch:  # of this step alone: no step finds what another left
            environment = os.environ | {
                "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1", "TILEC_CACHE_DIR": f"{scratch}/store",
                "TMPDIR": scratch, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            }  # fmt: skip
            process = subprocess.Popen(
                command(step), cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                start_new_session=True,
            )  # fmt: skip
            ending, output, seconds = finish(process, limit, until=until)
            return ending, process.returncode, output, seconds

    def run_step(self, mutant: Mutant, step: Step, limit: float, until: float) -> tuple[str, str, float] | None:
        """Make the mistake, run the step, unmake it: status, test and seconds; None where it was not at its end at `until`."""
        path = self.root / mutant.path
        text = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutant.applied(text), encoding="utf-8")
            ending, status, output, seconds = self.run(step, limit, until)
        finally:
            path.write_text(text, encoding="utf-8")
        if ending == STOPPED:
            return None
        if ending != ENDED:
            return "hung", name_of(step), seconds
        if status in (0, 5):  # 5: no test was collected
            return "passed", "", seconds
        found = FAILED.search(output)
        if found is None and status >= 0 and not (step == RATCHET and status == 1):
            raise SystemExit(
                f"{name_of(step)} cannot run (status {status}), which says nothing of a mistake:\n{output[-2000:]}"
            )
        self.check_without(step if found is None else (found[1],), limit)
        return "failed", found[1] if found else f"{name_of(step)} (status {status})", seconds

    def check_without(self, failed: Step, limit: float) -> None:
        """SystemExit if what failed with a mistake does not pass without it: on a machine that lacks what a test needs, such as
        the right assembler, every mistake would count as found. Each is run once."""
        if failed in self.passed:
            return
        ending, status, output, _ = self.run(failed, 2 * limit)
        if status == 4:  # pytest finds no such case: its name has the ` - ` that ends a name in the output
            ending, status, output, _ = self.run((failed[0].partition("[")[0],), 2 * limit)
        if ending != ENDED or status != 0:
            raise SystemExit(f"without any mistake {name_of(failed)} fails as well:\n{output[-2000:]}")
        self.passed.add(failed)


def name_of(step: Step) -> str:
    """A step as the state and the table name it."""
    return " ".join(step)


class State:
    """What steps said so far, of this run and of earlier ones whose lines still hold."""

    def __init__(self, verdicts: Verdicts, wanted: list[Mutant], reach: dict[str, list[str]], root: Path = ROOT) -> None:
        self.verdicts, self.digests = verdicts, Digests(root)
        self.reach, self.root = reach, root
        self.functions = {m.identity: function_tree((root / m.path).read_text(encoding="utf-8"), m.function) for m in wanted}
        self.found: dict[str, dict[str, Outcome]] = {m.identity: {} for m in wanted}
        for mutant in wanted:
            for step in self.steps(mutant):
                line = verdicts.known(self.case(mutant, step))
                if line is None:
                    continue
                test, seconds = line.verdict.detail
                outcome = Outcome(line.verdict.word, test, seconds)
                if self.key(mutant, step, outcome) in line.keys:
                    self.found[mutant.identity][name_of(step)] = outcome

    def steps(self, mutant: Mutant) -> list[Step]:
        """The steps that run against a mutant."""
        return steps(self.root, mutant.path, self.reach.get(mutant.identity))

    def case(self, mutant: Mutant, step: Step) -> str:
        """A mutant and a step as the file of verdicts names them."""
        return f"{mutant.identity}:{key(name_of(step))}"

    def key(self, mutant: Mutant, step: Step, outcome: Outcome) -> str:
        """What an outcome follows from: the function with the mistake, and the tests that said so."""
        tests = [outcome.test.partition("::")[0]] if outcome.status == "failed" else targets(step)
        files_of_tests = [test if test.startswith("tests/") else "tests/golden" for test in tests]
        try:
            read = self.digests.sources([*files_of_tests, *SHARED])
        except UnknownDigest:  # a test that is gone says nothing
            read = ""
        return key(self.functions[mutant.identity], mutant.identity, outcome.status, read)

    def add(self, mutant: Mutant, step: Step, outcome_of: tuple[str, str, float]) -> None:
        """Keep what a step said."""
        outcome = Outcome(*outcome_of)
        self.found[mutant.identity][name_of(step)] = outcome
        kept = Verdict(outcome.status, [outcome.test, round(outcome.seconds, 1)])
        self.verdicts.add(self.case(mutant, step), [self.key(mutant, step, outcome)], kept)

    def is_open(self, mutant: Mutant, step: Step) -> bool:
        """Whether a step could still say something of a mutant that no step has seen."""
        outcome_of = self.found[mutant.identity]
        return name_of(step) not in outcome_of and not any(row.status in SEEN for row in outcome_of.values())

    def result(self, mutant: Mutant, most: int | None) -> Fate:
        """What the steps say together; the first that saw the mistake is named."""
        outcome_of, order = self.found[mutant.identity], [name_of(step) for step in self.steps(mutant)[:most]]
        seconds = sum(row.seconds for row in outcome_of.values())
        for name in order:
            row = outcome_of.get(name)
            if row is not None and row.status in SEEN:
                return Fate("killed" if row.status == "failed" else "hung", row.test, seconds, len(outcome_of))
        done = all(name in outcome_of for name in order)
        return Fate("survived" if done else "unfinished", "", seconds, len(outcome_of))


def check_collection(tree: Tree, todo: list[tuple[Mutant, Step]]) -> None:
    """SystemExit if pytest cannot collect the tests of all steps without a mistake: before anything runs on a machine that
    lacks a module of theirs."""
    files = dict.fromkeys(target for _, step in todo if step != RATCHET for target in targets(step))
    if not files:
        return
    ending, status, output, _ = tree.run(("--collect-only", *files), LIMIT)
    if ending != ENDED or status not in (0, 5):
        raise SystemExit(f"without any mistake pytest cannot collect the tests:\n{output[-3000:]}")


def baseline(tree: Tree, todo: list[tuple[Mutant, Step]], slack: float) -> dict[Step, float]:
    """Run every step once without a mistake: all must pass; limits follow from the processor time that they took."""
    limits: dict[Step, float] = {}
    for step in dict.fromkeys(step for _, step in todo):
        ending, status, output, took = tree.run(step, 1200)
        print(f"baseline {took:6.1f} s  {name_of(step)}", flush=True)
        if ending != ENDED or status not in (0, 5):
            raise SystemExit(f"without any mistake {name_of(step)} fails:\n{output[-3000:]}")
        limits[step] = 20 + slack * took
    return limits


def run_all(wanted: list[Mutant], arguments: argparse.Namespace, state: State) -> None:
    """Run what the state does not hold yet, in `--jobs` copies of the tree: the first step of all, then the second, ..."""
    until = time.monotonic() + (float("inf") if arguments.budget is None else arguments.budget)
    numbered = [(n, m, step) for m in wanted for n, step in enumerate(state.steps(m)[: arguments.steps])]
    todo = [(m, step) for _, m, step in sorted(numbered, key=lambda item: item[0]) if state.is_open(m, step)]
    if not todo:
        return
    lock, passed = threading.Lock(), set[Step]()
    with tempfile.TemporaryDirectory() as folder:
        trees: Queue[Tree] = Queue()
        for number in range(arguments.jobs):
            trees.put(Tree(Path(folder) / f"tree{number}", passed))
        first = trees.get()
        check_collection(first, todo)
        limits = {} if arguments.no_baseline else baseline(first, todo, arguments.slack)
        trees.put(first)

        def work(task: tuple[Mutant, Step]) -> None:
            mutant, step = task
            with lock:
                if time.monotonic() > until or not state.is_open(mutant, step):
                    return
            tree, limit = trees.get(), limits.get(step, LIMIT)
            try:
                outcome_of = tree.run_step(mutant, step, limit, until)
            finally:
                trees.put(tree)
            if outcome_of is None:
                return  # this run ended, which says nothing of the mistake
            with lock:
                state.add(mutant, step, outcome_of)
                location = f"{mutant.path}:{mutant.line} {mutant.operator}"
                print(
                    f"{outcome_of[2]:6.1f} s {outcome_of[0]:6} {mutant.identity} {location} {outcome_of[1] or name_of(step)}",
                    flush=True,
                )

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(work, todo))


def find_reach(wanted: list[Mutant], jobs: int, test_files: list[str], selection: str) -> dict[str, list[str]]:
    """Run every test file once in a tree with probes, with the tests of a selection (`DEFAULT` or `CORE`): test files by
    identity."""
    found: dict[str, list[str]] = {m.identity: [] for m in wanted}
    with tempfile.TemporaryDirectory() as folder:
        trees: Queue[Tree] = Queue()
        for number in range(jobs):
            tree = Tree(Path(folder) / f"tree{number}")
            insert_probes(tree.root, wanted)
            trees.put(tree)

        def run(file: str) -> tuple[str, set[str]]:
            tree = trees.get()
            try:
                tree.run((selection, file), 10 * LIMIT)
                return file, reached(tree.root)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            for file, identities in pool.map(run, test_files):
                print(f"{file} reaches {len(identities)}", flush=True)
                for identity in identities:
                    found[identity].append(file)
    return found


def table(wanted: list[Mutant], results: dict[str, Fate], notes: dict[str, str], left_out: list[Mutant]) -> str:
    """The kept table."""
    counts = Counter(results[m.identity].outcome for m in wanted)
    seen = counts["killed"] + counts["hung"]
    lines = ["# Mistakes in tilec's own source", ""]
    ending = f"{counts['killed']} by a failing test, {counts['hung']} by a test that no longer ends"
    took = sum(results[m.identity].seconds for m in wanted)
    lived = f"{counts['survived']} survived, {counts['unfinished']} not run to the end"
    lines += [f"{len(wanted)} mutants: {seen} seen ({ending}), {lived}. Processor time of all: {took:.0f} s.", ""]
    operators = Counter(m.operator for m in wanted)
    lines += ["| mistake | mutants | survived |", "|---|--:|--:|"]
    for operator, count in operators.most_common():
        number = sum(results[m.identity].outcome == "survived" for m in wanted if m.operator == operator)
        lines.append(f"| {operator} | {count} | {number} |")
    survivors = [m for m in wanted if results[m.identity].outcome == "survived"]
    lines += ["", "## Survivors", ""]
    lines += [f"{_line(m)}: {notes.get(m.identity, 'not explained yet')}" for m in survivors] or ["None."]
    lines += ["", "## Left out, because no program can tell them from none", ""]
    lines += [f"{_line(m)}: {notes[m.identity].removeprefix(EQUIVALENT)}" for m in left_out] or ["None."]
    lines += ["", "## All", "", "| where | function | mistake | what | seen by | s |", "|---|---|---|---|---|--:|"]
    for m in wanted:
        result = results[m.identity]
        seen_by = result.test if result.outcome == "killed" else f"{result.outcome} {result.test}".strip()
        cells = (f"{m.path.removeprefix('tilec/')}:{m.line}", m.function, m.operator, _what(m), seen_by)
        lines.append(f"| {' | '.join(map(_cell, cells))} | {result.seconds:.0f} |")
    return "\n".join(lines) + "\n"


def _line(m: Mutant) -> str:
    return f"- `{m.path}:{m.line}` `{m.function}`, {m.operator} ({_what(m)}), `{m.identity}`"


def _what(m: Mutant) -> str:
    return f"`{' '.join(m.old.split())[:50]}` becomes `{' '.join(m.new.split())[:50]}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def measure(options: argparse.Namespace) -> front.Outcome | int:
    """Run what is left of all mistakes; status 1 if one survived that nobody has explained."""
    notes: dict[str, str] = json.loads(NOTES.read_text(encoding="utf-8"))
    without = {identity for identity, note in notes.items() if note.startswith(EQUIVALENT)}
    wanted = chosen(ROOT, options.count, without)
    if options.list:
        for m in wanted:
            print(m.identity, f"{m.path}:{m.line}", m.function, m.operator, _what(m), sep="  ")
        return 0
    if options.only:
        every = {m.identity: m for path in {m.path for m in wanted} for m in mutants(ROOT, ROOT / path)}
        wanted = [every[identity] for identity in options.only]
    reach_file = options.out / "verdicts" / REACH
    if options.reach:
        write_map(reach_file, find_reach(wanted, options.jobs, wide_files(ROOT), DEFAULT))
        return 0
    verdicts, some = Verdicts("source_mutants", options.out / "verdicts"), bool(options.only or options.steps)
    state = State(verdicts, wanted, read_map(reach_file))
    run_all(wanted, options, state)
    verdicts.close()
    fates = {m.identity: state.result(m, options.steps) for m in wanted}
    unfinished = sum(fate.outcome == "unfinished" for fate in fates.values())
    if unfinished and not some:
        raise front.Unfinished(f"{len(fates) - unfinished} of {len(fates)} mutants run to the end")
    equivalents = [m for path, _ in files(ROOT) for m in mutants(ROOT, path) if m.identity in without]
    unexplained = [m for m in wanted if fates[m.identity].outcome == "survived" and m.identity not in notes]
    rows = [asdict(m) | {"identity": m.identity} | asdict(fates[m.identity]) for m in wanted]
    pages = {"source_mutants.md": table(wanted, fates, notes, equivalents)}
    return front.Outcome(None if some else rows, pages, int(bool(unexplained)))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.set_defaults(jobs=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument(
        "--slack", type=float, default=4, help="a step may take so many times its processor time without a mistake, and 20 s"
    )
    parser.add_argument(
        "--no-baseline",
        action="store_true",
        help=f"do not run the steps without a mistake first: {LIMIT:.0f} s of processor time each",
    )
    parser.add_argument("--only", action="append", metavar="ID", help="only these mutants; no files are written")
    parser.add_argument("--steps", type=int, metavar="N", help="only the first N steps; no files are written")
    parser.add_argument("--reach", action="store_true", help=f"find which test files reach each mutant, write {REACH} and end")
    parser.add_argument("--list", action="store_true", help="print the choice and end")
