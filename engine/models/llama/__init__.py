"""Dense Llama 3 models: config, step and positions."""

from __future__ import annotations

from typing import Final

from engine.models.config import SIZES
from engine.models.dense import NUMBERS, UNMEASURED
from engine.models.family import Family
from engine.models.llama.config import DENSE, LlamaConfig
from engine.models.llama.rope import frequencies
from engine.text.policy import POLICIES

FAMILY: Final = Family(
    package=__name__, model_type=LlamaConfig.model_type, models=DENSE, config=LlamaConfig.read, frequencies=frequencies,
    tokenizer=POLICIES[LlamaConfig.model_type], sizes=SIZES, numbers=NUMBERS, unmeasured=UNMEASURED,
    refused={"llama4": "Llama 4 is not supported"},
)  # fmt: skip
