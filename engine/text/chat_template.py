"""Chat templates, rendered exactly as in Hugging Face transformers, by a separate process with resource limits.

Returns the text of a conversation, and the positions of the control tokens that the template itself wrote. Messages and tools
are checked first (`messages`). A template is a program that came with a model: `template_worker` describes its sandbox, and
`template_marks` how its control tokens are distinguished from those spelled in messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from engine.errors import ModelError, UsageError
from engine.text.messages import Message, plain_messages, plain_tools
from engine.text.template_process import SHARED, TemplateEnded
from engine.text.template_worker import MEMORY_BYTES, OUTPUT_LIMIT

SOURCE_LIMIT: Final = 1 << 20
"""Maximum characters of a template; Qwen3's has four thousand."""

MARK_CHARACTERS: Final = 10
"""Length of a mark: some 125 bits."""

PRIVATE_USE: Final = range(0xE000, 0xF900)
"""Characters without an assigned meaning in Unicode, so that no filter of a template changes them."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of a conversation. `written`: the character positions of the control tokens that the template wrote, or None if
    they cannot be determined for this template."""

    text: str
    written: tuple[int, ...] | None


class ChatTemplate:
    """A template; `where` names its file in errors. ModelError if it does not parse within the limits."""

    def __init__(self, source: str, where: str) -> None:
        self.where = where
        self._source = source
        if len(source) > SOURCE_LIMIT:
            what = f"the chat template has {len(source)} characters, over {SOURCE_LIMIT}"
            raise ModelError(what, where=where, fix="download the file again")
        reply = self._request({"source": source})
        if "error" in reply:
            self._refuse(reply, ModelError, "does not parse", "download the file again")
        self._roles = frozenset(str(word) for word in reply["words"])
        self._mark = "".join(chr(secrets.choice(PRIVATE_USE)) for _ in range(MARK_CHARACTERS))

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, thinking: bool = True,
        add_generation_prompt: bool = True,
    ) -> str:  # fmt: skip
        """The text of a conversation, ending where the assistant's turn begins. `thinking` False writes an empty thought.

        UsageError if the template refuses the messages, or they lack what it needs; ModelError if it exceeds a limit.
        """
        return self.rendered(
            plain_messages(messages, self._roles), plain_tools(tools), (), thinking=thinking,
            add_generation_prompt=add_generation_prompt,
        ).text  # fmt: skip

    def plain(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> tuple[list[dict[str, Any]], list[Any]]:
        """Messages and tools in the form that `rendered` accepts; UsageError if they are invalid."""
        return plain_messages(messages, self._roles), plain_tools(tools)

    def rendered(
        self, messages: list[dict[str, Any]], tools: list[Any], tokens: Sequence[str], *, thinking: bool = True,
        add_generation_prompt: bool = True,
    ) -> Rendered:  # fmt: skip
        """As `render`, with the positions of those of `tokens` that the template wrote."""
        values = {
            "messages": messages, "tools": tools or None, "documents": None, "add_generation_prompt": add_generation_prompt,
            "enable_thinking": thinking,
        }  # fmt: skip
        reply = self._request({"source": self._source, "values": values, "tokens": list(tokens), "mark": self._mark})
        if "error" in reply:
            self._refuse(reply, UsageError, "cannot render the messages", "")
        text, marked = str(reply["text"]), reply["marked"]
        if not isinstance(marked, str) or marked.replace(self._mark, "") != text:
            return Rendered(text, None)
        pieces = marked.split(self._mark)
        ends = [0]
        for piece in pieces[:-1]:
            ends.append(ends[-1] + len(piece))
        return Rendered(text, tuple(ends[1:]))

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return SHARED.send_request(request)
        except TemplateEnded as error:
            raise ModelError(f"the chat template {error}", where=self.where, fix="download the file again") from None

    def _refuse(self, reply: dict[str, Any], kind: type[UsageError] | type[ModelError], what: str, fix: str) -> NoReturn:
        limits = {
            "memory": f"takes over {MEMORY_BYTES >> 20} MiB of memory",
            "output": f"writes over {OUTPUT_LIMIT} characters",
        }
        if reply["error"] in limits:
            problem = f"the chat template {limits[reply['error']]}"
            raise ModelError(problem, where=self.where, fix="download the file again")
        raise kind(f"the chat template {what}: {reply['message']}", where=self.where, fix=fix)
