"""Hostile tokenizer files: refused before the library parses them, or one error if it panics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_text import folder
from tokenizers import Tokenizer

from engine.errors import ModelError, UsageError
from engine.text import tokenizer_file
from engine.text.policy import QWEN3 as POLICY
from engine.text.tokenizer import Text
from engine.text.tokenizer_file import ADDED_LIMIT, LIMIT_BYTES, library_errors, read_tokenizer

__all__ = ["folder"]  # a fixture of another module

Change = Callable[[dict[str, Any]], object]


def edit(*path: str, value: Any) -> Change:
    """Sets one value of the file."""

    def change(file: dict[str, Any]) -> None:
        for key in path[:-1]:
            file = file[key]
        file[path[-1]] = value

    return change


def added(**fields: Any) -> Change:
    token = {"id": 299, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return lambda file: file["added_tokens"].append(token | {"special": True} | fields)


def sequence(*parts: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts), "pretokenizers": list(parts), "decoders": list(parts)}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPLIT = {"type": "Split", "pattern": {"Regex": POLICY.split}, "behavior": "Isolated", "invert": False}

BAD: dict[str, tuple[Change, str]] = {
    "doubles a text": (
        edit("normalizer", value=sequence(*[{"type": "Replace", "pattern": {"String": "l"}, "content": "ll"}] * 40)),
        "normalizer",
    ),
    "ends the process": (edit("normalizer", value={"type": "Precompiled", "precompiled_charsmap": "/////wAA"}), "normalizer"),
    "panics": (edit("normalizer", value={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "normalizer"),
    "backtracks": (
        edit("pre_tokenizer", value=sequence(SPLIT | {"pattern": {"Regex": "(x+x+)+y"}}, BYTE_LEVEL)), "pre_tokenizer",
    ),
    "drops text": (edit("pre_tokenizer", value=sequence(SPLIT | {"behavior": "Removed"}, BYTE_LEVEL)), "pre_tokenizer"),
    "prefix": (edit("pre_tokenizer", "add_prefix_space", value=True), "pre_tokenizer"),
    "no bytes": (edit("pre_tokenizer", value=None), "pre_tokenizer"),
    "whitespace": (edit("pre_tokenizer", value={"type": "Whitespace"}), "pre_tokenizer"),
    "deep": (edit("pre_tokenizer", value=sequence(sequence(BYTE_LEVEL))), "pre_tokenizer"),
    "decoder": (edit("decoder", value={"type": "Replace", "pattern": {"String": ""}, "content": "x" * 99}), "decoder"),
    "processor": (edit("post_processor", value={"type": "BertProcessing", "sep": ["x", 1], "cls": ["x", 1]}), "post_processor"),
    "chance": (edit("model", "dropout", value=0.5), "dropout"),
    "unknown": (edit("model", "unk_token", value="x"), "unk_token"),
    "prefix of pieces": (edit("model", "continuing_subword_prefix", value="##"), "continuing_subword_prefix"),
    "merges passed over": (edit("model", "ignore_merges", value=True), "ignore_merges"),
    "unigram": (edit("model", value={"type": "Unigram", "vocab": [], "unk_id": 5}), "model"),
    "no model": (edit("model", value=None), "model"),
    "no vocabulary": (edit("model", "vocab", value=[]), "vocabulary"),
    "a great id": (edit("model", "vocab", "zz", value=1 << 32), "vocabulary"),
    "a negative id": (edit("model", "vocab", "zz", value=-1), "vocabulary"),
    "an id of half": (edit("model", "vocab", "zz", value=0.5), "vocabulary"),
    "lost bytes": (lambda file: file["model"]["vocab"].pop("!"), "vocabulary"),
    "many added": (lambda file: file.update(added_tokens=[file["added_tokens"][0]] * (ADDED_LIMIT + 1)), "added tokens"),
    "no added": (edit("added_tokens", value=3), "added tokens"),
    "an empty token": (added(content=""), "added token"),
    "a long token": (added(content="x" * 300), "added token"),
    "a token of no id": (added(id=None), "id of"),
    "swallows spaces": (added(lstrip=True), "lstrip"),
    "whole words": (added(single_word=True), "single_word"),
    "padding": (edit("padding", value=3), "padding"),
    "merges of nothing": (edit("model", "merges", value=[["qq", "zz"]]), "is not a tokenizer"),
    "merges of text": (edit("model", "merges", value="x"), "is not a tokenizer"),
}  # fmt: skip


def write(folder: Path, target: Path, change: Change) -> Path:
    file = json.loads((folder / "tokenizer.json").read_text())
    change(file)
    (target / "tokenizer.json").write_text(json.dumps(file))
    return target / "tokenizer.json"


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_a_tokenizer_that_is_refused(folder: Path, tmp_path: Path, change: Change, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_tokenizer(write(folder, tmp_path, change), POLICY)
    assert message in str(caught.value)
    assert "is not a tokenizer" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_components_of_qwens_tokenizer_are_accepted(folder: Path, tmp_path: Path) -> None:
    def change(file: dict[str, Any]) -> None:
        file["normalizer"] = {"type": "NFC"}
        file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL | {"use_regex": False}]}
        file["post_processor"] = BYTE_LEVEL

    tokenizer = read_tokenizer(write(folder, tmp_path, change), POLICY)
    assert tokenizer.encode("don't", add_special_tokens=False).tokens[-1] in ("t", "'t")


def test_padding_and_truncation_are_disabled(folder: Path, tmp_path: Path) -> None:
    def change(file: dict[str, Any]) -> None:
        file["padding"] = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": "x"}  # fmt: skip
        file["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 7, "direction": "Right"}

    text = "the cat sat on the mat " * 9
    ids = read_tokenizer(write(folder, tmp_path, change), POLICY).encode(text, add_special_tokens=False).ids
    assert ids == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids


def test_a_long_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(LIMIT_BYTES + 1)
    with pytest.raises(ModelError, match="is over 33554432 bytes"):
        read_tokenizer(tmp_path / "tokenizer.json", POLICY)


def test_a_panic_is_one_error() -> None:
    class PanicException(BaseException):
        """As the library's: not an `Exception`."""

    for kind in (ModelError, UsageError):
        with pytest.raises(kind, match="here: index out of range"), library_errors("here", kind):
            raise PanicException("index out of range\nand more")
    with pytest.raises(KeyboardInterrupt), library_errors("here", ModelError):
        raise KeyboardInterrupt


def test_a_panic_of_the_library(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """A real one, after the check of the file."""
    monkeypatch.setattr(tokenizer_file, "_check_components", lambda *_: None)
    path = write(folder, tmp_path, BAD["panics"][0])
    with pytest.raises(ModelError, match=r"is not a tokenizer: .*Precompiled"):
        read_tokenizer(path, POLICY)
    path = write(folder, tmp_path, BAD["backtracks"][0])
    with pytest.raises(UsageError, match=r"the tokenizer cannot encode the text: .*retry-limit"):
        Text(read_tokenizer(path, POLICY), None).encode("x" * 40)
