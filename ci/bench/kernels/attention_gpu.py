"""Candidates of attention at prefill, and torch's, on this machine's GPU."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ci.bench.kernels.attention_cases import fused
from ci.bench.kernels.attention_names import GROUP, HEADS, LIBRARIES, WIDTH
from ci.bench.kernels.candidates_gpu import ALLOWED, Candidates, Size
from ci.bench.kernels.clock import measure
from ci.bench.kernels.launch import Tensors, past

torch: Any = importlib.import_module("torch")
attention: Any = importlib.import_module("torch.nn.attention")

LONG: Final = 2048
"""Tokens above which not all rows are compared, which would take too long."""
ROWS: Final = 64
"""Rows compared then at the beginning, the middle and the end."""


class AttentionBench(Candidates):
    """The candidates on the device. Sizes are tokens, and slots of the cache: with a whole tile of slots to spare, the cache
    already has tokens."""

    ODD = ((1, 128), (127, 384), (129, 384), (333, 1920), (1100, 1536))
    TIMED = tuple((tokens, tokens) for tokens in (512, 2048, 8192, 32768))

    def tensors(self, size: Size) -> Tensors:
        """Normally distributed inputs; a poisoned output."""
        tokens, slots = size
        shapes = {"q": (tokens, HEADS, GROUP, WIDTH), "k_cache": (slots, HEADS, WIDTH), "v_cache": (slots, HEADS, WIDTH)}
        arrays = {name: torch.randn(shape, device="cuda", dtype=torch.bfloat16) for name, shape in shapes.items()}
        return arrays | {"out": torch.full_like(arrays["q"], math.nan)}

    def error_of(self, tensors: Mapping[str, Any]) -> Callable[[], tuple[float, float]]:
        """A function that returns the current relative error of `out`, and the allowed error."""
        allowed = ALLOWED * compared(fused(dict(tensors))()[0].transpose(0, 1), tensors)
        return lambda: (compared(tensors["out"], tensors), allowed)

    def row(self, size: Size) -> dict[str, Any]:
        """Microseconds and errors of each candidate and library at one length."""
        tokens, slots = size
        flops = 4 * WIDTH * HEADS * GROUP * tokens * (tokens + 1) / 2
        sets = self.sets(size, 2 * WIDTH * (2 * HEADS * GROUP * tokens + 2 * HEADS * slots))
        plans = {name: self.planned(name, sets) for name in self.entries}
        runs: dict[str, Any] = {name: [partial(self.launch, one) for one in made] for name, made in plans.items()}
        runs |= {label: [library(tensors, backend) for tensors in sets] for label, backend in LIBRARIES.items()}
        errors = {label: compared(runs[label][0]()[0].transpose(0, 1), sets[0]) for label in LIBRARIES}
        for name, (first, *_) in plans.items():
            sets[0]["out"].fill_(math.nan)
            self.launch(first)
            self.device.synchronize()
            errors[name] = compared(sets[0]["out"], sets[0])
        wrong = [f"{name}: {error:.2e}" for name, error in errors.items() if not error <= ALLOWED * errors["cuDNN"]]
        times = measure(runs, flops / 5e8)
        torch.cuda.empty_cache()
        found = {"tokens": tokens, "us": {name: time.median for name, time in times.items()}, "wrong": wrong, "flops": flops}
        return found | {"errors": errors}


def library(tensors: Tensors, backend: str) -> Callable[[], Any]:
    """A call of torch's causal attention with one of its backends."""
    call, chosen = fused(tensors), getattr(attention.SDPBackend, backend)

    def run() -> Any:
        with attention.sdpa_kernel(chosen):
            return call()

    return run


def compared(out: Any, tensors: Mapping[str, Any]) -> float:
    """The relative error of a result against float64, for long ones only at some rows."""
    q, slots = tensors["q"], torch.arange(tensors["k_cache"].shape[0], device="cuda")
    tokens = q.shape[0]
    starts, count = ((0, tokens // 2, tokens - ROWS), ROWS) if tokens > LONG else ((0,), tokens)
    rows = torch.cat([torch.arange(start, start + count, device="cuda") for start in starts])
    seen, out = slots[None, :] <= (past(tokens, len(slots)) + rows)[:, None], out.reshape(q.shape)
    wrong = size = 0.0
    for head in range(HEADS):
        queries, keys, values = q[rows, head].double(), *(tensors[name][:, head].double() for name in ("k_cache", "v_cache"))
        scores = torch.einsum("tgd,sd->gts", queries, keys) / math.sqrt(WIDTH)
        truth = torch.einsum("gts,sd->tgd", scores.masked_fill(~seen, -math.inf).softmax(-1), values)
        wrong += float((out[rows, head].double() - truth).square().sum())
        size += float(truth.square().sum())
    return math.sqrt(wrong / size)
