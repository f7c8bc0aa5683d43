"""Rows over pages on two ranks of the interpreter: the same bits in both ranks, alone or among others, however a prompt was
divided; logits of one rank within rounding. Ranks that get other orders are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter_ranks import TOLERANCE, distance, one_rank, two_ranks
from numpy.typing import NDArray
from paged_logits import logits_of

from engine.backends.backend import Backend
from engine.backends.host_buffers import HostBuffers
from engine.backends.host_pages import HostPages
from engine.backends.prompts import padded_room
from engine.errors import ModelError
from engine.graph.integers import GraphError
from engine.paged_batch import PagedBatch
from engine.ranks import interpreter as ranks_on_interpreter
from engine.ranks.interpreter import InterpreterRanks
from engine.ranks.processes import RanksDiffer
from engine.sampling import SamplingParams
from tilec.step.graph import Kind

SAMPLED = SamplingParams(0.9, 20, 0.9, seed=7)


def prompt(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(0, 400, length)]


@pytest.fixture(scope="module")
def two(tiny_folder: Callable[..., Path]) -> Iterator[InterpreterRanks]:
    backend = two_ranks(tiny_folder())
    yield backend
    backend.close()


def arrays_of(batch: PagedBatch, prompt: bool = False) -> list[dict[str, NDArray[Any]]]:
    """The buffers of rows, or of prompts, in each rank."""
    internals: Any = batch
    device = internals._steps.device
    return [own.arrays for own in (device.prompt if prompt else device.rows).of_ranks]


def rows_of(batch: PagedBatch, row: int, pages: Sequence[int], chunks: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """The logits of a row, whose prompt came in chunks, after two tokens. AssertionError if ranks differ in a bit of them."""
    found = logits_of(batch, row, pages, chunks).copy()
    bits = {own["batch.logits"].tobytes() for own in arrays_of(batch)}
    assert len(bits) == 1, "ranks differ"
    return found


def test_logits_are_those_of_one_rank_within_rounding(two: InterpreterRanks, tiny_folder: Callable[..., Path]) -> None:
    one, found = one_rank(tiny_folder()), list[tuple[Any, Any]]()
    backends: tuple[Backend, Backend] = one, two
    for backend in backends:
        with PagedBatch(backend, 2) as batch:
            first = batch.join(0, [2, 1], 0, prompt(70))
            tokens = [first, *(batch.step()[0] for _ in range(3))]
            found.append((tokens, batch.step_logits()[0].copy()))
    assert found[0][0] == found[1][0]
    assert 0 < distance(found[1][1], found[0][1]) < TOLERANCE
    one.close()


def test_bits_are_the_same_in_both_ranks_and_follow_from_the_row_s_tokens_only(two: InterpreterRanks) -> None:
    ids = prompt(100)
    with PagedBatch(two, 2) as batch:
        alone = rows_of(batch, 0, [1, 2], [ids])
    with PagedBatch(two, 4) as batch:
        assert batch.join(0, [5], 0, prompt(9), SAMPLED) >= 0
        batch.extend([6, 7], 0, ids[:64])  # of another sequence, whose first page the next one has too
        divided = rows_of(batch, 2, [6, 3], [ids[:64], ids[64:65], ids[65:]])
        assert (divided == alone).all(), "in chunks, in another row and bucket, next to a sampled row"
        batch.remove(2)
        batch.join(3, [6, 8], 64, ids[64:], prompt=ids)
        batch.step(ahead=False)
        assert (batch.step_logits()[3] == alone).all(), "with a page that was computed for another sequence"


def test_tokens_of_nobody_change_no_bit(two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    with PagedBatch(two, 2) as batch:
        alone = rows_of(batch, 0, [1, 2], [prompt(70)])
    monkeypatch.setattr(HostPages, "padded", lambda _, tokens, filled: padded_room(tokens, filled, 128, 256))
    with PagedBatch(two, 2) as batch:
        assert (rows_of(batch, 1, [2, 1], [prompt(70)]) == alone).all()


def test_each_rank_has_the_pages_of_its_heads(two: InterpreterRanks, tiny_folder: Callable[..., Path]) -> None:
    """The first layer's keys depend on no collective, so halves of heads are those of one rank."""
    one = one_rank(tiny_folder())
    with PagedBatch(one, 2) as alone, PagedBatch(two, 2) as batch:
        for each in (alone, batch):
            each.join(0, [2, 1], 0, prompt(70))
        internals: Any = alone
        whole = internals._steps.device.rows.arrays["k_pages.0"][[2, 1]].reshape(128, 8, -1)[:70].astype(np.float32)
        parts = [own["k_pages.0"][[2, 1]].reshape(128, 4, -1)[:70].astype(np.float32) for own in arrays_of(batch)]
    halves = np.concatenate(parts, axis=1)
    assert np.abs(whole - halves).max() < 0.05 * whole.std() < np.abs(whole[:, :4] - halves[:, 4:]).max()
    one.close()


def test_sampled_rows_and_guesses_are_those_of_single_steps(two: InterpreterRanks) -> None:
    with PagedBatch(two, 4) as batch:
        batch.join(0, [1, 2], 0, prompt(9), SAMPLED)
        expected = [batch.step(ahead=False)[0] for _ in range(4)]
    with PagedBatch(two, 4) as batch:
        batch.join(1, [3, 4], 0, prompt(9), SAMPLED)
        guesses = [*expected[:2], (expected[2] + 1) % 400]
        assert batch.verify({1: guesses}, [0, 2, 3])[1] == expected[:3]
        assert batch.step(ahead=False)[1] == expected[3]


def on_rank(monkeypatch: pytest.MonkeyPatch, guilty: int, change: Callable[[str, Any], Any]) -> None:
    """Give one rank other inputs than the rest: `change` gets name and value."""
    original = ranks_on_interpreter.RankedBuffers.send

    def send(self: Any, kind: Kind, values: Any) -> None:
        original(self, kind, values)
        changed = {name: change(name, np.asarray(value)) for name, value in values.items()}
        HostBuffers.send(self.of_ranks[guilty], kind, changed)

    monkeypatch.setattr(ranks_on_interpreter.RankedBuffers, "send", send)


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_rank_with_another_table_is_found(
    two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch, guilty: int
) -> None:  # fmt: skip
    """Its rows read pages of other sequences, so its heads are other ones: sums stay alike in both ranks, so the bits of both
    are, but no longer those of the orders."""
    with PagedBatch(two, 2) as batch:
        expected = rows_of(batch, 0, [1, 2], [prompt(70)])
    on_rank(monkeypatch, guilty, lambda name, value: np.zeros_like(value) if name == "serve.table" else value)
    with PagedBatch(two, 2) as batch:
        assert (rows_of(batch, 0, [1, 2], [prompt(70)]) != expected).any()


def test_a_rank_whose_sums_are_others_is_found(two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective that gives one rank something else is seen at the next token, and nothing more is believed of either."""
    original = ranks_on_interpreter.collect

    def wrong(op: Any, parts: Any, own: Any) -> None:
        original(op, parts, own)
        if own["x"] is parts[1] and "out" in own:
            own["out"][...] = 0

    with PagedBatch(two, 2) as batch:
        batch.join(0, [1, 2], 0, prompt(9))
        monkeypatch.setattr(ranks_on_interpreter, "collect", wrong)
        with pytest.raises(RanksDiffer, match=r"rank 1 chose the tokens \[.*\], and rank 0 \["):
            for _ in range(4):
                batch.step()


def test_slots_that_two_tokens_share_are_refused_in_every_rank(
    two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    on_rank(monkeypatch, 1, lambda name, value: np.zeros_like(value) if name == "pages.slots" else value)
    with PagedBatch(two, 2) as batch:
        batch.join(0, [1, 2], 0, prompt(9))
        with pytest.raises(GraphError, match=r"pages\.slots"):
            batch.step()


def test_ranks_that_meet_elsewhere_are_one_error_and_go_on(two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that leaves out a collective of a step over pages meets the other one at the wrong place."""
    with PagedBatch(two, 2) as batch:
        expected = rows_of(batch, 0, [1, 2], [prompt(9)])
        of_rank = two.of_ranks[1]
        original = of_rank._run  # pyright: ignore[reportPrivateUsage]

        def without_gather(ops: Any, order: Any) -> None:
            original([one for one in ops if one.op.name != "layers.0.down_proj_gather"], order)

        monkeypatch.setattr(of_rank, "_run", without_gather)
        with pytest.raises(Exception, match=r"rank 0 is at `all_gather` of `layers.0.down_proj_gather`, and rank 1 at `all_ga"):
            batch.step(ahead=False)
        monkeypatch.undo()
    with PagedBatch(two, 2) as batch:
        assert (rows_of(batch, 1, [1, 2], [prompt(9)]) == expected).all()


def test_a_failure_in_one_rank_s_chunk_is_raised_once(two: InterpreterRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    of_rank = two.of_ranks[0]

    def failing(*_: Any) -> None:
        raise ModelError("a planted failure")

    with PagedBatch(two, 2) as batch:
        monkeypatch.setattr(of_rank, "_run", failing)
        with pytest.raises(ModelError, match="a planted failure"):
            batch.join(0, [1, 2], 0, prompt(9))
        monkeypatch.undo()
        assert batch.join(0, [1, 2], 0, prompt(9)) >= 0


def test_two_ranks_serve_pages_of_codes(tiny_folder: Callable[..., Path]) -> None:
    """Each has the codes and scales of its heads, which are those of one rank but for keys near the middle of two codes."""
    one, two = one_rank(tiny_folder(), cache_format="fp8"), two_ranks(tiny_folder(), cache_format="fp8")
    with PagedBatch(one, 2) as batch:
        expected = [batch.join(0, [2, 1], 0, prompt(70)), batch.step(ahead=False)[0]]
        logits = batch.step_logits()[0].copy()
    with PagedBatch(two, 2) as batch:
        alone = rows_of(batch, 0, [1, 2], [prompt(70)])
        assert (arrays_of(batch)[0]["k_pages.0"].shape[2], arrays_of(batch)[1]["k_pages_scales.1"].shape[2]) == (4, 4)
    with PagedBatch(two, 4) as batch:
        tokens = [batch.join(3, [7, 5], 0, prompt(70)), batch.step(ahead=False)[3]]
        assert (batch.step_logits()[3] == alone).all()
        batch.remove(3)
        assert (rows_of(batch, 1, [4, 6], [prompt(70)[:9], prompt(70)[9:]]) == alone).all(), "in chunks"
    assert tokens == expected and 0 < distance(alone, logits) < TOLERANCE
    one.close()
    two.close()
