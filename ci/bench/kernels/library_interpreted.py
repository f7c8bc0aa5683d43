"""The functions of `tilec.kernels` in PyTorch without a GPU: the tile interpreter runs their kernels on CPU tensors.

    python ci/bench/kernels.py library_interpreted [--only NAMES]        needs the compiler's front end and torch, no GPU

Results and gradients of each function, by PyTorch's own autograd, are compared with its operator in float64, at the small sizes
of `library_problems.py`. The function under `torch.compile(fullgraph=True)`, with fixed and with dynamic shapes (backend
`aot_eager`), must give the same bits as in eager mode. Then a small Qwen3 is trained for some steps with the library and with
PyTorch's operators, as `training` does on a GPU. Status 1 if a function is wrong or a curve is far off. What it cannot see:
anything below the tile IR.
"""

from __future__ import annotations

import argparse
import math
import os
import traceback
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ci.bench import front, markdown
from ci.bench.front import Outcome

if TYPE_CHECKING:
    from ci.bench.kernels.library_problem import Problem

STEPS: Final = 8
"""Steps of training."""
LARGEST: Final = 700_000
"""Product of the extents of a problem that is not left out; the interpreter is slow."""
COLUMNS: Final = ("function", "what", "sizes", "error", "compiled")


@dataclass
class Row:
    """A function at one size. `error`: as in `library_gpu`. `compiled`: the same bits, with fixed and with dynamic shapes."""

    function: str
    what: str
    sizes: str
    error: float = 0.0
    compiled: bool = False
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether nothing was found."""
        return self.error <= 1 and self.compiled and not self.problem

    @property
    def cells(self) -> list[str]:
        """Its row of the table."""
        return [
            f"`{self.function}`",
            self.what,
            self.sizes,
            self.problem or f"{self.error:.2f}",
            "same" if self.compiled else "-",
        ]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--only", type=front.names, default=[], metavar="NAMES")
    parser.add_argument("--steps", type=int, default=STEPS)


def measure(options: argparse.Namespace) -> Outcome:
    """Check every function, then train."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # tensors of PyTorch that the interpreter reads are the host's
    from ci.bench.kernels import interpreted_ops

    interpreted_ops.install()
    from ci.bench.kernels.library_problems import PROBLEMS, torch
    from ci.bench.kernels.library_products import PRODUCTS
    from ci.bench.kernels.training_runs import FARTHER

    rows: list[Row] = []
    tried = set[tuple[Any, ...]]()
    for problem in (*PROBLEMS, *PRODUCTS):
        for sizes in problem.checked:
            identity = (problem.function, *sizes.values(), str(problem.make))
            if identity in tried or not _is_small(sizes) or (options.only and problem.function not in options.only):
                continue
            tried.add(identity)
            for backward in (False, True) if problem.differentiable else (False,):
                rows.append(checked(problem, sizes, backward=backward))
                print(markdown.line(rows[-1].cells), flush=True)
    curves = {} if options.only else trained(options.steps)
    apart = _differences(curves)
    status = int(not all(row.right for row in rows) or not apart.get("library", 0.0) <= FARTHER * apart.get("rounded", 0.0))
    data = {"torch": torch.__version__, "rows": [asdict(row) for row in rows], "curves": curves, "apart": apart}
    return Outcome(data, {f"{options.name}.md": _page(data, rows, options)}, status, whole=not options.only)


def _is_small(sizes: dict[str, int]) -> bool:
    return math.prod(sizes.values()) <= LARGEST


def checked(problem: Problem, sizes: dict[str, int], *, backward: bool) -> Row:
    """A function at one size: its error, and whether it is the same compiled."""
    shown = ", ".join(f"{name}={extent}" for name, extent in sizes.items())
    row = Row(problem.function, "gradients" if backward else "results", shown)
    try:
        row.error = problem.error(sizes, backward=backward)
        row.compiled = _same_compiled(problem, sizes, backward)
        if not row.compiled:
            row.problem = "other bits when compiled"
    except Exception as error:  # a failure of one function only affects its rows
        traceback.print_exc()
        row.problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return row


def _same_compiled(problem: Problem, sizes: dict[str, int], backward: bool) -> bool:
    """Whether the function gives the bits of eager mode when it is compiled for fixed and for dynamic shapes."""
    from ci.bench.kernels.library_problem import torch

    given = problem.inputs(sizes, 1)
    eager = problem.run(problem.ours, problem.copied(given), backward=backward)
    for dynamic in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(problem.ours, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        found = problem.run(compiled, problem.copied(given), backward=backward)
        if not all(torch.equal(one, other) for one, other in zip(found, eager, strict=True)):
            return False
    return True


def trained(steps: int) -> dict[str, list[float]]:
    """Losses by step of the ways of `training`, in eager mode."""
    from ci.bench.kernels.training_runs import Size, texts, train, words

    size = Size(layers=2, hidden=128, heads=2, key_heads=1, head=64, inner=256, vocabulary=512, batch=2, tokens=64)
    batches = texts(size, steps)
    return {name: train(use, size, batches, None)[0] for name, use in words().items()}


def _differences(curves: dict[str, list[float]]) -> dict[str, float]:
    """Mean differences from PyTorch's curve: of the curves of the library and of other roundings."""
    if not curves:
        return {}
    from ci.bench.kernels.training_runs import LIBRARY, PYTORCH, ROUNDED, apart

    return {name: apart(curves[run], curves[PYTORCH])[0] for name, run in (("library", LIBRARY), ("rounded", ROUNDED))}


def _page(data: dict[str, Any], rows: list[Row], options: argparse.Namespace) -> str:
    head = (
        f"PyTorch {data['torch']} on CPU tensors, kernels on the tile interpreter, by `ci/bench/kernels.py "
        "library_interpreted`. "
        "Error: the largest difference from float64 in units of what is allowed (`ci/bench/kernels/library_problem.py`). "
        "*Compiled*: the bits under `torch.compile(fullgraph=True)`, with fixed and with dynamic shapes, and in eager mode."
    )
    lines = [
        "# The library in PyTorch, on the interpreter",
        "",
        head,
        "",
        *markdown.grid(COLUMNS, [row.cells for row in rows], left=3),
    ]
    if data["curves"]:
        last = {name: f"{curve[-1]:.4f}" for name, curve in data["curves"].items()}
        text = (
            f"A Qwen3 of two layers, {options.steps} steps: losses differ from PyTorch's by {data['apart']['library']:.2g} in "
            f"the mean, where other roundings of PyTorch differ by {data['apart']['rounded']:.2g}. Last losses: "
            f"{', '.join(f'{name} {loss}' for name, loss in last.items())}."
        )
        lines += ["", text]
    return markdown.page(lines)
