"""The requests of `serving_load` on vLLM, and its decode steps of whole batches, in one start, on this machine's GPU.

    python3 ci/bench/engine.py vllm_load FOLDER [--decode 8,32,128,256] [--without-loads] [--rates 4,8,16] [--seconds 15]

For an environment that has vLLM (0.26), which needs nothing else of this repository; FOLDER has a model's config and tokenizer.
vLLM's defaults hold (torch.compile, CUDA graphs, asynchronous scheduling, chunked prefill, a cache of prefixes), but for 256
requests at a time, as ours, and 8192 tokens of a step, its server's default. Weights are its dummy ones.

- Loads and prefixes: as of `serving_load`. The engine is a process of its own; requests go to its client (`LLMEngine`) as token
  ids, greedy, without detokenizing. The client takes outputs as soon as they are there, and sends a request when it arrives.
- Decode: as many prompts of 512 random tokens at once as the batch has rows, 128 tokens of each. Tokens per second are of the
  steps in which every request gets one; median of three runs after a short one.

The file is for `serving_load --vllm` and `serving_check --vllm`. It is written after each part.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ci.bench.engine.load_traffic import (
    LENGTHS,
    PAIR_OUTPUTS,
    Asked,
    Pair,
    Seen,
    before,
    loads,
    options_of_traffic,
    pairs,
    prefix_summary,
    random_ids,
    summary,
)
from ci.bench.front import Outcome, names

CONTEXT: Final = 512
STEPS: Final = 128
RUNS: Final = 3
ROWS: Final = 256
PAUSE_SECONDS: Final = 1e-4
"""How long the client sleeps when there is no output and no request has arrived."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="qwen3-4b", help="its name in the file")
    parser.add_argument("--decode", default="32,8,128,256", help="rows of batches whose steps are timed")
    parser.add_argument("--without-loads", action="store_true")
    parser.add_argument("--cache-bytes", type=int, help="of keys and values, if other engines are on the GPU too")
    parser.add_argument(
        "--wait-for", type=Path, metavar="FILE", help="measure once this file is there: another engine measures"
    )
    options_of_traffic(parser)


def measure(options: argparse.Namespace) -> Iterator[Outcome]:
    """Start vLLM, then measure part after part."""
    began = time.perf_counter()
    vllm: Any = importlib.import_module("vllm")
    memory = {"gpu_memory_utilization": 0.85}
    if options.cache_bytes is not None:  # then the share is only what has to be free at the start
        memory = {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": options.cache_bytes}
    llm = vllm.LLM(
        model=str(options.folder), load_format="dummy", dtype="bfloat16", max_model_len=LENGTHS.longest,
        max_num_seqs=ROWS, max_num_batched_tokens=8192, seed=0, generation_config="vllm",
        disable_log_stats=True, **memory,
    )  # fmt: skip
    client = Client(
        llm.llm_engine, vllm.SamplingParams, importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
    )
    settings = llm.llm_engine.vllm_config
    record: dict[str, Any] = {
        "model": options.model, "vllm": vllm.__version__, "start_seconds": time.perf_counter() - began,
        "graphs": str(settings.compilation_config.cudagraph_mode), "chunked": settings.scheduler_config.enable_chunked_prefill,
        "batched_tokens": settings.scheduler_config.max_num_batched_tokens, "decode": {}, "loads": {}, "prefixes": {},
    }  # fmt: skip
    yield written(record, "start", record["start_seconds"])
    while options.wait_for is not None and not options.wait_for.exists():
        time.sleep(0.1)
    for asked in before(ROWS, options.seed):
        client.drive(asked)
    for many in names(options.decode):
        record["decode"][many] = client.decode(int(many))
        yield written(record, f"decode {many}", record["decode"][many])
    if options.without_loads:
        return
    for name, asked in loads(options).items():
        record["loads"][name] = summary(client.drive(asked))
        yield written(record, name, record["loads"][name])
    record["prefixes"] = client.prefixes(pairs(options.pairs, options.seed))
    yield written(record, "prefixes", record["prefixes"])


def written(record: dict[str, Any], name: str, part: Any) -> Outcome:
    """What was found so far."""
    print("vLLM", name, json.dumps(part), flush=True)
    return Outcome(record)


class Client:
    """What sends requests to vLLM's engine and takes their tokens. `engine` is an `LLMEngine`; `parameters` makes its
    parameters of sampling; `delta` is the kind of outputs that have new tokens alone."""

    def __init__(
        self, engine: Any, parameters: Callable[..., Any], delta: Any,
        clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._engine, self._parameters, self._delta, self._clock, self._sleep = engine, parameters, delta, clock, sleep
        self._next = 0

    def drive(
        self, asked: Sequence[Asked], found: list[int] | None = None, steps: list[tuple[float, int]] | None = None
    ) -> list[Seen]:
        """Send requests when they arrive, whether or not others have ended, and follow each to its end. `found` gets the
        number of each prompt's tokens that were in a cache, `steps` the time of each output and how many requests it has a
        token of."""
        waiting, running, all_seen = deque(asked), dict[str, Seen](), list[Seen]()
        begin = self._clock()
        while waiting or running:
            while waiting and waiting[0].at <= self._clock() - begin:
                seen = Seen(waiting.popleft(), sent=self._clock() - begin)
                all_seen.append(seen)
                running[self._send(seen.asked)] = seen
            if not running or self._engine.engine_core.outputs_queue.empty():
                self._sleep(PAUSE_SECONDS)
                continue
            outputs = self._engine.step()
            now, count = self._clock() - begin, 0
            for output in outputs:
                tokens = len(output.outputs[0].token_ids)
                seen = running[output.request_id]
                if found is not None and tokens and not seen.times:
                    found.append(output.num_cached_tokens or 0)
                seen.times += [now] * tokens
                count += tokens
                if output.finished:
                    del running[output.request_id]
            if steps is not None:
                steps.append((now, count))
        return all_seen

    def _send(self, asked: Asked) -> str:
        """Give a request to the engine; returns its name."""
        name, self._next = str(self._next), self._next + 1
        parameters = self._parameters(
            temperature=0.0, max_tokens=asked.most, ignore_eos=True, detokenize=False, output_kind=self._delta
        )
        self._engine.add_request(name, {"prompt_token_ids": list(asked.ids)}, parameters)
        return name

    def decode(self, many: int) -> dict[str, Any]:
        """Tokens per second of steps of `many` rows."""
        rates: list[float] = []
        for run in range(RUNS + 1):
            most = STEPS if run else 8
            steps: list[tuple[float, int]] = []
            self.drive(
                [Asked(0.0, random_ids(f"{many}/{run}/{row}", CONTEXT, LENGTHS), most) for row in range(many)], steps=steps
            )
            times = [now for now, count in steps if count == many]
            if run:
                rates.append(many * (len(times) - 1) / (times[-1] - times[0]))
        return {"tok_s": round(statistics.median(rates), 1), "runs": [round(rate, 1) for rate in rates]}

    def prefixes(self, asked: Sequence[Pair]) -> dict[str, Any]:
        """As of `serving_load`."""
        times: dict[str, list[float]] = {"new": [], "found": []}
        cached: dict[str, list[int]] = {"new": [], "found": []}
        for pair in asked:
            for kind, ids in (("new", pair.first), ("found", pair.second)):
                [seen] = self.drive([Asked(0.0, ids, PAIR_OUTPUTS)], cached[kind])
                times[kind].append(seen.times[0] - seen.sent)
        return prefix_summary(times, cached)
