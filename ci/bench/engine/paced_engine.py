"""A server whose engine gives each row a token at fixed times, so that what HTTP costs can be measured without a model.

    python3 ci/bench/engine/paced_engine.py FOLDER ...    `python -m engine serve FOLDER ...`, whose engine is this module

Everything is the server's own but for the backend and the rows. Tokens go through the vocabulary, so that texts have all kinds
of pieces.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve()
ROOT: Final = HERE.parents[3]
if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != HERE.parent)]

from ci.bench.engine.scripted_engine import VOCABULARY, serve_or_work  # noqa: E402
from ci.bench.engine.serving_host import SameTokens  # noqa: E402

STEP_SECONDS: Final = 0.25
"""Between two tokens of a row: long enough that a server on one processor has sent each token of 256 rows before the next."""


class Paced(SameTokens):
    """Rows whose next tokens come together, `STEP_SECONDS` after those before."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def step(self, *, ahead: bool = True) -> dict[int, int]:
        """The next token of each row, which is the next one of the vocabulary."""
        now = time.monotonic()
        time.sleep(max(0.0, self._next - now))
        self._next = max(self._next, now) + STEP_SECONDS
        self.tokens = {row: (token + 1) % VOCABULARY for row, token in self.tokens.items()}
        return dict(self.tokens)

    def verify(self, guesses: Mapping[int, Sequence[int]], spare: Sequence[int]) -> dict[int, list[int]]:
        """Nothing is guessed."""
        raise NotImplementedError


def on_rows(backend: Any, rows: int, pages: int | None) -> Any:
    """As `engine.serving.rows.rows_of`."""
    from engine.serving.pool import Pool

    return Paced(), Pool.empty(rows, 4 + 4 * rows if pages is None else pages, backend.max_seq_len, parking=4)


if __name__ == "__main__":
    sys.exit(serve_or_work(sys.argv[1:], "ci.bench.engine.paced_engine", on_rows))
