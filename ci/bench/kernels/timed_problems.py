"""Checks problems of `library_problem.py` on a GPU and times them with PyTorch's operators: rows of a table, and its page.

In: problems. Out: for each, forward and backward, the error at the sizes at which it is checked, and times in microseconds. The
function, PyTorch's operator and that operator under `torch.compile` are timed alternately.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ci.bench import markdown
from ci.bench.front import Outcome

if TYPE_CHECKING:
    from ci.bench.kernels.clock import Timing
    from ci.bench.kernels.library_problem import Problem

SETS_BYTES: Final = 200 << 20
"""Total bytes of a problem's argument sets: more than three times the L2 cache of an H200."""
SLOW: Final = 20_000.0
"""Microseconds from which PyTorch's operator is timed from the host, in few calls: its scans are loops of many kernels."""
PEAK: Final = 989.0
"""Dense TFLOP/s of bf16 products of an H100 or H200 (data sheet)."""
COLUMNS: Final = ("function", "what", "size", "error", "us", "floor, us", "PyTorch, us", "compiled, us", "over")


@dataclass
class Row:
    """A function, forward alone or with its backward. Times are in microseconds; 0 where nothing was timed."""

    function: str
    what: str
    size: str
    error: float = 0.0
    ours: float = 0.0
    floor: float = 0.0
    torch: float = 0.0
    compiled: float = 0.0
    problem: str = ""
    spread: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    @property
    def over(self) -> float:
        """PyTorch's better time over ours."""
        best = min((time for time in (self.torch, self.compiled) if time), default=0.0)
        return best / self.ours if self.ours else 0.0

    @property
    def cells(self) -> list[str]:
        """Its row of the table."""
        times = (f"{time:.1f}" if time else "-" for time in (self.ours, self.floor, self.torch, self.compiled))
        over = f"{self.over:.2f}" if self.over else "-"
        return [f"`{self.function}`", self.what, self.size, self.problem or f"{self.error:.2f}", *times, over]


def timed(
    torch: Any, problems: Sequence[Problem], options: argparse.Namespace
) -> Iterator[tuple[dict[str, Any], list[Row], bool]]:
    """Check and time the problems that `--only` names, or all: after each what they ran on, the rows so far, and whether these
    are all."""
    chosen = [problem for problem in problems if not options.only or problem.function in options.only]
    rate, rows = copy_rate(torch), list[Row]()
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_tb_per_s": rate / 1e12}
    for number, problem in enumerate(chosen, 1):
        found = measured(problem, rate, compiles=not options.no_compile)
        print(*(markdown.line(row.cells) for row in found), sep="\n", flush=True)
        rows += found
        yield about, rows, number == len(problems)


def outcome(about: dict[str, Any], rows: list[Row], name: str, title: str, head: str, *, whole: bool) -> Outcome:
    """The rows, and the page with their table."""
    where = f"{about['gpu']}, PyTorch {about['torch']}, by `ci/bench/kernels.py {name}`"
    text = head.format(where=where, rate=about["copy_tb_per_s"], peak=PEAK)
    lines = [f"# {title}", "", text, "", *markdown.grid(COLUMNS, [row.cells for row in rows], left=3)]
    data = about | {"rows": [asdict(row) | {"over": row.over} for row in rows]}
    return Outcome(data, {f"{name}.md": markdown.page(lines)}, int(any(row.problem for row in rows)), whole=whole)


def copy_rate(torch: Any) -> float:
    """Bytes per second of PyTorch's copy of 256 MB, read and written."""
    from ci.bench.kernels import clock

    pairs = [(torch.randn(2, 32 << 20, device="cuda")) for _ in range(2)]
    timing = clock.measure({"copy": [lambda one=one: one[1].copy_(one[0]) for one in pairs]}, expected_us=80.0)["copy"]
    return 2 * (128 << 20) / timing.median * 1e6


def measured(problem: Problem, rate: float, *, compiles: bool) -> list[Row]:
    """The rows of a function: the forward, then with the backward if it has one."""
    whats = ["forward", *(["forward and backward"] if problem.differentiable else [])]
    rows = [Row(problem.function, what, problem.size) for what in whats]
    try:
        for row, backward in zip(rows, (False, True), strict=False):
            row.error = max(problem.error(sizes, backward=backward) for sizes in problem.checked)
            if not row.error <= 1:
                row.problem = f"WRONG, {row.error:.3g} of what is allowed"
                continue
            row.floor = problem.floor_us(rate, PEAK, backward=backward)
            found = times(problem, backward=backward, compiles=compiles)
            row.spread = {name: (timing.low, timing.high) for name, timing in found.items()}
            row.ours, row.torch = found["ours"].median, found["torch"].median
            row.compiled = found["compiled"].median if "compiled" in found else 0.0
    except Exception as error:  # a failure of one function only affects its rows
        traceback.print_exc()
        for row in rows:
            row.problem = row.problem or f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return rows


def times(problem: Problem, *, backward: bool, compiles: bool) -> Mapping[str, Timing]:
    """Alternating timings of the function, PyTorch's operator, and that operator compiled."""
    from ci.bench.kernels import clock
    from ci.bench.kernels.library_problem import torch

    count = max(2, -(-SETS_BYTES // problem.bytes(problem.sizes, backward)))
    sets = [problem.inputs(problem.sizes, 2 + number) for number in range(min(count, 8))]

    def alternatives(function: Callable[..., Any]) -> list[Callable[[], object]]:
        kept: list[Any] = [None] * len(sets)

        def run(position: int) -> None:
            kept[position] = problem.run(function, sets[position], backward=backward)

        return [lambda position=position: run(position) for position in range(len(sets))]

    timed, expected = {"ours": alternatives(problem.ours)}, max(2.0, problem.floor_us(4e12, PEAK, backward=backward))
    theirs = alternatives(problem.theirs)
    if not problem.captures or launched(theirs[:1], rounds=1).median > SLOW:
        return clock.measure(timed, expected) | {"torch": launched(theirs[:2])}
    timed["torch"] = theirs
    if compiles and problem.compiles:
        torch.compiler.reset()
        timed["compiled"] = alternatives(torch.compile(problem.theirs, dynamic=False))
    return clock.measure(timed, expected)


def launched(runs: list[Callable[[], object]], rounds: int = 5) -> Timing:
    """The time of an operator that waits for the GPU, or takes too long for a CUDA graph of many: launched from the host."""
    from ci.bench.kernels import clock
    from ci.bench.kernels.library_problem import torch

    samples: list[float] = []
    for number in range(rounds + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for run in runs:
            run()
        end.record()
        end.synchronize()
        samples += [begin.elapsed_time(end) * 1e3 / len(runs)] if number else []  # the first is not timed
    ordered = sorted(samples)
    return clock.Timing(ordered[len(ordered) // 2], ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10], len(runs))
