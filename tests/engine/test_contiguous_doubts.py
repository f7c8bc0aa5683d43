"""Caches of rows that are not in pages: a sequence whose values overflow changes no bit of the next one, nor of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from test_doubts import BAD, OF_HOST, loaded, prompt

from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.errors import EngineError
from engine.sequence import NO_TOKEN


@pytest.fixture(scope="module", params=[None, "fp8"], ids=["16 bits", "codes"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    found = loaded(tmp_path_factory.mktemp("tiny") / "model", request.param)
    yield found
    found.close()


def own_logits(backend: InterpreterBackend) -> bytes:
    """Of the backend's own sequence, after a prompt and a token."""
    sequence = backend.begin()
    backend.prefill(sequence, prompt(20))
    logits = backend.decode_logits(sequence, backend.token())
    assert np.isfinite(logits).all()
    return logits.tobytes()


def row_logits(batch: Batch) -> bytes:
    """Of a row of a batch, after a prompt and a token."""
    row, token = batch.add(prompt(20))
    tokens = {row: token} | {other: 9 for other in range(2) if other != row and not batch.free}
    logits = batch.logits(tokens)[row]
    assert np.isfinite(logits).all()
    batch.remove(row)
    return logits.tobytes()


@pytest.fixture(scope="module")
def alone(backend: InterpreterBackend) -> tuple[bytes, bytes]:
    with Batch(backend, 2, one_graph=True) as batch:
        return own_logits(backend), row_logits(batch)


def refused(backend: InterpreterBackend) -> None:
    backend.prefill(backend.begin(), [BAD] * 40)
    with pytest.raises(EngineError, match="not finite"):
        backend.token()


def cancelled(backend: InterpreterBackend) -> None:
    backend.extend(backend.begin(), [BAD] * 40)


def left(backend: InterpreterBackend) -> None:
    sequence = backend.begin()
    backend.prefill(sequence, prompt(22))
    backend.token()
    with pytest.raises(EngineError, match="not finite"):
        backend.decode(sequence, BAD)


def of_logits(backend: InterpreterBackend) -> None:
    backend.prompt_logits(backend.begin(), [*prompt(22), BAD])


@pytest.mark.parametrize("spoil", [refused, cancelled, left, of_logits])
@pytest.mark.parametrize("cleared", [True, False])
def test_the_next_sequence_of_the_backend_has_its_own_bits(
    backend: InterpreterBackend, alone: tuple[bytes, bytes], spoil: Callable[[InterpreterBackend], None],
    monkeypatch: pytest.MonkeyPatch, *, cleared: bool,
) -> None:  # fmt: skip
    """And without zeroed slots it would not."""
    spoil(backend)
    if cleared:
        assert own_logits(backend) == alone[0]
        return
    monkeypatch.setattr(InterpreterBackend, "clear_own", nothing)
    with pytest.raises((EngineError, AssertionError)):
        own_logits(backend)
    monkeypatch.undo()
    backend.clear_own()


def nothing(_: InterpreterBackend) -> None:
    """Zero nothing."""


def test_a_row_that_goes_wrong_ends_alone_and_leaves_nothing(backend: InterpreterBackend, alone: tuple[bytes, bytes]) -> None:
    with Batch(backend, 2, one_graph=True) as batch:
        internals: Any = batch
        row, _ = batch.add(prompt(20))
        wrong, _ = batch.add(prompt(40))
        internals._state.members[wrong].token = BAD
        tokens = batch.step()
        assert tokens[wrong] == NO_TOKEN and tokens[row] != NO_TOKEN
        assert batch.step()[wrong] == NO_TOKEN
        batch.remove(wrong)
        assert row_logits(batch) == alone[1]
        batch.remove(row)
        with pytest.raises(EngineError, match="not finite"):
            batch.add([BAD] * 40, OF_HOST)
        assert row_logits(batch) == alone[1]


def test_a_row_whose_last_step_nobody_saw_leaves_nothing(backend: InterpreterBackend, alone: tuple[bytes, bytes]) -> None:
    with Batch(backend, 2, one_graph=True) as batch:
        internals: Any = batch
        for token in (BAD, 7):
            row, _ = batch.add(prompt(22))
            internals._state.members[row].token = token
            internals._launch()
            batch.remove(row)
            assert row_logits(batch) == alone[1]
            batch.add(prompt(5))
            batch.step()
            batch.remove(0)
