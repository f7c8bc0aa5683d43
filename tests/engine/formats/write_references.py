"""Writes `references/*.safetensors`: small weights in each published layout, with the digest of what the producers' own code
dequantises them to in f32.  Run: python tests/engine/formats/write_references.py PACKAGES

It runs where torch, transformers, compressed-tensors and their requirements are installed, and knows nothing of the engine.
PACKAGES is a folder with three sources that need not be installable: `awq/utils/packing_utils.py` of AutoAWQ,
`gptqmodel/utils/model_dequant.py` of GPTQModel with what it imports, and the package `modelopt`. Versions that wrote the files
in the repository: torch 2.13.0, transformers 5.24.0, compressed-tensors 0.20.1, autoawq 0.2.9, gptqmodel 7.7.0 and
nvidia-modelopt 0.47.0.

AutoAWQ packs only on a GPU, so AWQ's words are packed here from the description of its order; ModelOpt's likewise by
compressed-tensors. Every value of `expected` is computed by the package that the case names.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8, unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

TARGET = Path(__file__).parent / "references"
MODULE = "model.layers.0.self_attn.q_proj"
N, K, GROUP = 16, 256, 128


def main() -> None:
    packages = Path(sys.argv[1])
    torch.manual_seed(20261129)
    fp8_blocks()
    awq(packages)
    gptq(packages)
    compressed_tensors()
    nvfp4(packages)


def save(name: str, tensors: dict[str, torch.Tensor], expected: torch.Tensor, config: dict[str, Any], by: str) -> None:
    """One case: tensors of a module, and in the metadata its config, its shape and the digest of `expected`."""
    assert expected.dtype == torch.float32 and expected.isfinite().all()
    digest = hashlib.sha256(expected.contiguous().numpy().tobytes()).hexdigest()
    metadata = {
        "expected_sha256": digest, "shape": json.dumps(list(expected.shape)), "by": by,
        "quantization_config": json.dumps(config),
    }  # fmt: skip
    full = {f"{MODULE}.{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()}
    save_file(full, TARGET / f"{name}.safetensors", metadata)
    print(f"{name}: {list(expected.shape)} {digest[:12]} {by}")


def weights(rows: int = N, columns: int = K) -> torch.Tensor:
    """Random weights with a row of zeros, one of denormal size and one that is large."""
    weight = torch.randn(rows, columns) * 0.02
    weight[1], weight[2], weight[3] = 0, weight[2] * 1e-23, weight[3] * 1e4
    return weight


def every_e4m3(rows: int, columns: int) -> torch.Tensor:
    """All codes but NaN, in random order."""
    codes = torch.randint(0, 254, (rows, columns))
    codes = torch.where(codes >= 127, codes + 1, codes)  # 0x7f is NaN, and 0xff is not drawn
    return codes.to(torch.uint8).view(torch.float8_e4m3fn)


def fp8_blocks() -> None:
    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    reference = Fp8Dequantize(None)
    for name, dtype in (("fp8_bf16", torch.bfloat16), ("fp8_f32", torch.float32)):
        weight = every_e4m3(128, 384)
        scale = torch.tensor([[0.013, 0.0, 1e-23]]).to(dtype)
        expected = reference._dequantize_one(weight, scale, torch.float32)
        save(name, {"weight": weight, "weight_scale_inv": scale}, expected, config, "transformers Fp8Dequantize")


def pack(fields: torch.Tensor, bits: int) -> torch.Tensor:
    """Fields along the last axis as int32 words, low bits first."""
    grouped = fields.to(torch.int64).reshape(*fields.shape[:-1], -1, 32 // bits)
    words = (grouped << (torch.arange(32 // bits) * bits)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def awq(packages: Path) -> None:
    reference = load("packing_utils", packages / "awq/utils/packing_utils.py")
    order = torch.tensor(reference.AWQ_ORDER)
    for name, dtype in (("awq_bf16", torch.bfloat16), ("awq_f16", torch.float16)):
        codes, zeros = torch.randint(0, 16, (K, N)), torch.randint(0, 16, (K // GROUP, N))
        scales = (torch.rand(K // GROUP, N) * 0.02).to(dtype)
        tensors = {
            "qweight": pack(codes.reshape(K, -1, 8)[..., order].reshape(K, N), 4),
            "qzeros": pack(zeros.reshape(K // GROUP, -1, 8)[..., order].reshape(K // GROUP, N), 4), "scales": scales,
        }  # fmt: skip
        expected = reference.dequantize_gemm(tensors["qweight"], tensors["qzeros"], scales.float(), 4, GROUP)
        config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
        save(name, tensors, expected.T, config | {"modules_to_not_convert": None}, "AutoAWQ dequantize_gemm")


def gptq(packages: Path) -> None:
    reference = load_gptq(packages)
    for bits in (4, 8):
        for symmetric in (True, False):
            for version in ("gptq", "gptq_v2"):
                ordered = version == "gptq" and not symmetric
                codes = torch.randint(0, 1 << bits, (K, N))
                zeros = (
                    torch.full((K // GROUP, N), 1 << (bits - 1)) if symmetric else torch.randint(1, 1 << bits, (K // GROUP, N))
                )
                stored = zeros if version == "gptq_v2" else zeros - 1
                g_idx = torch.arange(K) // GROUP
                tensors = {
                    "qweight": pack(codes.T.contiguous(), bits).T, "qzeros": pack(stored, bits),
                    "scales": (torch.rand(K // GROUP, N) * 0.02).half(),
                    "g_idx": (g_idx[torch.randperm(K)] if ordered else g_idx).int(),
                }  # fmt: skip
                config = {
                    "quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": symmetric, "desc_act": ordered,
                    "checkpoint_format": version,
                }  # fmt: skip
                path = TARGET / "temporary"
                save_file({f"m.{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()}, path)
                expected = reference.convert_gptq_file(path, torch.float32, config, "cpu")["m.weight"]
                path.unlink()
                kind = f"{'sym' if symmetric else 'asym'}_{'v2' if version == 'gptq_v2' else 'v1'}"
                save(f"gptq{bits}_{kind}", tensors, expected, config, "gptqmodel convert_gptq_file")


def compressed_tensors() -> None:
    group = {"strategy": "group", "group_size": GROUP}
    packed, block = "pack-quantized", {"strategy": "block", "block_structure": [128, 128]}
    cases: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
        "w4a16": (packed, {"num_bits": 4, "type": "int", "symmetric": True, **group}, (N, K)),
        "w4a16_asym": (packed, {"num_bits": 4, "type": "int", "symmetric": False, **group}, (N, K)),
        "w4a16_asym_cut": (packed, {"num_bits": 4, "type": "int", "symmetric": False, **group}, (13, K)),
        "w4a16_channel": (packed, {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}, (N, K)),
        "w8a16": (packed, {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}, (N, K)),
        "w8a16_asym": (packed, {"num_bits": 8, "type": "int", "symmetric": False, **group}, (N, K)),
        "w8a8": ("int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}, (N, K)),
        "w8a8_asym": ("int-quantized", {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel"}, (N, K)),
        "fp8_channel": ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}, (N, K)),
        "fp8_tensor": ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}, (N, K)),
        "fp8_block": ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, **block}, (136, 264)),
    }
    for name, (kind, arguments, shape) in cases.items():
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
        weight = weights(*shape)
        lowest, highest = extremes(weight, arguments)
        scale, zero = calculate_qparams(lowest, highest, scheme.weights)
        state = {"weight": weight, "weight_scale": scale.bfloat16().float()}
        if not arguments["symmetric"]:
            state["weight_zero_point"] = zero.to(torch.int8)
        compressor = BaseCompressor.get_value_from_registry(kind)
        tensors = compressor.compress(state, scheme)
        expected = compressor.decompress(tensors, scheme)["weight"]
        tensors["weight_scale"] = tensors["weight_scale"].bfloat16()  # as published; exact
        config = {
            "quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme.weights.model_dump(mode="json")}},
        }  # fmt: skip
        save(f"ct_{name}", tensors, expected, config, "compressed-tensors decompress")


def extremes(weight: torch.Tensor, arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest weight for each scale, in the shape of the scales."""
    rows, columns = weight.shape
    match arguments["strategy"]:
        case "group":
            return weight.reshape(rows, -1, GROUP).amin(-1), weight.reshape(rows, -1, GROUP).amax(-1)
        case "channel":
            return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        case "tensor":
            return weight.amin().reshape(1), weight.amax().reshape(1)
        case _:
            padded = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
            blocks = padded.reshape(-(-rows // 128), 128, -(-columns // 128), 128)
            return blocks.amin((1, 3)), blocks.amax((1, 3))


def nvfp4(packages: Path) -> None:
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    arguments = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16)
    packed = pack_fp4_to_uint8(values[torch.randint(0, 16, (N, K))])
    codes = torch.randint(0, 127, (N, K // 16)).to(torch.uint8).view(torch.float8_e4m3fn)
    scale = torch.tensor([448 * 6 / 0.31])
    unpacked = unpack_fp4_from_uint8(packed, N, K, torch.float32)
    expected = dequantize(x_q=unpacked, scale=codes.float(), args=arguments, global_scale=scale, dtype=torch.float32)
    config = {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments.model_dump(mode="json")}},
    }  # fmt: skip
    tensors = {"weight_packed": packed, "weight_scale": codes, "weight_global_scale": scale}
    save("ct_nvfp4", tensors, expected, config, "compressed-tensors dequantize")
    second = torch.tensor(0.31 / (448 * 6))
    packed = torch.where(packed & 15 == 8, packed & 0xF0, packed)  # ModelOpt's table has 0 for the code of -0
    packed = torch.where(packed >> 4 == 8, packed & 15, packed)
    tensors = {"weight": packed, "weight_scale": codes, "weight_scale_2": second, "input_scale": torch.tensor(0.01)}
    quantised = modelopt_tensor(packages)((N, K), torch.float32, packed)
    expected = quantised.dequantize(scale=codes, double_scale=second, block_sizes={-1: 16})
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}
    save("modelopt_nvfp4", tensors, expected, config, "modelopt NVFP4QTensor")


def modelopt_tensor(packages: Path) -> Any:
    """The class of ModelOpt's NVFP4 tensors; parents that need more packages are replaced by empty modules."""
    for name in ("modelopt", "modelopt.torch", "modelopt.torch.quantization", "modelopt.torch.quantization.qtensor"):
        stub(name, [str(packages / name.replace(".", "/"))])
    stub("modelopt.torch.quantization.backends", [])
    stub("modelopt.torch.quantization.backends.utils", []).__dict__["fp4_compatible"] = lambda: False
    utilities = stub("modelopt.torch.quantization.utils", [str(packages / "modelopt/torch/quantization/utils")])
    names = ("reduce_amax", "reduce_block_amax", "reduce_block_padding", "fsdp2_aware_weight_update", "patch_fsdp_mp_dtypes")
    utilities.__dict__.update(dict.fromkeys(names))
    path = packages / "modelopt/torch/quantization/qtensor"
    load("modelopt.torch.quantization.qtensor.base_qtensor", path / "base_qtensor.py")
    return load("modelopt.torch.quantization.qtensor.nvfp4_tensor", path / "nvfp4_tensor.py").NVFP4QTensor


def load_gptq(packages: Path) -> Any:
    """GPTQModel's dequantiser; its parents, which need a GPU's packages, are replaced by empty ones."""
    for name in ("gptqmodel", "gptqmodel.utils", "gptqmodel.quantization"):
        stub(name, [str(packages / name.replace(".", "/"))])
    stub("gptqmodel.utils.logger", []).__dict__["setup_logger"] = lambda: logging.getLogger("gptqmodel")
    stub("gptqmodel.utils.torch", []).__dict__["HAS_NPU"] = False
    return importlib.import_module("gptqmodel.utils.model_dequant")


def stub(name: str, path: list[str]) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = path
    sys.modules[name] = module
    return module


def load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
