"""Converts text to token ids and back, with a model folder's tokenizer.json and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, cast

from tokenizers import Tokenizer

from engine.checkpoint.folder_file import DOWNLOAD_AGAIN, path_exists, read_bytes
from engine.checkpoint.json_file import read_object
from engine.errors import ModelError, UsageError
from engine.text.chat_template import ChatTemplate, Rendered
from engine.text.control_tokens import ControlTokens
from engine.text.messages import Message, check_size
from engine.text.policy import TOKENIZER_FILE, TokenizerPolicy
from engine.text.template_process import SHARED
from engine.text.tokenizer_file import ABSENT, library_errors, read_tokenizer

TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
TEMPLATE_BYTES: Final = 1 << 22
"""Maximum bytes of chat_template.jinja; `engine.text.chat_template` limits its characters."""
CONFIG_BYTES: Final = 1 << 23
"""Maximum bytes of tokenizer_config.json; Qwen3's has ten thousand."""


class Text:
    """The tokenizer of a model. `template` is None if the model has none.

    Control tokens (`<|im_end|>`, `<think>`; see `engine.text.control_tokens`) spelled in a prompt are plain text by default. If
    they are allowed, the ids equal those of transformers for any prompt, otherwise for every prompt that spells none.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, begin: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._begin = begin
        self._control = ControlTokens(tokenizer)
        self._special = frozenset(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)

    @classmethod
    def read(cls, folder: str | PathLike[str], policy: TokenizerPolicy) -> Text:
        """The tokenizer of a model folder, of a family that `policy` describes; ModelError if a file is absent or damaged."""
        path = Path(folder) / TOKENIZER_FILE
        if not path_exists(path):
            raise ModelError("the tokenizer is missing", where=path, fix=ABSENT)
        SHARED.start()  # starts in parallel to reading the tokenizer
        tokenizer = read_tokenizer(path, policy)
        number = tokenizer.token_to_id(policy.begin) if policy.begin else None
        if policy.begin and number is None:
            what = f"the tokenizer has no `{policy.begin}`, which every text of a {policy.family} model begins with"
            raise ModelError(what, where=path, fix=ABSENT)
        return cls(tokenizer, _read_template(Path(folder), policy.begin), () if number is None else (number,))

    @property
    def size(self) -> int:
        """Upper bound (exclusive) of token ids."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; spelled control tokens are recognized, none are added.

        UsageError for an unpaired surrogate, Python's representation of command-line bytes that are not UTF-8.
        """
        return self._control.encode(text)

    def raw(self, text: str, *, allow_control_tokens: bool = False) -> list[int]:
        """Token ids of a prompt without a chat template, after the token that texts of the family begin with; UsageError as in
        `encode`."""
        check_size(len(text))
        return [*self._begin, *(self._control.encode(text) if allow_control_tokens else self._control.encode_text(text))]

    def chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = True,
        allow_control_tokens: bool = False,
    ) -> list[int]:  # fmt: skip
        """Token ids of a conversation, ending where the assistant's turn begins.

        Control tokens are those that the template wrote; with `allow_control_tokens` also those spelled in messages and tools.
        UsageError without a template. UsageError also if the template's control tokens cannot be distinguished from those of
        the messages, unless the messages have no `<` or other first character of a control token.
        """
        if self.template is None:
            raise UsageError("the model has no chat template", fix="use --raw-prompt")
        plain, schemas = self.template.plain(messages, tools)
        tokens = () if allow_control_tokens else tuple(self._control.ids)
        rendered = self.template.rendered(plain, schemas, tokens, thinking=thinking)
        if allow_control_tokens:
            return self._control.encode(rendered.text)
        ids, exact = (
            (None, False) if rendered.written is None else self._control.encode_written(rendered.text, rendered.written)
        )
        if ids is None or (not exact and self._assembles(plain, schemas, thinking)):
            if self._spells_none([plain, schemas]) and self._same_control_tokens(rendered.text, plain, schemas, thinking):
                return self._control.encode(rendered.text)
            what = "the chat template splits control tokens, so they cannot be distinguished from those of the messages"
            raise UsageError(what, where=self.template.where, fix="allow those of the messages too: --allow-control-tokens")
        return ids

    def _assembles(self, messages: list[dict[str, Any]], tools: list[Any], thinking: bool) -> bool:
        """Whether the template assembles control tokens from several strings, such as `'<|' + role + '|>'`. Then they remain
        control tokens after every text of the messages is replaced."""
        try:
            rendered = self._placeholder_rendering(messages, tools, thinking)
        except UsageError:  # the template needs other messages; what it did not mark stays text
            return False
        return rendered.written is None or not self._control.encode_written(rendered.text, rendered.written)[1]

    def _same_control_tokens(self, text: str, messages: list[dict[str, Any]], tools: list[Any], thinking: bool) -> bool:
        """Whether a rendered text has the same control tokens as a rendering without the texts of the messages."""
        try:
            placeholder_text = self._placeholder_rendering(messages, tools, thinking).text
        except UsageError:
            return False
        return self._control.among(self._control.encode(text)) == self._control.among(self._control.encode(placeholder_text))

    def _placeholder_rendering(self, messages: list[dict[str, Any]], tools: list[Any], thinking: bool) -> Rendered:
        """The conversation with `x` in place of every text except the roles."""
        assert self.template is not None
        placeholders = [
            {key: value if key == "role" else _placeholder(value) for key, value in message.items()} for message in messages
        ]
        return self.template.rendered(placeholders, _placeholder(tools), tuple(self._control.ids), thinking=thinking)

    def _spells_none(self, value: Any) -> bool:
        """Whether no text in a value contains the first character of a control token."""
        if isinstance(value, str):
            return not any(token[0] in value for token in self._control.ids)
        if isinstance(value, dict):
            return all(self._spells_none(item) for pair in cast("dict[str, Any]", value).items() for item in pair)
        return all(map(self._spells_none, cast("list[Any]", value))) if isinstance(value, list) else True

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        with library_errors("the tokenizer cannot decode the generated tokens", UsageError):
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def is_silent(self, token: int) -> bool:
        """Whether a token never yields text: a special token, or one unknown to the tokenizer."""
        return token in self._special or self.tokenizer.id_to_token(token) is None


def _placeholder(value: Any) -> Any:
    """A copy of a value with every string replaced by `x`."""
    if isinstance(value, str):
        return "x"
    if isinstance(value, dict):
        return {key: _placeholder(item) for key, item in cast("dict[str, Any]", value).items()}
    return [_placeholder(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _read_template(folder: Path, begin: str) -> ChatTemplate | None:
    """The chat template of a model folder, None if there is none; it reads the family's first token as `bos_token`."""
    path = folder / TEMPLATE_FILE
    if path_exists(path):
        try:
            source = read_bytes(path, TEMPLATE_BYTES, "download it again").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"cannot be read: {error}", where=path, fix=DOWNLOAD_AGAIN) from None
    else:
        path = folder / TOKENIZER_CONFIG_FILE
        keys = read_object(path, CONFIG_BYTES, "download tokenizer_config.json of the model") if path_exists(path) else {}
        if keys.get("chat_template") is None:
            return None
        source = keys["chat_template"]
        if not isinstance(source, str):
            raise ModelError("`chat_template` is not a text", where=path, fix=DOWNLOAD_AGAIN)
    # A text of the template's own, so that it counts as a control token that the template wrote; on a line of its own, which
    # Jinja drops, so that it strips as much of the first line as without.
    return ChatTemplate(f"{{%- set bos_token = {begin!r} %}}\n{source}" if begin else source, str(path))
