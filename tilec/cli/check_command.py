"""`tilec check`: every specialisation through the front end and the prover, in workers, answers kept in the store."""

from __future__ import annotations

import json
import sys
from typing import Any

from tilec.build.plan import plan
from tilec.build.report import RUNGS, diagnostic_json
from tilec.build.scheduler import Crashed, Report, run
from tilec.build.worker import Outcome, Task, raise_if_fatal
from tilec.build.worker import run as run_task
from tilec.cache import FileDigests
from tilec.cli.project import chosen_entries, open_project, open_store, print_diagnostics, status_of, toolchain
from tilec.diagnostics import Diagnostic
from tilec.pipeline import CHECK_STAGES, look_up
from tilec.target import TARGETS
from tilec.toolchain import PROVERS

CHECK_PRELOAD = ("tilec.frontend", "tilec.passes")


def check_command(project: str, kernels: tuple[str, ...], jobs: int, *, proofs: bool, as_json: bool) -> int:
    """Prove and print; the exit status."""
    build = open_project(project)
    entries = chosen_entries(build, kernels)
    store = open_store(build)
    files = FileDigests(store.base / "files.json")
    planned, refusals = plan(build, entries, TARGETS[:1], store, files, toolchain(store, PROVERS))
    files.save()
    found: dict[int, Outcome] = {}
    todo: list[int] = []
    for position, item in enumerate(planned):
        known = look_up(item.request, None, store, CHECK_STAGES)
        if known is None:
            todo.append(position)
        else:
            found[position] = Outcome(0, products={"proofs": known.products["proofs"]})
    problems = store.problems
    store.close()
    tasks = [Task(planned[position].request, planned[position].name, (), (), str(store.root)) for position in todo]
    for event in run(tasks, run_task, jobs, CHECK_PRELOAD) if tasks else ():
        if isinstance(event, Report) and isinstance(event.message, Outcome):
            raise_if_fatal(event.message)
            found[todo[event.index]] = event.message
            problems.extend(event.message.problems)
        elif isinstance(event, Crashed):
            notes = tuple(event.text.strip().splitlines()[-3:])
            crash = Diagnostic("E0504", f"internal error in tilec while proving `{tasks[event.index].name}`", notes=notes)
            found[todo[event.index]] = Outcome(0, (crash,))
    for problem in dict.fromkeys(problems):
        print(f"warning: {problem}", file=sys.stderr)
    diagnostics = [item for refusal in refusals for item in refusal.diagnostics]
    seen: set[tuple[str, str, str]] = set()
    results: list[dict[str, Any]] = []
    for position, item in enumerate(planned):
        outcome = found[position]
        for one in outcome.diagnostics:
            mark = (one.code, one.message, str(one.primary))
            if mark not in seen:
                seen.add(mark)
                diagnostics.append(one)
        record: dict[str, Any] = {"kernel": item.request.kernel, "constants": item.request.constants, "name": item.name}
        record["status"] = "refused" if outcome.diagnostics else "proven"
        if not outcome.diagnostics:
            data = json.loads(outcome.products["proofs"])
            obligations: list[dict[str, Any]] = data["obligations"]
            record["proofs"] = {rung: sum(one["rung"] == rung for one in obligations) for rung in RUNGS}
            record["unsafe"] = data["unsafe"]
            if proofs:
                record["obligations"] = obligations
                record["launch_checks"] = [one["text"] for one in data["launch_checks"]]
        results.append(record)
    print_diagnostics(diagnostics, build.root)
    if as_json:
        print(json.dumps({"kernels": results, "errors": [diagnostic_json(item, build.root) for item in diagnostics]}, indent=1))
    else:
        _print(results, proofs)
    sys.stdout.flush()
    return status_of(diagnostics)


def _print(results: list[dict[str, Any]], proofs: bool) -> None:
    width = max((len(record["name"]) for record in results), default=0)
    for record in results:
        counts = record.get("proofs", {})
        words = " ".join(f"{rung}:{count}" for rung, count in counts.items() if count)
        print(f"{record['name']:<{width}}  {record['status']}  {words}".rstrip())
        if proofs:
            for one in record.get("obligations", []):
                facts = f" by {'; '.join(one['facts'])}" if one["facts"] else ""
                print(f"  {one['location']}: {one['property']} of {one['subject']}: {one['rung']}{facts}")
            for text in record.get("launch_checks", []):
                print(f"  launch check: {text}")
