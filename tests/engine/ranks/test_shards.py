"""What a rank reads of a checkpoint: its part of every tensor, of every format, and of nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import joined

from engine.checkpoint.safetensors_file import SafetensorsFile
from engine.checkpoint.weights import WeightPlan
from engine.errors import ModelError, UsageError
from engine.models.families import read_config
from engine.ranks.shards import Shard, ShardError, shards_of, verify_shards
from engine.ranks.step import rank_step
from engine.ranks.weights import rank_weights
from engine.tools.dummy_weights import dummy_weights
from engine.tools.tiny import write_tiny_model

sys.path.append(str(Path(__file__).resolve().parents[1] / "formats"))
import test_weights_in_fp8 as fp8
import test_weights_in_int4 as int4

BF16 = np.dtype(ml_dtypes.bfloat16)
O_PROJ, K_PROJ, DOWN = (f"model.layers.0.{name}" for name in ("self_attn.o_proj", "self_attn.k_proj", "mlp.down_proj"))


def rows(begin: int, end: int, of: int = 8) -> Shard:
    return Shard((of, 4), 0, begin, end)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([rows(0, 4)], "rank 1 has no part of `w`"),
        ([rows(0, 4), rows(0, 4)], "the rows 0..4 of `w` are of rank 0 and of rank 1 too"),
        ([rows(0, 5), rows(4, 8)], "the rows 4..5 of `w` are of rank 0 and of rank 1 too"),
        ([rows(0, 3), rows(4, 8)], "the rows 3..4 of `w` are of no rank"),
        ([rows(1, 4), rows(4, 8)], "the rows 0..1 of `w` are of no rank"),
        ([rows(0, 4), rows(4, 7)], "the rows 7..8 of `w` are of no rank"),
        ([rows(4, 8), rows(0, 4), rows(3, 5)], "the rows 3..4 of `w` are of rank 1 and of rank 2 too"),
        ([rows(0, 4), rows(4, 9)], "rank 1 has the rows 4..9 of `w`, which has 8"),
        ([rows(0, 8), rows(8, 8)], "rank 1 has the rows 8..8 of `w`, which has 8"),
        ([rows(0, 4), Shard((8, 4), 1, 2, 4)], "rank 1 has a part of another `w`, or along another axis, than rank 0"),
        ([rows(0, 4), Shard((8, 4))], "rank 1 has a part of another `w`, or along another axis, than rank 0"),
        ([rows(0, 4), rows(4, 8, of=9)], "rank 1 has a part of another `w`, or along another axis, than rank 0"),
        ([Shard((8, 4), 1, 0, 2), Shard((8, 4), 1, 1, 4)], "the columns 1..2 of `w` are of rank 0 and of rank 1 too"),
    ],
)
def test_parts_that_are_not_the_whole(parts: list[Shard], message: str) -> None:
    ranks: list[Mapping[str, Shard]] = [{"w": part} for part in parts]
    ranks = [*ranks, {}] if len(ranks) == 1 else ranks
    with pytest.raises(ShardError) as caught:
        verify_shards({"w": (8, 4)}, ranks)
    assert message in str(caught.value)


@pytest.mark.parametrize("parts", [[rows(0, 4), rows(4, 8)], [rows(4, 8), rows(0, 4)], [Shard((8, 4)), Shard((8, 4))]])
def test_parts_that_are_the_whole(parts: list[Shard]) -> None:
    verify_shards({"w": (8, 4)}, [{"w": part} for part in parts])


def test_a_text_that_does_not_say_what_it_shares_is_refused(tiny_folder: Callable[..., Path]) -> None:
    step = rank_step(read_config(tiny_folder()), 128, "bf16", 2)
    shards = dict(step.declaration.shards)
    o_proj = shards.pop("model.layers.*.self_attn.o_proj.weight")
    for changed, message in (
        (shards, "and `shards` says that it is whole"),
        ({**shards, "model.layers.*.self_attn.o_proj.weight": replace(o_proj, axis=0)}, "that it is a part of the rows"),
    ):
        step.declaration = replace(step.declaration, shards=changed)
        with pytest.raises(
            ShardError, match=r"`model.layers.0.self_attn.o_proj.weight` is \[128, 512\] and \[128, 256\]"
        ) as caught:
            shards_of(step, 0)
        assert message in str(caught.value)


def folder_of(kind: str, source: Path, target: Path) -> Path:
    """The tiny model with its projections in FP8 or in a layout of four bits."""
    shutil.copytree(source, target)
    if kind == "16bit":
        return target
    if kind == "fp8":
        return fp8.write(target, fp8.quantised_arrays(target))
    config, make = int4.LAYOUTS[kind]
    return int4.write(target, int4.quantised_arrays(target, make), config)


KINDS = ("16bit", "fp8", *int4.LAYOUTS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_parts_of_ranks_are_the_checkpoint(
    kind: str, wide: bool, family: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Every tensor of both ranks side by side is that of one rank, as it is stored and (`wide`) dequantised: of eight experts
    too."""
    folder = folder_of(kind, tiny_folder(family), tmp_path / "model")
    config, weight_format = read_config(folder), "16bit" if wide else None
    whole = WeightPlan.for_model(config, folder, weight_format=weight_format)
    parts = [rank_weights(config, folder, rank, 2, weight_format=weight_format) for rank in range(2)]
    assert {part.weight_format for part in parts} == {whole.weight_format}
    sliced = 0
    for name in whole.tensor_names:
        expected, found = whole.tensor(name), [part.tensor(name) for part in parts]
        axes = [axis for axis in range(expected.ndim) if found[0].shape[axis] != expected.shape[axis]]
        sliced += len(axes)
        together = np.concatenate(found, axis=axes[0]) if axes else found[1]
        assert together.tobytes() == expected.tobytes() and together.shape == expected.shape, name
        assert axes or found[0].tobytes() == expected.tobytes()
    tensors_each = {"16bit": 1, "fp8": 2}.get(whole.weight_format, 3)
    assert sliced == 2 * (7 if family == "qwen3" else 4 + 3 * 8) * tensors_each
    for part in parts:
        for destination in part.destinations:
            for limit in (100, 1 << 20):
                assert joined(part, destination.name, limit) == part.array(destination.name).tobytes()
            assert destination.bytes == part.array(destination.name).nbytes


def test_dummy_weights_of_ranks_are_parts_of_those_of_one(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder()
    config = read_config(folder)
    whole = dummy_weights(config, "bf16", 7, "fp8")
    parts = [rank_weights(config, folder, rank, 2, dummy=7, weight_format="fp8") for rank in range(2)]
    for name, axis in ((f"{O_PROJ}.weight", 1), (f"{O_PROJ}.weight_scales", 1), (f"{K_PROJ}.weight", 0)):
        together = np.concatenate([part.tensor(name) for part in parts], axis=axis)
        assert together.tobytes() == whole.tensor(name).tobytes()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_reads_no_code_and_no_scale_of_another(rank: int, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    """Numbers that are none, in the other rank's part only: whoever reads them refuses the file."""
    target = tmp_path / "model"
    shutil.copytree(tiny_folder(), target)
    arrays = {name: array.copy() for name, array in fp8.quantised_arrays(target).items()}
    arrays[f"{DOWN}.weight"].view(np.uint8)[5, 128 * (1 - rank) + 3] = 0x7F
    arrays[f"{K_PROJ}.weight_scale_inv"][1 - rank, 0] = np.inf
    folder = fp8.write(target, arrays)
    config = read_config(folder)
    mine, other = (rank_weights(config, folder, number, 2) for number in (rank, 1 - rank))
    for name in (f"{DOWN}.weight", f"{K_PROJ}.weight_scales"):
        mine.tensor(name)
        with pytest.raises(ModelError, match=r"holds (NaN|inf)"):
            other.tensor(name)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_reads_no_code_and_no_scale_of_the_other_s_part_of_an_expert(
    rank: int, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    down, up = (f"model.layers.1.mlp.experts.{expert}_proj" for expert in ("5.down", "3.up"))
    target = tmp_path / "model"
    shutil.copytree(tiny_folder("qwen3_moe"), target)
    arrays = {name: array.copy() for name, array in fp8.quantised_arrays(target).items()}
    arrays[f"{down}.weight"].view(np.uint8)[5, 128 * (1 - rank) + 3] = 0x7F
    arrays[f"{up}.weight_scale_inv"][1 - rank, 0] = np.inf
    folder = fp8.write(target, arrays)
    mine, other = (rank_weights(read_config(folder), folder, number, 2) for number in (rank, 1 - rank))
    for name in ("down_proj.weight", "gate_up_proj.weight_scales"):
        stacked = f"model.layers.1.mlp.experts.{name}"
        assert mine.array(stacked).shape[0] == 8
        with pytest.raises(ModelError, match=r"holds (NaN|inf)"):
            other.array(stacked)


def test_a_rank_touches_the_bytes_of_its_part_only(tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row slice is one range of the file, a column slice a view of some bytes of each row: no copy of a whole tensor."""
    folder = tiny_folder()
    config = read_config(folder)
    weights = rank_weights(config, folder, 1, 2)
    data: dict[str, Any] = {}
    original = SafetensorsFile.data

    def kept(self: SafetensorsFile, name: str) -> memoryview:
        data[name] = np.frombuffer(original(self, name), np.uint8)
        return original(self, name)

    monkeypatch.setattr(SafetensorsFile, "data", kept)
    array = weights.array(f"{O_PROJ}.weight")
    assert array.shape == (128, 256) and array.nbytes * 2 == data[f"{O_PROJ}.weight"].nbytes
    rows_of_k = weights.tensor(f"{K_PROJ}.weight")
    begin = data[f"{K_PROJ}.weight"].__array_interface__["data"][0]
    assert rows_of_k.__array_interface__["data"][0] == begin + rows_of_k.nbytes, "a view of the file, at its second half"


def changed(folder: Path, **keys: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


def test_a_boundary_inside_a_block_is_refused(tmp_path: Path) -> None:
    """The usual tiny model: half of its key heads are 64 rows, half of its columns of down_proj 64."""
    for kind, message in (
        ("fp8", "2 GPUs cannot share this model: `model.layers.*.self_attn.k_proj.weight` is [64, 128], and weights in `fp8`"),
        ("awq", "2 GPUs cannot share this model: `model.layers.*.mlp.down_proj.weight` is [128, 64], and weights in `int4`"),
    ):
        source = tmp_path / f"source {kind}"
        write_tiny_model(source, hidden_size=128)
        folder = folder_of(kind, source, tmp_path / kind)
        with pytest.raises(UsageError) as caught:
            rank_weights(read_config(folder), folder, 0, 2)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("fp8", r'k_proj.weight_scale_inv" has one entry for each 128 rows, and .* ends at row 64, inside'),
        ("awq", r'down_proj.scales" has one entry for each 128 columns, and .* ends at column 64, inside'),
        ("packed", r'down_proj.weight_scale" has one entry for each 128 columns, and .* ends at column 64, inside'),
    ],
)
def test_a_boundary_inside_a_block_is_refused_where_weights_are_dequantised(kind: str, message: str, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "source", hidden_size=128)
    folder = folder_of(kind, tmp_path / "source", tmp_path / "model")
    with pytest.raises(ModelError, match=message):
        rank_weights(read_config(folder), folder, 0, 2, weight_format="16bit")


@pytest.mark.parametrize(
    ("kind", "config", "make"),
    [
        ("gptq", int4.GPTQ | {"group_size": -1}, int4.LAYOUTS["gptq"][1]),
        ("packed", int4.packed_config(strategy="channel", group_size=-1), int4.LAYOUTS["packed"][1]),
    ],
)
def test_rows_with_one_scale_are_cut_anywhere(
    kind: str, config: dict[str, Any], make: Any, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(), folder)
    if kind == "gptq":  # all columns are of one group
        make = lambda q, z, s, m: int4.gptq(4, q.T, (z.T - 1) % 16, np.ascontiguousarray(s.T), int4.columns(q) * 0, m)  # noqa: E731
    int4.write(folder, int4.quantised_arrays(folder, make, group=None), config)
    whole = WeightPlan.for_model(read_config(folder), folder)
    parts = [rank_weights(read_config(folder), folder, rank, 2) for rank in range(2)]
    for name, axis in ((f"{O_PROJ}.weight", 1), (f"{K_PROJ}.weight", 0), (f"{DOWN}.weight", 1)):
        together = np.concatenate([part.tensor(name) for part in parts], axis=axis)
        assert together.tobytes() == whole.tensor(name).tobytes()


def test_columns_in_another_order_are_not_shared(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(), folder)
    int4.write(
        folder, int4.quantised_arrays(folder, int4.permuted), int4.GPTQ | {"desc_act": True, "checkpoint_format": "gptq_v2"}
    )
    weights = rank_weights(read_config(folder), folder, 0, 2)
    assert weights.weight_format == "16bit"
    with pytest.raises(ModelError, match=r'o_proj.g_idx" has groups of columns in another order'):
        weights.tensor(f"{O_PROJ}.weight")
    assert weights.tensor(f"{K_PROJ}.weight").shape == (128, 128)
