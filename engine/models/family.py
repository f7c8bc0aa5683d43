"""What a family of models is: a folder here whose `FAMILY` says how to read a model and what its step is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig
from engine.models.keys import Keys
from engine.models.rope import rope_table
from engine.text.policy import TokenizerPolicy
from tilec.step.reader import Declaration, decode_declaration, read_declaration


@dataclass(frozen=True, slots=True)
class Family:
    """`package`: the folder, with the step `MODEL_TYPE.step`. `model_type`: as in config.json, and as `family` in build.toml.
    `models`: the models in words. `config` reads the keys of config.json, or raises ModelError. `frequencies`: those of
    rotary position embeddings, (head_dim / 2,). `sizes`: attributes of the config that decide which kernels, and so which
    bundle, a model needs; `numbers`: those that the step reads; `kinds`: both, of a model that has the first of them,
    which lists layers of another kind; `unmeasured`: values for the measured numbers that it reads, if no bundle has them.
    `refused`: related model types, and why they are not supported."""

    package: str
    model_type: str
    models: str
    config: Callable[[Keys], ModelConfig]
    frequencies: Callable[[ModelConfig], NDArray[np.float32]]
    tokenizer: TokenizerPolicy
    sizes: tuple[str, ...]
    numbers: tuple[str, ...]
    unmeasured: Mapping[str, int]
    refused: Mapping[str, str]
    kinds: tuple[str, ...] = ()

    def deciding(self, config: object) -> tuple[str, ...]:
        """The attributes of a config that decide which bundle it needs, and that this states."""
        return (*self.sizes, *self._kinds(config))

    def numbers_of(self, config: object) -> dict[str, Any]:
        """The attributes of a config that the step reads."""
        return {name: getattr(config, name) for name in (*self.numbers, *self._kinds(config))}

    def _kinds(self, config: object) -> tuple[str, ...]:
        return self.kinds if self.kinds and getattr(config, self.kinds[0], "") else ()

    def declaration(self) -> Declaration:
        """The step that is part of the engine; the build reads it too."""
        return _declaration(self.package, f"{self.model_type}.step")

    def decode(self, syntax: Any) -> Declaration:
        """The declaration with this syntax, as of a bundle; StepError if it is invalid. The engine's own, if it has the same
        text: to read it again takes as long as all else of opening a bundle."""
        own = self.declaration()
        # As texts, because 1 and True are equal.
        return own if json.dumps(syntax) == json.dumps(own.syntax) else decode_declaration(syntax)

    def rope_table(self, config: ModelConfig, positions: int) -> NDArray[np.float32]:
        """The table of rotary position embeddings, (positions, head_dim)."""
        return rope_table(positions, self.frequencies(config))


@cache
def _declaration(package: str, file: str) -> Declaration:
    folder = Path(str(sys.modules[package].__file__)).parent  # `importlib.resources` takes a dozen modules for as much
    return read_declaration((folder / file).read_text(encoding="utf-8"))
