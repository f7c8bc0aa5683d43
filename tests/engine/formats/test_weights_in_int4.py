"""Weights of four bits that stay so on the device: codes, scales and zero points of every published layout have exactly the
values of the dequantised weights, the model generates as with those, and other forms are dequantised as before."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import joined
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_weights import SHORT, assert_alike, generations, plan
from layouts import MODULE, Arrays, awq, gptq, packed, quantised, words
from layouts import write as write_arrays
from numpy.typing import NDArray

from engine.api import Engine
from engine.checkpoint.weights import WeightPlan
from engine.errors import ModelError
from engine.formats.dequantise import dequantise
from engine.formats.kept import part
from engine.models.families import read_config
from engine.tools.dummy_weights import dummy_weights
from engine.tools.quantize.command import command as quantize
from engine.tools.tiny import write_tiny_model

BF16 = np.dtype(ml_dtypes.bfloat16)
DOWN: Final = "model.layers.1.mlp.down_proj"

AWQ: Final = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ: Final = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False, "desc_act": False}


def packed_config(**weights: Any) -> dict[str, Any]:
    arguments = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128} | weights
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments}},
    }  # fmt: skip


def asymmetric(codes: NDArray[Any], zeros: NDArray[Any], scales: NDArray[Any], module: str) -> Arrays:
    """`pack-quantized` with zero points (N, K / group), whose fields lie along the rows."""
    of_rows = np.ascontiguousarray(words(np.ascontiguousarray(zeros.T), 4).T)
    return packed(4, codes, scales, module) | {f"{module}.weight_zero_point": of_rows}


Layout = Callable[[NDArray[Any], NDArray[Any], NDArray[Any], str], Arrays]
"""Codes (N, K), zero points and scales (N, K / 128) as a module of the layout; it may leave out zero points."""


def columns(codes: NDArray[Any]) -> NDArray[np.int64]:
    return np.arange(codes.shape[1])


LAYOUTS: Final[dict[str, tuple[dict[str, Any], Layout]]] = {
    "awq": (AWQ, lambda q, z, s, m: awq(q.T, z.T, np.ascontiguousarray(s.T), m)),
    # Version 1 stores zero points minus one, of four bits.
    "gptq": (GPTQ, lambda q, z, s, m: gptq(4, q.T, (z.T - 1) % 16, np.ascontiguousarray(s.T), columns(q) // 128, m)),
    "gptq 2": (
        GPTQ | {"checkpoint_format": "gptq_v2", "desc_act": True},
        lambda q, z, s, m: gptq(4, q.T, z.T, np.ascontiguousarray(s.T), columns(q) // 128, m),
    ),
    "gptq symmetric": (
        GPTQ | {"sym": True},
        lambda q, z, s, m: gptq(4, q.T, np.full_like(z.T, 7), np.ascontiguousarray(s.T), columns(q) // 128, m),
    ),
    "packed": (packed_config(), lambda q, z, s, m: packed(4, q, s, m)),
    "packed asymmetric": (packed_config(symmetric=False), asymmetric),
}
HAS_ZEROS: Final = ("awq", "gptq", "gptq 2", "packed asymmetric")


def values(w: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any]) -> NDArray[np.float32]:
    """What kernels read from the three tensors, in f32."""
    codes = w[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & np.uint32(15)
    counts = codes.reshape(len(w), -1).astype(np.float32) - zeros.T.astype(np.float32).repeat(128, axis=1)
    return counts * scales.T.astype(np.float32).repeat(128, axis=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    rows=st.integers(1, 5), groups=st.integers(1, 3), seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from([BF16, np.float16])
)
@settings(max_examples=12, deadline=None)
def test_kept_tensors_have_exactly_the_values_of_the_dequantised_weight(
    layout: str, rows: int, groups: int, seed: int, dtype: Any
) -> None:
    random = np.random.default_rng(seed)
    shape = (8 * rows, 128 * groups)
    codes, zeros = random.integers(0, 16, shape), random.integers(0, 16, (shape[0], groups))
    scales = (random.normal(size=(shape[0], groups)) * np.exp2(random.integers(-20, 8))).astype(dtype)
    config, make = LAYOUTS[layout]
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(Path(folder), make(codes, zeros, scales, MODULE))
        (weight,) = quantised(Path(folder), config, {f"{MODULE}.weight": shape}).values()
        w, s, z = (part(weight, suffix) for suffix in ("", "_scales", "_zeros"))
        assert (w.dtype, s.dtype, z.dtype) == (np.uint32, dtype, np.uint8)
        assert (w.shape, s.shape, z.shape) == ((shape[0], 16 * groups), (groups, shape[0]), (groups, shape[0]))
        below = zeros if layout in HAS_ZEROS else np.full_like(zeros, 8)
        plain = (codes - below.repeat(128, axis=1)).astype(np.float32) * scales.astype(np.float32).repeat(128, axis=1)
        assert values(w, s, z).tobytes() == plain.tobytes()
        assert plain.tobytes() == dequantise(weight.form()).tobytes()


def quantised_arrays(folder: Path, make: Layout, dtype: Any = BF16, group: int | None = 128) -> Arrays:
    """The tensors of a folder of 16 bits, its projections with codes of four bits. Without `group` a row has one scale. Scales
    are powers of two, so that every value is a bf16."""
    found: Arrays = {}
    for name, array in safetensors.numpy.load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            found[name] = array
            continue
        module, weight = name.removesuffix(".weight"), array.astype(np.float32)
        grouped = weight.reshape(len(weight), -1, group or weight.shape[1])
        scales = np.exp2(np.ceil(np.log2(np.ptp(grouped, axis=2) / 14))).astype(dtype)
        zeros = np.clip(np.rint(-grouped.min(2) / scales.astype(np.float32)), 0, 15).astype(np.int64)
        codes = np.rint(grouped / scales.astype(np.float32)[..., None]) + zeros[..., None]
        found |= make(np.clip(codes, 0, 15).astype(np.int64).reshape(weight.shape), zeros, scales, module)
    return found


def write(folder: Path, arrays: Arrays, config: dict[str, Any]) -> Path:
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    (folder / "model.safetensors").write_bytes(safetensors.numpy.save(contiguous, {"format": "pt"}))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """A tiny model whose sizes are multiples of 128, with projections in a layout, after a change of its tensors."""

    def folder(
        layout: str = "awq", change: Callable[[Arrays], Any] | None = None, family: str = "qwen3", hidden_size: int = 128,
        **options: Any,
    ) -> Path:  # fmt: skip
        config, make = LAYOUTS[layout]
        config, make = options.pop("config", config), options.pop("make", make)
        target = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        write_tiny_model(target, family=family, hidden_size=hidden_size)
        arrays = quantised_arrays(target, make, **options)
        if change is not None:
            change(arrays)
        return write(target, arrays, config)

    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_keeps_its_codes(layout: str, made: Callable[..., Path]) -> None:
    folder = made(layout)
    weights, wide = plan(folder), plan(folder, "16bit")
    assert weights.weight_format == "int4"
    kinds = [destination.dtype for destination in weights.destinations]
    assert kinds.count("u32") == kinds.count("u8") == 2 * 4
    for name in wide.tensor_names:
        if f"{name}_zeros" not in weights.tensor_names:
            assert weights.tensor(name).tobytes() == wide.tensor(name).tobytes()
            continue
        exact = values(*(weights.tensor(name + suffix) for suffix in ("", "_scales", "_zeros")))
        assert exact.astype(BF16).tobytes() == wide.tensor(name).tobytes()
    for merged in ("model.layers.0.self_attn.qkv_proj.weight", "model.layers.1.mlp.gate_up_proj.weight"):
        exact = values(*(weights.array(merged + suffix) for suffix in ("", "_scales", "_zeros")))
        assert exact.astype(BF16).tobytes() == wide.array(merged).tobytes()


def test_chunks_of_any_size_are_the_bytes_of_the_destinations(made: Callable[..., Path]) -> None:
    weights = plan(made())
    for destination in weights.destinations:
        for limit in (4, 100, 1 << 20):
            assert joined(weights, destination.name, limit) == weights.array(destination.name).tobytes()
        assert destination.bytes == weights.array(destination.name).nbytes
    assert weights["model.layers.0.self_attn.qkv_proj.weight_scales"].axis == 1
    for suffix, least in (("", 4), ("_scales", 2), ("_zeros", 1)):
        with pytest.raises(ValueError, match="holds no element"):
            next(iter(weights.chunks(f"model.layers.0.self_attn.qkv_proj.weight{suffix}", least - 1)))


@pytest.mark.parametrize("layout", ["awq", "gptq symmetric"])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_generations_are_those_of_the_dequantised_weights(layout: str, family: str, made: Callable[..., Path]) -> None:
    folder = made(layout, family=family, hidden_size=256)
    assert plan(folder).weight_format == "int4"
    assert_alike(generations(folder), generations(folder, "16bit"))


def test_what_the_quantise_command_writes_runs(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_tiny_model(source, hidden_size=128)
    ended = CliRunner().invoke(quantize, [str(source), str(target), "--format", "int4"])
    assert ended.exit_code == 0, ended.output
    assert plan(target).weight_format == "int4"
    # Dequantised weights are rounded to bf16, kept ones are not: logits are near, and a token later on may be another.
    for (logits, _), (wanted, _) in zip(generations(target), generations(target, "16bit"), strict=True):
        assert np.abs(logits - wanted).max() <= 0.02 * np.abs(wanted).max()


def permuted(q: NDArray[Any], z: NDArray[Any], s: NDArray[Any], m: str) -> Arrays:
    """A module with two columns of different groups exchanged, if it has two groups."""
    groups = columns(q) // 128
    groups[[0, -1]] = groups[[-1, 0]]
    return gptq(4, q.T, z.T, np.ascontiguousarray(s.T), groups, m)


def eight_bits(q: NDArray[Any], z: NDArray[Any], s: NDArray[Any], m: str) -> Arrays:
    return gptq(8, q.T, z.T, np.ascontiguousarray(s.T), columns(q) // 128, m)


OTHERS: Final[dict[str, dict[str, Any]]] = {
    "scales of f16 in a model of bf16": {"dtype": np.float16},
    "scales of f32": {"dtype": np.float32},
    "groups of 64": {"config": AWQ | {"group_size": 64}, "group": 64},
    "a row's columns in one group": {
        "config": packed_config(strategy="channel", group_size=-1), "make": LAYOUTS["packed"][1], "group": None,
        "hidden_size": 256,
    },
    "permuted columns": {
        "config": GPTQ | {"checkpoint_format": "gptq_v2", "desc_act": True}, "make": permuted, "hidden_size": 256,
    },
    "eight bits": {
        "config": GPTQ | {"bits": 8, "checkpoint_format": "gptq_v2"},
        "make": eight_bits,
    },
}  # fmt: skip


@pytest.mark.parametrize("form", OTHERS)
def test_other_forms_are_dequantised(form: str, made: Callable[..., Path]) -> None:
    folder = made(**OTHERS[form])
    weights = plan(folder)
    assert weights.weight_format == "16bit" and len(weights.quantised) == 14
    assert {destination.dtype for destination in weights.destinations} == {"bf16"}
    with pytest.raises(ModelError, match="weights in `int4` are asked for, and the files do not") as caught:
        plan(folder, "int4")
    assert "quantize --to int4" in str(caught.value)


def test_a_weight_that_has_16_bits_makes_all_others_dequantised(made: Callable[..., Path]) -> None:
    def change(arrays: Arrays) -> None:
        rows, columns = (8 * size for size in reversed(arrays[f"{DOWN}.qweight"].shape))
        for end in ("qweight", "qzeros", "scales"):
            del arrays[f"{DOWN}.{end}"]
        arrays[f"{DOWN}.weight"] = np.ones((rows, columns // 8), BF16)

    assert plan(made("awq", change)).weight_format == "16bit"


def set_scale(arrays: Arrays, value: float) -> None:
    arrays[f"{DOWN}.scales"][0, 5] = value


FAULTS: Final[dict[str, tuple[str, Callable[[Arrays], Any], str]]] = {
    "nan scale": ("awq", lambda arrays: set_scale(arrays, np.nan), r"down_proj.scales\" holds nan at \[0, 5\]"),
    "infinite scale": ("gptq", lambda arrays: set_scale(arrays, np.inf), r"holds inf at \[0, 5\]"),
    "largest scale": ("awq", lambda arrays: set_scale(arrays, 3e37), "its products with codes up to 15 must be finite"),
    "groups": ("gptq", lambda arrays: arrays[f"{DOWN}.g_idx"].fill(-1), "holds -1 at"),
    "zero points": ("gptq symmetric", lambda arrays: arrays[f"{DOWN}.qzeros"].fill(3), "holds the zero point"),
    "no zero points": ("awq", lambda arrays: arrays.pop(f"{DOWN}.qzeros"), "has no tensor .*down_proj.qzeros"),
    "no codes": ("awq", lambda arrays: arrays.pop(f"{DOWN}.qweight"), "is in none of the safetensors files"),
    "shape": ("packed", lambda arrays: arrays[f"{DOWN}.weight_shape"].fill(8), r"weight_shape\" is \[8, 8\]"),
    "packed scale": ("packed", lambda arrays: arrays[f"{DOWN}.weight_scale"].fill(np.nan), r"holds nan at \[0, 0\]"),
    "extra": ("awq", lambda arrays: arrays.update({f"{DOWN}.weight_zeros": np.ones(1, np.uint8)}), "is not one of a"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_weights_end_in_one_line(fault: str, made: Callable[..., Path]) -> None:
    layout, change, expected = FAULTS[fault]
    folder = made(layout, change)
    with pytest.raises(ModelError, match=expected) as caught:
        weights = plan(folder)
        for destination in weights.destinations:
            weights.array(destination.name)
    assert str(caught.value).isprintable() and caught.value.fix


def test_scales_whose_products_f16_cannot_hold_are_refused(made: Callable[..., Path]) -> None:
    def change(arrays: Arrays) -> None:
        set_scale(arrays, 4400)

    folder = made("awq", change, dtype=np.float16)
    weights = WeightPlan.for_model(read_config(folder), folder, "f16", convert=True)
    assert weights.weight_format == "int4"
    with pytest.raises(ModelError, match="has the scale 4400, whose products f16 cannot hold"):
        weights.array(f"{DOWN}.weight_scales")


def test_random_weights_in_int4_are_numbers_of_the_same_size(tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path / "tiny", hidden_size=256)
    weights, again, other = (dummy_weights(config, "bf16", seed, "int4") for seed in (3, 3, 4))
    name = f"{DOWN}.weight"
    w, s, z = (weights.tensor(name + suffix) for suffix in ("", "_scales", "_zeros"))
    assert (w.dtype, s.dtype, z.dtype) == (np.uint32, BF16, np.uint8)
    assert len(np.unique(s)) > 1 and set(np.unique(z)) == {7, 8}
    found = values(w, s, z)
    assert 0.015 < found.std() < 0.025 and abs(found.mean()) < 0.002
    for field in range(8):
        assert len(np.unique(w >> np.uint32(4 * field) & np.uint32(15))) == 16
    for name in weights.tensor_names:
        assert weights.tensor(name).tobytes() == again.tensor(name).tobytes()
    assert w.tobytes() != other.tensor(f"{DOWN}.weight").tobytes()
    (tmp_path / "tiny" / "model.safetensors").unlink()
    with Engine.from_pretrained(
        tmp_path / "tiny", backend="interpreter", max_seq_len=64, dummy=1, weight_format="int4"
    ) as engine:  # fmt: skip
        assert np.isfinite(engine.logits(SHORT)).all()
        assert len(list(engine.generate_ids(SHORT, 3))) <= 3
