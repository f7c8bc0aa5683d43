"""Grammars at work: from a grammar of llguidance to the tokens that may be next, in the engine's process.

A vocabulary is read when the first grammar comes: of 151,936 tokens that takes over a second, in which nothing else runs. Each
grammar is made ready in a thread, next to the steps of others; those of the last requests are kept. Each was compiled once
already, where it could do no harm (`engine.serving.grammar_process`). A thought comes before the text that a grammar is for: in
it every token is allowed but those that end the generation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from os import PathLike
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.serving.grammar_compiler import Compiler
from engine.serving.grammar_depth import deep_thread
from engine.serving.protocol import Grammar

KEPT: Final = 64
"""Grammars that are kept ready."""
TOO_LONG: Final = "the grammar is too complex for the tokens so far"


class GrammarConstraint:
    """A `Constraint`: the text of one generation under a grammar. `error`: why it ended before its text was whole, None if it
    did not."""

    def __init__(self, matcher: Any, grammar: Grammar, vocabulary: int, ending: Iterable[int]) -> None:
        self._matcher, self._grammar, self._vocabulary = matcher, grammar, vocabulary
        self._ending = list(ending)
        self._bits = np.zeros(-(-vocabulary // 32), np.int32)
        self._thought = grammar.begun
        self._before = () if grammar.begun or grammar.opens is None else (grammar.opens,)
        self.error: str | None = None
        self.ended = False
        if not self._thought:
            self._next()

    def allowed(self) -> NDArray[np.uint8]:
        """For each token 1 if it may be next, else 0, (vocab,)."""
        if self._thought:
            found = np.ones(self._vocabulary, np.uint8)
            found[self._ending] = 0
            return found
        found = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._vocabulary]
        found[list(self._before)] = 1
        return found

    def accept(self, token: int) -> None:
        """A token that was allowed is the next one."""
        if self._thought:
            if token == self._grammar.closes:
                self._thought, self._before = False, self._grammar.between
                self._next()
        elif token in self._before:
            self._thought, self._before = token == self._grammar.opens, ()
        else:
            self._before = ()
            if not self._matcher.consume_token(token):
                self._fail()
                return
            self._next()

    def _next(self) -> None:
        """Find what may be next in the text."""
        if self._matcher.is_error():
            self._fail()
        elif self._matcher.is_stopped():
            self.ended = True
        else:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            if self._matcher.is_error() or not (self._bits.any() or self._before):
                self._fail()

    def _fail(self) -> None:
        self.ended, self.error = True, TOO_LONG


class Constraints:
    """The grammars of a model folder with `vocabulary` tokens, of which `ending` end a generation."""

    def __init__(self, folder: str | PathLike[str], vocabulary: int, ending: Iterable[int]) -> None:
        self._vocabulary, self._ending = vocabulary, list(ending)
        self._compiler = Compiler(folder, vocabulary, self._ending)
        self._thread = deep_thread("grammars")
        self._ready: OrderedDict[str, Any] = OrderedDict()

    def begin(self, grammar: Grammar) -> Future[GrammarConstraint]:
        """Make a grammar ready for a generation; UsageError in the future if it cannot be."""
        return self._thread.submit(self._constraint, grammar)

    def close(self) -> None:
        """End the thread; idempotent."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _constraint(self, grammar: Grammar) -> GrammarConstraint:
        matcher: Any = self._ready.pop(grammar.text, None) or self._compiler.matcher(grammar.text)
        self._ready[grammar.text] = matcher
        if len(self._ready) > KEPT:
            self._ready.popitem(last=False)
        return GrammarConstraint(matcher.deep_copy(), grammar, self._vocabulary, self._ending)
