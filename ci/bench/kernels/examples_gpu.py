"""Checks and times the kernels of `examples/kernels` on this machine's GPU, called through `tilec.op` on torch tensors.

    tilec build --project examples/kernels --arch sm_90          makes the artifacts; needs the compiler, no GPU
    python3 ci/bench/examples_gpu.py [FOLDER ...] [--only KERNELS] [--out FOLDER]

FOLDER is an output of `tilec build` (default: `examples/kernels/artifacts/build`); with several, each is a variant, with the
kernels of the project that contains it. Each kernel is compared with torch in float64 at an odd size and at the timed size
(`examples_problems.py` defines sizes and allowed errors). Then the kernel, torch's operator, torch's add of as many bytes, and
torch's copy or sum of as many (whichever has a more similar mix of reads and writes) are timed alternately, each in a CUDA
graph over tensors of more bytes than the L2 cache holds.
Writes `examples_gpu.json` and `.md`; exit code 1 if one is wrong or below its required share of the rate of torch's add.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "ci/bench"), str(ROOT / "examples/kernels")]

from examples_problems import PROBLEMS, Checked, Problem, checked  # noqa: E402
from gpu_clock import ROUNDS, Timing, measure  # noqa: E402

import tilec  # noqa: E402
from tilec.runtime import TRUSTED  # noqa: E402

torch: Any = importlib.import_module("torch")
BUILT: Final = ROOT / "examples/kernels/artifacts/build"
SETS_BYTES: Final = 200 << 20
"""Total bytes of a problem's argument sets: more than three times the L2 cache of an H200."""
HEAD: Final = """\
{where}: kernels of `examples/kernels`
through `tilec.op` on torch tensors, random data. Error: the largest difference from float64 in units of what is allowed
(`ci/bench/examples_problems.py`), at an odd size and at the one that is timed; 0 where a kernel moves what it reads. TB/s: the
bytes that must be read and written at least. Shares: of the rate of torch's add with as many bytes in the same run, in brackets
where memory is not what bounds the kernel, and of the rate of torch's copy, or of its sum where a kernel writes next to
nothing. Times are medians, with the 10th and 90th percentile; torch's operator is that of `examples/kernels/baseline.py`."""
SHARE: Final = 0.9
"""Required share of the rate of torch's add, for memory-bound kernels."""


@dataclass
class Row:
    """One kernel of one folder. Times are in microseconds, rates in bytes per second."""

    kernel: str
    size: str
    variant: str
    constants: dict[str, Any]
    memory_bound: bool
    bytes: int
    tested: list[str] = field(default_factory=list[str])
    error: float = 0.0
    time: Timing | None = None
    torch_time: Timing | None = None
    add_time: Timing | None = None
    mix: str = ""
    mix_time: Timing | None = None
    problem: str = ""

    @property
    def share(self) -> float | None:
        """Share of the rate of torch's add."""
        return self.add_time.median / self.time.median if self.time and self.add_time else None

    @property
    def mix_share(self) -> float | None:
        """Share of the rate of torch's copy or sum."""
        return self.mix_time.median / self.time.median if self.time and self.mix_time else None

    @property
    def is_good(self) -> bool:
        """Whether it is correct, and fast enough if memory-bound."""
        return not self.problem and (not self.memory_bound or (self.share or 0) >= SHARE)


def constants_of(folder: Path, problem: Problem, sizes: dict[str, int]) -> dict[str, Any] | None:
    """The constants of the built specialisation for these sizes; None if there is none."""
    for path in sorted((folder / "sm_90a").glob(f"{problem.kernel}-*.json")):
        manifest = json.loads(path.read_text())
        found = manifest["constants"]
        if manifest["kernel"] == problem.kernel and all(found.get(name, value) == value for name, value in sizes.items()):
            return dict(found)
    return None


def kernel_of(folder: Path, name: str) -> Any:
    """The kernel in the project that a folder of artifacts belongs to."""
    path = folder.parent.parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{name}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def call_of(folder: Path, problem: Problem, constants: dict[str, Any], name: str) -> Callable[..., Any]:
    """The kernel as a function; constants that differ at the odd size are left to the shapes."""
    kernel = kernel_of(folder, problem.kernel)
    given = {one: value for one, value in constants.items() if problem.odd.get(one, value) == problem.sizes.get(one, value)}
    values = dict.fromkeys(problem.vouched, TRUSTED)
    return tilec.op(kernel, constants=given, values=values, prebuilt=folder, name=name)


def check(call: Callable[..., Any], problem: Problem, sizes: dict[str, int]) -> Checked:
    """The largest difference from float64, in units of the allowed one."""
    inputs = problem.inputs(sizes, 1)
    return checked(problem, inputs, call(**inputs))


def times(call: Callable[..., Any], problem: Problem, nbytes: int, rounds: int) -> dict[str, Timing]:
    """Alternating timings of the kernel, torch's operator, torch's add and its copy or sum. Results are kept until their set is
    used again, so that each set has separate memory for them."""
    baseline = getattr(importlib.import_module("baseline"), problem.kernel)
    count = max(2, -(-SETS_BYTES // nbytes))
    sets = [problem.inputs(problem.sizes, 2 + number) for number in range(count)]
    elements = nbytes // 6
    adds = [[torch.randn(elements, device="cuda", dtype=torch.bfloat16) for _ in range(3)] for _ in range(count)]
    kept: dict[str, list[Any]] = {"tilec": [None] * count, "torch": [None] * count}

    def keep(way: str, number: int, function: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            kept[way][number] = function(**sets[number])

        return run

    def theirs(**given: Any) -> Any:
        known = {**given, **problem.sizes, "E": problem.element}
        return baseline(**{name: known[name] for name in inspect.signature(baseline).parameters})

    def add(x: Any, y: Any, out: Any) -> Callable[[], object]:
        return lambda: torch.add(x, y, out=out)

    def copy(x: Any, out: Any) -> Callable[[], object]:
        return lambda: out.copy_(x)

    def total(x: Any) -> Callable[[], object]:
        return lambda: torch.sum(x)

    alternatives = {
        "tilec": [keep("tilec", number, call) for number in range(count)],
        "torch": [keep("torch", number, theirs) for number in range(count)],
        "add": [add(*one) for one in adds],
    }
    if problem.mix == "copy":
        alternatives["mix"] = [copy(*torch.randn(2, nbytes // 4, device="cuda", dtype=torch.bfloat16)) for _ in range(count)]
    elif problem.mix:
        alternatives["mix"] = [total(torch.randn(nbytes // 4, device="cuda")) for _ in range(count)]
    with torch.no_grad():
        return measure(alternatives, expected_us=max(2.0, nbytes / 4e6), rounds=rounds)


def measured(folder: Path, problem: Problem, rounds: int) -> Row | None:
    """Check a kernel of a folder and time it in `rounds` rounds; None if the folder has none."""
    constants = constants_of(folder, problem, problem.sizes)
    if constants is None:
        return None
    nbytes = problem.bytes(problem.sizes)
    row = Row(problem.kernel, problem.size, folder.parent.parent.name, constants, problem.memory_bound, nbytes, mix=problem.mix)
    try:
        call = call_of(folder, problem, constants, f"{row.variant.replace('-', '_')}::{problem.kernel}")
        for sizes in (problem.odd, problem.sizes):
            if constants_of(folder, problem, sizes) is None:
                continue
            found = check(call, problem, sizes)
            row.error = max(row.error, found.error)
            row.tested.append(", ".join(f"{name}={value}" for name, value in sizes.items()))
            if found.wrong:
                row.problem = found.wrong
                return row
        if rounds:
            timings = times(call, problem, nbytes, rounds)
            row.time, row.torch_time, row.add_time = timings["tilec"], timings["torch"], timings["add"]
            row.mix_time = timings.get("mix")
    except Exception as error:  # a failure of one kernel only affects its row
        traceback.print_exc()
        row.problem = f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        torch.cuda.empty_cache()
    return row


def line(row: Row) -> str:
    """A row of the table."""
    constants = " ".join(f"{name}={value}" for name, value in row.constants.items())
    if row.time is None or row.torch_time is None or row.add_time is None:
        return f"| `{row.kernel}` | {row.size} | {row.error:.2f} | {row.problem or 'not timed'} | | | | | {constants} |"
    rate = row.bytes / row.time.median * 1e-6
    share = f"{row.share:.2f}" if row.memory_bound else f"({row.share:.2f})"
    other = f"{row.mix_share:.2f} of {row.mix}" if row.mix_share else ""
    cells = (
        f"`{row.kernel}`", row.size, f"{row.error:.2f}", f"{row.time.median:.1f} ({row.time.low:.1f} to {row.time.high:.1f})",
        f"{rate:.2f}", share, other, f"{row.torch_time.median:.1f}", constants,
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def report(rows: list[Row], variants: bool) -> str:
    """The table as Markdown."""
    device_text = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, by `ci/bench/examples_gpu.py`"
    lines = ["# The examples on a GPU", "", *HEAD.format(where=device_text).splitlines(), ""]
    lines += [
        "| kernel | size | error | us | TB/s | share of add | of copy or sum | torch, us | constants |"
        + (" variant |" if variants else "")
    ]
    lines += ["|---|---|--:|--:|--:|--:|--:|--:|---|" + ("---|" if variants else "")]
    for row in rows:
        lines.append(line(row) + (f" {row.variant} |" if variants else ""))
    return "\n".join(lines) + "\n"


def main() -> int:
    """Check, time, write; returns 1 if a kernel is wrong or too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[BUILT])
    parser.add_argument("--only", type=lambda text: text.split(","), default=None, metavar="KERNELS")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci/bench/results")))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of times; 0: only check")
    options = parser.parse_args()
    rows: list[Row] = []
    for problem in PROBLEMS:
        if options.only is not None and problem.kernel not in options.only:
            continue
        found = [measured(folder, problem, options.rounds) for folder in options.folders]
        rows += [row for row in found if row is not None]
        for row in rows[len(rows) - sum(row is not None for row in found) :]:
            print(line(row), row.variant, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    data = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": [asdict(row) for row in rows]}
    (options.out / "examples_gpu.json").write_text(json.dumps(data, indent=1) + "\n")
    (options.out / "examples_gpu.md").write_text(report(rows, len(options.folders) > 1))
    return int(not rows or not all(row.is_good for row in rows))


if __name__ == "__main__":
    sys.exit(main())
