"""Text to token ids and back: a model folder's tokenizer.json and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, cast

from tokenizers import Tokenizer

from engine.checkpoint.folder_file import DOWNLOAD_AGAIN, is_there, read_bytes
from engine.checkpoint.json_file import read_object
from engine.errors import ModelError, UsageError
from engine.text.chat_template import ChatTemplate, Rendered
from engine.text.control_tokens import ControlTokens
from engine.text.messages import Message, check_size
from engine.text.template_process import SHARED
from engine.text.tokenizer_file import ABSENT, library_errors, read_tokenizer

TOKENIZER_FILE: Final = "tokenizer.json"
TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
TEMPLATE_BYTES: Final = 1 << 22
"""Bytes of chat_template.jinja at most; `engine.text.chat_template` counts its characters."""
CONFIG_BYTES: Final = 1 << 23
"""Bytes of tokenizer_config.json at most; Qwen3's has ten thousand."""

REPLACEMENT: Final = "\ufffd"
OPEN: Final = 3
"""Replacement characters at the end of a text that bytes to come may still make one character: all but the last of its at most
four bytes."""
WINDOW: Final = 16
KEPT: Final = 8
"""Tokens that are decoded together at most, and those that are kept of them: the last three may be part of a character, and the
first three what is left of another. Each has a byte at least."""


class Text:
    """The tokenizer of a model. `template` is None where the model has none.

    Control tokens (`<|im_end|>`, `<think>`; see `engine.text.control_tokens`) that a prompt spells are text, unless they are
    allowed: then the ids are those of transformers for any prompt, and else for every prompt that spells none.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._control = ControlTokens(tokenizer)
        self._special = frozenset(one for one, token in tokenizer.get_added_tokens_decoder().items() if token.special)

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Text:
        """The tokenizer of a model folder; ModelError where a file is absent or damaged."""
        path = Path(folder) / TOKENIZER_FILE
        if not is_there(path):
            raise ModelError("the tokenizer is missing", where=path, fix=ABSENT)
        SHARED.start()  # while the tokenizer is read
        return cls(read_tokenizer(path), _read_template(Path(folder)))

    @property
    def size(self) -> int:
        """Token ids are below this."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; control tokens that it spells are recognised, none are added.

        UsageError for half of a surrogate pair, which is how Python spells bytes of a command line that are not UTF-8.
        """
        return self._control.encode(text)

    def raw(self, text: str, *, allow_control_tokens: bool = False) -> list[int]:
        """Token ids of a prompt that no template is put around; UsageError as in `encode`."""
        check_size(len(text))
        return self._control.encode(text) if allow_control_tokens else self._control.encode_text(text)

    def chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = True,
        allow_control_tokens: bool = False,
    ) -> list[int]:  # fmt: skip
        """Token ids of a conversation, ending where the assistant's answer begins.

        Control tokens are those that the template wrote; with `allow_control_tokens` those of the messages and tools too.
        UsageError without a template, and for one whose control tokens cannot be told from those of the messages, unless these
        hold no `<` or whatever else a control token begins with.
        """
        if self.template is None:
            raise UsageError("the model has no chat template", fix="use --raw-prompt")
        given, schemas = self.template.plain(messages, tools)
        tokens = () if allow_control_tokens else tuple(self._control.ids)
        rendered = self.template.rendered(given, schemas, tokens, thinking=thinking)
        if allow_control_tokens:
            return self._control.encode(rendered.text)
        ids, alone = (
            (None, False) if rendered.written is None else self._control.encode_written(rendered.text, rendered.written)
        )
        if ids is None or (not alone and self._assembles(given, schemas, thinking)):
            if self._spells_none([given, schemas]) and self._same_control_tokens(rendered.text, given, schemas, thinking):
                return self._control.encode(rendered.text)
            what = "the chat template writes control tokens in pieces, and they cannot be told from those of the messages"
            raise UsageError(what, where=self.template.where, fix="allow those of the messages too: --allow-control-tokens")
        return ids

    def _assembles(self, messages: list[dict[str, Any]], tools: list[Any], thinking: bool) -> bool:
        """Whether the template writes control tokens that are in none of its strings whole, such as `'<|' + role + '|>'`: these
        words alone, with every text of the messages replaced, are then control tokens still."""
        try:
            rendered = self._hollow_rendering(messages, tools, thinking)
        except UsageError:  # it asks for more of the messages; what it did not mark stays text
            return False
        return rendered.written is None or not self._control.encode_written(rendered.text, rendered.written)[1]

    def _same_control_tokens(self, text: str, messages: list[dict[str, Any]], tools: list[Any], thinking: bool) -> bool:
        """Whether a rendered text has the control tokens that it has without the texts of the messages."""
        try:
            hollow = self._hollow_rendering(messages, tools, thinking).text
        except UsageError:
            return False
        return self._control.among(self._control.encode(text)) == self._control.among(self._control.encode(hollow))

    def _hollow_rendering(self, messages: list[dict[str, Any]], tools: list[Any], thinking: bool) -> Rendered:
        """The conversation with `x` for every text but the roles."""
        assert self.template is not None
        hollow = [{key: value if key == "role" else _hollow(value) for key, value in message.items()} for message in messages]
        return self.template.rendered(hollow, _hollow(tools), tuple(self._control.ids), thinking=thinking)

    def _spells_none(self, value: Any) -> bool:
        """Whether no text in a value has a character that a control token begins with."""
        if isinstance(value, str):
            return not any(token[0] in value for token in self._control.ids)
        if isinstance(value, dict):
            return all(self._spells_none(item) for pair in cast("dict[str, Any]", value).items() for item in pair)
        return all(map(self._spells_none, cast("list[Any]", value))) if isinstance(value, list) else True

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        with library_errors("the tokenizer cannot decode the answer", UsageError):
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def is_silent(self, token: int) -> bool:
        """Whether a token is never text, wherever it stands: a special one, or one that the tokenizer does not know."""
        return token in self._special or self.tokenizer.id_to_token(token) is None


class Detokenizer:
    """Text from token ids as they come, in pieces that end between characters; what each takes does not grow with the answer.

    A byte-level token may hold part of a character, and what a token adds may depend on the one before it. So the last tokens
    are decoded together, and what of that was not given yet is given, but for replacement characters at its end: the bytes that
    are missing may make them a character. Tokens far enough back decide nothing any more, whether or not they were whole.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._ids: list[int] = []
        self._given = 0  # characters of what these decode to

    def push(self, token: int) -> str:
        """The text that has become certain with this token; often empty, never half a character."""
        if self._text.is_silent(token):
            return ""
        self._ids.append(token)
        now = self._text.decode(self._ids)
        end = now[-OPEN:]
        certain = len(now) - len(end) + len(end.rstrip(REPLACEMENT))
        piece = now[self._given : certain]
        self._given = max(self._given, certain)
        if len(self._ids) > WINDOW:
            self._shorten(now)
        return piece

    def _shorten(self, now: str) -> None:
        """Forget all but the last tokens. What was not given is at the end, and so at the end of what these decode to; where a
        decoder has it otherwise, it is given up rather than kept for ever."""
        self._ids = self._ids[-KEPT:]
        rest, held = self._text.decode(self._ids), now[self._given :]
        self._given = len(rest) - (len(held) if rest.endswith(held) else 0)

    def finish(self) -> str:
        """What was held back; bytes that never became a character come as the replacement character."""
        now = self._text.decode(self._ids)
        piece, self._given = now[self._given :], len(now)
        return piece


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


def _hollow(value: Any) -> Any:
    """The same lists and objects with `x` for every text."""
    if isinstance(value, str):
        return "x"
    if isinstance(value, dict):
        return {key: _hollow(item) for key, item in cast("dict[str, Any]", value).items()}
    return [_hollow(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _read_template(folder: Path) -> ChatTemplate | None:
    path = folder / TEMPLATE_FILE
    if is_there(path):
        try:
            return ChatTemplate(read_bytes(path, TEMPLATE_BYTES, "download it again").decode("utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise ModelError(f"cannot be read: {error}", where=path, fix=DOWNLOAD_AGAIN) from None
    path = folder / TOKENIZER_CONFIG_FILE
    if not is_there(path):
        return None
    source = read_object(path, CONFIG_BYTES, "download tokenizer_config.json of the model").get("chat_template")
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelError("`chat_template` is not a text", where=path, fix="take the file of a Qwen3 model")
    return ChatTemplate(source, str(path))
