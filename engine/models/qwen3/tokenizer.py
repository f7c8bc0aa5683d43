"""What `tokenizer.json` of a Qwen3 model may be."""

from __future__ import annotations

from typing import Final

from engine.text.tokenizer_file import TokenizerPolicy

POLICY: Final = TokenizerPolicy(
    family="Qwen3",
    split=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    published="aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
)
