"""Dense Qwen3 models: config, step and positions."""

from __future__ import annotations

from typing import Final

from engine.models.config import SIZES
from engine.models.dense import NUMBERS, UNMEASURED
from engine.models.family import Family
from engine.models.qwen3.config import DENSE, Qwen3Config
from engine.models.qwen3.rope import frequencies
from engine.text.policy import POLICIES

FAMILY: Final = Family(
    package=__name__, model_type=Qwen3Config.model_type, models=DENSE, config=Qwen3Config.read, frequencies=frequencies,
    tokenizer=POLICIES[Qwen3Config.model_type], sizes=SIZES, numbers=NUMBERS, unmeasured=UNMEASURED, refused={},
)  # fmt: skip
