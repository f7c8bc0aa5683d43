"""Mixtures of experts with dense layers between, on the interpreter against float64: prompts, decode steps, batches, pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dense_reference
import numpy as np
import pytest
from mixed_models import BETWEEN, EVERY_SECOND, FIRST_AND_LAST, write_mixed
from one_sequence import OneSequence
from paged_logits import logits_of

from engine.api import Engine
from engine.backends.host_pages import HostPages
from engine.backends.interpreter import InterpreterBackend
from engine.backends.prompts import padded_room
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.models.families import read_config
from engine.paged_batch import PagedBatch
from engine.sampling import SamplingParams
from engine.tools.quantize.checkpoint import prepare, write_quantised
from engine.tools.quantize.fp8 import Fp8
from engine.tools.quantize.int4 import Int4
from tests.campaign import first

IDS = np.random.default_rng(5).integers(0, 400, 80).tolist()
TOLERANCE = {"f16": 0.006, "bf16": 0.032}
"""Upper bound of the root mean square error, over the deviation of the logits, where the choice of experts is clear: twice the
greatest that was measured (0.0030 and 0.0159)."""
CLEAR = {"f16": 0.003, "bf16": 0.025}
"""How far a router's logits must be apart, over their deviation, to be in the same order in 16 bits."""
UNCLEAR = 0.5
"""In place of `TOLERANCE` where they are not, and a token may have another expert: measured 0.21."""
SEEDS = {"first and last": 0, "between": 4, "every second": 3}
"""Of models with weights of eight and four bits: with these the experts of the first tokens are clear."""


class Model:
    """A tiny model on the interpreter, and the float64 logits of `IDS`. In f16, but for codes of four bits, whose scales have
    the dtype of the file."""

    def __init__(self, folder: Path, form: str, **layers: Any) -> None:
        source = folder / "source"
        write_mixed(source, **layers)
        self.folder = source if form == "16bit" else folder / "model"
        if form != "16bit":
            write_quantised(
                prepare(source, Int4(128, "mse") if form == "int4" else Fp8()), self.folder, 1 << 20, lambda *_: None
            )
        self.config = read_config(self.folder)
        self.dtype = "bf16" if form == "int4" else "f16"
        exact = WeightPlan.for_model(self.config, self.folder, self.dtype, weight_format="16bit", convert=True)
        self.tensors = {name: exact.tensor(name).copy() for name in exact.tensor_names}
        asked = {"weight_format": form} if form == "w8a8" else {}
        self.weights = WeightPlan.for_model(self.config, self.folder, self.dtype, convert=True, **asked)
        self.backend = OneSequence(InterpreterBackend())
        self.backend.load(self.config, self.weights, 192, self.dtype)
        gaps: list[Any] = []
        self.expected = dense_reference.logits(self.config, self.tensors, IDS, gaps=gaps)
        self.clear = np.minimum.accumulate(np.min(gaps, axis=0)) > CLEAR[self.dtype]
        """After each token, whether the experts of all tokens before are clear."""
        assert self.clear[:4].all()

    def distance(self, found: Any, position: int) -> float:
        """The distance of logits from the reference after the token at a position, in units of what is allowed."""
        expected = self.expected[position]
        allowed = TOLERANCE[self.dtype] if self.clear[position] else UNCLEAR
        return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std() / allowed)


GREEDY = {
    "first and last": [77, 14, 186, 77, 72, 360, 72, 289, 195, 281, 289, 75],
    "between": [352, 117, 245, 206, 396, 174, 198, 9, 9, 9, 9, 9],
    "every second": [245, 7, 171, 58, 245, 371, 371, 371, 136, 136, 136, 246],
}
"""What `Qwen3MoeForCausalLM` of transformers 5.24 generates in float32 after `IDS[:3]`, of the same folders. There all logits
after `IDS` are those of `dense_reference` within 2e-6 of their deviation."""
LAYERS = {"first and last": FIRST_AND_LAST, "between": BETWEEN, "every second": EVERY_SECOND}
NAMES = [*LAYERS]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    cached: dict[tuple[str, str], Model] = {}

    def model(name: str, form: str = "16bit") -> Model:
        if (name, form) not in cached:
            blocks = {"hidden_size": 128, "intermediate_size": 256, "seed": SEEDS[name]}
            more: dict[str, Any] = {} if form == "16bit" else blocks
            cached[name, form] = Model(tmp_path_factory.mktemp("mixed"), form, **LAYERS[name], **more)
        cached[name, form].backend.reset()
        return cached[name, form]

    return model


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [1, 3, 8, 9, 33, 70])
def test_logits_of_a_prompt(models: Callable[..., Model], name: str, tokens: int) -> None:
    """On both sides of `few_tokens` and `some_tokens`, 8 and 32 here."""
    model = models(name)
    assert model.distance(model.backend.prompt_logits(IDS[:tokens]), tokens - 1) < 1


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_decode_steps_after_a_prompt(models: Callable[..., Model], name: str) -> None:
    model = models(name)
    model.backend.prefill(IDS[:2])
    assert max(model.distance(model.backend.decode_logits(IDS[position]), position) for position in range(2, 8)) < 1


@pytest.mark.parametrize(("name", "chunk"), [("first and last", 2), ("between", 9), ("every second", 16)])
def test_a_prompt_in_chunks(models: Callable[..., Model], monkeypatch: pytest.MonkeyPatch, name: str, chunk: int) -> None:
    model = models(name)
    monkeypatch.setattr(model.backend.backend, "chunk_tokens", chunk)
    assert model.distance(model.backend.prompt_logits(IDS[:19]), 18) < 1
    assert model.distance(model.backend.decode_logits(IDS[19]), 19) < 1


@pytest.mark.parametrize(("name", "rows"), [("first and last", 4), ("between", 2), ("every second", 8)])
def test_a_batch(models: Callable[..., Model], name: str, rows: int) -> None:
    """Sequences that end at different tokens of `IDS`: each row has the logits of its own sequence."""
    model = models(name)
    lengths = [1, 2, 12, 20, 3, 5, 30][: rows - 1]  # one row has no sequence
    with Batch(model.backend.backend, rows) as batch:
        row_of = {batch.add(IDS[:length])[0]: length for length in lengths}
        found = batch.logits({row: IDS[length] for row, length in row_of.items()})
        assert max(model.distance(found[row], length) for row, length in row_of.items()) < 1


@pytest.mark.parametrize("name", first(1, [*LAYERS]))
def test_rows_over_pages(models: Callable[..., Model], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A row has the bits that it has alone, in another bucket, next to others, and with its prompt in other chunks; and the
    logits of the engine without pages but for the order of sums."""
    model = models(name)
    ids = IDS[:70]
    with PagedBatch(model.backend.backend, 2) as batch:
        alone = logits_of(batch, 0, [1, 2], [ids]).copy()
    monkeypatch.setattr(HostPages, "padded", lambda _, count, filled: padded_room(count, filled, 128, 256))
    with PagedBatch(model.backend.backend, 10) as batch:
        batch.join(0, [10], 0, IDS[3:20], None)
        batch.join(6, [11, 12], 0, IDS[5:], SamplingParams(0.9, 20, 0.9, seed=7))
        assert logits_of(batch, 8, [5, 3], [ids[:1], ids[1:38], ids[38:]]).tobytes() == alone.tobytes()
    model.backend.reset()
    model.backend.prefill(ids)
    token = model.backend.token()
    expected: Any = None
    for _ in range(2):
        expected = model.backend.decode_logits(token)
        token = int(expected.argmax())
    allowed = 3 * TOLERANCE["f16"] if model.clear[69] else UNCLEAR
    assert np.sqrt(np.mean((alone - expected) ** 2)) < allowed * expected.std()


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_transformers(models: Callable[..., Model], name: str) -> None:
    """Of decode steps, and of the engine as far as bf16 of the folder leads to the same."""
    model = models(name)
    model.backend.prefill(IDS[:3])
    tokens = [model.backend.token()]
    while len(tokens) < len(GREEDY[name]):
        tokens.append(int(model.backend.decode_logits(tokens[-1]).argmax()))
    assert tokens == GREEDY[name]
    with Engine.from_pretrained(model.folder, backend="interpreter", max_seq_len=64) as engine:
        generated = list(engine.generate_ids(IDS[:3], 4))
        for number, token in enumerate(generated):
            assert token == engine.logits([*IDS[:3], *generated[:number]]).argmax()


@pytest.mark.parametrize(
    ("name", "form"),
    first(2, [("first and last", "int4"), ("between", "fp8"), *((name, "w8a8") for name in LAYERS), ("between", "int4"),
              ("first and last", "fp8"), ("every second", "int4"), ("every second", "fp8")]),
)  # fmt: skip
def test_formats(models: Callable[..., Model], name: str, form: str) -> None:
    """Prompts of each height of tiles, decode steps and a batch. Long prompts of `w8a8` have activations of eight bits, whose
    rounding no reference here has."""
    model = models(name, form)
    assert model.weights.weight_format == form
    for tokens in (1, 3, 8, *(() if form == "w8a8" else (17, 40))):
        model.backend.reset()
        assert model.distance(model.backend.prompt_logits(IDS[:tokens]), tokens - 1) < 1
    model.backend.reset()
    model.backend.prefill(IDS[:2])
    assert model.distance(model.backend.decode_logits(IDS[2]), 2) < 1
    with Batch(model.backend.backend, 2) as batch:
        row = batch.add(IDS[:3])[0]
        assert model.distance(batch.logits({row: IDS[3]})[row], 3) < 1
    if form == "w8a8":
        model.backend.reset()
        found, expected = model.backend.prompt_logits(IDS[:40]), model.expected[39]
        assert np.sqrt(np.mean((found - expected) ** 2)) / expected.std() < UNCLEAR
