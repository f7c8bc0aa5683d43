"""What the tokenizer of each family may be.

Neither the tokenizer library nor the families are imported here: a process that computes needs no tokenizer, and one that only
reads a tokenizer needs no more of a family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TOKENIZER_FILE: Final = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class TokenizerPolicy:
    """What the tokenizer of a family may be. `family`: its name in messages. `split`: the pattern at which it splits a text,
    and the only one accepted: others may backtrack forever. `published`: SHA-256 of the tokenizer.json that all of its models
    are published with, which need not be parsed twice; empty if there are several. `begin`: the control token that every text
    begins with; empty if there is none. `ignore_merges`: whether a word that is a token is never composed of others."""

    family: str
    split: str
    published: str = ""
    begin: str = ""
    ignore_merges: bool = False


QWEN3: Final = TokenizerPolicy(
    family="Qwen3",
    split=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    published="aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
)

LLAMA3: Final = TokenizerPolicy(
    family="Llama 3",
    split=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    begin="<|begin_of_text|>",
    ignore_merges=True,
)

POLICIES: Final[Mapping[str, TokenizerPolicy]] = {"qwen3": QWEN3, "qwen3_moe": QWEN3, "llama": LLAMA3}
"""By the `model_type` of config.json: one of each family (`engine.models.families`)."""
