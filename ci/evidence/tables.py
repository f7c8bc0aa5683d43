"""Tables of README and documentation made from results, by name, as lines of Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ci.evidence.values import Results, formatted

MODELS: Final = ("qwen3-0.6b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b")
PROMPTS: Final = (18, 512, 2048, 8192)


def kernels(results: Results) -> list[str]:
    """The speed of the kernels relative to libraries."""
    rows = [
        ("`add`", "torch add", "kernels_gpu", "view.ratios.add"),
        ("`silu_mul`", "torch add, equal bytes", "kernels_gpu", "view.ratios.silu_mul"),
        ("`rms_norm`, 4096 rows and more", "torch add, equal bytes", "kernels_gpu", "view.ratios.rms_norm"),
        ("`add_rms_norm`, 4096 rows and more", "torch add, equal bytes", "kernels_gpu", "view.ratios.add_rms_norm"),
        ("`matvec`, the linear layers of Qwen3 4B and 32B", "cuBLAS", "kernels_gpu", "view.ratios.matvec"),
        ("`decode_attention`, KV 8k and 32k", "torch's read of equal bytes", "kernels_gpu", "view.ratios.decode_attention"),
        (
            "`flash_attention`, 512 to 32768 tokens ([attention.md](ci/bench/results/attention.md))",
            "cuDNN",
            "attention",
            "view",
        ),
        (
            "`matmul`, cubes and linear layers, 128 rows and more ([products.md](ci/bench/results/products.md))",
            "cuBLAS",
            "products",
            "view.many.best",
        ),
        (
            "`matmul_few`, `matmul_split`, linear layers, 16 to 64 rows ([products.md](ci/bench/results/products.md))",
            "cuBLAS",
            "products",
            "view.few.best",
        ),
    ]
    lines = ["| kernels | held against | ratio of rates, worst and geometric mean |", "|---|---|--:|"]
    for what, library, name, path in rows:
        least, mean = (results.text(name, f"{path}.{which}", ".3f") for which in ("least", "mean"))
        lines.append(f"| {what} | {library} | {least}, {mean} |")
    return lines


def engine(results: Results) -> list[str]:
    """Decode rate and prefill time of each model, with those of transformers where measured."""
    speeds: dict[str, Any] = {speed["model"]: speed for speed in results.data("engine_check")["speed"]}
    speeds |= {speed["model"]: speed for speed in results.data("engine_large")["speed"]}
    lines = ["| | " + " | ".join(name.removeprefix("qwen3-").upper() for name in MODELS) + " |", "|---|" + "--:|" * len(MODELS)]

    def row(label: str, key: str, reference: str, form: str) -> str:
        cells: list[str] = []
        for name in MODELS:
            beside = f" ({formatted(speeds[name][reference], '.0f')})" if reference in speeds[name] else ""
            cells.append(formatted(speeds[name][key], form) + beside)
        return f"| {label} (transformers) | {' | '.join(cells)} |"

    decode = "transformers_eager_decode_at_18_tok_s"
    lines.append(row("decode behind 18 tokens, tokens per second", "decode_at_18_tok_s", decode, ".0f"))
    for count in PROMPTS:
        lines.append(row(f"prefill of {count} tokens, ms", f"prefill_{count}_ms", f"transformers_prefill_{count}_ms", "ms"))
    return lines


TABLES: Final[dict[str, Callable[[Results], list[str]]]] = {"kernels": kernels, "engine": engine}
