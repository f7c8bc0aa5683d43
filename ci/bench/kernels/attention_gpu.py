"""Compares candidates of prefill attention with torch's on this machine's GPU; `attention.py` builds them and calls this.

    python3 ci/bench/attention_gpu.py FOLDER [--only 128x128] [--lengths 512,2048] [--out FOLDER]

Each folder below FOLDER with a built `flash_attention` is a candidate. Each first runs at odd lengths, without and with tokens
in the cache, in a child process; one that faults, hangs or is wrong is reported and excluded. Then all are timed at each
length, alternately with torch's attention of cuDNN and of FlashAttention-2, in CUDA graphs that access more data than the L2
cache holds; rows of the result at that length are compared with float64 once more. Random data, 32 query heads, 8 key-value
heads of 128. Writes `attention.json` and `.md`; exit code 1 if a candidate was wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from products_gpu import ALLOWED, ROTATED_BYTES, checks  # noqa: E402

HEADS, GROUP, WIDTH = 8, 4, 128
LENGTHS: Final = (512, 2048, 8192, 32768)
ODD: Final = ((1, 128), (127, 384), (129, 384), (333, 1920), (1100, 1536))
"""Tokens, and slots of the cache: with a whole tile of slots to spare, the cache already has tokens."""
ROWS: Final = 64
"""Rows compared at the beginning, the middle and the end if comparing all would take too long."""


def main() -> int:
    """Check, time, report; returns the exit status."""
    parser = argparse.ArgumentParser(description="candidates of attention at prefill beside torch's")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="candidates whose names hold this")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci/bench/results")))
    parser.add_argument("--check", nargs="*", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = sorted(
        path.parents[3].name for path in options.folder.glob("*/artifacts/build/*/*.cubin") if options.only in str(path)
    )
    if options.check is not None:
        for name in options.check:
            print("@" + json.dumps(checked(options.folder, name)), flush=True)
        return 0
    found = checks(options.folder, names, __file__)
    right = [name for name in names if found[name] == ""]
    for name in names:
        if found[name]:
            print(f"left out: {name}: {found[name]}", flush=True)
    bench = Bench(options.folder, right)
    rows = [bench.row(int(length)) for length in options.lengths.split(",")]
    return report({"wrong": {name: text for name, text in found.items() if text}, "rows": rows, "gpu": bench.gpu}, options.out)


def checked(folder: Path, name: str) -> tuple[str, str]:
    """The candidate's name and its error message, if any."""
    bench = Bench(folder, [name])
    for tokens, slots in ODD:
        try:
            error, allowed = bench.error(name, tokens, slots)
        except Exception as problem:
            text = f"at {tokens} of {slots}: {problem}"[:200]
            if "CUDA" in str(problem):
                print("@" + json.dumps((name, text)), flush=True)
                raise SystemExit(70) from None  # the context is lost
            return name, text
        if not error <= allowed:
            return name, f"at {tokens} of {slots}: error {error:.2e}, torch's {allowed / ALLOWED:.2e}"
    return name, ""


class Bench:
    """The candidates on the device."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.torch.zeros(1, device="cuda")
        self.cases = importlib.import_module("gpu_cases")
        self.attention = importlib.import_module("gpu_attention")
        self.worker = importlib.import_module("gpu_worker").Bench(False)
        self.gpu = self.worker.device.name
        self.entries: dict[str, Any] = {}
        for name in names:
            (self.entries[name],), broken = self.cases.find_artifacts(
                [folder / name / "artifacts"], self.worker.device.architecture
            )
            assert not broken, broken

    def tensors(self, tokens: int, slots: int) -> dict[str, Any]:
        """Normally distributed inputs; a poisoned output."""
        shapes = {"q": (tokens, HEADS, GROUP, WIDTH), "k_cache": (slots, HEADS, WIDTH), "v_cache": (slots, HEADS, WIDTH)}
        arrays = {name: self.torch.randn(size, device="cuda", dtype=self.torch.bfloat16) for name, size in shapes.items()}
        return arrays | {"out": self.torch.full_like(arrays["q"], math.nan)}

    def library(self, tensors: Mapping[str, Any], backend: str) -> Any:
        """A call of torch's causal attention with one of its backends."""
        attention = importlib.import_module("torch.nn.attention")
        call = self.attention.fused(dict(tensors))
        chosen = getattr(attention.SDPBackend, backend)

        def run() -> Any:
            with attention.sdpa_kernel(chosen):
                return call()

        return run

    def error(self, name: str, tokens: int, slots: int) -> tuple[float, float]:
        """The relative error of one launch against float64, and the allowed error."""
        tensors = self.tensors(tokens, slots)
        self.worker.plan(self.entries[name], tensors).launch(self.worker.stream())
        self.worker.synchronize()
        return self.compared(tensors["out"], tensors), ALLOWED * self.compared(
            self.attention.fused(tensors)()[0].transpose(0, 1), tensors
        )

    def compared(self, out: Any, tensors: Mapping[str, Any]) -> float:
        """The relative error of a result against float64, for long ones only at some rows."""
        torch, q = self.torch, tensors["q"]
        tokens, slots = q.shape[0], tensors["k_cache"].shape[0]
        before = self.attention.past(tokens, slots)
        out = out.reshape(q.shape)
        starts = (0, tokens // 2, tokens - ROWS) if tokens > 2048 else (0,)
        rows = torch.cat(
            [torch.arange(start, min(start + (ROWS if tokens > 2048 else tokens), tokens)) for start in starts]
        ).cuda()
        wrong = size = 0.0
        for head in range(HEADS):
            queries, keys, values = q[rows, head].double(), *(tensors[n][:, head].double() for n in ("k_cache", "v_cache"))
            scores = torch.einsum("tgd,sd->gts", queries, keys) / math.sqrt(WIDTH)
            seen = torch.arange(slots, device="cuda")[None, :] <= (before + rows)[:, None]
            truth = torch.einsum("gts,sd->tgd", scores.masked_fill(~seen, -math.inf).softmax(-1), values)
            wrong += float((out[rows, head].double() - truth).square().sum())
            size += float(truth.square().sum())
        return math.sqrt(wrong / size)

    def row(self, tokens: int) -> dict[str, Any]:
        """Microseconds of each candidate at one length."""
        flops = 4 * WIDTH * HEADS * GROUP * tokens * (tokens + 1) / 2
        moved = 2 * WIDTH * tokens * (2 * HEADS * GROUP + 2 * HEADS)
        sets = [self.tensors(tokens, tokens) for _ in range(min(40, ROTATED_BYTES // moved + 2))]
        plans = {name: [self.worker.plan(entry, tensors) for tensors in sets] for name, entry in self.entries.items()}
        alternatives = {
            name: [lambda p=plan: p.launch(self.worker.stream()) for plan in arrays] for name, arrays in plans.items()
        }
        for label, backend in (("cuDNN", "CUDNN_ATTENTION"), ("FlashAttention-2", "FLASH_ATTENTION")):
            alternatives[label] = [self.library(tensors, backend) for tensors in sets]
        errors = {
            label: self.compared(alternatives[label][0]()[0].transpose(0, 1), sets[0])
            for label in ("cuDNN", "FlashAttention-2")
        }
        for name, arrays in plans.items():
            sets[0]["out"].fill_(math.nan)
            arrays[0].launch(self.worker.stream())
            self.worker.synchronize()
            errors[name] = self.compared(sets[0]["out"], sets[0])
        wrong = [f"{name}: {error:.2e}" for name, error in errors.items() if not error <= ALLOWED * errors["cuDNN"]]
        times = importlib.import_module("gpu_clock").measure(alternatives, flops / 5e8)
        self.torch.cuda.empty_cache()
        found = {"tokens": tokens, "us": {name: time.median for name, time in times.items()}, "wrong": wrong, "flops": flops}
        return found | {"errors": errors}


def report(record: dict[str, Any], folder: Path) -> int:
    """Write and print the tables; returns the exit status."""
    rows = record["rows"]
    libraries = ("cuDNN", "FlashAttention-2")
    names = [*libraries, *sorted(set(rows[0]["us"]) - set(libraries))]
    lines = [f"# Causal attention at prefill, bf16, 32 heads over 8, width 128, {record['gpu']}", ""]
    lines += [f"TFLOP/s at {', '.join(str(row['tokens']) for row in rows)} tokens; of cuDNN; largest error over cuDNN's.", ""]
    lines += ["| | rates | ratios | error |", "|---|---|---|--:|"]
    for name in names:
        rates = [row["flops"] / row["us"][name] / 1e6 for row in rows]
        ratios = [row["us"]["cuDNN"] / row["us"][name] for row in rows]
        error = max(row["errors"][name] / row["errors"]["cuDNN"] for row in rows)
        cells = [name, " ".join(f"{rate:.0f}" for rate in rates), " ".join(f"{ratio:.3f}" for ratio in ratios), f"{error:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    wrong = [f"{name}: {text}" for name, text in record["wrong"].items()] + [text for row in rows for text in row["wrong"]]
    lines += ["", *(f"- wrong: {text}" for text in wrong)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "attention.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / "attention.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
