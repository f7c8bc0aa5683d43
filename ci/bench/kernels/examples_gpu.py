"""Checks and times the kernels of `examples/kernels` on this machine's GPU, called through `tilec.op` on torch tensors.

    tilec build --project examples/kernels --arch sm_90          makes the artifacts; needs the compiler, no GPU
    python ci/bench/kernels.py examples_gpu [FOLDER] [--only KERNELS] [--out FOLDER]

FOLDER is an output of `tilec build` (default: `examples/kernels/artifacts/build`), with the kernels of the project around it.
Each kernel is compared with torch in float64 at an odd size and at the timed size (`examples_problems.py` defines sizes and
allowed errors). Then the kernel, torch's operator, torch's add of as many bytes, and torch's copy or sum of as many (whichever
has a more similar mix of reads and writes) are timed alternately, each in a CUDA graph over tensors of more bytes than the L2
cache holds. Status 1 if one is wrong or below its required share of the rate of torch's add.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tilec
from ci.bench import front, markdown
from ci.bench.front import Outcome
from ci.evidence import ROOT
from tilec.runtime import TRUSTED

if TYPE_CHECKING:
    from ci.bench.kernels.clock import Timing
    from ci.bench.kernels.examples_problems import Problem, Sizes

BUILT: Final = ROOT / "examples/kernels/artifacts/build"
SETS_BYTES: Final = 200 << 20
"""Total bytes of a problem's argument sets: more than three times the L2 cache of an H200."""
HEAD: Final = """\
{where}: kernels of `examples/kernels`
through `tilec.op` on torch tensors, random data. Error: the largest difference from float64 in units of what is allowed
(`ci/bench/kernels/examples_problems.py`), at an odd size and at the timed size; 0 where a kernel moves what it reads.
TB/s: the bytes that must be read and written at least. Shares: of the rate of torch's add with as many bytes in the same run,
in brackets where memory is not what bounds the kernel, and of the rate of torch's copy, or of its sum where a kernel writes
next to nothing. Times are medians, with the 10th and 90th percentile; torch's operator is that of `baseline.py` there."""
SHARE: Final = 0.9
"""Required share of the rate of torch's add, for memory-bound kernels."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("folder", nargs="?", type=Path, default=BUILT)
    parser.add_argument("--only", type=front.names, default=[], metavar="KERNELS")


def measure(options: argparse.Namespace) -> Outcome:
    """Check and time every kernel that was built."""
    from ci.bench.kernels.examples_problems import PROBLEMS, torch

    rows: list[Row] = []
    for problem in PROBLEMS:
        if not options.only or problem.kernel in options.only:
            found = measured(options.folder, problem)
            print(*(markdown.line(row.cells) for row in found), sep="\n", flush=True)
            rows += found
    data = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": [asdict(row) for row in rows]}
    status = int(not rows or not all(row.is_good for row in rows))
    where = f"{data['gpu']}, PyTorch {data['torch']}, by `ci/bench/kernels.py examples_gpu`"
    return Outcome(data, {f"{options.name}.md": table(where, rows)}, status)


@dataclass
class Row:
    """One kernel. Times are in microseconds."""

    kernel: str
    size: str
    constants: dict[str, Any]
    memory_bound: bool
    bytes: int
    mix: str
    tested: list[str] = field(default_factory=list[str])
    error: float = 0.0
    time: Timing | None = None
    torch_time: Timing | None = None
    add_time: Timing | None = None
    mix_time: Timing | None = None
    problem: str = ""

    def share_of(self, other: Timing | None) -> float:
        """Share of the rate of another operator with as many bytes; 0 if one was not timed."""
        return other.median / self.time.median if self.time and other else 0.0

    @property
    def is_good(self) -> bool:
        """Whether it is correct, and fast enough if memory-bound."""
        return not self.problem and (not self.memory_bound or self.share_of(self.add_time) >= SHARE)

    @property
    def cells(self) -> list[str]:
        """Its row of the table."""
        first = [f"`{self.kernel}`", self.size, f"{self.error:.2f}"]
        constants = " ".join(f"{name}={value}" for name, value in self.constants.items())
        if self.time is None or self.torch_time is None:
            return [*first, self.problem or "not timed", "", "", "", "", constants]
        share = f"{self.share_of(self.add_time):.2f}" if self.memory_bound else f"({self.share_of(self.add_time):.2f})"
        other = f"{self.share_of(self.mix_time):.2f} of {self.mix}" if self.mix_time else ""
        time = f"{self.time.median:.1f} ({self.time.low:.1f} to {self.time.high:.1f})"
        rate = f"{self.bytes / self.time.median * 1e-6:.2f}"
        return [*first, time, rate, share, other, f"{self.torch_time.median:.1f}", constants]


def table(where: str, rows: list[Row]) -> str:
    """The rows, after what they mean."""
    header = ("kernel", "size", "error", "us", "TB/s", "share of add", "of copy or sum", "torch, us", "constants")
    lines = ["# The examples on a GPU", "", HEAD.format(where=where), ""]
    return markdown.page([*lines, *markdown.grid(header, [row.cells for row in rows], left=2)])


def constants_of(folder: Path, problem: Problem, sizes: Sizes) -> dict[str, Any] | None:
    """The constants of the built specialisation for these sizes; None if there is none."""
    for path in sorted((folder / "sm_90a").glob(f"{problem.kernel}-*.json")):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = manifest["constants"]
        if manifest["kernel"] == problem.kernel and all(found.get(name, value) == value for name, value in sizes.items()):
            return dict(found)
    return None


def function_of(project: Path, file: str, name: str) -> Any:
    """A function of a file of a project: a kernel, or torch's operator."""
    spec = importlib.util.spec_from_file_location(f"{project.name}_{file}", project / f"{file}.py")
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def call_of(folder: Path, problem: Problem, constants: dict[str, Any]) -> Callable[..., Any]:
    """The kernel as a function; constants that differ at the odd size are left to the shapes."""
    kernel = function_of(folder.parent.parent, problem.kernel, problem.kernel)
    given = {one: value for one, value in constants.items() if problem.odd.get(one, value) == problem.sizes.get(one, value)}
    values, name = dict.fromkeys(problem.vouched, TRUSTED), f"examples::{problem.kernel}"
    return tilec.op(kernel, constants=given, values=values, prebuilt=folder, name=name)


def times(call: Callable[..., Any], problem: Problem, baseline: Callable[..., Any], nbytes: int) -> Mapping[str, Timing]:
    """Alternating timings of the kernel, torch's operator, torch's add and its copy or sum. Results are kept until their set is
    used again, so that each set has separate memory for them."""
    from ci.bench.kernels import clock
    from ci.bench.kernels.examples_problems import torch

    count = max(2, -(-SETS_BYTES // nbytes))
    sets = [problem.inputs(problem.sizes, 2 + number) for number in range(count)]
    adds = [[torch.randn(nbytes // 6, device="cuda", dtype=torch.bfloat16) for _ in range(3)] for _ in range(count)]

    def keep(function: Callable[..., Any], given: Mapping[str, Any]) -> Callable[[], None]:
        kept: list[Any] = [None]

        def run() -> None:
            kept[0] = function(**given)

        return run

    def theirs(**given: Any) -> Any:
        known = {**given, **problem.sizes, "E": problem.element}
        return baseline(**{name: known[name] for name in inspect.signature(baseline).parameters})

    alternatives: dict[str, list[Any]] = {
        "tilec": [keep(call, given) for given in sets],
        "torch": [keep(theirs, given) for given in sets],
        "add": [partial(torch.add, x, y, out=out) for x, y, out in adds],
    }
    if problem.mix == "copy":
        pairs = (torch.randn(2, nbytes // 4, device="cuda", dtype=torch.bfloat16) for _ in range(count))
        alternatives["mix"] = [partial(out.copy_, x) for x, out in pairs]
    elif problem.mix:
        alternatives["mix"] = [partial(torch.sum, torch.randn(nbytes // 4, device="cuda")) for _ in range(count)]
    with torch.no_grad():
        return clock.measure(alternatives, expected_us=max(2.0, nbytes / 4e6))


def measured(folder: Path, problem: Problem) -> list[Row]:
    """Check a kernel of a folder and time it; empty if the folder has none."""
    from ci.bench.kernels.examples_problems import checked, torch

    constants = constants_of(folder, problem, problem.sizes)
    if constants is None:
        return []
    row = Row(problem.kernel, problem.size, constants, problem.memory_bound, problem.bytes(problem.sizes), problem.mix)
    try:
        call = call_of(folder, problem, constants)
        for sizes in (problem.odd, problem.sizes):
            if constants_of(folder, problem, sizes) is None:
                continue
            inputs = problem.inputs(sizes, 1)
            found = checked(problem, inputs, problem.results(call, inputs))
            row.error = max(row.error, found.error)
            row.tested.append(", ".join(f"{name}={value}" for name, value in sizes.items()))
            if found.wrong:
                row.problem = found.wrong
                return [row]
        baseline = function_of(ROOT / "examples/kernels", "baseline", problem.kernel)
        timings = times(call, problem, baseline, row.bytes)
        row.time, row.torch_time, row.add_time = timings["tilec"], timings["torch"], timings["add"]
        row.mix_time = timings.get("mix")
    except Exception as error:  # a failure of one kernel only affects its row
        traceback.print_exc()
        row.problem = f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        torch.cuda.empty_cache()
    return [row]
