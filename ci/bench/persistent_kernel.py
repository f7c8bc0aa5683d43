"""The persistent step's models and variants, and its kernel compiled for each: sizes and switches in, a CUBIN out.

A variant leaves out a part of the step, or crosses blocks in another way; `persistent_step.cu` says what each switch does.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

driver: Any = importlib.import_module("cuda.bindings.driver")
nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")

HERE: Final = Path(__file__).resolve().parent
BLOCKS: Final = 132
THREADS: Final = 20 * 32
HEAD_DIM: Final = 128


@dataclass(frozen=True)
class Model:
    """Numbers of a config.json; slots of the ring, and items of a slot, each two rows of `hidden` weights."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    ring: int
    group: int

    @property
    def query(self) -> int:
        """Columns of o_proj."""
        return self.heads * HEAD_DIM

    @property
    def qkv(self) -> int:
        """Rows of q_proj, k_proj and v_proj."""
        return (self.heads + 2 * self.kv_heads) * HEAD_DIM

    @property
    def layer_halves(self) -> int:
        """Activations of a layer that cross blocks."""
        return self.qkv + self.query + 2 * self.hidden + self.intermediate

    @property
    def set_halves(self) -> int:
        """Activations of a step, the blocks' greatest logits, and five hints of each block in each layer."""
        return (self.layer_halves + 5 * 512) * self.layers + 1024

    @property
    def weight_bytes(self) -> int:
        """Bytes of all products' weights in bf16."""
        layer = self.qkv * self.hidden + self.hidden * self.query + 3 * self.intermediate * self.hidden
        return 2 * (layer * self.layers + self.vocab * self.hidden)


MODELS: Final = {
    "qwen3-0.6b": Model(1024, 28, 16, 8, 3072, 151936, ring=13, group=4),
    "qwen3-4b": Model(2560, 36, 32, 8, 9728, 151936, ring=9, group=2),
}


@dataclass(frozen=True)
class Variant:
    """Switches of persistent_step.cu; `flight` is in KiB, and as many slots as it holds are under way at once."""

    hops: int = 1
    math: int = 1
    weights: int = 1
    flight: int = 64
    copies: int = 1
    hint: int = 0
    pause: int = 0
    bring: int = 1
    stamps: int = 0
    probe: int = 0


VARIANTS: Final = {
    "weights alone": Variant(hops=0, math=0),
    "weights alone, 1 slot": Variant(hops=0, math=0, flight=20),
    "weights alone, 32 KiB": Variant(hops=0, math=0, flight=32),
    "weights and products": Variant(hops=0),
    "all but the weights": Variant(weights=0),
    "whole": Variant(),
    "whole, nothing brought": Variant(bring=0),
    "whole, 1 slot": Variant(flight=20),
    "whole, 2 slots": Variant(flight=40),
    "whole, all slots": Variant(flight=999),
    "whole, 2 slots, pause 300": Variant(flight=40, pause=300),
    "whole, 2 slots, pause 1000": Variant(flight=40, pause=1000),
    "whole, 2 slots, 8 copies, pause 300": Variant(flight=40, copies=8, pause=300),
    "whole, hints, 8 copies": Variant(hint=1, copies=8),
    "whole, 1 slot, hints, 8 copies": Variant(flight=20, hint=1, copies=8),
    "whole, 2 slots, hints, 4 copies": Variant(flight=40, hint=1, copies=4),
    "whole, 2 slots, hints, 8 copies": Variant(flight=40, hint=1, copies=8),
    "whole, 2 slots, hints, 16 copies": Variant(flight=40, hint=1, copies=16),
    "whole, 2 slots, hints, 8 copies, pause 100": Variant(flight=40, hint=1, copies=8, pause=100),
    "whole, 1 slot, hints, 8 copies, pause 100": Variant(flight=20, hint=1, copies=8, pause=100),
}
STAMPED: Final = ("whole, 2 slots", "whole, 2 slots, hints, 8 copies", "all but the weights")
"""Variants whose phases are timed."""
PROBES: Final = {
    "nothing": Variant(hops=0, weights=0, probe=1),
    "weights alone, 1 slot": Variant(hops=0, math=0, flight=20, probe=1),
    "weights alone, 2 slots": Variant(hops=0, math=0, flight=40, probe=1),
    "weights alone": Variant(hops=0, math=0, probe=1),
    "weights alone, all slots": Variant(hops=0, math=0, flight=999, probe=1),
    "whole, 2 slots": Variant(flight=40, probe=1),
    "whole, 2 slots, hints, 8 copies": Variant(flight=40, hint=1, copies=8, probe=1),
}
"""Variants in which a thread of each block reads a word of its own in the L2 cache again and again."""


class Arguments(ctypes.Structure):
    """`Arguments` of persistent_ring.cuh."""

    _fields_ = [(name, ctypes.c_void_p) for name in (
        "embed", "qkv", "o", "gate_up", "down", "norm1", "norm2", "q_norm", "k_norm", "norm", "rope", "k_cache", "v_cache",
        "sets", "token", "stamps", "read_cycles",
    )] + [(name, ctypes.c_int) for name in ("slots", "length", "parity")]  # fmt: skip


def ok(result: Any) -> Any:
    """What a call of the driver or of NVRTC gave; RuntimeError where it failed."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else tuple(values)


def compiled(model: Model, variant: Variant) -> bytes:
    """The kernel as a CUBIN; RuntimeError with NVRTC's log."""
    defined = {
        "HIDDEN": model.hidden, "LAYERS": model.layers, "QH": model.heads, "KVH": model.kv_heads, "INTER": model.intermediate,
        "VOCAB": model.vocab, "SLOTS": model.ring, "GROUP": model.group,
        "FLIGHT": max(1, (variant.flight << 10) // (model.hidden * 4 * model.group)), "HOPS": variant.hops,
        "MATH": variant.math, "WEIGHTS": variant.weights, "COPIES": variant.copies, "HINT": variant.hint,
        "PAUSE": variant.pause, "BRING": variant.bring, "STAMPS": variant.stamps, "PROBE": variant.probe,
    }  # fmt: skip
    options = [b"--gpu-architecture=sm_90a", b"--std=c++17", f"--include-path={HERE}".encode()]
    options += [f"-D{name}={value}".encode() for name, value in defined.items()]
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


def loaded(cubin: bytes, word: int) -> tuple[Any, int]:
    """The kernel, and the bytes of shared memory that it wants; `word` points to 4 bytes of the device to write to."""
    module = ok(driver.cuModuleLoadData(cubin))
    kernel = ok(driver.cuModuleGetFunction(module, b"decode"))
    probe = ok(driver.cuModuleGetFunction(module, b"size_of_shared"))
    ok(driver.cuLaunchKernel(probe, 1, 1, 1, 1, 1, 1, 0, 0, ((word,), (ctypes.c_void_p,)), 0))
    held = ctypes.c_int()
    ok(driver.cuMemcpyDtoH(ctypes.addressof(held), word, 4))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(driver.cuFuncSetAttribute(kernel, limit, held.value))
    return kernel, held.value
