"""Measures a decode step in one persistent kernel beside the engine's chain of launches, on random weights of the real shapes.

    python3 ci/bench/persistent_step.py [--model qwen3-0.6b] [--bundles FOLDER] [--only full,...] [--out FOLDER]

Needs an H200 (132 multiprocessors, sm_90a), torch, and cuda-bindings with NVRTC, which compiles `persistent_step.cu` for each
variant. The whole variant is checked first: every activation of every layer against torch in float32, computed from the
kernel's own activation before it, and the token. Where bundles are given, `engine.bench` measures the chain on the same GPU.
Writes `persistent_step.json` and `.md`; exit code 1 where a result is wrong.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

torch: Any = importlib.import_module("torch")
driver: Any = importlib.import_module("cuda.bindings.driver")
nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
BLOCKS: Final = 132
THREADS: Final = 20 * 32
HEAD_DIM: Final = 128
EPS: Final = 1e-6
SLOTS: Final = 256
ALLOWED: Final = 2.0**-7
"""Relative error in the Euclidean norm: twice a rounding to bf16."""
ROUNDS: Final = 9
STAMPED: Final = ("full, 32, hint, 8 copies", "hops alone")
PHASES: Final = ("qkv", "attention", "o", "gate_up", "down")


@dataclass(frozen=True)
class Model:
    """Numbers of a config.json, and how its rows lie in the ring."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    ring: int
    group: int
    askers: int = 1

    @property
    def query(self) -> int:
        return self.heads * HEAD_DIM

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * HEAD_DIM

    @property
    def layer_halves(self) -> int:
        return self.qkv + self.query + 2 * self.hidden + self.intermediate

    @property
    def weight_bytes(self) -> int:
        layer = self.qkv * self.hidden + self.hidden * self.query + 3 * self.intermediate * self.hidden
        return 2 * (layer * self.layers + self.vocab * self.hidden)


MODELS: Final = {
    "qwen3-0.6b": Model(1024, 28, 16, 8, 3072, 151936, 13, 4),
    "qwen3-4b": Model(2560, 36, 32, 8, 9728, 151936, 9, 2),
}


@dataclass(frozen=True)
class Variant:
    """What of the kernel is there."""

    hops: int = 1
    math: int = 1
    stamps: int = 0
    evict_first: int = 1
    ring: int = 0
    flight: int = 64
    copies: int = 1
    pause: int = 0
    hint: int = 0
    bring: int = 1
    probe: int = 0
    weights: int = 1
    more: str = ""


VARIANTS: Final = {
    "stream": Variant(hops=0, math=0),
    "no waits": Variant(hops=0),
    "hops alone": Variant(weights=0),
    "full": Variant(),
    "full, 32, hint, 8 copies": Variant(hint=1, copies=8, flight=40),
    "full, 20, hint, 8 copies": Variant(hint=1, copies=8, flight=20),
    "full, hint, 8 copies": Variant(hint=1, copies=8),
    "full, 32, hint, 16 copies": Variant(hint=1, copies=16, flight=40),
    "full, 32, hint, 4 copies": Variant(hint=1, copies=4, flight=40),
    "full, 32, hint, 8 copies, pause 100": Variant(hint=1, copies=8, pause=100, flight=40),
    "full, 20, hint, 8 copies, pause 100": Variant(hint=1, copies=8, pause=100, flight=20),
}
PROBES: Final = {
    "alone": Variant(weights=0, hops=0, probe=1),
    "stream, 20": Variant(hops=0, math=0, flight=20, probe=1),
    "stream, 40": Variant(hops=0, math=0, flight=40, probe=1),
    "stream, 64": Variant(hops=0, math=0, flight=64, probe=1),
    "stream, all": Variant(hops=0, math=0, flight=999, probe=1),
    "full, 40": Variant(probe=1, flight=40),
    "full, 40, hint": Variant(probe=1, flight=40, hint=1, copies=8),
}
"""Variants in which a thread of each block reads a word of its own in the L2 cache again and again."""


def ok(result: Any) -> Any:
    """What a call of the driver or of NVRTC gave; RuntimeError where it failed."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else tuple(values)


def compiled(model: Model, variant: Variant) -> bytes:
    """The kernel as a CUBIN."""
    defined = {
        "HIDDEN": model.hidden, "LAYERS": model.layers, "QH": model.heads, "KVH": model.kv_heads, "INTER": model.intermediate,
        "VOCAB": model.vocab, "SLOTS": variant.ring or model.ring,
        "HOPS": variant.hops,
        "MATH": variant.math, "STAMPS": variant.stamps, "EVICT_FIRST": variant.evict_first,
        "FLIGHT": max(1, (variant.flight << 10) // (model.hidden * 4 * model.group)), "COPIES": variant.copies,
        "PAUSE": variant.pause, "HINT": variant.hint, "BRING": variant.bring,
        "ASKERS": model.askers, "GROUP": model.group, "PROBE": variant.probe, "WEIGHTS": variant.weights,
    }  # fmt: skip
    options = [b"--gpu-architecture=sm_90a", b"--std=c++17", *(f"-D{name}={value}".encode() for name, value in defined.items())]
    options += [f"-D{word}".encode() for word in variant.more.split()]
    source = (HERE / "persistent_step.cu").read_bytes()
    program = ok(nvrtc.nvrtcCreateProgram(source, b"persistent_step.cu", 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = b" " * ok(nvrtc.nvrtcGetProgramLogSize(program))
        ok(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    cubin = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
    ok(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def loaded(cubin: bytes) -> tuple[Any, int]:
    """The kernel and the bytes of shared memory that it wants."""
    module = ok(driver.cuModuleLoadData(cubin))
    kernel = ok(driver.cuModuleGetFunction(module, b"decode"))
    asked = torch.zeros(1, dtype=torch.int32, device="cuda")
    probe = ok(driver.cuModuleGetFunction(module, b"size_of_shared"))
    ok(driver.cuLaunchKernel(probe, 1, 1, 1, 1, 1, 1, 0, 0, ((asked.data_ptr(),), (ctypes.c_void_p,)), 0))
    shared = int(asked.item())
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(driver.cuFuncSetAttribute(kernel, limit, shared))
    return kernel, shared


class Arguments(ctypes.Structure):
    """`Arguments` of persistent_step.cu."""

    _fields_ = [(name, ctypes.c_void_p) for name in (
        "embed", "qkv", "o", "gate_up", "down", "norm1", "norm2", "q_norm", "k_norm", "norm", "rope", "k_cache", "v_cache",
        "sets", "token", "stamps", "counter",
    )] + [(name, ctypes.c_int) for name in ("slots", "length", "parity")]  # fmt: skip


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
            "sets": torch.full((16, 2, m.layer_halves * m.layers + 1024 + 2560 * m.layers), -1, dtype=torch.int16, device="cuda"),
            "token": torch.tensor([1234], dtype=torch.int32, device="cuda"),
            "stamps": torch.zeros((m.layers * 5 + 1) * 3 * BLOCKS, dtype=torch.int64, device="cuda"),
            "counter": torch.zeros(32 * BLOCKS, dtype=torch.int32, device="cuda"),
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
        """The worst relative error of each activation over the layers, each from the one before it; whether the token is right."""
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
        m, rows = self.model, {}
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
            before = [place - 1 for place in places]
            rows[name] = {
                "input_behind_last_us": median([(start[p] - last[b])[there[p]].median() for p, b in zip(places, before, strict=True)]),
                "works_us": median([(end[p] - start[p])[there[p]].median() for p in places]),
                "last_input_to_last_end_us": median([last[p] - start[p][there[p]].max() for p in places]),
                "last_to_last_us": median([last[p] - last[b] for p, b in zip(places, before, strict=True)]),
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
        found = self.tensors["counter"].view(BLOCKS, 32).cpu()
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


def main() -> int:
    """Check, measure, print, write; 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description="measure a decode step in one persistent kernel")
    parser.add_argument("--model", choices=tuple(MODELS), action="append")
    parser.add_argument("--bundles", type=Path, help="folder of bundles, for the chain of launches")
    parser.add_argument("--only", help="variants, separated by semicolons")
    parser.add_argument("--length", type=int, default=18)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", HERE / "results")))
    options = parser.parse_args()
    wanted = options.only.split(";") if options.only else list(VARIANTS)
    right, results = True, {}
    for name in options.model or list(MODELS):
        model = MODELS[name]
        found: dict[str, Any] = {"floor_us": model.weight_bytes / 4.58e6}
        if options.bundles is not None:
            found["chain_us"] = chain(name, options.bundles)
        step = Step(model)
        found_variants = {key: VARIANTS[key] for key in {*wanted, "full"}}
        found_variants |= {f"probe {key}": variant for key, variant in PROBES.items()}
        found_variants |= {f"stamps {key}": replace(VARIANTS[key], stamps=1) for key in STAMPED}
        with ThreadPoolExecutor() as pool:
            cubins = dict(zip(found_variants, pool.map(lambda v: compiled(model, v), found_variants.values()), strict=True))
        every = {key: loaded(cubin) for key, cubin in cubins.items()}
        whole = every["full"]
        errors, token = step.check(whole, options.length)
        found["errors"], found["token"] = errors, token
        found["deterministic"] = step.deterministic(whole, options.length)
        right = right and token and found["deterministic"] and max(errors.values()) <= ALLOWED
        print(name, {key: f"{value:.1e}" for key, value in errors.items()}, "token", token, "same bits", found["deterministic"])
        kernels = {key: every[key] for key in wanted}
        times = step.measure(kernels, options.length, 20 if model.layers == 28 else 8)
        found["step_us"] = {key: statistics.median(values) for key, values in times.items()}
        found["spread_us"] = {key: [min(values), max(values)] for key, values in times.items()}
        found["read_cycles"] = {key: step.probe(every[f"probe {key}"], options.length) for key in PROBES}
        found["phases"] = {}
        for key in STAMPED:
            step.tensors["sets"].fill_(-1)
            found["phases"][key] = step.phases(every[f"stamps {key}"], options.length)
        results[name] = found
        print(f"floor {found['floor_us']:.0f}  chain {found.get('chain_us', float('nan')):.0f}")
        for key, value in found["step_us"].items():
            print(f"  {key:30} {value:8.1f} us {model.weight_bytes / value / 1e6:6.2f} TB/s {1e6 / value:7.0f} tok/s")
        print("  a read in cycles:", found["read_cycles"])
        for key, phases in found["phases"].items():
            for phase, value in phases.items():
                print(f"  {key}: {phase:10}", {one: round(number, 2) for one, number in value.items()})
        del step
        torch.cuda.empty_cache()
    (options.out / "persistent_step.json").write_text(json.dumps(results, indent=1) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
