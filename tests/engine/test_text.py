"""Tokenization of text and chat, and streaming detokenization, with a tokenizer made here. `ci/bench/judges.py chat_template`
compares the real one with transformers on 200 conversations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.errors import ModelError, UsageError
from engine.text.chat_template import ChatTemplate
from engine.text.detokenizer import Detokenizer, StopStrings
from engine.text.policy import QWEN3 as POLICY
from engine.text.tokenizer import Text

TEMPLATE = """{%- for message in messages %}
    {%- if message.role == "nobody" %}
        {{- raise_exception("nobody speaks") }}
    {%- endif %}
    {%- if loop.index > 9 %}{% break %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if tools %}
    {{- tools | tojson }}
{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE with two special tokens."""
    model_folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat", "héllo wörld"], trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(model_folder / "tokenizer.json"))
    (model_folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return model_folder


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40))
def test_text_streams_back_in_whole_characters(folder: Path, text: str) -> None:
    text_model = Text.read(folder, POLICY)
    stream = Detokenizer(text_model)
    pieces = [stream.push(token) for token in text_model.encode(text)]
    assert "\ufffd" in text or all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text


def test_a_character_of_several_tokens_is_one_piece(folder: Path) -> None:
    text_model = Text.read(folder, POLICY)
    stream = Detokenizer(text_model)
    pieces = [stream.push(token) for token in text_model.encode("a🦊b")]
    assert [piece for piece in pieces if piece] == ["a", "🦊", "b"]
    assert len(pieces) > 3


def test_an_incomplete_character_is_replaced_at_the_end(folder: Path) -> None:
    text_model = Text.read(folder, POLICY)
    stream = Detokenizer(text_model)
    ids = text_model.encode("🦊")
    assert [stream.push(token) for token in ids[:-1]] == [""] * (len(ids) - 1)
    assert set(stream.finish()) == {"\ufffd"}
    assert stream.finish() == ""


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_tokens_stream_as_they_decode(folder: Path, data: st.DataObject) -> None:
    """Parts of characters, whole ones, special and unknown tokens in any order; no streamed piece is revoked."""
    text_model = Text.read(folder, POLICY)
    parts = [*text_model.encode("🦊äé€"), *text_model.encode("ab the"), text_model.size - 1, text_model.size + 9]
    ids = data.draw(st.lists(st.sampled_from(parts) | st.integers(0, text_model.size + 1), max_size=80))
    stream = Detokenizer(text_model)
    assert "".join([*map(stream.push, ids), stream.finish()]) == text_model.decode(ids)


class CountingText(Text):
    """Counts the tokens that are decoded."""

    decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return super().decode(ids)


@pytest.mark.parametrize("kind", ["never a character", "special", "unknown", "text", "characters across tokens"])
def test_the_cost_of_a_token_does_not_grow_with_the_length(folder: Path, kind: str) -> None:
    text_model = CountingText(Text.read(folder, POLICY).tokenizer, None)
    first, *others = text_model.encode("🦊")
    last, across = others[-1], [*others, first]
    ids = {
        "never a character": [last], "special": [text_model.size - 1], "unknown": [text_model.size + 9],
        "text": text_model.encode("a"), "characters across tokens": across,
    }[kind]  # fmt: skip
    for count in (500, 2000):
        stream, text_model.decoded = Detokenizer(text_model), 0
        generated = (ids * count)[:count]
        pieces, cost = [stream.push(token) for token in generated], text_model.decoded
        assert "".join(pieces) + stream.finish() == Text.decode(text_model, generated)
        assert kind in ("special", "unknown") or any(pieces)
        assert cost <= 18 * count


def test_special_tokens_are_one_token_and_no_text(folder: Path) -> None:
    text_model = Text.read(folder, POLICY)
    (token,) = text_model.encode("<|im_end|>")
    assert token == text_model.size - 1
    assert text_model.decode([token]) == ""


@pytest.mark.parametrize(("thinking", "end"), [(True, ""), (False, "<think>\n\n</think>\n\n")])
def test_a_conversation(folder: Path, thinking: bool, end: str) -> None:
    text_model = Text.read(folder, POLICY)
    messages = [{"role": "user", "content": "<b>ü & 'x'</b>"}]
    expected = f"<|im_start|>user\n<b>ü & 'x'</b><|im_end|>\n<|im_start|>assistant\n{end}"
    assert text_model.chat(messages, thinking=thinking) == text_model.encode(expected)


def test_tools_are_plain_json(folder: Path) -> None:
    template = ChatTemplate(TEMPLATE, "here")
    rendered = template.render([], tools=[{"name": "ü<&>"}], add_generation_prompt=False)
    assert rendered == '[{"name": "ü<&>"}]'


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "nobody", "content": ""}], "nobody speaks"),
        ([{"role": "user", "content": None}], "cannot render"),
        ([{"role": "user"}], "cannot render"),
    ],
)
def test_messages_that_a_template_refuses(folder: Path, messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Text.read(folder, POLICY).chat(messages)
    assert "\n" not in str(caught.value)


def test_a_template_cannot_reach_the_interpreter() -> None:
    for source in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ self.__init__.__globals__ }}"):
        with pytest.raises(UsageError):
            ChatTemplate(source, "here").render([])


def test_files_that_are_absent_or_damaged(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the tokenizer is missing"):
        Text.read(tmp_path, POLICY)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is not a tokenizer"):
        Text.read(tmp_path, POLICY)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(UsageError, match="no chat template"):
        Text.read(tmp_path, POLICY).chat([])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% if %}"}))
    with pytest.raises(ModelError, match="does not parse"):
        Text.read(tmp_path, POLICY)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [1]}))
    with pytest.raises(ModelError, match="is not a text"):
        Text.read(tmp_path, POLICY)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages | length }}"}))
    assert Text.read(tmp_path, POLICY).chat([]) == Text.read(tmp_path, POLICY).encode("0")


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.data())
def test_stop_strings_end_a_text_however_it_is_split(text: str, strings: list[str], data: st.DataObject) -> None:
    complete = [end for end in range(len(text) + 1) if text[:end].endswith(tuple(strings))]
    ends = [complete[0] - len(string) for string in strings if complete and text[: complete[0]].endswith(string)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    stops, out = StopStrings(strings), ""
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        out += stops.push(text[begin:end])
        assert (text[: min(ends)] if ends else text).startswith(out)
    assert out + stops.finish() == (text[: min(ends)] if ends else text)
    assert stops.found == bool(ends)


def test_a_single_stop_string() -> None:
    stops = StopStrings("END")
    assert stops.push("the ENDing") == "the " and stops.found


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="a stop string is empty"):
        StopStrings(["a", ""])
