"""Wall seconds from `tilec new` to a proven kernel that is benchmarked on this machine's GPU, and that kernel in PyTorch.

    python3 -P ci/bench/new_project_gpu.py [--out FOLDER]

Needs the compiler, a GPU and torch. Every step is a process of its own, in a new folder and with an empty store, so that
nothing is compiled already: `tilec new`, `tilec test`, `tilec bench`, then a torch program that calls the kernel through
`tilec.op`, compiled as it is needed, and beside the project a model of three ops (`torch_ops.py`) under `torch.compile` with
CUDA graphs, against eager. Writes `new_project_gpu.json` and `.md`; exit code 1 where a step fails or the goal is missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
NAME: Final = "softmax"
GOAL_SECONDS: Final = 60.0
"""From `tilec new` to the benchmarked kernel."""
STEP_SECONDS: Final = 300.0
TILEC: Final = ("-P", "-m", "tilec")
SELF: Final = ("-P", str(Path(__file__).resolve()), "--step")
HEAD: Final = """\
{gpu}, PyTorch {torch}, by `ci/bench/new_project_gpu.py`: a new folder, an empty store, each step a process of its own. The goal
is {goal:.0f} s from `tilec new` to the benchmarked kernel."""


@dataclass(frozen=True)
class Step:
    """One process: what it is called, what Python runs, whether it runs in the project's folder, and whether its time counts
    towards the goal."""

    name: str
    arguments: tuple[str, ...]
    in_project: bool = True
    counts: bool = True


@dataclass(frozen=True)
class Done:
    """A step that was run: wall seconds, exit status, the last line that it printed."""

    name: str
    seconds: float
    status: int
    said: str
    counts: bool


STEPS: Final = (
    Step(f"tilec new {NAME}", (*TILEC, "new", NAME), in_project=False),
    Step("tilec test", (*TILEC, "test")),
    Step(f"tilec bench {NAME}", (*TILEC, "bench", NAME)),
    Step("a torch program with `tilec.op`", (*SELF, "call"), counts=False),
    Step("three ops, `torch.compile`, CUDA graphs", (*SELF, "model"), counts=False),
)


def run(steps: Sequence[Step], folder: Path, *, environment: dict[str, str]) -> list[Done]:
    """Run steps one after the other, in `folder` or the project that the first one makes there, up to the first that fails."""
    done: list[Done] = []
    for step in steps:
        place = folder / NAME if step.in_project else folder
        began = time.perf_counter()
        try:
            made = subprocess.run(
                [sys.executable, *step.arguments], cwd=place, env=environment, text=True, check=False, timeout=STEP_SECONDS,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            status, text = made.returncode, made.stdout
        except subprocess.TimeoutExpired:
            status, text = -1, f"still at work after {STEP_SECONDS:.0f} s"
        seconds = time.perf_counter() - began
        print(f"$ {step.name}\n{text.rstrip()}\n[{seconds:.2f} s, exit status {status}]", flush=True)
        lines = text.strip().splitlines() or [""]
        done.append(Done(step.name, seconds, status, lines[-1].strip(), step.counts))
        if status:
            break
    return done


def seconds_to_goal(done: Sequence[Done]) -> float:
    """Of the steps that count."""
    return sum(one.seconds for one in done if one.counts)


def is_good(done: Sequence[Done]) -> bool:
    """All steps were run and none failed, within the goal."""
    return len(done) == len(STEPS) and not any(one.status for one in done) and seconds_to_goal(done) < GOAL_SECONDS


def report(done: Sequence[Done], gpu: str, torch_version: str) -> str:
    """As Markdown."""
    lines = ["# A new project on a GPU", "", *HEAD.format(gpu=gpu, torch=torch_version, goal=GOAL_SECONDS).splitlines(), ""]
    lines += ["| step | seconds | its last line |", "|---|--:|---|"]
    for one in done:
        name = one.name if "`" in one.name else f"`{one.name}`"
        said = " ".join(one.said.split()).replace("|", "\\|")
        lines.append(f"| {name} | {one.seconds:.2f} | {said}{f' (exit status {one.status})' if one.status else ''} |")
    lines.append(f"| from `tilec new` to the benchmarked kernel | {seconds_to_goal(done):.2f} | |")
    return "\n".join(lines) + "\n"


def call_in_torch() -> str:
    """In a project's folder: its kernel in a torch program, compiled as it is needed."""
    import tilec

    torch: Any = importlib.import_module("torch")
    sys.path.insert(0, "kernels_src")
    softmax = tilec.op(getattr(importlib.import_module(NAME), NAME))
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    began = time.perf_counter()
    found = softmax(x)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    wanted = torch.softmax(x.double(), dim=1)
    error = float(((found.double() - wanted).abs() / wanted).max())
    assert error <= 2.0**-7, error
    return f"the first call, compiled as needed: {first:.2f} s; at most {error:.1e} of a result from float64"


def model_in_torch() -> str:
    """The model of `torch_ops.py`: three ops, compiled as they are needed, eager and under `torch.compile` with CUDA graphs."""
    sys.path[:0] = [str(ROOT), str(ROOT / "ci/bench")]
    torch: Any = importlib.import_module("torch")
    torch_ops: Any = importlib.import_module("torch_ops")
    ops = torch_ops.Ops(torch)
    eager = torch_ops.check_eager(torch, ops)
    graphs = torch_ops.check_compiled(torch, ops, "reduce-overhead", False)
    return f"eager: {eager} from float32; with CUDA graphs: {graphs}"


def main() -> int:
    """Run the steps and write what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci/bench/results")))
    parser.add_argument("--step", choices=("call", "model"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print({"call": call_in_torch, "model": model_in_torch}[options.step]())
        return 0
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        print("error: no GPU that PyTorch sees; run it on a machine with one", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as place:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        given = {"PYTHONPATH": paths, "TILEC_CACHE_DIR": f"{place}/store", "NO_COLOR": "1"}
        kept = {name: value for name, value in os.environ.items() if name != "TILEC_PREBUILT"}
        done = run(STEPS, Path(place), environment={**kept, **given})
    gpu, version = str(torch.cuda.get_device_name()), str(torch.__version__)
    data = {"gpu": gpu, "torch": version, "seconds": seconds_to_goal(done), "steps": [asdict(one) for one in done]}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "new_project_gpu.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.out / "new_project_gpu.md").write_text(report(done, gpu, version))
    print(report(done, gpu, version))
    return int(not is_good(done))


if __name__ == "__main__":
    sys.exit(main())
