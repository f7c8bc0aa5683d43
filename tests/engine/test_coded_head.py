"""A head in FP8 next to linear weights in another format: the codes that a loader makes, the launches of each mode, and how far
logits are from those of the rounded head and of the one in 16 bits."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from one_sequence import OneSequence
from step_contracts import TINY, contract

from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.checkpoint.shards import open_checkpoint
from engine.checkpoint.weights import EMBEDDING, WeightPlan
from engine.errors import ModelError
from engine.graph.plan import plan_memory
from engine.graph.verify import verify
from engine.models.config import CONFIG_FILE
from engine.models.families import read_config
from engine.models.steps import model_step
from engine.paged_batch import PagedBatch
from engine.tools.quantize.checkpoint import prepare, write_quantised
from engine.tools.quantize.fp8 import Fp8
from engine.tools.quantize.int4 import Int4
from engine.tools.tiny import write_tiny_model
from tilec.step.expressions import StepError
from tilec.step.reader import read_declaration
from tilec.step.step import Step

_FILES: Any = importlib.import_module("safetensors.numpy")  # its types are partial
load_file, save_file = _FILES.load_file, _FILES.save_file

HEAD = "lm_head.weight"
CASES = [("qwen3", "int4", True), ("qwen3", "fp8", False), ("llama", "int4", False)]
"""Families, formats of the linear weights, and whether the head is the embedding table."""
IDS = [5, 9, 300, 17, 2]


def quiet(*_: int) -> None:
    """No progress."""


def folder_of(root: Path, family: str, form: str, tied: bool, fill: float | None = None, head: Any = None) -> Path:
    """A tiny model whose vocabulary is a multiple of 128; with `fill` one number of the head is that, or it is all `head`."""
    write_tiny_model(root / "source", hidden_size=128, family=family, tied=tied)
    config = json.loads((root / "source" / CONFIG_FILE).read_text())
    rows = -(-config["vocab_size"] // 128) * 128
    (root / "source" / CONFIG_FILE).write_text(json.dumps({**config, "vocab_size": rows}))
    for path in (root / "source").glob("*.safetensors"):
        tensors = load_file(path)
        for name in {EMBEDDING, HEAD} & tensors.keys():
            more = np.random.default_rng(len(name)).normal(0, 0.02, (rows - len(tensors[name]), 128))
            tensors[name] = np.concatenate([tensors[name], more.astype(tensors[name].dtype)])
            if fill is not None:
                tensors[name][3, 5] = fill
            if name == HEAD and head is not None:
                tensors[name] = head
        save_file(tensors, path)
    form_of = Int4(128, "mse") if form == "int4" else Fp8()
    write_quantised(prepare(root / "source", form_of), root / "model", 1 << 20, quiet)
    return root / "model"


def loaded(folder: Path, form: str) -> InterpreterBackend:
    config = read_config(folder)
    backend = InterpreterBackend()
    backend.load(config, WeightPlan.for_model(config, folder, "bf16", weight_format=form), 128)
    return backend


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    family, form, tied = request.param
    return folder_of(tmp_path_factory.mktemp("tiny"), family, form, tied), form


def head_of(folder: Path) -> np.ndarray[Any, Any]:
    """The head in f64 as the files have it."""
    name = EMBEDDING if read_config(folder).tie_word_embeddings else HEAD
    file = open_checkpoint(folder)[name]
    found = np.frombuffer(file.data(name), ml_dtypes.bfloat16)
    return found.reshape(file.tensors[name].shape).astype(np.float64)


def test_codes_are_the_nearest_and_scales_those_of_the_largest(case: tuple[Path, str]) -> None:
    folder, form = case
    config, exact = read_config(folder), head_of(folder)
    weights = WeightPlan.for_model(config, folder, "bf16", weight_format=f"{form}_head")
    codes, scales = weights.array(HEAD), weights.array(f"{HEAD}_scales")
    assert (codes.dtype, codes.shape, scales.dtype) == (ml_dtypes.float8_e4m3fn, exact.shape, np.float32)
    numbers = np.sort(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)[np.r_[:127, 129:255]])
    for row in range(0, exact.shape[0], 128):
        for column in range(0, exact.shape[1], 128):
            block, at = exact[row : row + 128, column : column + 128], (row // 128, column // 128)
            assert scales[at] == np.float32(np.float32(abs(block).max()) / np.float32(448))
            own = codes[row : row + 128, column : column + 128].astype(np.float64)
            quotients = (block.astype(np.float32) / scales[at]).astype(np.float64)
            nearest = abs(quotients[:, :, None] - numbers).min(axis=2)
            assert (abs(own - quotients) == nearest).all()
    chunks = b"".join(bytes(view) for _, view in weights.chunks(HEAD, 1000))
    assert chunks == codes.tobytes()


def test_the_embedding_and_all_other_weights_stay(case: tuple[Path, str]) -> None:
    folder, form = case
    config = read_config(folder)
    plain, headed = (WeightPlan.for_model(config, folder, "bf16", weight_format=one) for one in (form, f"{form}_head"))
    assert {one.name for one in headed.destinations} == {*(one.name for one in plain.destinations), HEAD, f"{HEAD}_scales"}
    for destination in plain.destinations:
        if destination.name != HEAD:
            assert plain.array(destination.name).tobytes() == headed.array(destination.name).tobytes()
    assert WeightPlan.for_model(config, folder, "bf16").weight_format == form  # nobody gets one unasked


def rounded_head(folder: Path, form: str) -> np.ndarray[Any, Any]:
    """The head whose numbers are those of codes and scales, rounded to 16 bits."""
    weights = WeightPlan.for_model(read_config(folder), folder, "bf16", weight_format=f"{form}_head")
    scales = np.repeat(np.repeat(weights.array(f"{HEAD}_scales"), 128, axis=0), 128, axis=1)
    return (weights.array(HEAD).astype(np.float32) * scales).astype(ml_dtypes.bfloat16)


def test_logits_are_those_of_the_rounded_head_and_near_those_of_the_head(case: tuple[Path, str], tmp_path: Path) -> None:
    """In prefill, decode and rows over pages."""
    folder, form = case
    if read_config(folder).tie_word_embeddings:
        pytest.skip("a tied model has no place for a head in 16 bits next to its table")
    other = folder_of(tmp_path, read_config(folder).model_type, form, False, head=rounded_head(folder, form))
    ours, exact, plain = loaded(folder, f"{form}_head"), loaded(other, form), loaded(folder, form)
    found = [logits_of(backend) for backend in (ours, exact, plain)]
    for own, rounded, wide in zip(*found, strict=True):
        deviation = float(wide.std())
        assert float(abs(own - rounded).max()) < 0.03 * deviation
        error = float(np.sqrt(np.mean((own - wide) ** 2)))
        assert 1e-4 * deviation < error < 0.05 * deviation  # other numbers, and near


def logits_of(backend: InterpreterBackend) -> list[np.ndarray[Any, Any]]:
    """Logits of a prompt's last token and of decode steps, alone and over pages."""
    alone = OneSequence(backend)
    found = [np.array(alone.prompt_logits(IDS), np.float64)]
    found += [np.array(alone.decode_logits(token), np.float64) for token in (7, 8)]
    with PagedBatch(backend, 2, pages=8) as rows:
        rows.join(0, [1, 2], 0, IDS, None)
        rows.step(ahead=False)
        found.append(rows.step_logits()[0].astype(np.float64))
    return found


def test_the_greatest_logit_is_the_token_of_every_mode(case: tuple[Path, str]) -> None:
    folder, form = case
    backend = loaded(folder, f"{form}_head")
    alone = OneSequence(backend)
    token = int(np.argmax(alone.prompt_logits(IDS)))
    expected = [token]
    for _ in range(3):
        token = int(np.argmax(alone.decode_logits(token)))
        expected.append(token)
    alone.reset()
    alone.prefill(IDS[:-1])
    greedy = [alone.decode(IDS[-1])]
    while len(greedy) < 4:
        greedy.append(alone.decode(greedy[-1]))
    assert greedy == expected
    with Batch(backend, 2) as batch:
        slot, token = batch.add(IDS)
        batch.add(IDS[:3])
        of_batch = [token, *(batch.step()[slot] for _ in range(3))]
    assert of_batch == expected
    with PagedBatch(backend, 2, pages=8) as rows:
        of_pages = [rows.join(0, [1, 2], 0, IDS, None)]
        of_pages += [rows.step(ahead=False)[0] for _ in range(3)]
    assert of_pages == expected


KERNELS = {
    "decode": {"scaled_matvec_fp8"}, "batch": {"scaled_matvec_rows_fp8"}, "prefill": {"scaled_matvec_fp8"},
    "chunk": {"scaled_matvec_rows_fp8"}, "serve": {"matmul_few_fp8"},
}  # fmt: skip
TOKENS = {"decode": 1, "batch": 4}


def graph_of(family: str, mode: Any, output: Any, form: str = "int4_head", **numbers: Any) -> Any:
    heads = {"num_key_value_heads": 4 if family == "llama" else 8}  # of which kernels of the family have entries
    shape: Any = SimpleNamespace(**{**vars(TINY), "model_type": family, **heads, **numbers})
    return model_step(shape, 2048, weight_format=form).with_pages(100).graph(mode, output, tokens=TOKENS.get(mode, 20))


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("mode", list(KERNELS))
def test_every_mode_multiplies_codes_of_the_head_and_is_verified(family: str, mode: Any) -> None:
    for output in ("argmax", "logits", "sample"):
        graph = graph_of(family, mode, output)
        verify(graph, plan_memory(graph), contract)
        taking = [op for op in graph.ops if any(view.buffer == HEAD for view in op.tensors.values())]
        assert {op.kernel for op in taking} == KERNELS[mode] and len(taking) == 1
        assert not {"matvec", "matvec_argmax", "scaled_matvec_argmax_rows"} & {op.kernel for op in graph.ops}


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_greedy_step_has_as_many_launches_as_with_a_head_of_16_bits(family: str) -> None:
    headed, plain = (graph_of(family, "decode", "argmax", form).ops for form in ("int4_head", "int4"))
    assert len(headed) == len(plain)


def test_a_vocabulary_without_whole_blocks_is_refused() -> None:
    with pytest.raises(StepError, match=r"`lm_head.weight` is \[2000, 1024\], and weights in `fp8` have a scale for each 128"):
        graph_of("qwen3", "decode", "argmax", vocab_size=2000)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_head_with_a_number_that_is_none_is_refused(number: float, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen3", "fp8", False, fill=number)
    weights = WeightPlan.for_model(read_config(folder), folder, "bf16", weight_format="fp8_head")
    for name in (HEAD, f"{HEAD}_scales"):
        with pytest.raises(ModelError, match=r"tensor .lm_head.weight. holds a number that is not finite"):
            weights.array(name)


def test_a_folder_without_its_head_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen3", "int4", False)
    for path in folder.glob("*.safetensors"):
        save_file({name: one for name, one in load_file(path).items() if name != HEAD}, path)
    with pytest.raises(ModelError, match=r"tensor .lm_head.weight. is in none of the safetensors files"):
        WeightPlan.for_model(read_config(folder), folder, "bf16", weight_format="int4_head")


def test_linear_weights_of_another_format_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen3", "fp8", False)
    with pytest.raises(ModelError, match="weights in `int4_head` are asked for, and the files do not have"):
        WeightPlan.for_model(read_config(folder), folder, "bf16", weight_format="int4_head")


SHORT = """
formats = {"fp8": scaled(f8e4m3, [128, 128]), "headed": headed(fp8, head.weight, fp8)}
weights = {"table.weight": [256, 128], "head.weight": [256, 128], "inner.weight": linear([128, 128])}
tied = {"head.weight": "table.weight"}
buffers = {"x": activation(dtype, [tokens, 128]), "y": activation(dtype, [tokens, 128]), "z": output(dtype, [tokens, 256])}
def decode():
    first = product(E=dtype, x=x, w=inner, out=y)
    if coded_head:
        last = product(E=dtype, x=y, w=head, out=z)
    else:
        last = wide_product(E=dtype, x=y, w=head, out=z)
def prefill():
    last = product(E=dtype, x=x, w=head, out=z)
"""


def short(text: str, form: str) -> Step:
    return Step(read_declaration(text), {"num_hidden_layers": 1}, tied=True, dtype="bf16", max_seq_len=64, weight_format=form)


def test_a_text_gives_one_weight_a_format_of_its_own() -> None:
    headed, plain = (short(SHORT, form) for form in ("headed", "fp8"))
    assert [op.kernel for op in headed.graph("decode").ops] == ["product_fp8", "product_fp8"]
    assert [op.kernel for op in plain.graph("decode").ops] == ["product_fp8", "wide_product"]
    assert headed.graph("decode").ops[1].tensors["w"].buffer == "head.weight"
    assert plain.graph("decode").ops[1].tensors["w"].buffer == "table.weight"
    assert [weight.name for weight in headed.weights()] == [
        "table.weight", "head.weight", "head.weight_scales", "inner.weight", "inner.weight_scales",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("headed(fp8, head", "headed(fp4, head", "`fp4` and `fp8` are not earlier formats of weights alone"),
        ("headed(fp8, head.weight, fp8)", "headed(fp8, head.weight)", "`headed` is not a format, as"),
        ("headed(fp8, head.weight", "headed(fp8, 3", "`headed` is not a format, as"),
        ("headed(fp8, head.weight", "headed(fp8, tail.weight", "`tail.weight` is not a matrix of its own in 16 bits"),
        ("headed(fp8, head.weight", "headed(fp8, inner.weight", "`inner.weight` is not a matrix of its own in 16 bits"),
        ("headed(fp8, head.weight", "headed(fp8, table.weight", "`table.weight` is not a matrix of its own in 16 bits"),
        ('"headed": headed(fp8, head.weight, fp8)', '"a": headed(fp8, head.weight, fp8), "b": headed(a, head.weight, fp8)',
         "`a` and `fp8` are not earlier formats of weights alone"),
    ],
)  # fmt: skip
def test_mistakes_in_the_format_are_named(old: str, new: str, expected: str) -> None:
    assert old in SHORT
    with pytest.raises(StepError, match=re.escape(expected)):
        read_declaration(SHORT.replace(old, new))
