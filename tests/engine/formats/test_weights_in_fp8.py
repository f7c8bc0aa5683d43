"""FP8 weights that stay on the device as they are: the codes and scales of the file arrive, and the model generates as with the
same weights dequantised; damaged ones end in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import joined
from click.testing import CliRunner
from kept_weights import SHORT, assert_alike, generations, plan
from numpy.typing import NDArray
from test_quantised_models import FP8, to_fp8

from engine.api import Engine
from engine.checkpoint.weights import WeightPlan, destinations
from engine.errors import ModelError, UsageError
from engine.models.families import read_config
from engine.tools.dummy_weights import dummy_weights
from engine.tools.quantize.command import command as quantize
from engine.tools.tiny import write_tiny_model

Arrays = dict[str, NDArray[Any]]
BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
Q_PROJ = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.1.mlp.down_proj"


def quantised_arrays(folder: Path) -> Arrays:
    """The tensors of a folder of 16 bits, its projections in FP8."""
    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    stored: Arrays = {}
    for name, array in arrays.items():
        projection = name.endswith("_proj.weight")
        stored |= to_fp8(name.removesuffix(".weight"), array.astype(np.float32))[0] if projection else {name: array}
    return stored


def write(folder: Path, arrays: Arrays, **config: Any) -> Path:
    """A folder with these tensors and an FP8 config."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    (folder / "model.safetensors").write_bytes(safetensors.numpy.save(contiguous, {"format": "pt"}))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": FP8 | config}))
    return folder


def stored_arrays(folder: Path) -> Arrays:
    """The tensors of a safetensors file, which the library reads only with a framework that has e4m3."""
    data = (folder / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    dtypes = {"BF16": BF16, "F8_E4M3": E4M3}
    found: Arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            found[name] = np.frombuffer(data[begin + first : begin + last], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return found


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose sizes are multiples of 128, with FP8 projections."""
    folder = tmp_path_factory.mktemp("tiny") / request.param
    write_tiny_model(folder, family=request.param, hidden_size=128)
    return write(folder, quantised_arrays(folder))


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[[Callable[[Arrays], Any]], Path]:
    """A folder of FP8 weights after a change of its tensors."""

    def made(change: Callable[[Arrays], Any]) -> Path:
        folder = tmp_path / "damaged"
        write_tiny_model(folder, hidden_size=128)
        arrays = quantised_arrays(folder)
        change(arrays)
        return write(folder, arrays)

    return made


def test_codes_and_scales_arrive_as_they_are_in_the_file(tiny: Path) -> None:
    weights, stored = plan(tiny), stored_arrays(tiny)
    assert weights.weight_format == "fp8"
    kinds = {destination.name: destination.dtype for destination in weights.destinations}
    assert sorted(kinds.values()).count("f8e4m3") == sorted(kinds.values()).count("f32") == 2 * 4
    for name in weights.tensor_names:
        module, _, end = name.rpartition(".")
        if end == "weight_scales":
            scales = stored[f"{module}.weight_scale_inv"]
            assert weights.tensor(name).dtype == np.float32
            assert (weights.tensor(name) == scales.astype(np.float32)).all() and scales.dtype == BF16
        else:
            assert weights.tensor(name).tobytes() == stored[name].tobytes()
    merged = "model.layers.0.self_attn.qkv_proj.weight"
    parts = [stored[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert weights.array(merged).tobytes() == np.concatenate(parts).tobytes()


def test_chunks_of_any_size_are_the_bytes_of_the_destinations(tiny: Path) -> None:
    weights = plan(tiny)
    for destination in weights.destinations:
        for limit in (4, 100, 1 << 20):
            assert joined(weights, destination.name, limit) == weights.array(destination.name).tobytes()
        assert destination.bytes == weights.array(destination.name).nbytes
    with pytest.raises(ValueError, match="holds no element"):
        next(weights.chunks("model.layers.0.self_attn.qkv_proj.weight_scales", 3))


def test_a_model_has_the_bytes_of_its_codes_scales_and_other_weights(tiny: Path) -> None:
    stored = stored_arrays(tiny)
    scales = sum(array.size for name, array in stored.items() if name.endswith("_scale_inv"))
    assert plan(tiny).bytes == sum(array.nbytes for array in stored.values()) + 2 * scales  # bf16 in the file, f32 here
    assert plan(tiny, "16bit").bytes == 2 * sum(array.size for array in stored.values()) - 2 * scales


def test_generations_are_those_of_the_dequantised_weights(tiny: Path) -> None:
    assert_alike(generations(tiny), generations(tiny, "16bit"))


def test_what_the_quantise_command_writes_runs(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write_tiny_model(source, hidden_size=128)
    ended = CliRunner().invoke(quantize, [str(source), str(target), "--format", "fp8"])
    assert ended.exit_code == 0, ended.output
    assert plan(target).weight_format == "fp8"
    assert_alike(generations(target), generations(target, "16bit"))


def test_f32_and_f16_scales_are_read_too(damaged: Callable[[Callable[[Arrays], Any]], Path]) -> None:
    def change(arrays: Arrays) -> None:
        for number, name in enumerate(sorted(name for name in arrays if name.endswith("_scale_inv"))):
            arrays[name] = arrays[name].astype((np.float32, np.float16, BF16)[number % 3])

    folder = damaged(change)
    assert plan(folder).weight_format == "fp8"
    assert_alike(generations(folder), generations(folder, "16bit"))


def extreme(arrays: Arrays) -> None:
    """Blocks of zeros with the scale 0, blocks of tiny scales, subnormal codes and minus zero."""
    arrays[f"{Q_PROJ}.weight_scale_inv"] = np.array([[0], [1e-23]], np.float32)
    arrays[f"{Q_PROJ}.weight"][:128] = 0
    codes = np.tile(np.array([0x80, 0x01, 0x87, 0x00, 0x7E, 0xFE, 0x08, 0x81], np.uint8), 128 * 16)
    arrays[f"{DOWN}.weight"] = codes.reshape(128, 128).view(E4M3)
    arrays[f"{DOWN}.weight_scale_inv"] = np.array([[2.0**-9]], np.float32)


def negative(arrays: Arrays) -> None:
    """Scales below zero, all powers of two: every product is then a bf16."""
    for name, scales in arrays.items():
        if name.endswith("_scale_inv"):
            arrays[name] = -np.exp2(np.round(np.log2(scales.astype(np.float32)))).astype(BF16)


@pytest.mark.parametrize("change", [extreme, negative])
def test_extreme_weights_have_the_values_of_the_formula(
    change: Callable[[Arrays], None], damaged: Callable[[Callable[[Arrays], Any]], Path]
) -> None:
    folder = damaged(change)
    assert plan(folder).weight_format == "fp8"
    assert_alike(generations(folder), generations(folder, "16bit"))


def set_code(arrays: Arrays, code: int) -> None:
    arrays[f"{DOWN}.weight"].view(np.uint8)[3, 17] = code


def set_scales(arrays: Arrays, scales: Any, name: str = DOWN) -> None:
    arrays[f"{name}.weight_scale_inv"] = np.asarray(scales)


FAULTS: dict[str, tuple[Callable[[Arrays], Any], str]] = {
    "nan": (lambda arrays: set_code(arrays, 0x7F), r"down_proj.weight\" holds NaN \(code 0x7f\) at \[3, 17\]"),
    "minus nan": (lambda arrays: set_code(arrays, 0xFF), r"holds NaN \(code 0xff\) at \[3, 17\]"),
    "nan scale": (lambda arrays: set_scales(arrays, np.full((1, 1), np.nan, BF16)), r"holds nan at \[0, 0\]"),
    "infinite scale": (lambda arrays: set_scales(arrays, np.full((1, 1), np.inf, BF16)), r"holds inf at \[0, 0\]"),
    "largest scale": (lambda arrays: set_scales(arrays, np.full((1, 1), 7.59e35, np.float32)), "whose products bf16 cannot"),
    "transposed": (
        lambda arrays: set_scales(arrays, arrays[f"{Q_PROJ}.weight_scale_inv"].T, Q_PROJ),
        r"has shape \[1, 2\], transposed, and must have \[2, 1\]",
    ),
    "wrong grid": (lambda arrays: set_scales(arrays, np.ones((2, 2), BF16)), r"has shape \[2, 2\], and must have \[1, 1\]"),
    "no scales": (lambda arrays: arrays.pop(f"{DOWN}.weight_scale_inv"), "no tensor .*down_proj.weight_scale_inv"),
    "no codes": (lambda arrays: arrays.pop(f"{DOWN}.weight"), "no tensor .*down_proj.weight"),
    "integer scales": (lambda arrays: set_scales(arrays, np.ones((1, 1), np.int32)), "is I32, and must be BF16 or F16 or F32"),
    "other codes": (
        lambda arrays: arrays.update({f"{DOWN}.weight": arrays[f"{DOWN}.weight"].view(ml_dtypes.float8_e5m2)}),
        "is F8_E5M2, and must be F8_E4M3",
    ),
    "extra scales": (lambda arrays: arrays.update({f"{DOWN}.weight_scales": np.ones((1, 1), np.float32)}), "is not one of a"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_weights_end_in_one_line(fault: str, damaged: Callable[[Callable[[Arrays], Any]], Path]) -> None:
    change, expected = FAULTS[fault]
    folder = damaged(change)
    with pytest.raises(ModelError, match=expected) as caught:
        weights = plan(folder)
        for destination in weights.destinations:
            weights.array(destination.name)
    assert str(caught.value).isprintable() and caught.value.fix


def test_random_bytes_of_the_file_give_an_error_or_the_values_of_the_formula(
    damaged: Callable[[Callable[[Arrays], Any]], Path],
) -> None:
    folder = damaged(lambda _: None)
    path, random = folder / "model.safetensors", np.random.default_rng(5)
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    refused = 0
    for _ in range(40):
        data = bytearray(whole)
        for index in random.integers(begin, len(data), 200):
            data[index] = random.integers(0, 256)
        path.write_bytes(data)
        try:
            weights, dequantised = plan(folder), plan(folder, "16bit")
            for name in (f"{Q_PROJ}.weight", f"{DOWN}.weight"):
                scales = np.kron(weights.tensor(f"{name}_scales"), np.ones((128, 128), np.float32))
                exact = weights.tensor(name).astype(np.float32) * scales
                assert np.isfinite(exact).all()
                assert exact.astype(BF16).tobytes() == dequantised.tensor(name).tobytes()
        except ModelError as error:
            assert str(error).isprintable() and error.fix
            refused += 1
    assert 0 < refused < 40  # of 200 random codes about one and a half are NaN


def test_a_weight_that_has_16_bits_makes_all_others_dequantised(damaged: Callable[[Callable[[Arrays], Any]], Path]) -> None:
    def change(arrays: Arrays) -> None:
        arrays[f"{DOWN}.weight"] = arrays[f"{DOWN}.weight"].astype(BF16)
        del arrays[f"{DOWN}.weight_scale_inv"]

    folder = damaged(change)
    assert plan(folder).weight_format == "16bit"
    with pytest.raises(ModelError, match="weights in `fp8` are asked for, and the files do not") as caught:
        plan(folder, "fp8")
    assert "quantize --to fp8" in str(caught.value)


def test_cut_blocks_make_all_weights_dequantised(tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    config = write_tiny_model(folder)  # 64 columns
    write(folder, quantised_arrays(folder))
    assert plan(folder).weight_format == "16bit"
    for asked in (lambda: plan(folder, "fp8"), lambda: destinations(config, "bf16", "fp8")):
        with pytest.raises(UsageError, match=r"is \[256, 64\], and weights in `fp8` have a scale for each 128 x 128"):
            asked()


def test_scales_that_f16_cannot_hold_are_refused(damaged: Callable[[Callable[[Arrays], Any]], Path]) -> None:
    folder = damaged(lambda arrays: set_scales(arrays, np.full((1, 1), 200, BF16)))
    weights = WeightPlan.for_model(read_config(folder), folder, "f16", convert=True)
    with pytest.raises(ModelError, match="has the scale 200, whose products f16 cannot hold"):
        weights.array(f"{DOWN}.weight_scales")
    assert plan(folder).array(f"{DOWN}.weight_scales") == 200


def test_a_head_in_fp8_is_dequantised_and_the_layers_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "head"
    write_tiny_model(folder, hidden_size=128)
    arrays = quantised_arrays(folder)
    tensors, values = to_fp8("lm_head", arrays["lm_head.weight"].astype(np.float32))
    write(folder, arrays | tensors)
    weights = plan(folder)
    assert weights.weight_format == "fp8"
    assert weights["lm_head.weight"].dtype == "bf16"
    assert weights.array("lm_head.weight").tobytes() == values.astype(BF16).tobytes()


def test_random_weights_in_fp8_are_numbers_of_the_same_size(tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path / "tiny", hidden_size=256)
    weights = dummy_weights(config, "bf16", 3, "fp8")
    again, other = dummy_weights(config, "bf16", 3, "fp8"), dummy_weights(config, "bf16", 4, "fp8")
    name = f"{DOWN}.weight"
    codes, scales = weights.tensor(name), weights.tensor(f"{name}_scales")
    assert codes.dtype == E4M3 and scales.dtype == np.float32 and (scales > 0).all() and len(np.unique(scales)) > 1
    values = codes.astype(np.float32) * np.kron(scales, np.ones((128, 128), np.float32))
    assert np.isfinite(values).all() and len(np.unique(codes.view(np.uint8))) > 100
    assert 0.01 < values.std() < 0.03
    for name in weights.tensor_names:
        assert weights.tensor(name).tobytes() == again.tensor(name).tobytes()
    assert codes.tobytes() != other.tensor(f"{DOWN}.weight").tobytes()


def test_the_dummy_weights_of_a_folder_run(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    (folder / "model.safetensors").unlink()
    for weight_format in ("fp8", "16bit"):
        with Engine.from_pretrained(
            folder, backend="interpreter", max_seq_len=64, dummy=1, weight_format=weight_format
        ) as engine:  # fmt: skip
            assert np.isfinite(engine.logits(SHORT)).all()
            assert len(list(engine.generate_ids(SHORT, 3))) <= 3
