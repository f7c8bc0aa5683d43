"""A small Qwen3 trained for 200 steps in PyTorch, with the functions of `tilec.kernels` and with PyTorch's own.

    TILEC_PREBUILT=FOLDER/artifacts/build python ci/bench/kernels.py training        needs a GPU and torch

The model (8 layers of 1024, 16 heads of 64 over 8 key heads, a vocabulary of 16,384) has f32 parameters and bf16 activations;
products are PyTorch's. Norms, rotary positions, attention, SwiGLU, cross entropy and AdamW, forward and backward, are the
library's in one run and PyTorch's in the others, from the same parameters on the same tokens. Tokens are a random text that a
model can learn: half of them follow from the two before. What rounding alone does to a curve is measured too: PyTorch's with
norms, positions, activations and losses in f32 and attention by another of its operators. Steps are timed in eager mode, under
`torch.compile`, and with its CUDA graphs. Status 1 if the curve of the library is farther from PyTorch's than four times what
rounding does.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from ci.bench import markdown
from ci.bench.front import Outcome


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")


def measure(options: argparse.Namespace) -> Outcome:
    """Train, compare and time."""
    from ci.bench.kernels.training_runs import (
        FARTHER,
        LIBRARY,
        MODES,
        PYTORCH,
        ROUNDED,
        Size,
        apart,
        texts,
        torch,
        train,
        words,
    )

    size = Size()
    batches = texts(size, options.steps)
    curves: dict[str, list[float]] = {}
    times: dict[str, float] = {}
    for name, use in words().items():
        for suffix, mode in MODES.items():
            if mode is not None and (options.no_compile or name == ROUNDED):
                continue
            started, label = time.monotonic(), name + suffix
            torch.compiler.reset()
            curves[label], times[label] = train(use, size, batches, mode)
            print(f"{label}: {curves[label][0]:.3f} to {curves[label][-1]:.3f}, {times[label]:.2f} ms a step, "
                  f"{time.monotonic() - started:.0f} s", flush=True)  # fmt: skip

    differences = {name: apart(curve, curves[PYTORCH]) for name, curve in curves.items()}
    rows = [(name, f"{curve[0]:.4f}", f"{curve[-1]:.4f}", *(f"{one:.4f}" for one in differences[name]), f"{times[name]:.2f}")
            for name, curve in curves.items()]  # fmt: skip
    near = (differences[name][0] <= FARTHER * differences[ROUNDED][0] for name in curves if name.startswith(LIBRARY))
    status = int(not all(near))  # NaN is not near
    data: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "steps": options.steps, "curves": curves,
        "milliseconds": times, "apart": differences,
    }  # fmt: skip
    header = ("run", "first loss", "last loss", "mean difference", "largest", "ms a step")
    where = f"{data['gpu']}, PyTorch {data['torch']}, by `ci/bench/kernels.py training`: "
    text = (
        f"{size.layers} layers of {size.hidden}, {size.batch} texts of {size.tokens} tokens a step, {options.steps} steps from "
        "the same parameters. Differences are from the losses of PyTorch in eager mode; *other roundings* says what rounding "
        "alone does."
    )
    lines = ["# Training with the library", "", where + text, "", *markdown.grid(header, rows)]
    return Outcome(data, {f"{options.name}.md": markdown.page(lines)}, status)
