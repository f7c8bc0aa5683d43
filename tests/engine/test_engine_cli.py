"""The command and the API on a driver that launches nothing: generation ends where it must, and bad input gives one line and a
status."""

from __future__ import annotations

import gc
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cuda_backend import SMALLEST, FakeDriver
from test_text import folder

from engine import api
from engine.backends import load
from engine.cli import run
from engine.errors import UsageError
from tilec.runtime import Bundle, Device

__all__ = ["folder"]  # fixtures of other modules

CONFIG = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "attention_bias": False,
    "eos_token_id": 290, "use_sliding_window": False, "rope_scaling": None, "max_window_layers": 2, "sliding_window": None,
} | {
    name: getattr(SMALLEST, name)
    for name in (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers",
        "vocab_size", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "max_position_embeddings", "torch_dtype",
    )
}  # fmt: skip


@pytest.fixture
def model(folder: Path, tmp_path: Path) -> Path:
    """A model folder without weights."""
    copied = tmp_path / "model"
    shutil.copytree(folder, copied)
    (copied / "config.json").write_text(json.dumps(CONFIG))
    return copied


@pytest.fixture
def run_engine(
    bundle: Bundle, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Runs the command on a fake device whose every token is 0; (status, stdout, stderr)."""
    monkeypatch.setattr(load, "CudaBackend", lambda opened, device: real_backend(opened, Device(FakeDriver())))

    def run_command(*arguments: str, **options: Any) -> tuple[int, str, str]:
        values = {"--model": str(model), "--bundle": str(bundle.path), "--prompt": "hello"} | options
        arguments_list = [part for name, value in values.items() if value is not None for part in (name, value)]
        status = run([*arguments_list, *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run_command


real_backend = load.CudaBackend


def test_a_generation(run_engine: Callable[..., Any]) -> None:
    status, out, err = run_engine("--dummy-weights", "--max-new-tokens", "5")
    assert (status, err) == (0, "")
    assert out == "!!!!!\n"  # token 0 of the alphabet


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_streamed_and_complete_output_are_the_same(run_engine: Callable[..., Any], stream: str) -> None:
    assert run_engine("--dummy-weights", "--max-new-tokens", "7", "--raw-prompt", stream) == (0, "!!!!!!!\n", "")


def test_a_profile_is_of_one_gpu(run_engine: Callable[..., Any]) -> None:
    status, _, err = run_engine("--dummy-weights", "--profile", "--gpus", "2")
    assert (status, err) == (
        2, "error: --profile times the kernels of one GPU, and others would wait for it; leave out --gpus\n"
    )  # fmt: skip


def test_a_profile_follows_the_generated_text(run_engine: Callable[..., Any]) -> None:
    status, out, err = run_engine("--dummy-weights", "--max-new-tokens", "2", "--profile")
    assert (status, out) == (0, "!!\n")
    for text in ("A decode step with", "layers.*.qkv_proj", "scaled_matvec_silu_mul", "of floor", "the step"):
        assert text in err


def test_json(run_engine: Callable[..., Any]) -> None:
    status, out, _ = run_engine("--dummy-weights", "--max-new-tokens", "3", "--json", "--raw-prompt")
    record = json.loads(out)
    assert status == 0
    assert record["ids"] == [0, 0, 0]
    assert record["text"] == "!!!"
    assert record["prompt_tokens"] > 0


def test_the_cache_bounds_prompt_and_generation(run_engine: Callable[..., Any]) -> None:
    status, out, _ = run_engine("--dummy-weights", "--json", "--raw-prompt", "--max-seq-len", "8", **{"--prompt": "the cat"})
    record = json.loads(out)
    assert status == 0
    assert len(record["ids"]) == 8 - record["prompt_tokens"] + 1


def test_a_stop_token_ends_the_generation(run_engine: Callable[..., Any], model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [0]}))
    assert run_engine("--dummy-weights") == (0, "\n", "")


def test_a_sampled_generation_ends_when_the_cache_is_full(run_engine: Callable[..., Any]) -> None:
    options = ["--dummy-weights", "--json", "--raw-prompt", "--sample", "--max-seq-len", "8"]
    record = json.loads(run_engine(*options, **{"--prompt": "the cat"})[1])
    assert len(record["ids"]) == 8 - record["prompt_tokens"] + 1


def test_sampling_defaults_are_those_of_the_model(run_engine: Callable[..., Any], model: Path) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [290], "top_k": 1}))
    assert run_engine("--dummy-weights", "--sample", "--max-new-tokens", "4") == (0, "!!!!\n", "")


def test_a_prompt_on_stdin_must_be_text(run_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ok\xff")))
    assert run_engine("--dummy-weights", **{"--prompt": "-"}) == (
        2,
        "",
        "error: stdin is not UTF-8 at byte 2; give it as UTF-8\n",
    )


def test_stop_strings_and_tools(bundle: Bundle, model: Path) -> None:
    with api.Engine.from_pretrained(model, bundle=bundle.path, dummy=0, device=Device(FakeDriver())) as engine:
        assert "".join(engine.generate("hello", max_new_tokens=9)) == "!" * 9
        assert "".join(engine.generate("hello", max_new_tokens=9, stop=["!!!", "x"])) == ""
        assert "".join(engine.generate("hello", max_new_tokens=2, stop=["!!!"])) == "!!"
        chat = [{"role": "user", "content": "hello"}]
        plain = engine.tokens(chat)
        assert len(engine.tokens(chat, tools=[{"name": "clock"}])) > len(plain)
        with pytest.raises(UsageError, match="tools need a conversation"):
            engine.tokens("hello", tools=[{"name": "clock"}])


def test_garbage_collection_skips_objects_created_by_loading(bundle: Bundle, model: Path) -> None:
    gc.unfreeze()
    with api.Engine.from_pretrained(model, bundle=bundle.path, dummy=0, device=Device(FakeDriver())) as engine:
        assert gc.get_freeze_count() > 10_000
        assert all(item is not engine.backend for item in gc.get_objects())  # objects that garbage collection traverses
    gc.unfreeze()


def configure(model: Path, **changes: Any) -> None:
    """Writes a config with some keys changed, or removed if None."""
    keys = {name: value for name, value in (CONFIG | changes).items() if changes.get(name, 0) is not None}
    (model / "config.json").write_text(json.dumps(keys))


BAD: list[tuple[str, Callable[[Path], object], list[str], dict[str, Any], int, str]] = [
    ("no model folder", lambda m: None, [], {"--model": "/nowhere"}, 3, "there is no such file"),
    ("no config", lambda m: (m / "config.json").unlink(), [], {}, 3, "config.json: there is no such file"),
    ("config no JSON", lambda m: (m / "config.json").write_text("{"), [], {}, 3, "config.json"),
    ("config a list", lambda m: (m / "config.json").write_text("[]"), [], {}, 3, "config.json"),
    ("another model", lambda m: configure(m, model_type="mistral"), [], {}, 3, "mistral"),
    ("a size missing", lambda m: configure(m, head_dim=None), [], {}, 3, "head_dim"),
    ("a size no number", lambda m: configure(m, hidden_size="1024"), [], {}, 3, "hidden_size"),
    ("no tokenizer", lambda m: (m / "tokenizer.json").unlink(), [], {}, 3, "the tokenizer is missing"),
    ("damaged tokenizer", lambda m: (m / "tokenizer.json").write_text("{"), [], {}, 3, "is not a tokenizer"),
    ("damaged template", lambda m: (m / "chat_template.jinja").write_text("{% if %}"), [], {}, 3, "does not parse"),
    ("damaged defaults", lambda m: (m / "generation_config.json").write_text("{"), [], {}, 3, "generation_config.json"),
    ("no weights", lambda m: None, ["real"], {}, 3, "safetensors"),
    ("empty weights", lambda m: (m / "model.safetensors").write_bytes(b""), ["real"], {}, 3, "model.safetensors"),
    ("short weights", lambda m: (m / "model.safetensors").write_bytes(b"\xff" * 20), ["real"], {}, 3, "model.safetensors"),
    ("index names nothing", lambda m: (m / "model.safetensors.index.json").write_text("{}"), ["real"], {}, 3, "index.json"),
    ("no bundle", lambda m: None, [], {"--bundle": "/nowhere"}, 4, "cannot be read"),
    ("a bundle of text", lambda m: (m / "b").write_text("x" * 4096), [], {"--bundle": "b"}, 4, "is not a bundle"),
    ("an empty bundle", lambda m: (m / "b").write_text(""), [], {"--bundle": "b"}, 4, "is not a bundle"),
    ("a wider model", lambda m: configure(m, hidden_size=2048), [], {}, 4, "has no kernel for `embedding_scaled`"),
    ("an empty prompt", lambda m: None, ["--raw-prompt"], {"--prompt": ""}, 2, "the prompt is empty"),
    ("a long prompt", lambda m: None, ["--max-seq-len", "4"], {}, 2, "do not fit max-seq-len 4"),
    ("no template", lambda m: (m / "chat_template.jinja").unlink(), [], {}, 2, "no chat template"),
    ("no tokens asked for", lambda m: None, ["--max-new-tokens", "0"], {}, 2, "must be positive"),
    ("tokens no number", lambda m: None, ["--max-new-tokens", "many"], {}, 2, "not a valid integer"),
    ("a cache of nothing", lambda m: None, ["--max-seq-len", "0"], {}, 2, "max-seq-len 0 is not from 1"),
    ("a cache too long", lambda m: None, ["--max-seq-len", "50000"], {}, 2, "is not from 1 to 40960"),
    ("a negative seed", lambda m: None, ["--seed", "-1"], {}, 2, "the seed is -1"),
    ("temperature 0", lambda m: None, ["--sample", "--temperature", "0"], {}, 2, "temperature is 0.0"),
    ("temperature nan", lambda m: None, ["--sample", "--temperature", "nan"], {}, 2, "temperature is nan"),
    ("temperature hot", lambda m: None, ["--sample", "--temperature", "hot"], {}, 2, "not a valid float"),
    ("top-k 0", lambda m: None, ["--sample", "--top-k", "0"], {}, 2, "draws from 1 to 64 tokens"),
    ("top-k 65", lambda m: None, ["--sample", "--top-k", "65"], {}, 2, "draws from 1 to 64 tokens"),
    ("top-p 0", lambda m: None, ["--sample", "--top-p", "0"], {}, 2, "top-p is 0.0"),
    ("top-p 1.5", lambda m: None, ["--sample", "--top-p", "1.5"], {}, 2, "top-p is 1.5"),
    ("a seed too great", lambda m: None, ["--sample", "--seed", str(1 << 64)], {}, 2, "the seed is"),
    ("values without --sample", lambda m: None, ["--top-p", "0.5"], {}, 2, "--top-p has no effect without --sample"),
    ("sample and argmax", lambda m: None, ["--sample", "--device-argmax"], {}, 2, "give one of them"),
    ("bytes that are not text", lambda m: None, [], {"--prompt": "a\udcff"}, 2, "not valid Unicode at character"),
    ("an unknown option", lambda m: None, ["--sampel"], {}, 2, "--sampel"),
    ("no prompt", lambda m: None, [], {"--prompt": None}, 2, "--prompt"),
    ("no model", lambda m: None, [], {"--model": None}, 2, "--model"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "arguments", "options", "status", "message"), [case[1:] for case in BAD], ids=[c[0] for c in BAD]
)
def test_bad_input_is_one_line_and_a_status(
    run_engine: Callable[..., Any], model: Path, change: Callable[[Path], object], arguments: list[str],
    options: dict[str, Any], status: int, message: str,
) -> None:  # fmt: skip
    change(model)
    if options.get("--bundle") == "b":
        options = options | {"--bundle": str(model / "b")}
    real = arguments == ["real"]
    exit_status, out, err = run_engine(*([] if real else [*arguments, "--dummy-weights"]), **options)
    assert (exit_status, out) == (status, ""), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
