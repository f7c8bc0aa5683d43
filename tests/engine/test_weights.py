"""Weights: the plan covers a model exactly, merged tensors have the right rows, and every damage is refused in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from checkpoints import DTYPES, UNTIED, data_of, entries, joined, packed, shapes, tensors, write, write_index, write_sharded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.checkpoint.safetensors_file import SafetensorsFile
from engine.checkpoint.weights import NUMPY_TYPES, WeightPlan, destinations
from engine.errors import ModelError, UsageError
from engine.models.config import ModelConfig
from engine.models.qwen3.config import Qwen3Config
from engine.models.steps import step
from engine.tools.dummy_weights import dummy_weights
from tilec.step.graph import Kind

TIED = replace(UNTIED, tie_word_embeddings=True)
Header = dict[str, Any]


def refusal(folder: Path, dtype: str = "bf16", config: ModelConfig = UNTIED, **options: bool) -> str:
    """The one-line error for the weights of a folder."""
    with pytest.raises(ModelError) as caught:
        WeightPlan.for_model(config, folder, dtype, **options)
    line = str(caught.value)
    assert line.isprintable() and line.startswith(str(folder)) and caught.value.fix
    return line


def expected(arrays: dict[str, NDArray[Any]], config: ModelConfig) -> dict[str, NDArray[Any]]:
    """The destinations of a model, merged here by hand."""
    concatenated = {
        name: arrays[name] for name in shapes(config) if not name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
    }
    concatenated = {
        name: array for name, array in concatenated.items() if not name.endswith(("gate_proj.weight", "up_proj.weight"))
    }
    for number in range(config.num_hidden_layers):
        attention, mlp = f"model.layers.{number}.self_attn", f"model.layers.{number}.mlp"
        rows = [arrays[f"{attention}.{part}_proj.weight"] for part in "qkv"]
        concatenated[f"{attention}.qkv_proj.weight"] = np.concatenate(rows)
        concatenated[f"{mlp}.gate_up_proj.weight"] = np.concatenate(
            [arrays[f"{mlp}.{part}_proj.weight"] for part in ("gate", "up")]
        )
    return concatenated


@pytest.mark.parametrize("config", [UNTIED, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("shards", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_destination_has_the_values_of_its_tensors(tmp_path: Path, config: ModelConfig, shards: int, dtype: str) -> None:
    arrays = tensors(config, dtype)
    if shards:
        write_sharded(tmp_path, arrays, shards)
    else:
        write(tmp_path / "model.safetensors", arrays)
    plan = WeightPlan.for_model(config, tmp_path, dtype.lower())
    expected_arrays = expected(arrays, config)
    assert {destination.name for destination in plan.destinations} == set(expected_arrays)
    assert plan.bytes == sum(array.nbytes for array in arrays.values())
    for name, array in expected_arrays.items():
        actual = plan.array(name)
        assert actual.dtype == array.dtype and actual.shape == array.shape == plan[name].shape and not actual.flags.writeable
        assert actual.tobytes() == array.tobytes()
        for limit in (2, 7, 64, 1 << 20):
            assert joined(plan, name, limit) == array.tobytes()
    for name in plan.tensor_names:
        assert plan.tensor(name).tobytes() == arrays[name].tobytes()


def test_a_plan_covers_each_destination_without_gaps() -> None:
    for destination in destinations(UNTIED, "bf16"):
        covered = 0
        for piece in destination.pieces:
            assert piece.offset == covered
            covered += piece.elements * 2
        assert covered == destination.bytes


@pytest.mark.parametrize("config", [UNTIED, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_plan_has_exactly_the_weights_that_a_step_reads(config: ModelConfig, tokens: int) -> None:
    graph = step(config, tokens, 64)
    read = {(buffer.name, buffer.dtype, buffer.shape) for buffer in graph.of_kind(Kind.WEIGHT)}
    assert {(destination.name, destination.dtype, destination.shape) for destination in destinations(config, "bf16")} == read


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ((1024, 3072, 16, 28, True), 596_049_920),
        ((2048, 6144, 16, 28, True), 1_720_574_976),
        ((2560, 9728, 32, 36, True), 4_022_468_096),
        ((4096, 12288, 32, 36, False), 8_190_735_360),
        ((5120, 17408, 40, 40, False), 14_768_307_200),
        ((5120, 25600, 64, 64, False), 32_762_123_264),
    ],
    ids=["0.6B", "1.7B", "4B", "8B", "14B", "32B"],
)
def test_every_dense_size_has_its_published_number_of_parameters(
    size: tuple[int, int, int, int, bool], parameters: int
) -> None:
    hidden, intermediate, heads, layers, tied = size
    config = Qwen3Config(hidden, intermediate, heads, 8, 128, layers, 151936, 1e-6, 1e6, tied, 40960, "bfloat16")
    assert dummy_weights(config, "bf16").bytes == 2 * parameters


def test_a_view_of_the_file_is_not_a_copy(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", tensors(UNTIED))
    array = WeightPlan.for_model(UNTIED, tmp_path, "bf16").array("lm_head.weight")
    assert not array.flags.owndata and not array.flags.writeable


def test_files_of_the_reference_implementation_are_read(tmp_path: Path) -> None:
    arrays = tensors(UNTIED, "F16")
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors", {"format": "pt"})
    plan = WeightPlan.for_model(UNTIED, tmp_path, "f16")
    assert all(np.array_equal(plan.tensor(name), array) for name, array in arrays.items())


def test_a_tied_model_may_contain_the_lm_head(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", tensors(UNTIED))
    plan = WeightPlan.for_model(TIED, tmp_path, "bf16")
    assert "lm_head.weight" not in plan.tensor_names
    arrays = tensors(UNTIED)
    arrays["lm_head.weight"] = arrays["lm_head.weight"][:5]
    write(tmp_path / "model.safetensors", arrays)
    assert '"lm_head.weight" has shape [5, 8]' in refusal(tmp_path, config=TIED)


@pytest.mark.parametrize(("stored", "requested_dtype"), [("BF16", "f16"), ("F16", "bf16")])
def test_dtypes_are_converted_only_when_asked(tmp_path: Path, stored: str, requested_dtype: str) -> None:
    arrays = tensors(UNTIED, stored)
    write(tmp_path / "model.safetensors", arrays)
    assert f"is {stored.lower()}, and {requested_dtype} weights are asked for" in refusal(tmp_path, requested_dtype)
    plan = WeightPlan.for_model(UNTIED, tmp_path, requested_dtype, convert=True)
    for name, array in expected(arrays, UNTIED).items():
        rounded = array.astype(np.float32).astype(NUMPY_TYPES[requested_dtype])
        assert plan.array(name).tobytes() == rounded.tobytes() == joined(plan, name, 10)


def test_a_value_that_f16_cannot_hold_is_refused_and_infinity_is_kept(tmp_path: Path) -> None:
    arrays = tensors(UNTIED)
    arrays["model.norm.weight"][:2] = np.inf, np.nan
    arrays["model.embed_tokens.weight"][3, 3] = 70000.0
    write(tmp_path / "model.safetensors", arrays)
    plan = WeightPlan.for_model(UNTIED, tmp_path, "f16", convert=True)
    assert np.isinf(plan.array("model.norm.weight")[0]) and np.isnan(plan.array("model.norm.weight")[1])
    with pytest.raises(ModelError, match=r'"model.embed_tokens.weight" holds 70144, which f16 cannot hold'):
        plan.array("model.embed_tokens.weight")


def test_f32_files_and_unknown_dtypes_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", tensors(UNTIED, "F32"))
    assert "is F32, and weights must be BF16 or F16; save the model in bfloat16 first" in refusal(tmp_path, convert=True)
    with pytest.raises(UsageError, match='weights cannot be "f32"'):
        WeightPlan.for_model(UNTIED, tmp_path, "f32")


def test_missing_extra_and_misshaped_tensors_are_named(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    arrays = tensors(UNTIED)
    write(file, {name: array for name, array in arrays.items() if "layers.1.mlp" not in name})
    assert 'tensor "model.layers.1.mlp.gate_proj.weight" and 2 more is in none' in refusal(tmp_path)
    write(file, {name: array for name, array in arrays.items() if name != "lm_head.weight"})
    assert 'tensor "lm_head.weight" is in none' in refusal(tmp_path)
    write(file, arrays | {"model.layers.0.self_attn.q_proj.bias": arrays["model.norm.weight"]})
    assert 'tensor "model.layers.0.self_attn.q_proj.bias" is not one of a Qwen3 model of 2 layers' in refusal(tmp_path)
    write(file, tensors(replace(UNTIED, num_hidden_layers=3)))
    assert 'tensor "model.layers.2.input_layernorm.weight" and 10 more is not one' in refusal(tmp_path)
    name = "model.layers.1.self_attn.o_proj.weight"
    write(file, arrays | {name: np.ascontiguousarray(arrays[name].T)})
    assert f'tensor "{name}" has shape [24, 8], and config.json asks for [8, 24]' in refusal(tmp_path)


# The change to the header's object or to the file's bytes, and what the error must contain.
LAST = "lm_head.weight"
HEADERS: dict[str, tuple[Callable[[Header], object], str]] = {
    "entry is a list": (lambda h: h | {LAST: []}, f'tensor "{LAST}": its entry is a list of 0 entries'),
    "no dtype": (lambda h: h | {LAST: {"shape": [1], "data_offsets": [0, 2]}}, "its dtype null is not supported"),
    "odd dtype": (lambda h: h | {LAST: h[LAST] | {"dtype": "F4"}}, 'its dtype "F4" is not supported'),
    "dtype is a list": (lambda h: h | {LAST: h[LAST] | {"dtype": ["BF16"]}}, "its dtype a list of 1 entries"),
    "no shape": (lambda h: h | {LAST: {"dtype": "BF16", "data_offsets": [0, 2]}}, "its shape is null"),
    "negative size": (lambda h: h | {LAST: h[LAST] | {"shape": [-11, -8]}}, "its shape is a list of 2 entries, not"),
    "size is a float": (lambda h: h | {LAST: h[LAST] | {"shape": [11.0, 8]}}, "its shape is"),
    "size is a bool": (lambda h: h | {LAST: h[LAST] | {"shape": [True, 88]}}, "its shape is"),
    "many dimensions": (lambda h: h | {LAST: h[LAST] | {"shape": [1] * 33}}, "its shape is a list of 33 entries"),
    "huge shape": (lambda h: h | {LAST: h[LAST] | {"shape": [1 << 62] * 32}}, "its data_offsets span 176 bytes, and BF16"),
    "wrapping shape": (lambda h: h | {LAST: h[LAST] | {"shape": [1 << 62, 2, 2]}}, "its data_offsets span 176 bytes"),
    "three offsets": (lambda h: h | {LAST: h[LAST] | {"data_offsets": [0, 1, 2]}}, "its data_offsets is a list of 3"),
    "one offset": (lambda h: h | {LAST: h[LAST] | {"data_offsets": [0]}}, "its data_offsets [0] are not"),
    "descending": (lambda h: h | {LAST: h[LAST] | {"data_offsets": [176, 0]}}, "its data_offsets [176, 0] are not"),
    "negative offset": (lambda h: h | {LAST: h[LAST] | {"data_offsets": [-176, 0]}}, "its data_offsets is a list of 2"),
    "beyond the file": (lambda h: h | {LAST: h[LAST] | {"data_offsets": [1 << 40, (1 << 40) + 176]}}, "is truncated: tensor"),
    "wrong span": (lambda h: h | {LAST: h[LAST] | {"shape": [11, 7]}}, "span 176 bytes, and BF16 of shape [11, 7] takes 154"),
    "wrong width": (lambda h: h | {LAST: h[LAST] | {"dtype": "F32"}}, "F32 of shape [11, 8] takes 352"),
    "overlap": (lambda h: h | {LAST: h["model.embed_tokens.weight"]}, "overlaps"),
    "gap": (lambda h: {name: entry for name, entry in h.items() if name != "model.norm.weight"}, "leaves a gap after"),
    "bytes left": (lambda h: {name: entry for name, entry in h.items() if name != LAST}, "has 176 bytes after the last tensor"),
    "not JSON": (lambda h: b"{" + b" " * 50, "the header is not valid JSON"),
    "a list": (lambda h: [h], "the header is a list of 1 entries, not a JSON object"),
    "not UTF-8": (lambda h: b'{"\xff": 1}', "the header is not valid JSON"),
    "twice": (lambda h: json.dumps(h).replace("model.norm.weight", LAST).encode(), f'the key "{LAST}" is there twice'),
    "nested": (lambda h: b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    "empty": (lambda h: b"", "the header is not valid JSON"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_damaged_headers_are_refused(tmp_path: Path, kind: str) -> None:
    damage, message = HEADERS[kind]
    arrays = tensors(UNTIED)
    (tmp_path / "model.safetensors").write_bytes(packed(damage(entries(arrays)), data_of(arrays)))
    assert message in refusal(tmp_path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    arrays = tensors(UNTIED)
    content = packed(entries(arrays), data_of(arrays))
    data_begin = len(content) - len(data_of(arrays))
    for length in [0, 1, 7, 8, 9, data_begin - 1, data_begin, data_begin + 1, len(content) - 177, len(content) - 1]:
        (tmp_path / "model.safetensors").write_bytes(content[:length])
        assert "is truncated" in refusal(tmp_path), length
    (tmp_path / "model.safetensors").write_bytes(content + b"\0")
    assert "has 1 bytes after the last tensor" in refusal(tmp_path)


ENTRY = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'{"a":%b,"a":%b}' % (ENTRY, ENTRY), 'the key "a" is there twice'),
        (b'{"a":%b}%b' % (ENTRY, b" " * (20 << 20)), "announce a header of 20971"),
        (b'{"a":%b}' % ENTRY.replace(b"[1]", b"[%b1]" % (b"1," * 99)), "not a list of at most 32 sizes"),
    ],
    ids=["twice", "long", "dimensions"],
)
def test_the_library_accepts_what_is_refused_here(tmp_path: Path, header: bytes, expected: str) -> None:
    """Why files are read without it. Where this fails, it has become as strict, and the reader may be its."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed(header, bytes(4)))
    with safetensors.safe_open(path, "numpy") as opened:
        assert list(opened.keys()) == ["a"]
    with pytest.raises(ModelError, match=expected):
        SafetensorsFile(path)


def test_header_lengths_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes((100_000_001).to_bytes(8, "little"))
    assert "is not a safetensors file" in refusal(tmp_path)
    file.write_bytes(b"\xff" * 64)
    assert "is not a safetensors file" in refusal(tmp_path)
    file.write_bytes((57).to_bytes(8, "little") + b" " * 56)
    assert "its header takes 57 bytes, and 56 are there" in refusal(tmp_path)


def test_folders_without_weights_suggest_what_to_do(tmp_path: Path) -> None:
    assert "holds neither" in refusal(tmp_path) and "downloaded model" in refusal(tmp_path)
    assert "give a folder that exists" in refusal(tmp_path / "nowhere")
    assert "give a folder that exists" in refusal(tmp_path / ("x" * 300))
    (tmp_path / "pytorch_model.bin").touch()
    assert "safetensors format" in refusal(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert "download model.safetensors.index.json too" in refusal(tmp_path)
    (tmp_path / "model.safetensors").symlink_to("blob")
    assert "there is no such file" in refusal(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    assert "is not a regular file" in refusal(tmp_path)  # reading a pipe would hang


@pytest.mark.parametrize(
    "shard",
    ["../model-00001-of-00002.safetensors", "/etc/passwd", "a.bin", "", 3, None, "a\0.safetensors", "x" * 400 + ".safetensors"],
)
def test_an_index_names_files_of_its_own_folder_only(tmp_path: Path, shard: object) -> None:
    weight_map = write_sharded(tmp_path, tensors(UNTIED), 2)
    write_index(tmp_path, weight_map | {LAST: shard})
    assert "which is not a safetensors file of this folder" in refusal(tmp_path)


def test_an_index_must_agree_with_its_shards(tmp_path: Path) -> None:
    arrays = tensors(UNTIED)
    weight_map = write_sharded(tmp_path, arrays, 2)
    first, second = sorted(set(weight_map.values()))
    write_index(tmp_path, weight_map | {"ghost": first})
    assert f'tensor "ghost" is not in "{first}"' in refusal(tmp_path)
    write_index(tmp_path, {name: shard for name, shard in weight_map.items() if name != LAST})
    assert f'holds tensor "{LAST}", and model.safetensors.index.json does not name it' in refusal(tmp_path)
    write_index(tmp_path, weight_map)
    owned = {name: array for name, array in arrays.items() if weight_map[name] == first}
    stolen = next(name for name in arrays if weight_map[name] == second)
    write(tmp_path / first, owned | {stolen: arrays[stolen]})
    assert f'holds tensor "{stolen}", and model.safetensors.index.json says it is in "{second}"' in refusal(tmp_path)
    (tmp_path / first).unlink()
    assert f'names "{first}", which is not in the folder' in refusal(tmp_path)
    for wrong in ([], {}, None, "x"):
        write_index(tmp_path, wrong)
        assert "`weight_map` is" in refusal(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert "is not valid JSON" in refusal(tmp_path)


SMALL: dict[str, NDArray[Any]] = {
    "a": np.arange(6, dtype=DTYPES["BF16"]).reshape(2, 3),
    "b": np.arange(4, dtype=DTYPES["F32"]),
    "c": np.zeros((0, 5), dtype=DTYPES["F16"]),
}
NUMBERS = (
    st.integers(-2, 30)
    | st.sampled_from([1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30])
    | st.none()
    | st.booleans()
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["BF16", "F32", "F16", "U8", "F64", "bf16", ""]) | NUMBERS,
        "shape": st.lists(NUMBERS, max_size=4) | NUMBERS,
        "data_offsets": st.lists(NUMBERS, max_size=3) | NUMBERS,
        "more": NUMBERS,
    },
)


def check_against_reference(path: Path, content: bytes) -> None:
    """The file is refused with a ModelError, or the reference implementation reads it the same way."""
    path.write_bytes(content)
    try:
        file = SafetensorsFile(path)
    except ModelError as error:
        assert str(error).isprintable()
        return
    reference = {name: (entry["shape"], bytes(entry["data"])) for name, entry in safetensors.deserialize(content)}
    assert {name: (list(file.tensors[name].shape), bytes(file.data(name))) for name in file.tensors} == reference


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), FIELDS, max_size=3), st.integers(-4, 4))
def test_altered_headers_are_refused_or_read_as_the_reference_does(tmp_path: Path, changes: Header, longer: int) -> None:
    header = entries(SMALL)
    for name, fields in changes.items():
        header[name] = header.get(name, {}) | fields
    data = data_of(SMALL)
    check_against_reference(tmp_path / "x.safetensors", packed(header, data[:longer] if longer < 0 else data + bytes(longer)))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255), st.sampled_from("=+-")), min_size=1, max_size=4))
def test_altered_bytes_are_refused_or_read_as_the_reference_does(tmp_path: Path, edits: list[tuple[int, int, str]]) -> None:
    content = bytearray(packed(entries(SMALL), data_of(SMALL)))
    for offset, byte, kind in edits:
        content[offset : offset + (kind != "+")] = b"" if kind == "-" else bytes([byte])
    check_against_reference(tmp_path / "x.safetensors", bytes(content))
