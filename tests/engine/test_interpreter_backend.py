"""The engine without a GPU: logits of a tiny random model against float64, and everything around them, on the interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dense_reference
import numpy as np
import pytest
from one_sequence import OneSequence

from engine.api import Engine
from engine.backends import interpreter
from engine.backends.block_sizes import SLOTS
from engine.backends.interpreter import InterpreterBackend
from engine.checkpoint.weights import WeightPlan
from engine.cli import run
from engine.errors import ModelError, UsageError
from engine.graph.plan import MemoryPlan, plan_memory
from engine.graph.verify import GraphError
from engine.models.families import read_config
from engine.sampling import SamplingParams, sample_logits
from engine.tools.dummy_weights import dummy_weights
from engine.tools.tiny import write_tiny_model
from tests import shipped
from tests.campaign import first
from tilec.step.graph import StepGraph
from tilec.step.step import Step

MAX_SEQ_LEN = 128
IDS = np.random.default_rng(5).integers(0, 400, 80).tolist()
"""Tokens of the tiny model's vocabulary."""

TOLERANCE = {"bf16": 0.02, "f16": 0.004}
"""Upper bound of the root mean square error, over the deviation of the logits: twice the measured values (0.0125 and 0.0021).
"""

CASES = [(tied, dtype) for tied in (False, True) for dtype in ("bf16", "f16")]


class Model:
    """A tiny model on the interpreter, and the float64 logits of `IDS`."""

    def __init__(self, folder: Path, tied: bool, dtype: str) -> None:
        self.config = read_config(folder)
        assert self.config.tie_word_embeddings == tied
        self.weights = WeightPlan.for_model(self.config, folder, dtype, convert=True)
        self.dtype = dtype
        self.backend = OneSequence(InterpreterBackend())
        self.backend.load(self.config, self.weights, MAX_SEQ_LEN, dtype)
        tensors = {name: self.weights.tensor(name) for name in self.weights.tensor_names}
        self.expected = dense_reference.logits(self.config, tensors, IDS)

    def distance(self, found: Any, position: int) -> float:
        """The distance of logits from the reference after the token at a position, in units of `TOLERANCE`."""
        expected = self.expected[position]
        return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std() / TOLERANCE[self.dtype])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Tiny models, by whether their embeddings are tied."""
    folder_by_tied = {tied: tmp_path_factory.mktemp("tiny") / "model" for tied in (False, True)}
    for tied, folder in folder_by_tied.items():
        write_tiny_model(folder, tied=tied)
    return folder_by_tied


@pytest.fixture(scope="module")
def models(folders: dict[bool, Path]) -> Callable[[bool, str], Model]:
    cached: dict[tuple[bool, str], Model] = {}

    def model(tied: bool, dtype: str) -> Model:
        if (tied, dtype) not in cached:
            cached[tied, dtype] = Model(folders[tied], tied, dtype)
        cached[tied, dtype].backend.reset()
        return cached[tied, dtype]

    return model


LONG = [(70, *case) for case in CASES]


@pytest.mark.parametrize(("tokens", "tied", "dtype"), first(3, [(1, *CASES[0]), (17, *CASES[1]), LONG[2], *LONG[:2], LONG[3]]))
def test_logits_of_a_prompt(models: Callable[..., Model], tied: bool, dtype: str, tokens: int) -> None:
    model = models(tied, dtype)
    assert model.distance(model.backend.prompt_logits(IDS[:tokens]), tokens - 1) < 1
    assert model.backend.position == tokens


@pytest.mark.parametrize(("tied", "dtype"), first(1, [CASES[0], CASES[3]]))
def test_logits_of_decode_steps_across_the_end_of_a_tile(models: Callable[..., Model], tied: bool, dtype: str) -> None:
    model = models(tied, dtype)
    model.backend.prompt_logits(IDS[: SLOTS - 3])
    assert (
        max(model.distance(model.backend.decode_logits(IDS[position]), position) for position in range(SLOTS - 3, SLOTS + 3))
        < 1
    )


def test_decode_and_prefill_agree(models: Callable[..., Model]) -> None:
    """All tokens one by one, and all at once: the results are closer to each other than to those of one token less."""
    backend = models(False, "f16").backend
    backend.prompt_logits(IDS[:1])
    decode_logits = [backend.decode_logits(token) for token in IDS[1:12]][-1]
    backend.reset()
    prefill_logits = backend.prompt_logits(IDS[:12])
    assert np.abs(decode_logits - prefill_logits).max() < 0.02 * prefill_logits.std()
    backend.reset()
    assert np.abs(backend.prompt_logits(IDS[:11]) - prefill_logits).max() > 0.5 * prefill_logits.std()


@pytest.mark.parametrize("chunk", first(1, [5, 8]))
def test_a_prompt_in_chunks(models: Callable[..., Model], monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    model = models(False, "f16")
    monkeypatch.setattr(model.backend.backend, "chunk_tokens", chunk)  # the last chunk is one token, and two
    assert model.distance(model.backend.prompt_logits(IDS[:17]), 16) < 1
    assert model.backend.position == 17


@pytest.mark.campaign
def test_tokens_of_nobody_after_a_prompt_change_nothing(models: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 6 and 3 tokens are computed with 16, as on a GPU; so are the decode steps that overwrite their slots."""
    model = models(False, "bf16")
    monkeypatch.setattr(model.backend.backend, "chunk_tokens", 6)
    monkeypatch.setattr(model.backend.backend, "_padded", lambda tokens, past: 16)
    found = [model.backend.prompt_logits(IDS[:9]), *[model.backend.decode_logits(token) for token in IDS[9:12]]]
    assert max(model.distance(logits, position) for position, logits in enumerate(found, 8)) < 1
    assert model.backend.position == 12


def test_prompts_that_follow_each_other(models: Callable[..., Model]) -> None:
    model = models(True, "f16")
    model.backend.prefill(IDS[:60])
    model.backend.prefill(IDS[60:63])
    assert model.distance(model.backend.prompt_logits(IDS[63:70]), 69) < 1


@pytest.mark.parametrize(("tied", "prompts"), first(1, [(False, 6), (False, 12), (True, 12)]))
def test_greedy_tokens_are_those_of_float64_by_a_clear_margin(models: Callable[..., Model], tied: bool, prompts: int) -> None:
    model = models(tied, "bf16")
    generated: list[int] = []
    for tokens in range(1, prompts + 1):  # each prefix's next token, then the one after the true next token
        model.backend.reset()
        model.backend.prefill(IDS[:tokens])
        generated.append(model.backend.token())
        generated += model.backend.stream_tokens(IDS[tokens], 1)
    clear = 0
    for position, tokens in zip(np.repeat(np.arange(prompts), 2) + np.tile([0, 1], prompts), generated, strict=True):
        best, second = np.sort(model.expected[position])[:-3:-1]
        if best - second > 0.2 * model.expected[position].std():
            assert tokens == model.expected[position].argmax()
            clear += 1
    assert clear > prompts * 2 // 3


def test_streamed_tokens_are_those_of_single_steps(models: Callable[..., Model]) -> None:
    backend = models(False, "bf16").backend
    backend.prefill(IDS[:5])
    first = backend.token()
    streamed = list(backend.stream_tokens(first, 4))
    assert backend.position == 9
    backend.reset()
    backend.prompt_logits(IDS[:5])
    single = [first]
    for _ in range(4):
        single.append(int(backend.decode_logits(single[-1]).argmax()))
    assert [first, *streamed] == single
    assert len(set(single)) > 2


def sampled_tokens(backend: OneSequence, params: SamplingParams, count: int) -> list[int]:
    backend.reset()
    backend.prefill(IDS[:7], params)
    token = backend.token()
    return [token, *backend.stream_tokens(token, count - 1)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), first(1, [(0.6, 3, 0.8), (3.0, 64, 0.9), (1.0, 50, 1.0)]))
def test_sampled_tokens(
    models: Callable[..., Model], monkeypatch: pytest.MonkeyPatch, temperature: float, top_k: int, top_p: float
) -> None:
    """The same tokens for the same seed, equal to those that the NumPy sampler draws from the logits."""
    backend = models(False, "bf16").backend
    monkeypatch.setattr(backend.backend, "chunk_tokens", 4)
    params = SamplingParams(temperature, top_k, top_p, seed=11)
    sampled = sampled_tokens(backend, params, 6)
    assert sampled_tokens(backend, params, 6) == sampled
    backend.reset()
    logits = backend.prompt_logits(IDS[:7])
    for number, token in enumerate(sampled):
        assert token == sample_logits(logits, params, number)
        logits = backend.decode_logits(token)


@pytest.mark.campaign
def test_another_seed_draws_other_tokens_and_greedy_draws_none(models: Callable[..., Model]) -> None:
    backend = models(False, "bf16").backend
    assert len({tuple(sampled_tokens(backend, SamplingParams(3.0, 64, 1.0, seed=seed), 4)) for seed in range(3)}) == 3
    backend.reset()
    backend.prefill(IDS[:7])
    greedy = backend.token()
    backend.reset()
    assert greedy == backend.prompt_logits(IDS[:7]).argmax()


def test_activations_are_at_their_planned_offsets(folders: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(folders[False], False, "bf16")  # modifies its cache
    expected = model.backend.prompt_logits(IDS[:5])

    def overlapping_plan(graph: StepGraph) -> MemoryPlan:
        return MemoryPlan(dict.fromkeys(plan_memory(graph).offsets, 0), plan_memory(graph).size)

    monkeypatch.setattr(interpreter, "plan_memory", overlapping_plan)
    model.backend.reset()
    with pytest.raises(GraphError, match="shares bytes with"):
        model.backend.prompt_logits(IDS[:5])
    monkeypatch.setattr(interpreter, "verify", lambda *_: None)
    assert not np.allclose(model.backend.prompt_logits(IDS[:5]), expected, equal_nan=True)


def test_memory_that_no_operation_wrote_is_nan(folders: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Model(folders[False], False, "bf16").backend  # modifies its cache
    backend.prefill(IDS[:5])
    assert backend.token() >= 0

    def without_embedding(step: Step, *arguments: Any, **options: Any) -> StepGraph:
        graph = original_graph(step, *arguments, **options)
        graph.ops = [op for op in graph.ops if op.name != "embed_tokens"]
        return graph

    original_graph = Step.graph
    monkeypatch.setattr(Step, "graph", without_embedding)
    backend.reset()
    with pytest.raises(GraphError, match="`hidden` is read before it is written"):
        backend.prefill(IDS[:5])
    monkeypatch.setattr(interpreter, "verify", lambda *_: None)
    backend.prefill(IDS[:5])
    with pytest.raises(ModelError, match="the logits are not finite"):
        backend.token()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda b: b.prefill([]), "the prompt is empty"),
        (lambda b: b.prompt_logits([1] * 129), "129 tokens do not fit max-seq-len 128"),
        (lambda b: b.prefill([1, 408]), "token 408 is not in the vocabulary of 408"),
        (lambda b: b.decode_logits(-1), "token -1 is not in the vocabulary"),
    ],
)
def test_refused_tokens(models: Callable[..., Model], use: Callable[[OneSequence], object], message: str) -> None:
    backend = models(False, "bf16").backend
    with pytest.raises(UsageError, match=message):
        use(backend)


def test_a_stream_ends_at_the_cache(models: Callable[..., Model]) -> None:
    backend = models(False, "bf16").backend
    backend.position = MAX_SEQ_LEN - 2  # earlier slots contain zeros or older tokens
    tokens = backend.stream_tokens(1, 5)
    assert [0 <= next(tokens) < 408, 0 <= next(tokens) < 408] == [True, True]
    with pytest.raises(UsageError, match="128 tokens and 1 more do not fit"):
        next(tokens)


def test_a_model_that_the_kernels_do_not_support(folders: dict[bool, Path]) -> None:
    config = replace(read_config(folders[False]), num_attention_heads=18, num_key_value_heads=9)
    with pytest.raises(ModelError, match=r"operation `layers.0.qk_norm_rope_kv`: .*`requires\(.*is broken.*HKV = 9"):
        InterpreterBackend().load(config, dummy_weights(config, "bf16"), 64)


def test_a_generation_ends_when_another_begins(models: Callable[..., Model]) -> None:
    backend = models(False, "bf16").backend
    backend.prefill(IDS[:3])
    old = backend.stream_tokens(5, 9)
    next(old)
    backend.reset()
    backend.prefill(IDS[:2])
    with pytest.raises(UsageError, match="this generation ended: another began"):
        next(old)
    assert backend.position == 2


def test_missing_sources_of_kernels(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        InterpreterBackend(tmp_path / "kernels_src")
    assert str(caught.value).startswith(f"{tmp_path / 'kernels_src'}: the kernels' sources are missing")


def run_engine(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = run(["--model", str(folder), "--prompt", "Why is the sky blue?", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.campaign
def test_the_command_generates(folders: dict[bool, Path], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--backend", "interpreter", "--json", "--max-new-tokens", "4"]
    status, out, err = run_engine(folders[False], capsys, *options)
    assert (status, err) == (0, "")
    record = json.loads(out)
    with Engine.from_pretrained(folders[False], backend="interpreter", max_seq_len=100) as engine:
        ids = engine.tokens([{"role": "user", "content": "Why is the sky blue?"}])
        assert record["ids"] == list(engine.generate_ids(ids, 4))
        assert record["prompt_tokens"] == len(ids)
        assert record["text"] == engine.text.decode(record["ids"])
        assert record["ids"][0] == engine.logits(ids).argmax()
        with pytest.raises(UsageError, match="no GPU runs the model"):
            engine.profile()
    engine.close()
    sampled = [json.loads(run_engine(folders[False], capsys, *options, "--sample", "--seed", seed)[1])["ids"] for seed in "343"]
    assert sampled[0] == sampled[2] != sampled[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "interpreter", "--profile"], "error: --profile times kernels on a GPU"),
        (["--backend", "interpreter", "--bundle", "x"], "error: --bundle changes nothing with --backend interpreter"),
        (["--backend", "abacus"], "error: Invalid value for '--backend': 'abacus' is not one of"),
    ],
)
def test_wrong_usage(folders: dict[bool, Path], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    status, out, err = run_engine(folders[False], capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(message)


def test_wrong_usage_of_the_api(folders: dict[bool, Path]) -> None:
    with pytest.raises(UsageError, match="takes neither a bundle nor a device"):
        Engine.from_pretrained(folders[False], backend="interpreter", bundle="x")


BLOCKER = """
import importlib.abc, sys
BLOCKED = {"torch_mlir", "mlir", "llvmlite", "islpy", "cuda", "torch", "networkx", "platformdirs", "grandalf"}
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
from engine.tools.tiny import write_tiny_model
from engine.cli import run
write_tiny_model(sys.argv[1])
status = run(["--model", sys.argv[1], "--backend", "interpreter", "--prompt", "the sky", "--max-new-tokens", "2"])
assert not BLOCKED & sys.modules.keys()
sys.exit(status)
"""


def test_it_runs_without_compiler_and_driver(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BLOCKER, str(tmp_path / "model")]
    process = subprocess.run(command, capture_output=True, timeout=600, check=False, cwd=shipped.ROOT)
    assert (process.returncode, process.stderr) == (0, b"")
    assert process.stdout.endswith(b"\n")
    assert len(process.stdout) > 1
