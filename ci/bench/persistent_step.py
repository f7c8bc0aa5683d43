"""Measures a decode step in one persistent kernel beside the engine's chain of launches, on random weights of the real shapes.

    python3 ci/bench/persistent_step.py [--model qwen3-0.6b] [--bundles FOLDER] [--only "whole;weights alone"] [--out FOLDER]

Needs an H200 (132 multiprocessors, sm_90a), torch, and cuda-bindings with NVRTC, which compiles `persistent_step.cu` for each
variant. The whole step is checked first: every activation of every layer against torch in float32, computed from the kernel's
own activation before it, the token, and 50 steps for the same bits. Where bundles are given, `engine.bench` measures the chain
on the same GPU. Writes `persistent_step.json` and `.md`; exit code 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from persistent_kernel import (
    BLOCKS,
    HEAD_DIM,
    HERE,
    MODELS,
    PROBES,
    STAMPED,
    THREADS,
    VARIANTS,
    Arguments,
    Model,
    Variant,
    compiled,
    driver,
    loaded,
    ok,
)
from persistent_table import markdown

torch: Any = importlib.import_module("torch")

ROOT: Final = HERE.parent.parent
EPS: Final = 1e-6
COPIES: Final = 16
"""Of activations, at most."""
SLOTS: Final = 256
"""Of the cache."""
ALLOWED: Final = 2.0**-7
"""Relative error in the Euclidean norm: twice a rounding to bf16."""
ROUNDS: Final = 9
BANDWIDTH: Final = 4.58e12
"""Bytes per second at which the LM head of the chain is read."""
PHASES: Final = ("qkv", "attention", "o", "gate_up", "down")


class Step:
    """Random weights of a model, its cache, and launches of the kernel over them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        torch.manual_seed(0)
        m = model

        def weights(*shape: int) -> Any:
            made = torch.empty(*shape, dtype=torch.bfloat16, device="cuda")
            for part in made.view(-1, shape[-1]).split(1 << 17):
                part.normal_(0, shape[-1] ** -0.5)
            return made

        def norms(*shape: int) -> Any:
            return (1 + 0.1 * torch.randn(*shape, device="cuda")).bfloat16()

        self.tensors: dict[str, Any] = {
            "embed": weights(m.vocab, m.hidden), "qkv": weights(m.layers, m.qkv, m.hidden),
            "o": weights(m.layers, m.hidden, m.query), "gate_up": weights(m.layers, 2 * m.intermediate, m.hidden),
            "down": weights(m.layers, m.hidden, m.intermediate), "norm1": norms(m.layers, m.hidden),
            "norm2": norms(m.layers, m.hidden), "q_norm": norms(m.layers, HEAD_DIM), "k_norm": norms(m.layers, HEAD_DIM),
            "norm": norms(m.hidden), "k_cache": torch.randn(m.layers, SLOTS, m.kv_heads, HEAD_DIM, device="cuda").bfloat16(),
            "v_cache": torch.randn(m.layers, SLOTS, m.kv_heads, HEAD_DIM, device="cuda").bfloat16(),
            "sets": torch.full((COPIES, 2, m.set_halves), -1, dtype=torch.int16, device="cuda"),
            "token": torch.tensor([1234], dtype=torch.int32, device="cuda"),
            "stamps": torch.zeros((m.layers * 5 + 1) * 3 * BLOCKS, dtype=torch.int64, device="cuda"),
            "read_cycles": torch.zeros(32 * BLOCKS, dtype=torch.int32, device="cuda"),
        }  # fmt: skip
        self.tensors["embed"].mul_(m.hidden**0.5)
        angles = torch.arange(SLOTS, device="cuda")[:, None] * 1e6 ** (-torch.arange(64, device="cuda") / 64)
        self.tensors["rope"] = torch.stack([angles.cos(), angles.sin()], 1).float().contiguous()
        self.parity = 0

    def launch(self, kernel: tuple[Any, int], length: int) -> None:
        """One step, on torch's stream."""
        arguments = Arguments(**{name: tensor.data_ptr() for name, tensor in self.tensors.items()})
        arguments.slots, arguments.length, arguments.parity = SLOTS, length, self.parity
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        stream = torch.cuda.current_stream().cuda_stream
        ok(driver.cuLaunchKernel(kernel[0], BLOCKS, 1, 1, THREADS, 1, 1, kernel[1], stream, ctypes.addressof(pointers), 0))
        self.parity ^= 1

    def check(self, kernel: tuple[Any, int], length: int) -> tuple[dict[str, float], bool]:
        """The worst relative error of each activation, each from the one before it; whether the token is right."""
        m, t = self.model, self.tensors
        token = int(t["token"].item())
        self.launch(kernel, length)
        torch.cuda.synchronize()
        made = t["sets"][0, self.parity ^ 1].view(torch.bfloat16)
        worst: dict[str, float] = {}

        def compare(name: str, got: Any, want: Any) -> None:
            error = ((got.float() - want).norm() / want.norm()).item()
            worst[name] = max(worst.get(name, 0.0), error if error == error else float("inf"))

        def norm(x: Any, weight: Any) -> Any:
            x = x.float()
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight.float()

        def rotated(x: Any) -> Any:
            cosine, sine = t["rope"][length - 1]
            a, b = x[..., :64], x[..., 64:]
            return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

        hidden = t["embed"][token]
        for layer in range(m.layers):
            part = made[layer * m.layer_halves : (layer + 1) * m.layer_halves]
            qkv, mixed, middle, act, out = part.split([m.qkv, m.query, m.hidden, m.intermediate, m.hidden])
            compare("qkv", qkv, t["qkv"][layer].float() @ norm(hidden, t["norm1"][layer]))
            q, k, v = qkv.view(-1, HEAD_DIM).split([m.heads, m.kv_heads, m.kv_heads])
            q, k = rotated(norm(q, t["q_norm"][layer])), rotated(norm(k, t["k_norm"][layer]))
            keys, values = t["k_cache"][layer, :length].float(), t["v_cache"][layer, :length].float()
            compare("k_cache", keys[-1], k)
            compare("v_cache", values[-1], v.float())
            scores = torch.einsum("hgd,shd->hgs", q.view(m.kv_heads, -1, HEAD_DIM), keys) * HEAD_DIM**-0.5
            compare("attention", mixed, torch.einsum("hgs,shd->hgd", scores.softmax(-1), values).flatten())
            compare("o", middle, hidden.float() + t["o"][layer].float() @ mixed.float())
            gate, up = (t["gate_up"][layer].float() @ norm(middle, t["norm2"][layer])).chunk(2)
            compare("gate_up", act, torch.nn.functional.silu(gate) * up)
            compare("down", out, middle.float() + t["down"][layer].float() @ act.float())
            hidden = out
        logits = t["embed"].float() @ norm(hidden, t["norm"])
        chosen = int(t["token"].item())
        return worst, bool(logits[chosen] >= logits.max() - 1e-2 * logits.abs().max())

    def deterministic(self, kernel: tuple[Any, int], length: int, times: int = 50) -> bool:
        """Whether the same step gives the same bits each time."""
        found: Any = None
        for _ in range(times):
            self.tensors["token"].fill_(77)
            self.launch(kernel, length)
            torch.cuda.synchronize()
            made = self.tensors["sets"][0, self.parity ^ 1][: self.model.layer_halves * self.model.layers].clone()
            if found is not None and not torch.equal(found, made):
                return False
            found = made
        return True

    def measure(self, kernels: Mapping[str, tuple[Any, int]], length: int, steps: int) -> dict[str, list[float]]:
        """Microseconds of a step, in rounds that go through the kernels in turns."""
        times: dict[str, list[float]] = {name: [] for name in kernels}
        for turn in range(ROUNDS + 2):
            for name, kernel in kernels.items():
                self.tensors["sets"].fill_(-1)
                self.tensors["token"].fill_(77)
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.launch(kernel, length)
                begin.record()
                for _ in range(steps):
                    self.launch(kernel, length)
                end.record()
                torch.cuda.synchronize()
                if turn >= 2:
                    times[name].append(begin.elapsed_time(end) * 1e3 / steps)
        return times

    def phases(self, kernel: tuple[Any, int], length: int) -> dict[str, dict[str, float]]:
        """Microseconds of each phase, medians over blocks and inner layers: until the input is there, and from there on."""
        m = self.model
        rows: dict[str, dict[str, float]] = {}
        for _ in range(5):
            self.tensors["stamps"].zero_()
            self.launch(kernel, length)
        torch.cuda.synchronize()
        stamps = self.tensors["stamps"].view(-1, 3, BLOCKS).cpu()
        starved = stamps[:, 2].double() / 1e3
        there = stamps[:, 0] > 0
        zero = stamps[:, 0][there].min()
        start, end = ((stamps[:, side] - zero).double() / 1e3 for side in (0, 1))
        last = torch.where(there, end, -1.0).amax(-1)  # of each phase of each layer

        def median(values: list[Any]) -> float:
            return float(torch.stack(values).median())

        for index, name in enumerate(PHASES):
            places = [layer * 5 + index for layer in range(1, m.layers)]
            rows[name] = {
                "input_behind_last_us": median([(start[p] - last[p - 1])[there[p]].median() for p in places]),
                "works_us": median([(end[p] - start[p])[there[p]].median() for p in places]),
                "last_input_to_last_end_us": median([last[p] - start[p][there[p]].max() for p in places]),
                "last_to_last_us": median([last[p] - last[p - 1] for p in places]),
                "starved_us": median([starved[p][there[p]].median() for p in places]),
                "starved_most_us": median([starved[p][there[p]].max() for p in places]),
            }  # fmt: skip
        rows["head"] = {"us": float(last[-1] - last[-2]), "starved_us": float(starved[-1].max())}
        rows["step"] = {"us": float(last[-1])}
        return rows

    def probe(self, kernel: tuple[Any, int], length: int) -> tuple[int, int]:
        """Cycles that a read of a word in the L2 cache takes meanwhile: mean and worst, medians of the blocks."""
        self.tensors["sets"].fill_(-1)
        for _ in range(3):
            self.launch(kernel, length)
        torch.cuda.synchronize()
        found = self.tensors["read_cycles"].view(BLOCKS, 32).cpu()
        return int(found[:, 16].median()), int(found[:, 17].median())


def chain(name: str, bundles: Path) -> float:
    """Microseconds of a step of the engine behind 18 tokens, as `engine.bench` measures it."""
    config = json.loads((HERE / "results" / f"bench_{name.removeprefix('qwen3-')}.json").read_text())["model"]["config"]
    config |= {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        out = Path(folder) / "bench.json"
        bundle = bundles / f"{name}-sm_90a.bundle"
        command = [sys.executable, "-m", "engine.bench", "--model", folder, "--bundle", str(bundle), "--dummy-weights"]
        command += ["--pp", "18", "--tg", "36", "--json", str(out)]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return 1e6 / json.loads(out.read_text())["cells"][0]["decode_tokens_per_second"]["median"]


def measured(name: str, wanted: list[str], length: int, bundles: Path | None) -> tuple[dict[str, Any], bool]:
    """What was found of a model, and whether all of it is right."""
    model = MODELS[name]
    found: dict[str, Any] = {"floor_us": model.weight_bytes / BANDWIDTH * 1e6, "weight_bytes": model.weight_bytes}
    if bundles is not None:
        found["chain_us"] = chain(name, bundles)
    step = Step(model)
    variants: dict[str, Variant] = {key: VARIANTS[key] for key in (*wanted, "whole")}
    variants |= {f"probe {key}": variant for key, variant in PROBES.items()}
    variants |= {f"stamps {key}": replace(VARIANTS[key], stamps=1) for key in STAMPED}
    with ThreadPoolExecutor() as pool:
        cubins = list(pool.map(partial(compiled, model), variants.values()))
    kernels = {key: loaded(cubin, step.tensors["read_cycles"].data_ptr()) for key, cubin in zip(variants, cubins, strict=True)}
    found["errors"], found["token"] = step.check(kernels["whole"], length)
    found["deterministic"] = step.deterministic(kernels["whole"], length)
    times = step.measure({key: kernels[key] for key in wanted}, length, steps=20 if model.hidden == 1024 else 8)
    found["step_us"] = {key: statistics.median(values) for key, values in times.items()}
    found["spread_us"] = {key: [min(values), max(values)] for key, values in times.items()}
    found["read_cycles"] = {key: step.probe(kernels[f"probe {key}"], length) for key in PROBES}
    found["phases"] = {}
    for key in STAMPED:
        step.tensors["sets"].fill_(-1)
        found["phases"][key] = step.phases(kernels[f"stamps {key}"], length)
    return found, found["token"] and found["deterministic"] and max(found["errors"].values()) <= ALLOWED


def main() -> int:
    """Check, measure, print, write; 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description="measure a decode step in one persistent kernel")
    parser.add_argument("--model", choices=tuple(MODELS), action="append", help="default: each")
    parser.add_argument("--bundles", type=Path, help="folder of bundles, for the chain of launches")
    parser.add_argument("--only", help="variants, separated by semicolons")
    parser.add_argument("--length", type=int, default=18, help="slots of the cache that are filled, at most 256")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", HERE / "results")))
    options = parser.parse_args()
    wanted = options.only.split(";") if options.only else list(VARIANTS)
    if unknown := [one for one in wanted if one not in VARIANTS]:
        parser.error(f"no variant is called {unknown[0]!r}; there are: {'; '.join(VARIANTS)}")
    if not 1 <= options.length <= SLOTS:
        parser.error(f"--length {options.length} is not from 1 to {SLOTS}")
    all_right, results = True, dict[str, Any]()
    for name in options.model or list(MODELS):
        results[name], right = measured(name, wanted, options.length, options.bundles)
        all_right = all_right and right
        torch.cuda.empty_cache()
    results = {"gpu": torch.cuda.get_device_name(), "length": options.length, "models": results}
    (options.out / "persistent_step.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "persistent_step.md").write_text(markdown(results))
    print(markdown(results))
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
