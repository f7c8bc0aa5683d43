"""Checks and times models that two GPUs share, compared with one GPU, and the all-reduce with NCCL's.

    python3 ci/bench/engine.py ranks_check artifacts/bundles [--parts qwen3-4b,all_reduce,kill] [--budget 400] [--resume]

Needs a machine with two GPUs, torch for NCCL, and for each model the bundle of one GPU and the one of `--gpus 2`. Weights are
random. Parts, in the order in which they run:

- A model, on one GPU and on two: milliseconds of a prompt, tokens per second of decode, and logits of a prompt's last token and
  of teacher-forced decode steps, compared between one and two GPUs. What rounding does is measured on one GPU: logits of the
  same tokens as one prompt and as decode steps, which add in other orders. Twenty prompts have the same bits. Rows over pages:
  milliseconds of a step, and whether a row has the same bits alone and among others.
- `all_reduce`: sums of 16 KB to 8 MB, in CUDA graphs: the kernel of prompts and that of decode steps, and NCCL's without NVLink
  multicast. 1000 sums with delays at random have the same bits, in both ranks, as the sum in f32 in the order of ranks.
- `kill`: a rank is killed while it generates: seconds until there is an error, and until the other process is gone.
- `repeats`: 1000 decode steps on two GPUs have the same bits.
- `planted`: a rank has the weights of another, which the comparison of logits sees.

Every part is a process of its own or several, and ends by itself, with the place where it is, if it takes too long (`LIMITS`);
then the others still run. The result is written after each, and has what a part found before it failed. `--budget`: no part
lasts beyond so many seconds. `--resume`: keep what the folder of results has of other parts. `--one-gpu`: both ranks take turns
on one GPU, with a few layers and no times, to see whether anything works at all.

Exit status 1 if a part failed, bits differ, logits are further apart than `MOST_APART` times what rounding does
(`ranks_report`), or a kill takes longer than a second.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.engine.ranks_parts import GPUS, LAYERS, Asked, array_file, bundle_of, distances, run_part
from ci.bench.engine.ranks_report import report, right
from ci.bench.front import Outcome, Unfinished, earlier, names
from ci.bench.markdown import page
from engine.errors import DeviceError
from engine.ranks.peers import DriverCalls

SMALL: Final = "qwen3-4b"
MIXTURE: Final = "qwen3-30b-a3b"
ALL_REDUCE: Final = "all_reduce"
OF_MODEL: Final = {ALL_REDUCE: SMALL, "kill": SMALL, "repeats": SMALL, "planted": MIXTURE}
"""The model that a part takes which is no model."""
DEFAULT: Final = (MIXTURE, f"{MIXTURE}-fp8", ALL_REDUCE, SMALL, "qwen3-32b", "kill", "repeats", "planted")
LIMITS: Final = {"one": 75, "two": 75, ALL_REDUCE: 75, "kill": 50, "repeats": 50, "planted": 50}
"""Seconds that a part may take."""
LEAST_SECONDS: Final = 15.0
"""No part begins with less time."""
MORE_SECONDS: Final = 5
"""How much longer is waited for a part, or a rank, before it is killed."""
GONE_SECONDS: Final = 10.0
"""How long is waited for a killed process."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", help="folder of the bundles", type=Path)
    parser.add_argument("--parts", default=",".join(DEFAULT), help="models, and: " + ", ".join(OF_MODEL))
    parser.add_argument("--resume", action="store_true", help="keep what the folder of results has of other parts")
    parser.add_argument("--one-gpu", action="store_true", help="both ranks on one GPU, a few layers, no times")
    parser.add_argument("--child", nargs=3, metavar=("PART", "MODEL", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=max(LIMITS.values()), help=argparse.SUPPRESS)


def measure(options: argparse.Namespace) -> Iterable[Outcome] | int:
    """All parts, or one of them in a process of its own."""
    if options.child is None:
        return _outcomes(options)
    part, model, file = options.child
    faulthandler.dump_traceback_later(options.seconds, exit=True)  # a wait for a GPU has no end of its own
    run_part(Asked(part, model, options.bundles, Path(file), options.one_gpu, LAYERS if options.one_gpu else 0))
    return 0


def _outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    """What was found so far, after each part."""
    asked = names(options.parts)
    refuse(options.bundles, asked, options.one_gpu)
    found: dict[str, Any] = {"models": {}, "failed": {}, "seconds": {}}
    found |= earlier(options) if options.resume else {}
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(options, Path(folder), found)
        for name in asked:
            for _ in parts.of_model(name) if name not in OF_MODEL else parts.other(name):
                lines = report(found)
                status = int(not right(found))
                yield Outcome(found, {f"{options.name}.md": page(lines)}, status, whole=not options.resume)


def refuse(bundles: Path, asked: Sequence[str], one_gpu: bool) -> None:
    """SystemExit with a line, before anything is written, unless there are two GPUs that reach each other, and all bundles."""
    count = 1 if one_gpu else GPUS
    try:
        calls = DriverCalls()
        found = int(calls.call("cuDeviceGetCount"))
        devices = [calls.call("cuDeviceGet", number) for number in range(min(count, found))]
        pairs = [(one, other) for one in devices for other in devices if one is not other]
        reached = all(int(calls.call("cuDeviceCanAccessPeer", one, other)) for one, other in pairs)
    except DeviceError as error:
        raise SystemExit(f"ranks_check needs {count} GPUs: {error.what}") from None
    if found < count:
        raise SystemExit(f"ranks_check needs {count} GPUs, and CUDA shows {found}")
    if not reached:
        raise SystemExit("ranks_check needs GPUs that reach each other's memory")
    if one_gpu and ALL_REDUCE in asked:
        raise SystemExit(f"`{ALL_REDUCE}` needs a GPU for each rank")
    models = dict.fromkeys(OF_MODEL.get(name, name) for name in asked)
    files = [bundle_of(bundles, model, gpus) for model in models for gpus in (1, GPUS)]
    absent = [str(file) for file in files if not file.is_file()]
    if absent:
        raise SystemExit(f"{', '.join(absent)} not found: `tilec bundle pack --model NAME --gpus 1,2 --arch sm_90`")


class Failed(Exception):
    """A part did not end as it should; the message is a line."""


class Parts:
    """Runs parts in processes, and keeps what they find in `found`, also of those that fail."""

    def __init__(self, options: argparse.Namespace, folder: Path, found: dict[str, Any]) -> None:
        self._options, self._folder, self._found, self._began = options, folder, found, time.monotonic()

    def of_model(self, model: str) -> Iterator[None]:
        """A model on one GPU, and on two; stops after each."""
        record: dict[str, Any] = {}
        self._found["models"][model] = record
        for half in ("one", "two"):
            record[half] = self._run(half, model)
            logits = [array_file(self._file(one, model)) for one in ("one", "two")]
            if half == "two" and all(file.is_file() for file in logits):
                record["apart"] = apart(*logits)
            yield

    def other(self, name: str) -> Iterator[None]:
        """A part that is no model."""
        self._found.pop(name, None)
        found = self._run(name, OF_MODEL[name])
        if found:
            self._found[name] = found
        yield

    def _run(self, part: str, model: str) -> dict[str, Any]:
        """What a part found, whether it failed, which is recorded, or not."""
        name, began = part if part in OF_MODEL else f"{model}, {part}", time.monotonic()
        failed, file = self._found["failed"], self._file(part, model)
        failed.pop(name, None)
        seconds = min(LIMITS[part], self._left())
        print(f"-- {name}, at most {seconds:.0f} s", file=sys.stderr, flush=True)
        commands = self._all_reduce(model, file, seconds) if part == ALL_REDUCE else [self._child(part, model, file, seconds)]
        try:
            _waited([_started(command) for command in commands], seconds + MORE_SECONDS, name)
        except Failed as error:
            failed[name] = str(error)
        self._found["seconds"][name] = spent = time.monotonic() - began
        if name in failed and spent >= seconds:
            failed[name] += f", after its {seconds:.0f} s"
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if "error" in found:
            failed[name] = f"{failed.get(name, name)}: {found.pop('error')}"
        return found

    def _left(self) -> float:
        """Seconds that are left; Unfinished if they are too few for a part."""
        budget: float | None = self._options.budget
        left = float("inf") if budget is None else budget - MORE_SECONDS - (time.monotonic() - self._began)
        if left < LEAST_SECONDS:
            raise Unfinished(f"{len(self._found['seconds'])} parts have run within {budget:.0f} s")
        return left

    def _file(self, part: str, model: str) -> Path:
        return self._folder / f"{part}-{model}.json"

    def _child(self, part: str, model: str, file: Path, seconds: float) -> list[str]:
        front = [sys.executable, str(Path(__file__).parents[1] / "engine.py"), "ranks_check", str(self._options.bundles)]
        more = ["--one-gpu"] if self._options.one_gpu else []
        return [*front, "--child", part, model, str(file), "--seconds", str(seconds), *more]

    def _all_reduce(self, model: str, file: Path, seconds: float) -> list[list[str]]:
        """The ranks of the sums, a process each (`ci.bench.engine.all_reduce`)."""
        bundle = bundle_of(self._options.bundles, model, GPUS)
        command = [sys.executable, "-m", "ci.bench.engine.all_reduce", str(bundle), str(file)]
        return [[*command, str(rank), str(GPUS), str(seconds)] for rank in range(GPUS)]


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(dict.fromkeys(str(Path(one or ".").resolve()) for one in sys.path))
    return subprocess.Popen(command, env={**os.environ, "NCCL_NVLS_ENABLE": "0", "PYTHONPATH": path})


def _waited(processes: Sequence[subprocess.Popen[bytes]], seconds: float, what: str) -> None:
    """Wait until all processes have ended well. Failed once one ends otherwise or the time is over; then none is left. Ranks
    that a process started end with it."""
    until = time.monotonic() + seconds
    try:
        while True:
            states = [one.poll() for one in processes]  # of all: a rank that failed may be the last
            if None not in states or any(states):
                break
            if time.monotonic() > until:
                raise Failed(f"{what} had not ended after {seconds:.0f} s, and was killed")
            time.sleep(0.1)
        wrong = next((one.returncode for one in processes if one.returncode), 0)
        if wrong:
            raise Failed(f"{what} ended with status {wrong}")
    finally:
        for one in processes:
            if one.poll() is None:
                one.kill()  # it waits for the others on its GPU
            with suppress(subprocess.TimeoutExpired):  # the driver holds it; nothing else can be done
                one.wait(GONE_SECONDS)


def apart(one: Path, two: Path) -> list[float]:
    """The distance of each row of logits between two files of arrays."""
    with np.load(one) as alone, np.load(two) as shared:
        return [float(row) for key in sorted(alone) for row in distances(shared[key], alone[key])]
