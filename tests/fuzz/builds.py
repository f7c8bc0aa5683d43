"""Builds under resource limits and signals: each must end in time, report one error, leave no process and no wrong file.

`campaign` runs a number of them, drawn from a seed, and checks each: the output has no traceback; a failed build reports an
error; every artifact on disk equals that of an undisturbed build; none of its processes is left; an undisturbed build on the
same store then succeeds with the right artifacts. Most builds use stub stages instead of the compilers, every tenth the real
ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fuzz.limits import STRANGER, limited, small_disk
from tests.processor_time import ENDED, TICK, Use, family, finish
from tests.project import project

ROOT: Final = Path(__file__).resolve().parents[2]
BUDGET: Final = 600.0
"""Processor seconds of one build, all its processes together."""
COMMAND: Final = """
import sys
import tilec.project.build.driver as driver
from tests.project import fake_stages, project
from tilec import toolchain
toolchain.fingerprint = lambda memo=None, packages=None: project.TOOLCHAIN
driver.build_project.__kwdefaults__ |= {"runner": fake_stages.run, "preload": ()}
from tilec.__main__ import main
sys.argv = ["tilec", "build", "-j", "2"]
exec(sys.stdin.read())
main()
"""
"""The unchanged command with stub stages; it executes the code on stdin first."""
REAL: Final = """
import sys
from tilec.__main__ import main
sys.argv = ["tilec", "build", "-j", "2"]
exec(sys.stdin.read())
main()
"""
READY: Final = "open({0!r}, 'w').close()\n"
"""Code for stdin: its file appears once Python and this script are loaded; all that follows is the command's doing."""
KERNEL: Final = '''"""Copy."""
import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, f32, grid, load, store


class N(Dim):
    """Elements."""


@tilec.kernel
def copy_a(x: In[f32, N], out: Out[f32, N], *, BLOCK: Const):
    grid(cdiv(N, BLOCK))
    store(out, bid(0), load(x, bid(0), shape=BLOCK, pad=0), mask=True)
'''
SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Fault:
    """One fault: `kind` with a limit of `most`, or a signal after `seconds`, to the command or to all its processes."""

    kind: str
    most: int = 0
    seconds: float = 0.0
    sent: int = 0
    real: bool = False


@dataclass
class Outcome:
    """The outcome of a build and its processor seconds; `wrong` lists every violation."""

    fault: Fault
    status: int
    seconds: float
    ended: str = ENDED
    wrong: list[str] = field(default_factory=list[str])


def draw(rng: random.Random, number: int, usual: float) -> Fault:
    """A random fault; `usual` is the duration of an undisturbed build."""
    real = number % 10 == 9
    kind = rng.choice(("address space", "open files", "file size", "processes", "disk", "killed", "killed", "worker killed"))
    if kind == "address space":
        return Fault(kind, int(2 ** rng.uniform(25.5, 32)), real=real)
    if kind == "open files":
        return Fault(kind, rng.randrange(3, 40), real=real)
    if kind == "file size":
        return Fault(kind, rng.choice((0, 1, 100, 4096, 20_000, 100_000)), real=real)
    if kind == "processes":
        return Fault(kind, rng.randrange(1, 8), real=real)
    if kind == "disk":
        return Fault(kind, rng.choice((4096, 40_960, 131_072, 262_144)), real=real)
    return Fault(kind, seconds=rng.uniform(0, usual), sent=rng.choice(SIGNALS), real=real)


@contextlib.contextmanager
def owned_by_the_builder(fault: Fault, store: Path) -> Generator[None]:
    """Gives the store to the build's user while it runs as another user (`limits`), because nobody uses a store of somebody
    else."""
    if fault.kind != "processes" or os.geteuid() != 0:
        yield
        return
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    _give(store, STRANGER)
    try:
        yield
    finally:
        _give(store, 0)


def _give(store: Path, user: int) -> None:
    for path in (store, *store.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            os.chown(path, user, user, follow_symlinks=False)


def heeding_signals(before: Callable[[], None] | None) -> Callable[[], None]:
    """Runs `before` a child starts, and resets every signal that is sent here to its default: a shell's background job ignores
    SIGINT, `nohup` ignores SIGHUP, and children inherit that."""

    def apply() -> None:
        for number in SIGNALS[1:]:
            signal.signal(number, signal.SIG_DFL)
        if before is not None:
            before()

    return apply


class Campaign:
    """Projects, reference artifacts, and the runs on them, all in `folder`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.roots = {False: project.make(folder / "fake"), True: project.make(folder / "real", ("copy_a",), '"sm_90"')}
        (self.roots[True] / "kernels_src" / "copy_a.py").write_text(KERNEL)
        self.right: dict[bool, dict[str, bytes]] = {}
        self.usual: dict[bool, float] = {}
        self.outcomes: list[Outcome] = []

    def command(self, real: bool) -> list[str]:
        """The command line of the build."""
        return [sys.executable, "-P", "-c", REAL if real else COMMAND]

    def start(
        self, real: bool, store: Path, last_word: str = "", before: Callable[[], None] | None = None
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Starts a build in a session of its own, and waits for its first line."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TILEC_CACHE_DIR": str(store), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            self.command(real), cwd=self.roots[real], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True, preexec_fn=heeding_signals(before),
        )  # fmt: skip
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin is not None
            process.stdin.write(READY.format(str(ready)) + last_word)
            process.stdin.close()
        process.stdin = None
        while not ready.exists() and process.poll() is None:
            time.sleep(0.005)
        return process

    def undisturbed(self, real: bool, store: Path) -> tuple[int, str]:
        """Status and errors of a build without a fault."""
        process = self.start(real, store)
        _, output, _ = finished(process)
        return process.returncode, output

    def prepare(self) -> None:
        """Records the right artifacts and the time of an undisturbed build."""
        for real, root in self.roots.items():
            start = time.monotonic()
            status, output = self.undisturbed(real, self.folder / "reference" / str(real))
            assert status == 0, output
            self.usual[real] = time.monotonic() - start
            self.right[real] = outputs(root)
            assert self.right[real]

    def run(self, count: int) -> list[Outcome]:
        """Tries `count` faults, one after the other."""
        self.prepare()
        for number in range(count):
            self.outcomes.append(self.one(draw(self.rng, number, self.usual[number % 10 == 9])))
        return self.outcomes

    def one(self, fault: Fault) -> Outcome:
        """Injects one fault and checks the outcome."""
        store = self.folder / "store"
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(self.roots[fault.real] / "artifacts", ignore_errors=True)
        for path in self.roots[fault.real].glob("sleeping-*"):
            path.unlink()
        if fault.kind == "disk":
            with small_disk(store, fault.most) as allowed:
                outcome = self.disturbed(fault, store if allowed else self.folder / "other")
        else:
            with owned_by_the_builder(fault, store):
                outcome = self.disturbed(fault, store)
        status, output = self.undisturbed(fault.real, store)
        if status != 0 or "Traceback" in output:
            outcome.wrong.append(f"the next build: status {status}: {output[-500:]}")
        elif odd := sorted(name for name, _ in outputs(self.roots[fault.real]).items() ^ self.right[fault.real].items()):
            outcome.wrong.append(f"the next build made other artifacts: {', '.join(dict.fromkeys(odd))}")
        return outcome

    def disturbed(self, fault: Fault, store: Path) -> Outcome:
        """The build with the fault."""
        last_word, before = "", None
        if fault.kind in ("address space", "open files", "file size"):
            last_word = f"from tests.fuzz.limits import limited; limited({fault.kind!r}, {fault.most})()\n"
        elif fault.kind == "processes":
            before = limited(fault.kind, fault.most)
        process = self.start(fault.real, store, last_word, before)
        session = process.pid
        if fault.sent:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(fault.seconds)
            victims = [process.pid] if fault.kind == "killed" else [pid for pid in family(session) if pid != process.pid]
            if victims and process.poll() is None:
                with contextlib.suppress(OSError):
                    os.kill(self.rng.choice(victims), fault.sent)
        ended, output, used = finished(process)
        outcome = Outcome(fault, process.returncode, round(used, 3), ended)
        self.examine(outcome, session, output)
        return outcome

    def examine(self, outcome: Outcome, session: int, output: str) -> None:
        """Every violation."""
        wrong = outcome.wrong
        if outcome.ended != ENDED:
            wrong.append(f"it did not end: {outcome.ended}")
        if "Traceback" in output:
            wrong.append(f"a traceback: {output[-700:]}")
        if outcome.fault.kind != "killed" and outcome.status != 0 and "error" not in output:
            wrong.append(f"status {outcome.status} without an error: {output[-300:]!r}")
        if outcome.fault.sent in (0, *SIGNALS[:2]) and "interrupted" in output:
            wrong.append("nobody interrupted it")
        use = Use(session, BUDGET, still=30.0)
        while family(session) and not use.look():
            time.sleep(TICK)
        for pid in family(session):
            wrong.append(f"a process is left: {pid}")
            os.kill(pid, signal.SIGKILL)
        right = self.right[outcome.fault.real]
        for name, data in outputs(self.roots[outcome.fault.real]).items():
            if ".tmp-" in name:
                if outcome.fault.sent == 0:
                    wrong.append(f"a temporary file is left: {name}")
            elif right.get(name) != data:
                wrong.append(f"a wrong artifact: {name}")


def finished(process: subprocess.Popen[str]) -> tuple[str, str, float]:
    """Waits for a build. Returns its end, its output and its processor seconds. For a build over its budget, or one that hangs,
    the end says what its processes were doing."""
    stood: list[str] = []

    def look() -> None:
        stood.extend(f"{pid} {_where(pid)}" for pid in family(process.pid))

    how, output, used = finish(process, BUDGET, at_end=look)
    return "; ".join((how, *stood)), output, used


def _where(pid: int) -> str:
    """State, processor time and system call of a process (proc(5))."""
    with contextlib.suppress(OSError, IndexError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        waits = Path(f"/proc/{pid}/wchan").read_text()
        return f"{words[0]}, {words[11]}+{words[12]} ticks, {waits}, {Path(f'/proc/{pid}/syscall').read_text().strip()}"
    return "has ended"


def outputs(root: Path) -> dict[str, bytes]:
    """The files in `artifacts/build` after a build."""
    folder = root / "artifacts" / "build"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*")) if path.is_file()}


def campaign(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Runs `count` faulty builds in `folder`; returns counts, worst times by kind, and violations."""
    outcomes = Campaign(folder, seed).run(count)
    kinds: dict[str, dict[str, Any]] = {}
    for one in outcomes:
        row = kinds.setdefault(one.fault.kind, {"builds": 0, "failed": 0, "worst_seconds": 0.0})
        row["builds"] += 1
        row["failed"] += one.status != 0
        row["worst_seconds"] = max(row["worst_seconds"], one.seconds)
    return {
        "seed": seed,
        "builds": len(outcomes),
        "real": sum(one.fault.real for one in outcomes),
        "kinds": dict(sorted(kinds.items())),
        "worst_seconds": max(one.seconds for one in outcomes),
        "budget_seconds": BUDGET,
        "wrong": [asdict(one) for one in outcomes if one.wrong],
    }
