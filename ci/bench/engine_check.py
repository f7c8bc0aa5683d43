"""Compares the engine with transformers on this machine's GPU: same random weights and tokens, both dtypes, and speed.

    python3 ci/bench/engine_check.py artifacts/bundles [--models qwen3-0.6b,qwen3-4b] [--lengths 1,17,512,3000] [--dtype bf16]

For each prompt length, the logits of the prompt's last token and of each of 64 teacher-forced decode steps are compared with
transformers in float32; the error may be 1.2 times that of transformers in the same 16-bit dtype. Tokens sampled on the device
are compared with those that the reference samples from the logits. Then tokens per second of decode and the time of prefill,
compared with transformers, whose greedy decode uses a static cache (and torch.compile with `--reference compiled`, which takes
more than half a minute per model). Writes `engine_check.json` and `.md`, prints the tables; exit code 1 if an error is too
large or a sampled token differs. Needs torch, transformers and cuda-bindings; the weights are generated.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
import time
import tomllib
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from engine.backends.cuda import CudaBackend  # noqa: E402
from engine.backends.load import load_on_gpu  # noqa: E402
from engine.checkpoint.weights import NUMPY_TYPES, destinations  # noqa: E402
from engine.models.config import ModelConfig  # noqa: E402
from engine.models.qwen3.config import Qwen3Config  # noqa: E402
from engine.sampling import SamplingParams, sample_logits  # noqa: E402
from tilec.target.dtypes import DTYPES  # noqa: E402

TIED: Final = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")
STEPS: Final = 64
DECODED: Final = 18
"""Prompt tokens for the decode comparison with transformers."""

WARM_STEPS: Final = 8
RATIO: Final = f"decode_at_{DECODED}_over_transformers"
BLOCK: Final = 1 << 24
ALLOWED: Final = 1.2


class BlockWeights:
    """Weights cut from one block of normal numbers, at an offset derived from the tensor's name: fast, and no two rows are
    equal. The standard deviation of a projection is `1 / sqrt(inputs)`, which preserves the scale of activations."""

    def __init__(self, config: ModelConfig, dtype: str) -> None:
        self.destinations = destinations(config, dtype)
        self.dtype = NUMPY_TYPES[dtype]
        self.normal = np.random.default_rng(7).standard_normal(BLOCK, dtype=np.float32)
        self.bytes = sum(destination.bytes for destination in self.destinations)
        self._scaled: dict[tuple[float, float], Any] = {}

    def values(self, name: str, shape: tuple[int, ...], begin: int, count: int) -> Any:
        """Elements `begin .. begin + count` of a destination."""
        if len(shape) == 1:
            scaled = self._block(0.1, 1.0)
        else:
            scaled = self._block(1.0 if "embed" in name else shape[1] ** -0.5, 0.0)
        first = (zlib.crc32(name.encode()) + begin) % BLOCK
        parts, left = list[Any](), count
        while left:
            part = scaled[first : first + left]
            parts.append(part)
            left -= len(part)
            first = 0
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block(self, scale: float, shift: float) -> Any:
        key = (scale, shift)
        if key not in self._scaled:
            self._scaled[key] = (self.normal * scale + shift).astype(self.dtype)
        return self._scaled[key]

    def chunks(self, name: str, limit_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """As `engine.checkpoint.weights.Weights.chunks`."""
        destination = next(d for d in self.destinations if d.name == name)
        count, step = destination.bytes // 2, limit_bytes // 2
        for begin in range(0, count, step):
            part = self.values(name, destination.shape, begin, min(step, count - begin))
            yield 2 * begin, part.view(np.uint8).data

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Tensors by Hugging Face's names."""
        for destination in self.destinations:
            block = self.values(destination.name, destination.shape, 0, destination.bytes // 2)
            for piece in destination.pieces:
                begin = piece.offset // 2
                yield piece.name, block[begin : begin + piece.elements].reshape(piece.shape)


def config_of(name: str) -> ModelConfig:
    """The config of a model in build.toml."""
    models = tomllib.loads((ROOT / "build.toml").read_text(encoding="utf-8"))["model"]
    numbers = next(model["config"] for model in models if model["name"] == name)
    return Qwen3Config(
        **numbers, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=name in TIED, max_position_embeddings=40960,
        torch_dtype="bfloat16",
    )  # fmt: skip


def main() -> int:
    """Check and time each model."""
    parser = argparse.ArgumentParser(description="hold the engine against transformers")
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-4b")
    parser.add_argument("--lengths", default="1,17,512,3000")
    parser.add_argument("--max-seq-len", type=int, default=10240)
    parser.add_argument("--prefills", default="18,512,2048,8192", help="prompt lengths to time")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16"))
    parser.add_argument("--reference", default="eager", choices=("eager", "compiled"), help="how transformers decodes")
    parser.add_argument("--skip-check", action="store_true", help="only the engine, without transformers")
    parser.add_argument("--name", default="engine_check", help="of the written files")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci" / "bench" / "results")))
    options = parser.parse_args()
    lengths, prefills = ([int(text) for text in words.split(",")] for words in (options.lengths, options.prefills))
    rows: list[dict[str, Any]] = []
    speeds: list[dict[str, Any]] = []
    wrong = 0
    for name in options.models.split(","):
        config = config_of(name)
        weights = BlockWeights(config, options.dtype)
        prompts = {length: np.random.default_rng(length).integers(0, config.vocab_size, length + STEPS) for length in lengths}
        began = time.perf_counter()
        path = options.bundles / f"{name}-sm_90a.bundle"
        backend = load_on_gpu(path, config, weights, options.max_seq_len, options.dtype)
        loaded = time.perf_counter() - began
        ours = {} if options.skip_check else {length: our_logits(backend, ids, length) for length, ids in prompts.items()}
        wrong += drawn_wrong(backend, config)
        speeds.append(
            {"model": name, "load_s": loaded, **decode_speed(backend, config), **prefill_speed(backend, config, prefills)}
        )
        backend.close()
        if not options.skip_check:
            with transformers_model(config, weights, options.dtype) as model:
                speeds[-1] |= transformers_speed(model, config, prefills)
                theirs, first = transformers_decode_speed(model, config, options.reference)
                speeds[-1] |= {
                    f"transformers_{options.reference}_decode_at_{DECODED}_tok_s": theirs, "transformers_first_steps_s": first,
                    RATIO: speeds[-1][f"decode_at_{DECODED}_tok_s"] / theirs,
                }  # fmt: skip
                rows += compare(name, config, model, options.dtype, prompts, ours)
        print(speeds[-1], flush=True)
    return report(rows, speeds, wrong, options.out / options.name)


def our_logits(backend: CudaBackend, ids: Any, length: int) -> Any:
    """Logits after the prompt and after each further token, (STEPS + 1, vocab)."""
    sequence = backend.begin()
    found = [backend.prompt_logits(sequence, [int(i) for i in ids[:length]])]
    found += [backend.decode_logits(sequence, int(token)) for token in ids[length:]]
    return np.stack(found)


def drawn_wrong(backend: CudaBackend, config: ModelConfig) -> int:
    """Number of sampled tokens that differ from those that the reference samples from the same steps' logits."""
    wrong, ids = 0, [int(i) for i in np.random.default_rng(5).integers(0, config.vocab_size, 33)]
    for temperature, top_k, top_p in ((0.6, 20, 0.95), (1.5, 64, 1.0), (0.01, 1, 0.1)):
        params = SamplingParams(temperature, top_k, top_p, seed=11)
        sequence = backend.begin()
        backend.prefill(sequence, ids, params)
        first = backend.token()
        drawn = [first, *backend.stream_tokens(sequence, first, STEPS - 1)]
        sequence = backend.begin()
        logits = backend.prompt_logits(sequence, ids)
        for number, token in enumerate(drawn):
            wrong += token != sample_logits(logits, params, number)
            logits = backend.decode_logits(sequence, token)
    return wrong


def decode_speed(backend: CudaBackend, config: ModelConfig) -> dict[str, float]:
    """Tokens per second at batch 1 after prompts of several lengths, greedy and sampled; medians."""
    found: dict[str, float] = {}
    for length in (18, 512, 2048):
        for mode, sampling in (("decode", None), ("sampled", SamplingParams(0.6, 20, 0.95))):
            if mode == "sampled" and length > 18:
                continue
            sequence = backend.begin()
            backend.prefill(sequence, prompt_of(length, config), sampling)
            token = backend.token()
            rates: list[float] = []
            for _ in range(4):
                sequence.length = length
                began = time.perf_counter()
                count = sum(1 for _ in backend.stream_tokens(sequence, token, 128))
                rates.append(count / (time.perf_counter() - began))
            found[f"{mode}_at_{length}_tok_s"] = sorted(rates[1:])[1]
    return found


def prompt_of(length: int, config: ModelConfig) -> list[int]:
    """Random tokens."""
    return [int(i) for i in np.random.default_rng(length).integers(0, config.vocab_size, length)]


def prefill_speed(backend: CudaBackend, config: ModelConfig, lengths: list[int]) -> dict[str, float]:
    """Milliseconds from token ids on the host to the next token there: first run of a length, and median of further runs."""
    found: dict[str, float] = {}
    for length in lengths:
        ids, times = prompt_of(length, config), list[float]()
        for _ in range(6):
            sequence = backend.begin()
            began = time.perf_counter()
            backend.prefill(sequence, ids)
            backend.token()
            times.append((time.perf_counter() - began) * 1e3)
        found[f"first_prefill_{length}_ms"], found[f"prefill_{length}_ms"] = times[0], sorted(times[1:])[2]
    return found


def transformers_speed(model: Any, config: ModelConfig, lengths: list[int]) -> dict[str, float]:
    """The same for transformers."""
    torch: Any = importlib.import_module("torch")
    found: dict[str, float] = {}
    for length in lengths:
        ids, times = prompt_of(length, config), list[float]()
        for _ in range(7):
            began = time.perf_counter()
            with torch.no_grad():
                given = torch.tensor([ids], device="cuda")
                model(given, use_cache=True, logits_to_keep=1).logits.argmax(-1).item()
            times.append((time.perf_counter() - began) * 1e3)
        found[f"transformers_prefill_{length}_ms"] = sorted(times[2:])[2]
    return found


def transformers_decode_speed(model: Any, config: ModelConfig, how: str) -> tuple[float, float]:
    """Tokens per second of its greedy decode after `DECODED` tokens with a static cache, and seconds of the first steps, which
    include compilation. `compiled`: CUDA graphs of compiled kernels; otherwise `eager`."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True) if how == "compiled" else model.forward
    rates: list[float] = []
    with torch.inference_mode():
        cache = transformers.StaticCache(config=model.config, max_cache_len=DECODED + WARM_STEPS + 4 * 128)
        positions = torch.arange(DECODED, device="cuda")
        ids = torch.tensor([prompt_of(DECODED, config)], device="cuda")
        logits = model(ids, past_key_values=cache, cache_position=positions, logits_to_keep=1).logits
        token = logits[:, -1].argmax(-1, keepdim=True)
        position = positions[-1:] + 1
        began = time.perf_counter()
        for count in (WARM_STEPS, 128, 128, 128, 128):
            for _ in range(count):
                logits = step(token.clone(), past_key_values=cache, cache_position=position).logits
                token, position = logits[:, -1].argmax(-1, keepdim=True), position + 1
            torch.cuda.synchronize()
            now = time.perf_counter()
            rates.append(count / (now - began))
            began = now
    torch.compiler.reset()
    return sorted(rates[2:])[1], WARM_STEPS / rates[0]


@contextmanager
def transformers_model(config: ModelConfig, weights: BlockWeights, dtype: str) -> Generator[Any]:
    """The model on the GPU, with torch's fused attention."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers")
    described = transformers.Qwen3Config(
        **{key: getattr(config, key) for key in keys}, vocab_size=config.vocab_size, rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=config.tie_word_embeddings, max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta}, attn_implementation="sdpa",
    )  # fmt: skip
    kind = getattr(torch, DTYPES[dtype].numpy)
    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(described)
    model = model.to_empty(device="cuda").to(kind)
    state = {key: torch.from_numpy(value.view(np.int16).copy()).view(kind) for key, value in weights.tensors()}
    missing = model.load_state_dict(state, strict=False, assign=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    del state
    model.tie_weights()
    set_frequencies(model, config)
    yield model
    del model
    gc.collect()
    torch.cuda.empty_cache()


def set_frequencies(model: Any, config: ModelConfig) -> None:
    """Set rotary frequencies in float32, which loading and dtype changes do not preserve."""
    torch: Any = importlib.import_module("torch")
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cuda") / config.head_dim
    model.model.rotary_emb.inv_freq = 1.0 / (config.rope_theta**exponents)


def compare(
    name: str, config: ModelConfig, model: Any, dtype: str, prompts: dict[int, Any], ours: dict[int, Any]
) -> list[dict[str, Any]]:
    """Errors against transformers in float32, with those of transformers in `dtype`; leaves the model in float32."""
    torch: Any = importlib.import_module("torch")
    logits: dict[str, dict[int, Any]] = {}
    for kind in (dtype, "f32"):
        model.to(getattr(torch, DTYPES[kind].numpy))
        set_frequencies(model, config)
        logits[kind] = {}
        for length, ids in prompts.items():
            with torch.no_grad():
                given = torch.from_numpy(ids.astype(np.int64))[None].cuda()
                hidden = model.model(given, use_cache=False).last_hidden_state[:, length - 1 :]
                logits[kind][length] = model.lm_head(hidden)[0].float().cpu().numpy()
    rows: list[dict[str, Any]] = []
    for length in prompts:
        exact = logits["f32"][length].astype(np.float64)
        own, theirs = errors(ours[length], exact), errors(logits[dtype][length], exact)
        rows.append({
            "model": name, "dtype": dtype, "length": length, "prefill": own[0] / theirs[0], "ours": own[0],
            "transformers": theirs[0], "decode_worst": max(own[1:]), "transformers_worst": max(theirs[1:]),
            "decode_mean": sum(own[1:]) / STEPS, "transformers_mean": sum(theirs[1:]) / STEPS,
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def errors(found: Any, exact: Any) -> list[float]:
    """Relative error of each row in the Euclidean norm."""
    rows: Any = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
    return [float(row) for row in rows]


def report(rows: list[dict[str, Any]], speeds: list[dict[str, Any]], wrong: int, path: Path) -> int:
    """Write and print the tables."""
    lines = ["| model | prompt | prefill: ours, transformers, ratio | 64 decode steps, mean: ours, transformers, ratio |"]
    lines.append("|---|--:|--:|--:|")
    failed = wrong > 0
    for row in rows:
        decode = row["decode_mean"] / row["transformers_mean"]
        failed = failed or not (row["prefill"] <= ALLOWED and decode <= ALLOWED)
        lines.append(
            f"| {row['model']} {row['dtype']} | {row['length']} | {row['ours']:.4f}, {row['transformers']:.4f}, "
            f"{row['prefill']:.2f} | {row['decode_mean']:.4f}, {row['transformers_mean']:.4f}, {decode:.2f} |"
        )
    lines += ["", f"Tokens drawn on the device that differ from the reference: {wrong} of {3 * STEPS * len(speeds)}."]
    models = [speed["model"] for speed in speeds]
    lines += ["", "| | " + " | ".join(models) + " |", "|---|" + "--:|" * len(models)]
    for key in list(speeds[0])[1:]:
        lines.append(f"| {key} | " + " | ".join(f"{speed[key]:.{2 if key == RATIO else 1}f}" for speed in speeds) + " |")
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"errors": rows, "drawn_wrong": wrong, "speed": speeds}
    path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text("# The engine beside transformers, random weights\n\n" + "\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
