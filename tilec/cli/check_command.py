"""`tilec check`: runs the frontend, the prover and the lowering on every specialisation for each architecture.

The stages run in workers, and their results are stored. `tilec build` compiles what the check accepts, unless a budget or the
assembler refuses it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from tilec.cache import FileDigests, Store
from tilec.cli.project import (
    chosen_targets,
    notify,
    open_kernels,
    open_store,
    print_diagnostics,
    print_line,
    status_of,
    toolchain,
)
from tilec.link import note_records
from tilec.pipeline import CHECK_PRODUCTS, CHECK_STAGES, look_up
from tilec.project.build.report import RUNGS, before_build, diagnostic_json, notes
from tilec.project.build.worker import CHECK_PRELOAD, Outcome, Task, raise_if_fatal
from tilec.project.build.worker import run as run_task
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.plan import Planned, by_specialisation, digests_note, plan
from tilec.target.schedule import Schedule
from tilec.toolchain import PROVERS
from tilec.tuning.table import origin
from tilec.workers.scheduler import Crashed, Report, run
from tilec.workers.verdict import diagnose


def check_command(
    project: str | None, arch: str | None, kernels: tuple[str, ...], constants: tuple[str, ...], jobs: int, *, proofs: bool,
    schedule: bool, as_json: bool, machine_code: bool = False, deny: str | None = None,
) -> int:  # fmt: skip
    """Check and print. Returns the exit status. With `deny`, notes count as refusals. `machine_code`: read that of artifacts in
    the store, too."""
    build, entries = open_kernels(project, kernels, constants, arch)
    store = open_store()
    files = FileDigests(store, digests_note(build.root))
    targets = chosen_targets(arch)
    planned, refusals = plan(build, entries, targets, store, files, toolchain(store, PROVERS))
    built, _ = plan(build, entries, targets, store, files, toolchain(store)) if machine_code else ([], [])
    files.save()
    groups = by_specialisation(planned)
    found: dict[tuple[int, int], Outcome] = {}
    todo: list[int] = []
    for number, group in enumerate(groups):
        cached = [look_up(item.request, item.target, store, CHECK_STAGES) for item in group]
        for position, work in enumerate(cached):
            if work is None:
                todo.append(number)
                break
            found[number, position] = Outcome(position, products={name: work.products[name] for name in CHECK_PRODUCTS})
    codes = {(item.name, item.target): code for item in built if (code := _code(item, store))}
    problems = store.problems
    store.close()
    if todo:
        _prove(groups, todo, str(store.root), jobs, found, problems)
    for problem in dict.fromkeys(problems):
        print_line("warning", problem)
    diagnostics = [item for refusal in refusals for item in refusal.diagnostics]
    seen: set[tuple[str, str, str]] = set()
    results: list[dict[str, Any]] = []
    for number, group in enumerate(groups):
        outcomes = [found[number, position] for position in range(len(group)) if (number, position) in found]
        for diagnostic in (diagnostic for outcome in outcomes for diagnostic in outcome.diagnostics):
            key = (diagnostic.code, diagnostic.message, str(diagnostic.primary))
            if key not in seen:
                seen.add(key)
                diagnostics.append(diagnostic)
        results.append(record_of(group, outcomes, proofs=proofs, schedule=schedule))
        if machine_code:
            of_group = {item.target.name: codes[item.name, item.target] for item in group if (item.name, item.target) in codes}
            results[-1]["machine_code"] = of_group
    note_diagnostics = notes(_named_notes(groups, found))
    print_diagnostics([*diagnostics, *note_diagnostics], build.root)
    if as_json:
        errors, slow = ([diagnostic_json(item, build.root) for item in items] for items in (diagnostics, note_diagnostics))
        decided = [diagnostic.table | {"arch": diagnostic.target.name} for diagnostic in build.served] if schedule else []
        tuned = {"tuning": decided} if schedule else {}
        print(json.dumps({"kernels": results, **tuned, "errors": errors, "notes": slow}, indent=1))
    else:
        _print(results, proofs=proofs)
        for line in _decided(build, {entry.name for entry in entries}) if schedule else ():
            print(line)
    sys.stdout.flush()
    broken = any(code["missing"] for code in codes.values())
    return status_of(diagnostics) or int(broken or bool(deny and note_diagnostics))


def _code(item: Planned, store: Store) -> dict[str, Any] | None:
    """What the machine code of an artifact has of its schedule (`tilec.cli.machine_code`); None if it is not in the store.
    CompileError if no disassembler is installed."""
    from tilec.assemble.sass import disassemble
    from tilec.cli.machine_code import counted, missing

    entry = item.products(store)
    if entry is None:
        return None
    manifest = json.loads(entry.outputs["json"])
    found = counted(disassemble(entry.outputs["cubin"]))
    problems = missing(found, Schedule.from_json(manifest["schedule"]), manifest["resources"]["spill_bytes"])
    return {"instructions": found, "missing": problems}


def _decided(build: BuildFile, kernels: set[str]) -> list[str]:
    """The origin of the costs that select between the choices of each tuned kernel, for the targets of the project."""
    return [
        f"{one.tuned.kernel} for {one.target}: {len(one.candidates)} choices; {origin(one.table['measured'])}"
        for one in build.served
        if one.tuned.kernel in kernels and one.target in build.targets
    ]


def _named_notes(
    groups: list[list[Planned]], found: dict[tuple[int, int], Outcome]
) -> list[tuple[str, Mapping[str, Any]]]:  # fmt: skip
    """The notes of all proven artifacts, each with its artifact's name."""
    return [
        (f"{item.name} {item.target}", record)
        for number, group in enumerate(groups)
        for position, item in enumerate(group)
        if (number, position) in found and not found[number, position].diagnostics
        for products in (found[number, position].products,)
        for record in before_build(item, note_records(json.loads(products["launch"]), products["spans"]))
    ]


def record_of(group: list[Planned], outcomes: list[Outcome], *, proofs: bool, schedule: bool = False) -> dict[str, Any]:
    """The printed record of one specialisation. `outcomes` are those of its targets, or only the first if all would be
    equal."""
    item = group[0]
    refused = [group[one.position].target.name for one in outcomes if one.diagnostics]
    record: dict[str, Any] = {"kernel": item.request.kernel, "constants": item.request.constants, "name": item.name}
    record["status"] = "refused" if refused else "proven"
    if 0 < len(refused) < len(group) == len(outcomes):
        record["refused_for"] = refused
    if not refused:
        data = json.loads(outcomes[0].products["proofs"])
        obligations: list[dict[str, Any]] = data["obligations"]
        record["proofs"] = {rung: sum(one["rung"] == rung for one in obligations) for rung in RUNGS}
        record["unsafe"] = data["unsafe"]
        if proofs:
            record["obligations"] = obligations
            record["launch_checks"] = [one["text"] for one in data["launch_checks"]]
    if schedule:
        accepted = [one for one in outcomes if not one.diagnostics]
        record["schedule"] = {group[one.position].target.name: json.loads(one.products["schedule"]) for one in accepted}
    return record


def _task(group: list[Planned], store: str) -> Task:
    return Task(group[0].request, group[0].name, tuple(item.target for item in group), (), store, check=True)


def _prove(
    groups: list[list[Planned]], todo: list[int], store: str, jobs: int, found: dict[tuple[int, int], Outcome],
    problems: list[str],
) -> None:  # fmt: skip
    """Run the check's stages for the groups in `todo`. Outcomes go to `found`, problems of the store to `problems`."""
    tasks = [_task(groups[number], store) for number in todo]
    with contextlib.closing(run(tasks, run_task, jobs, CHECK_PRELOAD, notify)) as events:
        for event in events:
            if isinstance(event, Report) and isinstance(event.message, Outcome):
                raise_if_fatal(event.message)
                found[todo[event.index], event.message.position] = event.message
                problems.extend(event.message.problems)
            elif isinstance(event, Crashed):
                item = groups[todo[event.index]][0]
                crash = diagnose(event, f"proving `{item.name}`", item.entry.span)
                found[todo[event.index], 0] = Outcome(0, (crash,))


def _print(results: list[dict[str, Any]], *, proofs: bool) -> None:
    width = max((len(record["name"]) for record in results), default=0)
    for record in results:
        counts = record.get("proofs", {})
        rung_counts = " ".join(f"{rung}:{count}" for rung, count in counts.items() if count)
        status = record["status"] + (f" for {', '.join(record['refused_for'])}" if "refused_for" in record else "")
        print(f"{record['name']:<{width}}  {status}  {rung_counts}".rstrip())
        for arch, schedule in record.get("schedule", {}).items():
            print(f"  {arch}: {Schedule.from_json(schedule)}")
            if "machine_code" in record:
                print(f"    machine code: {_code_text(record['machine_code'].get(arch))}")
        if proofs:
            for one in record.get("obligations", []):
                facts = f" by {'; '.join(one['facts'])}" if one["facts"] else ""
                print(f"  {one['location']}: {one['property']} of {one['subject']}: {one['rung']}{facts}")
            for text in record.get("launch_checks", []):
                print(f"  launch check: {text}")


def _code_text(code: dict[str, Any] | None) -> str:
    if code is None:
        return "not built here"
    counts = ", ".join(f"{count} {name}" for name, count in code["instructions"].items())
    return "; ".join([counts or "no products, no copies by one thread", *(f"MISSING: {one}" for one in code["missing"])])
