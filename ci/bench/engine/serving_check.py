"""Checks and times rows over pages on this machine's GPU, with random weights.

    python3 ci/bench/engine.py serving_check artifacts/bundles [--models qwen3-4b,qwen3-8b] [--rows 8,32,128,256]
        [--vllm vllm_load.json,vllm_8b.json]
    python3 ci/bench/engine.py serving_check artifacts/bundles --models qwen3-4b,qwen3-30b-a3b --weights 16bit,fp8,int4
    python3 ci/bench/engine.py serving_check artifacts/bundles --models qwen3-4b --caches 16bit,fp8

Each model in each format of its weights and of its caches. First the bits: the logits and tokens of one sequence, alone in the
smallest bucket, and among others in each larger one, its prompt in one chunk and in chunks of odd lengths. Any bit that differs
fails. Next to them is how far these logits are from those of the contiguous cache, whose kernels add in another order. Then
tokens per second of all rows, greedy and sampled, next to two limits. The floor is the bytes of the weights and of all caches
over the memory's bandwidth, or the operations over the rate of tensor cores in bf16, whichever takes longer. The roofline has
rates that reads and products reach, and reads caches after the products. Of experts those weights count that so many rows
choose in the mean, if they choose at random. Then milliseconds of a prompt over pages, next to the same prompt in the
contiguous cache. First prompts of a length come before all else, as soon as the model is loaded: `first` once everything is
prepared that a server prepares while it waits or computes, `unprepared` before that, in rows that prepared nothing.

`--vllm` are files of the case `vllm_load`, best of the same machine and hour: the table then has vLLM's greedy rates and the
ratios. Exit status 1 if a bit differs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ci.bench.engine.floors import step_of
from ci.bench.engine.low_bit_weights import LowBitWeights
from ci.bench.engine.weights import BlockWeights, config_of, prompt_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.cuda import CudaBackend
from engine.backends.load import load_on_gpu
from engine.models.config import ModelConfig
from engine.paged_batch import PagedBatch
from engine.sampling import SamplingParams
from tilec.step.formats import SIXTEEN_BIT

GOAL_OF_ROOFLINE: Final = 0.80
GOALS_OF_VLLM: Final = {8: 1.35, 32: 1.35, 128: 1.35, 256: 1.2}
"""The least ratios that are wanted, by rows."""
CONTEXT: Final = 512
"""Tokens of each row's prompt when its speed is measured."""
STEPS: Final = 128
"""Tokens of each row after its prompt: in the mean a row has half of them more in its cache."""
PROMPT: Final = 333
"""Tokens of the sequence whose bits are compared."""
COMPARED: Final = 6
"""Steps whose logits are compared."""
PREFILLS: Final = (18, 512, 2048, 8192)
SAMPLED: Final = SamplingParams(0.8, 40, 0.95, seed=5)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--models", default="qwen3-4b,qwen3-8b")
    parser.add_argument("--weights", default=SIXTEEN_BIT, help="formats of the weights: 16bit, fp8, w8a8 and int4")
    parser.add_argument("--caches", default=SIXTEEN_BIT, help="formats of the caches: 16bit and fp8")
    parser.add_argument("--rows", default="8,32,128,256")
    parser.add_argument("--vllm", default="", metavar="JSON,...", help="of the case vllm_load, one for each model")


def measure(options: argparse.Namespace) -> Outcome:
    """Check and time each model in each format of its weights and caches."""
    found: dict[str, Any] = {}
    rows = [int(number) for number in names(options.rows)]
    for name in names(options.models):
        for form, cache in product(names(options.weights), names(options.caches)):
            bundle = name if form == SIXTEEN_BIT else f"{name}-{form}"
            bundle += "" if cache == SIXTEEN_BIT else f"-cache-{cache}"
            found[bundle] = checked(options.bundles, bundle, config_of(name), form, rows)
    for bundle, rates in rates_of_vllm(Path(path) for path in names(options.vllm)).items():
        for many in found[bundle]["tok_s"].keys() & rates.keys() if bundle in found else ():
            found[bundle]["tok_s"][many]["vllm"] = rates[many]
    failed = not all(equal for record in found.values() for equal in record["equal"].values())
    return Outcome(found, {f"{options.name}.md": page(report(found))}, int(failed))


def checked(bundles: Path, bundle: str, config: ModelConfig, form: str, rows: Sequence[int]) -> dict[str, Any]:
    """What was found of a model whose weights have a format, and its caches that of the bundle."""
    weights: Any = BlockWeights(config, "bf16")
    if form != SIXTEEN_BIT:
        weights = LowBitWeights(config, "bf16", "fp8" if form == "w8a8" else form)
    backend = load_on_gpu(bundles / f"{bundle}-sm_90a.bundle", config, weights, max(PREFILLS) + 256, "bf16")
    unprepared, first = {length: unprepared_first(backend, config, length) for length in PREFILLS}, firsts(backend, config)
    record: dict[str, Any] = {"equal": compared(backend, config, rows), "tok_s": {}, "preparing_ms": first.preparing}
    record["from_contiguous"] = from_contiguous(backend, config)
    print(bundle, json.dumps(record), flush=True)
    for many in rows:
        record["tok_s"][many] = {
            "greedy": speed(backend, config, many, None),
            "sampled": speed(backend, config, many, SAMPLED),
        }
        coded = backend.step.cache_format != SIXTEEN_BIT
        tokens = CONTEXT + STEPS // 2
        work = step_of(config, weights.destinations, many, tokens, coded=coded)
        record["tok_s"][many] |= {"floor": many / work.floor, "roofline": many / work.roofline}
        print(bundle, many, record["tok_s"][many], flush=True)
    record["prefill_ms"] = {
        length: {
            "pages": prefill(backend, config, length), "pages, first": first.pages[length],
            "pages, unprepared": unprepared[length], "contiguous": contiguous(backend, config, length),
            "contiguous, first": first.contiguous[length],
        }
        for length in PREFILLS
    }  # fmt: skip
    print(bundle, record["prefill_ms"], flush=True)
    backend.close()
    return record


def pages_of(batch: PagedBatch, row: int, tokens: int) -> list[int]:
    """Pages of a row for so many tokens, which no other row has."""
    count = -(-tokens // batch.page_tokens)
    first = batch.parking + row * count
    return list(range(first, first + count))


def join(batch: PagedBatch, row: int, ids: Sequence[int], room: int, chunks: Sequence[int] = (), sampling: Any = None) -> int:
    """Take a sequence into a row, its prompt divided at the positions `chunks`; returns its first token."""
    pages, begin = pages_of(batch, row, room), 0
    for end in chunks:
        batch.extend(pages, begin, ids[begin:end])
        begin = end
    return batch.join(row, pages, begin, ids[begin:], sampling)


def compared(backend: CudaBackend, config: ModelConfig, rows: Sequence[int]) -> dict[str, bool]:
    """Whether a sequence alone has the same bits as in its prompt's chunks, and among others in each number of rows."""
    ids, room = prompt_of(PROMPT, config), 2 * CONTEXT
    alone = bits(backend, config, 1, 0, ids, room)
    equal = {"chunks": same(alone, bits(backend, config, 1, 0, ids, room, (5, 64, 200)))}
    for many in rows:
        equal[str(many)] = same(alone, bits(backend, config, many, many - 1, ids, room))
    return equal


def bits(
    backend: CudaBackend, config: ModelConfig, many: int, row: int, ids: Sequence[int], room: int, chunks: Sequence[int] = ()
) -> list[tuple[int, NDArray[np.float32]]]:  # fmt: skip
    """The token before each of some steps and the logits after it, of a sequence in a row among `many` - 1 others."""
    with PagedBatch(backend, many) as batch:
        for other in range(many - 1):
            join(batch, other, prompt_of(20 + 3 * other % 300, config), room)
        token, found = join(batch, row, ids, room, chunks), list[tuple[int, NDArray[np.float32]]]()
        for _ in range(COMPARED):
            found.append((token, batch.step_logits()[row].copy()))
            token = batch.step(ahead=False)[row]
        return found


def from_contiguous(backend: CudaBackend, config: ModelConfig) -> float:
    """How far the logits of a sequence over pages are from those in the contiguous cache, after the same tokens: the root mean
    square of the differences over the deviation, the greatest of the steps."""
    ids, distances = prompt_of(PROMPT, config), list[float]()
    over_pages = bits(backend, config, 1, 0, ids, 2 * CONTEXT)
    sequence = backend.begin()
    backend.prefill(sequence, ids)
    for token, logits in over_pages:
        expected = backend.decode_logits(sequence, token)
        distances.append(float(np.sqrt(np.mean((logits - expected) ** 2)) / expected.std()))
    return max(distances)


def same(left: Sequence[tuple[int, Any]], right: Sequence[tuple[int, Any]]) -> bool:
    """Whether tokens and all bits of logits are equal."""
    return all(a[0] == b[0] and a[1].tobytes() == b[1].tobytes() for a, b in zip(left, right, strict=True))


def speed(backend: CudaBackend, config: ModelConfig, many: int, sampling: SamplingParams | None) -> float:
    """Tokens per second of all rows, of the first `STEPS` after prompts of `CONTEXT` tokens; median of three runs."""
    rates: list[float] = []
    with PagedBatch(backend, many) as batch:
        for _ in range(4):
            for row in range(many):
                ids = [(token + row) % config.vocab_size for token in prompt_of(CONTEXT, config)]
                join(batch, row, ids, CONTEXT + STEPS + 1, sampling=sampling)
            batch.step()
            began = time.perf_counter()
            count = sum(len(batch.step(ahead=left > 1)) for left in range(STEPS - 1, 0, -1))
            rates.append(count / (time.perf_counter() - began))
            for row in range(many):
                batch.remove(row)
    return sorted(rates[1:])[1]


def rates_of_vllm(paths: Iterable[Path]) -> dict[str, dict[int, float]]:
    """Tokens per second of vLLM by model and rows."""
    found: dict[str, dict[int, float]] = {}
    for path in paths:
        record = json.loads(path.read_text(encoding="utf-8"))
        found[record["model"]] = {int(many): rate["tok_s"] for many, rate in record["decode"].items()}
    return found


@dataclass(frozen=True, slots=True)
class Firsts:
    """Milliseconds of what was prepared, all of it and its longest part, and of the first prompt of each length then."""

    preparing: dict[str, float]
    pages: dict[int, float]
    contiguous: dict[int, float]


def firsts(backend: CudaBackend, config: ModelConfig) -> Firsts:
    """First prompts of each length, as a server has them that has prepared everything, and in the contiguous cache."""
    with PagedBatch(backend, 1) as batch:
        parts, left = list[float](), True
        while left:
            began = time.perf_counter()
            left = batch.prepare()
            parts.append(1e3 * (time.perf_counter() - began))
        pages = {length: over_pages(batch, prompt_of(length, config)) for length in PREFILLS}
    others = {length: in_contiguous(backend, prompt_of(length, config)) for length in PREFILLS}
    return Firsts({"all": sum(parts), "longest": max(parts)}, pages, others)


def unprepared_first(backend: CudaBackend, config: ModelConfig, length: int) -> float:
    """Milliseconds of the first prompt of rows of which nothing is prepared. Kernels stay loaded that earlier ones loaded."""
    with PagedBatch(backend, 1) as batch:
        return over_pages(batch, prompt_of(length, config))


def prefill(backend: CudaBackend, config: ModelConfig, length: int) -> float:
    """Milliseconds of a prompt over pages whose length was run before; the median of five."""
    with PagedBatch(backend, 1) as batch:
        return sorted([over_pages(batch, prompt_of(length, config)) for _ in range(6)][1:])[2]


def contiguous(backend: CudaBackend, config: ModelConfig, length: int) -> float:
    """The same in the contiguous cache."""
    return sorted([in_contiguous(backend, prompt_of(length, config)) for _ in range(6)][1:])[2]


def over_pages(batch: PagedBatch, ids: Sequence[int]) -> float:
    """Milliseconds to the first token of a prompt over pages."""
    began = time.perf_counter()
    join(batch, 0, ids, len(ids) + 64)
    batch.remove(0)
    return 1e3 * (time.perf_counter() - began)


def in_contiguous(backend: CudaBackend, ids: Sequence[int]) -> float:
    """The same in the contiguous cache."""
    began = time.perf_counter()
    backend.prefill(backend.begin(), ids)
    backend.token()
    return 1e3 * (time.perf_counter() - began)


def report(found: Mapping[str, Any]) -> list[str]:
    """The table of speeds of all models, then whether bits are equal and the times of prompts."""
    lines = [f"# Rows over pages, random weights, {STEPS} tokens after prompts of {CONTEXT}", "", *speeds(found)]
    for name, record in found.items():
        lines += ["", f"## {name}", "", f"the same bits as alone: {record['equal']}", ""]
        lines += [f"from logits in the contiguous cache: {record['from_contiguous']:.4f} of their deviation", ""]
        times = [[length, *(f"{ms:.2f}" for ms in kinds.values())] for length, kinds in record["prefill_ms"].items()]
        lines += grid(("tokens", *next(iter(record["prefill_ms"].values()))), times, left=0)
        if "preparing_ms" in record:  # records of before have none
            prepared = record["preparing_ms"]
            lines += ["", f"What is prepared: {prepared['all']:.0f} ms, at most {prepared['longest']:.2f} at once."]
    return lines


def speeds(found: Mapping[str, Any]) -> list[str]:
    """Tokens per second of each model and number of rows, and what they are of the limits and of vLLM's."""
    header = ["model", "rows", "greedy, tok/s", "sampled", "of the floor", "of the roofline", "goal"]
    with_vllm = any("vllm" in rates for record in found.values() for rates in record["tok_s"].values())
    rows: list[list[object]] = []
    for name, record in found.items():
        for many, rates in record["tok_s"].items():
            shares = [f"{rates['greedy'] / rates[limit]:.2f}" for limit in ("floor", "roofline")]
            row: list[object] = [
                name,
                many,
                f"{rates['greedy']:.0f}",
                f"{rates['sampled']:.0f}",
                *shares,
                f"{GOAL_OF_ROOFLINE:.2f}",
            ]
            if with_vllm and "vllm" in rates:
                row += [f"{rates['vllm']:.0f}", f"{rates['greedy'] / rates['vllm']:.2f}", GOALS_OF_VLLM.get(int(many), "")]
            elif with_vllm:
                row += ["", "", ""]
            rows.append(row)
    return grid([*header, *(("vLLM, tok/s", "ratio", "goal") if with_vllm else ())], rows)
