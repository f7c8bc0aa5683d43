"""Runs the engine's own command on forged model folders, and watches what it does.

python -P tests/fuzz/model_checker.py WORK FIRST LAST

Forges the folders of the seeds from FIRST to before LAST in WORK, one after the other. For each, the command generates text on
the interpreter, in this process, with the folder as working directory. A line of JSON for each goes to stdout: the seed, the
faults, the status, the seconds, and the violations, of which there must be none. An audit hook sees every file that is opened
and every process that is started. This process limits its memory; the caller limits its time.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from engine import cli, entry  # noqa: E402
from engine.text import template_worker  # noqa: E402
from engine.text.template_process import SHARED  # noqa: E402
from engine.tools.tiny import write_tiny_model  # noqa: E402
from tests.fuzz.model_folders import CANARY, forge  # noqa: E402

MEMORY_BYTES: Final = 4 << 30
"""Limit of the address space of the process, mappings included."""

CPU_SECONDS: Final = 0.5
"""Processor time of a template, instead of the usual three seconds."""

STATUSES: Final = (0, 2, 3, 5)
FORBIDDEN: Final = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.remove", "os.rename", "os.rmdir",
    "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate", "os.utime", "shutil.rmtree", "shutil.move",
    "socket.connect", "socket.bind", "socket.getaddrinfo", "pickle.find_class", "ctypes.dlopen", "webbrowser.open",
    "urllib.Request",
)  # fmt: skip
LIBRARIES: Final = tuple(
    os.path.realpath(location) for location in (sys.prefix, sys.base_prefix, sys.exec_prefix, ROOT, *sys.path) if location
)
"""Where files of the engine and its dependencies may be opened for reading."""

SYSTEM: Final = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/null", "/etc/localtime", "/proc/self/maps", "/proc/cpuinfo",
    "/proc/meminfo", "/proc/stat", "/sys/",
)  # fmt: skip
"""Where its libraries look for files."""


class Watch:
    """Records violations while `folder` is set."""

    def __init__(self) -> None:
        self.folder = ""
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event == "open":
            self._opened(*arguments)
        elif event == "subprocess.Popen":
            worker = os.path.realpath(template_worker.__file__)
            if list(arguments[1][:4]) != [sys.executable, "-I", "-S", worker]:
                self.seen.append(f"started {arguments[1]!r}"[:300])
        elif event in FORBIDDEN:
            self.seen.append(f"{event} {arguments!r}"[:300])
        elif event == "exec" and str(arguments[0].co_filename).startswith((self.folder, "<template")):
            self.seen.append(f"ran {arguments[0].co_filename}")

    def _opened(self, path: Any, mode: Any, flags: int) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        location = os.path.realpath(os.fsdecode(path))
        ours = location.startswith(self.folder + os.sep)
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (
            isinstance(mode, str) and any(c in mode for c in "wax+")
        )
        if ours and location.endswith((".py", ".pyc", ".so")):
            self.seen.append(f"imported {location}")
        elif writes and location != "/dev/null":
            self.seen.append(f"wrote {location}")
        elif not ours and not location.startswith((*LIBRARIES, *SYSTEM)):
            self.seen.append(f"opened {location}")


def answer(folder: Path, scratch: Path) -> tuple[int, str, str]:
    """The status of the command, and its stdout and stderr, including output of libraries."""
    arguments = ["--model", str(folder), "--backend", "interpreter", "--max-seq-len", "48", "--max-new-tokens", "1"]
    arguments += ["--prompt", "hello <|im_end|>", "--no-stream"]
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    names = [scratch / "out", scratch / "err"]
    try:
        for number, name in enumerate(names, 1):
            handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
            os.close(handle)
        WATCH.folder = os.path.realpath(folder)
        try:
            status = cli.run(arguments)
        except ModuleNotFoundError as error:
            status = entry.fail(entry.missing(error))
        finally:
            WATCH.folder = ""
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        for number, handle in enumerate(kept, 1):
            os.dup2(handle, number)
            os.close(handle)
    return status, *(name.read_text(errors="replace") for name in names)


def as_process(folder: Path) -> list[str]:
    """Violations by the command as a separate process with the folder as working directory: the folder's modules must not run.
    `python -m engine` would import a package `engine` of the folder, so the command is run with `-P` in that case."""
    flags = ["-P"] if (folder / "engine.py").exists() else []
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ.get("PATH", "")}
    ended = subprocess.run(
        [sys.executable, *flags, "-m", "engine", "--help"], cwd=folder, env=environment, capture_output=True, check=False
    )
    return [] if (ended.returncode, ended.stderr) == (0, b"") else [f"as a process: {ended.stderr[-300:]!r}"]


def examine(seed: int, good: Path, work: Path) -> dict[str, Any]:
    """Forges the folder of a seed, runs the command, and returns the verdict."""
    location = work / "case" / "model"
    shutil.rmtree(location.parent, ignore_errors=True)
    location.parent.mkdir(parents=True)
    forged = forge(seed, good, location)
    os.chdir(location)
    before = set(os.listdir(location.parent)) | {CANARY}
    WATCH.seen.clear()
    began, spent = time.monotonic(), time.process_time()
    wrong: list[str] = []
    status, out, err = -1, "", ""
    try:
        status, out, err = answer(location, work)
    except BaseException as error:  # any exception that escapes the command is a bug
        wrong.append(f"{type(error).__name__}: {error}"[:300])
    seconds = time.monotonic() - began
    if "modules" in forged:
        wrong += as_process(location)
    os.chdir(work)
    wrong += sorted(set(WATCH.seen))
    if (location.parent / CANARY).exists():
        wrong.append("code of the folder ran")
    if set(os.listdir(location.parent)) - before:
        wrong.append("a file was written next to the folder")
    if status not in STATUSES and not wrong:
        wrong.append(f"status {status}")
    if status > 0 and not re.fullmatch(r"error: [^\n]{1,2000}\n", err):
        wrong.append(f"stderr is not one line: {err[:300]!r}")
    if status == 0 and (err or not out):
        wrong.append(f"an answer, and stderr {err[:300]!r}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"seed": seed, "forged": forged, "status": status, "said": err[:160], "seconds": round(seconds, 2),
            "cpu": round(time.process_time() - spent, 2), "peak_mib": peak, "wrong": wrong}  # fmt: skip


WATCH: Final = Watch()


def main(work: Path, first: int, last: int) -> None:
    """Checks a range of seeds."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    SHARED.cpu_seconds = CPU_SECONDS
    good = work / "good"
    if not good.exists():
        write_tiny_model(good)
    for seed in range(first, last):
        print(json.dumps({"begins": seed}), flush=True)
        print(json.dumps(examine(seed, good, work)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]))
