"""Renews several results at the same time, in the order of `ci/evidence/renewals.toml`, as processors and GPUs are free.

    python ci/renew_all.py --seconds 1500               every stale result, with what each needs made first
    python ci/renew_all.py audit programs               these, also if they are fresh
    python ci/renew_all.py --list                       what would run, in order; runs nothing

A result is renewed by `ci/renew.py`, which stamps it. What the file lists under `[steps]` is made only where a result needs it
and no earlier run left it. One job at a time has a GPU; later jobs leave their GPUs to one that waits for several. A job that
waits for processors lets later, smaller ones begin before it, but one that has a GPU does not wait for processors, and results
of processors alone run at low priority, so that they disturb it little. When the seconds have passed, what still runs is
terminated and its result stays as it was. Each job's output goes to a file of its name in `--logs`. A line is printed when one
ends, and a table last.

Nothing begins if a result has no digest, such as where the record of products is of other sources.

Exit status: 0 if all were renewed, 1 if one failed, 2 for wrong arguments, 3 if only time or a digest was missing.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci.bench.markdown import grid  # noqa: E402
from ci.evidence import Digests, read_registry, states_of  # noqa: E402
from ci.evidence.digests import UnknownDigest  # noqa: E402
from ci.evidence.registry import Entry, RegistryError  # noqa: E402

PLAN: Final = ROOT / "ci/evidence/renewals.toml"
LOGS: Final = ROOT / "artifacts/renewals"
GRACE: Final = 5.0
"""Seconds between the request to end and the end by force."""
WRITING: Final = 15.0
"""Seconds that a job with a budget has to write what it found."""
PATIENT: Final = 10
"""The niceness of what no GPU waits for."""
ANY: Final = 1e6
"""A budget of seconds where none is given."""


@dataclass(frozen=True, slots=True)
class Job:
    """A step or a result. `gpus` is how many it has to itself; `processors` a count, or below 1 a part of the machine's;
    `environment` adds to that of this process; `makes` is what a step leaves, relative to the root, or empty; `carries` are
    patterns of what results read of it, for `ci/carry.py`, if that is something else; `patient` jobs run at low priority."""

    name: str
    command: str
    gpus: int = 0
    processors: float = 1
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    makes: str = ""
    carries: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    patient: bool = False

    def share(self, processors: int) -> int:
        """How many of the machine's processors it takes."""
        wanted = int(self.processors * processors) if self.processors < 1 else int(self.processors)
        return min(max(1, wanted), processors)


def read_plan(registry: Mapping[str, Entry], path: Path = PLAN) -> dict[str, Job]:
    """Jobs by name, in the order of the file; RegistryError names a job that it gets wrong."""
    data, jobs = tomllib.loads(path.read_text(encoding="utf-8")), dict[str, Job]()
    for kind in ("steps", "results"):
        for name, fields in data.pop(kind, {}).items():
            given = dict[str, Any](fields)
            if kind == "results":
                if name not in registry or name in jobs:
                    raise RegistryError(f"{path.name}: `{name}` is no result, or a step has its name")
                given["command"] = f"python ci/renew.py {name} {given.pop('arguments', '')}"
                given.setdefault("gpus", int(registry[name].gpu))
                given["patient"] = not given["gpus"]
            given |= {key: tuple(given.get(key, ())) for key in ("needs", "after", "carries")}
            try:
                jobs[name] = Job(name, **given)
            except TypeError as error:
                raise RegistryError(f"{path.name}: `{name}`: {error}") from None
    for job in jobs.values():
        if unknown := {*job.needs, *job.after} - jobs.keys():
            raise RegistryError(f"{path.name}: `{job.name}` waits for what is not there: {', '.join(sorted(unknown))}")
    if data:
        raise RegistryError(f"{path.name}: unknown: {', '.join(sorted(data))}")
    return jobs


def chosen(jobs: Mapping[str, Job], names: Sequence[str], root: Path = ROOT) -> list[Job]:
    """The named jobs and the steps that they need and that nothing has made yet, in the order of the plan."""
    wanted, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name in wanted or (name not in names and jobs[name].makes and (root / jobs[name].makes).exists()):
            continue
        wanted.add(name)
        waiting += jobs[name].needs
    return [job for job in jobs.values() if job.name in wanted]


@dataclass(slots=True)
class Progress:
    """What has ended, with its exit status, or None where it was not begun; and what runs, with its processors and GPUs."""

    jobs: Sequence[Job]
    processors: int
    gpus: list[int]
    ended: dict[str, int | None] = field(default_factory=dict[str, "int | None"])
    running: dict[str, tuple[int, list[int]]] = field(default_factory=dict[str, "tuple[int, list[int]]"])

    def begin(self) -> Job | None:
        """The next job to begin, or None while nothing can; its processors and GPUs are taken."""
        here = {job.name for job in self.jobs}
        free = self.processors - sum(taken for taken, _ in self.running.values())
        busy = {gpu for _, gpus in self.running.values() for gpu in gpus}
        idle = [gpu for gpu in self.gpus if gpu not in busy]
        for job in self.jobs:
            if job.name in self.ended or job.name in self.running:
                continue
            if any(name in here and self.ended.get(name, 0) != 0 for name in job.needs):
                self.ended[job.name] = None
            if job.name in self.ended or any(name in here and name not in self.ended for name in (*job.needs, *job.after)):
                continue
            share = job.share(self.processors)
            if len(idle) >= job.gpus and (job.gpus or share <= free):
                self.running[job.name] = share, idle[: job.gpus]
                return job
            if job.gpus:
                idle = []
        return None

    def end(self, name: str, code: int | None) -> None:
        """A job has ended: what it took is free."""
        del self.running[name]
        self.ended[name] = code


def run(progress: Progress, seconds: float, logs: Path, root: Path = ROOT) -> dict[str, float]:
    """Run the jobs of `progress` for `seconds` at most; returns how long each ran."""
    logs.mkdir(parents=True, exist_ok=True)
    start, processes = time.monotonic(), dict[str, tuple[subprocess.Popen[bytes], IO[bytes], float]]()
    took = dict[str, float]()
    while True:
        now = time.monotonic() - start
        while now < seconds and (job := progress.begin()):
            share, gpus = progress.running[job.name]
            command = job.command.format(processors=share, seconds=int(min(seconds - now - WRITING, ANY)))
            words = [sys.executable if word == "python" else word for word in shlex.split(command)]
            if job.patient:
                words = ["nice", "-n", str(PATIENT), *words]
            device = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
            output = (logs / f"{job.name}.log").open("wb")
            process = subprocess.Popen(
                words, cwd=root, env=os.environ | job.environment | device, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            if job.patient:
                with contextlib.suppress(OSError):  # where Linux shares processors between sessions first
                    Path(f"/proc/{process.pid}/autogroup").write_text(str(PATIENT), encoding="ascii")
            processes[job.name] = process, output, now
        if not processes:
            return took
        for name, (process, output, began) in list(processes.items()):
            if now >= seconds:
                _terminate(process)
            if (code := process.poll()) is not None:
                output.close()
                took[name] = now - began
                progress.end(name, None if now >= seconds and code < 0 else code)
                del processes[name]
                print(f"{name}: {_words(progress.ended[name])} after {took[name]:.0f} s", flush=True)
        time.sleep(0.2)


def _words(code: int | None) -> str:
    """How a job ended, by its exit status."""
    return {0: "done", None: "not done: no time, or what it needs failed"}.get(code, f"failed ({code})")


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End a job and what it started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(GRACE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def without_digest(entries: Iterable[Entry], digests: Digests) -> str:
    """Why one of the entries has no digest, or nothing: its command would run for long and then stamp nothing."""
    for entry in entries:
        try:
            for name in entry.rests_on:
                digests.of(name)
        except UnknownDigest as error:
            return f"{entry.name}: {error}"
    return ""


def main() -> int:
    """Renew; returns the exit status."""
    parser = argparse.ArgumentParser(description="renew several results at the same time")
    parser.add_argument("names", nargs="*", metavar="NAME", help="results or steps; without one, all stale results of the plan")
    parser.add_argument("--processors", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--gpus", type=int, default=1, help="how many; what needs more is left out")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--logs", type=Path, default=LOGS, metavar="FOLDER")
    parser.add_argument("--list", action="store_true", help="print what would run, in order")
    options = parser.parse_args()
    registry = read_registry()
    plan = read_plan(registry)
    if unknown := set(options.names) - plan.keys():
        parser.error(f"no entry of {PLAN.name}: {', '.join(sorted(unknown))}")
    names = options.names or [
        name for name, state in states_of(ROOT, registry).items() if state.state != "fresh" and name in plan
    ]
    jobs = [job for job in chosen(plan, names) if job.gpus <= options.gpus]
    if options.list:
        print("\n".join(f"{job.name:20} {job.share(options.processors):3}  {job.command}" for job in jobs))
        return 0
    if problem := without_digest((registry[job.name] for job in jobs if job.name in registry), Digests(ROOT)):
        print(f"error: {problem}")
        return 3
    progress = Progress(jobs, options.processors, list(range(options.gpus)))
    took = run(progress, options.seconds, options.logs)
    codes = {job.name: progress.ended.get(job.name) for job in jobs}
    rows = [(name, _words(code), f"{took.get(name, 0):.0f}") for name, code in codes.items()]
    print("\n".join(grid(("job", "end", "seconds"), rows, left=2)))
    return 1 if any(codes.values()) else 3 if None in codes.values() else 0


if __name__ == "__main__":
    sys.exit(main())
