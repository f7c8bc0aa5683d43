"""A model in this process that replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from engine.api import Engine
from engine.chat.speaker import Message, Piece, Speaker
from engine.sampling import SEED_LIMIT, SamplingParams
from engine.serving import thinking
from engine.text.detokenizer import Detokenizer


class LocalSpeaker(Speaker):
    """An engine that replies; the session owns it. `sampling` has values that differ from the model's, a temperature of 0 is
    the most likely token. Each reply has another seed than the one before it."""

    def __init__(
        self, engine: Engine, name: str, *, max_tokens: int | None = None, think: bool = True, seed: int = 0,
        sampling: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name, self._engine, self._max_tokens, self._think, self._seed = name, engine, max_tokens, think, seed
        self._values = sampling or {}
        self._sampling()  # values are checked before the first message
        self._tags = tuple(engine.text.tokenizer.token_to_id(tag) for tag in (thinking.OPEN, thinking.CLOSE))

    def close(self) -> None:
        """Free the device."""
        self._engine.close()

    def _reply(self, messages: Sequence[Message]) -> Iterator[Piece]:
        engine = self._engine
        ids = engine.tokens(messages, thinking=self._think)
        most = self._max_tokens or engine.backend.max_seq_len
        text, count = Detokenizer(engine.text), 0
        splitter = thinking.Thinking(begun=thinking.begun(ids, *self._tags)) if None not in self._tags else None

        def pieces(found: str) -> Iterator[Piece]:
            thought, content = splitter.push(found) if splitter is not None else ("", found)
            yield from (Piece("thought", thought),) if thought else ()
            yield from (Piece("content", content),) if content else ()

        sampling, self._seed = self._sampling(), (self._seed + 1) % SEED_LIMIT
        for token in engine.generate_ids(ids, most, sampling=sampling):
            count += 1
            yield from pieces(text.push(token))
            if self.interrupted:
                return
        yield from pieces(text.finish())
        if splitter is not None:
            thought, content = splitter.finish()
            yield from (Piece("thought", thought),) if thought else ()
            yield from (Piece("content", content),) if content else ()
        whole = min(most, engine.backend.max_seq_len - len(ids) + 1)
        yield Piece("end", "length" if count == whole else "stop")

    def _sampling(self) -> SamplingParams | None:
        """How the tokens of the next reply are chosen; None: greedy."""
        model = self._engine.generation
        temperature = self._values.get("temperature", model.temperature if model.do_sample or self._values else 0.0)
        return None if temperature == 0 else self._engine.sampling(seed=self._seed, **self._values)
