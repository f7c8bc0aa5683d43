"""Runs many programs in worker processes: if one dies (LLVM may abort), it costs one program and is replaced.

In: `Job`s. Out: `Outcome`s, of kind `crash` if the worker died or exceeded its time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ci.evidence.verdicts import Line, Verdict, key
from tests.programs.fed_products import fed_program
from tests.programs.generate import Program, odd_program, program, u64_program
from tests.programs.machines import Outcome, examine
from tests.programs.packed_programs import packed_program
from tests.programs.traffic import odd_traffic, traffic
from tilec.target.targets import Target

MAKE = {
    "program": program, "traffic": traffic, "odd program": odd_program, "odd traffic": odd_traffic,
    "fed product": fed_program, "u64 program": u64_program,
    "packed program": packed_program,
}  # fmt: skip
SECONDS = 1200.0


@dataclass(frozen=True, slots=True)
class Job:
    """A program by kind and number, and the machines to run it on. `kept`: the outcome that an earlier run recorded; `basis`:
    the digest of everything that determines an outcome besides program and PTX; `fed`: with a producer, where it can be."""

    kind: str
    number: int
    archs: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    proven: bool = False
    block_machine: bool = False
    basis: str = ""
    kept: Line | None = None
    fed: bool = False

    def key(self, ptx: str) -> str:
        """The cache key of an outcome, with the digest of its PTX: the program and how it runs, and the basis."""
        program, fed = self.make(), ("fed",) if self.fed else ()
        wanted = [str(sorted(one.given().items())) for one in program.schedules]
        how = (self.archs, self.seeds, self.proven, self.block_machine, *fed, *wanted)
        return key(self.kind, program.text, *how, self.basis, ptx)

    def known(self, ptx: str) -> Outcome | None:
        """The recorded outcome, if it was determined by this PTX."""
        if self.kept is None or not ptx or self.key(ptx) not in self.kept.keys:
            return None
        return kept_outcome(self.kept.verdict, ptx)

    def make(self) -> Program:
        """The program."""
        return MAKE[self.kind](self.number)


def kept_outcome(verdict: Verdict, ptx: str = "") -> Outcome:
    """A recorded verdict as an outcome."""
    return Outcome(verdict.word, verdict.detail or "", ptx=ptx)


def examined(job: Job) -> Outcome:
    """The outcome of one job, in this process."""
    targets = tuple(Target.parse(arch) for arch in job.archs)
    try:
        return examine(
            job.make(), targets, seeds=job.seeds, proven=job.proven, block_machine=job.block_machine, fed=job.fed,
            known=job.known,
        )  # fmt: skip
    except Exception as error:  # one failing program must not end a run of thousands; it is counted and named
        return Outcome("error", f"{type(error).__name__}: {error}"[:400])


def _serve(connection: Connection) -> None:
    while True:
        job = connection.recv()
        if job is None:
            return
        connection.send(examined(job))


class _Worker:
    """A process that examines one job at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")  # the server imports the common modules once
        context.set_forkserver_preload([__name__])
        self.connection, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.job: Job | None = None
        self.done = 0

    def assign_job(self, job: Job) -> None:
        self.job = job
        self.connection.send(job)

    def receive_outcome(self) -> Outcome:
        """The result; a crash if the process is gone."""
        try:
            outcome: Outcome = self.connection.recv()
        except EOFError:
            self.process.join()
            return Outcome("crash", f"the worker ended with status {self.process.exitcode}")
        self.done += 1
        return outcome

    def end(self) -> None:
        if self.process.is_alive():
            self.process.terminate()
        self.process.join()
        self.connection.close()


def examine_all(jobs: Iterable[Job], processes: int = 1) -> Iterator[tuple[Job, Outcome]]:
    """Yields outcomes as they arrive. A worker is replaced after a crash, past its time, and after a few hundred programs."""
    waiting = iter(jobs)
    workers: list[_Worker] = []
    try:
        for job in waiting:
            worker = _Worker()
            worker.assign_job(job)
            workers.append(worker)
            if len(workers) == processes:
                break
        while workers:
            ready = wait([worker.connection for worker in workers], SECONDS)
            busy = [worker for worker in workers if worker.connection in ready] or workers[:]
            for worker in busy:
                job = worker.job
                assert job is not None
                timed_out = worker.connection not in ready
                outcome = Outcome("crash", f"took more than {SECONDS:.0f} s") if timed_out else worker.receive_outcome()
                yield job, outcome
                index = workers.index(worker)
                following = next(waiting, None)
                if following is None or outcome.kind == "crash" or worker.done >= 400:
                    worker.end()
                    workers.pop(index)
                    if following is None:
                        continue
                    worker = _Worker()
                    workers.insert(index, worker)
                worker.assign_job(following)
    finally:
        for worker in workers:
            worker.end()
