"""Times whole decode steps of rows over pages with the present choices of tiles, and with those of before, by turns.

    PYTHONPATH=CHECKOUT python FOLDER/decode.py --bundles FOLDER/bundles --out OUT [--models qwen3-4b,qwen3-8b]

One bundle has the kernels of both: constants of launches are replaced in the graph of a step. Weights are random, contexts 512 to
640 tokens, greedy. All tokens of all rows have to be the same in every variant of a number of rows.
"""
import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from ci.bench.engine.serving_check import CONTEXT, STEPS, join, step_of
from ci.bench.engine.weights import BlockWeights, config_of, prompt_of
from engine.backends.load import load_on_gpu
from engine.paged_batch import PagedBatch
from tilec.step.step import Step

ap = argparse.ArgumentParser()
ap.add_argument("--bundles", type=Path)
ap.add_argument("--out", type=Path)
ap.add_argument("--models", default="qwen3-4b,qwen3-8b")
opt = ap.parse_args()

BEFORE = {
    "matmul_silu_mul_few": lambda c: {**c, "BM": min(c["BM"], 128)},
    "matmul_few": lambda c: {**c, "BN": 128} if c.get("BN") == 96 else c,
    "paged_decode_attention": lambda c: {**c, "ROWS": 256},
}
"""What a launch had before, by kernel."""
FORMER = set()
"""Kernels that have what they had before."""
original = Step.graph


def graph(self, mode, head="argmax", **named):
    found = original(self, mode, head, **named)
    if mode != "serve":
        return found
    ops = [replace(op, constants=BEFORE[op.kernel](op.constants)) if op.kernel in FORMER else op for op in found.ops]
    return replace(found, ops=ops)


Step.graph = graph
GU, QKV, ATTENTION = BEFORE
VARIANTS = {
    8: [("before", BEFORE), ("now", ())] * 3,
    32: [("before", BEFORE), ("now", ())] * 3,
    128: [("now", ())] * 2,
    256: [("before", BEFORE), ("now", ()), ("gate/up before", (GU,)), ("qkv before", (QKV,)), ("before", BEFORE), ("now", ())],
}


def decode(backend, config, many):
    """Tokens per second of the steps after the first ones, and all tokens."""
    with PagedBatch(backend, many) as batch:
        for row in range(many):
            join(batch, row, [(token + row) % config.vocab_size for token in prompt_of(CONTEXT, config)], CONTEXT + STEPS + 1)
        tokens = [batch.step()]
        began = time.perf_counter()
        tokens += [batch.step(ahead=left > 1) for left in range(STEPS - 1, 0, -1)]
        rate = sum(map(len, tokens[1:])) / (time.perf_counter() - began)
        for row in range(many):
            batch.remove(row)
    return rate, tokens


table, record = [], []
for name in opt.models.split(","):
    config = config_of(name)
    weights = BlockWeights(config, "bf16")
    backend = load_on_gpu(opt.bundles / f"{name}-sm_90a.bundle", config, weights, 8448, "bf16")
    sizes = {one.name: one.bytes for one in weights.destinations}
    FORMER.clear()
    decode(backend, config, 8)
    for many, variants in VARIANTS.items():
        rates, first, same = {}, None, True
        for label, kernels in variants:
            FORMER.clear()
            FORMER.update(kernels)
            rate, tokens = decode(backend, config, many)
            rates.setdefault(label, []).append(rate)
            first = tokens if first is None else first
            same = same and tokens == first
            print(name, many, label, f"{rate:.0f}", flush=True)
        best, roofline = {label: max(r) for label, r in rates.items()}, many / step_of(config, sizes, many).roofline
        shares = "  ".join(f"{label} {rate:.0f} ({rate / roofline:.3f})" for label, rate in best.items())
        table.append(f"{name} {many:3d} rows, tok/s (of the roofline): {shares} [{'same tokens' if same else 'TOKENS DIFFER'}]")
        record.append({"model": name, "rows": many, "tok_s": rates, "roofline": roofline, "same": same})
        opt.out.mkdir(parents=True, exist_ok=True)
        (opt.out / "decode.json").write_text(json.dumps(record, indent=1))
    backend.close()
print("\n".join(["", *table]))
(opt.out / "decode.txt").write_text("\n".join(table) + "\n")
