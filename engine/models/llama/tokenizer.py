"""What `tokenizer.json` of a Llama 3 model may be."""

from __future__ import annotations

from typing import Final

from engine.text.tokenizer_file import TokenizerPolicy

POLICY: Final = TokenizerPolicy(
    family="Llama 3",
    split=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    begin="<|begin_of_text|>",
    ignore_merges=True,
)
