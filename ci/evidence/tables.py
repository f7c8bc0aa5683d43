"""Tables of README and documentation made from results, by name, as lines of Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ci.evidence.values import Results, formatted

MODELS: Final = ("qwen3-0.6b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b")
PROMPTS: Final = (18, 512, 2048, 8192)


def kernels(results: Results) -> list[str]:
    """The speed of the kernels relative to libraries, for a page in `docs/`."""
    rows = [
        ("`add`", "torch add", "kernels_gpu", "view.ratios.add"),
        ("`rms_norm`, 4096 rows and more", "torch add, equal bytes", "kernels_gpu", "view.ratios.rms_norm"),
        ("`add_rms_norm`, 4096 rows and more", "torch add, equal bytes", "kernels_gpu", "view.ratios.add_rms_norm"),
        ("`matvec`, the linear layers of Qwen3 4B and 32B", "cuBLAS", "kernels_gpu", "view.ratios.matvec"),
        ("`decode_attention`, KV 8k and 32k", "torch's read of equal bytes", "kernels_gpu", "view.ratios.decode_attention"),
        (
            "`flash_attention`, 512 to 32768 tokens ([attention.md](../ci/bench/results/attention.md))",
            "cuDNN",
            "attention",
            "view",
        ),
        (
            "`matmul`, cubes and linear layers, 128 rows and more ([products.md](../ci/bench/results/products.md))",
            "cuBLAS",
            "products",
            "view.many.best",
        ),
        (
            "`matmul_few`, `matmul_split`, linear layers, 16 to 64 rows ([products.md](../ci/bench/results/products.md))",
            "cuBLAS",
            "products",
            "view.few.best",
        ),
    ]
    lines = ["| kernels | compared with | GPU | ratio of rates: worst, geometric mean |", "|---|---|---|--:|"]
    for label, library, name, path in rows:
        least, mean = (results.text(name, f"{path}.{statistic}", ".3f") for statistic in ("least", "mean"))
        lines.append(f"| {label} | {library} | {_gpu(results, name)} | {least}, {mean} |")
    return lines


def engine(results: Results) -> list[str]:
    """Decode rate and prefill time of each model, with those of transformers where measured."""
    speeds: dict[str, Any] = {speed["model"]: speed for speed in results.data("engine_check")["speed"]}
    speeds |= {speed["model"]: speed for speed in results.data("engine_large")["speed"]}
    lines = ["| | " + " | ".join(name.removeprefix("qwen3-").upper() for name in MODELS) + " |", "|---|" + "--:|" * len(MODELS)]

    def row(label: str, key: str, reference: str, form: str) -> str:
        cells: list[str] = []
        for name in MODELS:
            compared = f" ({formatted(speeds[name][reference], '.0f')})" if reference in speeds[name] else ""
            cells.append(formatted(speeds[name][key], form) + compared)
        return f"| {label} (transformers) | {' | '.join(cells)} |"

    decode = "transformers_eager_decode_at_18_tok_s"
    lines.append(row("decode after 18 tokens, tokens per second", "decode_at_18_tok_s", decode, ".0f"))
    for count in PROMPTS:
        lines.append(row(f"prefill of {count} tokens, ms", f"prefill_{count}_ms", f"transformers_prefill_{count}_ms", "ms"))
    return lines


def builds(results: Results) -> list[str]:
    """How long builds of this project take."""
    lines = ["| build | seconds | artifacts made | CUBINs assembled |", "|---|--:|--:|--:|"]
    for row in results.data("build_speed")["rows"]:
        lines.append(f"| {row['what']} | {formatted(row['seconds'], '.2f')} | {row['artifacts']} | {row['cubins']} |")
    return lines


APPROXIMATIONS: Final = {
    "exp": "`ex2` of a product: 2^-22.5, and 2^-17 where the result is large or small", "exp2": "`ex2`: 2^-22.5",
    "log": "`lg2` and a product: 2^-22 absolute around 1", "log2": "`lg2`: 2^-22 absolute around 1",
    "rsqrt": "`rsqrt`: 2^-22.9", "sigmoid": "`ex2`, `rcp`: as of `exp`", "tanh": "`tanh`: 2^-11",
    "sin": "`sin`: 2^-20.5 absolute from -pi to pi", "cos": "`cos`: 2^-20.5 absolute from -pi to pi",
    "pow": "`lg2`, `ex2`: grows with the exponent of the result",
}  # fmt: skip
"""What `fast=True` takes, with the relative error that the PTX ISA allows."""


def functions(results: Results) -> list[str]:
    """The errors of accurate functions, and what their approximations may have."""
    lines = ["| function | largest error, ulp | with `fast=True` |", "|---|--:|---|"]
    for name, fast in APPROXIMATIONS.items():
        lines.append(f"| `{name}` | {results.text('function_errors', f'functions.{name}.units', '.2f')} | {fast} |")
    return lines


def summary(results: Results) -> list[str]:
    """One row for each of what a newcomer asks first; for the README."""
    read = "torch, a read of as many bytes"
    ratios = [
        ("matrix products, 128 rows and more", "cuBLAS", "products", "view.many.best"),
        ("matrix products, 16 to 64 rows", "cuBLAS", "products", "view.few.best"),
        ("attention, 512 to 32768 tokens", "cuDNN", "attention", "view"),
        ("decode attention, 8k and 32k tokens", read, "kernels_gpu", "view.ratios.decode_attention"),
    ]
    speed = "speed[model=qwen3-4b]."
    ours = results.text("engine_check", f"{speed}decode_at_18_tok_s", ".0f")
    theirs = results.text("engine_check", f"{speed}transformers_eager_decode_at_18_tok_s", ".0f")
    cold = "rows[what=cold, one architecture]."
    artifacts = results.text("build_speed", f"{cold}artifacts")
    seconds = results.text("build_speed", f"{cold}seconds", ".0f")
    jobs = results.text("build_speed", "jobs")
    lines = ["| what | compared with | tilec | on | result |", "|---|---|---|---|---|"]
    compared, gpu = f"transformers (eager): {theirs} tokens/s", _gpu(results, "engine_check")
    lines.append(f"| decode of Qwen3 4B, batch 1 | {compared} | {ours} tokens/s | {gpu} | {_cited('engine_check')} |")
    ratio = [f"{row['greedy'] / row['vllm']:.2f}" for row in results.data("serving_check")["qwen3-4b"]["tok_s"].values()]
    of_rows = f"{', '.join(ratio)} of its rate | {_gpu(results, 'serving_check')} | {_cited('serving_check')} |"
    lines.append(f"| decode of Qwen3 4B, batches of 8, 32, 128, 256 | vLLM 0.26 | {of_rows}")
    for label, library, name, path in ratios:
        least, mean = (results.text(name, f"{path}.{statistic}", ".2f") for statistic in ("least", "mean"))
        rates = f"{mean} of its rate; at worst {least}"
        lines.append(f"| {label} | {library} | {rates} | {_gpu(results, name)} | {_cited(name)} |")
    build = f"cold build for one architecture, {artifacts} artifacts"
    return [*lines, f"| {build} | | {seconds} s | {jobs} CPU cores | {_cited('build_speed')} |"]


def rows_and_vllm(results: Results) -> list[str]:
    """Decode of rows over pages, and requests that arrive at random, each compared with vLLM; for a page in `docs/`."""
    lines = ["| model | rows | tokens/s | vLLM | ratio |", "|---|--:|--:|--:|--:|"]
    check = results.data("serving_check")
    for model in ("qwen3-4b", "qwen3-8b"):
        for rows, row in check[model]["tok_s"].items():
            lines.append(
                f"| {model} | {rows} | {row['greedy']:,.0f} | {row['vllm']:,.0f} | {row['greedy'] / row['vllm']:.2f} |"
            )
    load = results.data("serving_load")
    lines += ["", "| requests a second | | served a second | first token p50, ms | p95 | p99 | per token p50, ms | p95 | p99 |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for rate in load["loads"]:
        sides = {"ours": load, "ours, over HTTP": load.get("http"), "vLLM": load["vllm"]}
        for side, of in sides.items():
            if of is None:
                continue
            row = of["loads"][rate]
            times = [
                f"{row[name][part]:.{digits}f}" for name, digits in (("first_ms", 0), ("per_token_ms", 1)) for part in PARTS
            ]
            lines.append(f"| {rate} | {side} | {row['requests_s']:.1f} | {' | '.join(times)} |")
    return lines


def predicted(results: Results) -> list[str]:
    """What the model of time predicts of shipped kernels for cards that nobody here has, for a page in `docs/`."""
    data = results.data("time_model")
    products = ("8192 x 8192 x 8192", "2048 x 6144 x 2560", "8192 tokens")
    lines = ["| *predicted* | tile | bound by | TFLOP/s | of the datasheet's rate |", "|---|---|---|--:|--:|"]
    for row in data["predicted"]:
        if row["shape"] in products:
            what = f"{row['what']}, {row['shape']}, {row['card']}"
            rate, share = formatted(row["tflops"], ".0f"), formatted(row["of_peak"], ".2f")
            lines.append(f"| {what} | {row['choice']} | {row['bound']} | {rate} | {share} |")
    lines += ["", "| *predicted* decode of one sequence, 18 filled slots | tokens per second | floor |", "|---|--:|--:|"]
    for row in data["decode"]["predicted"]:
        if row["filled"] == PROMPTS[0]:
            rate, floor = formatted(row["predicted_tok_s"], ".0f"), formatted(row["floor_tok_s"], ".0f")
            lines.append(f"| {row['model']}, {row['card']} | {rate} | {floor} |")
    return lines


def _gpu(results: Results, name: str) -> str:
    return results.text(name, "device").removeprefix("NVIDIA ").partition(" ")[0]


def _cited(name: str) -> str:
    return f"[{name}.md](ci/bench/results/{name}.md)"


def clients(results: Results) -> list[str]:
    """Programs of others that were run against the server, and what each of them used."""
    lines = ["| client | version | what it did | endpoints | fields that it sent |", "|---|---|---|---|---|"]
    for row in results.data("clients")["clients"]:
        endpoints, fields = (", ".join(f"`{name}`" for name in row[key]) for key in ("endpoints", "fields"))
        lines.append(f"| {row['client']} | {row['version']} | {', '.join(row['received'])} | {endpoints} | {fields} |")
    return lines


PARTS: Final = ("p50", "p95", "p99")

TABLES: Final[dict[str, Callable[[Results], list[str]]]] = {
    "kernels": kernels, "engine": engine, "builds": builds, "summary": summary, "predicted": predicted,
    "rows_and_vllm": rows_and_vllm,
    "functions": functions, "clients": clients,
}  # fmt: skip
