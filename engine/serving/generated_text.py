"""From the tokens of one generation to what a client is sent: thought, content and calls of tools, in pieces.

Characters and stop strings are never split, whatever the number of tokens that arrive together; the parts do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.serving.thinking import Thinking
from engine.serving.tool_calls import Arguments, ToolCall, ToolCalls
from engine.serving.xml_calls import XmlCalls
from engine.text.detokenizer import Detokenizer, StopStrings
from engine.text.tokenizer import Text


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of generated text: exactly one of the four is there. `more`: of the arguments of the call before it."""

    content: str = ""
    thought: str = ""
    call: ToolCall | None = None
    more: Arguments | None = None


def joined(parts: Sequence[Part]) -> Sequence[Part]:
    """The same text in as few parts as possible: neighbours of one kind are one, and a call has the arguments after it."""
    found: list[Part] = []
    for part in parts:
        if found and (both := _both(found[-1], part)) is not None:
            found[-1] = both
        else:
            found.append(part)
    return found


def _both(first: Part, second: Part) -> Part | None:
    """Two parts as one; None if they stay two."""
    if second.more is not None:
        text, last = second.more.text, second.more.last
        if first.call is not None:
            return Part(call=ToolCall(first.call.name, first.call.arguments + text, last))
        return None if first.more is None else Part(more=Arguments(first.more.text + text, last))
    if first.call or first.more or second.call or bool(first.thought) != bool(second.thought):
        return None
    return Part(first.content + second.content, first.thought + second.thought)


class GeneratedText:
    """The text of one generation. `thinking` and `tools`: what splits it, None if it is not split. Tokens in `silent` end a
    generation and are no text."""

    def __init__(
        self, text: Text, stop: Sequence[str], silent: Iterable[int], thinking: Thinking | None = None,
        tools: ToolCalls | XmlCalls | None = None,
    ) -> None:  # fmt: skip
        self._detokenizer, self._stop, self._silent = Detokenizer(text), StopStrings(stop), frozenset(silent)
        self._thinking, self._tools = thinking, tools
        self._after_call = False  # whether the last part is a call, whose white space is dropped
        self.tokens = self.calls = self._before_content = 0

    @property
    def thought_tokens(self) -> int:
        """Tokens of the thought, its tags included."""
        return self._before_content if self._thinking is not None and self._thinking.thought else 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: nothing follows."""
        return self._stop.found

    def push(self, token: int) -> list[Part]:
        """What became certain with a token."""
        self.tokens += 1
        if self._thinking is not None and self._thinking.thinks:
            self._before_content = self.tokens
        if token in self._silent:
            return []
        return self._parts(self._stop.push(self._detokenizer.push(token)))

    def finish(self) -> list[Part]:
        """The rest, at the end of the generation."""
        text = "" if self.stopped else self._stop.push(self._detokenizer.finish()) + self._stop.finish()
        parts = self._parts(text)
        if self._thinking is not None:
            thought, content = self._thinking.finish()
            parts += [Part(thought=thought)] if thought else []
            parts += self._content(content)
        if self._tools is not None:
            parts += self._of_tools(self._tools.finish())
        return parts

    def finish_reason(self, reason: str) -> str:
        """What OpenAI calls the end of a generation that ended by `reason` (`stop` or `length`)."""
        return "tool_calls" if self.calls and reason == "stop" else reason

    def _parts(self, text: str) -> list[Part]:
        if not text:
            return []
        if self._thinking is None:
            return self._content(text)
        thought, content = self._thinking.push(text)
        return [*([Part(thought=thought)] if thought else []), *self._content(content)]

    def _content(self, text: str) -> list[Part]:
        if not text:
            return []
        return [Part(content=text)] if self._tools is None else self._of_tools(self._tools.push(text))

    def _of_tools(self, found: Iterable[str | ToolCall | Arguments]) -> list[Part]:
        """Texts and calls; white space after a call is not content."""
        parts: list[Part] = []
        for one in found:
            if not isinstance(one, str):
                whole = one.whole if isinstance(one, ToolCall) else one.last
                self.calls, self._after_call = self.calls + whole, whole
                parts.append(Part(call=one) if isinstance(one, ToolCall) else Part(more=one))
                continue
            text = one.lstrip() if self._after_call else one
            self._after_call = self._after_call and not text
            parts += [Part(content=text)] if text else []
        return parts
