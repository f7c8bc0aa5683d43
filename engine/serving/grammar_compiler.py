"""From what a request says of a form to a grammar of llguidance, and from that to what finds the tokens that may be next.

Two processes compile a grammar with this: first that of `engine.serving.grammar_worker`, which checks it, then the engine's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Final

from engine.errors import UsageError
from engine.serving.grammar_depth import too_deep
from engine.text.policy import TOKENIZER_FILE

MOST_BYTES: Final = 1 << 18
"""Maximum bytes of a grammar. llguidance's own limits bound what is made of it."""
WHITE_SPACE: Final[Any] = {"whitespace_pattern": r"[ \n]{1,40}"}
WHOLE: Final = "whole"
"""The kind of what is a grammar of llguidance already."""


class Compiler:
    """Compiles grammars for a model folder with `vocabulary` tokens, of which `ending` end a generation. The vocabulary is read
    with the first one: of 151,936 tokens that takes over a second."""

    def __init__(self, folder: str | PathLike[str], vocabulary: int, ending: Iterable[int]) -> None:
        self._file, self._vocabulary, self._ending = Path(folder) / TOKENIZER_FILE, vocabulary, list(ending)
        self._tokenizer: Any = None

    def read(self) -> None:
        """Read the vocabulary unless it was."""
        from llguidance import LLTokenizer

        if self._tokenizer is None:
            text = self._file.read_text(encoding="utf-8")
            self._tokenizer = LLTokenizer(text, n_vocab=self._vocabulary, eos_token=self._ending)

    def matcher(self, grammar: str) -> Any:
        """An LLMatcher of a grammar; UsageError if llguidance does not take it."""
        from llguidance import LLMatcher

        self.read()
        found = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_limits())
        _raise(found.get_error() if found.is_error() else "")
        return found

    def made(self, kind: str, value: Any) -> str:
        """The grammar of a form, which was compiled once, and its first tokens found; UsageError that says why it cannot be.
        `kind`: `json` (a schema), `choice` (texts), `regex`, `grammar` (Lark or GBNF), or `WHOLE`."""
        from llguidance import LLMatcher

        grammar = _grammar(kind, value)
        if len(grammar) > MOST_BYTES:
            raise UsageError(f"it is longer than {MOST_BYTES} bytes")
        if (why := too_deep(grammar)) is not None:
            raise UsageError(why)
        _raise(LLMatcher.validate_grammar(grammar, limits=_limits()))
        matcher = self.matcher(grammar)
        matcher.compute_bitmask()
        _raise(matcher.get_error() if matcher.is_error() else "")
        return grammar


def _limits() -> Any:
    """What a grammar may need: llguidance's own bounds, and errors without the state of its parser."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def _grammar(kind: str, value: Any) -> str:
    from llguidance import LLMatcher, grammar_from

    if kind == WHOLE:
        return value
    try:
        if kind == "json":
            return LLMatcher.grammar_from_json_schema(value, overrides=WHITE_SPACE)
        if kind == "choice":
            return grammar_from("choice", json.dumps(value))
        return grammar_from("regex" if kind == "regex" else "grammar", value)
    except ValueError as error:
        raise UsageError(_line(str(error))) from None


def _raise(error: str) -> None:
    """UsageError for an error of llguidance, which may be none or a warning."""
    if error and not error.startswith("WARNING"):
        raise UsageError(_line(error))


def _line(error: str) -> str:
    return " ".join(error.split())[:500]
