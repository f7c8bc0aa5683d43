"""A sequence whose values overflow changes no bit of another, whoever has its pages next, and whoever saw that they overflowed.

The values of one token id overflow in the first layer, and of no other id; keys stay finite, so that only values do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.host_buffers import HostBuffers
from engine.backends.host_pages import HostPages
from engine.backends.interpreter import InterpreterBackend
from engine.backends.prompts import padded_room
from engine.cache_layout import Run
from engine.checkpoint.weights import WeightPlan
from engine.errors import EngineError
from engine.graph.doubts import Doubts
from engine.graph.pages import Part
from engine.paged_batch import PagedBatch
from engine.paged_prompts import Piece
from engine.sampling import SamplingParams
from engine.sequence import NO_TOKEN
from engine.tools.tiny import write_tiny_model

MAX_SEQ_LEN = 320
BAD = 407
OF_HOST = SamplingParams(0.9, 20, 0.9, seed=7, logprobs=2)


def prompt(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(1, 400, length)]


def overflow_at(backend: InterpreterBackend, token: int) -> None:
    """Let the values of a token overflow f16 in the first layer, and those of no other."""
    buffers: dict[str, NDArray[Any]] = backend._buffers  # pyright: ignore[reportPrivateUsage]
    table = buffers["model.embed_tokens.weight"] = buffers["model.embed_tokens.weight"].copy()
    name = "model.layers.0.self_attn.qkv_proj.weight"
    weight = buffers[name] = buffers[name].copy()
    config: Any = backend.config
    table[:, 0], table[token] = 0, 0
    table[token, 0] = 1
    weight[-config.num_key_value_heads * config.head_dim :, 0] = 6e4
    backend.own.forget()  # steps that were prepared have the old weights


def loaded(folder: Path, cache_format: str | None = None, token: int = BAD) -> InterpreterBackend:
    config = write_tiny_model(folder)
    backend = InterpreterBackend()
    backend.load(
        config, WeightPlan.for_model(config, folder, "f16", convert=True), MAX_SEQ_LEN, "f16", cache_format=cache_format
    )
    overflow_at(backend, token)
    return backend


@pytest.fixture(scope="module")
def of_16_bits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    found = loaded(tmp_path_factory.mktemp("tiny") / "model")
    yield found
    found.close()


@pytest.fixture(scope="module")
def of_codes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    found = loaded(tmp_path_factory.mktemp("tiny") / "model", "fp8")
    yield found
    found.close()


@pytest.fixture(scope="module", params=["of_16_bits", "of_codes"])
def backend(request: pytest.FixtureRequest) -> InterpreterBackend:
    return request.getfixturevalue(request.param)


Bits = tuple[int, bytes]
"""The first token of a sequence, and the logits after it."""

PAGES = [5, 3]
LENGTHS = (20, 64)
"""The first ends within a page; the first token of the second begins a page."""


def bits(batch: PagedBatch, row: int, length: int) -> Bits:
    """Of a good prompt."""
    token = batch.join(row, PAGES, 0, prompt(length))
    logits = batch.step_logits()[row]
    assert np.isfinite(logits).all()
    batch.remove(row)
    return token, logits.tobytes()


@pytest.fixture(scope="module")
def alone(backend: InterpreterBackend) -> list[Bits]:
    with PagedBatch(backend, 2) as batch:
        return [bits(batch, 0, length) for length in LENGTHS]


def refused_prompt(batch: PagedBatch) -> None:
    """A prompt that the device finds to be wrong."""
    with pytest.raises(EngineError, match="not finite"):
        batch.join(1, PAGES, 0, [*prompt(20), BAD, *prompt(79)])


def refused_on_the_host(batch: PagedBatch) -> None:
    with pytest.raises(EngineError, match="not finite"):
        batch.join(1, PAGES, 0, [BAD] * 100, OF_HOST)


def cancelled_prompt(batch: PagedBatch) -> None:
    """Chunks whose logits nobody reads."""
    batch.extend(PAGES, 0, [BAD] * 64)
    batch.extend(PAGES, 64, [BAD] * 64)


def wrong_generation(batch: PagedBatch) -> None:
    batch.join(1, PAGES, 0, prompt(30))
    give(batch, BAD)
    assert batch.step() == {1: NO_TOKEN}
    assert batch.step() == {1: NO_TOKEN}  # the token after it is that of any id
    batch.remove(1)


def left_ahead(batch: PagedBatch) -> None:
    """A step whose token nobody read when the sequence ended."""
    batch.join(1, PAGES, 0, prompt(30))
    give(batch, BAD)
    decoding: Any = batch._decoding  # pyright: ignore[reportPrivateUsage]
    decoding._launch([1])
    batch.remove(1)


def logits_for_a_token(batch: PagedBatch) -> None:
    batch.join(1, PAGES, 0, prompt(30))
    give(batch, BAD)
    assert not np.isfinite(batch.step_logits()[1]).any()
    batch.remove(1)


def give(batch: PagedBatch, token: int) -> None:
    """Let row 1 process another token than it chose."""
    decoding: Any = batch._decoding  # pyright: ignore[reportPrivateUsage]
    decoding.members[1].token, decoding.members_changed = token, True


SPOILED = [refused_prompt, refused_on_the_host, cancelled_prompt, wrong_generation, left_ahead, logits_for_a_token]


@pytest.mark.parametrize("spoil", SPOILED)
def test_whoever_has_the_pages_next_has_its_own_bits(
    backend: InterpreterBackend, alone: list[Bits], spoil: Callable[[PagedBatch], None]
) -> None:
    with PagedBatch(backend, 2) as batch:
        for number, length in enumerate(LENGTHS):
            spoil(batch)
            assert bits(batch, 0, length) == alone[number]


@pytest.mark.parametrize("spoil", SPOILED)
def test_without_zeroed_slots_they_would_not(
    backend: InterpreterBackend, spoil: Callable[[PagedBatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that each of these does leave what is not finite where another one multiplies it."""

    def nothing(_: HostPages, slot: int, slots: int) -> None:
        """Zero nothing."""

    monkeypatch.setattr(HostPages, "clear", nothing)
    with PagedBatch(backend, 2) as batch:
        spoil(batch)
        with pytest.raises((EngineError, AssertionError)):
            [bits(batch, 0, length) for length in LENGTHS]


def test_a_token_that_comes_later_clears_the_page_of_a_sequence_that_is_gone(
    of_16_bits: InterpreterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the usual end of a generation, with a step ahead, costs nothing."""
    kept = keep_tokens(monkeypatch)
    with PagedBatch(of_16_bits, 2) as batch:
        cleared = list[int]()

        def clear(_: HostPages, slot: int, slots: int) -> None:
            cleared.append(slot)

        monkeypatch.setattr(HostPages, "clear", clear)
        batch.join(0, [6], 0, prompt(9))
        for token, expected in ((11, []), (BAD, [PAGES[0] * 64 + 21])):
            batch.join(1, PAGES, 0, prompt(19))
            give(batch, token)
            batch._decoding._launch([0, 1])  # pyright: ignore[reportPrivateUsage]
            batch.remove(1)
            batch.step()
            batch.join(1, PAGES, 0, prompt(20))
            batch.remove(1)
            batch.step()
            assert [slot + 1 for slot in cleared] == expected
    assert len(kept) > 2


def keep_tokens(monkeypatch: pytest.MonkeyPatch) -> dict[int, NDArray[np.int32]]:
    """Let the host keep tokens of steps as a GPU does, so that steps can be enqueued ahead."""
    kept: dict[int, NDArray[np.int32]] = {}

    def fetch(self: HostBuffers, number: int, also: Sequence[str] = ()) -> None:
        kept[number] = self.latest().copy()

    def fetched(_: HostBuffers, number: int) -> NDArray[np.int32]:
        return kept[number]

    monkeypatch.setattr(HostBuffers, "fetch", fetch)
    monkeypatch.setattr(HostBuffers, "fetched", fetched)
    monkeypatch.setattr(InterpreterBackend, "ahead", 1)
    return kept


def test_a_neighbour_has_its_own_bits(backend: InterpreterBackend, alone: list[Bits]) -> None:
    """Of a row that decodes next to one that goes wrong, and of prompts in one launch with one that does, before and after."""
    with PagedBatch(backend, 4) as batch:
        batch.join(1, [7], 0, prompt(10))
        give(batch, BAD)
        assert bits(batch, 0, LENGTHS[1]) == alone[1]
        batch.remove(1)
        ids = prompt(LENGTHS[0])
        first, error, last = batch.compute([Piece([7], 0, ids, 0), Piece([9], 0, [BAD] * 5, 1), Piece([8], 0, ids, 2)])
        assert isinstance(error, EngineError)
        logits = batch.step_logits()
        assert {(first, logits[0].tobytes()), (last, logits[2].tobytes())} == {alone[0]}


@pytest.mark.parametrize(
    ("guessed", "length"), [([BAD], 20), ([1, BAD], 63), ([BAD, -3], 62), ([1, 2, BAD], 62), ([1, -3, BAD], 20)]
)
def test_a_guess_that_overflows_changes_no_token(of_16_bits: InterpreterBackend, guessed: list[int], length: int) -> None:
    """Neither of the step that processes it nor of later ones, also where it begins a page. A guess of 1 or 2 is right: it is
    the first token after the known one, or the second; a negative one is wrong."""
    with PagedBatch(of_16_bits, 8) as batch:
        expected = [batch.join(0, PAGES, 0, prompt(length))]
        expected += [batch.step()[0] for _ in range(3)]
        batch.remove(0)
        tokens = [batch.join(0, [8, 9], 0, prompt(length))]
        guesses = [expected[token] if 0 < token < 3 else abs(token) for token in guessed]
        tokens += batch.verify({0: guesses}, [1, 2, 4, 5])[0]
        while len(tokens) < len(expected):
            tokens.append(batch.step()[0])
        assert tokens[:4] == expected


def test_a_row_that_is_wrong_without_its_guesses_has_no_token(of_16_bits: InterpreterBackend) -> None:
    with PagedBatch(of_16_bits, 8) as batch:
        batch.join(1, PAGES, 0, prompt(20))
        give(batch, BAD)
        assert batch.verify({1: [3, 4]}, [2, 4]) == {1: [NO_TOKEN]}
        batch.remove(1)


@pytest.mark.parametrize("whole_tiles", [False, True])
def test_tokens_of_nobody_may_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, whole_tiles: bool) -> None:
    """Rows without a sequence process token 0, and so do tokens of nobody in a chunk."""

    def padded(_: HostPages, tokens: int, filled: int) -> tuple[int, int]:
        return padded_room(tokens, filled, 320, 640)

    if whole_tiles:
        monkeypatch.setattr(HostPages, "padded", padded)
    backend = loaded(tmp_path / "model", token=0)
    with PagedBatch(backend, 2) as batch:
        expected = bits(batch, 0, LENGTHS[0])
        assert bits(batch, 1, LENGTHS[0]) == expected
    backend.close()


SIZE = 4


def test_what_is_in_doubt_is_zeroed_only_where_another_sequence_multiplies_it() -> None:
    doubts = Doubts(20, SIZE)
    assert doubts.chunk([Part([5, 6, 7], 0, 10)]) == []
    assert doubts.chunk([Part([5, 6, 7], 10, 1)]) == []  # its own page
    assert doubts.chunk([Part([7, 5, 6], 0, 9)]) == [Run(6 * SIZE + 1, SIZE - 1)]
    assert doubts.chunk([Part([7, 5], 0, 8)]) == []  # whole pages
    doubts.proven([7, 5, 6], 9)
    assert doubts.step(np.array([7 * SIZE, 5 * SIZE, 6 * SIZE + 1], np.int32)) == []


def test_a_step_zeroes_what_follows_its_slots_once() -> None:
    doubts = Doubts(20, SIZE)
    doubts.raised([5, 6, 7], 5, 9)
    slots = np.array([5 * SIZE, 6 * SIZE, 7 * SIZE + 3], np.int32)
    assert doubts.step(slots) == [Run(6 * SIZE + 1, SIZE - 1)]
    assert doubts.step(slots) == []


def test_a_doubt_that_is_settled_leaves_later_ones() -> None:
    doubts = Doubts(20, SIZE)
    early = doubts.raised([5, 6], 0, 8)
    doubts.raised([6], 0, 1)
    doubts.settle(early)
    assert doubts.step(np.array([5 * SIZE, 6 * SIZE], np.int32)) == [Run(6 * SIZE + 1, SIZE - 1)]
