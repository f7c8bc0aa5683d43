"""Text to token ids and back: a model folder's tokenizer.json and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from engine.chat_template import ChatTemplate, Message
from engine.errors import ModelError, UsageError
from engine.json_file import read_object

TOKENIZER_FILE: Final = "tokenizer.json"
TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
LIMIT_BYTES: Final = 1 << 24
"""Bytes of tokenizer_config.json or the template at most."""

REPLACEMENT: Final = "\ufffd"


class Text:
    """The tokenizer of a model. `template` is None where the model has none."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.template = template

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Text:
        """The tokenizer of a model folder; ModelError where a file is absent or damaged."""
        path = Path(folder) / TOKENIZER_FILE
        if not path.is_file():
            raise ModelError("the tokenizer is missing", where=path, fix="download tokenizer.json of the model")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise ModelError(f"is no tokenizer: {error}", where=path, fix="download the file again") from None
        return cls(tokenizer, _read_template(Path(folder)))

    @property
    def size(self) -> int:
        """Token ids are below this."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens that it spells are recognised, none are added.

        UsageError for half of a surrogate pair, which is how Python spells bytes of a command line that are not UTF-8.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}", fix="give it as UTF-8") from None
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = True
    ) -> list[int]:
        """Token ids of a conversation, ending where the assistant's answer begins; UsageError without a template."""
        if self.template is None:
            raise UsageError("the model has no chat template", fix="use --raw-prompt")
        return self.encode(self.template.render(messages, tools=tools, thinking=thinking))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


class Detokenizer:
    """Text from token ids as they come, in pieces that end between characters.

    A byte-level token may hold part of a character, and what a token adds may depend on the one before it. So text is taken as
    the difference between two decodings that begin at the same recent token, and held back while it ends inside a character.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._ids: list[int] = []
        self._given = 0  # tokens whose text was given
        self._start = 0  # token where both decodings begin

    def push(self, token: int) -> str:
        """The text that has become certain with this token; often empty, never half a character."""
        self._ids.append(token)
        before = self._text.decode(self._ids[self._start : self._given])
        now = self._text.decode(self._ids[self._start :])
        if len(now) <= len(before) or now.endswith(REPLACEMENT):
            return ""
        self._start, self._given = self._given, len(self._ids)
        return now[len(before) :]

    def finish(self) -> str:
        """What was held back; bytes that never became a character come as the replacement character."""
        before = self._text.decode(self._ids[self._start : self._given])
        now = self._text.decode(self._ids[self._start :])
        self._start = self._given = len(self._ids)
        return now[len(before) :]


class StopStrings:
    """Ends a text before the one of some strings that is complete first (the longest of several), however the text comes in
    pieces. UsageError for an empty string."""

    def __init__(self, strings: str | Sequence[str]) -> None:
        strings = (strings,) if isinstance(strings, str) else strings
        if "" in strings:
            raise UsageError("a stop string is empty", fix="leave it out")
        self._strings = tuple(strings)
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The text that no stop string can begin in any more; nothing once one was found."""
        if self.found:
            return ""
        text = self._held + piece
        ends = [(text.find(string) + len(string), text.find(string)) for string in self._strings if string in text]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        keep = max((self._overlap(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back at the end of the text."""
        rest, self._held = self._held, ""
        return rest

    @staticmethod
    def _overlap(text: str, string: str) -> int:
        """Length of the longest end of a text that is a beginning of a string."""
        return next((size for size in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:size])), 0)


def _read_template(folder: Path) -> ChatTemplate | None:
    path = folder / TEMPLATE_FILE
    if path.is_file():
        try:
            return ChatTemplate(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"cannot be read: {error}", where=path, fix="download the file again") from None
    path = folder / TOKENIZER_CONFIG_FILE
    if not path.is_file():
        return None
    source = read_object(path, LIMIT_BYTES, "download tokenizer_config.json of the model").get("chat_template")
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelError("`chat_template` is not a text", where=path, fix="take the file of a Qwen3 model")
    return ChatTemplate(source, str(path))
