"""The tokenizer in another process: the results and the errors of the one in this process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import DeviceError, ModelError, UsageError
from engine.models.families import FAMILIES
from engine.text.detokenizer import Detokenizer
from engine.text.policy import POLICIES, QWEN3
from engine.text.text_process import TextProcess
from engine.text.tokenizer import Text
from engine.tools.tiny import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    template = folder / "chat_template.jinja"
    template.write_text("{%- if tools %}{{- tools | tojson }}{%- endif %}\n" + template.read_text())
    return folder


@pytest.fixture(scope="module")
def other(folder: Path) -> Iterator[TextProcess]:
    text = TextProcess(folder)
    yield text
    text.close()


def test_it_replies_as_the_tokenizer_does(folder: Path, other: TextProcess) -> None:
    own = Text.read(folder, QWEN3)
    for prompt in ("the sky", "", 'é\N{SNOWMAN}\n\x00\u2028{"', "<|im_end|> x"):
        for allowed in (False, True):
            ids = other.raw(prompt, allow_control_tokens=allowed)
            assert ids == own.raw(prompt, allow_control_tokens=allowed)
        assert other.decode(ids) == own.decode(ids)
        assert [other.is_silent(token) for token in ids] == [own.is_silent(token) for token in ids]
        pieces, expected = Detokenizer(other), Detokenizer(own)
        assert [pieces.push(token) for token in ids] == [expected.push(token) for token in ids]
    chat = [{"role": "user", "content": "hi <|im_end|>"}]
    for thinking in (False, True):
        assert other.chat(chat, thinking=thinking) == own.chat(chat, thinking=thinking)
    tools = [{"type": "function", "function": {"name": "clock"}}]
    assert other.chat(chat, tools=tools) == own.chat(chat, tools=tools) != own.chat(chat)


def test_its_errors_are_those_of_the_tokenizer(folder: Path, other: TextProcess) -> None:
    own = Text.read(folder, QWEN3)
    with pytest.raises(UsageError) as expected:
        own.raw("\udcff")
    with pytest.raises(UsageError) as found:
        other.raw("\udcff")
    assert str(found.value) == str(expected.value) and type(found.value) is UsageError
    assert other.raw("the") == own.raw("the")  # and it goes on


@pytest.mark.parametrize("damage", ["absent", "no tokenizer", "no JSON", "another family"])
def test_a_bad_folder_is_refused_when_it_is_asked(tmp_path: Path, damage: str) -> None:
    write_tiny_model(tmp_path)
    if damage == "absent":
        (tmp_path / "tokenizer.json").unlink()
    elif damage == "no tokenizer":
        file = json.loads((tmp_path / "tokenizer.json").read_text())
        (tmp_path / "tokenizer.json").write_text(json.dumps(file | {"normalizer": {"type": "Lowercase"}}))
    elif damage == "no JSON":
        (tmp_path / "config.json").write_text("{")
    else:
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    text = TextProcess(tmp_path)
    try:
        with pytest.raises(ModelError) as found:
            text.ready()
        with pytest.raises(DeviceError, match="ended on its own"):  # and who asks again does not wait
            text.raw("the")
        assert found.value.where == str(
            tmp_path / ("config.json" if "JSON" in damage or "family" in damage else "tokenizer.json")
        )
        if damage in ("absent", "no tokenizer"):
            with pytest.raises(ModelError) as expected:
                Text.read(tmp_path, QWEN3)
            assert str(found.value) == str(expected.value)
    finally:
        text.close()


def test_a_process_that_ends_is_an_error_and_not_a_wait(folder: Path) -> None:
    text = TextProcess(folder)
    text.ready()
    os.kill(text._process.pid, signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(DeviceError, match="ended on its own"):
        text.raw("the")
    text.close()
    text.close()


def test_it_ends_with_what_asked_it(folder: Path) -> None:
    """However that ended: its end of the socket closes then. A template's process, which it began, ends with it."""
    text = TextProcess(folder)
    text.ready()
    text._stream.close()  # pyright: ignore[reportPrivateUsage]
    text._connection.close()  # pyright: ignore[reportPrivateUsage]
    assert text._process.wait(60) == 0  # pyright: ignore[reportPrivateUsage]
    text.close()


def test_every_family_has_its_policy() -> None:
    assert POLICIES.keys() == FAMILIES.keys()
    assert all(family.tokenizer is POLICIES[name] for name, family in FAMILIES.items())
