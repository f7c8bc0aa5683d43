"""Shared by the tests of the verifier: a small model and the supported ones, their steps, and the contracts of kernels."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from engine.backends.interpreter import kernel_contract
from engine.graph.contract import Contract
from engine.graph.plan import MemoryPlan, plan_memory
from engine.models.steps import Shape, step
from tests import shipped
from tilec.artifact.records import LaunchCheck
from tilec.step.graph import Op, StepGraph

TINY: Any = SimpleNamespace(
    hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8, head_dim=128, num_hidden_layers=2,
    vocab_size=2048, rms_norm_eps=1e-6, tie_word_embeddings=True, model_type="qwen3",
)  # fmt: skip
TABLES = tomllib.loads((shipped.ROOT / "build.toml").read_text())["model"]
MODELS = {model["name"]: model["config"] for model in TABLES}
FAMILIES = {model["name"]: model["family"] for model in TABLES}
DENSE = [name for name in MODELS if FAMILIES[name] != "qwen3_moe"]
TIED = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")

_CONTRACTS: dict[object, Contract] = {}


def shape_of(name: str) -> Any:
    """A model of build.toml."""
    return SimpleNamespace(
        **MODELS[name], rms_norm_eps=1e-6, tie_word_embeddings=name in TIED, model_type=FAMILIES[name]
    )  # fmt: skip


def contract(op: Op) -> Contract:
    """The contract of an operation's kernel at its constants."""
    key = (op.kernel, *sorted(op.constants.items()))
    if key not in _CONTRACTS:
        function = shipped.load(op.kernel, op.constants)
        checks = tuple(LaunchCheck(needed.condition, str(needed.condition)) for needed in function.requires)
        _CONTRACTS[key] = replace(kernel_contract(function), launch_checks=checks)
    return _CONTRACTS[key]


def planned_step(
    shape: Shape, tokens: int, output_mode: Any, decode: bool, past: int, max_seq_len: int = 2048
) -> tuple[StepGraph, MemoryPlan]:
    graph = step(shape, tokens, max_seq_len, past=past, output_mode=output_mode, decode=decode)
    return graph, plan_memory(graph)
