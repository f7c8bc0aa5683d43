"""A server whose engine has no model: its steps take microseconds, so that a soak has many of them.

    python3 ci/bench/engine/scripted_engine.py FOLDER ...    `python -m engine serve FOLDER ...`, whose engine is this module

Everything is the server's own but for `PagedBatch` and the backend. In place of these are rows of which what a slot contains
depends on all tokens before it, and a token on all slots that its row reads (`tests/engine/serving/fake_paged_batch.py`). Steps
run ahead, as on a GPU.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

HERE: Final = Path(__file__).resolve()
ROOT: Final = HERE.parents[3]
ROWS: Final = ROOT / "tests" / "engine" / "serving"
VOCABULARY: Final = 408
LONGEST: Final = 256
PARKING: Final = 1
CHOSEN: Final = 8
"""Tokens that are generated: so few that texts repeat themselves, and some guesses of next tokens are right."""


class Backend:
    """What the loop and the worker ask of a backend."""

    chunk_tokens = max_seq_len = LONGEST
    watched: tuple[int, ...] = ()
    closed = False
    step = SimpleNamespace(cache_format="16bit")

    def finish(self) -> None:
        """Nothing is copied meanwhile."""

    def wait(self) -> None:
        """Nothing runs."""

    def check_vocabulary(self, ids: Sequence[int]) -> None:
        """UsageError for a token that is none."""
        from engine.errors import UsageError

        if any(not 0 <= token < VOCABULARY for token in ids):
            raise UsageError(f"a token is not in the vocabulary of {VOCABULARY}")

    def close(self) -> None:
        """Nothing."""


def rows_without_a_model(rows: int, pages: int) -> Any:
    """A `PagedBatch` that has no model."""
    sys.path.append(str(ROWS))
    fake: Any = importlib.import_module("fake_paged_batch")
    return fake.FakePagedBatch(rows, pages, LONGEST, parking=PARKING, vocabulary=CHOSEN)


def on_rows(backend: Any, rows: int, pages: int | None) -> Any:
    """As `engine.serving.rows.rows_of`."""
    from engine.serving.pool import Pool

    pages = PARKING + 5 * rows if pages is None else pages
    batch = rows_without_a_model(rows, pages)
    return batch, Pool.empty(rows, pages, LONGEST, parking=PARKING, page_tokens=batch.page_tokens)


def serve_or_work(arguments: list[str], module: str, on_rows: Callable[[Any, int, int | None], Any]) -> int:
    """The server whose engine a module is, or with the number of a descriptor this engine; returns the exit status. `on_rows`
    replaces `engine.serving.rows.rows_of`."""
    if not arguments[0].isdecimal():
        from engine.serving.beginning import EngineProcess
        from engine.serving.command import serve_command

        EngineProcess.module = module
        return serve_command(arguments, standalone_mode=False) or 0
    from engine.serving import work, worker

    def load_backend(*_: object, **__: object) -> Any:
        return Backend(), None

    replaced: Any = work
    replaced.load_backend, replaced.rows_of = load_backend, on_rows
    return worker.main(int(arguments[0]))


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != HERE.parent)]
    sys.exit(serve_or_work(sys.argv[1:], "ci.bench.engine.scripted_engine", on_rows))
