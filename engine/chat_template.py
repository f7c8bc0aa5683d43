"""Chat templates, rendered exactly as Hugging Face transformers renders them.

A template is a program that came with a model: it runs in Jinja's immutable sandbox, which gives it no attribute that could
reach the interpreter. Filters, globals and extensions are those of transformers' `chat_template_utils`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ModelError, UsageError

Message = Mapping[str, Any]
"""`role` and `content`, and what the template knows besides, such as `tool_calls`."""


class ChatTemplate:
    """A compiled template; `where` names its file in errors."""

    def __init__(self, source: str, where: str) -> None:
        self.where = where
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        words: Any = environment.globals
        words |= {"raise_exception": _raise, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelError(f"the chat template does not parse: {error}", where=where, fix="download the file again") from None

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = True,
        add_generation_prompt: bool = True,
    ) -> str:  # fmt: skip
        """The text of a conversation, ending where the assistant's answer begins. `thinking` False closes the thought at once.

        UsageError where the template refuses the messages, or they lack what it needs.
        """
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=thinking,
            )
        except Exception as error:  # a template is a program, and may fail in any way a program can
            raise UsageError(f"the chat template cannot render the messages: {error}", where=self.where) from None


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Plain JSON: Jinja's own filter escapes characters for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(format_: str) -> str:
    return datetime.now().strftime(format_)
