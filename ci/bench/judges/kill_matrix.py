"""Which tests of `core` notice each of many mistakes in tilec's own source: all of them, not the first.

`judges.py kill_matrix --count 100` writes `kill_matrix.json` and `kill_matrix.md`. Mistakes are those of `source_mutants`, from
all files of `tilec` and `engine`. `core` has one case of each test function that takes little time, so a row is a mistake and a
column is a function. `--reach` finds which test files reach each mistake; only these run. Every finished mistake is a line of
`verdicts/kill_matrix.txt`, valid while the function with the mistake and these files stay as they are.

A function whose kills another function has as well may be merged with it or dropped, if both were written for the same rule.
One without kills proves nothing about it: each function of the source has few mistakes here.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from statistics import median
from typing import Any, Final

from ci.bench import front
from ci.bench.judges.source_mutants import FAILED, LIMIT, SHARED, Tree, find_reach
from ci.bench.markdown import grid, page
from ci.evidence import ROOT, Digests
from ci.evidence.verdicts import Verdict, Verdicts, key
from tests.processor_time import ENDED, STOPPED
from tests.source_mutation.reach import read_map, write_map
from tests.source_mutation.sites import Mutant, chosen, function_tree, rooms
from tests.source_mutation.suite import CORE

REACH: Final = "kill_matrix_reach.json"
HANG: Final = "a run that does not end"


def killers(output: str) -> list[str]:
    """The test functions that failed, by the output of pytest."""
    return sorted({found.partition("[")[0].removeprefix("tests/") for found in FAILED.findall(output)})


def verdict_of(tree: Tree, mutant: Mutant, files: list[str], until: float) -> Verdict | None:
    """All killers of a mistake among the tests of `core` in some files; None if the run was stopped at `until`."""
    if not files:
        return Verdict("survived", [])
    path = tree.root / mutant.path
    text = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.applied(text), encoding="utf-8")
        ending, status, output, _ = tree.run((CORE, *files), 2 * LIMIT, until)
    finally:
        path.write_text(text, encoding="utf-8")
    if ending == STOPPED:
        return None
    if ending != ENDED:
        return Verdict("killed", [HANG])
    if status in (0, 5):
        return Verdict("survived", [])
    return Verdict("killed", killers(output) or [f"an import ({status})"])


def check_without(tree: Tree, files: Iterable[str]) -> None:
    """SystemExit if a test of `core` fails without any mistake, since it would count as a killer of each."""
    ending, status, output, _ = tree.run((CORE, *sorted(files)), 20 * LIMIT)
    if ending != ENDED or status not in (0, 5):
        raise SystemExit(f"without any mistake tests fail: {', '.join(killers(output)) or output[-2000:]}")


def rows_of(mutants: Iterable[Mutant], verdicts: Verdicts) -> list[dict[str, Any]]:
    """The matrix: a row for each mistake, with its killers."""
    rows: list[dict[str, Any]] = []
    for mutant in mutants:
        line = verdicts.known(mutant.identity)
        assert line is not None, mutant
        rows.append(
            {
                "path": mutant.path, "line": mutant.line, "function": mutant.function, "operator": mutant.operator,
                "old": mutant.old, "new": mutant.new, "killers": line.verdict.detail,
            }
        )  # fmt: skip
    return rows


def contained(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Functions all of whose kills another function has as well, with these others; of equals, all but the first by name."""
    kills: dict[str, set[int]] = defaultdict(set)
    for number, row in enumerate(rows):
        for killer in row["killers"]:
            kills[killer].add(number)
    found: dict[str, list[str]] = {}
    for name, mine in sorted(kills.items()):
        others = [other for other, theirs in sorted(kills.items()) if mine < theirs or (mine == theirs and other < name)]
        if others:
            found[name] = others
    return found


def cover(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Functions that together notice all that is noticed, with what each adds: in each step the function that adds most, of
    equals the first by name. All others are redundant in this matrix."""
    left: list[set[str]] = [set(row["killers"]) for row in rows if row["killers"]]
    found: dict[str, int] = {}
    while left:
        adds = Counter(name for killers_of in left for name in killers_of)
        best = min(adds, key=lambda name: (-adds[name], name))
        found[best] = adds[best]
        left = [killers_of for killers_of in left if best not in killers_of]
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The page: by room, then what each function alone notices."""
    by_room: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_room["/".join(row["path"].split("/")[:2]).removesuffix(".py")].append(row)
    cells = [
        (
            room, len(some), sum(bool(row["killers"]) for row in some),
            f"{median(len(row['killers']) for row in some):g}", sum(len(row["killers"]) == 1 for row in some),
        )
        for room, some in sorted(by_room.items())
    ]  # fmt: skip
    killed = [row for row in rows if row["killers"]]
    alone = Counter(row["killers"][0] for row in killed if len(row["killers"]) == 1)
    functions = {name for row in killed for name in row["killers"]}
    few = contained(rows)
    needed = cover(rows)
    redundant = Counter(name for row in killed for name in row["killers"] if name not in needed)
    lines = [
        f"{len(rows)} mistakes, {len(killed)} noticed by tests of `core`; {len(functions)} test functions notice at least one,",
        f"{len(alone)} of them one that no other notices, and the kills of {len(few)} are among those of another function.",
        "", *grid(("room", "mistakes", "noticed", "killers (median)", "one killer"), cells),
        "", "## The only killer", "", *grid(("test function", "mistakes"), alone.most_common()),
        "", "## Enough to notice all of them", "", *grid(("test function", "mistakes it adds"), needed.items()),
        "", "## Not needed in addition to these: candidates to merge or drop", "",
        *grid(("test function", "mistakes"), redundant.most_common()),
        "", "## Mistakes that `core` does not notice", "",
        *(f"- `{row['path']}:{row['line']}` `{row['function']}`, {row['operator']}" for row in rows if not row["killers"]),
    ]  # fmt: skip
    return page(["# Which tests notice which mistakes", "", *lines])


def measure(options: argparse.Namespace) -> front.Outcome | int:
    """Run what is left; the status is 0 whatever survives, since `core` is a part of the tests."""
    wanted = chosen(ROOT, options.count, among=rooms(ROOT))
    reach_file = options.out / "verdicts" / REACH
    if options.reach:
        test_files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
        write_map(reach_file, find_reach(wanted, options.jobs, test_files, CORE))
        return 0
    reach, verdicts = read_map(reach_file), Verdicts(options.name, options.out / "verdicts")
    digests = Digests(ROOT)
    if unknown := [mutant for mutant in wanted if mutant.identity not in reach]:
        # Identities contain text that `ast.unparse` writes differently in each version of Python.
        print(*(f"left out, not in {REACH}: {one.path}:{one.line} {one.operator}" for one in unknown), sep="\n", flush=True)
        if 20 * len(unknown) > len(wanted):
            raise SystemExit(f"{len(unknown)} of {len(wanted)} mistakes are not in {REACH}: run with --reach first")
        wanted = [mutant for mutant in wanted if mutant.identity in reach]
    keys = {
        mutant.identity: key(
            function_tree((ROOT / mutant.path).read_text(encoding="utf-8"), mutant.function),
            digests.sources([*reach[mutant.identity], *SHARED]),
        )
        for mutant in wanted
    }
    todo = [mutant for mutant in wanted if verdicts.find(mutant.identity, keys[mutant.identity]) is None]
    until, lock = time.monotonic() + (options.budget or float("inf")), threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        trees: Queue[Tree] = Queue()
        for number in range(min(options.jobs, len(todo))):
            trees.put(Tree(Path(folder) / f"tree{number}"))

        if todo:
            trees.put(first := trees.get())
            check_without(first, {file for mutant in todo for file in reach[mutant.identity]})

        def work(mutant: Mutant) -> None:
            tree = trees.get()
            try:
                verdict = verdict_of(tree, mutant, reach[mutant.identity], until) if time.monotonic() < until else None
            finally:
                trees.put(tree)
            if verdict is not None:
                with lock:
                    verdicts.add(mutant.identity, [keys[mutant.identity]], verdict)
                    print(f"{mutant.path}:{mutant.line} {mutant.operator}: {len(verdict.detail)} killers", flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(work, todo))
    left = sum(verdicts.find(mutant.identity, keys[mutant.identity]) is None for mutant in wanted)
    if left:
        raise front.Unfinished(f"{len(wanted) - left} of {len(wanted)} mistakes done")
    verdicts.close([mutant.identity for mutant in wanted])
    rows = rows_of(wanted, verdicts)
    return front.Outcome({"rows": rows, "contained": contained(rows)}, {"kill_matrix.md": table(rows)})


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--reach", action="store_true", help=f"find which test files reach each mistake, write {REACH} and end")
