"""Chunks with tokens of several prompts: a prompt has the bits that it has alone, and what would let two meet is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.backends.interpreter import HostPages, InterpreterBackend
from engine.backends.prompts import padded_room
from engine.checkpoint.weights import WeightPlan
from engine.errors import ModelError, UsageError
from engine.graph.integers import GraphError
from engine.graph.pages import Packed, PageTables, Part
from engine.launch_limits import LaunchLimits
from engine.paged_batch import PagedBatch
from engine.paged_prompts import Piece, launches
from engine.sampling import SamplingParams
from engine.tools.tiny import write_tiny_model

SAMPLED = SamplingParams(0.9, 20, 0.9, seed=7)
OF_HOST = SamplingParams(0.9, 0, 0.9, seed=7, logprobs=2)
LENGTHS = (70, 5, 130, 33)
PAGES = ([4, 9], [2], [7, 3, 11], [5])
SAMPLINGS = (None, SAMPLED, None, OF_HOST)

Bits = tuple[int, list[bytes], bytes]
"""The first token of a prompt, keys and values of its tokens in every layer, and the logits after its first token."""


def prompt(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(0, 400, length)]


@pytest.fixture(scope="module", params=["qwen3", "llama", "qwen3_moe"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = write_tiny_model(folder, family=request.param)
    loaded = InterpreterBackend()
    loaded.load(config, WeightPlan.for_model(config, folder, "bf16"), 192)
    yield loaded
    loaded.close()


def kept(batch: PagedBatch, pages: Sequence[int], length: int) -> list[bytes]:
    """Keys and values of the first tokens of a prompt, in every layer."""
    internals: Any = batch
    arrays = internals._steps._device.rows.arrays
    found: list[bytes] = []
    for name in sorted(arrays):
        if name.startswith(("k_pages", "v_pages")):
            pool: NDArray[Any] = arrays[name]
            found.append(pool[list(pages)].reshape(-1, *pool.shape[2:])[:length].tobytes())
    return found


def piece(number: int, first: int = 0, end: int | None = None) -> Piece:
    """Tokens of one of the prompts; up to its end they are the last ones, and it takes the row of its number."""
    ids = prompt(LENGTHS[number])
    if end is not None:
        return Piece(PAGES[number], first, ids[first:end])
    return Piece(PAGES[number], first, ids[first:], number, SAMPLINGS[number], ids)


def bits(batch: PagedBatch, tokens: dict[int, int]) -> dict[int, Bits]:
    """Of the prompts with these first tokens, by row."""
    pages = {row: kept(batch, PAGES[row], LENGTHS[row]) for row in tokens}
    logits = batch.step_logits()
    return {row: (token, pages[row], logits[row].tobytes()) for row, token in tokens.items()}


@pytest.fixture(scope="module")
def alone(backend: InterpreterBackend) -> dict[int, Bits]:
    found: dict[int, Bits] = {}
    for number in range(len(LENGTHS)):
        with PagedBatch(backend, 4) as batch:
            (token,) = batch.compute([piece(number)])
            assert isinstance(token, int)
            found |= bits(batch, {number: token})
    return found


CUTS: list[list[list[Piece]]] = [
    [[piece(0), piece(1), piece(2), piece(3)]],
    [[piece(3), piece(2), piece(0), piece(1)]],
    [[piece(1), piece(2, 0, 64)], [piece(2, 64), piece(0)], [piece(3)]],
    [[piece(2, 0, 1), piece(0, 0, 69)], [piece(0, 69), piece(1), piece(2, 1, 129), piece(3)], [piece(2, 129)]],
]
"""Calls, each with the pieces that it computes."""


def whole(_: HostPages, tokens: int, filled: int) -> tuple[int, int]:
    """Tiles of tokens, and room as a GPU has."""
    return padded_room(tokens, filled, 320, 512)


@pytest.mark.parametrize("calls", CUTS)
@pytest.mark.parametrize("whole_tiles", [False, True])
def test_a_prompt_has_its_bits_whatever_prompts_share_its_launches(
    backend: InterpreterBackend, alone: dict[int, Bits], calls: list[list[Piece]], whole_tiles: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also with tokens of nobody after them, as a GPU has."""
    if whole_tiles:
        monkeypatch.setattr(HostPages, "padded", whole)
    with PagedBatch(backend, 4) as batch:
        tokens: dict[int, int] = {}
        for pieces in calls:
            for one, token in zip(pieces, batch.compute(pieces), strict=True):
                if one.row is not None:
                    assert isinstance(token, int)
                    tokens[one.row] = token
        assert bits(batch, tokens) == alone


def test_several_prompts_are_one_launch_and_one_that_the_host_samples_another(
    backend: InterpreterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, run = list[tuple[int, str]](), HostPages.run_chunk

    def counted(device: HostPages, inputs: Any, tokens: int, past: int, output_mode: Any) -> None:
        modes.append((tokens, output_mode))
        run(device, inputs, tokens, past, output_mode)

    monkeypatch.setattr(HostPages, "run_chunk", counted)
    with PagedBatch(backend, 4) as batch:
        batch.compute([piece(0), piece(3), piece(1), piece(2, 0, 64)])
        assert modes == [(70, "argmax"), (33, "logits"), (69, "sample")]


def test_a_piece_that_is_wrong_leaves_the_others_alone(backend: InterpreterBackend, alone: dict[int, Bits]) -> None:
    wrong = [replace(piece(2), ids=[1 << 20], prompt=None), replace(piece(2), row=0), replace(piece(2), pages=[])]
    with PagedBatch(backend, 4) as batch:
        first, *errors, last = batch.compute([piece(0), *wrong, piece(1)])
        assert [type(error) for error in errors] == [UsageError] * 3
        assert isinstance(first, int)
        assert isinstance(last, int)
        found = bits(batch, {0: first, 1: last})
        assert found == {row: alone[row] for row in (0, 1)}


def test_a_prompt_whose_values_are_not_finite_changes_no_bit_of_another(
    backend: InterpreterBackend, alone: dict[int, Bits]
) -> None:
    """Its rows are in tiles with those before and after it."""
    with PagedBatch(backend, 4) as batch:
        internals: Any = batch
        batch.compute([piece(2, 0, 65)])
        internals._steps._device.rows.arrays["v_pages.0"][PAGES[2][0]] = np.inf
        first, error, last = batch.compute([piece(0), piece(2, 65), piece(1)])
        assert isinstance(error, ModelError)
        assert isinstance(first, int)
        assert isinstance(last, int)
        found = bits(batch, {0: first, 1: last})
        assert found == {row: alone[row] for row in (0, 1)}


def test_prompts_that_would_meet_are_refused(backend: InterpreterBackend) -> None:
    with PagedBatch(backend, 4) as batch:
        shared = Piece([PAGES[0][1], 13], 0, prompt(9))
        with pytest.raises(GraphError, match=f"has page {PAGES[0][1]}, which another prompt of the chunk has too"):
            batch.compute([piece(0), shared])


PAGE = 4


def tables() -> PageTables:
    return PageTables(4, 40, PAGE, 6, chunk_pages=10, prompt_pages=2)


def test_slots_of_prompts_follow_each_other_each_from_a_multiple() -> None:
    found = tables()
    found.chunk([Part([5, 3, 9], 0, 5)])
    packed = found.chunk([Part([5, 3, 9], 5, 4), Part([8], 0, 2), Part([7, 2], 0, 6)])
    assert packed.table.tolist() == [5, 3, 9, 5, 8, 8, 7, 2, 0, 0]
    assert packed.positions.tolist() == [5, 6, 7, 8, 0, 1, 0, 1, 2, 3, 4, 5]
    assert packed.slots.tolist() == [13, 14, 15, 36, 32, 33, 28, 29, 30, 31, 8, 9]
    assert packed.firsts.tolist() == [0] * 4 + [16] * 2 + [24] * 6
    assert packed.lasts.tolist() == [5, 6, 7, 8, 16, 17, 24, 25, 26, 27, 28, 29]
    assert packed.filled == 32


def of_neighbour(packed: Packed) -> Packed:
    return replace(packed, firsts=packed.firsts - 8 * (packed.firsts == 16))


def stale(packed: Packed) -> Packed:
    return replace(packed, firsts=packed.firsts * 0, lasts=packed.lasts - packed.firsts)


def one_more(packed: Packed) -> Packed:
    return replace(packed, lasts=packed.lasts + 1)


def slot_of_neighbour(packed: Packed) -> Packed:
    return replace(packed, slots=np.roll(packed.slots, 1))


def page_of_neighbour(packed: Packed) -> Packed:
    return replace(packed, table=np.roll(packed.table, 1))


def short(packed: Packed) -> Packed:
    return replace(packed, filled=packed.filled - 8)


def position_of_another(packed: Packed) -> Packed:
    return replace(packed, positions=packed.positions[::-1].copy())


def a_token_of_nobody(packed: Packed) -> Packed:
    return replace(packed, slots=np.append(packed.slots, np.int32(0)))


MISTAKES: list[Callable[[Packed], Packed]] = [
    of_neighbour, stale, one_more, slot_of_neighbour, page_of_neighbour, short, position_of_another, a_token_of_nobody,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_chunk_that_gives_tokens_slots_of_others_is_refused(mistake: Callable[[Packed], Packed]) -> None:
    parts = [Part([5, 3], 0, 6), Part([8], 0, 2), Part([7, 2], 0, 6)]
    found = tables()
    packed = found.chunk(parts)
    found.check_packed(parts, packed)
    with pytest.raises(GraphError, match=r"slots that are not its own|of which 14 are of prompts"):
        found.check_packed(parts, mistake(packed))


def test_a_page_of_two_prompts_of_a_chunk_is_refused_unless_both_only_read_it() -> None:
    found = tables()
    with pytest.raises(GraphError, match="has page 3, which another prompt of the chunk has too"):
        found.chunk([Part([5, 3], 0, 6), Part([3], 0, 2)])
    with pytest.raises(GraphError, match=r"has page [35], which another prompt of the chunk has too"):
        found.chunk([Part([5, 3], 0, 6), Part([5, 3], 0, 6)])
    found.chunk([Part([5, 3], 0, 4)])
    packed = found.chunk([Part([5, 3], 4, 1), Part([5, 8], 4, 3)])  # both go on after the same full page
    assert packed.table[:4].tolist() == [5, 3, 5, 8]
    with pytest.raises(GraphError, match="lacks tokens of the first 4"):  # which the chunk would only compute
        found.chunk([Part([6, 2], 0, 8), Part([6, 9], 4, 1)])


def test_more_pages_than_a_chunk_has_room_for_are_refused() -> None:
    with pytest.raises(GraphError, match="of all prompts of a chunk has 10 pages"):
        tables().chunk([Part([5, 3, 9], 0, 9), Part([8, 10, 11], 0, 9), Part([7, 2, 12], 0, 9)])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_token_is_in_one_launch_that_has_room_for_it(data: st.DataObject) -> None:
    limits = LaunchLimits(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 4)), 64, 8)
    lengths = data.draw(st.lists(st.tuples(st.integers(0, 10), st.integers(1, 50), st.booleans(), st.booleans()), max_size=6))
    pieces = [
        Piece([1], first, [0] * count, row if chooses else None, OF_HOST if on_host else None)
        for row, (first, count, on_host, chooses) in enumerate(lengths)
    ]
    done = [0] * len(pieces)
    for launch in launches(pieces, limits):
        assert 0 < len(launch) <= limits.prompts
        assert sum(one.tokens for one in launch) <= limits.tokens
        assert [one.piece for one in launch] == sorted({one.piece for one in launch})
        needed = [-(-(pieces[one.piece].first + one.start + one.tokens) // 8) * 8 for one in launch]
        assert sum(needed) <= 64 or len(launch) == 1
        for one in launch:
            assert one.start == done[one.piece]
            done[one.piece] += one.tokens
            assert one.last == (done[one.piece] == len(pieces[one.piece].ids))
            assert len(launch) == 1 or not (one.last and pieces[one.piece].on_host)
        assert all(one.last and pieces[one.piece].row is not None for one in launch[:-1])
    assert done == [len(piece.ids) for piece in pieces]
